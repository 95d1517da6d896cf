"""The commands that rename a run, and hide it. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ckptstore.cli import values
from ckptstore.cli.commands import as_json, catalog, run_argument
from ckptstore.cli.terminal import age, first, line
from ckptstore.core.hints import Command
from ckptstore.core.text import count, size
from ckptstore.resume.dicts import fields

if TYPE_CHECKING:
    from ckptstore.resume.names import RunShown


@click.command()
@run_argument
@click.argument("new")
@as_json
@click.pass_context
def rename(context: click.Context, run: str, new: str, *, as_json: bool) -> None:
    """Give RUN the name NEW.

    No file is touched. The first name of the run stays valid: a script that joins it goes on from the run's newest
    state, and a warning names the new one.
    """
    changed = catalog(context).rename(run, new)
    text = f"run {run} is now named {new}" if changed else f"the run is already named {new}"
    values.report({"run": new, "before": run, "changed": changed}, text, as_json=as_json)


@click.command()
@run_argument
@click.option(
    "--apply", "apply_it", is_flag=True, help="Hide it. Without this option, the command only shows what would happen."
)
@click.option("--undo", is_flag=True, help="Bring RUN back, as it was.")
@as_json
@click.pass_context
def forget(context: click.Context, run: str, *, apply_it: bool, undo: bool, as_json: bool) -> None:
    """Hide RUN from every command; with --undo bring it back.

    No file is touched, and no scan or sync brings it back. Its name stays taken: a script that joins it is refused.
    """
    from ckptstore.resume import names

    if apply_it and undo:
        raise click.UsageError("--undo needs no --apply.")
    opened = catalog(context)
    if undo:
        changed = opened.forget(run, undo=True)
        text = f"run {run} is back" if changed else f"run {run} was not forgotten"
        values.report({"run": run, "forgotten": False, "changed": changed}, text, as_json=as_json)
        return
    shown = names.look(opened.database, run)
    changed = apply_it and opened.forget(run)
    if as_json:
        told = {**fields(shown.row, "run launches bytes"), **fields(shown, "directories trash_files trash_bytes")}
        values.write({**told, "forgotten": apply_it, "changed": changed})
    else:
        _show(shown, done=apply_it)


def _show(shown: RunShown, *, done: bool) -> None:
    row = shown.row
    newest = row.last.tally if row.last else None
    last = f"; the newest save is of step {newest.global_step}, {age(newest.created_at)}" if newest else ""
    what = f"{row.status}, {count(row.launches, 'launch', 'launches')}, {size(row.bytes)} of checkpoints"
    line(f"run {row.run}: {what}{last}")
    for directory in first(shown.directories, "directories"):
        line(f"the files stay in {directory}")
    if shown.trash_files:
        trash = f"in the trash: {count(shown.trash_files, 'file', 'files')}, {size(shown.trash_bytes)}"
        line(
            f"{trash}: they stay there"
            + ("" if done else f", unless you first run {Command('purge', row.run, '--now')}")
        )
    if done:
        line(f"run {row.run} is forgotten: {Command('forget', row.run, '--undo')} brings it back")
    else:
        line(f"no command would show it, and a script that joins {row.run} would be refused: add --apply to forget it")


ALL = (rename, forget)
