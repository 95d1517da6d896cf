"""Does the work of verifications, beside other processes that do the same.

The work is in the catalog, in portions. A process claims one, looks at its files without any transaction, and records
what it found. A claim that is not renewed lapses, so that what a killed process had is done by another one, or by the
same command when it is given again.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, verifications
from ckptstore.core.model import FileState
from ckptstore.errors import CatalogUnavailableError
from ckptstore.ops import to_verify
from ckptstore.ops.authorship import wrote
from ckptstore.ops.doubt import QUIET
from ckptstore.ops.examine import Damaged, Examined, Passed, Whole, examine
from ckptstore.ops.owner import is_dead, this_process
from ckptstore.ops.sync import sync_run
from ckptstore.ops.writers import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.verifications import Portion
    from ckptstore.core.model import Checkpoint
    from ckptstore.ops.to_verify import Task

LEASE = timedelta(minutes=2)
"""How long a process that is not heard of keeps its claims; one of the same host that is dead loses them at once."""

_RENEWED_EVERY = 30.0  # seconds
_LOOK_AGAIN = 0.5  # seconds, while others have all that is left
_REFRESH = 0.2  # seconds between two looks at what the threads have done
_AHEAD = 2  # portions claimed at a time: the disk is not to wait while the catalog is written
_THREADS = max(8, os.cpu_count() or 1)
_LEFT: set[str] = set()  # who of this process could not give its claims back: it is alive, and does not work on them
_LOOKED_AT = (FileState.COMPLETE, FileState.DAMAGED, FileState.MISSING)


class _StoppedError(Exception):
    """Nobody waits for the rest."""


@dataclass
class _Claimed:
    """A portion that this process has claimed: the looks at its files, and how much of its amount they have done."""

    portion: Portion
    looks: list[Future[Examined | None]] = field(default_factory=list)
    done: int = 0


class Verifier:
    """Claims portions, has their files looked at on threads, and records what they show. To be closed.

    `own` is how many files it has looked at.
    """

    def __init__(
        self, database: Database, tasks: Sequence[Task], *, digest: bool, progress: Callable[[int, int], None]
    ) -> None:
        self.own = 0
        self._database = database
        self._runs = {task.verification.id: task.verification.run_id for task in tasks}
        self._digest = digest
        self._progress = progress
        self._owner = this_process()
        self._ledger = shared(database)
        self._pool = ThreadPoolExecutor(_THREADS)
        self._claimed: list[_Claimed] = []
        self._renewed = time.monotonic()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._done, self._all = 0, 0

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop at once. What was claimed and not done is free for others."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
        self._ledger.close()
        if self._claimed:
            _LEFT.add(self._owner)
            with suppress(CatalogUnavailableError), self._database.write() as connection:
                verifications.release(connection, self._owner)

    def work(self) -> None:
        """Until nothing is left, here or in the hands of others. Raises `CatalogUnavailableError`."""
        with self._database.read() as connection:
            left = self._left(connection)
        while left:
            while len(self._claimed) < min(left, _AHEAD) and self._claim():
                pass
            if self._claimed:
                left = self._finish_one()
            else:
                time.sleep(_LOOK_AGAIN)
                with self._database.read() as connection:
                    left = self._left(connection)
        with self._database.write() as connection:
            verifications.end(connection, list(self._runs), verifications.clock(connection))

    def _claim(self) -> bool:
        """Claim a portion and begin to look at its files; False if there is none that nobody has."""
        with self._database.write() as connection:
            portion = self._claim_in(connection)
        if portion is not None:
            self._begin(portion)
        return portion is not None

    def _claim_in(self, connection: Connection) -> Portion | None:
        now = verifications.clock(connection)
        return verifications.claim(
            connection, list(self._runs), self._owner, now=now, until=now + LEASE, is_dead=_is_gone
        )

    def _begin(self, portion: Portion) -> None:
        claimed = _Claimed(portion)
        self._claimed.append(claimed)
        with self._database.read() as connection:
            known = reads.files_by_id(connection, portion.files)
        files = [known[each] for each in portion.files if each in known]
        claimed.looks = [self._pool.submit(self._look, claimed, file) for file in files if file.state in _LOOKED_AT]

    def _look(self, claimed: _Claimed, file: Checkpoint) -> Examined | None:
        if self._digest:
            return examine(file, read_bytes=True, heard=partial(self._heard, claimed))
        seen = examine(file, read_bytes=False, heard=lambda _: self._heard(claimed, 0))
        self._heard(claimed, 1)
        return seen

    def _heard(self, claimed: _Claimed, more: int) -> None:
        if self._stopped.is_set():
            raise _StoppedError
        with self._lock:
            claimed.done += more

    def _finish_one(self) -> int:
        """Wait until one of the portions is done, and record it; claims are renewed meanwhile. How many are left."""
        while True:
            for claimed in self._claimed:
                if all(look.done() for look in claimed.looks):
                    return self._finish(claimed)
            wait(self._claimed[0].looks, _REFRESH)
            self._show()
            if time.monotonic() - self._renewed > _RENEWED_EVERY:
                with self._database.write() as connection:
                    verifications.renew(connection, self._owner, verifications.clock(connection) + LEASE)
                self._renewed = time.monotonic()

    def _finish(self, claimed: _Claimed) -> int:
        """Record a portion: first what became of its files, in the journals too, then that it is done. Claim another.

        How many are left, whoever has them.
        """
        portion = claimed.portion
        looked_at = [each for look in claimed.looks if (each := look.result()) is not None]
        seen = self._marked(self._runs[portion.verification], looked_at)
        learnt = [(each.file, each.after) for each in seen if isinstance(each, Whole) and not _is_news(each)]
        told = to_verify.found(seen)
        with self._database.write() as connection:
            is_ours = verifications.finish(connection, portion, self._owner, told, verifications.clock(connection))
            if is_ours:
                verifications.amend(connection, [each for each in learnt if each[0] != each[1]])
            left = self._left(connection)
            another = self._claim_in(connection) if left >= len(self._claimed) else None
        self._claimed.remove(claimed)
        self.own += told["checked"] if is_ours else 0
        if another is not None:
            self._begin(another)
        self._show()
        return left

    def _marked(self, run_id: int, seen: Sequence[Examined]) -> list[Examined]:
        """What stands of what was seen once the records are marked: nothing where a record has changed meanwhile."""
        if any(isinstance(each, Damaged) and each.rewritten_ns is not None for each in seen):
            seen = self._without_overwritten(run_id, seen)
        news = [each for each in seen if isinstance(each, Whole | Damaged) and _is_news(each)]
        stood = self._ledger.amend([(each.file, each.after) for each in news]) if news else []
        overtaken = {each.file.id for each, stands in zip(news, stood, strict=True) if not stands}
        return [each for each in seen if each.file.id not in overtaken]

    def _without_overwritten(self, run_id: int, seen: Sequence[Examined]) -> list[Examined]:
        """What later launches have written over is no damage: their save is registered by now, or about to be."""
        sync_run(self._database, run_id)
        with self._database.read() as connection:
            now = verifications.clock(connection)
            orders = {launch.id: launch.order for launch in reads.launches_of(connection, run_id)}
            sources = reads.sources_of(connection, run_id)
        quiet_since_ns = int((now - QUIET).timestamp() * 1e9)

        def is_overwritten(file: Checkpoint) -> bool:
            home, _, name = file.path.rpartition("/")
            later = (source for source in sources if orders[source.launch] > orders[file.launch])
            return any(source.directory == home and wrote(source, name) for source in later)

        return [
            Passed(each.file, "a later launch has just written it: what that saved is not registered yet")
            if isinstance(each, Damaged) and (each.rewritten_ns or 0) > quiet_since_ns and is_overwritten(each.file)
            else each
            for each in seen
        ]

    def _left(self, connection: Connection) -> int:
        """How many portions are left, whoever has them."""
        found = verifications.progress(connection, list(self._runs)).values()
        self._done, self._all = sum(each.done for each in found), sum(each.total for each in found)
        return sum(each.open_portions for each in found)

    def _show(self) -> None:
        with self._lock:
            here = sum(each.done for each in self._claimed)
        self._progress(min(self._done + here, self._all), self._all)


def _is_gone(owner: str) -> bool:
    return owner in _LEFT or is_dead(owner)


def _is_news(seen: Whole | Damaged) -> bool:
    """Whether the record says something else of the file's state than what was seen."""
    return (seen.file.state, seen.file.problem) != (seen.after.state, seen.after.problem)
