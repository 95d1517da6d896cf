"""Makes the records that can be proved of files which nobody registered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ckptstore.core.model import Checkpoint, Content, FileState, Kind, Skipped
from ckptstore.core.sighting import is_as_recorded
from ckptstore.disk import files
from ckptstore.errors import UnreadableError, UsageError
from ckptstore.evidence.contents import ContentsReader, cut
from ckptstore.evidence.witnesses import unwitnessed_step, witnessed_by_mindspore
from ckptstore.evidence.writers import (
    LaunchFacts,
    UnregisteredFile,
    before_rename,
    doubt_of,
    ended_with,
    unregistered_files,
)
from ckptstore.formats.inspect import read_checkpoint
from ckptstore.outside import Path
from ckptstore.resume import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.events import TrainingEnded
    from ckptstore.core.model import Launch, Source
    from ckptstore.disk.files import FileFacts
    from ckptstore.formats.header import Header


def adopt(
    database: Database,
    run_id: int,
    found: list[UnregisteredFile],
    gone: Iterable[Checkpoint],
    facts: LaunchFacts,
    *,
    recorded: Mapping[str, Sequence[Checkpoint]],
) -> Iterator[Checkpoint | Skipped]:
    """The records of these files: of one that is back or was only moved the one it had; of another a new one.

    `recorded` is what the catalog has of their paths, and of those that files of TTP had before.
    """
    reader = ContentsReader()
    moved: dict[tuple[str, int, int | None, int | None], list[Checkpoint]] = {}
    for file in gone:
        moved.setdefault((file.launch, file.rank, file.size, file.mtime_ns), []).append(file)
    for new in found:
        records = recorded.get(new.path, ())
        if not all(file.state in (FileState.MISSING, FileState.MOVED, FileState.TRASHED) for file in records):
            continue
        try:
            here = files.facts(new.path)
        except OSError as error:
            yield Skipped(new.path, error.strerror or str(error))
            continue
        if here is None:
            continue
        back = [file for file in records if file.size is not None and is_as_recorded(file, here.size, here.mtime_ns)]
        gone_here = moved.get((new.source.launch, new.source.rank, here.size, here.mtime_ns), [])
        is_copy = bool(back) and not gone_here and all(file.state is FileState.MOVED for file in back)
        if is_copy or any(file.state is FileState.TRASHED for file in back):  # the latter gc has still to move
            continue
        before = recorded.get(before_rename(new.path), ())
        others = [
            file
            for file in before
            if file.launch_key != new.source.launch_key and is_as_recorded(file, here.size, here.mtime_ns)
        ]
        if others and not back:
            yield _of_another_launch(new, others[0])
            continue
        likely = back or gone_here
        try:
            same = _same(new.path, likely)
        except OSError as error:
            yield Skipped(new.path, error.strerror or str(error))
            continue
        if same is not None:
            yield replace(same, path=new.path, state=FileState.COMPLETE)
        else:
            replaced = bool(before) and not any(is_as_recorded(file, here.size, here.mtime_ns) for file in before)
            expected = partial(register.parameters_of, database, run_id, new.source.rank, but=new.path)
            yield _adopted(new, here, facts, reader, expected, replaced=replaced)


def _of_another_launch(new: UnregisteredFile, file: Checkpoint) -> Checkpoint | Skipped:
    """The record of a file that its launch left in a directory of TTP, which a later one renamed: it is there now."""
    try:
        is_moved = files.facts(file.path) is None
    except OSError:
        is_moved = False
    if is_moved and file.state in (FileState.COMPLETE, FileState.MISSING):
        return replace(file, path=new.path, state=FileState.COMPLETE)
    return Skipped(new.path, f"it is what launch {file.launch} wrote to {file.path}")


def left_at(
    ending: TrainingEnded, launch: Launch, sources: Sequence[Source], known: Iterable[str], expected: frozenset[str]
) -> list[Checkpoint]:
    """The records of the breakpoints that a rank left when its training ended so, told by the rank itself.

    Nobody else is asked: it knows its `sources` and what it has registered in them (`known`). `expected` are the
    parameters that a whole file has. Raises `OSError` where a directory cannot be listed.
    """
    told = LaunchFacts({launch.key: launch}, {(launch.key, ending.rank): ending}, {launch.key: 0}, {}, {})
    found: dict[str, Checkpoint] = {}
    reader = ContentsReader()
    for source in sources:
        names = {source.directory: files.names_in(source.directory)}
        for new in unregistered_files(source, names, {*known, *found}):
            here = files.facts(new.path) if new.is_breakpoint else None
            record = (
                _adopted(new, here, told, reader, lambda **_: expected, replaced=False) if here is not None else None
            )
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


def _adopted(
    new: UnregisteredFile,
    here: FileFacts,
    facts: LaunchFacts,
    reader: ContentsReader,
    expected: Callable[..., frozenset[str]],
    *,
    replaced: bool,
) -> Checkpoint | Skipped:
    """The record of a file that nobody registered; its step is what can be proved, never what the name says alone.

    `expected` tells which parameters others of its kind have. `replaced`: it is another one than was recorded of its
    place before the directory was renamed.
    """
    launch = facts.launches[new.source.launch_key]
    told = Content.FULL  # at an exception, an exit or a fault the whole state is written
    if new.kind is Kind.PERIODIC:
        told = new.source.content or facts.contents.get((new.source.launch_key, new.source.rank)) or Content.FULL
    read = reader.read(new.path, told, launch.key)
    if isinstance(read, Skipped):
        return read
    header = read.header
    doubt = ""
    if read.content is not Content.WEIGHTS:
        doubt = cut(header, expected(share_of=launch.key if read.content is Content.SHARE else None))
    doubt = doubt or doubt_of(new, header, here, facts, replaced=replaced)
    step = None if doubt else _step(launch, new, header, facts)
    if step is None:
        return Skipped(new.path, doubt or "its name, what is in it and the launch's history do not agree on its step")
    try:
        described = register.describe(
            launch,
            rank=new.source.rank,
            path=new.path,
            kind=new.kind,
            global_step=step,
            optimizer_step=header.optimizer_step,
            content=read.content,
            quarantine=_quarantine(new, step, facts),
        )
        return register.measured(described) or Skipped(new.path, "it changed while it was read")
    except UsageError as error:
        return Skipped(new.path, str(error))
    except OSError as error:
        return Skipped(new.path, error.strerror or str(error))


def _step(launch: Launch, new: UnregisteredFile, header: Header, facts: LaunchFacts) -> int | None:
    lag = facts.lags[launch.key]
    if new.kind in (Kind.GRACEFUL_EXIT, Kind.TTP):
        return witnessed_by_mindspore(
            header.info.get("step_num"), new.named_step, optimizer_step=header.optimizer_step, lag=lag
        )
    ending = facts.ending_of(new.source)
    if new.is_breakpoint and ending is not None and ended_with(new.source, new, header, facts):
        return ending.global_step
    if new.name is None or header.optimizer_step is None or launch.steps_per_epoch is None:
        return None
    return unwitnessed_step(
        new.name,
        steps_per_epoch=launch.steps_per_epoch,
        base_step=launch.start_step or 0,
        optimizer_step=header.optimizer_step,
        lag=lag,
    )


def _quarantine(new: UnregisteredFile, step: int, facts: LaunchFacts) -> str:
    ending = facts.ending_of(new.source)
    return ending.quarantine if ending is not None and ending.global_step == step else ""
