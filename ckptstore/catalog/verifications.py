"""Verifications under way: their portions of files, who looks at which, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ckptstore.catalog.tables import UtcDateTime, checkpoints, launches, saves, verification_portions, verifications
from ckptstore.core.model import FileState
from ckptstore.errors import CkptstoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ckptstore.core.model import Checkpoint

_portions = verification_portions


@dataclass(frozen=True)
class Verification:
    """One verification of a run: whether digests are taken, of which part of the files (None: all), since when."""

    id: str
    run_id: int
    digest: bool
    sample: float | None
    created_at: datetime


@dataclass(frozen=True)
class Portion:
    """Some files of a verification, by their ids; `amount` is their bytes where those are read, else their number."""

    verification: str
    number: int
    files: tuple[str, ...]
    amount: int


@dataclass(frozen=True)
class Candidate:
    """A file that may be verified: one that the catalog takes to be there, or to be damaged."""

    id: str
    path: str
    size: int
    is_damaged: bool
    launch: str
    global_step: int


@dataclass(frozen=True)
class Progress:
    """How far a verification is, in the measure of its portions; `open_portions` are not done."""

    done: int
    total: int
    open_portions: int


def clock(connection: sa.Connection) -> datetime:
    """The time by the one clock that all who share the work have: the server's, or that of an SQLite file's machine."""
    if connection.dialect.name == "sqlite":
        return datetime.now(timezone.utc)
    now: datetime = connection.execute(sa.select(sa.func.clock_timestamp(type_=UtcDateTime))).scalar_one()
    return now


def candidates(connection: sa.Connection, run: int) -> list[Candidate]:
    """The files of a run to verify, of the newest launch and step first; not those that are known to be gone."""
    there = [FileState.COMPLETE.value, FileState.DAMAGED.value]
    query = (
        sa.select(
            checkpoints.c.id,
            checkpoints.c.path,
            checkpoints.c.size,
            checkpoints.c.state,
            saves.c.launch_id,
            saves.c.global_step,
        )
        .select_from(checkpoints.join(saves).join(launches, launches.c.id == saves.c.launch_id))
        .where(launches.c.run_id == run, checkpoints.c.state.in_(there))
        .order_by(launches.c.launch_order.desc(), saves.c.global_step.desc(), checkpoints.c.rank, checkpoints.c.path)
    )
    return [
        Candidate(row.id, row.path, row.size or 0, row.state == FileState.DAMAGED.value, row.launch_id, row.global_step)
        for row in connection.execute(query)
    ]


def under_way(connection: sa.Connection, run: int, *, digest: bool, sample: float | None) -> Verification | None:
    """The verification of this kind that has not ended."""
    query = sa.select(verifications).where(
        verifications.c.run_id == run,
        verifications.c.digest == digest,
        verifications.c.sample.is_not_distinct_from(sample),
        verifications.c.ended_at.is_(None),
    )
    row = connection.execute(query.order_by(verifications.c.created_at.desc())).first()
    return None if row is None else Verification(row.id, row.run_id, row.digest, row.sample, row.created_at)


def last_sign(connection: sa.Connection, verification: Verification) -> datetime:
    """When somebody last did something for it; a claim that is renewed counts up to its end."""
    newest = sa.select(sa.func.max(_portions.c.done_at), sa.func.max(_portions.c.claimed_until))
    signs: list[datetime | None] = list(
        connection.execute(newest.where(_portions.c.verification_id == verification.id)).one()
    )
    return max([verification.created_at, *(sign for sign in signs if sign is not None)])


def begin(
    connection: sa.Connection,
    verification: Verification,
    portions: Sequence[Portion],
    unknown: Sequence[tuple[str, str]],
) -> None:
    """Begin a verification."""
    row: dict[str, Any] = {
        "id": verification.id,
        "run_id": verification.run_id,
        "digest": verification.digest,
        "sample": verification.sample,
        "unknown": unknown,
        "created_at": verification.created_at,
    }
    connection.execute(verifications.insert().values(row))
    rows = [
        {"verification_id": each.verification, "number": each.number, "files": each.files, "amount": each.amount}
        for each in portions
    ]
    if rows:
        connection.execute(_portions.insert(), rows)


def add_done(connection: sa.Connection, verification_id: str, found: dict[str, Any], now: datetime) -> None:
    """Add what was found outside of any portion. Nobody else may do so at the same time: lock the run."""
    newest = sa.select(sa.func.max(_portions.c.number)).where(_portions.c.verification_id == verification_id)
    number = (connection.execute(newest).scalar() or 0) + 1
    row: dict[str, Any] = {"verification_id": verification_id, "number": number, "files": [], "amount": 0}
    connection.execute(_portions.insert().values(**row, done_at=now, found=found))


def claim(
    connection: sa.Connection,
    verification_ids: Sequence[str],
    owner: str,
    *,
    now: datetime,
    until: datetime,
    is_dead: Callable[[str], bool],
) -> Portion | None:
    """Take a portion that nobody looks at; None if there is none now.

    One whose holder has not renewed its claim in time, or is known to be dead, is free too.
    """
    is_open = _portions.c.verification_id.in_(verification_ids) & _portions.c.done_at.is_(None)
    held = sa.select(_portions.c.owner).distinct().where(is_open, _portions.c.owner.is_not(None))
    dead = [each for each in connection.execute(held).scalars() if each != owner and is_dead(each)]
    is_free = _portions.c.claimed_until.is_(None) | (_portions.c.claimed_until < now) | _portions.c.owner.in_(dead)
    query = sa.select(_portions).where(is_open, is_free)
    query = query.order_by(
        _portions.c.claimed_until.is_not(None), _portions.c.verification_id, _portions.c.number
    ).limit(1)
    row = connection.execute(query.with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        return None
    taken = (_portions.c.verification_id == row.verification_id) & (_portions.c.number == row.number)
    connection.execute(_portions.update().where(taken).values(owner=owner, claimed_until=until))
    return Portion(row.verification_id, row.number, tuple(row.files), row.amount)


def renew(connection: sa.Connection, owner: str, until: datetime) -> None:
    """Hold what this owner has claimed for longer."""
    own = (_portions.c.owner == owner) & _portions.c.done_at.is_(None)
    connection.execute(_portions.update().where(own).values(claimed_until=until))


def release(connection: sa.Connection, owner: str) -> None:
    """Give back what this owner has claimed and not done."""
    own = (_portions.c.owner == owner) & _portions.c.done_at.is_(None)
    connection.execute(_portions.update().where(own).values(owner=None, claimed_until=None))


def finish(connection: sa.Connection, portion: Portion, owner: str, found: dict[str, Any], now: datetime) -> bool:
    """Record what was found in a portion; False, and nothing recorded, where another process has taken it over."""
    own = (
        (_portions.c.verification_id == portion.verification)
        & (_portions.c.number == portion.number)
        & (_portions.c.owner == owner)
        & _portions.c.done_at.is_(None)
    )
    done = _portions.update().where(own).values(done_at=now, found=found, claimed_until=None)
    return connection.execute(done).rowcount > 0


def progress(connection: sa.Connection, verification_ids: Sequence[str]) -> dict[str, Progress]:
    """How far each of them is."""
    is_done = _portions.c.done_at.is_not(None)
    query = sa.select(
        _portions.c.verification_id,
        sa.func.sum(sa.case((is_done, _portions.c.amount), else_=0)),
        sa.func.sum(_portions.c.amount),
        sa.func.sum(sa.case((is_done, 0), else_=1)),
    ).where(_portions.c.verification_id.in_(verification_ids))
    rows = connection.execute(query.group_by(_portions.c.verification_id))
    there = {row[0]: Progress(*map(int, row[1:])) for row in rows}
    return {each: there.get(each, Progress(0, 0, 0)) for each in verification_ids}


def end(connection: sa.Connection, verification_ids: Sequence[str], now: datetime) -> None:
    """They go on no more. What was found can still be read, until another one begins a day later."""
    chosen = verifications.c.id.in_(verification_ids) & verifications.c.ended_at.is_(None)
    connection.execute(verifications.update().where(chosen).values(ended_at=now))


def forget(connection: sa.Connection, run: int, ended_before: datetime) -> None:
    """Delete the verifications of a run that ended before then."""
    old = sa.select(verifications.c.id).where(verifications.c.run_id == run, verifications.c.ended_at < ended_before)
    ids = list(connection.execute(old).scalars())
    if ids:
        connection.execute(_portions.delete().where(_portions.c.verification_id.in_(ids)))
        connection.execute(verifications.delete().where(verifications.c.id.in_(ids)))


def found(connection: sa.Connection, verification_id: str) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """What was found in each portion that is done, in their order; and the paths that the catalog does not know.

    Raises `CkptstoreError` where another process has begun a new one since, more than a day after this one ended.
    """
    query = sa.select(_portions.c.found).where(_portions.c.verification_id == verification_id)
    query = query.where(_portions.c.done_at.is_not(None)).order_by(_portions.c.number)
    every = list(connection.execute(query).scalars())
    kept = sa.select(verifications.c.unknown).where(verifications.c.id == verification_id)
    unknown = connection.execute(kept).scalar_one_or_none()
    if unknown is None:
        raise CkptstoreError("this verification was given up: nobody went on with it for days", "begin another one")
    return every, [(path, reason) for path, reason in unknown]


def amend(connection: sa.Connection, changes: Iterable[tuple[Checkpoint, Checkpoint]]) -> list[bool]:
    """Bring records to what a look at the disk showed, each from what it was; whether each still was that.

    A record that changed since it was read stays: its file was registered again, removed, or noticed by others.
    """
    stood = []
    for before, after in changes:
        is_same = (
            (checkpoints.c.id == before.id)
            & (checkpoints.c.state == before.state.value)
            & checkpoints.c.size.is_not_distinct_from(before.size)
            & checkpoints.c.digest.is_not_distinct_from(before.digest)
            & checkpoints.c.mtime_ns.is_not_distinct_from(before.mtime_ns)
        )
        values = {
            "state": after.state.value,
            "problem": after.problem.value if after.problem else None,
            "digest": after.digest,
            "mtime_ns": after.mtime_ns,
            "amended_at": after.amended_at,
        }
        stood.append(connection.execute(checkpoints.update().where(is_same).values(values)).rowcount > 0)
    return stood
