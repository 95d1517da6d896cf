"""Compares files with what the catalog has of them, and marks there what is damaged or gone."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.model import FileState, Skipped
from ckptstore.errors import CatalogUnavailableError, UsageError
from ckptstore.journal.sync import sync_run
from ckptstore.journal.writers import shared
from ckptstore.resume.examine import Damaged, Inconclusive, Unseen, Whole, examine
from ckptstore.resume.provenance import wrote
from ckptstore.resume.uncertainty import QUIET
from ckptstore.verify.selection import select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.verifications import Candidate
    from ckptstore.core.model import Checkpoint, Rule
    from ckptstore.resume.examine import Examined
    from ckptstore.verify.selection import Selection

    _Look = Future[Examined | None]

MOST_FILES = 500
"""So many files, or bytes of them, are looked at before it is recorded what they show."""
_MOST_BYTES = 1 << 30

_AHEAD = 2  # portions that are looked at a time: the disk is not to wait while the catalog is written
_SHOWN_EVERY = 0.2  # seconds
_THREADS = max(8, os.cpu_count() or 1)
_LOOKED_AT = (FileState.COMPLETE, FileState.DAMAGED, FileState.MISSING)


@dataclass(frozen=True)
class Damage:
    """A file that is not what was recorded of it: the rule that it breaks, and the particulars."""

    path: str
    rule: Rule
    detail: str


@dataclass(frozen=True)
class Verified:
    """What a verification found.

    `checked` files were looked at, of `bytes` in all. `troubles` could not be looked at from here; `skipped` are being
    written or another file by now; `unknown` are on disk in the run's directories and not in the catalog; `whole_again`
    were damaged or gone before. Of `new_digests` files the digest was taken for the first time.
    """

    runs: tuple[str, ...]
    checked: int
    bytes: int
    damaged: tuple[Damage, ...]
    troubles: tuple[Skipped, ...]
    skipped: tuple[Skipped, ...]
    unknown: tuple[Skipped, ...]
    whole_again: tuple[str, ...]
    new_digests: int


def verify(
    database: Database,
    run: str | None = None,
    *,
    digest: bool = False,
    sample: float | None = None,
    shard: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Verified:
    """Compare the files of a run, or of every run, with the catalog, and mark there what is damaged or gone.

    Sizes and headers; with `digest` every byte. `sample` is the part of the files, above 0 and up to 1, that is chosen
    by chance; what the run would go on from, what is newer and what is marked as damaged is always looked at. `shard`
    (I, N) is the I-th of N parts, I from 1: they are disjoint, and together all files. `progress` is told how much is
    done, and of how much, in bytes with `digest`, else in files. Raises `UnknownRunError`, `UsageError`, and
    `CatalogUnavailableError` where the catalog fails: what was found until then is marked.
    """
    if sample is not None and not 0 < sample <= 1:
        raise UsageError(f"the sample is {sample:g}", "give the part of the files, as 0.1 or 10%")
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise UsageError(f"the shard is {shard[0]}/{shard[1]}", "give one of N parts, from 1/N to N/N")
    if run is None:
        with database.read() as connection:
            names = reads.run_names(connection)
    else:
        names = [run]
    selections = [select(database, name, sample=sample, shard=shard) for name in names]
    try:
        with _Verifier(database, selections, digest=digest, progress=progress) as verifier:
            verifier.work()
    except CatalogUnavailableError as error:
        hint = f"{error.hint}; then the same command again: what was found until now is marked"
        raise CatalogUnavailableError(error.message, hint) from error
    found = verifier.findings
    return Verified(
        runs=tuple(names),
        checked=found.checked,
        bytes=found.bytes,
        damaged=tuple(sorted(found.damaged, key=lambda each: each.path)),
        troubles=_sorted(found.troubles),
        skipped=_sorted(found.skipped),
        unknown=_sorted(path for selection in selections for path in selection.unknown),
        whole_again=tuple(found.whole_again),
        new_digests=found.new_digests,
    )


def _sorted(paths: Iterable[Skipped]) -> tuple[Skipped, ...]:
    return tuple(sorted(paths, key=lambda each: each.path))


@dataclass
class _Findings:
    """What was found until now; the fields are those of `Verified`."""

    checked: int = 0
    bytes: int = 0
    new_digests: int = 0
    damaged: list[Damage] = field(default_factory=list)
    troubles: list[Skipped] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    whole_again: list[str] = field(default_factory=list)

    def add(self, seen: Examined) -> None:
        file = seen.file
        match seen:
            case Unseen(reason=reason):
                self.troubles.append(Skipped(file.path, reason))
            case Inconclusive(reason=reason):
                self.skipped.append(Skipped(file.path, reason))
            case Whole(after=after, size=size):
                self.checked += 1
                self.bytes += size
                self.new_digests += file.digest is None and after.digest is not None
                self.whole_again += [file.path] if file.state is not FileState.COMPLETE else []
            case Damaged(rule=rule, detail=detail, size=size):
                self.checked += 1
                self.bytes += size
                self.damaged.append(Damage(file.path, rule, detail))


class _StoppedError(Exception):
    """Nobody waits for the rest."""


class _Verifier:
    """Has files looked at on threads, and records what they show, portion by portion. To be closed."""

    def __init__(
        self,
        database: Database,
        selections: Sequence[Selection],
        *,
        digest: bool,
        progress: Callable[[int, int], None],
    ) -> None:
        self.findings = _Findings()
        self._database = database
        self._selections = selections
        self._digest = digest
        self._progress = progress
        self._recorder = shared(database)
        self._pool = ThreadPoolExecutor(_THREADS)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._done = 0
        self._all = sum(self._amount(file.size) for selection in selections for file in selection.files)

    def __enter__(self) -> _Verifier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop at once."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
        self._recorder.close()

    def work(self) -> None:
        """Look at all of them. Raises `CatalogUnavailableError`."""
        begun: deque[tuple[int, list[_Look]]] = deque()
        for selection in self._selections:
            for file in selection.vanished:
                if (seen := examine(file, read_bytes=False)) is not None:
                    self.findings.add(seen)
            for portion in self._portions(selection.files):
                begun.append((selection.run_id, self._begin(portion)))
                if len(begun) == _AHEAD:
                    self._finish(*begun.popleft())
        for run_id, looks in begun:
            self._finish(run_id, looks)
        self._progress(self._all, self._all)

    def _amount(self, size: int | None) -> int:
        """What a file counts in the measure of progress: its bytes if they are read, else 1."""
        return size or 0 if self._digest else 1

    def _portions(self, files: Sequence[Candidate]) -> Iterator[list[Candidate]]:
        portion: list[Candidate] = []
        weight = 0
        for file in files:
            weight += file.size
            portion.append(file)
            if len(portion) == MOST_FILES or (self._digest and weight >= _MOST_BYTES):
                yield portion
                portion, weight = [], 0
        if portion:
            yield portion

    def _begin(self, portion: Sequence[Candidate]) -> list[_Look]:
        with self._database.read() as connection:
            known = reads.files_by_id(connection, [each.id for each in portion])
        files = [known[each.id] for each in portion if each.id in known]
        return [self._pool.submit(self._look, file) for file in files if file.state in _LOOKED_AT]

    def _look(self, file: Checkpoint) -> Examined | None:
        counted = 0

        def progress(more: int) -> None:
            nonlocal counted
            if self._stopped.is_set():
                raise _StoppedError
            if self._digest:
                counted += more
                self._count(more)

        seen = examine(file, read_bytes=self._digest, progress=progress)
        self._count(self._amount(file.size) - counted)
        return seen

    def _count(self, more: int) -> None:
        with self._lock:
            self._done += more

    def _finish(self, run_id: int, looks: Sequence[_Look]) -> None:
        """Wait for the looks at a portion, and record what they show."""
        while wait(looks, _SHOWN_EVERY).not_done:
            self._progress(min(self._done, self._all), self._all)
        for each in self._recorded(run_id, [each for look in looks if (each := look.result()) is not None]):
            self.findings.add(each)

    def _recorded(self, run_id: int, seen: Sequence[Examined]) -> list[Examined]:
        """What stands of what was seen once it is recorded: nothing where a record has changed meanwhile."""
        if any(isinstance(each, Damaged) and each.rewritten_ns is not None for each in seen):
            seen = self._without_overwritten(run_id, seen)
        news = [each for each in seen if isinstance(each, Whole | Damaged) and each.file != each.after]
        stood = self._recorder.amend([(each.file, each.after) for each in news]) if news else []
        changed = {each.file.id for each, stands in zip(news, stood, strict=True) if not stands}
        return [each for each in seen if each.file.id not in changed]

    def _without_overwritten(self, run_id: int, seen: Sequence[Examined]) -> list[Examined]:
        """What later launches have written over is no damage: their save is registered by now, or about to be."""
        sync_run(self._database, run_id)
        with self._database.read() as connection:
            orders = {launch.id: launch.order for launch in reads.launches_of(connection, run_id)}
            sources = reads.sources_of(connection, run_id)
        quiet_since_ns = int((datetime.now(timezone.utc) - QUIET).timestamp() * 1e9)

        def is_overwritten(file: Checkpoint) -> bool:
            home, _, name = file.path.rpartition("/")
            later = (source for source in sources if orders[source.launch] > orders[file.launch])
            return any(source.directory == home and wrote(source, name) for source in later)

        return [
            Inconclusive(each.file, "a later launch has just written it: what that saved is not registered yet")
            if isinstance(each, Damaged) and (each.rewritten_ns or 0) > quiet_since_ns and is_overwritten(each.file)
            else each
            for each in seen
        ]
