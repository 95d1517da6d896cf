"""The command that compares two states or files. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ckptstore import progress
from ckptstore.cli import values
from ckptstore.cli.commands import as_json, catalog, complete_references
from ckptstore.cli.terminal import Rows, line, more
from ckptstore.core.text import count, of_ranks, ranges, some
from ckptstore.resume.dicts import fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click.shell_completion import CompletionItem

    from ckptstore.tensors.compare import Changed, Compared, Described, RankCompared, Side

_ROWS_SHOWN = 20


def _complete(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The references that begin with the given text; if there are none, files."""
    from click.shell_completion import CompletionItem

    found = [CompletionItem(each) for each in complete_references(context, param, incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("first", metavar="RUN[@STATE]|FILE", shell_complete=_complete)
@click.argument("second", metavar="RUN[@STATE]|FILE", shell_complete=_complete)
@as_json
@click.pass_context
def diff(context: click.Context, first: str, second: str, *, as_json: bool) -> None:
    """Show how two states, or two files, differ.

    It lists parameters that are new, gone, or of another type or shape, and the norms of the difference of all
    others, largest first. Each side is a state, as RUN, RUN@1200, RUN@TAG, RUN@best:loss or
    RUN/LAUNCH@1200, or a file whose name ends in .ckpt or .safetensors. All ranks of two states are compared;
    files with the same recorded digest are not read. It needs NumPy, and no MindSpore. The exit code is 0 whether
    they differ or not.
    """
    from ckptstore.tensors.compare import compare

    with progress.bar("compared", in_bytes=True) as show:
        found = compare(first, second, lambda: catalog(context).database, show)
    values.write(_value(found)) if as_json else _show(found)


def _show(found: Compared) -> None:
    _show_sides(found.first, found.second)
    for each in found.ranks:
        line(f"{of_ranks(each.ranks)}: {_summary(each)}")
    if found.unmatched:
        line(f"{of_ranks(found.unmatched)}: in one of them only")
    _show_unmatched(found.ranks)
    _show_changed(found.ranks)


def _show_sides(first: Side, second: Side) -> None:
    shown = Rows("", "first", "second")
    one, other = _facts(first), _facts(second)
    for name in {**one, **other}:
        shown.add_row(name, one.get(name, "-"), other.get(name, "-"))
    shown.print("")


def _facts(side: Side) -> dict[str, str]:
    """The facts of a side, by their names."""
    place = "" if side.epoch is None else f" (epoch {side.epoch}, step {side.step_in_epoch})"
    facts = {
        "file" if side.run is None else "state": side.name,
        "run": side.run,
        "launch": side.launch,
        "step": None if side.global_step is None else f"{side.global_step}{place}",
        "optimizer step": side.optimizer_step,
        "ranks": side.world_size,
        "layout": None if side.layout is None else _layout(side.layout.source, side.layout.groups),
        **{name: f"{value:.6g}" for name, value in side.metrics.items()},
    }
    return {name: str(fact) for name, fact in facts.items() if fact is not None}


def _layout(source: str, groups: Iterable[tuple[int, ...]]) -> str:
    return f"{source} {some([ranges(group) for group in groups])}".rstrip()


def _summary(each: RankCompared) -> str:
    if each.same_bytes:
        return "the same bytes"
    told = {
        "changed": each.changed,
        "new": each.new,
        "gone": each.gone,
        "of another type or shape": each.reshaped,
    }
    differences = [f"{len(some)} {what}" for what, some in told.items() if some]
    return ", ".join([f"{count(each.same or 0, 'parameter is', 'parameters are')} the same", *differences])


def _show_unmatched(ranks: Iterable[RankCompared]) -> None:
    """Print the parameters that are new, gone, or of another type or shape. Equal rows of several ranks are one row."""
    rows: dict[tuple[str, str, str], None] = {}
    for each in ranks:
        rows |= dict.fromkeys((one.name, "-", _kind(one)) for one in each.new)
        rows |= dict.fromkeys((one.name, _kind(one), "-") for one in each.gone)
        rows |= dict.fromkeys((one.name, _kind(one.first), _kind(one.second)) for one in each.reshaped)
    shown = Rows("parameter", "first", "second")
    for row in list(rows)[:_ROWS_SHOWN]:
        shown.add_row(*row)
    if rows:
        shown.print("")
    more(len(rows), "parameters that only one has", _ROWS_SHOWN)


def _show_changed(ranks: tuple[RankCompared, ...]) -> None:
    from ckptstore.tensors.compare import largest_first

    of = {id(each): ranges(one.ranks) for one in ranks for each in one.changed}
    changed = largest_first(each for one in ranks for each in one.changed)
    has_odd, has_ranks = any(_not_finite(each) for each in changed), len(ranks) > 1
    also = [*(["NaN, inf"] if has_odd else []), *(["ranks"] if has_ranks else [])]
    shown = Rows("parameter", "type", "shape", ">relative", ">L2", ">largest", *also)
    for each in changed[:_ROWS_SHOWN]:
        norms = ("-" if norm is None else f"{norm:.3g}" for norm in (each.relative, each.l2, each.max_abs))
        ends = [*([_not_finite(each) or "-"] if has_odd else []), *([of[id(each)]] if has_ranks else [])]
        shown.add_row(each.name, each.dtype, str(each.shape), *norms, *ends)
    if changed:
        shown.print("")
    more(len(changed), "parameters that changed", _ROWS_SHOWN)


def _not_finite(each: Changed) -> str:
    """The numbers of NaN and infinite elements on both sides, as "NaN, inf -> NaN, inf". Empty if there are none."""
    (first, second), (infinite, others) = each.nan, each.inf
    return f"{first}, {infinite} -> {second}, {others}" if any((*each.nan, *each.inf)) else ""


def _kind(of: Described) -> str:
    return f"{of.dtype} {of.shape}"


def _value(found: Compared) -> dict[str, Any]:
    from ckptstore.cli.values import finite

    return {
        "first": _side(found.first),
        "second": _side(found.second),
        "ranks": [
            {
                "ranks": each.ranks,
                "paths": each.paths,
                "same_bytes": each.same_bytes,
                "same": each.same,
                "new": [one._asdict() for one in each.new],
                "gone": [one._asdict() for one in each.gone],
                "reshaped": [
                    {"name": one.name, "first": one.first._asdict(), "second": one.second._asdict()}
                    for one in each.reshaped
                ],
                "changed": [{name: finite(value) for name, value in one._asdict().items()} for one in each.changed],
            }
            for each in found.ranks
        ],
        "unmatched_ranks": found.unmatched,
    }


def _side(side: Side) -> dict[str, Any]:
    names = "name run launch global_step epoch step_in_epoch optimizer_step metrics world_size"
    return {**fields(side, names), "layout": side.layout.to_json() if side.layout else None}
