"""Finds the trash of directories that are gone for good: undo and purge would wait for it for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import removals
from ckptstore.core.groups import grouped
from ckptstore.core.text import count, size
from ckptstore.disk import presence
from ckptstore.journal.recorder import homes_of_trash
from ckptstore.scan.tree import is_gone_for_good

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.removals import Item


def lost_trash(database: Database, run_id: int, root: str) -> tuple[Item, ...]:
    """The trash of a run in the root and below it whose directories are gone for good."""
    with database.read() as connection:
        items = removals.items_of(connection, run_id)
        found = homes_of_trash(connection, items)
    lost = {
        (directory, gc)
        for (directory, gc), home in found.items()
        if f"{directory}/".startswith(f"{root.rstrip('/')}/")
        and presence.absence(directory, home)
        and is_gone_for_good(directory, home.identities, root)
    }
    return tuple(item for item in items if (item.root, item.collection) in lost)


def told_lost(items: Iterable[Item]) -> Iterator[str]:
    """A line for each directory whose trash is gone with it."""
    for directory, own in grouped((item.root, item.size) for item in items).items():
        what = f"{count(len(own), 'file', 'files')}, {size(sum(own))}"
        yield f"the trash of {directory} is gone with the directory: {what}"
