"""Whether the directories are present in which retention works. Nothing is done in an empty mount point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import reads, removals
from ckptstore.disk import presence
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import Home
from ckptstore.journal.writers import homes

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database

_NOTHING = Home(set(), set())


class Reach:
    """The directories of a run, each looked at once, until all are to be looked at again.

    What is in the trash is in the directory that its files were recorded in, not in another one at that path.
    """

    def __init__(self, database: Database, run_id: int) -> None:
        with database.read() as connection:
            self.homes = homes(connection, run_id)
            items = removals.items_of(connection, run_id)
            files = reads.files_by_id(connection, [item.checkpoint for item in items if item.checkpoint])
        self._of_trash: dict[tuple[str, str], Home] = {}
        for item in items:
            home = self._of_trash.setdefault((item.root, item.collection), Home(set(), set()))
            file = files.get(item.checkpoint or "")
            home.identities.update({file.directory_id} - {""} if file else ())
            home.places.add(f"{FOLDER}/trash/{item.collection}/{item.place}")
        self._seen: dict[tuple[str, str], str] = {}

    def look_again(self) -> None:
        """Forget what was seen."""
        self._seen.clear()

    def absence(self, directory: str, collection: str = "") -> str:
        """Why nothing is done in a directory, or in the trash of a gc there; empty if it is present."""
        key = directory, collection
        if key not in self._seen:
            home, own = self.homes.get(directory, _NOTHING), self._of_trash.get(key, _NOTHING)
            merged = Home(own.identities or home.identities, own.places | home.places)
            reason = presence.absence(directory, merged)
            self._seen[key] = f"its directory {reason}" if reason else ""
        return self._seen[key]
