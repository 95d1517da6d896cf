"""Decides which files of a run this user's gc may remove. The disk decides, since any user may have written a record.

The owner of a file cannot be forged. So a file may go only if it is the user's own, or if a journal of its owner beside
it records it. It must also be in a directory of its run, and begin like a file of its recorded format.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from stat import S_IMODE, S_ISDIR, S_ISREG, S_IWUSR
from typing import TYPE_CHECKING

from ckptstore.catalog import journals, reads
from ckptstore.core.events import FileRecorded, from_lines
from ckptstore.core.limits import HIGHEST, TOO_LATE
from ckptstore.core.naming import ONE_FILE, SEVERAL, is_within
from ckptstore.disk.files import FileFacts, real_directory
from ckptstore.disk.trust import user_name
from ckptstore.errors import UsageError, reason_of
from ckptstore.formats.inspect import begins_as
from ckptstore.journal import jsonl
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.removals import Item
    from ckptstore.disk.trash import Found, Trash
    from ckptstore.retention.debris import Target

    _Place = tuple[str, str]
    """The path of a file, and its launch."""

ROOTS = "CKPTSTORE_ROOTS"
"""The environment variable that lists, as PATH does, the directories below which gc, undo and purge may touch files."""


class Authority:
    """Decides which files of a run this process may remove. It reads journals for files of other users.

    `seen` are the identities of the files that were asked about, by path.
    """

    def __init__(self, database: Database, run: str, run_id: int) -> None:
        with database.read() as connection:
            announced = {source.directory for source in reads.announced_by(connection, run_id)}
            told = {jsonl.directory_of(path) for path in journals.journals_of(connection, run_id)}
            self._owners = {launch.id: launch.owner for launch in reads.launches_of(connection, run_id)}
        self._run = run
        self._roots = announced | told
        self._limits = _limits()
        self._told: dict[str, dict[_Place | None, set[int]]] = {}
        self._user = os.geteuid()
        self.seen: dict[str, tuple[int, ...]] = {}

    def beyond(self, root: str) -> str:
        """Why no file below a directory may be touched; empty if files may."""
        if self._limits and not any(is_within(root, limit) for limit in self._limits):
            return f"{root} is not below {os.pathsep.join(self._limits)} ({ROOTS})"
        if any(above in self._roots for above in _upwards(root)):
            return ""
        with suppress(OSError):
            if Path(root).stat().st_uid == self._user:
                return ""
        return f"{root} is not a directory of run {self._run!r}"

    def refused(self, targets: Iterable[Target], trash: Trash) -> str:
        """Why some of these files may not be removed; empty if all may."""
        return next((reason for target in targets if (reason := self.why_not(target, trash))), "")

    def why_not(self, target: Target, trash: Trash) -> str:
        """Why a file may not be removed: it changed since the plan, or this user has no right to; empty if it may.

        A checkpoint of several files may be removed if each of them may.
        """
        try:
            found = trash.find(target.root, target.place)
        except OSError as error:
            return _through_a_link(target.path) or f"{target.path}: {reason_of(error)}"
        if found is None or found.facts != FileFacts(target.size, target.mtime_ns):
            return f"{target.path} has changed since the plan was made"
        if target.identity not in (None, found.identity):
            return f"{target.path} is another file since the plan was made"
        if found.format != (target.format if target.format in SEVERAL else ""):
            return f"{target.path}: not a regular file"
        if abs(target.mtime_ns) > HIGHEST:
            return f"{target.path}: {TOO_LATE}: touch it"
        self.seen[target.path] = found.identity
        return self.beyond(target.root) or self._not_for_this_user(target, found)

    def _not_for_this_user(self, target: Target, found: Found) -> str:
        if found.format and (reason := _shared(found)):
            return f"{target.path}: {reason}"
        is_known = target.format in ONE_FILE
        if is_known and not begins_as(found.head, target.format):
            return f"{target.path} does not start like a {target.format} file: gc keeps it"
        if self._is_own(target, found):
            return ""
        belongs = f"{target.path} belongs to user {self._shown(found)}"
        if found.owners <= self._owners_beside(target):
            if is_known or not target.format:
                return ""
            return f"{belongs}: of other users' files, gc removes only {' and '.join(ONE_FILE)}"
        return f"{belongs}, and no journal of that user beside it records it"

    def _is_own(self, target: Target, found: Found) -> bool:
        return found.owners == {self._user} and self._owners.get(target.launch, self._user) == self._user

    def _shown(self, found: Found) -> str:
        """An owner of a file: another user than this one, if there is one."""
        return user_name(max(found.owners, key=lambda owner: owner != self._user))

    def _owners_beside(self, target: Target) -> set[int]:
        """The users whose journals record a file of this run and launch; for a by-product, the file beside it."""
        stem = target.path if target.format else target.path.rpartition(".")[0]
        return self._owners_told(target.path, (stem, target.launch) if target.launch else None)

    def _owners_told(self, path: str, place: _Place | None) -> set[int]:
        """The owners of the run's journals above a file that have an entry of this place (None: of any)."""
        owners: set[int] = set()
        for directory in self._roots.intersection(_upwards(path)):
            if directory not in self._told:
                self._told[directory] = _told_in(directory, self._run)
            owners |= self._told[directory].get(place, set())
        return owners

    def in_trash(self, item: Item, trash: Trash) -> str:
        """Why this user may not restore or delete a file in the trash; empty if they may.

        Its owner must be that of the directory, or a user whose journals there mention the run.
        """
        try:
            home = os.lstat(item.root).st_uid
            found = trash.find(item.root, item.place, inside=True)
        except OSError:
            return ""  # the move itself reports the error
        self.seen[item.path] = () if found is None else found.identity  # empty: a later file is another one
        if found is None:
            return ""
        if found.owners == {home} or found.owners <= {home, *self._owners_told(item.path, None)}:
            return ""
        return (
            f"{item.path} belongs to user {self._shown(found)}, and no journal of that user beside it mentions the run"
        )


def _limits() -> list[str]:
    """The directories that the variable names. Raises `UsageError` for a relative path."""
    named = os.environ.get(ROOTS)
    if named is None:
        return []
    found = named.split(os.pathsep)
    if not all(each.startswith("/") for each in found):
        raise UsageError(f"{ROOTS}={named!r} must list absolute directories", "for example /data/runs:/scratch/runs")
    return [real_directory(each) for each in found]


def _told_in(directory: str, run: str) -> dict[_Place | None, set[int]]:
    """The owners of the journals of a directory that record a file of a run, by its place; all of them by None.

    The path of a place is also without its ending.
    """
    told: dict[_Place | None, set[int]] = defaultdict(set)
    with suppress(OSError):
        for path in jsonl.journals_in(directory):
            contents = jsonl.read(path)
            lines = [line for line in contents.entries if line.get("t") == "file"]
            files = [event.file for event in from_lines(lines, directory)[0] if isinstance(event, FileRecorded)]
            for file in files:
                if file.run == run or run.startswith(f"{file.run}@"):
                    for place in ((file.path, file.launch), (file.path.rpartition(".")[0], file.launch), None):
                        told[place].add(contents.owner)
    return told


def _shared(found: Found) -> str:
    """Why a checkpoint of several files may be changed by others during the move; empty if it cannot."""
    for name, status in found.statuses.items():
        if S_ISDIR(status.st_mode) and S_IMODE(status.st_mode) & 0o222 != S_IWUSR:
            return f"{name or 'the directory'} must be writable to its owner, and to no one else: chmod -R u+w,go-w"
        if S_ISREG(status.st_mode) and status.st_nlink > 1:
            return (
                f"{name} has another hard link: gc removes a checkpoint of several files only if none of them has one"
            )
    return ""


def _through_a_link(path: str) -> str:
    """The reason that a file, or a directory above it, is a link; empty if none is."""
    link = next((each for each in _upwards(path) if os.path.islink(each)), "")
    return f"{link} is a link: no link is followed" if link else ""


def _upwards(directory: str) -> Iterator[str]:
    """A directory, and those above it."""
    while directory:
        yield directory
        directory = directory.rpartition("/")[0]
    yield "/"
