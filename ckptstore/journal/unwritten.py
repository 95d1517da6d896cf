"""What a journal could not take when it was recorded: the catalog keeps it until the journal can be written again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ckptstore.catalog import directories, journals
from ckptstore.disk import presence
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import Home
from ckptstore.journal.jsonl import SHARED, JournalWriter
from ckptstore.outside import os, token_hex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.journals import Unwritten


def write(database: Database) -> None:
    """Append to the journals what they lack, where this user may. Raises `CatalogUnavailableError`."""
    with database.read() as connection:
        lacking = journals.unwritten_lines(connection)
    append(database, lacking)


def append(database: Database, lacking: Iterable[Unwritten]) -> None:
    """As `write`, of these lines. A process that dies in between leaves some that are written twice: no harm."""
    of_homes: dict[tuple[str, str], list[Unwritten]] = {}
    for each in lacking:
        of_homes.setdefault((each.directory, str(each.home["identities"])), []).append(each)
    for (directory, _), own in of_homes.items():
        home = Home(set(own[0].home["identities"]), {place for each in own for place in each.home["places"]})
        if any(_is_appended(place, home, own) for place in _places(database, directory, home)):
            database.in_write(partial(journals.set_written, ids=[each.id for each in own]))


def _places(database: Database, directory: str, home: Home) -> Iterator[str]:
    """Where a directory may be: where it was, and where it was seen since, for a tree may be moved."""
    yield directory
    if home.identities:
        with database.read() as connection:
            seen = directories.of_identities(connection, home.identities)
        yield from sorted(seen - {directory})


def _is_appended(directory: str, home: Home, lacking: Iterable[Unwritten]) -> bool:
    """Whether the journal of a directory could be written. If not, the next process that records there warns."""
    if not _is_own(directory):
        return False
    writer = JournalWriter(directory, SHARED, token_hex(6), partial(_reach, directory, home))
    try:
        writer.append([dict(each.line) for each in lacking])
    except OSError:
        return False
    return True


def home_to_json(home: Home) -> dict[str, list[str]]:
    """The catalog's record of a directory."""
    return {"identities": sorted(home.identities), "places": sorted(home.places)}


def _reach(directory: str, home: Home) -> int:
    """Open the directory. Without a record it counts as the right one if it has journals."""
    return presence.enter(directory, home if any(home) else Home(set(), {FOLDER}))[0]


def _is_own(directory: str) -> bool:
    """Whether this user writes the journals of a directory: a line counts for its author."""
    try:
        owner = os.lstat(directory).st_uid
    except OSError:
        return False
    return os.geteuid() in (owner, 0)
