"""Files on disk that the catalog does not know, and the records that can be proved of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.core.model import Checkpoint, FileState, Kind
from ckptstore.core.naming import (
    CheckpointName,
    is_numbered,
    is_ttp_file,
    parse_exit_name,
    parse_name,
    parse_rank_directory,
    parse_ttp_directory,
)
from ckptstore.core.steps import is_named_after, unwitnessed_step, witnessed_by_mindspore
from ckptstore.errors import UnreadableError, UsageError
from ckptstore.formats.inspect import read_checkpoint
from ckptstore.ops import register
from ckptstore.ops.adoption import moment
from ckptstore.ops.lease import CLOCKS_DIFFER
from ckptstore.storage import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.reads import Ending, Source
    from ckptstore.core.model import Launch
    from ckptstore.formats.header import Header
    from ckptstore.storage.files import FileFacts


@dataclass(frozen=True)
class Skipped:
    """A path that was not taken into the catalog, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class History:
    """What the catalog knows of the launches that may have left something behind.

    `lags` says how many batches brought no update, by launch; `endings` where training ended, by launch and rank;
    `sources` where all launches save, by directory.
    """

    launches: Mapping[str, Launch]
    endings: Mapping[tuple[str, int], Ending]
    lags: Mapping[str, int]
    sources: Mapping[str, Sequence[Source]]


@dataclass(frozen=True)
class Stray:
    """A file that a rank of a launch wrote, by its name, and that is not among the live ones of the catalog."""

    source: Source
    path: str

    @property
    def name(self) -> CheckpointName | None:
        """What its name says, where a ModelCheckpoint gave it."""
        return parse_name(Path(self.path).name)

    @property
    def is_breakpoint(self) -> bool:
        """Whether it was written at an exception."""
        return self.name is not None and self.name.is_breakpoint

    @property
    def kind(self) -> Kind:
        """The kind of save it is part of."""
        return Kind.DYING_GASP if self.is_breakpoint else self.source.kind


def listing_of_ttp(source: Source) -> dict[str, frozenset[str]]:
    """The names in the directories that a source of TTP writes to. Raises `OSError` where one cannot be read."""
    found: dict[str, frozenset[str]] = {}
    for name in files.names_in(source.directory).difference(source.names_before):
        if parse_ttp_directory(name) is not None:
            inside = Path(source.directory) / name
            for each in files.names_in(str(inside)):
                if parse_rank_directory(each) == source.rank:
                    found[str(inside / each)] = files.names_in(str(inside / each))
    return found


def strays(source: Source, listed: Mapping[str, Iterable[str]], known: Iterable[str]) -> Iterator[Stray]:
    """What a source wrote among the listed names, but for the paths that are known."""
    paths = set(known)
    for directory, names in sorted(listed.items()):
        home = str(Path(directory)).rstrip("/")
        for name in sorted(names):
            path = f"{home}/{name}"
            if path not in paths and wrote(source, name):
                yield Stray(source, path)


def take_in(
    database: Database,
    run_id: int,
    found: list[Stray],
    gone: Iterable[Checkpoint],
    history: History,
    *,
    recorded: Mapping[str, Sequence[Checkpoint]],
) -> Iterator[Checkpoint | Skipped]:
    """The records of strays: of one that is back, or was only moved, as it was; of one that nobody registered, new.

    `recorded` is what the catalog has of their paths.
    """
    moved: dict[tuple[str, int, int | None, int | None], list[Checkpoint]] = {}
    for file in gone:
        moved.setdefault((file.launch, file.rank, file.size, file.mtime_ns), []).append(file)
    for stray in found:
        records = recorded.get(stray.path, ())
        if not all(file.state in (FileState.MISSING, FileState.MOVED, FileState.TRASHED) for file in records):
            continue
        try:
            here = files.facts(stray.path)
        except OSError as error:
            yield Skipped(stray.path, error.strerror or str(error))
            continue
        if here is None:
            continue
        back = [file for file in records if (file.size, file.mtime_ns) == (here.size, here.mtime_ns)]
        if any(file.state is FileState.TRASHED for file in back):  # gc has still to move it
            continue
        likely = back or moved.get((stray.source.launch, stray.source.rank, here.size, here.mtime_ns), [])
        try:
            same = _same(stray.path, likely)
        except OSError as error:
            yield Skipped(stray.path, error.strerror or str(error))
            continue
        if same is not None:
            yield replace(same, path=stray.path, state=FileState.COMPLETE)
        else:
            expected = register.parameters_of(database, run_id, stray.source.rank, but=stray.path)
            yield _adopted(stray, here, history, expected)


def _same(path: str, likely: Sequence[Checkpoint]) -> Checkpoint | None:
    """Which of the records of its size and time a file is; a file system that tells seconds has several of one time.

    No name with a step in it is given twice in a launch: under the same one it is the same, without reading it.
    """
    if len(likely) == 1 and Path(likely[0].path).name == Path(path).name:
        return likely[0]
    if any(file.digest is not None for file in likely):
        digest = files.digest(path)
        return next((file for file in likely if file.digest == digest), None)
    try:
        counter = read_checkpoint(Path(path)).optimizer_step if likely else None
    except UnreadableError:
        return None
    return next((file for file in likely if counter is not None and file.optimizer_step == counter), None)


def wrote(source: Source, name: str) -> bool:
    """Whether a source writes files of this name, and this one was not there before it."""
    if source.kind is Kind.TTP:
        return is_ttp_file(name)
    if name in source.names_before:
        return False
    if source.kind is Kind.GRACEFUL_EXIT:
        exit_name = parse_exit_name(name)
        return exit_name is not None and exit_name.file_name == source.prefix
    parsed = parse_name(name)
    if parsed is None:
        return False
    if parsed.is_breakpoint:
        return is_numbered(parsed.prefix, source.breakpoint_prefix)
    return source.kind is Kind.PERIODIC and parsed.prefix == source.prefix


def _adopted(stray: Stray, here: FileFacts, history: History, expected: frozenset[str]) -> Checkpoint | Skipped:
    """The record of a file that nobody registered; its step is what can be proved, never what the name says alone."""
    launch = history.launches[stray.source.launch]
    try:
        header = read_checkpoint(Path(stray.path))
        lacking = sorted(expected.difference(entry.name for entry in header.entries))
        if lacking:
            return Skipped(stray.path, f"it lacks {lacking[0]!r}, which other files of its rank have: it may be cut")
        doubt = _doubt(stray, header, here, history)
        if doubt:
            return Skipped(stray.path, doubt)
        step = _step(launch, stray, header, history)
        if step is None:
            return Skipped(stray.path, "its name, what is in it and the launch's history do not agree on its step")
        described = register.describe(
            launch,
            rank=stray.source.rank,
            path=stray.path,
            kind=stray.kind,
            global_step=step,
            optimizer_step=header.optimizer_step,
            quarantine=_quarantine(stray, step, history),
        )
        return register.measured(described) or Skipped(stray.path, "it changed while it was read")
    except (UnreadableError, UsageError) as error:
        return Skipped(stray.path, str(error))
    except OSError as error:
        return Skipped(stray.path, error.strerror or str(error))


def _doubt(stray: Stray, header: Header, here: FileFacts, history: History) -> str:
    """Why it is not proved that a file is of a stray's launch; empty where it is.

    A file may be seen late: a node answers again, a file system's cache was old, a process that was given up writes
    on. A newer launch that saves there knows the names that were there when it began, and no more. Of several launches
    that may have written a file it is the one's whose rank said that it ended just so; of two, the newer one's.
    """
    own = history.launches[stray.source.launch]
    if _is_older(here, own):
        return f"it was written before launch {own.id} began"
    if stray.kind not in (Kind.PERIODIC, Kind.DYING_GASP):  # MindSpore's own count is in it, and no name is used twice
        return ""
    others = [
        other
        for other in history.sources.get(stray.source.directory, ())
        if other.launch != own.id and _may_have_written(other, stray, header, here, history)
    ]
    newer = [other for other in others if history.launches[other.launch].order > own.order]
    is_own = _ended_with(stray.source, stray, header, history)
    if not others or (is_own and not any(_ended_with(other, stray, header, history) for other in newer)):
        return ""
    return f"launch {others[0].launch} may have written it, and nothing tells that {own.id} did"


def _may_have_written(source: Source, stray: Stray, header: Header, here: FileFacts, history: History) -> bool:
    """Whether nothing speaks against it that another source wrote a stray."""
    launch, own = history.launches[source.launch], history.launches[stray.source.launch]
    if not wrote(source, Path(stray.path).name) or _is_older(here, launch):
        return False
    if launch.order < own.order and _was_over(source, own, stray, here):
        return False
    ending = history.endings.get((source.launch, source.rank))
    if ending is None or ending.optimizer_step is None or header.optimizer_step is None:
        return True
    if stray.is_breakpoint:
        return header.optimizer_step == ending.optimizer_step
    return header.optimizer_step <= ending.optimizer_step


def _was_over(source: Source, newer: Launch, stray: Stray, here: FileFacts) -> bool:
    """Whether a source wrote no more when a newer launch began: it had left its breakpoint.

    One that writes on then can be told at an exception only: what it saves as ever has its own prefix, unless it never
    had saved before; and a launch that fails before its first save is common.
    """
    if any(wrote(source, name) for name in stray.source.names_before):
        return True
    began = newer.created_at
    return not stray.is_breakpoint and began is not None and moment(here.mtime_ns) >= began


def _ended_with(source: Source, stray: Stray, header: Header, history: History) -> bool:
    """Whether a source's rank said that training ended with the state of a stray."""
    ending, launch = history.endings.get((source.launch, source.rank)), history.launches[source.launch]
    if ending is None or ending.optimizer_step != header.optimizer_step:
        return False
    if header.optimizer_step is not None or stray.name is None or launch.steps_per_epoch is None:
        return header.optimizer_step is not None
    return is_named_after(stray.name, steps_per_epoch=launch.steps_per_epoch, global_step=ending.global_step)


def _is_older(here: FileFacts, launch: Launch) -> bool:
    """Whether a file was written before a launch began, by whatever clock."""
    return launch.created_at is not None and moment(here.mtime_ns) < launch.created_at - CLOCKS_DIFFER


def _step(launch: Launch, stray: Stray, header: Header, history: History) -> int | None:
    lag = history.lags[launch.id]
    if stray.kind in (Kind.GRACEFUL_EXIT, Kind.TTP):
        return witnessed_by_mindspore(
            header.info.get("step_num"), _named_step(stray), optimizer_step=header.optimizer_step, lag=lag
        )
    ending = history.endings.get((launch.id, stray.source.rank))
    if stray.is_breakpoint and ending is not None and ending.optimizer_step == header.optimizer_step:
        return ending.global_step
    if stray.name is None or header.optimizer_step is None or launch.steps_per_epoch is None:
        return None
    return unwitnessed_step(
        stray.name,
        steps_per_epoch=launch.steps_per_epoch,
        base_step=launch.start_step or 0,
        optimizer_step=header.optimizer_step,
        lag=lag,
    )


def _quarantine(stray: Stray, step: int, history: History) -> str:
    ending = history.endings.get((stray.source.launch, stray.source.rank))
    return ending.quarantine if ending is not None and ending.global_step == step else ""


def _named_step(stray: Stray) -> int | None:
    """The step in the name of an exit that ckptstore kept, or of a TTP directory."""
    if stray.kind is Kind.GRACEFUL_EXIT:
        named = parse_exit_name(Path(stray.path).name)
        return None if named is None else named.global_step
    directory = parse_ttp_directory(Path(stray.path).parents[1].name)
    return None if directory is None else directory.step
