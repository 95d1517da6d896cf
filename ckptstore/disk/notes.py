"""Notes of the processes that joined a run: `ckptstore exit --from-env` finds them in the container.

A note is a small file, one for each launch that a process is a rank of. It is in a directory of the user's own, below
the temporary directory.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ckptstore.core import bounded_json
from ckptstore.core.model import launch_key
from ckptstore.disk.files import replace_text
from ckptstore.disk.owner import is_dead, is_here
from ckptstore.errors import reason_of
from ckptstore.outside import Path, os, tempfile

log = logging.getLogger("ckptstore")

_REQUEST = ".exit"


@dataclass(frozen=True, kw_only=True)
class Note:
    """A process of this machine, with its run, its launch and its rank.

    `catalog` is the catalog's URL, without a password. `directories` are those that the rank saves to. `looks`: the
    process looks there for a request to leave.
    """

    process: str
    run: str
    launch: str
    rank: int
    catalog: str
    directories: tuple[str, ...] = ()
    looks: bool = False

    @property
    def pid(self) -> int:
        """The process's id on this machine."""
        return int(self.process.split("|")[1])

    def is_of(self, catalog: str) -> bool:
        """Whether its launch has this catalog. The user in the URL does not count: each process may have its own."""
        return self.may_be_of(catalog) and self.catalog.rpartition("@")[2] == catalog.rpartition("@")[2]

    def may_be_of(self, catalog: str) -> bool:
        """Whether its launch may have this catalog: the server may have another address here, as that of PgBouncer."""
        return _database(self.catalog) == _database(catalog)


def leave(note: Note) -> None:
    """Leave a note, which replaces an earlier one of the same process and launch. Without room there is no note."""
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        if _is_own(folder):
            replace_text(_path(note), json.dumps(asdict(note)))
    except OSError as error:  # also where there is no temporary directory at all
        log.debug("no note of run %s is left on this machine (%s)", note.run, reason_of(error))


def remove(note: Note) -> None:
    """Delete a note: the process is no rank of the launch any more."""
    for path in (_path, _request_path):
        with suppress(OSError):
            path(note).unlink()


def request_path(note: Note) -> str:
    """Where a process that has no directory yet looks for a request to leave; empty without a folder of this user."""
    try:
        path = _request_path(note)
    except OSError:
        return ""
    return str(path) if _is_own(path.parent) else ""


def ask(note: Note, told: str) -> bool:
    """Leave a request for a process beside its note; return whether that could be written."""
    try:
        replace_text(_request_path(note), told)
    except OSError:
        return False
    return True


def take_back(note: Note) -> None:
    """Remove the request beside a note, if there is one. Raises `OSError`."""
    _request_path(note).unlink(missing_ok=True)


def of_living() -> list[Note]:
    """The notes of the user's live processes on this machine, by run and rank. Notes of dead processes are deleted."""
    found = []
    try:
        folder = _folder()
    except OSError:
        return []
    for path in folder.glob("*.json") if _is_own(folder) else ():
        note = _read(path)
        if note is None or is_dead(note.process):
            for left in (path, path.with_suffix(_REQUEST)):
                with suppress(OSError):
                    left.unlink()
        elif is_here(note.process):
            found.append(note)
    return sorted(found, key=lambda note: (note.run, note.rank))


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"ckptstore-{os.getuid()}"


def _database(url: str) -> tuple[SplitResult, list[tuple[str, str]]]:
    parts = urlsplit(url)
    options = [each for each in parse_qsl(parts.query, keep_blank_values=True) if each[0] not in ("host", "port")]
    return parts._replace(netloc="", query=""), options


def _path(note: Note) -> Path:
    return _folder() / f"{note.pid}-{launch_key(note.run, note.launch)}.json"


def _request_path(note: Note) -> Path:
    return _path(note).with_suffix(_REQUEST)


def _is_own(folder: Path) -> bool:
    """Whether a folder is a directory of this user: any user may make one of that name in a temporary directory."""
    try:
        return not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _read(path: Path) -> Note | None:
    try:
        told = bounded_json.parse(path.read_text(encoding="utf-8"))
        note = Note(**{**told, "directories": tuple(told["directories"])})
        _ = note.pid
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None
    return note
