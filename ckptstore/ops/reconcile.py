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
    from collections.abc import Iterator, Mapping

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
    known: Mapping[str, list[Checkpoint]]
    parents: Mapping[str, tuple[Checkpoint, ...]]


def reconcile(database: Database, run_id: int, *, only: tuple[str, int] | None = None) -> Reconciled:
    """Adopt what is on disk and unknown, finish what was in progress, mark what is gone. Can be repeated.

    `only` names one launch and rank to do it for (None: every rank of the launches since the last reconciliation).
    """
    facts = _gather(database, run_id, only)
    adopted: list[Checkpoint] = []
    vanished: list[Checkpoint] = []
    skipped: list[Skipped] = []
    for source in facts.sources:
        try:
            names = files.names_in(source.directory)
        except OSError as error:
            skipped.append(Skipped(source.directory, error.strerror or str(error)))
            continue
        for outcome in _strays(source, names, facts):
            (skipped if isinstance(outcome, Skipped) else adopted).append(outcome)  # type: ignore[arg-type]
        finished, gone = _changed(source, names, facts)
        adopted += finished
        vanished += gone
    if adopted:
        register.record(database, adopted)
    if vanished:
        register.mark_missing(database, vanished)
    return Reconciled(tuple(adopted), tuple(vanished), tuple(skipped))


def _gather(database: Database, run_id: int, only: tuple[str, int] | None) -> _Facts:
    with database.read() as connection:
        launches = {launch.id: launch for launch in reads.launches_of(connection, run_id)}
        every = [
            source
            for source in reads.sources_of(connection, run_id)
            if only is None or (source.launch, source.rank) == only
        ]
        recent = _recent(launches, every)
        return _Facts(
            launches=launches,
            sources=tuple(source for source in every if source.launch in recent),
            endings=reads.endings_of(connection, run_id),
            known=reads.known_paths(connection, recent),
            parents={
                launch_id: reads.files_at(connection, parent, step)
                for launch_id in recent
                if (parent := launches[launch_id].parent) is not None
                and (step := launches[launch_id].parent_step) is not None
            },
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


def _strays(source: Source, names: frozenset[str], facts: _Facts) -> Iterator[Checkpoint | Skipped]:
    """The files that this rank of this launch wrote and that the catalog does not know."""
    for name in sorted(names):
        parsed = parse_name(name)
        path = str(Path(source.directory) / name)
        if parsed is None or path in facts.known or not _wrote(source, name, parsed):
            continue
        if parsed.format != "ckpt":
            yield Skipped(path, "nobody registered it, and its name alone does not prove its step")
            continue
        try:
            yield _adopt(source, path, parsed, facts)
        except UnreadableError as error:
            yield Skipped(path, str(error))
        except OSError as error:
            yield Skipped(path, error.strerror or str(error))


def _wrote(source: Source, name: str, parsed: CheckpointName) -> bool:
    if parsed.is_breakpoint:
        return is_numbered(parsed.prefix, source.breakpoint_prefix) and name not in source.breakpoints_before
    return parsed.prefix == source.prefix


def _adopt(source: Source, path: str, parsed: CheckpointName, facts: _Facts) -> Checkpoint | Skipped:
    """The record of a file that nobody registered; its step is what can be proved, never what the name says alone."""
    launch = facts.launches[source.launch]
    header = read_ckpt(Path(path))
    step = _step(launch, source, parsed, header.optimizer_step, facts)
    if step is None:
        return Skipped(path, "its name, its optimizer's step and the launch's history contradict each other")
    file = register.measured(
        register.describe(
            launch,
            rank=source.rank,
            path=path,
            kind=Kind.DYING_GASP if parsed.is_breakpoint else Kind.PERIODIC,
            global_step=step,
            optimizer_step=header.optimizer_step,
        )
    )
    return file or Skipped(path, "it changed while it was read")


def _step(
    launch: Launch, source: Source, parsed: CheckpointName, optimizer_step: int | None, facts: _Facts
) -> int | None:
    ending = facts.endings.get((launch.id, source.rank))
    if parsed.is_breakpoint and ending is not None and ending.optimizer_step == optimizer_step:
        return ending.global_step
    if optimizer_step is None or launch.steps_per_epoch is None:
        return None
    return unwitnessed_step(
        parsed,
        steps_per_epoch=launch.steps_per_epoch,
        base_step=launch.parent_step or 0,
        optimizer_step=optimizer_step,
        lag=_lag(launch, facts),
    )


def _lag(launch: Launch, facts: _Facts) -> int:
    """How far the optimizer's counter was behind in the newest state that was witnessed: skipped updates."""
    own = [file for known in facts.known.values() for file in known if file.launch == launch.id]
    witnessed = [file for file in (*own, *facts.parents.get(launch.id, ())) if file.optimizer_step is not None]
    newest = max(witnessed, key=lambda file: file.global_step, default=None)
    return 0 if newest is None or newest.optimizer_step is None else newest.global_step - newest.optimizer_step


def _changed(source: Source, names: frozenset[str], facts: _Facts) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """Of the files known to be in this directory: those finished or back again, and those gone."""
    finished: list[Checkpoint] = []
    gone: list[Checkpoint] = []
    for path, versions in facts.known.items():
        if str(Path(path).parent) != source.directory:
            continue
        there = Path(path).name in names
        for file in versions:
            if file.rank != source.rank or file.launch != source.launch:
                continue
            if file.state is FileState.COMPLETE and not there:
                gone.append(file)
            elif there and file.state is FileState.IN_PROGRESS:
                finished += [whole for whole in [register.measured(file)] if whole is not None]
            elif there and file.state is FileState.MISSING and _is_back(file):
                finished.append(replace(file, state=FileState.COMPLETE))
    return finished, gone


def _is_back(file: Checkpoint) -> bool:
    try:
        found = files.facts(file.path)
    except OSError:
        return False
    return found is not None and (found.size, found.mtime_ns) == (file.size, file.mtime_ns)
