"""Signs of life of a launch, in the catalog: a second start of the same job sees that the first one is alive."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from ckptstore.catalog import leases, reads, schema
from ckptstore.catalog.engine import clock
from ckptstore.core.hints import Call
from ckptstore.core.text import span
from ckptstore.disk.owner import is_dead, is_here, is_this_process, shown, this_process
from ckptstore.disk.waiting import start_thread
from ckptstore.errors import CatalogUnavailableError, RefusedError
from ckptstore.leave.ask import pass_on
from ckptstore.outside import atexit, os, threading, time
from ckptstore.resume.liveness import SILENT, last_sign, may_be_alive

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.leases import Sign
    from ckptstore.core.model import Launch
    from ckptstore.journal.recorder import Recorder

log = logging.getLogger("ckptstore")

EVERY_SECONDS = 20.0
"""The time between two signs of a launch."""

_LOOK_SECONDS = 0.5
_PORTION_SECONDS = 10.0  # MindSpore's collectives on CPU end in an error after 45 s
_END_SECONDS = 5.0


class LifeSigns:
    """Gives signs of life of a launch, on rank 0 and on a thread of its own, from `begin` to `end`.

    A launch that began without the catalog gives signs once its records are there. Each sign renews the lease on the
    state that the launch started from, and writes records that a journal could not take before. A request to exit that
    is in the catalog is copied to where the ranks look for it: with each sign, with each save of rank 0, and by each
    rank when it announces a directory.
    """

    def __init__(self, recorder: Recorder, database: Database, launch: Launch, rank: int) -> None:
        self._recorder, self._database, self._launch = recorder, database, launch
        self._key = launch.key
        self._rank = rank
        self._process = ""
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """The launch is alive from now on."""
        if self._rank or self._thread is not None:
            return
        self._process = this_process()
        self._give()
        self._ended.clear()
        self._thread = start_thread(self._work, "ckptstore-signs")
        atexit.register(self.end)

    def end(self) -> None:
        """The launch has ended, or rests until it trains again."""
        if self._thread is None or os.getpid() != self._pid:
            return
        atexit.unregister(self.end)
        self._ended.set()
        self._thread.join(_END_SECONDS)
        self._thread = None

    def _work(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            self._give()
        self._write(lambda connection: leases.end_signs(connection, self._key))

    def _give(self) -> None:
        key, process = self._key, self._process
        self._write(lambda connection: leases.give_sign(connection, key, process, clock(connection)))
        with suppress(CatalogUnavailableError):  # the recorder logs it
            self._recorder.write_missed()
        self.pass_on()

    def pass_on(self, home: str | None = None) -> None:
        """Copy a request to exit from the catalog to where ranks look: rank 0 for all, any rank into its own `home`.

        The process that asks may not see the ranks' disks, or may have asked before they announced their directories.
        """
        if (home is not None or not self._rank) and not self._recorder.is_late:
            with suppress(CatalogUnavailableError):  # the recorder logs it
                pass_on(self._database, self._launch, home=home)

    def _write(self, work: Callable[[Connection], None]) -> None:
        if not self._recorder.behind:
            with suppress(CatalogUnavailableError):  # the recorder logs it
                self._database.in_write(work)


class Silence:
    """Checks by signs of life that no other launch of a run is alive."""

    def __init__(self, database: Database, run: str) -> None:
        self._database = database
        self._run = run
        self._first: Sign | None = None
        self._last: Sign | None = None
        self._until = 0.0

    def is_there(self) -> bool:
        """Whether a launch may begin. If not, call it again: it returns in between, since ranks wait for rank 0.

        If another launch may be alive, its next sign is awaited for a minute. Raises `RefusedError` if that comes, or
        if its process is still on this machine after the minute. Without the catalog there is no wait.
        """
        try:
            return self._look()
        except CatalogUnavailableError:
            return True

    def claim(self, connection: Connection, launch: Launch) -> None:
        """Give the first sign of life of a launch, in the transaction that adds it.

        Raises `RefusedError` if another launch gave one since `is_there` looked: two starts at the same moment do not
        see each other there.
        """
        found, now = last_sign(connection, reads.run_id(connection, launch.run))
        is_new = found is not None and found != self._last and not is_this_process(found.process)
        if found is not None and is_new and may_be_alive(found, now):
            raise self._refusal(found, now)
        leases.give_sign(connection, launch.key, this_process(), now)

    def _look(self) -> bool:
        if self._first is None:
            schema.ensure(self._database)
        until = time.monotonic() + _PORTION_SECONDS
        while True:
            with self._database.read() as connection:
                found, now = last_sign(connection, reads.run_id(connection, self._run))
            self._last = found
            if found is None or is_this_process(found.process) or is_dead(found.process):
                return True
            if self._first is None:
                if not may_be_alive(found, now):
                    return True
                self._begin(found, now)
            if self._first is not None and found.seen_at != self._first.seen_at:
                raise self._refusal(found, now)
            if time.monotonic() > self._until:
                if is_here(found.process):
                    raise self._refusal(found, now)
                return True
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_SECONDS)

    def _begin(self, found: Sign, now: datetime) -> None:
        self._first, self._until = found, time.monotonic() + SILENT.total_seconds()
        log.warning(
            "launch %s of run %s may be alive: %s gave a sign of life %s ago; waiting up to %g s for another one",
            found.launch,
            self._run,
            shown(found.process),
            span(now - found.seen_at),
            SILENT.total_seconds(),
        )

    def _refusal(self, found: Sign, now: datetime) -> RefusedError:
        return RefusedError(
            f"launch {found.launch} of run {self._run!r} is alive: {shown(found.process)} gave a sign of life "
            f"{span(now - found.seen_at)} ago",
            "stop that one, or give this run another name; to take over at once: "
            f"{Call('join', take_over=True)} or CKPTSTORE_TAKE_OVER=1",
        )
