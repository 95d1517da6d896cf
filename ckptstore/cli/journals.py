"""The command that takes up journals. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ckptstore.cli.commands import as_json, trust

if TYPE_CHECKING:
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
