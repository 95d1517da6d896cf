"""The command that compares files with the catalog. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ckptstore import progress
from ckptstore.cli import values
from ckptstore.cli.commands import Parsed, as_json, catalog, optional_run
from ckptstore.cli.terminal import first, line
from ckptstore.core.hints import Command
from ckptstore.core.text import count, size
from ckptstore.errors import DamageError, UsageError
from ckptstore.resume.dicts import fields, reasons

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.verify.verify import Verified

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


def _part(text: str) -> float:
    """A part of the files, from a text such as 10% or 0.1."""
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = 0
    if not 0 < part <= 1:
        raise UsageError(f"{text!r} is not a share of the files: give 10% or 0.1")
    return part


def _shard(text: str) -> tuple[int, int]:
    """One of N parts, from a text such as 2/8."""
    found = _SHARD.fullmatch(text)
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"{text!r} is not one of N parts, from 1/N to N/N")
    return number, count


@click.command()
@optional_run
@click.option("--digest", is_flag=True, help="Read every byte, and compare the digests.")
@click.option(
    "--sample",
    type=Parsed("part", _part),
    metavar="P",
    help="Verify a random part of the files, as 10%, and always the newest.",
)
@click.option(
    "--shard",
    type=Parsed("shard", _shard),
    metavar="I/N",
    help="The I-th of N parts of the files: one for each process.",
)
@click.option("--tier", metavar="NAME", help="Verify the copies in this tier instead of the files.")
@as_json
@click.pass_context
def verify(
    context: click.Context,
    run: str | None,
    *,
    digest: bool,
    sample: float | None,
    shard: tuple[int, int] | None,
    tier: str | None,
    as_json: bool,
) -> int:
    """Compare the files of RUN, or of all runs, with the catalog.

    It compares sizes and headers, and with --digest every byte. Damaged and missing files are marked in the catalog;
    no file is changed. With --shard I/N, each of N processes verifies its own part of the files. Exit code 6: a file is
    damaged, or its loss was noticed now; 1: some files could not be looked at. The last line counts the files that
    were recorded as missing before.
    """
    from ckptstore.verify import verify as verifying

    database = catalog(context, waits=True).database
    if tier is not None:
        if sample is not None or shard is not None:
            raise click.UsageError("--tier looks at every copy: no --sample and no --shard with it.")
        return _verify_in_tier(database, run, tier, digest=digest, as_json=as_json)
    with progress.bar("verified", in_bytes=digest) as show:
        done = verifying.verify(database, run, digest=digest, sample=sample, shard=shard, progress=show)
    values.write(_values(done)) if as_json else _show(done, run, digest=digest, sample=sample, shard=shard)
    if done.damaged:
        return DamageError.exit_code
    return 1 if done.troubles else 0


def _verify_in_tier(database: Database, run: str | None, tier: str, *, digest: bool, as_json: bool) -> int:
    from ckptstore.cli.retention import tier_with_copies
    from ckptstore.verify import in_tier

    instead = Command("verify", *([] if run is None else [run]), *(["--digest"] if digest else []))
    done = in_tier.verify(database, run, tier_with_copies(database, tier, instead), digest=digest)
    if as_json:
        found = {name: reasons(getattr(done, name)) for name in ("damaged", "troubles")}
        values.write({**fields(done, "tier checked bytes whole failed_before"), **found})
    else:
        what = "sizes and digests" if digest else "sizes"
        line(f"{count(done.checked, 'copy', 'copies')} in tier {done.tier} verified, {size(done.bytes)}: {what}")
        for word, some in (("damaged", done.damaged), ("not looked at", done.troubles)):
            for reason, copies in first(list(Counter(each.reason for each in some).items()), word):
                line(f"{word}: {reason}" + (f" ({copies} copies)" if copies > 1 else ""))
        for key in first(done.whole, "whole again"):
            line(f"whole again: {key}: a start takes it")
        last = f"{count(len(done.damaged), 'copy is', 'copies are')} damaged" if done.damaged else "no damage was found"
        if done.failed_before:
            were = count(done.failed_before, "copy was", "copies were")
            again = Command("replicate", *([] if run is None else [run]), "--tier", done.tier)
            last += f"; {were} recorded as failed before: {again} copies the files that are still on disk"
        line(last)
    return DamageError.exit_code if done.damaged else 1 if done.troubles else 0


def _values(done: Verified) -> dict[str, Any]:
    return {
        **fields(done, "checked bytes"),
        "damaged": [fields(each, "path rule detail") for each in done.damaged],
        **{name: reasons(getattr(done, name)) for name in ("troubles", "skipped", "unknown")},
        **fields(done, "whole_again new_digests missing_before"),
    }


def _show(
    done: Verified, run: str | None, *, digest: bool, sample: float | None, shard: tuple[int, int] | None
) -> None:
    what = "sizes, headers and digests" if digest else "sizes and headers"
    part = "" if sample is None else f", the newest files and {100 * sample:.4g} % of the older ones"
    part += "" if shard is None else f", shard {shard[0]} of {shard[1]}"
    files, runs = count(done.checked, "file", "files"), count(len(done.runs), "run", "runs")
    line(f"{files} of {runs} verified, {size(done.bytes)}: {what}{part}")
    if done.new_digests:
        taken = f"{count(done.new_digests, 'file', 'files')} had no digest"
        line(f"{taken}: verify recorded it now, and compares with it from now on")
    for damage in first(done.damaged, "damaged"):
        line(f"damaged: {damage.path}: {damage.rule.value}: {damage.detail}")
    for word, found in (("not looked at", done.troubles), ("skipped", done.skipped), ("unknown", done.unknown)):
        for each in first(found, word):
            line(f"{word}: {each.path}: {each.reason}")
    for path in first(done.whole_again, "whole again"):
        line(f"whole again: {path}: no longer marked as damaged or missing")
    last = f"{count(len(done.damaged), 'file is', 'files are')} damaged" if done.damaged else "no damage was found"
    if done.missing_before:
        were = count(done.missing_before, "file was", "files were")
        listed = Command("list", *([] if run is None else [run]), "--files")
        last += f"; {were} recorded as missing before, deleted or lost: {listed}"
    line(last)
