"""The commands over the catalog's schema."""

from __future__ import annotations

import click

from ckptstore.cli.commands import as_json


@click.group()
def db() -> None:
    """The catalog's schema: show, check, upgrade it."""


@db.command()
@as_json
@click.pass_context
def upgrade(context: click.Context, *, as_json: bool) -> None:
    """Create the schema, or bring it to this program's version. Can be repeated."""
    from ckptstore.catalog import schema
    from ckptstore.catalog.engine import open_database

    schema.upgrade(open_database(context.obj))
    _report(context.obj, as_json=as_json)


@db.command()
@as_json
@click.pass_context
def current(context: click.Context, *, as_json: bool) -> None:
    """Show which version the schema has."""
    _report(context.obj, as_json=as_json)


@db.command()
@as_json
@click.pass_context
def check(context: click.Context, *, as_json: bool) -> None:
    """Fail, with exit code 4, unless the schema is the one this program works with."""
    from ckptstore.catalog import schema
    from ckptstore.catalog.engine import open_database

    schema.check(open_database(context.obj))
    _report(context.obj, as_json=as_json)


def _report(url: str | None, *, as_json: bool) -> None:
    from ckptstore.catalog import schema
    from ckptstore.catalog.engine import open_database
    from ckptstore.cli import values

    database = open_database(url)
    found = schema.current(database)
    if as_json:
        values.write({"catalog": database.name, "schema": found, "needed": schema.REVISION})
    else:
        click.echo(f"{database.name}: schema {found or 'none'}, this program works with {schema.REVISION}")
