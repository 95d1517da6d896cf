"""Finds debris of saves: half-written files, graphs without checkpoints.

Only old by-products go, and only if their names show that a rank of this run made them. An unregistered file with the
name of a checkpoint is reported, and never touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.core.classify import What, classify
from ckptstore.core.groups import grouped
from ckptstore.core.model import FileState, Kind, Skipped
from ckptstore.core.naming import COMPANION, checkpoints_of, is_ttp_file, parse_name, parse_ttp_directory
from ckptstore.disk.files import names_in, real_directory
from ckptstore.disk.walk import is_directory, regular_file, walk
from ckptstore.evidence.writers import wrote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from ckptstore.core.model import Launch, Source

OLD = timedelta(hours=24)
"""Younger files may be in use."""

_TMP = ".tmp"
_META = "-graph.meta"
_ENDS = (".ckpt", ".safetensors")
_UNFINISHED = "left over from an unfinished save"
_DRAFT = re.compile(r"\.(?P<name>.+\.companion)\..+", re.DOTALL)
"""The name of a companion that was never written to its end (`disk/files.py::replace_text`)."""


@dataclass(frozen=True)
class Target:
    """An existing file, seen by a plan."""

    root: str  # a directory of the run
    place: str  # the path below it
    size: int  # bytes
    mtime_ns: int  # since 1970
    checkpoint: str | None = None  # the id of its record; None: the catalog has none
    before: FileState | None = None  # the state of the record
    recorded_ns: int | None = None  # the time in the record: the file may have been touched since
    format: str = ""  # the recorded one
    launch: str = ""  # empty: none is known
    identity: tuple[int, ...] | None = None  # that of the planned file; None: not planned yet
    reason: str = ""  # why it is of no use, if a save left it behind

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{self.root.rstrip('/')}/{self.place}"


def find(
    sources: Sequence[Source],
    *,
    launches: Mapping[str, Launch],
    known: AbstractSet[str],
    going: AbstractSet[str],
    now: datetime,
    list_names: Callable[[str], AbstractSet[str]],
) -> tuple[tuple[Target, ...], tuple[Skipped, ...]]:
    """The debris to remove, and unregistered files with names of checkpoints: those stay.

    The directories that a run saves to are searched: `list_names` returns the names in one. `known` are the paths in
    the catalog, `going` those of files that go. A directory may have two paths, if a disk was moved and a link left. It
    is searched once, for both: a file of no use to the launches of one path may be of use to those of the other.
    """
    recorded = {source.directory for source in sources}
    real = {directory: real_directory(directory) for directory in recorded}
    moved = {directory: path for directory, path in real.items() if path != directory and path in recorded}
    by_directory = grouped((moved.get(source.directory, source.directory), source) for source in sources)
    known, going = known | _at_new_place(known, moved), going | _at_new_place(going, moved)
    saving = [launches[source.launch].order for source in sources]
    search = _Search(launches, max(saving, default=0), known, going, int((now - OLD).timestamp() * 1e9))
    debris: list[Target] = []
    unknown: list[Skipped] = []
    for directory, own in sorted(by_directory.items()):
        names = sorted(list_names(directory))
        debris += search.files(directory, names, own)
        unknown += search.unregistered(directory, names)
        if any(source.kind is Kind.TTP for source in own):
            for name in names:
                if parse_ttp_directory(name) is not None and is_directory(f"{directory}/{name}"):
                    debris += search.ttp(directory, name, own)
    return tuple(debris), tuple(unknown)


def _at_new_place(paths: Iterable[str], moved: Mapping[str, str]) -> set[str]:
    """The present paths of files in directories that were moved."""
    parts = (path.rpartition("/") for path in paths) if moved else ()
    return {f"{moved[directory].rstrip('/')}/{name}" for directory, _, name in parts if directory in moved}


@dataclass(frozen=True)
class _Search:
    launches: Mapping[str, Launch]
    newest: int
    known: AbstractSet[str]
    going: AbstractSet[str]
    before_ns: int

    def files(self, directory: str, names: Sequence[str], sources: Sequence[Source]) -> Iterator[Target]:
        """The useless files of a directory."""
        staying = {name for name in names if f"{directory}/{name}" not in self.going}
        prefixes = {parsed.prefix for name in staying if (parsed := parse_name(name)) is not None}
        for name in names:
            path, reason = f"{directory}/{name}", self._reason(name, staying, prefixes, sources)
            if not reason or path in self.known or path in self.going:
                continue
            seen = regular_file(directory, name)
            if seen is not None and seen.mtime_ns < self.before_ns:
                yield Target(directory, name, seen.size, seen.mtime_ns, reason=reason)

    def _reason(
        self, name: str, staying: AbstractSet[str], prefixes: AbstractSet[str], sources: Sequence[Source]
    ) -> str:
        """Why a file is of no use; empty if it may be. `staying` are the names that stay, `prefixes` their prefixes."""
        companion = _DRAFT.fullmatch(name)
        stem = (companion["name"] if companion else name).removesuffix(COMPANION)
        if companion or stem != name:
            is_own = any(wrote(source, f"{stem}{end}") for source in sources for end in _ENDS)
            is_of_use = not companion and not staying.isdisjoint(checkpoints_of(name))
            return "the checkpoint that it was beside is gone" if is_own and not is_of_use else ""
        if name.endswith(_TMP):
            stem = name.removesuffix(_TMP)
            written = any(wrote(source, f"{stem}{end}") for source in sources for end in _ENDS)
            return _UNFINISHED if written else ""
        if name.endswith(_META) and name.removesuffix(_META) not in prefixes:
            # MindSpore writes the graph once, beside the checkpoints of a prefix
            own = [source for source in sources if source.prefix == name.removesuffix(_META)]
            is_over = bool(own) and all(self._is_history(source) for source in own)
            return "no checkpoint of its launch is left beside it" if is_over else ""
        return ""

    def unregistered(self, directory: str, names: Iterable[str]) -> Iterator[Skipped]:
        """Files with the name of a checkpoint that the catalog has no record of."""
        for name in names:
            path = f"{directory}/{name}"
            is_unknown = path not in self.known and classify([name]).what is What.CHECKPOINT
            if is_unknown and regular_file(directory, name) is not None:
                yield Skipped(path, "the catalog does not know it: it stays")

    def ttp(self, home: str, name: str, sources: Iterable[Source]) -> Iterator[Target]:
        """The files in a directory of TTP that can no longer become part of a state."""
        is_over = all(
            self._is_history(source) or name in source.names_before for source in sources if source.kind is Kind.TTP
        )
        for directory in walk(f"{home}/{name}", skip=lambda _: False) if is_over else ():
            for seen in directory.files:
                stem = seen.name.removesuffix(_TMP)
                half = seen.name != stem and (is_ttp_file(f"{stem}.ckpt") or is_ttp_file(f"{stem}.safetensors"))
                if half and seen.mtime_ns < self.before_ns:
                    place = "/".join((name, *directory.parts, seen.name))
                    yield Target(home, place, seen.size, seen.mtime_ns, reason=_UNFINISHED)

    def _is_history(self, source: Source) -> bool:
        return self.launches[source.launch].order < self.newest


def has_checkpoint_beside(target: Target) -> bool:
    """Whether a checkpoint that the file belongs to is beside it: its removal may have failed."""
    directory, _, name = target.path.rpartition("/")
    if not name.endswith((_META, COMPANION)):
        return False
    try:
        names = names_in(directory)
        if name.endswith(COMPANION):
            return not names.isdisjoint(checkpoints_of(name))
        beside = map(parse_name, names)
        return any(parsed is not None and parsed.prefix == name.removesuffix(_META) for parsed in beside)
    except OSError:
        return True
