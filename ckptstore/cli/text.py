"""What each command prints for people."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.markup import escape

from ckptstore.cli.console import count as _count
from ckptstore.cli.console import kinds as _kinds
from ckptstore.cli.console import line as _line
from ckptstore.cli.console import moment as _moment
from ckptstore.cli.console import print_table as _print
from ckptstore.cli.console import size as _size
from ckptstore.cli.console import table as _table
from ckptstore.core.naming import unfinished_ttp_directory
from ckptstore.ops import inspect as ops

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ckptstore.core.model import Checkpoint, Rejection, Resolution, RestorePlan
    from ckptstore.ops.overview import RunRow, SaveRow
    from ckptstore.ops.scan import Scanned

_RANKS_SHOWN = 16
_FILES_SHOWN = 20
_ROWS_SHOWN = 1000
_NUMBERS_SHOWN = 64


def runs(rows: Sequence[RunRow]) -> None:
    """A line a run."""
    table = _table("run", ">launches", ">last step", "kind", ">size", ">restorable step", "saved")
    for row in rows:
        last, restorable = row.last, row.newest_restorable
        table.add_row(
            escape(row.run),
            str(row.launches),
            str(last.tally.global_step) if last else "-",
            last.tally.kind.value if last else "-",
            _size(row.bytes),
            str(restorable.tally.global_step) if restorable else "none",
            _age(restorable.tally.created_at) if restorable else "-",
        )
    _print(table, "no runs yet")


def saves(rows: Sequence[SaveRow]) -> None:
    """A line a save."""
    table = _table("run", ">step", ">epoch", "kind", ">ranks", ">size", "restorable", "saved", "launch")
    for row in rows:
        tally = row.tally
        table.add_row(
            escape(row.run),
            str(tally.global_step) + (" pinned" if row.pinned else ""),
            "-" if tally.epoch is None else f"{tally.epoch}_{tally.step_in_epoch}",
            tally.kind.value,
            f"{tally.ranks}/{row.launch.world_size}",
            _size(tally.bytes),
            "yes" if row.restorable else "no",
            _moment(tally.created_at),
            escape(row.launch.id),
        )
    _print(table, "no saves yet")


def files(found: Sequence[Checkpoint]) -> None:
    """A line a file."""
    table = _table("run", ">step", "kind", ">rank", ">size", "state", "saved", "file")
    for file in found:
        table.add_row(
            escape(file.run),
            str(file.global_step),
            file.kind.value,
            str(file.rank),
            "-" if file.size is None else _size(file.size),
            file.state.value + (f" ({file.problem})" if file.problem else ""),
            _moment(file.created_at),
            escape(file.path),
        )
    _print(table, "no files yet")
    for file in found:
        if file.quarantine:
            _line(f"quarantined: step {file.global_step} of rank {file.rank}: {file.quarantine}")


def scanned(done: Scanned, *, dry_run: bool) -> None:
    """What a scan found and did, and what it left alone."""
    kinds = Counter(file.kind.value for file in done.adopted)
    what = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing"
    launches = len({file.launch for file in done.adopted})
    would = "would be adopted" if dry_run else "adopted"
    _line(f"run {done.run}: {what} {would}" + (f", of {_count(launches, 'launch', 'launches')}" if launches else ""))
    others = ", ".join(f"{count} {name}" for name, count in sorted(done.counts.items()))
    _line(f"{_count(sum(done.counts.values()), 'file', 'files')} seen: {others or 'none'}; {done.known} known before")
    for word, files in (("damaged", done.damaged), ("missing", done.missing)):
        for file in files[:_FILES_SHOWN]:
            _line(f"{word}: {file.path} (step {file.global_step}, rank {file.rank})")
        _line_of_more(files, word)
    for each in done.uncertain[:_FILES_SHOWN]:
        guess = "" if each.best_guess is None else f", perhaps of step {each.best_guess}"
        _line(f"uncertain: {each.path}{guess}: {each.reason}")
    _line_of_more(done.uncertain, "uncertain")
    for skipped in done.skipped[:_FILES_SHOWN]:
        _line(f"skipped: {skipped.path}: {skipped.reason}")
    _line_of_more(done.skipped, "skipped")
    for warning in done.warnings:
        _line(f"warning: {warning}")


def _line_of_more(items: Sequence[object], what: str) -> None:
    if len(items) > _FILES_SHOWN:
        _line(f"… and {len(items) - _FILES_SHOWN} more {what}; --json has all")


def resolution(found: Resolution, *, explain: bool) -> None:
    """The plan, and why newer states are not taken."""
    if found.plan is None:
        _line(f"nothing of run {found.run} can be restored")
    else:
        _plan(found.run, found.plan)
    if not found.rejections:
        if explain:
            _line("no newer state was passed over" if found.plan else "no save of it was found")
        return
    if not explain:
        _line(f"{len(found.rejections)} newer saves were passed over; --explain says why")
        return
    _line("\npassed over:")
    for rejection in found.rejections:
        _rejection(rejection)


def inspected(path: Path, found: ops.Found) -> None:
    """A line a parameter, or a line a group of ranks, and what else the file says."""
    match found:
        case ops.Strategy():
            _strategy(path, found)
        case ops.GroupInfo():
            _group_info(path, found)
        case _:
            _header(path, found)


def _header(path: Path, found: ops.Header) -> None:
    whole = "whole" if found.complete else "every entry is whole, but nothing in it marks its end"
    _line(f"{_plain(str(path))}: {found.format}, {whole}")
    if found.optimizer_step is not None:
        _line(f"optimizer step: {found.optimizer_step}")
    metadata = found.metadata if isinstance(found, ops.SafetensorsHeader) else {}
    values = (*metadata.items(), *found.info.items())
    for name, value in values[:_ROWS_SHOWN]:
        _line(_plain(f"{name}: {value}"))
    _more(values, "values")
    table = _table("parameter", "type", "shape")
    parameters = found.parameters
    for entry in parameters[:_ROWS_SHOWN]:
        table.add_row(escape(_plain(entry.name)), escape(_plain(entry.dtype)), str(entry.shape))
    _print(table, "no parameters")
    _more(parameters, "parameters")


def _strategy(path: Path, found: ops.Strategy) -> None:
    _line(f"{_plain(str(path))}: strategy, stages {_numbers(found.stages) or 'not told'}")
    table = _table("parameter", ">stage", "device matrix", "tensor map", "split shape", ">shard step", ">shard size")
    for layout in found.parameters[:_ROWS_SHOWN]:
        table.add_row(
            escape(_plain(layout.name)),
            "-" if layout.stage is None else str(layout.stage),
            _numbers(layout.dev_matrix),
            _numbers(layout.tensor_map),
            _numbers(layout.param_split_shape),
            str(layout.opt_weight_shard_step),
            str(layout.opt_weight_shard_size),
        )
    _print(table, "no parameters")
    _more(found.parameters, "parameters")


def _group_info(path: Path, found: ops.GroupInfo) -> None:
    _line(f"{_plain(str(path))}: group info")
    _line(f"ranks with the same checkpoint: {_numbers(found.restore_ranks) or 'none'}")
    table = _table("group", "ranks")
    for group in found.groups[:_ROWS_SHOWN]:
        table.add_row(escape(_plain(group.name)), _numbers(group.ranks))
    _print(table, "no groups")
    _more(found.groups, "groups")


def _more(rows: Sequence[object], what: str) -> None:
    if len(rows) > _ROWS_SHOWN:
        _line(f"… and {len(rows) - _ROWS_SHOWN} more {what}; --json has all")


def _numbers(numbers: Sequence[object]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_NUMBERS_SHOWN])
    return shown if len(numbers) <= _NUMBERS_SHOWN else f"{shown}, … ({len(numbers)} in all)"


def _plain(text: str) -> str:
    """Without the characters that would move a terminal's cursor: the text is a file's."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _plan(run: str, plan: RestorePlan) -> None:
    steps = plan.launch.steps_per_epoch
    place = f" (epoch {plan.epoch}, step {plan.step_in_epoch} of {steps})" if steps else ""
    _line(f"run {run} goes on after step {plan.global_step}{place}, saved by launch {plan.launch.id}")
    table = _table(">rank", "loads the file of", "kind", ">size", "file")
    for assignment in plan.ranks[:_RANKS_SHOWN]:
        source = assignment.source
        own = source.rank == assignment.rank
        table.add_row(
            str(assignment.rank),
            "itself" if own else f"rank {source.rank}, its replica",
            source.kind.value,
            _size(source.size or 0),
            escape(source.path),
        )
    _print(table, "")
    if len(plan.ranks) > _RANKS_SHOWN:
        others = plan.ranks[_RANKS_SHOWN:]
        helped = sum(assignment.source.rank != assignment.rank for assignment in others)
        _line(f"… and {len(others)} more ranks, {helped} of them by a replica; --json has all")
    unfinished = {name for each in plan.ranks if (name := unfinished_ttp_directory(each.source.path))}
    for name in sorted(unfinished):
        _line(f"{name} was never renamed; the files in it and beside it cover every rank")


def _rejection(rejection: Rejection) -> None:
    _line(f"  step {rejection.global_step} ({_kinds(rejection.kinds)}, launch {rejection.launch})")
    for reason in rejection.reasons[:_RANKS_SHOWN]:
        where = "" if reason.rank is None else f"rank {reason.rank}: "
        _line(f"    {where}{reason.rule}: {reason.detail}")
    if len(rejection.reasons) > _RANKS_SHOWN:
        _line(f"    … and {len(rejection.reasons) - _RANKS_SHOWN} more reasons; --json has all")


def _age(moment: datetime) -> str:
    seconds = max(0, int((datetime.now(timezone.utc) - moment).total_seconds()))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"
