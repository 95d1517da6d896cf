"""The command that compares files with the catalog. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli.commands import as_json, catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.core.model import Skipped
    from ckptstore.verify.verify import Verified

DAMAGE_FOUND = 6
_SHOWN = 20
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class Part(click.ParamType[Any]):
    """A part of a whole, as 10% or 0.1."""

    name = "part"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        number, percent = str(value).removesuffix("%"), str(value).endswith("%")
        try:
            part = float(number) / (100 if percent else 1)
        except ValueError:
            part = 0
        if not 0 < part <= 1:
            self.fail(f"{value!r} is not a part of the files, as 10% or 0.1", param, ctx)
        return part


class Shard(click.ParamType[Any]):
    """One of N parts, as 2/8."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Read it."""
        found = _SHARD.fullmatch(str(value))
        number, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= number <= count:
            self.fail(f"{value!r} is not one of N parts, from 1/N to N/N", param, ctx)
        return number, count


@click.command()
@click.argument("run", required=False)
@click.option("--digest", is_flag=True, help="Read every byte, and compare the digests.")
@click.option("--sample", type=Part(), metavar="P", help="A part of the files by chance, as 10%; the newest always.")
@click.option("--shard", type=Shard(), metavar="I/N", help="The I-th of N parts of the files: one for each process.")
@as_json
@click.pass_context
def verify(
    context: click.Context,
    run: str | None,
    *,
    digest: bool,
    sample: float | None,
    shard: tuple[int, int] | None,
    as_json: bool,
) -> int:
    """Compare the files of RUN, or of all runs, with the catalog.

    Sizes and headers; every byte with --digest. What is damaged or gone is marked in the catalog; no file is
    changed. With --shard I/N, each of N processes verifies its own part of the files.
    Exit code 6: damage was found. 1: some files could not be looked at.
    """
    from ckptstore.cli import terminal, values
    from ckptstore.verify import verify as verifying

    database = catalog(context).database
    with terminal.progress_of("verified", in_bytes=digest) as show:
        done = verifying.verify(database, run, digest=digest, sample=sample, shard=shard, progress=show)
    values.write(_values(done)) if as_json else _show(done, digest=digest, sample=sample, shard=shard)
    if done.damaged:
        return DAMAGE_FOUND
    return 1 if done.troubles else 0


def _values(done: Verified) -> dict[str, Any]:
    return {
        "checked": done.checked,
        "bytes": done.bytes,
        "damaged": [{"path": each.path, "rule": each.rule.value, "detail": each.detail} for each in done.damaged],
        "troubles": _reasons(done.troubles),
        "skipped": _reasons(done.skipped),
        "unknown": _reasons(done.unknown),
        "whole_again": list(done.whole_again),
        "new_digests": done.new_digests,
    }


def _reasons(found: Sequence[Skipped]) -> list[dict[str, str]]:
    return [{"path": each.path, "reason": each.reason} for each in found]


def _show(done: Verified, *, digest: bool, sample: float | None, shard: tuple[int, int] | None) -> None:
    from ckptstore.cli.terminal import line
    from ckptstore.core.text import count, size

    what = "sizes, headers and digests" if digest else "sizes and headers"
    part = "" if sample is None else f", a sample of {sample:.4g} of the older files"
    part += "" if shard is None else f", shard {shard[0]} of {shard[1]}"
    files, runs = count(done.checked, "file", "files"), count(len(done.runs), "run", "runs")
    line(f"{files} of {runs} verified, {size(done.bytes)}: {what}{part}")
    if done.new_digests:
        taken = f"{count(done.new_digests, 'file', 'files')} had no digest"
        line(f"{taken}: it was taken now, and is what later verifications compare with")
    _list("damaged", [(each.path, f"{each.rule.value}: {each.detail}") for each in done.damaged])
    _list("not looked at", [(each.path, each.reason) for each in done.troubles])
    _list("skipped", [(each.path, each.reason) for each in done.skipped])
    _list("unknown", [(each.path, each.reason) for each in done.unknown])
    _list("whole again", [(path, "marked so") for path in done.whole_again])
    line(f"{count(len(done.damaged), 'file is', 'files are')} damaged" if done.damaged else "no damage was found")


def _list(word: str, found: Sequence[tuple[str, str]]) -> None:
    from ckptstore.cli.terminal import line

    for path, reason in found[:_SHOWN]:
        line(f"{word}: {path}: {reason}")
    if len(found) > _SHOWN:
        line(f"… and {len(found) - _SHOWN} more {word}; --json has all")
