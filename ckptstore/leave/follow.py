"""See whether a launch that was asked to leave has left, and what a restart would get."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import exits, reads, recent
from ckptstore.catalog.engine import in_memory
from ckptstore.catalog.runs import find_run
from ckptstore.core.model import BRANCH, SCANNED
from ckptstore.disk.owner import is_dead
from ckptstore.disk.places import places
from ckptstore.errors import CatalogUnavailableError, UsageError
from ckptstore.journal.sync import found_below, take_up_found
from ckptstore.resume.alive import last_sign
from ckptstore.resume.resolve import NEWEST, resolve
from ckptstore.resume.status import KILLED, how_ended

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.model import Launch

_LOOK_SECONDS = 0.2
_REST = 3
"""Between two looks, as many times what a look takes: that of ten thousand ranks takes seconds."""
_SEEN = 5


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """How far a launch is with leaving.

    `step` is that after which it leaves (None: no rank has saved it yet), `saved` are the ranks that have saved it,
    `missing` the others. `ending` is how it has ended (empty: it has not, as far as is known). `restart` is the step
    that a restart would go on from now, by the judgement of a restore (None: nothing is restorable); `is_left` tells
    that it is this step, of this launch.
    """

    step: int | None
    saved: frozenset[int]
    missing: frozenset[int]
    ending: str
    restart: int | None
    is_left: bool

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""
        return bool(self.ending) or (self.is_left and not self.missing)


def follow(database: Database, run: str, launch: Launch, directories: Iterable[str] = ()) -> Iterator[Leaving]:
    """How far a launch of a run is with leaving, again and again, to the last look at which nothing more is to come.

    Where the catalog cannot be used journals tell, in the run's known places and in `directories`.
    """
    while True:
        began = time.monotonic()
        found = look(readable(database, run, directories)[0], run, launch)
        yield found
        if found.is_over:
            return
        time.sleep(max(_LOOK_SECONDS, _REST * (time.monotonic() - began)))


def look(database: Database, run: str, launch: Launch) -> Leaving:
    """How far a launch of a run is with leaving."""
    plan = resolve(database, run, NEWEST).plan
    run_id = find_run(database, run)
    with database.read() as connection:
        newest = newest_launch(connection, run_id, run)
        ending = ending_of(connection, launch) if newest.id == launch.id else f"launch {newest.id} has begun since"
        step = exits.exit_step(connection, launch.key)
        if step is None and ending:
            step = max((end.global_step for end in recent.ends_of(connection, launch.key)), default=None)
        saved = frozenset(() if step is None else exits.saved_at(connection, launch.key, step))
    return Leaving(
        step=step,
        saved=saved,
        missing=frozenset(range(launch.world_size)) - saved,
        ending=ending,
        restart=plan.global_step if plan else None,
        is_left=plan is not None and (plan.launch.id, plan.global_step) == (launch.id, step),
    )


def step_time(database: Database, launch: Launch) -> float | None:
    """The seconds that a step of a launch takes by its newest saves; None where nothing tells."""
    with database.read() as connection:
        costs = recent.costs_of(connection, launch.key, _SEEN)
    return max((each.step_took for each in costs if each.step_took), default=None)


def readable(database: Database, run: str, directories: Iterable[str] = ()) -> tuple[Database, str]:
    """The catalog; where it cannot be used one made of the run's journals, and why."""
    try:
        with database.read() as connection:
            reads.run_id(connection, run)
    except CatalogUnavailableError as error:
        temporary = in_memory()
        paths, _ = found_below(places(database.name, run, directories), with_directories=True)
        take_up_found(temporary, paths, look=False)
        return temporary, str(error)
    return database, ""


def newest_launch(connection: Connection, run_id: int, run: str) -> Launch:
    """The launch of a run that began last. Raises `UsageError` if none ever did."""
    begun = [each for each in reads.launches_of(connection, run_id) if not each.id.startswith((SCANNED, BRANCH))]
    if not begun:
        raise UsageError(
            f"run {run!r} was only scanned: there is nothing to ask", "give a run that trains with ckptstore"
        )
    return begun[-1]


def ending_of(connection: Connection, launch: Launch) -> str:
    """How a launch has ended; empty where it may go on: a script may train again after an end."""
    sign, _ = last_sign(connection, reads.run_id(connection, launch.run))
    sign = sign if sign and sign.key == launch.key else None
    if sign is not None and not is_dead(sign.process):
        return ""
    ends = recent.ends_of(connection, launch.key)
    if len(ends) == launch.world_size:
        return how_ended(
            [end.error for end in ends], was_asked_to_exit=exits.exit_step(connection, launch.key) is not None
        )
    return KILLED if sign is not None else ""
