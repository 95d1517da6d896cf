"""Every launch of a run: when and where it ran, from which state it started, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.catalog import leases, reads, recent
from ckptstore.catalog.engine import clock
from ckptstore.catalog.runs import find_run
from ckptstore.core.model import Kind
from ckptstore.journal.sync import as_far_as_allowed, sync_run
from ckptstore.resume.liveness import course

if TYPE_CHECKING:
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Launch, PassedOver


@dataclass(frozen=True)
class LaunchRow:
    """One launch as `history` shows it.

    `run` is the name by which the run was asked for: a launch keeps the first one. `hosts` are those of its ranks, as
    far as recorded. `passed` are the newer states that it passed over, newest first, at most
    `resume.start.MOST_PASSED`. `last_step` is the highest step that it saved or ended at (None: there is none),
    `heard_at` when it was last heard of. `ending` is the text of `liveness.course`.
    """

    run: str
    launch: Launch
    hosts: tuple[str, ...]
    passed: tuple[PassedOver, ...]
    last_step: int | None
    heard_at: datetime | None
    ending: str

    @property
    def ran(self) -> timedelta | None:
        """How long it ran, up to when it was last heard of."""
        began = self.launch.created_at
        return None if began is None or self.heard_at is None else max(self.heard_at - began, timedelta(0))


def history(database: Database, run: str) -> list[LaunchRow]:
    """The launches of a run, oldest first. Raises `UnknownRunError`."""
    run_id = find_run(database, run)
    with as_far_as_allowed(run):
        sync_run(database, run_id)
    with database.read() as connection:
        launches = reads.launches_of(connection, run_id)
        hosts = reads.hosts_of_run(connection, run_id)
        passed = reads.passed_over_by(connection, run_id)
        last = recent.last_saves(connection, run_id)
        kinds = reads.kinds_beyond(connection, run_id, 0)
        signs = leases.signs_of(connection, run_id)
        now = clock(connection)
        ends = reads.ends_of_run(connection, run_id)
    rows = []
    for launch in launches:
        own = ends.get(launch.id, [])
        saved = [last[launch.id]] if launch.id in last else []
        process, seen_at = signs.get(launch.id, (None, None))
        seen = [] if seen_at is None else [seen_at]
        rows.append(
            LaunchRow(
                run=run,
                launch=launch,
                hosts=hosts.get(launch.id, ()),
                passed=passed.get(launch.id, ()),
                last_step=max([step for step, _ in saved] + [end.global_step for end in own], default=None),
                heard_at=max([at for _, at in saved] + [end.at for end in own] + seen, default=None),
                ending=course(
                    [end.error for end in own],
                    process,
                    now - seen_at if seen_at else None,
                    was_asked_to_exit=any(Kind.GRACEFUL_EXIT in kinds[launch.id, step] for step, _ in saved),
                ),
            )
        )
    return rows
