"""The commands that serve the catalog as pages, and print its metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli.commands import until_stopped
from ckptstore.cli.terminal import line
from ckptstore.cli.watching import receiver_options, secret, watcher_of
from ckptstore.errors import CkptstoreError, UsageError, reason_of
from ckptstore.outside import Path, os, socket

if TYPE_CHECKING:
    from ckptstore.serve.guard import Rules

TOKEN = "CKPTSTORE_TOKEN"  # noqa: S105 — the name of a variable
_PORT = 8766
_BACKLOG = 128
_CONNECTIONS = 12
"""The database connections of the server: one for each thread of `serve.answers`. PostgreSQL allows 100 by default."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=_PORT, show_default=True, help="0: one that is free.")
@click.option("--token-file", type=click.Path(path_type=Path), help=f"A file with the token. Default: {TOKEN}.")
@click.option("--allow-changes", is_flag=True, help="Allow pins, tags, policies, gc and undo. Needs a token.")
@click.option(
    "--trust-proxy", metavar="ADDRESS", help="The reverse proxy whose X-Forwarded-User, -Proto and -Host count."
)
@receiver_options
@click.pass_context
def serve(context: click.Context, /, *, host: str, port: int, **asked: Any) -> None:
    """Show the catalog as pages, as an API and as metrics.

    With --webhook or --command it also reports problems, as `watch` does.

    Without --allow-changes it only adds to the catalog what `resolve` learns from journals and disks. At any address
    but this machine's own, each request needs the token: a browser signs in with it, a script sends `Authorization:
    Bearer`.
    """
    try:
        from ckptstore.serve.app import make_app
        from ckptstore.serve.connections import server
    except ImportError as error:
        raise _not_installed(error) from None
    from ckptstore.api import Catalog
    from ckptstore.catalog import schema
    from ckptstore.catalog.engine import open_database

    rules = _rules(host, **{name: asked.pop(name) for name in ("token_file", "allow_changes", "trust_proxy")})
    database = open_database(context.obj, connections=_CONNECTIONS)
    schema.ensure(database)
    catalog = Catalog(database)
    watcher = watcher_of(catalog.database, **asked)
    listening = _listening(host, port)
    log, handler = logging.getLogger("ckptstore.serve"), logging.StreamHandler()  # of each change, and who made it
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    shown = f"[{host}]" if ":" in host else host
    line(f"http://{shown}:{listening.getsockname()[1]}/ shows {catalog.database.name}, until Ctrl-C")
    with listening, until_stopped():
        if watcher is not None:
            watcher.begin()
        server(make_app(catalog, rules)).run(sockets=[listening])  # it takes both signals, and then raises them again
    if watcher is not None:
        watcher.end()
    database.disconnect()


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens at this address. Raises `CkptstoreError` if it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # no name of a host has such a part
        raise CkptstoreError(
            f"cannot listen at {host}, port {port} ({reason_of(error)})", "give another --host or --port"
        ) from None


def _rules(host: str, token_file: Path | None, *, allow_changes: bool, trust_proxy: str | None) -> Rules:
    """The rules for requests. Raises `UsageError` if others could read or change the catalog without a token."""
    from ckptstore.serve.guard import LOOPBACK, Rules

    found = secret(token_file, TOKEN, "token")
    token = None if found is None else os.fsdecode(found)
    is_loopback = host in LOOPBACK
    if token is None and not is_loopback:
        raise UsageError(
            f"at {host} others than you could read the catalog", f"set {TOKEN}, or give --token-file with a token"
        )
    return Rules(token=token, is_loopback=is_loopback, may_change=allow_changes, proxy=trust_proxy)


@click.command()
@click.option(
    "--textfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write them to this file in one step, for the textfile collector of node_exporter. Default: print them.",
)
@click.pass_context
def metrics(context: click.Context, *, textfile: Path | None) -> None:
    """Print metrics of all runs, in Prometheus' text format."""
    try:
        from ckptstore.serve.metrics import measure, text
    except ImportError as error:
        raise _not_installed(error) from None
    from ckptstore.cli.commands import catalog
    from ckptstore.disk.files import replace_text

    if textfile is not None and textfile.exists() and not textfile.is_file():
        raise UsageError(f"{textfile} is no regular file", "name one; without --textfile the metrics are printed")
    shown = text(measure(catalog(context).database))
    if textfile is None:
        click.echo(shown, nl=False)
        return
    try:
        replace_text(textfile.absolute(), shown.decode())
    except OSError as error:
        raise CkptstoreError(
            f"cannot write {textfile} ({reason_of(error)})", "check its name and permissions"
        ) from None


def _not_installed(error: ImportError) -> CkptstoreError:
    return CkptstoreError(f"the server is not installed ({error})", "pip install 'ckptstore[serve]'")


ALL = (serve, metrics)
