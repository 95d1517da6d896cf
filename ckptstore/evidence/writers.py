"""Finds the launch that wrote an unregistered file: launches announce their directories and names.

A TTP directory gets its final name once every rank is done (mindspore.md §7). A cascaded fault may leave one under its
first name. A later launch that fails at the same step then writes into that directory, and renames it with all its
files.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from ckptstore.core.groups import grouped
from ckptstore.core.iterations import COMMON, METADATA, parse_iteration, parse_part
from ckptstore.core.limits import CLOCKS_DIFFER
from ckptstore.core.model import Content, Kind, moment
from ckptstore.core.naming import (
    is_numbered,
    is_ttp_file,
    parse_exit_name,
    parse_name,
    parse_rank_directory,
    parse_ttp_directory,
    unfinished_ttp_directory,
)
from ckptstore.disk.files import names_in
from ckptstore.evidence.witnesses import is_named_after
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.core.events import TrainingEnded
    from ckptstore.core.model import Launch, LaunchKey, Source
    from ckptstore.core.naming import CheckpointName
    from ckptstore.disk.files import FileFacts
    from ckptstore.formats.header import Header


_UNFINISHED = "_tmp"


@dataclass(frozen=True)
class UnregisteredFile:
    """A file that, by its name, a rank of a launch wrote, and that is not among the live files of the catalog."""

    source: Source
    path: str

    @property
    def name(self) -> CheckpointName | None:
        """The parts of its name, if a ModelCheckpoint gave it."""
        return parse_name(Path(self.path).name)

    @property
    def is_breakpoint(self) -> bool:
        """Whether it was written at an exception."""
        return self.name is not None and self.name.is_breakpoint

    @property
    def kind(self) -> Kind:
        """The kind of save it is part of."""
        return Kind.DYING_GASP if self.is_breakpoint else self.source.kind

    @property
    def named_step(self) -> int | None:
        """The step that the name of a graceful exit's file, or the directory of a TTP file, states."""
        if self.kind is Kind.GRACEFUL_EXIT:
            exit_name = parse_exit_name(Path(self.path).name)
            return None if exit_name is None else exit_name.global_step
        directory = parse_ttp_directory(Path(self.path).parents[1].name)
        return None if directory is None else directory.step


def wrote(source: Source, name: str) -> bool:
    """Whether a source writes files of this name, and this file was not there before (for TTP, `was_there` tells)."""
    return (source.kind is Kind.TTP or name not in source.names_before) and _writes(source, name)


def _writes(source: Source, name: str) -> bool:
    if source.kind is Kind.TTP:
        return is_ttp_file(name)
    return not set(_keys(source)).isdisjoint(_keys_of_name(name))


class Writers:
    """The sources of directories, found by the name of a file: many ranks may save to one directory."""

    def __init__(self, sources: Iterable[tuple[str, Source]]) -> None:
        self._by_key = grouped(((home, key), source) for home, source in sources for key in _keys(source))

    def of(self, directory: str, name: str) -> Iterator[Source]:
        """The sources that write files of this name to a directory; of those of TTP see `of_ttp`."""
        for key in _keys_of_name(name):
            yield from self._by_key.get((directory, key), ())

    def of_ttp(self, directory: str, rank: int) -> Sequence[Source]:
        """The sources of TTP of one rank."""
        return self._by_key.get((directory, (Kind.TTP, rank)), ())


class Unknown:
    """The names in directories that no record has, found by the source that writes files of such a name."""

    def __init__(self, listed: Mapping[str, Iterable[str]], known: Container[str]) -> None:
        self._by_key = grouped(
            ((directory, key), name)
            for directory, names in listed.items()
            for name in names
            if f"{directory}/{name}" not in known
            for key in _keys_of_name(name)
        )

    def of(self, source: Source) -> dict[str, list[str]]:
        """The names in its directory that a source may have written."""
        home = source.directory
        return {home: [name for key in _keys(source) for name in self._by_key.get((home, key), ())]}


def _keys(source: Source) -> list[tuple[object, ...]]:
    """Keys: of one of them is each name that a source writes."""
    if source.kind is Kind.TTP:
        return [(Kind.TTP, source.rank)]
    if source.kind is Kind.GRACEFUL_EXIT:
        return [(Kind.GRACEFUL_EXIT, source.prefix)]
    if source.content is Content.PART:
        return [(Content.PART, source.prefix, source.rank), *([(Content.PART,)] if source.rank == 0 else [])]
    of_breakpoint = Kind.DYING_GASP, source.breakpoint_prefix
    return [of_breakpoint, (Kind.PERIODIC, source.prefix)] if source.kind is Kind.PERIODIC else [of_breakpoint]


def _keys_of_name(name: str) -> Iterator[tuple[object, ...]]:
    if (parsed := parse_name(name)) is not None:
        kind = Kind.DYING_GASP if parsed.is_breakpoint else Kind.PERIODIC
        yield kind, parsed.prefix
        base = parsed.prefix.rpartition("_")[0]
        if parsed.is_breakpoint and is_numbered(parsed.prefix, base):
            yield kind, base
    elif (exit_name := parse_exit_name(name)) is not None:
        yield Kind.GRACEFUL_EXIT, exit_name.file_name
    elif (part := parse_part(name)) is not None:
        yield Content.PART, part.prefix, part.index
    elif name in (COMMON, METADATA):
        yield (Content.PART,)


def unregistered_files(
    source: Source, listed: Mapping[str, Iterable[str]], known: Iterable[str]
) -> Iterator[UnregisteredFile]:
    """The files that a source wrote, by the listed names, without the known paths."""
    paths = set(known)
    for directory, names in sorted(listed.items()):
        home = str(Path(directory)).rstrip("/")
        for name in sorted(names):
            path = f"{home}/{name}"
            if path not in paths and wrote(source, name):
                yield UnregisteredFile(source, path)


class Nested:
    """The files in the directories of iterations and of TTP. Each is listed once: all ranks write into it."""

    def __init__(self) -> None:
        self._names = cache(names_in)
        self._rank_directories = cache(_rank_directories)
        self._roots: dict[str, dict[str, dict[int, set[str]]]] = {}

    def list(self, source: Source) -> dict[str, frozenset[str]]:
        """The names of a rank's files in each directory that was not there before. Raises `OSError`."""
        if source.kind is Kind.TTP:
            return self._list_ttp(source)
        if source.directory not in self._roots:
            named = (name for name in names_in(source.directory) if parse_iteration(name) is not None)
            self._roots[source.directory] = {name: _by_rank(f"{source.directory}/{name}") for name in named}
        return {
            f"{source.directory}/{name}": frozenset(ranks.get(source.rank, ()))
            for name, ranks in self._roots[source.directory].items()
            if name not in source.names_before
        }

    def _list_ttp(self, source: Source) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for name in self._names(source.directory).difference(source.names_before):
            if parse_ttp_directory(name) is not None:
                directories = self._rank_directories(f"{source.directory}/{name}").get(source.rank, ())
                found |= {directory: names_in(directory) for directory in directories}
        return found


def _rank_directories(inside: str) -> dict[int, list[str]]:
    ranks = ((parse_rank_directory(name), f"{inside}/{name}") for name in names_in(inside))
    return grouped((rank, directory) for rank, directory in ranks if rank is not None)


def _by_rank(directory: str) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    with suppress(OSError):  # it is gone by now, or is no directory
        for name in names_in(directory):
            part = parse_part(name)
            if part is not None or name in (COMMON, METADATA):
                found.setdefault(part.index if part else 0, set()).add(name)
    return found


def ttp_names_before(root: str, names: Iterable[str], rank: int) -> list[str]:
    """The names below the root when a launch begins: those in it, and a rank's files in unfinished TTP directories."""
    found = sorted(names)
    for name in [name for name in found if unfinished_ttp_directory(name)]:
        with suppress(OSError):  # it is no directory, or unreadable: its files are not known
            for directory in _rank_directories(f"{root}/{name}").get(rank, ()):
                found += sorted(f"{name}/{Path(directory).name}/{file}" for file in names_in(directory))
    return found


def before_rename(path: str) -> str:
    """The path of a TTP file before its directory was renamed; empty if it was not renamed, and for other files."""
    rank_directory = Path(path).parent
    directory = rank_directory.parent
    parsed = parse_ttp_directory(directory.name)
    if parsed is None or parsed.unfinished:
        return ""
    return str(directory.with_name(directory.name + _UNFINISHED) / rank_directory.name / Path(path).name)


def was_there(source: Source, path: str) -> bool:
    """Whether a TTP file was there when a source's launch began, at its path or under its directory's first name."""
    first = before_rename(path)
    if first and Path(path).parents[1].name in source.names_before:
        return True
    return str(Path(first or path).relative_to(source.directory)) in source.names_before


@dataclass(frozen=True)
class LaunchFacts:
    """The catalog's facts about the launches that may have left unregistered files."""

    launches: Mapping[LaunchKey, Launch]
    endings: Mapping[tuple[LaunchKey, int], TrainingEnded]  # where training ended, by launch and rank
    lags: Mapping[LaunchKey, int]  # how many batches brought no update
    sources: Writers  # where all launches save
    registered: AbstractSet[LaunchKey] = frozenset()  # the launches that have registered anything
    counters: Mapping[tuple[LaunchKey, int], int] = field(default_factory=dict)  # the optimizer's highest registered

    def ending_of(self, source: Source) -> TrainingEnded | None:
        """How training ended on the rank of a source, if the rank recorded it."""
        return self.endings.get((source.launch_key, source.rank))


def doubt_of(new: UnregisteredFile, header: Header, here: FileFacts, facts: LaunchFacts, *, replaced: bool) -> str:
    """Why it is not proven that a file is of the launch of its source; empty if it is proven.

    A file may be seen late: a node answers again, a file system's cache was old, a process that was given up writes
    on. A newer launch that saves there knows the names that were there when it began, and may replace their files. If
    several launches may have written a file, it is of the one whose rank recorded that training ended with just this
    state; if two recorded it, of the newer one.
    """
    own = facts.launches[new.source.launch_key]
    if contradiction := _contradiction(new, header, here, facts):
        return contradiction
    if new.kind is Kind.TTP:
        return _doubt_of_ttp(new, header, here, facts, replaced=replaced)
    if new.kind is Kind.PERIODIC and own.parent is None and own.key not in facts.registered:
        return f"launch {own.id} has registered nothing: another program may have written it"
    if new.is_breakpoint and _ended_otherwise(new.source, header, facts):
        return f"the training of launch {own.id} ended with another state"
    others = [
        other
        for other in facts.sources.of(new.source.directory, new.path.rpartition("/")[2])
        if other.launch_key != own.key and _may_have_written(other, new, header, here, facts)
    ]
    if new.kind is Kind.GRACEFUL_EXIT:  # MindSpore's own count is in it, and a run uses no name twice
        others = [other for other in others if facts.launches[other.launch_key].run != own.run]
    newer = [other for other in others if _is_newer(facts.launches[other.launch_key], own)]
    is_own = ended_with(new.source, new, header, facts)
    if not others or (is_own and not any(ended_with(other, new, header, facts) for other in newer)):
        return ""
    return unproven(others[0], own.run, own.id)


def _contradiction(new: UnregisteredFile, header: Header, here: FileFacts, facts: LaunchFacts) -> str:
    own = facts.launches[new.source.launch_key]
    if _is_older(here, own):
        return f"it was written before launch {own.id} began"
    if new.kind is not Kind.PERIODIC and _had_got_further(new.source, header, facts):
        return f"launch {own.id} had got further before: another launch must have written it"
    return ""


def unproven(other: Source, run: str, launch: str) -> str:
    """The doubt that another launch wrote a file of this one. It names the runs: two may have launches of one id."""
    of_other, of_own = (f" of run {other.run}", f" of run {run}") if other.run != run else ("", "")
    return f"launch {other.launch}{of_other} may have written it, and nothing proves that {launch}{of_own} did"


def _doubt_of_ttp(new: UnregisteredFile, header: Header, here: FileFacts, facts: LaunchFacts, *, replaced: bool) -> str:
    """As `doubt_of`, for TTP. Launches that fail at one step write one name.

    So a file that was there before is not the launch's own, unless it was `replaced`. If a newer launch may have
    written it since, it is not proven to be the older one's.
    """
    own = facts.launches[new.source.launch_key]
    if "step_num" not in header.info:
        return "it lacks 'step_num', which MindSpore appends: it may be cut"
    if was_there(new.source, new.path) and not replaced:
        return f"it was there before launch {own.id} began"
    for other in facts.sources.of_ttp(new.source.directory, new.source.rank):
        launch = facts.launches[other.launch_key]
        if _is_newer(launch, own) and not _is_older(here, launch) and (replaced or not was_there(other, new.path)):
            return unproven(other, own.run, own.id)
    return ""


def _may_have_written(
    source: Source, new: UnregisteredFile, header: Header, here: FileFacts, facts: LaunchFacts
) -> bool:
    launch, own = facts.launches[source.launch_key], facts.launches[new.source.launch_key]
    name = new.path.rpartition("/")[2]
    if new.is_breakpoint and name in source.names_before and _is_newer(launch, own):
        # Launches that fail at one step write one name: it may have replaced the file that was there.
        if not _writes(source, name) or launch.created_at is None or moment(here.mtime_ns) < launch.created_at:
            return False
    elif not wrote(source, name) or _is_older(here, launch):
        return False
    if not _is_newer(launch, own) and _was_over(source, own, new, here):
        return False
    if new.is_breakpoint:
        return not _ended_otherwise(source, header, facts)
    ending, counted = facts.ending_of(source), header.optimizer_step
    return ending is None or ending.optimizer_step is None or counted is None or counted <= ending.optimizer_step


def _was_over(source: Source, newer: Launch, new: UnregisteredFile, here: FileFacts) -> bool:
    """Whether a source had stopped writing when a newer launch began, as far as a new file is concerned.

    - It had, if the newer launch found a file of the source there.
    - If the newer launch found none, the source may still have written a breakpoint. Its periodic saves would have a
      prefix of their own, unless it had never saved before; and launches that fail before their first save are common.
    - A source of another run may still train: breakpoints of any two launches may have the same name.
    """
    if source.run != newer.run:
        return False
    if any(wrote(source, name) for name in new.source.names_before):
        return True
    return not new.is_breakpoint and newer.created_at is not None and moment(here.mtime_ns) >= newer.created_at


def ended_with(source: Source, new: UnregisteredFile, header: Header, facts: LaunchFacts) -> bool:
    """Whether a source's rank recorded that training ended with the state of a file."""
    ending, launch = facts.ending_of(source), facts.launches[source.launch_key]
    if ending is None or ending.optimizer_step != header.optimizer_step:
        return False
    if header.optimizer_step is not None or new.name is None or launch.steps_per_epoch is None:
        return header.optimizer_step is not None
    return is_named_after(new.name, steps_per_epoch=launch.steps_per_epoch, global_step=ending.global_step)


def _ended_otherwise(source: Source, header: Header, facts: LaunchFacts) -> bool:
    """Whether a source's rank recorded that training ended with another state than that of a file."""
    ending = facts.ending_of(source)
    if ending is None or ending.optimizer_step is None or header.optimizer_step is None:
        return _had_got_further(source, header, facts)
    return ending.optimizer_step != header.optimizer_step


def _had_got_further(source: Source, header: Header, facts: LaunchFacts) -> bool:
    """Whether a source's rank registered a later state than that of a file, which was saved at the end of training."""
    counter = facts.counters.get((source.launch_key, source.rank))
    return counter is not None and header.optimizer_step is not None and header.optimizer_step < counter


def _is_newer(launch: Launch, other: Launch) -> bool:
    """Whether a launch began after another one; launches of two runs are compared by their clocks, if possible."""
    if launch.run == other.run:
        return launch.order > other.order
    if launch.created_at is None or other.created_at is None:
        return True
    return launch.created_at > other.created_at


def _is_older(here: FileFacts, launch: Launch) -> bool:
    return launch.created_at is not None and moment(here.mtime_ns) < launch.created_at - CLOCKS_DIFFER
