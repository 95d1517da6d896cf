"""The commands over the catalog's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ckptstore.cli.commands import as_json

if TYPE_CHECKING:
    from ckptstore.catalog.versions import SchemaStatus


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
    from ckptstore.cli.terminal import line

    if as_json:
        values.write({"catalog": status.catalog, "schema": status.found, "needed": status.needed})
    else:
        line(f"{status.catalog}: schema {status.found or 'none'}, this program works with {status.needed}")
