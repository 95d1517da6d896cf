"""The commands over tiers. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ckptstore.cli import values
from ckptstore.cli.commands import Whole, as_json, catalog
from ckptstore.cli.terminal import line
from ckptstore.core.hints import Command
from ckptstore.core.text import count, size

if TYPE_CHECKING:
    from ckptstore.tiers.facts import Listed


@click.group()
def tier() -> None:
    """Declare, list and remove places for copies of checkpoints."""


@tier.command()
@click.argument("name")
@click.argument("url")
@click.option(
    "--level",
    type=Whole(0, 2**31 - 1),
    help="0: the node's own disk. Default: 1 for a directory, 2 for a bucket; the level of a declared tier stays.",
)
@as_json
@click.pass_context
def add(context: click.Context, name: str, url: str, level: int | None, *, as_json: bool) -> None:
    """Declare the tier NAME at URL.

    URL is a directory, or a bucket and a prefix, as s3://bucket/prefix. The higher its level, the farther it is from
    the nodes, and the safer. A start fetches from the lowest that has a copy. Credentials come from the environment and
    the usual files; the catalog keeps none.
    """
    from ckptstore.objects.tiers import open_tier
    from ckptstore.tiers import facts

    declared = facts.tier_of(name, url, level)
    open_tier(declared.url)  # says which package is missing, if one is
    database = catalog(context).database
    changed = facts.add(database, declared, keeps_level=level is None)
    declared = facts.named(database, name)
    text = f"tier {name} is {declared.url}, level {declared.level}{'' if changed else ', as before'}"
    values.report({**declared._asdict(), "changed": changed}, text, as_json=as_json)


@tier.command("list")
@as_json
@click.pass_context
def list_(context: click.Context, *, as_json: bool) -> None:
    """Show the tiers, nearest first, and the copies in them."""
    from ckptstore.tiers import facts

    found = facts.listed(catalog(context).database)
    if as_json:
        values.write([_values(each) for each in found])
    else:
        _show(found)


def _values(each: Listed) -> dict[str, object]:
    known, *counts = each
    return {
        **known.tier._asdict(),
        "declared": known.declared,
        **dict(zip(("ready", "bytes", "pending", "failed"), counts, strict=True)),
    }


def _show(found: list[Listed]) -> None:
    for each in found:
        of = each.known.tier
        told = f"{of.name}  level {of.level}  {of.url}  {count(each.ready, 'copy', 'copies')}, {size(each.size)}"
        told += f", {each.pending} pending" if each.pending else ""
        told += f", {each.failed} failed" if each.failed else ""
        again = Command("tier", "add", of.name, of.url, "--level", of.level)
        line(told if each.known.declared else f"{told}; not in use: {again} declares it")
    if not found:
        line(f"no tiers: {Command('tier', 'add', 'NAME', 'URL')} declares one")


@tier.command()
@click.argument("name")
@as_json
@click.pass_context
def remove(context: click.Context, name: str, *, as_json: bool) -> None:
    """Stop using the tier NAME.

    Nothing is copied to it or fetched from it any more. Its copies stay there, and count again once the tier is added
    with the same URL.
    """
    from ckptstore.tiers import facts

    removed = facts.remove(catalog(context).database, name)
    values.report({**removed._asdict(), "changed": True}, f"tier {name} is not in use any more", as_json=as_json)
