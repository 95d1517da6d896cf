"""Commands that look after the catalog and this machine. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli.commands import as_json, trust
from ckptstore.errors import CkptstoreError
from ckptstore.outside import subprocess

if TYPE_CHECKING:
    from ckptstore.catalog.versions import SchemaStatus
    from ckptstore.journal.sync import Synced


@click.command()
@click.argument("run_or_directory", required=False, metavar="[RUN|DIR]")
@trust
@as_json
@click.pass_context
def sync(context: click.Context, run_or_directory: str | None, *, trust: tuple[str, ...], as_json: bool) -> int:
    """Take up what journals say and the catalog lacks.

    Those of a run, or of all runs; or those below a directory, which is written with a slash, as in ./checkpoints. What
    is the name of a run is the run. Exit code 1: a directory or a journal could not be read.
    """
    from ckptstore.api import connect
    from ckptstore.cli import values

    done = connect(context.obj).sync(run_or_directory, trust=trust)
    values.write(_values(done)) if as_json else _show(done)
    return 1 if done.unreadable else 0


def _values(done: Synced) -> dict[str, object]:
    from ckptstore.cli import values

    return {
        **values.fields(done, "runs journals read records"),
        "spoiled_lines": done.spoiled,
        "skipped": values.reasons((*done.skipped, *done.refused)),
    }


def _show(done: Synced) -> None:
    from ckptstore.cli.terminal import first, line
    from ckptstore.core.text import count

    journals, records = count(done.journals, "journal", "journals"), count(done.records, "record", "records")
    line(f"{journals} looked at, {done.read} with news: {records} taken up")
    if done.spoiled:
        line(f"{done.spoiled} lines passed over: they were torn, or are of another program")
    skipped = sorted((*done.skipped, *done.refused), key=lambda each: each not in done.unreadable)
    for each in first(skipped, "skipped"):
        line(f"skipped: {each.path}: {each.reason}")


@click.group()
def db() -> None:
    """The catalog's schema: show, check, upgrade it."""


@db.command()
@as_json
@click.pass_context
def upgrade(context: click.Context, *, as_json: bool) -> None:
    """Create the schema, or bring it to this program's version. Can be repeated."""
    from ckptstore.catalog import versions

    _report(versions.upgrade(context.obj), as_json=as_json)


@db.command()
@as_json
@click.pass_context
def current(context: click.Context, *, as_json: bool) -> None:
    """Show which version the schema has."""
    from ckptstore.catalog import versions

    _report(versions.current(context.obj), as_json=as_json)


@db.command()
@as_json
@click.pass_context
def check(context: click.Context, *, as_json: bool) -> None:
    """Fail, with exit code 4, unless the schema is the one this program works with."""
    from ckptstore.catalog import versions

    _report(versions.check(context.obj), as_json=as_json)


def _report(status: SchemaStatus, *, as_json: bool) -> None:
    from ckptstore.cli import values

    text = f"{status.catalog}: schema {status.found or 'none'}, this program works with {status.needed}"
    values.report({"catalog": status.catalog, "schema": status.found, "needed": status.needed}, text, as_json=as_json)


_WORDS = {True: "holds", False: "FAILED", None: "not tried"}


@click.command()
@click.option("--ranks", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes, under msrun.")
@click.option("--device", type=click.Choice(["CPU", "GPU", "Ascend"]), default="CPU", show_default=True)
@click.option("--mode", type=click.Choice(["graph", "pynative"]), default="graph", show_default=True)
@as_json
def selftest(*, as_json: bool, **asked: Any) -> int:
    """Save, kill, restore and compare a small training on this machine, kind by kind.

    It takes a minute or two, in a temporary directory with a catalog of its own. Exit code 1: a promise did not hold.
    """
    from ckptstore.cli import terminal, values

    command = [sys.executable, "-m", "ckptstore.mindspore.selftest", json.dumps(asked)]
    rows = []
    last = "it said nothing"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as running:
        for line in running.stdout or ():
            if line.startswith("{"):
                rows.append(json.loads(line))
                if not as_json:
                    row = rows[-1]
                    terminal.line(f"{_WORDS[row['held']]:<9}  {row['promise']}: {row['seen']}")
            else:
                last = line.strip() or last
    if running.returncode or not rows:
        raise CkptstoreError(f"the test itself failed: {last}", "pip install 'ckptstore[mindspore]'")
    if as_json:
        values.write(rows)
    return int(any(row["held"] is False for row in rows))
