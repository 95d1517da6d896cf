"""The `ckptstore` command: its options, its errors, its exit codes."""

from __future__ import annotations

import io
import logging
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from ckptstore.cli import (
    advise,
    commands,
    comparison,
    handover,
    leave,
    names,
    replicate,
    retention,
    serve,
    terminal,
    tiers,
    upkeep,
    verification,
    watching,
)
from ckptstore.cli.terminal import line
from ckptstore.core.hints import Command
from ckptstore.errors import CkptstoreError, reason_of
from ckptstore.outside import os

if TYPE_CHECKING:
    from typing_extensions import Buffer


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--db", metavar="URL", help="The catalog: a URL, or an SQLite file. Default: CKPTSTORE_URL, or a file of yours."
)
@click.version_option(package_name="ckptstore")
@click.pass_context
def cli(context: click.Context, db: str | None) -> None:
    """Look after the checkpoints of MindSpore runs.

    Without a command it shows the catalog, its runs, and what to do next.

    Exit codes: 0 done, 1 error, 2 usage, 3 nothing restorable, 4 catalog unreachable or its schema not current,
    5 refused by a safety rule, 6 damage found, 7 scan left checkpoints out, 8 from exit --wait: the
    launch did not leave in time.
    """
    _look_in(context, db)
    if context.invoked_subcommand is None:
        from ckptstore.cli import home

        home.show(db)


def _take(context: click.Context, _: click.Parameter, url: str | None) -> None:
    """Use the `--db` after the command; it overrides one before the command."""
    if url is not None:
        _look_in(context, url)


def _look_in(context: click.Context, url: str | None) -> None:
    """Use this catalog. Commands in hints get the same `--db`, unless CKPTSTORE_URL names this catalog."""
    context.obj = url
    Command.given = ("--db", _shown(url)) if url and url != os.environ.get("CKPTSTORE_URL") else ()
    context.find_root().call_on_close(partial(setattr, Command, "given", ()))


def _shown(url: str) -> str:
    """A path or URL as the user gave it, without a password."""
    if "://" not in url or not {"@", "?"}.intersection(url):
        return url
    from ckptstore.catalog import urls

    return urls.shown(urls.database_url(url))


def _with_db(command: click.Command) -> click.Command:
    """Let a command, or each command of a group, take `--db` after its name too: people write it there."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _with_db(each)
    else:
        shown = "The catalog; the same as --db in front of the command."
        command.params.append(click.Option(["--db"], metavar="URL", expose_value=False, callback=_take, help=shown))
    return command


for command in (
    *commands.ALL,
    *retention.ALL,
    *names.ALL,
    comparison.diff,
    advise.advise,
    leave.exit_,
    *handover.ALL,
    upkeep.sync,
    verification.verify,
    tiers.tier,
    replicate.replicate,
    upkeep.doctor,
    *serve.ALL,
    watching.watch,
    upkeep.selftest,
    upkeep.db,
):
    cli.add_command(_with_db(command))


def main() -> None:
    """Run the command line. An error is printed on stderr: one line, or with `--json` one JSON object."""
    outlive_readers()
    log_lines()
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except CkptstoreError as error:
        _fail(error.message, error.exit_code, error.hint)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.UsageError as error:
        _fail(shown(error), error.exit_code)
    except click.ClickException as error:
        _fail(_in_one_line(error), error.exit_code)
    except click.Abort:
        _fail("interrupted", 130)
    except FileNotFoundError as error:
        _fail(f"{error.filename or 'the current directory'}: {reason_of(error)}", 1)
    except OSError as error:
        _fail(f"{error.filename or 'the output cannot be written'}: {reason_of(error)}", 1)
    except UnicodeError as error:
        text = error.object if isinstance(error, UnicodeEncodeError) else str(error)
        _fail(f"{text!a}: it cannot be written as text; names must be UTF-8, and so must the locale", 1)


def shown(error: click.UsageError) -> str:
    """The error as one line, with the command that shows help."""
    message = _in_one_line(error)
    asked = error.ctx.command_path if error.ctx else "ckptstore"
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See: {asked} --help"


def _in_one_line(error: click.ClickException) -> str:
    """The message of click in one line: it may be a list over several lines."""
    return " ".join(error.format_message().split())


def _fail(message: str, code: int, hint: str = "") -> None:
    terminal.error(message, hint, code, as_json="--json" in sys.argv[1:])
    sys.exit(code)


# A reader that closes the pipe early, as `head` does, changes neither the work of a command nor its exit code.


class _Stream(io.FileIO):
    """An output that discards what its reader no longer accepts: the command keeps its exit code.

    Any other error is raised only once. Python flushes the stream again when it ends, and would report it again. It is
    not raised if it `is_for_errors`: a log on a full disk must not end the command that frees the disk.
    """

    has_failed = False
    is_for_errors = False

    def write(self, data: Buffer, /) -> int:
        """Write, as `io.FileIO` does."""
        if not self.has_failed:
            try:
                return super().write(data)
            except BrokenPipeError:
                self.has_failed = True
            except OSError:
                self.has_failed = True
                if not self.is_for_errors:
                    raise
        return memoryview(data).nbytes


class _Lines(logging.Handler):
    """Prints each warning as one line on stderr, also if a name in it has line breaks or control characters."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        line(record.getMessage(), err=True)


def log_lines() -> None:
    """Print warnings as lines on stderr from now on."""
    logging.getLogger().addHandler(_Lines(logging.WARNING))


def outlive_readers() -> None:
    """Let writes to stdout and stderr succeed even if their reader has ended."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # None where the caller has closed it
            stream.flush()
            _replaced.append(stream)
            setattr(sys, name, _outliving(stream, is_for_errors=name == "stderr"))


_replaced: list[io.TextIOWrapper] = []
"""The replaced streams. A dropped one would close its descriptor, and the file opened next would get the output."""


def _outliving(stream: io.TextIOWrapper, *, is_for_errors: bool) -> io.TextIOWrapper:
    raw = _Stream(stream.fileno(), "w", closefd=False)
    raw.is_for_errors = is_for_errors
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
