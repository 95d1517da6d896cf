"""Summaries of finished segments, with the lines that a start needs: one small file for each user.

`.ckptstore/summary-{user's number}.jsonl` names the segments that it stands for, with their sizes. Of their lines, it
has those that still matter, unchanged. If a summary is torn, or a segment has another size by now, the segments are
read instead. They stay where they are, and a rebuild of the catalog reads them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.copies import CopyState
from ckptstore.core.events import (
    CopyRecorded,
    FileRecorded,
    FilesRemoved,
    from_lines,
    generation,
    version_of,
    version_of_file,
)
from ckptstore.core.model import FileState, Location
from ckptstore.disk.files import facts, is_in, names_in, opened_directory
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import records_in
from ckptstore.journal import jsonl
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from ckptstore.core.events import Event, Line, RemovedFile
    from ckptstore.core.model import Checkpoint, LaunchKey
    from ckptstore.journal.jsonl import Contents


MOST_AT_ONCE = 32 << 20
"""About how many bytes of segments one launch summarises. The next launch goes on with the others."""


class Summary(NamedTuple):
    """Its path, the segments that it stands for with their sizes, and its lines."""

    path: str
    covers: Mapping[str, int]
    contents: Contents


def of(paths: Iterable[str]) -> Iterator[Summary]:
    """The summaries of these segments that can be used; each stands for segments of its own user only."""
    by_owner: dict[tuple[str, int], list[str]] = {}
    for path in paths:
        try:
            by_owner.setdefault((path.rpartition("/")[0], os.lstat(path).st_uid), []).append(path)
        except OSError:  # noqa: PERF203 — the reader of this segment reports it
            continue
    for (folder, owner), own in sorted(by_owner.items()):
        summary = _read(folder, owner)
        if summary is not None:
            yield summary._replace(covers={path: summary.covers[path] for path in own if path in summary.covers})


def make(directory: str, launch: str) -> None:
    """Summarise this user's segments of a directory, without those of `launch`, which still writes. Raises `OSError`.

    Another launch may be writing a segment, too. Its size is then another one later, and the summary does not count for
    this segment.
    """
    folder, user = f"{directory.rstrip('/')}/{FOLDER}", os.geteuid()
    sizes = {path: size for path, size in (jsonl.sizes_in(folder) or {}).items() if os.lstat(path).st_uid == user}
    before = _read(folder, user)
    covers = {path: size for path, size in before.covers.items() if sizes.get(path) == size} if before else {}
    over = [path for path in sizes if path not in covers and jsonl.short(launch) not in path]
    if not over:
        return
    told = _Facts(directory)
    told.add(before.contents.entries if before else ())
    left = MOST_AT_ONCE
    for path in sorted(over, key=lambda path: sizes[path]):
        if left > 0 and _add_segment(told, path):
            covers[path] = sizes[path]  # with lines appended since, it has another size
        left -= sizes[path]
    _write(directory, f"summary-{user}", covers, told.needed())


def _read(folder: str, owner: int) -> Summary | None:
    path = f"{folder}/summary-{owner}.jsonl"
    try:
        text, contents = jsonl.read_whole(path)
    except OSError:
        return None
    first, _, rest = text.partition(b"\n")
    told = jsonl.decode(first) or {}
    if told.get("v") != jsonl.VERSION or contents.owner != owner or told.get("digest") != _digest(rest):
        return None
    entries = tuple(entry for line in rest.splitlines() if (entry := jsonl.decode(line)) is not None)
    covers = {f"{folder}/{name}": size for name, size in told["of"].items()} if isinstance(told.get("of"), dict) else {}
    return Summary(path, covers, replace(contents, entries=entries))


def _digest(lines: bytes) -> str:
    return blake2b(lines, digest_size=16).hexdigest()


def _add_segment(told: _Facts, path: str) -> bool:
    """Add the lines of a segment; False if a newer program wrote some: only that program knows which lines matter."""
    begin, has_more = 0, True
    while has_more:
        contents = jsonl.read(path, begin, _PIECE)
        if contents.newer:
            return False
        told.add(contents.entries)
        begin, has_more = contents.end, contents.has_more
    return True


_PIECE = 16 << 20


def _write(directory: str, name: str, covers: Mapping[str, int], lines: Iterable[Line]) -> None:
    """Write a summary under a temporary name, sync it, and rename it."""
    rest = b"".join(map(jsonl.encode, lines))
    names = {Path(path).name: size for path, size in sorted(covers.items())}
    first = jsonl.encode({"t": "summary", "digest": _digest(rest), "of": names})
    with opened_directory(directory) as above, records_in(above) as folder:
        aside = f"{name}.new"
        with suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=folder)  # a killed process left it; or it is a link, or a pipe
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(aside, flags, 0o644, dir_fd=folder), "wb") as file:
            file.write(first + rest)  # of two processes at once, one may name a part of it: then the digest is wrong
            file.flush()
            os.fsync(file.fileno())
        os.rename(aside, f"{name}.jsonl", src_dir_fd=folder, dst_dir_fd=folder)


class _File(NamedTuple):
    """The records of a file: the newest, the time of the first, and their lines."""

    newest: Checkpoint
    line: Line
    first_at: datetime
    first: Line


class _Removal(NamedTuple):
    """The newest event of a file that retention removed."""

    version: str
    event: FilesRemoved
    file: RemovedFile
    line: Line

    def is_at(self, place: Location) -> bool:
        return self.event.settled and self.event.wanted is place

    @property
    def path(self) -> str:
        return f"{self.event.directory.rstrip('/')}/{self.file.place}"

    @property
    def is_over(self) -> bool:
        return self.event.settled and self.event.wanted is not Location.TRASH


class _Facts:
    """The newest facts of some lines: the newest record of each file, and the newest event of each removed file.

    Other lines are few, and each is kept once, as it is.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._others: dict[str, Line] = {}
        self._files: dict[str, _File] = {}
        self._removals: dict[tuple[str, str, str], _Removal] = {}
        self._copies: dict[tuple[str, str], tuple[CopyRecorded, Line]] = {}

    def add(self, lines: Iterable[Line]) -> None:
        for line in lines:
            for event in from_lines([line], self._directory)[0] or (None,):
                self._add(event, line)

    def _add(self, event: Event | None, line: Line) -> None:
        match event:
            case FileRecorded(file):
                self._add_file(file, line)
            case CopyRecorded(_, file, tier):
                known = self._copies.get((file.id, tier.id), (event, line))
                self._copies[file.id, tier.id] = max(known, (event, line), key=lambda one: one[0].at)
            case FilesRemoved():
                for each in event.files:
                    found = _Removal(version_of(event.at, event.wanted, event.settled, each), event, each, line)
                    key = event.run, event.collection, each.place
                    self._removals[key] = max(self._removals.get(key, found), found, key=lambda one: one.version)
            case _:
                self._others[repr(line)] = line

    def _add_file(self, file: Checkpoint, line: Line) -> None:
        at = file.created_at
        if at is None:
            return
        known = self._files.get(file.id, _File(file, line, at, line))
        if version_of_file(file) > version_of_file(known.newest):
            known = known._replace(newest=file, line=line)
        if at < known.first_at:
            known = known._replace(first_at=at, first=line)
        self._files[file.id] = known

    def needed(self) -> list[Line]:
        """The lines that a start needs: without the files that no start needs, and without their removals."""
        over = self._over()
        told = [*self._others.values()]
        for file_id, file in self._files.items():
            told += [file.line, file.first] if file_id not in over else []
        told += [each.line for each in self._removals.values() if not _is_settled(each, over)]
        told += [line for (file_id, _), (_, line) in self._copies.items() if file_id not in over]
        return list({id(line): line for line in told}.values())

    def _over(self) -> set[str]:
        """The files that no start needs: overwritten or gone.

        Files that vanished are left out, except the newest and the oldest of each rank of a launch. A start names the
        newest as a state that it skips. By the oldest, which all ranks have, it knows that the run had a complete state
        once: it does not begin at step 0 then.
        """
        removals: dict[str, list[_Removal]] = {}
        in_trash: set[str] = set()  # paths, not ids: records of a moved tree have other ids
        for removal in self._removals.values():
            removals.setdefault(removal.file.checkpoint, []).append(removal)
            in_trash |= set() if removal.is_over else {removal.path}
        last_at: dict[tuple[str, str], tuple[datetime, str]] = {}
        steps_of: dict[tuple[LaunchKey, int], list[tuple[int, str]]] = {}
        for file_id, (file, _, at, _) in self._files.items():
            place, rank = (file.run, file.path), (file.launch_key, file.rank)
            last_at[place] = max(last_at.get(place, (at, file_id)), (at, file_id))
            steps_of.setdefault(rank, []).append((file.global_step, file_id))
        ends = {end(steps)[1] for steps in steps_of.values() for end in (min, max)}
        names = cache(names_in)
        over = set()
        for file_id, (file, *_) in self._files.items():
            if file.path in in_trash:
                continue
            directory, _, name = file.path.rpartition("/")
            is_past = file.state is FileState.MOVED or _is_removed(file, removals)
            # A directory below may be on a disk of its own that is not mounted.
            may_be_gone = file.state is FileState.MISSING or directory == self._directory
            if is_past or (may_be_gone and file_id not in ends):
                with suppress(OSError):  # a file system may have a new file that it does not list yet
                    is_gone = not is_in(names(directory), name) and facts(file.path) is None
                    over |= {file_id} if is_gone else set()
            last = last_at[file.run, file.path][1]
            if last != file_id and not _is_seen_after(file, self._files[last].newest):
                over.add(file_id)
        return over - {file for (file, _), (event, _) in self._copies.items() if event.state is CopyState.READY}


def _is_seen_after(file: Checkpoint, other: Checkpoint) -> bool:
    """Whether a file was seen at its path after another one, which was recorded later there, was gone."""
    return other.state is FileState.MISSING and file.revision is not None and file.revision > other.newness


def _is_removed(file: Checkpoint, removals: Mapping[str, Iterable[_Removal]]) -> bool:
    """Whether retention deleted a file as it was last recorded."""
    own = removals.get(file.id, ())
    version = generation(version_of_file(file))
    return any(each.is_at(Location.GONE) and each.file.of_version >= version for each in own)


def _is_settled(removal: _Removal, over: AbstractSet[str]) -> bool:
    """Whether a summary no longer needs the removal of a file."""
    checkpoint = removal.file.checkpoint
    if removal.is_at(Location.GONE):
        return not checkpoint or checkpoint in over
    return removal.is_at(Location.HOME) and checkpoint in over
