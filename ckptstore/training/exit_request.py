"""Requests to save and leave, as a rank sees them: those of `ckptstore exit`, and a JSON file that was set before."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.disk import notes
from ckptstore.disk.exit_flags import clear_others, flag_path
from ckptstore.disk.files import replace_text
from ckptstore.disk.notes import Note
from ckptstore.disk.owner import this_process
from ckptstore.outside import Path, atexit, os, threading, time

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Launch

log = logging.getLogger("ckptstore")

_MOST_DIRECTORIES = 64
_LOOK_SECONDS = 1.0


class ExitRequest:
    """Looks for a request to one rank: a file in the directories that the rank saves to, about once a second.

    For `ckptstore exit --from-env` it leaves a note in the temporary directory of this machine: which process is that
    rank. A rank that has saved nothing yet finds a request beside its note.
    """

    def __init__(self, database: Database, facts: Launch, rank: int) -> None:
        self._key = facts.key
        self._changes = threading.Lock()  # the recorder's thread adds directories
        self._flags: list[str] = []
        self._next_look = 0.0
        self._found = ""
        self.got_sigterm = False  # and no training of the launch has left since
        self._note = Note(
            process=this_process(),
            run=facts.run,
            launch=facts.id,
            rank=rank,
            catalog=database.name,
        )

    def announce(self) -> None:
        """The process has joined: leave the note, until it ends."""
        notes.leave(self._note)
        if path := notes.request_path(self._note):
            self._flags = [path, *self._flags]
        atexit.register(self._withdraw)

    def look_in(self, directory: str) -> None:
        """Look for the request in this directory too. Requests to earlier launches of the run are removed there.

        Only the newest directories are looked in: a launch may have one for each save.
        """
        with self._changes:
            if directory not in self._note.directories:
                clear_others(directory, self._key, self._note.run)
                self._flags = [*self._flags, flag_path(directory, self._key)][-_MOST_DIRECTORIES:]
                directories = (*self._note.directories, directory)[-_MOST_DIRECTORIES:]
                self._note = replace(self._note, directories=directories)
                notes.leave(self._note)

    def is_heeded(self) -> None:
        """From now on the process leaves when it finds the request."""
        with self._changes:
            if not self._note.looks:
                self._note = replace(self._note, looks=True)
                notes.leave(self._note)

    def path(self) -> str:
        """The file that asks for an exit; empty if there is none. A look is not older than a second."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self._found = next((path for path in self._flags if os.path.exists(path)), "")
        return self._found

    def _withdraw(self) -> None:
        if os.getpid() == self._note.pid:  # a child has the parent's handlers
            notes.remove(self._note)


class StaleFlag:
    """A JSON file that asked for an exit before training began.

    Every rank ignores it until the file is written again. Rank 0 puts it back to 0.
    """

    def __init__(self, path: str, key: str) -> None:
        self.path = path
        self._key = key
        self._identity = version_at(path)

    def put_back(self) -> None:
        """Set the flag to 0, or log why that cannot be done."""
        asks = f"{self.path} still asks for an exit ({self._key}: 1)"
        try:
            _put_back(Path(self.path), self._key)
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s and cannot be set to 0 (%s): it is ignored until the file is written again", asks, error)
        else:
            log.warning("%s: put back to 0", asks)

    def was_written(self) -> bool:
        """Whether the file was replaced or written again since it was noticed."""
        return version_at(self.path) != self._identity


def version_at(path: str) -> tuple[int, int, int] | None:
    """Changes once the file at a path is replaced or written again; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _put_back(path: Path, key: str) -> None:
    target = path.resolve()
    content = json.loads(target.read_text(encoding="utf-8"))
    replace_text(target, json.dumps({**content, key: 0}))
