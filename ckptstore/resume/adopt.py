"""Files on disk that the catalog does not know, and the records that can be proved of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.core.model import Checkpoint, Content, FileState, Kind
from ckptstore.core.naming import CheckpointName, parse_exit_name, parse_name, parse_ttp_directory
from ckptstore.core.steps import unwitnessed_step, witnessed_by_mindspore
from ckptstore.errors import UnreadableError, UsageError
from ckptstore.formats.inspect import read_checkpoint
from ckptstore.formats.safetensors import SafetensorsHeader
from ckptstore.ops import register
from ckptstore.ops.authorship import doubt_of, ended_with, wrote
from ckptstore.ops.ttp_directories import before_rename
from ckptstore.storage import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

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
    `sources` where all launches save, by directory; `contents` what a rank's periodic files hold, where its sources do
    not tell; `heard_of` which launches have registered anything.
    """

    launches: Mapping[str, Launch]
    endings: Mapping[tuple[str, int], Ending]
    lags: Mapping[str, int]
    sources: Mapping[str, Sequence[Source]]
    contents: Mapping[tuple[str, int], Content]
    heard_of: AbstractSet[str] = frozenset()


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

    `recorded` is what the catalog has of their paths, and of those that files of TTP had before.
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
        before = recorded.get(before_rename(stray.path), ())
        others = [file for file in before if file.launch != stray.source.launch and _is_as_recorded(file, here)]
        if others and not back:
            yield _of_another_launch(stray, others[0])
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
            replaced = bool(before) and not any(_is_as_recorded(file, here) for file in before)
            expected = partial(register.parameters_of, database, run_id, stray.source.rank, but=stray.path)
            yield _adopted(stray, here, history, expected, replaced=replaced)


def _is_as_recorded(file: Checkpoint, here: FileFacts) -> bool:
    return file.mtime_ns == here.mtime_ns and file.size in (None, here.size)


def _of_another_launch(stray: Stray, file: Checkpoint) -> Checkpoint | Skipped:
    """The record of a file that its launch left in a directory of TTP, which a later one renamed: it is there now."""
    try:
        is_moved = files.facts(file.path) is None
    except OSError:
        is_moved = False
    if is_moved and file.state in (FileState.COMPLETE, FileState.MISSING):
        return replace(file, path=stray.path, state=FileState.COMPLETE)
    return Skipped(stray.path, f"it is what launch {file.launch} wrote to {file.path}")


def left_at(
    ending: Ending, launch: Launch, sources: Sequence[Source], known: Iterable[str], expected: frozenset[str]
) -> list[Checkpoint]:
    """The records of the breakpoints that a rank left when its training ended so, told by the rank itself.

    Nobody else is asked: it knows its `sources` and what it has registered in them (`known`). `expected` are the
    parameters that a whole file has. Raises `OSError` where a directory cannot be listed.
    """
    told = History({launch.id: launch}, {(ending.launch, ending.rank): ending}, {launch.id: 0}, {}, {})
    found: dict[str, Checkpoint] = {}
    for source in sources:
        for stray in strays(source, {source.directory: files.names_in(source.directory)}, {*known, *found}):
            here = files.facts(stray.path) if stray.is_breakpoint else None
            record = _adopted(stray, here, told, lambda **_: expected, replaced=False) if here is not None else None
            if isinstance(record, Checkpoint) and record.optimizer_step == ending.optimizer_step:
                found[record.path] = record
    return list(found.values())


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


def _content(stray: Stray, header: Header, history: History) -> Content:
    """What a file holds; one that is written at an exception, an exit or a fault, the whole state."""
    if stray.kind is not Kind.PERIODIC:
        return Content.FULL
    if isinstance(header, SafetensorsHeader) and header.is_share:
        return Content.SHARE
    told = stray.source.content or history.contents.get((stray.source.launch, stray.source.rank))
    return told or Content.FULL


def _adopted(
    stray: Stray, here: FileFacts, history: History, expected: Callable[..., frozenset[str]], *, replaced: bool
) -> Checkpoint | Skipped:
    """The record of a file that nobody registered; its step is what can be proved, never what the name says alone.

    `expected` tells which parameters others of its kind have. `replaced`: it is another one than was recorded of its
    place before the directory was renamed.
    """
    launch = history.launches[stray.source.launch]
    try:
        header = read_checkpoint(Path(stray.path))
        content = _content(stray, header, history)
        others = (
            frozenset()
            if content is Content.WEIGHTS
            else expected(share_of=launch.id if content is Content.SHARE else None)
        )
        lacking = sorted(others.difference(entry.name for entry in header.entries))
        if lacking:
            return Skipped(stray.path, f"it lacks {lacking[0]!r}, which other files of its rank have: it may be cut")
        doubt = doubt_of(stray, header, here, history, replaced=replaced)
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
            content=content,
            quarantine=_quarantine(stray, step, history),
        )
        return register.measured(described) or Skipped(stray.path, "it changed while it was read")
    except (UnreadableError, UsageError) as error:
        return Skipped(stray.path, str(error))
    except OSError as error:
        return Skipped(stray.path, error.strerror or str(error))


def _step(launch: Launch, stray: Stray, header: Header, history: History) -> int | None:
    lag = history.lags[launch.id]
    if stray.kind in (Kind.GRACEFUL_EXIT, Kind.TTP):
        return witnessed_by_mindspore(
            header.info.get("step_num"), _named_step(stray), optimizer_step=header.optimizer_step, lag=lag
        )
    ending = history.endings.get((launch.id, stray.source.rank))
    if stray.is_breakpoint and ending is not None and ended_with(stray.source, stray, header, history):
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
