"""The command that looks at everything. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

import click

from ckptstore.cli.commands import as_json, optional_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.doctor.checkup import Check, Checkup


@click.command()
@optional_run
@click.option("--strict", is_flag=True, help="Exit code 1 where there are warnings too.")
@as_json
@click.pass_context
def doctor(context: click.Context, run: str | None, *, strict: bool, as_json: bool) -> int:
    """Check the catalog and RUN, or all runs, and say what to do.

    Nothing is changed, and no checkpoint is read. Exit codes: 0 where there is no problem, though there may be
    warnings; 4 where the catalog cannot be used; 6 where it is damaged; 1 for any other problem, with --strict for a
    warning too.
    """
    from ckptstore.cli import values
    from ckptstore.doctor.doctor import examine

    done = examine(context.obj, run)
    values.write(
        {"checks": [values.fields(check, "name run status detail hint") for check in done.checks]}
    ) if as_json else _show(done)
    return done.exit_code or int(strict and done.has_warnings)


def _show(done: Checkup) -> None:
    """A line a check, and below it what to do; of several runs only what is not as it should be."""
    from ckptstore.cli.terminal import lines

    are_many = len({check.run for check in done.checks if check.run is not None}) > 1
    for run, group in groupby(done.checks, key=lambda check: check.run):
        checks = list(group)
        if run is not None:
            lines(("", f"run {run}"))
        for check in _in_short(checks) if run is not None and are_many else checks:
            _show_one(check)
    lines(("", _sum(done.checks)))


def _in_short(checks: Sequence[Check]) -> list[Check]:
    """Where the run goes on, and what there is to do."""
    return [check for check in checks if check.name == "restorable" or check.status.value in ("warning", "problem")]


def _show_one(check: Check) -> None:
    from ckptstore.cli.terminal import marked

    status = check.status.value
    marked("OK" if status == "ok" else status, f"{check.name:<13} {check.detail}", _COLOURS[status])
    if check.hint:
        marked("", f"{'':<13} -> {check.hint}")


_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


def _sum(checks: Sequence[Check]) -> str:
    from ckptstore.core.text import count

    found = Counter(check.status.value for check in checks)
    problems = count(found["problem"], "problem", "problems")
    return f"{problems}, {count(found['warning'], 'warning', 'warnings')}"
