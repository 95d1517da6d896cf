"""Commands that look after the catalog and this machine. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import values
from ckptstore.cli.commands import Whole, as_json, catalog, optional_run, trust
from ckptstore.cli.terminal import first, line, lines, marked
from ckptstore.core.text import count
from ckptstore.errors import CkptstoreError
from ckptstore.outside import subprocess
from ckptstore.resume.dicts import fields, reasons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.versions import SchemaStatus
    from ckptstore.doctor.checkup import Check, Checkup
    from ckptstore.journal.sync import Synced


@click.command()
@click.argument("run_or_directory", required=False, metavar="[RUN|DIR]")
@trust
@as_json
@click.pass_context
def sync(context: click.Context, run_or_directory: str | None, *, trust: tuple[str, ...], as_json: bool) -> int:
    """Read from journals the records that the catalog lacks.

    It reads the journals of a run, of all runs, or below a directory. Write a directory with a slash, as
    ./checkpoints: a name without one is that of a run. Exit code 1: a directory or a journal could not be read.
    """
    done = catalog(context).sync(run_or_directory, trust=trust)
    values.write(_sync_values(done)) if as_json else _show_sync(done)
    return 1 if done.unreadable else 0


def _sync_values(done: Synced) -> dict[str, object]:
    return {
        **fields(done, "runs journals read records"),
        "spoiled_lines": done.spoiled,
        "skipped": reasons((*done.skipped, *done.refused)),
    }


def _show_sync(done: Synced) -> None:
    journals, records = count(done.journals, "journal", "journals"), count(done.records, "record", "records")
    line(f"{journals} read, {done.read} with new lines: {records} added")
    if done.spoiled:
        or_refused = ", or refused for a reason below" if done.refused else ""
        many = count(done.spoiled, "line was", "lines were")
        line(f"{many} skipped: incomplete, or written by another program{or_refused}")
    skipped = sorted((*done.skipped, *done.refused), key=lambda each: each not in done.unreadable)
    for each in first(skipped, "skipped"):
        line(f"skipped: {each.path}: {each.reason}")


@click.group()
def db() -> None:
    """Show, check or upgrade the catalog's schema."""


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
    """Fail with exit code 4 unless the schema is current."""
    from ckptstore.catalog import versions

    _report(versions.check(context.obj), as_json=as_json)


def _report(status: SchemaStatus, *, as_json: bool) -> None:
    text = f"{status.catalog}: schema {status.found or 'none'}, this program works with {status.needed}"
    values.report({"catalog": status.catalog, "schema": status.found, "needed": status.needed}, text, as_json=as_json)


_WORDS = {True: "holds", False: "FAILED", None: "not tried"}


@click.command()
@click.option("--ranks", type=Whole(1, 64), default=1, show_default=True, help="The number of processes, under msrun.")
@click.option("--device", type=click.Choice(["CPU", "GPU", "Ascend"]), default="CPU", show_default=True)
@click.option("--mode", type=click.Choice(["graph", "pynative"]), default="graph", show_default=True)
@as_json
def selftest(*, as_json: bool, **asked: Any) -> int:
    """Train a small network here, kill it, restore it, and compare.

    It takes a minute or two, in a temporary directory with a catalog of its own. Exit code 1: a promise did not hold.
    """
    command = [sys.executable, "-m", "ckptstore.mindspore.selftest", json.dumps(asked)]
    rows = []
    last = "it said nothing"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as running:
        for told in running.stdout or ():
            if told.startswith("{"):
                rows.append(json.loads(told))
                if not as_json:
                    row = rows[-1]
                    line(f"{_WORDS[row['held']]:<9}  {row['promise']}: {row['seen']}")
            else:
                last = told.strip() or last
    if running.returncode or not rows:
        raise CkptstoreError(f"the test itself failed: {last}", "pip install 'ckptstore[mindspore]'")
    if as_json:
        values.write(rows)
    return int(any(row["held"] is False for row in rows))


@click.command()
@optional_run
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings, too.")
@as_json
@click.pass_context
def doctor(context: click.Context, run: str | None, *, strict: bool, as_json: bool) -> int:
    """Check the catalog and RUN, or all runs, and say what to do.

    Nothing is changed, and no checkpoint is read. Exit codes: 0 no problem, though perhaps warnings; 4 the catalog
    cannot be used; 6 the catalog is damaged; 1 any other problem, or with --strict a warning.
    """
    from ckptstore.doctor.doctor import examine

    done = examine(context.obj, run)
    values.write(
        {"checks": [fields(check, "name run status detail hint") for check in done.checks]}
    ) if as_json else _show(done)
    return done.exit_code or int(strict and done.has_warnings)


def _show(done: Checkup) -> None:
    """Print each check in a line, with its hint below.

    Of several runs, one that is well gets one line. For the others, the warnings and problems are printed, and where
    the run goes on.
    """
    of_runs: dict[str, list[Check]] = {}
    for check in done.checks:
        if check.run is None:
            _show_one(check)
        else:
            of_runs.setdefault(check.run, []).append(check)
    are_many = len(of_runs) > 1
    found = {run: _to_do(checks) if are_many else checks for run, checks in of_runs.items()}
    well = [run for run, checks in found.items() if are_many and not checks]
    if well:
        lines(("",))
    for run in well:
        for check in of_runs[run]:
            if check.name == "restorable":
                _show_one(check, f"run {run}")
    for run, checks in found.items():
        if checks:
            lines(("", f"run {run}"))
        for check in checks:
            _show_one(check)
    sums = Counter(check.status.value for check in done.checks)
    problems = count(sums["problem"], "problem", "problems")
    lines(("", f"{problems}, {count(sums['warning'], 'warning', 'warnings')}"))


def _to_do(checks: Sequence[Check]) -> list[Check]:
    """The checks with warnings or problems of a run, and where the run goes on. Empty for a run that is well."""
    if not any(check.status.value in ("warning", "problem") for check in checks):
        return []
    return [check for check in checks if check.name == "restorable" or check.status.value in ("warning", "problem")]


def _show_one(check: Check, name: str = "") -> None:
    status = check.status.value
    marked("OK" if status == "ok" else status, f"{name or check.name:<13} {check.detail}", _COLOURS[status])
    if check.hint:
        marked("", f"{'':<13} -> {check.hint}")


_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}
