"""What there is: runs, the saves of a run, the files of a save."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import leases, reads, recent, tallies, user_events
from ckptstore.catalog.clock import clock
from ckptstore.catalog.protection import began_from
from ckptstore.catalog.runs import find_run, run_names
from ckptstore.core import validate
from ckptstore.core.hints import Command
from ckptstore.core.model import BRANCH, Kind
from ckptstore.errors import UsageError
from ckptstore.outside import utc_now
from ckptstore.resume.lineage import lineage
from ckptstore.resume.liveness import NEVER_SAVED, course, is_of_last_day, restart_loop, status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.tallies import Tally
    from ckptstore.core.model import Checkpoint, Grade, Launch
    from ckptstore.resume.lineage import Segment


@dataclass(frozen=True)
class SaveRow:
    """One save as `list` shows it. `restorable` is by the catalog; `resolve` looks at the disk.

    `by_replicas`: it is restorable, and not every rank has a whole file of its step.
    `abandoned`: the run went back to an older state, and on from there. `tags` are the names that its step was given,
    `quarantine` is what is wrong with it though its files are whole (empty: nothing), `metrics` are those of rank 0,
    and so are `grade`, how sure its step is where a scan found it (None: it was registered), and `doubt`, what is open.
    `began` are the other runs that began from its state.
    """

    run: str
    launch: Launch
    tally: Tally
    restorable: bool
    abandoned: bool
    pinned: bool
    tags: tuple[str, ...] = ()
    quarantine: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    grade: Grade | None = None
    doubt: str = ""
    by_replicas: bool = False
    began: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """Why it was written."""
        return self.tally.kind

    @property
    def global_step(self) -> int:
        """Batches consumed since the run began."""
        return self.tally.global_step

    @property
    def ranks(self) -> int:
        """How many ranks have a file of it that is there."""
        return self.tally.ranks

    @property
    def bytes(self) -> int:
        """The size of these files."""
        return self.tally.bytes

    @property
    def created_at(self) -> datetime:
        """When the first of its files was recorded."""
        return self.tally.created_at


@dataclass(frozen=True)
class RunRow:
    """One run as `runs` shows it: its launches counted, its newest save, its newest restorable one, its bytes.

    `status` says what it is doing (`resume.liveness`), `launches_last_day` how often it was started within a day,
    `trash_bytes` what gc moved to the trash: `bytes` are those of its states.
    """

    run: str
    launches: int
    last: SaveRow | None
    newest_restorable: SaveRow | None
    bytes: int
    status: str
    launches_last_day: int
    trash_bytes: int


def runs(database: Database) -> list[RunRow]:
    """Every run, by name."""
    return [run_row(database, name) for name in run_names(database, None)]


def saves(
    database: Database,
    run: str | None,
    *,
    kind: str | None = None,
    since: timedelta | None = None,
    limit: int | None = None,
) -> list[SaveRow]:
    """The saves of a run, or of all, of which a file is there; newest launch first, then newest step.

    `since` asks for what was saved within that time, `limit` for so many of them at most.
    """
    _check(kind)
    rows = [row for name in run_names(database, run) for row in _save_rows(database, name)]
    after = _after(since)
    found = [row for row in rows if row.tally.files and kind in (None, row.kind.value) and row.created_at >= after]
    return found[:limit]


def files(
    database: Database,
    run: str | None,
    *,
    kind: str | None = None,
    since: timedelta | None = None,
    limit: int | None = None,
) -> list[Checkpoint]:
    """Every file that was ever recorded of a run, or of all, with the state it is in; the rest as in `saves`."""
    _check(kind)
    found: list[Checkpoint] = []
    for name in run_names(database, run):
        run_id = find_run(database, name)
        with database.read() as connection:
            found += _named(name, reads.files_of(connection, run_id))
    after = _after(since)
    of_kind = (file for file in found if kind in (None, file.kind.value))
    return [file for file in of_kind if since is None or (file.created_at or after) >= after][:limit]


def _after(since: timedelta | None) -> datetime:
    if since is not None and not isinstance(since, timedelta):
        raise UsageError(f"since={since!r} is no timedelta", "give one, as datetime.timedelta(days=1)")
    return datetime.min.replace(tzinfo=timezone.utc) if since is None else utc_now() - since


def show(database: Database, run: str, step: int) -> list[Checkpoint]:
    """Every file of one step of a run. Raises `UsageError` if there is none."""
    step = validate.step_of(step)
    run_id = find_run(database, run)
    with database.read() as connection:
        found = reads.files_of(connection, run_id, step=step)
    if not found:
        raise no_such_step(run, step)
    return _named(run, found)


def _named(run: str, found: list[Checkpoint]) -> list[Checkpoint]:
    """Files of a run that may have got another name since."""
    return found if not found or found[0].run == run else [replace(file, run=run) for file in found]


def _check(kind: str | None) -> None:
    if kind is not None and kind not in set(Kind):
        raise UsageError(f"there is no kind {kind!r}", f"use one of: {', '.join(Kind)}")


def no_such_step(run: str, step: int) -> UsageError:
    """The error for a step that the run has no save of."""
    return UsageError(f"run {run!r} has no save of step {step}", f"see: {Command('list', run)}")


def run_row(database: Database, name: str) -> RunRow:
    """One run."""
    run_id = find_run(database, name)
    there = [row for row in _save_rows(database, name) if row.tally.files]
    last = there[0] if there else None
    with database.read() as connection:
        launches = reads.launches_of(connection, run_id)
        begun = [launch for launch in launches if not launch.id.startswith(BRANCH)]
        now = clock(connection)
        doing = _status(connection, run_id, begun, last, now)
        waiting = recent.waiting(connection, run_id)
    return RunRow(
        run=name,
        launches=len(launches),
        last=last,
        newest_restorable=next((row for row in there if row.restorable and not row.abandoned), None),
        bytes=sum(row.tally.bytes for row in there),
        status=doing,
        launches_last_day=sum(is_of_last_day(launch, now) for launch in begun),
        trash_bytes=sum(each.bytes for each in waiting),
    )


def _status(connection: Connection, run_id: int, begun: Sequence[Launch], last: SaveRow | None, now: datetime) -> str:
    """What a run is doing, by the newest of its launches that trained or were about to."""
    saved = reads.first_saves(connection, run_id)
    newest = begun[-1] if begun else None
    if newest is None:
        return NEVER_SAVED
    own = last if last is not None and last.launch.id == newest.id else None
    sign = leases.last_sign(connection, run_id)
    sign = sign if sign and sign.key == newest.key else None
    heard = [sign.seen_at] if sign else []
    heard += [own.created_at] if own else [newest.created_at] if newest.created_at else []
    errors = [end.error for end in recent.ends_of(connection, newest.key)]
    return status(
        newest.id,
        course(
            errors,
            sign.process if sign else None,
            now - sign.seen_at if sign else None,
            was_asked_to_exit=own is not None and own.kind is Kind.GRACEFUL_EXIT,
        ),
        loop=restart_loop(begun, saved, errors, now),
        has_saved=bool(saved),
        silent=now - max(heard) if heard else None,
    )


def _save_rows(database: Database, run: str) -> list[SaveRow]:
    run_id = find_run(database, run)
    with database.read() as connection:
        launches = {launch.id: launch for launch in reads.launches_of(connection, run_id)}
        pinned = user_events.pinned_steps(connection, run_id)
        tagged = user_events.tags_of(connection, run_id)
        began = began_from(connection, run_id)
        said = tallies.said(connection, run_id)
        nothing = tallies.Said("", {}, None, "")
        history = lineage(list(launches.values()), reads.first_saves(connection, run_id))
        parts = {part.launch.id: part for part in history}
        found = tallies.tallies(connection, run_id)
        whole = {tally.save_id: _whole(connection, launches[tally.launch], tally) for tally in found}
        return [
            SaveRow(
                run=run,
                launch=launches[tally.launch],
                tally=tally,
                restorable=whole[tally.save_id] is not None,
                by_replicas=whole[tally.save_id] is False,
                abandoned=_is_abandoned(tally, parts.get(tally.launch)),
                pinned=tally.global_step in pinned,
                tags=tagged.get(tally.global_step, ()),
                began=began.get((tally.launch, tally.global_step), ()),
                **said.get(tally.save_id, nothing)._asdict(),
            )
            for tally in found
        ]


def _is_abandoned(tally: Tally, part: Segment | None) -> bool:
    return tally.global_step > 0 and not (part is not None and part.has(tally.global_step))


def _whole(connection: Connection, launch: Launch, tally: Tally) -> bool | None:
    """Whether the state has a file of every rank; False if replicas stand in for some, None if it is not restorable."""
    if tally.global_step == 0 or not tally.files or tally.quarantined or launch.foreign:
        return None
    if launch.world_size in (tally.full_ranks, tally.share_ranks):
        return True
    have = tallies.whole_ranks(connection, launch.key, tally.global_step)
    return len(have) == launch.world_size if launch.layout.covers(have, launch.world_size) else None
