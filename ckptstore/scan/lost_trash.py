"""Finds the trash of directories that are gone for good, and of those that are there again.

Undo and purge would wait for the one for ever, and would not know of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import removals
from ckptstore.core.groups import grouped
from ckptstore.core.naming import is_within
from ckptstore.core.text import count, size
from ckptstore.disk import presence
from ckptstore.disk.files import FileFacts, facts_if_seen, listed
from ckptstore.disk.name_claims import FOLDER
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
        if is_within(directory, root)
        and presence.absence(directory, home)
        and is_gone_for_good(directory, home.identities, root)
    }
    return tuple(item for item in items if (item.root, item.collection) in lost)


def trash_that_is_back(database: Database, run_id: int, root: str) -> list[Item]:
    """The files of a run that count as deleted, and are in the trash of a directory in the root or below it.

    An earlier scan gave them up, and only their disk was not mounted.
    """
    with database.read() as connection:
        roots = [each for each in removals.roots_of_deleted(connection, run_id) if is_within(each, root)]
    folders = [listed(f"{each.rstrip('/')}/{FOLDER}/trash") for each in roots]
    gcs = {gc for names in folders if not isinstance(names, OSError) for gc in names}
    with database.read() as connection:
        deleted = [item for gc in sorted(gcs) for item in removals.deleted_of(connection, run_id, gc)]
        homes = homes_of_trash(connection, deleted)
    back = [item for item in deleted if is_within(item.root, root) and _is_in_trash(item)]
    absent = {key for key in {(item.root, item.collection) for item in back} if presence.absence(key[0], homes[key])}
    return [item for item in back if (item.root, item.collection) not in absent]


def _is_in_trash(item: Item) -> bool:
    path = f"{item.root.rstrip('/')}/{FOLDER}/trash/{item.collection}/{item.place}"
    return facts_if_seen(path) == FileFacts(item.size, item.mtime_ns)


def told_lost(items: Iterable[Item]) -> Iterator[str]:
    """A line for each directory whose trash is gone with it."""
    for directory, own in grouped((item.root, item.size) for item in items).items():
        what = f"{count(len(own), 'file', 'files')}, {size(sum(own))}"
        yield f"the trash of {directory} is gone with the directory: {what}"
