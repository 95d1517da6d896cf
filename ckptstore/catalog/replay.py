"""What journals say, put into the catalog; and how far each was read. Everything here may be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ckptstore.catalog import reads, rows
from ckptstore.catalog.among import among
from ckptstore.catalog.given_up import set_if_another, state_but_trashed
from ckptstore.catalog.tables import (
    checkpoints,
    endings,
    journals,
    launches,
    leases,
    outcomes,
    pins,
    policies,
    removals,
    resolutions,
    runs,
    tags,
)
from ckptstore.catalog.writes import add_run, insert, insert_if_new, put_saves, row_of, store_resolution

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from ckptstore.core.model import Checkpoint, Launch


TAG, POLICY = "tag", "policy"


class TakenUp(NamedTuple):
    """Up to which byte a journal was taken up, and its head (None: not known)."""

    end: int
    head: str | None


def journals_of(connection: sa.Connection, run: int) -> dict[str, TakenUp]:
    """The journals that tell of a run, and how far each was taken up."""
    query = sa.select(journals.c.path, journals.c.taken_up, journals.c.head).where(journals.c.run_id == run)
    return {path: TakenUp(end, head) for path, end, head in rows.many(connection.execute(query))}


def every_journal(connection: sa.Connection) -> dict[str, dict[str, TakenUp]]:
    """The journals of every run by its name, and how far each was taken up."""
    query = sa.select(runs.c.name, journals.c.path, journals.c.taken_up, journals.c.head).join(journals)
    found: dict[str, dict[str, TakenUp]] = {}
    for name, path, end, head in rows.many(connection.execute(query)):
        found.setdefault(name, {})[path] = TakenUp(end, head)
    return found


def taken_up(connection: sa.Connection, paths: Sequence[str]) -> dict[str, TakenUp]:
    """How far these journals were taken up, for every run that they tell of; unknown ones are left out."""
    lowest, head = sa.func.min(journals.c.taken_up), sa.func.max(journals.c.head)
    query = sa.select(journals.c.path, lowest, head).group_by(journals.c.path)
    found = connection.execute(query.where(among(connection, journals.c.path, paths)))
    return {row[0]: TakenUp(row[1], row[2]) for row in found}


def journals_named(connection: sa.Connection, names: AbstractSet[str]) -> set[str]:
    """The journals of any run that have one of these file names. It reads all journals' paths."""
    every = connection.execute(sa.select(journals.c.path).distinct()).scalars()
    return {path for path in every if path.rpartition("/")[2] in names}


def runs_told(connection: sa.Connection, paths: Sequence[str]) -> list[str]:
    """The names of the runs that these journals tell of."""
    told = sa.select(runs.c.name).distinct().join(journals).where(among(connection, journals.c.path, paths))
    return sorted(connection.execute(told).scalars())


def set_taken_up(connection: sa.Connection, ends: Mapping[str, TakenUp], run_ids: Mapping[str, Iterable[int]]) -> None:
    """Journals were read so far; `run_ids` says which runs each tells of."""
    for path, (end, head) in ends.items():
        connection.execute(journals.update().where(journals.c.path == path).values(taken_up=end, head=head))
    rows = [
        {"run_id": run, "path": path, "taken_up": end, "head": head}
        for path, (end, head) in ends.items()
        for run in run_ids.get(path, ())
    ]
    if rows:
        connection.execute(insert(connection, journals).on_conflict_do_nothing(), rows)


def went_on(connection: sa.Connection, run: str, path: str, begin: int, to: TakenUp) -> bool:
    """A journal has grown by what was just written to the catalog; False where the catalog lacks what is before it."""
    if begin == 0:
        run_id = sa.select(runs.c.id).where(runs.c.name == run).scalar_subquery()
        row = {"run_id": run_id, "path": path, "taken_up": to.end, "head": to.head}
        statement = insert(connection, journals).values(row)
        changed = {"taken_up": statement.excluded.taken_up, "head": statement.excluded.head}
        connection.execute(statement.on_conflict_do_update(index_elements=["run_id", "path"], set_=changed))
        return True
    place = {"own_run": run, "own_path": path, "own_begin": begin, "own_end": to.end, "own_head": to.head}
    return connection.execute(_WENT_ON, place).rowcount > 0


_END = sa.bindparam("own_end", type_=sa.BigInteger)
_WENT_ON = (
    journals.update()
    .where(
        journals.c.run_id == sa.select(runs.c.id).where(runs.c.name == sa.bindparam("own_run")).scalar_subquery(),
        journals.c.path == sa.bindparam("own_path"),
        journals.c.taken_up >= sa.bindparam("own_begin"),
        journals.c.head == sa.bindparam("own_head"),
    )
    .values(taken_up=sa.case((journals.c.taken_up > _END, journals.c.taken_up), else_=_END))
)
"""Built once: that takes longer than to run it."""


def put_launches(connection: sa.Connection, found: Iterable[Launch]) -> None:
    """Add the launches that are not there, in the order that they had; of others, what was not known of their data."""
    new: dict[str, list[Launch]] = {}
    for launch in {launch.id: launch for launch in found}.values():
        there = reads.launch(connection, launch.id)
        if there is None:
            new.setdefault(launch.run, []).append(launch)
        elif there.run == launch.run and (news := {name: value for name, value in _data(launch) if value is not None}):
            unknown = {name: news[name] for name, value in _data(there) if value is None and name in news}
            if unknown:
                connection.execute(launches.update().where(launches.c.id == launch.id).values(unknown))
    for run, some in new.items():
        run_id = add_run(connection, run, min(map(_began, some)))
        connection.execute(sa.select(runs.c.id).where(runs.c.id == run_id).with_for_update())  # launches are numbered
        _put_in_order(connection, run_id, some)


def _data(launch: Launch) -> list[tuple[str, int | None]]:
    """What is known of a launch's steps in its data."""
    return [(name, getattr(launch, name)) for name in ("steps_per_epoch", "batch_size", "shards")]


def _put_in_order(connection: sa.Connection, run_id: int, new: Sequence[Launch]) -> None:
    """Number new launches as they say; where two say the same, the one that began first, and those after it move up."""
    there = reads.launches_of(connection, run_id)
    ordered = sorted([*there, *new], key=lambda launch: (launch.order, _began(launch), launch.id))
    numbers: dict[str, int] = {}
    last = 0
    for launch in ordered:
        last = max(last + 1, launch.order)
        numbers[launch.id] = last
    moving = [launch for launch in there if numbers[launch.id] != launch.order]
    for sign in (-1, 1):  # first out of the way: a number is never used twice
        for launch in moving:
            chosen = launches.c.id == launch.id
            connection.execute(launches.update().where(chosen).values(launch_order=sign * numbers[launch.id]))
    rows = [
        {
            "id": launch.id,
            "run_id": run_id,
            "launch_order": numbers[launch.id],
            "world_size": launch.world_size,
            "layout": launch.layout.to_json(),
            **dict(_data(launch)),
            "created_at": launch.created_at,
        }
        for launch in new
    ]
    connection.execute(insert(connection, launches).on_conflict_do_nothing(), rows)


def put_resolution(
    connection: sa.Connection,
    launch_id: str,
    parent: tuple[str, int] | None,
    *,
    start_step: int | None,
    branched: bool,
    files: Sequence[tuple[int, str]],
    at: datetime,
) -> None:
    """Where a launch started, (rank, checkpoint id) for each rank; none where a journal tells the state only."""
    chosen = resolutions.c.launch_id == launch_id
    there = connection.execute(
        sa.select(resolutions.c.plan, resolutions.c.parent_launch_id).where(chosen)
    ).one_or_none()
    if there is None:
        store_resolution(
            connection,
            launch_id=launch_id,
            parent=parent,
            start_step=start_step,
            files=files,
            branched=branched,
            now=at,
        )
    elif files and not there.plan and there.parent_launch_id == (parent[0] if parent else None):
        plan = [list(pair) for pair in files]
        connection.execute(resolutions.update().where(chosen).values(plan=plan, created_at=at))


def put_ending(connection: sa.Connection, row: dict[str, Any]) -> None:
    """How training ended on a rank; an older record of it changes nothing."""
    _put_newest(connection, endings, row, keys=("launch_id", "rank"))


def put_outcome(connection: sa.Connection, row: dict[str, Any]) -> None:
    """What came of a launch's plan on a rank; an older record of it changes nothing."""
    _put_newest(connection, outcomes, row, keys=("launch_id", "rank"))


def _put_newest(connection: sa.Connection, table: sa.Table, row: dict[str, Any], *, keys: Sequence[str]) -> None:
    statement = insert(connection, table).values(row)
    changed = {name: statement.excluded[name] for name in row if name not in keys}
    is_newer = table.c.created_at < statement.excluded.created_at
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed, where=is_newer))


def put_checkpoints(connection: sa.Connection, files: Sequence[Checkpoint]) -> None:
    """Write these records as they are, but for what retention has given up. Each has its moment (`created_at`)."""
    if not files:
        return
    put_saves(connection, files, _began(files[0]))
    rows = [row_of(file) for file in sorted(files, key=lambda file: file.id)]
    statement = insert(connection, checkpoints)
    changed = {name: statement.excluded[name] for name in rows[0] if name not in ("id", "save_id", "rank", "path")}
    changed["state"] = state_but_trashed(statement)
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=changed), rows)
    set_if_another(connection, files)


def put_pin(connection: sa.Connection, run: str, step: int, *, pinned: bool, at: datetime) -> None:
    """A step was pinned, or unpinned, at a moment; what was done later counts."""
    run_id = add_run(connection, run, at)
    if pinned:
        row = {"run_id": run_id, "global_step": step, "created_at": at}
        _put_newest(connection, pins, row, keys=("run_id", "global_step"))
    else:
        chosen = (pins.c.run_id == run_id) & (pins.c.global_step == step) & (pins.c.created_at <= at)
        connection.execute(pins.delete().where(chosen))


def put_tag(connection: sa.Connection, run: str, name: str, step: int | None, *, at: datetime) -> None:
    """A step got a name, or the name was taken away (None), at a moment; what was done later counts."""
    run_id = add_run(connection, run, at)
    if step is None:
        chosen = (tags.c.run_id == run_id) & (tags.c.name == name) & (tags.c.created_at <= at)
        connection.execute(tags.delete().where(chosen))
        put_removal(connection, run_id, TAG, name, at)
    elif not _is_removed(connection, run_id, TAG, name, at):
        row = {"run_id": run_id, "name": name, "global_step": step, "created_at": at}
        _put_newest(connection, tags, row, keys=("run_id", "name"))


def put_policy(connection: sa.Connection, run: str, rules: Mapping[str, Any] | None, *, at: datetime) -> None:
    """What gc keeps of a run was stored, or forgotten (None), at a moment; what was done later counts."""
    run_id = add_run(connection, run, at)
    if rules is None:
        chosen = (policies.c.run_id == run_id) & (policies.c.created_at <= at)
        connection.execute(policies.delete().where(chosen))
        put_removal(connection, run_id, POLICY, "", at)
    elif not _is_removed(connection, run_id, POLICY, "", at):
        row = {"run_id": run_id, "rules": dict(rules), "created_at": at}
        _put_newest(connection, policies, row, keys=("run_id",))


def put_removal(connection: sa.Connection, run_id: int, what: str, name: str, at: datetime) -> None:
    """A tag of that name, or the policy (no name), was taken away at a moment; what was done later counts."""
    row = {"run_id": run_id, "what": what, "name": name, "created_at": at}
    _put_newest(connection, removals, row, keys=("run_id", "what", "name"))


def _is_removed(connection: sa.Connection, run_id: int, what: str, name: str, at: datetime) -> bool:
    """Whether it was taken away at that moment or later."""
    own = (removals.c.run_id == run_id) & (removals.c.what == what) & (removals.c.name == name)
    found = sa.select(removals.c.name).where(own, removals.c.created_at >= at)
    return connection.execute(found).first() is not None


def put_lease(connection: sa.Connection, launch_id: str, until: datetime) -> None:
    """A launch holds the state that it starts from until then; one that was renewed since is left as it is."""
    insert_if_new(connection, leases, {"launch_id": launch_id, "expires_at": until})


def related_files(connection: sa.Connection, records: Sequence[Checkpoint]) -> list[Checkpoint]:
    """What the catalog has under the same ids and at the same paths."""
    found = reads.files_by_id(connection, sorted({file.id for file in records}))
    for files in reads.files_at_paths(connection, sorted({file.path for file in records})).values():
        found.update((file.id, file) for file in files)
    return list(found.values())


def _began(record: Launch | Checkpoint) -> datetime:
    if record.created_at is None:
        raise ValueError(f"the record of {record} has no moment")
    return record.created_at
