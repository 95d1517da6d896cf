"""See whether a launch that was asked to leave has left, and what a restart would get."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import exit_requests, reads, recent
from ckptstore.catalog.engine import in_memory
from ckptstore.catalog.runs import find_run
from ckptstore.disk.run_directories import known_directories, root_of
from ckptstore.errors import CatalogUnavailableError, UnknownRunError, UsageError
from ckptstore.journal.sync import found_below, take_up_found
from ckptstore.outside import time
from ckptstore.resume.liveness import KILLED, Life, how_ended, last_sign, life, newest_begun
from ckptstore.resume.resolve import resolve
from ckptstore.resume.resolver import NEWEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.model import Launch

_LOOK_SECONDS = 0.2
_REST = 3
"""Between two looks, as many times what a look takes: that of ten thousand ranks takes seconds."""
_AWAY_SECONDS = 10.0
"""A catalog that could not be used is not asked again before that."""

_SEEN = 5


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """How far a launch is with leaving.

    `step` is that after which it leaves (None: no rank has saved it yet), `saved` are the ranks that have saved it,
    `missing` the others. `ending` is how it has ended (empty: it has not, as far as is known). `restart` is the step
    that a restart would go on from now, by the judgement of a restore (None: nothing is restorable); `is_left` tells
    that it is this step, of this launch. `step_seconds` is what a step takes by the newest saves (None: nothing tells).
    """

    step: int | None
    saved: frozenset[int]
    missing: frozenset[int]
    ending: str
    restart: int | None
    is_left: bool
    step_seconds: float | None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""
        return bool(self.ending) or (self.is_left and not self.missing)


def follow(
    database: Database, run: str, launch: Launch, directories: Iterable[str] = (), *, away: bool = False
) -> Iterator[Leaving]:
    """How far a launch of a run is with leaving, again and again, to the last look at which nothing more is to come.

    Where the catalog cannot be used (`away`: it could not a moment ago) journals tell, in the run's known places and in
    `directories`.
    """
    ask_from = time.monotonic() + _AWAY_SECONDS if away else 0.0
    while True:
        found = None
        began = time.monotonic()
        if began >= ask_from:
            try:
                found = look(database, run, launch)
            except (CatalogUnavailableError, UnknownRunError):  # it has yet to hear of a launch that began without it
                began = time.monotonic()
                ask_from = began + _AWAY_SECONDS
        if found is None:
            with suppress(UnknownRunError):  # this host sees none of them: the catalog may be back in time
                found = look(by_journals(database, run, directories), run, launch)
        if found is not None:
            yield found
            if found.is_over:
                return
        time.sleep(max(_LOOK_SECONDS, _REST * (time.monotonic() - began)))


def look(database: Database, run: str, launch: Launch) -> Leaving:
    """How far a launch of a run is with leaving. Raises `UnknownRunError` where nothing is known of it there."""
    plan = resolve(database, run, NEWEST).plan
    run_id = find_run(database, run)
    with database.read() as connection:
        if reads.launch(connection, launch.key) is None:
            raise UnknownRunError(f"no launch {launch.id} of run {run!r} in {database.name}")
        newest = newest_launch(connection, run_id, run)
        ending = ending_of(connection, launch) if newest.id == launch.id else f"launch {newest.id} has begun since"
        step = exit_requests.exit_step(connection, launch.key)
        if step is None and ending:
            step = max((end.global_step for end in recent.ends_of(connection, launch.key)), default=None)
        saved = frozenset(() if step is None else exit_requests.saved_at(connection, launch.key, step))
        costs = recent.costs_of(connection, launch.key, _SEEN)
    return Leaving(
        step=step,
        saved=saved,
        missing=frozenset(range(launch.world_size)) - saved,
        ending=ending,
        restart=plan.global_step if plan else None,
        is_left=plan is not None and (plan.launch.id, plan.global_step) == (launch.id, step),
        step_seconds=max((each.step_took for each in costs if each.step_took), default=None),
    )


def by_journals(database: Database, run: str, directories: Iterable[str]) -> Database:
    """A catalog of what the journals of a run tell; those of other ranks are beside those in `directories`."""
    temporary = in_memory()
    paths, _ = found_below(known_directories(database.name, run, map(root_of, directories)), with_directories=True)
    take_up_found(temporary, paths, look=False)
    return temporary


def newest_launch(connection: Connection, run_id: int, run: str) -> Launch:
    """The launch of a run that began last. Raises `UsageError` if none ever did."""
    newest = newest_begun(connection, run_id)
    if newest is None:
        raise UsageError(
            f"run {run!r} was only scanned: there is nothing to ask", "give a run that trains with ckptstore"
        )
    return newest


def ending_of(connection: Connection, launch: Launch) -> str:
    """How a launch has ended; empty where it may go on: a script may train again after an end."""
    sign, now = last_sign(connection, reads.run_id(connection, launch.run))
    sign = sign if sign and sign.key == launch.key else None
    if sign is not None and life(sign.process, now - sign.seen_at) is not Life.GONE:
        return ""
    ends = recent.ends_of(connection, launch.key)
    if len(ends) == launch.world_size:
        return how_ended(
            [end.error for end in ends], was_asked_to_exit=exit_requests.exit_step(connection, launch.key) is not None
        )
    return KILLED if sign is not None else ""
