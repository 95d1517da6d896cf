"""Saves with their files counted: what `list` and `runs` show."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog.any_of import any_of, one_of
from ckptstore.catalog.tables import FILES, FILES_OF_LAUNCHES, IS_THERE, checkpoints, copies, launches, saves, sources
from ckptstore.core.groups import grouped
from ckptstore.core.metrics import mean_metrics
from ckptstore.core.model import Content, FileState, Grade, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from ckptstore.core.model import Launch

_IN_PIECES = Content.SHARE.value, Content.PART.value


@dataclass(frozen=True)
class Tally:
    """Counts of the present files of one save.

    `ranks` have any file, `full_ranks` a complete one of the full state, `share_ranks` a complete share or part.
    `lost_parts` are the recorded parts that are not complete at one of their paths.
    """

    save_id: str
    run_id: int
    launch: str
    kind: Kind
    global_step: int
    epoch: int | None
    step_in_epoch: int | None
    files: int
    ranks: int
    full_ranks: int
    share_ranks: int
    lost_parts: int
    quarantined: bool
    bytes: int
    created_at: datetime


def highest_steps(connection: sa.Connection, run: int) -> dict[str, int]:
    """The launches of a run, and the highest step that each has a save of (0: none)."""
    return {row[0]: row[1] for row in connection.execute(_HIGHEST_STEPS, {"own_run": run})}


# As a subquery for each launch, the index finds the step among any number of saves.
_HIGHEST = sa.select(sa.func.max(saves.c.global_step)).where(saves.c.launch_id == launches.c.id).scalar_subquery()
_HIGHEST_STEPS = sa.select(launches.c.name, sa.func.coalesce(_HIGHEST, 0)).where(
    launches.c.run_id == sa.bindparam("own_run")
)


def tallies(connection: sa.Connection, runs: Sequence[int], step: int | None = None) -> list[Tally]:
    """The saves of these runs, or of one step of them, with their present files counted; newest launch first.

    A save without a present file is left out, unless its launch has copies.
    """
    query = _tallies().where(any_of(launches.c.run_id, "own_runs"))
    if step is not None:
        query = query.where(saves.c.global_step == step)
    return [_tally(row) for row in connection.execute(query, {"own_runs": list(runs)})]


def tallies_of(connection: sa.Connection, ids: Sequence[str]) -> list[Tally]:
    """The same for the saves with these ids."""
    query = _tallies().where(any_of(saves.c.id, "own_ids"))
    return [_tally(row) for row in connection.execute(query, {"own_ids": list(ids)})]


@cache
def _tallies() -> sa.Select[Any]:
    complete = checkpoints.c.state == FileState.COMPLETE.value
    full = complete & (checkpoints.c.content == Content.FULL.value)
    share = complete & one_of(checkpoints.c.content, *_IN_PIECES)
    lost = (checkpoints.c.content == Content.PART.value) & ~complete
    files = sa.func.sum(sa.case((IS_THERE, 1), else_=0))
    has_copies = sa.exists().where(copies.c.launch_id == launches.c.id)
    return (
        sa.select(
            saves.c.id,
            launches.c.run_id,
            launches.c.name,
            saves.c.kind,
            saves.c.global_step,
            saves.c.created_at,
            sa.func.max(checkpoints.c.epoch),
            sa.func.max(checkpoints.c.step_in_epoch),
            files,
            sa.func.count(sa.distinct(sa.case((IS_THERE, checkpoints.c.rank)))),
            sa.func.count(sa.distinct(sa.case((full, checkpoints.c.rank)))),
            sa.func.count(sa.distinct(sa.case((share, checkpoints.c.rank)))),
            sa.func.sum(sa.case((lost, 1), else_=0)),
            sa.func.count(checkpoints.c.quarantine),
            sa.func.sum(sa.case((IS_THERE, sa.func.coalesce(checkpoints.c.size, 0)), else_=0)),
        )
        .select_from(FILES_OF_LAUNCHES)
        .group_by(saves.c.id, launches.c.id, launches.c.run_id, launches.c.name, launches.c.launch_order)
        .having((files > 0) | has_copies)
        .order_by(launches.c.launch_order.desc(), saves.c.global_step.desc(), saves.c.kind)
    )


class Said(NamedTuple):
    """Facts about a save: the fault of its state (empty: none), and its metrics, means over the ranks.

    `grade` is how sure its step is if a scan found it (None: it was registered), `doubt` the open question about it;
    both are of rank 0.
    """

    quarantine: str
    metrics: Mapping[str, float]
    grade: Grade | None
    doubt: str


def said(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Said]:
    """Facts about these saves, by their ids."""
    found: dict[str, Said] = {}
    measured: dict[str, list[Mapping[str, float]]] = {}
    for save_id, rank, quarantine, metrics, grade, doubt in connection.execute(_SAID, {"own_ids": list(ids)}):
        before = found.get(save_id, Said("", {}, None, ""))
        measured.setdefault(save_id, []).append(metrics)
        found[save_id] = Said(
            before.quarantine or quarantine or "",
            {},
            before.grade or (Grade(grade) if grade and rank == 0 else None),
            before.doubt or (doubt if rank == 0 else "") or "",
        )
    return {save_id: each._replace(metrics=mean_metrics(measured[save_id])) for save_id, each in found.items()}


_SAID = sa.select(
    checkpoints.c.save_id,
    checkpoints.c.rank,
    checkpoints.c.quarantine,
    checkpoints.c.metrics,
    checkpoints.c.grade,
    checkpoints.c.doubt,
).where(
    any_of(checkpoints.c.save_id, "own_ids"),
    (checkpoints.c.rank == 0)
    | checkpoints.c.quarantine.is_not(None)
    | (sa.cast(checkpoints.c.metrics, sa.Text) != "{}"),
)


def states_of_ranks(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[tuple[int, FileState, Content]]]:
    """The rank, state and content of each file of these saves, by the saves' ids."""
    found = connection.execute(_STATES_OF_RANKS, {"own_ids": list(ids)}) if ids else ()
    return grouped((save_id, (rank, FileState(state), Content(content))) for save_id, rank, state, content in found)


_STATES_OF_RANKS = sa.select(
    checkpoints.c.save_id, checkpoints.c.rank, checkpoints.c.state, checkpoints.c.content
).where(any_of(checkpoints.c.save_id, "own_ids"))


def with_lost_parts(connection: sa.Connection, ids: Sequence[str]) -> set[str]:
    """Of these saves, by their ids, those with parts that are complete in none of their directories together."""
    named: dict[str, set[str]] = defaultdict(set)
    complete: dict[tuple[str, str], set[str]] = defaultdict(set)
    for save_id, path, state in connection.execute(_PARTS, {"own_ids": list(ids)}) if ids else ():
        directory, _, name = path.rpartition("/")
        named[save_id].add(name)
        complete[save_id, directory].update([name] if state == FileState.COMPLETE.value else [])
    return named.keys() - {save_id for (save_id, _), there in complete.items() if there == named[save_id]}


_PARTS = sa.select(checkpoints.c.save_id, checkpoints.c.path, checkpoints.c.state).where(
    any_of(checkpoints.c.save_id, "own_ids"), checkpoints.c.content == Content.PART.value
)


def has_been_whole(connection: sa.Connection, launch: Launch) -> bool:
    """Whether a launch has ever saved a whole state, whatever became of its files."""
    full = checkpoints.c.content == Content.FULL.value
    share = one_of(checkpoints.c.content, *_IN_PIECES)
    of_launch = (saves.c.launch_id == launch.key) & (saves.c.global_step > 0)
    finished = of_launch & checkpoints.c.size.is_not(None)
    counts = (sa.func.count(sa.distinct(sa.case((each, checkpoints.c.rank)))) for each in (full, share))
    counted = sa.select(saves.c.global_step, *counts).select_from(FILES).where(finished).group_by(saves.c.global_step)
    full_ranks = sa.select(saves.c.global_step, checkpoints.c.rank).distinct().select_from(FILES).where(finished, full)
    steps = sorted(connection.execute(sa.select(saves.c.global_step).distinct().where(of_launch)).scalars())
    # The first step, then twice as many each time: most launches begin with a whole state, others never have one.
    portion = 1
    while steps:
        is_asked = saves.c.global_step.between(steps[0], steps[:portion][-1])
        found = connection.execute(counted.where(is_asked)).all()
        if any(launch.world_size in ranks for _, *ranks in found):
            return True
        if any(of_full for _, of_full, _ in found):
            ranks = grouped((step, rank) for step, rank in connection.execute(full_ranks.where(is_asked)))
            if any(launch.layout.covers(each, launch.world_size) for each in ranks.values()):
                return True
        steps, portion = steps[portion:], 2 * portion
    return False


def newest_of_all_ranks(connection: sa.Connection, launch: Launch) -> int | None:
    """The newest step of a launch of which as many ranks as save have a complete file; None if there is none.

    The ranks that announced periodic saves save, or all if none did. Files of weights alone do not count.
    """
    has_state = sources.c.content.is_distinct_from(Content.WEIGHTS.value)  # NULL: the whole state
    announced = sa.select(sa.func.count(sa.distinct(sources.c.rank)))
    announced = announced.where(sources.c.launch_id == launch.key, sources.c.kind == Kind.PERIODIC.value, has_state)
    ranks = connection.execute(announced).scalar_one() or launch.world_size
    query = (
        sa.select(saves.c.global_step)
        .join(checkpoints, checkpoints.c.save_id == saves.c.id)
        .where(
            saves.c.launch_id == launch.key,
            checkpoints.c.state == FileState.COMPLETE.value,
            checkpoints.c.content != Content.WEIGHTS.value,
        )
        .group_by(saves.c.global_step)
        .having(sa.func.count(sa.distinct(checkpoints.c.rank)) >= ranks)
        .order_by(saves.c.global_step.desc())
        .limit(1)
    )
    return connection.execute(query).scalar()


def _tally(row: Any) -> Tally:
    save_id, run_id, launch, kind, step, created_at, epoch, step_in_epoch, *counts = row
    files, ranks, full_ranks, share_ranks, lost_parts, quarantined, size = map(int, counts)
    return Tally(
        save_id=save_id,
        run_id=run_id,
        launch=launch,
        kind=Kind(kind),
        global_step=step,
        epoch=epoch,
        step_in_epoch=step_in_epoch,
        files=files,
        ranks=ranks,
        full_ranks=full_ranks,
        share_ranks=share_ranks,
        lost_parts=lost_parts,
        quarantined=quarantined > 0,
        bytes=size,
        created_at=created_at,
    )


def steps_saved(connection: sa.Connection, run: int) -> dict[str, int]:
    """The number of steps of which each launch of a run has finished a file, on any rank.

    Files of weights alone do not count. Launches without such a file are left out.
    """
    return {row[0]: row[1] for row in connection.execute(_STEPS_SAVED, {"own_run": run})}


_STEPS_SAVED = (
    sa.select(launches.c.name, sa.func.count(saves.c.global_step.distinct()))
    .select_from(FILES_OF_LAUNCHES)
    .where(
        launches.c.run_id == sa.bindparam("own_run"),
        saves.c.global_step > 0,
        one_of(checkpoints.c.content, Content.FULL.value, *_IN_PIECES),
        checkpoints.c.size.is_not(None),
    )
    .group_by(launches.c.id)
)
