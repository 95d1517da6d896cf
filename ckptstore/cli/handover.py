"""The commands that export and import a state."""

from __future__ import annotations

from typing import Any

import click

from ckptstore import progress
from ckptstore.cli import values
from ckptstore.cli.commands import as_json, catalog, complete_references
from ckptstore.core.text import count, size


@click.command()
@click.argument("reference", metavar="RUN[@STATE]", shell_complete=complete_references)
@click.argument("target", metavar="DIRECTORY|FILE.tar", type=click.Path())
@click.option("--weights-only", is_flag=True, help="A .safetensors without the optimizer's parameters.")
@click.option(
    "--format", type=click.Choice(["safetensors"]), help="One .safetensors of the complete state, for other frameworks."
)
@as_json
@click.pass_context
def export(context: click.Context, /, reference: str, target: str, *, as_json: bool, **asked: Any) -> None:
    """Write one state to a directory or a .tar, to take it elsewhere.

    The target must be new. It gets its name when it is complete. Exit code 3: nothing can be restored; 5: the target
    exists, or the state cannot be written in this form; 6: a file is not as it was recorded.
    """
    with progress.bar("exported", in_bytes=True) as show:
        done = catalog(context).export(reference, target, progress=show, **asked)
    files = count(done.files, "file", "files")
    text = f"exported step {done.global_step} of run {done.run} to {done.target} ({files}, {size(done.bytes)})"
    values.report(done.__dict__, text, as_json=as_json)


@click.command("import")
@click.argument("source", metavar="DIRECTORY|FILE.tar", type=click.Path())
@click.argument("directory", required=False, type=click.Path())
@click.option("--run", metavar="NAME", help="The name of the run here. Default: the name that it had.")
@as_json
@click.pass_context
def import_(context: click.Context, source: str, directory: str | None, *, run: str | None, as_json: bool) -> None:
    """Make a run of what `export` wrote.

    Every byte is checked, the files are copied to DIRECTORY (default: a new one here, with the name of the run), and
    then they are recorded. After an interruption, repeat the command. Exit code 5: the run or DIRECTORY exists; 6:
    the export is damaged, and nothing was imported.
    """
    with progress.bar("imported", in_bytes=True) as show:
        done = catalog(context).import_(source, directory, run=run, progress=show)
    text = (
        f"imported step {done.global_step} as run {done.run}, in {done.directory} "
        f"({count(done.files, 'file', 'files')}, {size(done.bytes)})"
    )
    values.report(done.__dict__, text, as_json=as_json)


ALL = (export, import_)
