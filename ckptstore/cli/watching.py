"""The command that notifies a receiver of problems. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli.commands import Parsed, as_json, catalog, seconds, together, until_stopped
from ckptstore.cli.terminal import line
from ckptstore.errors import UsageError, reason_of
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.notify.facts import Notice
    from ckptstore.notify.watcher import Watcher

WEBHOOK = "CKPTSTORE_WEBHOOK"
SECRET = "CKPTSTORE_WEBHOOK_SECRET"  # noqa: S105 — the name of a variable
_KINDS = ("damaged", "quarantined", "silent", "restart_loop", "disk")


def kinds_of(text: str) -> tuple[str, ...]:
    """Kinds of facts, from a text such as damaged,silent."""
    asked = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    unknown = [each for each in asked if each not in _KINDS]
    if unknown:
        raise UsageError(f"there is no kind of problem {unknown[0]!r}", f"use some of: {', '.join(_KINDS)}")
    return asked


receiver_options = together(
    click.option("--webhook", metavar="URL", help=f"Post each problem there, as JSON. Default: {WEBHOOK}."),
    click.option("--command", metavar="CMD", help="Run this instead; it gets the JSON on standard input."),
    click.option(
        "--on",
        "kinds",
        type=Parsed("facts", kinds_of),
        default=",".join(_KINDS),
        show_default=True,
        metavar="LIST",
        help="Which problems to report.",
    ),
    click.option(
        "--secret-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"A file with the secret that signs each post. Default: {SECRET}.",
    ),
)
"""The options that choose a receiver and the facts that it gets."""


@click.command()
@receiver_options
@click.option(
    "--every", type=Parsed("time", seconds), default="60s", show_default=True, help="The time between two checks."
)
@click.option("--once", is_flag=True, help="Check once, for cron. Exit code 1: something could not be reported.")
@as_json
@click.pass_context
def watch(context: click.Context, /, *, every: float, once: bool, as_json: bool, **asked: Any) -> int:
    """Notify a webhook or a command of problems that need a person.

    Problems are damaged files, quarantined states, launches that are silent or hang, restart loops, and disks without
    room for three more saves. Each is reported once, also if several processes watch a catalog. It changes no file.
    With --json each fact is printed as it is posted, one a line.
    """
    database = catalog(context, waits=not once).database

    def show(notice: Notice) -> None:
        from ckptstore.notify.watcher import as_dict

        told = as_dict(notice, database.name)
        if as_json:
            click.echo(json.dumps(told))
        else:
            line(f"told: {told['text']}")

    watcher = watcher_of(database, every=every, on_told=show, **asked)
    if watcher is None:
        raise UsageError("no receiver is given", "give --webhook URL, or --command CMD")
    if every == 0:
        raise UsageError("'0' is no time between two checks", "give one as 60s or 10m")
    if once:
        return int(bool(watcher.look().failed))
    with until_stopped():
        watcher.begin()  # on a thread, so that a signal does not come between the sending of a notice and its record
        watcher.wait()
        return 1  # an error of the program ended the thread, which has printed it
    watcher.end()
    return 0


def watcher_of(
    database: Database,
    *,
    webhook: str | None,
    command: str | None,
    kinds: tuple[str, ...],
    secret_file: Path | None,
    **more: Any,
) -> Watcher | None:
    """The watcher for these options. None: they name no receiver. Raises `UsageError`."""
    from ckptstore.notify.receivers import Program, Webhook
    from ckptstore.notify.watcher import Watcher

    if webhook and command:
        raise UsageError("both --webhook and --command are given", "give one of them, and watch twice for both")
    if command:
        return Watcher(database, Program(command), kinds, **more)
    webhook = webhook or os.environ.get(WEBHOOK, "").strip()
    if not webhook:
        return None
    return Watcher(database, Webhook(webhook, secret(secret_file, SECRET, "secret")), kinds, **more)


def secret(file: Path | None, variable: str, what: str) -> bytes | None:
    """The secret in a file; without a file, the one in a variable. None: there is none. Raises `UsageError`.

    `what` names the secret in messages. Blanks and line breaks around the secret are removed: most files end with a
    line break, and so does a variable that was made from such a file.
    """
    if file is None:
        return os.fsencode(os.environ.get(variable, "")).strip() or None
    try:
        found = file.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"cannot read {file} ({reason_of(error)})", "check its name and permissions") from None
    if not found:
        raise UsageError(f"{file} is empty", f"write the {what} into it")
    return found
