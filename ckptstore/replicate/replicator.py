"""Copies files of this node that tiers lack. Several processes share the work by leases in the catalog.

If a store fails, its tier rests for a while and is tried again; other tiers go on. Errors of one tier, or of one file,
are logged once.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.catalog import copies, copying, reads
from ckptstore.catalog.backoff import Backoff
from ckptstore.catalog.engine import clock
from ckptstore.catalog.runs import find_run
from ckptstore.core.copies import MADE, CopyState
from ckptstore.core.hints import Command
from ckptstore.core.model import Skipped
from ckptstore.disk.files import facts_if_seen
from ckptstore.disk.owner import is_dead, this_process
from ckptstore.disk.presence import directory_of
from ckptstore.errors import CatalogUnavailableError, UsageError
from ckptstore.journal.recorder import Recorder, shared
from ckptstore.objects.errors import DeniedError, SourceError, StoreError, WrongBytesError
from ckptstore.objects.tiers import open_tier
from ckptstore.outside import threading, time, utc_now
from ckptstore.replicate.copy_up import Rate, copy_up
from ckptstore.replicate.journals import JournalCopies
from ckptstore.tiers import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.copies import Beside, Tier
    from ckptstore.core.model import Checkpoint
    from ckptstore.objects.store import Store

    _Homes = dict[tuple[Tier, str, str], set[int]]

log = logging.getLogger("ckptstore")

LEASE = timedelta(seconds=120)
"""A process that copies a file loses its lease after this time without a renewal."""
SETTLED = timedelta(seconds=10)
"""A file's companion is beside it at the latest so long after the file was recorded."""
_RENEW_SECONDS = 20.0
_LONGEST_REST_SECONDS = 300.0
_BAD_SECONDS = 3600.0  # until a file that could not be copied is read again, unless it changes
_FIRST_RESTS = 50  # a rest is so many times a pause of `Backoff`
_MOST = 100_000


class StoppedError(Exception):
    """The copying was asked to end."""


@dataclass
class Done:
    """The result of copying: how many files were copied, the bytes sent, and the reasons for files not copied."""

    files: int = 0
    bytes: int = 0
    held: int = 0  # files that another process copies
    elsewhere: int = 0  # files that are not on this node
    undigested: int = 0  # files that are copied only once their digests are recorded; `round` does not count them
    troubles: list[Skipped] = field(default_factory=list)


class Replicator:
    """Copies files to tiers for one process, on one thread at a time. `stop` ends it between two pieces.

    `rate` is in bytes a second, `tiers` are the names of the tiers to copy to (none: all). `recorder` journals the
    copies. A recorder given here knows the facts of its launch without a catalog, and is not shared.
    """

    def __init__(
        self,
        database: Database,
        rate: float | None = None,
        tiers: Sequence[str] = (),
        recorder: Recorder | None = None,
    ) -> None:
        self._database = database
        self._names = tiers
        self.stop = threading.Event()
        self._rate = Rate(rate, self.stop.wait)
        self._stores: dict[Tier, Store] = {}
        self._rests: dict[Tier, _Rest] = {}
        # The file's `mtime_ns`, when to read it again, and whether the tier refuses it, so that it must be tried again.
        self._bad: dict[tuple[str, Tier], tuple[int, float, bool]] = {}
        self._said: set[str] = set()
        self._homes: _Homes = {}  # of files that this process copied: tier, run and directory, with the ranks
        self._caught_up: set[tuple[Tier, str]] = set()  # the journals of files that were copied before are copied
        self._journals = JournalCopies()
        self._recorder = recorder or shared(database)

    def round(self, run: str | None = None, *, settled_for: timedelta = SETTLED) -> Done:
        """Copy the files of this node that the tiers lack, of a run or (None) of all; files of the newest saves first.

        Waits until a file was recorded at least `settled_for` ago.

        Raises `CatalogUnavailableError`, `UsageError` if there is no tier to copy to, and `UnknownRunError`.
        """
        done = Done()
        if run is None:
            with self._database.read() as connection:
                runs = sorted(reads.names_of_runs(connection).values())
        else:
            find_run(self._database, run)
            runs = [run]
        for tier in self._targets():
            for each in runs:
                lacking = facts.lacking(self._database, each, tier, most=_MOST)
                self._copy_all(self._settled(lacking, settled_for), tier, done)
            for each in runs:
                if (tier, each) not in self._caught_up and self._copy_journals(tier, self._copied(each, tier), done):
                    self._caught_up.add((tier, each))
        return done

    def undigested(self, run: str | None) -> int:
        """How many files of a run, or of all, are copied only once their digests are recorded."""
        of = None if run is None else find_run(self._database, run)
        with self._database.read() as connection:
            ids = reads.names_of_runs(connection) if of is None else (of,)
            return sum(copies.undigested(connection, each) for each in ids)

    def _settled(self, files: Sequence[Checkpoint], settled_for: timedelta) -> Iterator[Checkpoint]:
        """Yield each of these files as soon as its companion should be beside it.

        The clock of the node that recorded a file may be ahead. So all waits together take at most `settled_for`.
        """
        latest = time.monotonic() + settled_for.total_seconds()
        for file in files:
            left = (file.created_at + settled_for - utc_now()).total_seconds() if file.created_at else 0.0
            left = min(left, latest - time.monotonic())
            if left > 0 and facts_if_seen(file.path) is not None:
                self.stop.wait(left)
            yield file

    def copy(self, file: Checkpoint, tiers: Sequence[Tier]) -> list[Tier]:
        """Copy one file to the tiers that are farther than its place; return the tiers to try again."""
        done = Done()
        farther = [tier for tier in tiers if _level_of(file, tiers) < tier.level]
        left = []
        for tier in farther:
            if not self._copy_one(file, tier, done):
                left.append(tier)
            self._copy_journals(tier, self._homes, done)
        if done.elsewhere and any(self._state(file, tier) not in MADE for tier in farther):
            hint = "keep more states on the disk, or raise the rate of copying"
            self._trouble(done, "removed", SourceError(f"{file.path} was removed before it was copied", hint))
        return left

    def cannot_copy(self, file: Checkpoint, tiers: Iterable[Tier]) -> bool:
        """Whether a tier rests, or one of these refuses this file. Otherwise another process copies it."""
        return self.rests() > 0 or any((file.id, tier) in self._bad for tier in tiers)

    def rests(self) -> float:
        """Seconds until the first resting tier is tried again; 0 if no tier rests."""
        return max(min([rest.until for rest in self._rests.values() if rest.until] or [0.0]) - time.monotonic(), 0.0)

    def _targets(self) -> list[Tier]:
        found = [tier for tier in facts.declared(self._database) if tier.level > facts.NODE_LEVEL]
        if self._names:
            missing = sorted({*self._names} - {tier.name for tier in found})
            if missing:
                raise UsageError(f"no tier to copy to is named {missing[0]!r}", f"see: {Command('tier', 'list')}")
            found = [tier for tier in found if tier.name in self._names]
        if not found:
            raise UsageError("there is no tier to copy to", f"declare one: {Command('tier', 'add', 'NAME', 'URL')}")
        return found

    def _copy_all(self, files: Iterable[Checkpoint], tier: Tier, done: Done) -> None:
        for file in files:
            if not self._copy_one(file, tier, done) and self._rest(tier).is_now:
                return
        self._copy_journals(tier, self._homes, done)

    def _copy_one(self, file: Checkpoint, tier: Tier, done: Done) -> bool:
        """Copy a file if it is here and no other process copies it; return False if it must be tried again."""
        rest = self._rest(tier)
        if self.stop.is_set():
            raise StoppedError
        if rest.is_now:
            return False
        seen = facts_if_seen(file.path)
        if seen is None or seen.size != file.size:
            done.elsewhere += 1
            return True
        bad, until, may_change = self._bad.get((file.id, tier), (None, 0.0, False))
        if bad == seen.mtime_ns and time.monotonic() < until:
            return not may_change
        try:
            with self._database.connected():
                copied = self._copy_if_free(file, tier, done)
        except StoreError as error:
            is_bad = isinstance(error, SourceError | WrongBytesError)
            if not is_bad and not self._is_of_one(error, tier):
                rest.begin()
                self._trouble(done, tier.name, error)
                return False
            self._bad[file.id, tier] = seen.mtime_ns, time.monotonic() + _BAD_SECONDS, not is_bad
            self._trouble(done, file.path, error)
            if is_bad:
                self._record(file, tier, CopyState.FAILED, detail=error.message)
            return is_bad
        if copied and rest.is_over():
            log.info("tier %s takes copies again", tier.name)
            self._said.discard(tier.name)
        return copied

    def _is_of_one(self, error: StoreError, tier: Tier) -> bool:
        """Whether a tier refuses one object, and takes others: a folder in it may be another user's."""
        if not isinstance(error, DeniedError):
            return False
        try:
            self._store(tier).check()
        except StoreError:
            return False
        return True

    def _copy_if_free(self, file: Checkpoint, tier: Tier, done: Done) -> bool:
        lease = _Lease(self._database, file, tier)
        if not lease.take():
            done.held += 1
            return False
        try:
            state = self._state(file, tier)
            if state in MADE:  # by another process, since this one listed the files
                return True
            self._database.let_go()  # other threads may need the connection meanwhile
            beside = copy_up(self._store(tier), file, self._limit(lease, done), anew=state is CopyState.FAILED)
            self._record(file, tier, CopyState.READY, beside=beside)
            self._homes.setdefault((tier, file.run, directory_of(file.path)), set()).add(file.rank)
            done.files += 1
        finally:
            lease.end()
        return True

    def _state(self, file: Checkpoint, tier: Tier) -> CopyState | None:
        """The recorded state of the copy of a file; None if there is none, or if the catalog cannot be used."""
        with suppress(CatalogUnavailableError), self._database.read() as connection:
            known = copies.copies_of(connection, [file.id]).get(file.id, ())
            return next((each.state for each in known if each.tier.id == tier.id and each.digest == file.digest), None)
        return None

    def _record(
        self, file: Checkpoint, tier: Tier, state: CopyState, *, beside: tuple[Beside, ...] = (), detail: str = ""
    ) -> None:
        if self._recorder.is_late:
            with suppress(CatalogUnavailableError):  # the journal has the events; the next copy tries again
                self._recorder.catch_up()
        facts.record_copy(self._recorder, file, tier, state, beside=beside, detail=detail)

    def _copied(self, run: str, tier: Tier) -> _Homes:
        """The homes of copied files of a run: the process that copied them may have ended before their journals."""
        with self._database.read() as connection:
            known = copies.copies_of_run(connection, reads.run_id(connection, run) or 0)
            made = {(file, copy.tier.id) for file, some in known.items() for copy in some if copy.state in MADE}
            files = reads.files_by_id(connection, [file for file, of in made if of == tier.id])
        homes: _Homes = {}
        for file in files.values():
            homes.setdefault((tier, file.run, directory_of(file.path)), set()).add(file.rank)
        return homes

    def _copy_journals(self, tier: Tier, homes: _Homes, done: Done) -> bool:
        """Copy the journals of files whose copies are in a tier; return whether the tier took them all."""
        rest = self._rest(tier)
        takes_all = True
        for (of, run, directory), ranks in homes.items():
            if of != tier:
                continue
            if rest.is_now:
                return False
            try:
                self._journals.copy(self._store(tier), tier, run, directory, ranks)
            except StoreError as error:
                takes_all = False
                if isinstance(error, SourceError) or self._is_of_one(error, tier):
                    self._trouble(done, directory, error)
                else:
                    rest.begin()
                    self._trouble(done, tier.name, error)
        return takes_all

    def _store(self, tier: Tier) -> Store:
        return self._stores.get(tier) or self._stores.setdefault(tier, open_tier(tier.url))

    def _rest(self, tier: Tier) -> _Rest:
        return self._rests.setdefault(tier, _Rest())

    def _limit(self, lease: _Lease, done: Done) -> Callable[[int], None]:
        def limit(count: int) -> None:
            self._rate.take(count)
            if self.stop.is_set():
                raise StoppedError
            lease.renew()
            self._database.let_go()
            done.bytes += count

        return limit

    def _trouble(self, done: Done, where: str, error: StoreError) -> None:
        trouble = Skipped(where, str(error))
        done.troubles += [] if trouble in done.troubles else [trouble]  # each run of a round looks at all journals
        if where not in self._said:
            self._said.add(where)
            log.warning("%s. Other copies go on; this is logged once.", error)


class _Rest:
    """The pause of a tier after a failure: about a second, then twice as long each time, up to five minutes."""

    def __init__(self) -> None:
        self.until = 0.0
        self._backoff = Backoff(_LONGEST_REST_SECONDS / _FIRST_RESTS)

    @property
    def is_now(self) -> bool:
        return time.monotonic() < self.until

    def begin(self) -> None:
        self.until = time.monotonic() + _FIRST_RESTS * self._backoff.pause()

    def is_over(self) -> bool:
        """End the pause, since the store works; return whether the store had failed before."""
        failed, self.until = self.until > 0, 0.0
        self._backoff.reset()
        return failed


class _Lease:
    """Keeps other processes from copying the same file to the same tier. This needs the catalog.

    Without the catalog, two processes may send the same bytes under the same key. The second may abort the upload of
    the first, which then tries again. This costs only time.
    """

    def __init__(self, database: Database, file: Checkpoint, tier: Tier) -> None:
        self._database, self._file, self._tier = database, file, tier
        self._process = this_process()
        self._renewed_at = 0.0
        self._is_held = False

    def take(self) -> bool:
        """Whether this process may copy the file."""

        def work(connection: Connection) -> bool:
            now = clock(connection)
            return copying.take(
                connection, self._file, self._tier, self._process, now=now, until=now + LEASE, is_dead=is_dead
            )

        try:
            self._is_held = self._database.in_write(work, is_kept=True)
        except CatalogUnavailableError:
            return True
        self._renewed_at = time.monotonic()
        return self._is_held

    def renew(self) -> None:
        """Renew the lease every 20 s. If another process has taken it over, both go on with the same bytes."""
        if not self._is_held or time.monotonic() - self._renewed_at < _RENEW_SECONDS:
            return
        self._renewed_at = time.monotonic()
        try:
            self._is_held = self._database.in_write(
                lambda connection: copying.renew(
                    connection, self._file, self._tier, self._process, until=clock(connection) + LEASE
                ),
                is_kept=True,
            )
        except CatalogUnavailableError:
            return

    def end(self) -> None:
        """Release the lease."""
        if not self._is_held:
            return
        try:
            self._database.in_write(
                lambda connection: copying.end(connection, self._file, self._tier, self._process), is_kept=True
            )
        except CatalogUnavailableError:
            return  # it expires


def _level_of(file: Checkpoint, declared: Iterable[Tier]) -> int:
    """The level of the tier that a file lies in; the level of a node's disk if it lies in none."""
    return max((tier.level for tier in declared if tier.contains(file.path)), default=facts.NODE_LEVEL)
