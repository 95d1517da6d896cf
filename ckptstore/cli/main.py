"""The `ckptstore` command: its options, its errors, its exit codes."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import commands, database, doctor, journals, retention, verification
from ckptstore.errors import CkptstoreError

if TYPE_CHECKING:
    from collections.abc import Iterator


class _ReaderGoneError(Exception):
    """Nobody reads what is printed any more."""


class _Commands(click.Group):
    """A group that lets its caller hear of a reader that has gone; click would exit with 1, as for an error."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """As the group's: `--help` prints here."""
        with _reader():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """As the group's."""
        with _reader():
            return super().invoke(ctx)


@contextmanager
def _reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise _ReaderGoneError from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--db", metavar="URL", help="The catalog: a URL, or an SQLite file. Default: CKPTSTORE_URL, or your own.")
@click.version_option(package_name="ckptstore")
@click.pass_context
def cli(context: click.Context, db: str | None) -> None:
    """Look after the checkpoints of MindSpore runs.

    Exit codes: 0 done, 1 error, 2 usage, 3 nothing restorable, 4 catalog unreachable or its schema not current,
    5 refused by a safety rule, 6 damage found.
    """
    context.obj = db


for command in (*commands.ALL, *retention.ALL, journals.sync, verification.verify, doctor.doctor, database.db):
    cli.add_command(command)


def main() -> None:
    """Run the command line; errors are one line on stderr."""
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except CkptstoreError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.UsageError as error:
        asked = error.ctx.command_path if error.ctx else "ckptstore"
        _fail(f"{error.format_message()} See: {asked} --help", error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except click.Abort:
        _fail("interrupted", 130)
    except _ReaderGoneError:
        # As `head` does. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except FileNotFoundError as error:
        _fail(f"{error.filename or 'the current directory'}: {error.strerror}", 1)
    except OSError as error:
        _fail(f"{error.filename or 'what there is to say cannot be written'}: {error.strerror or error}", 1)
    except UnicodeError as error:
        text = error.object if isinstance(error, UnicodeEncodeError) else str(error)
        _fail(f"{text!a}: it cannot be written as text; names must be UTF-8, and so must the locale", 1)


def _fail(message: str, code: int) -> None:
    click.echo(f"ckptstore: {' '.join(message.split())}", err=True)
    sys.exit(code)
