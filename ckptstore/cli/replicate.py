"""The command that copies checkpoints to tiers. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from ckptstore.cli import values
from ckptstore.cli.commands import Parsed, as_json, catalog, optional_run
from ckptstore.cli.terminal import first, line
from ckptstore.core.hints import Command
from ckptstore.core.text import count, size
from ckptstore.errors import UsageError
from ckptstore.resume.dicts import fields, reasons

if TYPE_CHECKING:
    from ckptstore.replicate.replicator import Done, Replicator

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(?:B?(?:/s)?)", re.ASCII)
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PAUSE_SECONDS = 10.0


def _rate(text: str) -> float:
    """A rate in bytes a second, from a text such as 100M or 1.5G."""
    found = _RATE.fullmatch(text)
    rate = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not rate:
        raise UsageError(f"{text!r} is no number of bytes a second", "give one as 100M or 1.5G")
    return rate


@click.command()
@optional_run
@click.option("--tier", "tiers", multiple=True, metavar="NAME", help="Only to this tier. Can be given several times.")
@click.option("--watch", is_flag=True, help="Keep running, and copy later saves too.")
@click.option("--rate-limit", type=Parsed("rate", _rate), metavar="RATE", help="Bytes a second at most, as 100M.")
@as_json
@click.pass_context
def replicate(
    context: click.Context,
    run: str | None,
    *,
    tiers: tuple[str, ...],
    watch: bool,
    rate_limit: float | None,
    as_json: bool,
) -> int:
    """Copy checkpoints of RUN, or of all runs, to tiers.

    A file is copied to each tier that lacks it, the newest files first. A file of the last ten seconds is waited for.
    Processes on several nodes share the work. An interrupted upload never counts as a copy and is repeated. A tier that
    is full or unreachable is named once and tried again. Exit code 1: something was not copied.
    """
    from ckptstore.replicate.replicator import Replicator

    replicator = Replicator(catalog(context, waits=True).database, rate_limit, tiers)
    if watch:
        _watch(replicator, run, as_json=as_json)
        return 0
    done = replicator.round(run)
    done.undigested = replicator.undigested(run)
    _report(done, run, as_json=as_json)
    return 1 if done.troubles else 0


def _watch(replicator: Replicator, run: str | None, *, as_json: bool) -> None:
    import logging

    from ckptstore.errors import CatalogUnavailableError
    from ckptstore.replicate.replicator import StoppedError

    complained = ""
    while True:
        try:
            done = replicator.round(run)
            if done.files:
                done.undigested = replicator.undigested(run)
            complained = ""
        except StoppedError:
            return
        except (CatalogUnavailableError, UsageError) as error:  # a tier may be declared later
            if str(error) != complained:
                complained = str(error)
                logging.getLogger("ckptstore").warning("%s. Trying again; this is logged once.", error)
            done = None
        if done is not None and done.files:
            _report(done, run, as_json=as_json)
        if replicator.stop.wait(_PAUSE_SECONDS):
            return


def _report(done: Done, run: str | None, *, as_json: bool) -> None:
    if as_json:
        values.write({**fields(done, "files bytes held elsewhere undigested"), "troubles": reasons(done.troubles)})
        return
    line(f"{count(done.files, 'file', 'files')} copied, {size(done.bytes)} sent")
    if done.held:
        line(f"{count(done.held, 'file', 'files')} being copied by others")
    if done.elsewhere:
        line(f"{count(done.elsewhere, 'file is', 'files are')} not on this node, or of another size than recorded")
    if done.undigested:
        have = f"{count(done.undigested, 'file has', 'files have')} no recorded digest"
        again = Command("verify", *([run] if run else []), "--digest")
        line(f"{have}, and {'is' if done.undigested == 1 else 'are'} not copied: {again} records it")
    for each in first(done.troubles, "not copied"):
        line(f"not copied: {each.path}: {each.reason}")
