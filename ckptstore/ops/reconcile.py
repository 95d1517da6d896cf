"""Bring the catalog up to what is on disk, before deciding where a run goes on.

A process that dies leaves files that nobody registered: the breakpoint that MindSpore writes after the callbacks
are gone, a file whose registration was under way. And files vanish: MindSpore's own retention, or a person.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.model import Checkpoint, FileState, Kind
from ckptstore.core.naming import CheckpointName, is_numbered, parse_name
from ckptstore.core.steps import unwitnessed_step
from ckptstore.errors import UnreadableError
from ckptstore.formats.ckpt import read_ckpt
from ckptstore.ops import register
from ckptstore.storage import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.reads import Ending, Source
    from ckptstore.core.model import Launch


@dataclass(frozen=True)
class Skipped:
    """A path that was not taken into the catalog, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Reconciled:
    """What a reconciliation changed, and what it could not."""

    adopted: tuple[Checkpoint, ...] = ()
    vanished: tuple[Checkpoint, ...] = ()
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class _Facts:
    """What the catalog knows of the launches that may have left something behind."""

    launches: Mapping[str, Launch]
    sources: tuple[Source, ...]
    endings: Mapping[tuple[str, int], Ending]
    live: Mapping[tuple[str, int], list[Checkpoint]]
    lags: Mapping[str, int]


def reconcile(database: Database, run_id: int, *, only: tuple[str, int] | None = None) -> Reconciled:
    """Adopt what is on disk and unknown, finish what was in progress, mark what is gone. Can be repeated.

    `only` names one launch and rank to do it for (None: every rank of the launches since the last reconciliation).
    """
    facts = _gather(database, run_id, only)
    outcomes: list[Checkpoint | Skipped] = []
    vanished: list[Checkpoint] = []
    strays: list[_Stray] = []
    for source in facts.sources:
        try:
            names = files.names_in(source.directory)
        except OSError as error:
            outcomes.append(Skipped(source.directory, error.strerror or str(error)))
            continue
        live = {file.path: file for file in facts.live.get((source.launch, source.rank), ())}
        here = {Path(path).name: file for path, file in live.items() if str(Path(path).parent) == source.directory}
        vanished += [file for name, file in here.items() if name not in names and file.state is FileState.COMPLETE]
        waiting = (file for name, file in here.items() if name in names and file.state is FileState.IN_PROGRESS)
        outcomes += [_finished(file) for file in waiting]
        strays += _strays(source, names.difference(here))
    outcomes += _take_in(database, strays, facts)
    adopted = tuple(outcome for outcome in outcomes if isinstance(outcome, Checkpoint))
    if adopted:
        register.record(database, adopted)
    if vanished:
        register.mark_missing(database, vanished)
    return Reconciled(adopted, tuple(vanished), tuple(outcome for outcome in outcomes if isinstance(outcome, Skipped)))


def _gather(database: Database, run_id: int, only: tuple[str, int] | None) -> _Facts:
    with database.read() as connection:
        launches = {launch.id: launch for launch in reads.launches_of(connection, run_id)}
        every = [
            source
            for source in reads.sources_of(connection, run_id)
            if only is None or (source.launch, source.rank) == only
        ]
        recent = _recent(launches, every)
        live: dict[tuple[str, int], list[Checkpoint]] = {}
        for file in reads.live_files(connection, recent):
            live.setdefault((file.launch, file.rank), []).append(file)
        return _Facts(
            launches=launches,
            sources=tuple(source for source in every if source.launch in recent),
            endings=reads.endings_of(connection, run_id),
            live=live,
            lags={launch_id: reads.lag(connection, launches[launch_id]) for launch_id in recent},
        )


def _recent(launches: Mapping[str, Launch], sources: list[Source]) -> set[str]:
    """The launches since the last one that reconciled: one that asked where to start had done so before."""
    recent: set[str] = set()
    saving = {source.launch for source in sources}
    for launch in sorted(launches.values(), key=lambda launch: launch.order, reverse=True):
        if launch.id in saving:
            recent.add(launch.id)
            if launch.decided:
                break
    return recent


@dataclass(frozen=True)
class _Stray:
    """A file that a rank of a launch wrote, by its name, and that is not among the live ones of the catalog."""

    source: Source
    path: str
    name: CheckpointName


def _strays(source: Source, names: Iterable[str]) -> Iterator[_Stray]:
    for name in sorted(names):
        parsed = parse_name(name)
        if parsed is not None and _wrote(source, name, parsed):
            yield _Stray(source, str(Path(source.directory) / name), parsed)


def _take_in(database: Database, strays: list[_Stray], facts: _Facts) -> Iterator[Checkpoint | Skipped]:
    """The records of these files: of those that are back, as they were; of those that nobody registered, new ones."""
    with database.read() as connection:
        known = reads.files_at_paths(connection, [stray.path for stray in strays])
    for stray in strays:
        records = known.get(stray.path, [])
        back = next((file for file in records if file.state is FileState.MISSING and _is_back(file)), None)
        if back is not None:
            yield replace(back, state=FileState.COMPLETE)
        elif all(file.state is FileState.MISSING for file in records):
            yield _adopt(stray, facts)


def _wrote(source: Source, name: str, parsed: CheckpointName) -> bool:
    if parsed.is_breakpoint:
        return is_numbered(parsed.prefix, source.breakpoint_prefix) and name not in source.breakpoints_before
    return parsed.prefix == source.prefix


def _adopt(stray: _Stray, facts: _Facts) -> Checkpoint | Skipped:
    """The record of a file that nobody registered; its step is what can be proved, never what the name says alone."""
    if stray.name.format != "ckpt":
        return Skipped(stray.path, "nobody registered it, and its name alone does not prove its step")
    launch = facts.launches[stray.source.launch]
    try:
        header = read_ckpt(Path(stray.path))
        step = _step(launch, stray, header.optimizer_step, facts)
        if step is None:
            return Skipped(stray.path, "its name, its optimizer's step and the launch's history contradict each other")
        described = register.describe(
            launch,
            rank=stray.source.rank,
            path=stray.path,
            kind=Kind.DYING_GASP if stray.name.is_breakpoint else Kind.PERIODIC,
            global_step=step,
            optimizer_step=header.optimizer_step,
        )
        return register.measured(described) or Skipped(stray.path, "it changed while it was read")
    except UnreadableError as error:
        return Skipped(stray.path, str(error))
    except OSError as error:
        return Skipped(stray.path, error.strerror or str(error))


def _step(launch: Launch, stray: _Stray, optimizer_step: int | None, facts: _Facts) -> int | None:
    ending = facts.endings.get((launch.id, stray.source.rank))
    if stray.name.is_breakpoint and ending is not None and ending.optimizer_step == optimizer_step:
        return ending.global_step
    if optimizer_step is None or launch.steps_per_epoch is None:
        return None
    return unwitnessed_step(
        stray.name,
        steps_per_epoch=launch.steps_per_epoch,
        base_step=launch.parent_step or 0,
        optimizer_step=optimizer_step,
        lag=facts.lags[launch.id],
    )


def _finished(file: Checkpoint) -> Checkpoint | Skipped:
    """The whole record of a file that was in progress when it was recorded, and is there now."""
    try:
        whole = register.measured(file, prove_step=True)
    except OSError as error:
        return Skipped(file.path, error.strerror or str(error))
    return whole or Skipped(file.path, "it is being written, or holds another step")


def _is_back(file: Checkpoint) -> bool:
    try:
        found = files.facts(file.path)
    except OSError:
        return False
    return found is not None and (found.size, found.mtime_ns) == (file.size, file.mtime_ns)
