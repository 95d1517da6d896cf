"""Compares files with their records, and marks damaged and missing ones in the catalog."""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import CancelledError, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, verifications
from ckptstore.catalog.runs import find_run, run_names
from ckptstore.catalog.verifications import Candidate
from ckptstore.core.classify import What, classify
from ckptstore.core.hints import Command
from ckptstore.core.ids import derived_id
from ckptstore.core.model import FileState, Rule, Skipped
from ckptstore.disk import presence
from ckptstore.disk.waiting import for_each, portions
from ckptstore.disk.walk import look
from ckptstore.errors import CatalogUnavailableError, UsageError
from ckptstore.evidence.writers import Writers, wrote
from ckptstore.journal.recorder import shared
from ckptstore.journal.sync import sync_run
from ckptstore.outside import CHANCE, Future, ThreadPoolExecutor, os, threading, utc_now
from ckptstore.resume import resolve
from ckptstore.resume.examine import Damaged, Inconclusive, Unseen, Whole, examine
from ckptstore.resume.resolver import NEWEST
from ckptstore.resume.uncertainty import QUIET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint
    from ckptstore.resume.examine import Examined

    _Look = Future[Examined | None]
    _Progress = Callable[[int, int], None]  # called with the amount done, and the whole amount

MOST_FILES = 500  # findings are recorded after so many files, or (`_MOST_BYTES`) so many bytes
_MOST_BYTES = 1 << 30
_AHEAD = 2  # portions that are read at a time: reading goes on while the catalog is written
_SHOWN_EVERY = 0.2  # seconds
_THREADS = max(8, os.cpu_count() or 1)
_LOOKED_AT = (FileState.COMPLETE, FileState.DAMAGED, FileState.MISSING)


@dataclass(frozen=True)
class Damage:
    """A file that differs from its record: the rule that it breaks, and the details."""

    path: str
    rule: Rule
    detail: str


@dataclass(frozen=True)
class Verified:
    """What a verification found."""

    runs: tuple[str, ...]
    checked: int  # files
    bytes: int  # of those
    damaged: tuple[Damage, ...]
    troubles: tuple[Skipped, ...]  # files that could not be read from here
    skipped: tuple[Skipped, ...]  # files that are being written, or were replaced since they were recorded
    unknown: tuple[Skipped, ...]  # files in the run's directories that are not in the catalog
    whole_again: tuple[str, ...]  # files that were damaged or missing before
    new_digests: int  # files whose digest was taken for the first time
    missing_before: int  # files that were recorded as missing before; gc did not delete them


def verify(
    database: Database,
    run: str | None = None,
    *,
    digest: bool = False,
    sample: float | None = None,
    shard: tuple[int, int] | None = None,
    progress: _Progress = lambda _done, _all: None,
) -> Verified:
    """Compare the files of a run, or of every run, with the catalog, and mark damaged and missing files there.

    - It checks sizes and headers, with `digest` every byte.
    - `sample`, above 0 and up to 1, is the part of the files to choose at random. Damaged files, the files of the state
      that the run would resume from, and newer files are always checked.
    - `shard` (I, N) checks the I-th of N parts, I from 1. The parts are disjoint, and together they are all files.
    - `progress` is called with the amount done and the whole amount: bytes with `digest`, else files.

    Raises `UnknownRunError`, `UsageError`, and `CatalogUnavailableError` if the catalog fails: the findings up to then
    are recorded.
    """
    if sample is not None and not 0 < sample <= 1:
        raise UsageError(f"the sample is {sample:g}", "give the part of the files, as 0.1 or 10%")
    if shard is not None and not 1 <= shard[0] <= shard[1]:
        raise UsageError(f"the shard is {shard[0]}/{shard[1]}", "give one of N parts, from 1/N to N/N")
    runs = run_names(database, run)
    selections = [_select(database, name, sample=sample, shard=shard) for name in runs]
    try:
        with closing(_Verifier(database, selections, digest=digest, progress=progress)) as verifier:
            verifier.work()
    except CatalogUnavailableError as error:
        hint = f"{error.hint}; then run the same command again: the findings up to now are recorded"
        raise CatalogUnavailableError(error.message, hint) from error
    found = verifier.findings
    with database.read() as connection:
        missing = sum(verifications.missing(connection, selection.run_id) for selection in selections)
    return Verified(
        runs=tuple(runs),
        checked=found.checked,
        bytes=found.bytes,
        damaged=tuple(sorted(found.damaged, key=lambda each: each.path)),
        troubles=_sorted(found.troubles),
        skipped=_sorted(found.skipped),
        unknown=_sorted(path for selection in selections for path in selection.unknown),
        whole_again=tuple(found.whole_again),
        new_digests=found.new_digests,
        missing_before=max(missing - sum(each.rule is Rule.MISSING_FILE for each in found.damaged), 0),
    )


def _sorted(paths: Iterable[Skipped]) -> tuple[Skipped, ...]:
    return tuple(sorted(paths, key=lambda each: each.path))


@dataclass
class _Findings:
    """The findings up to now; the fields are those of `Verified`."""

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


class _Verifier:
    """Looks at files on threads, and records the findings in portions."""

    def __init__(
        self, database: Database, selections: Sequence[_Selection], *, digest: bool, progress: _Progress
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
        self._all = sum(file.size if digest else 1 for selection in selections for file in selection.files)

    def close(self) -> None:
        """Stop at once."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def work(self) -> None:
        """Check all files. Raises `CatalogUnavailableError`."""
        begun: deque[tuple[int, list[_Look]]] = deque()
        for selection in self._selections:
            for file in selection.vanished:
                if (seen := examine(file, read_bytes=False, places=selection.places)) is not None:
                    self.findings.add(seen)
            for portion in portions(selection.files, _MOST_BYTES, self._weight):
                begun.append((selection.run_id, self._begin(portion, selection.places)))
                if len(begun) == _AHEAD:
                    self._finish(*begun.popleft())
        for run_id, looks in begun:
            self._finish(run_id, looks)
        self._progress(self._all, self._all)

    def _weight(self, file: Candidate) -> int:
        return max(-(-_MOST_BYTES // MOST_FILES), file.size if self._digest else 0)

    def _begin(self, portion: Sequence[Candidate], places: Mapping[str, set[str]]) -> list[_Look]:
        with self._database.read() as connection:
            known = reads.files_by_id(connection, [each.id for each in portion])
        files = [known[each.id] for each in portion if each.id in known]
        return [self._pool.submit(self._look, file, places) for file in files if file.state in _LOOKED_AT]

    def _look(self, file: Checkpoint, places: Mapping[str, set[str]]) -> Examined | None:
        def progress(more: int) -> None:
            if self._stopped.is_set():
                raise CancelledError  # the results are not needed any more
            self._count(more if self._digest else 0)

        seen = examine(file, read_bytes=self._digest, places=places, progress=progress)
        self._count(0 if self._digest else 1)
        return seen

    def _count(self, more: int) -> None:
        with self._lock:
            self._done += more

    def _finish(self, run_id: int, looks: Sequence[_Look]) -> None:
        """Wait for a portion of files, and record the findings."""
        while wait(looks, _SHOWN_EVERY).not_done:
            self._progress(min(self._done, self._all), self._all)
        for each in self._recorded(run_id, [each for future in looks if (each := future.result()) is not None]):
            self.findings.add(each)

    def _recorded(self, run_id: int, seen: Sequence[Examined]) -> list[Examined]:
        """Record the findings; return them without those whose record has changed since the file was read."""
        if any(isinstance(each, Damaged) and each.rewritten_ns is not None for each in seen):
            seen = self._without_overwritten(run_id, seen)
        news = [each for each in seen if isinstance(each, Whole | Damaged) and each.file != each.after]
        stood = self._recorder.amend([(each.file, each.after) for each in news]) if news else []
        changed = {each.file.id for each, stands in zip(news, stood, strict=True) if not stands}
        return [each for each in seen if each.file.id not in changed]

    def _without_overwritten(self, run_id: int, seen: Sequence[Examined]) -> list[Examined]:
        """Make findings inconclusive if a later launch has just overwritten the file: its save will be registered."""
        sync_run(self._database, run_id)
        homes = {each.file.path.rpartition("/")[0] for each in seen if isinstance(each, Damaged) and each.rewritten_ns}
        with self._database.read() as connection:
            orders = {launch.id: launch.order for launch in reads.launches_of(connection, run_id)}
            writers = Writers((each.directory, each) for each in reads.sources_of(connection, run_id, homes))
        quiet_since_ns = _quiet_since_ns()

        def is_overwritten(file: Checkpoint) -> bool:
            home, _, name = file.path.rpartition("/")
            likely = (each for each in writers.of(home, name) if orders[each.launch] > orders[file.launch])
            return any(wrote(each, name) for each in likely)

        return [
            Inconclusive(each.file, "a later launch has just written it: what that saved is not registered yet")
            if isinstance(each, Damaged) and (each.rewritten_ns or 0) > quiet_since_ns and is_overwritten(each.file)
            else each
            for each in seen
        ]


@dataclass(frozen=True)
class _Selection:
    """The files of a run to check, newest first, and the findings made while choosing them."""

    run_id: int
    files: tuple[Candidate, ...]
    vanished: tuple[Checkpoint, ...]  # missing since the last check; the catalog has them as missing now
    unknown: tuple[Skipped, ...]  # checkpoints in the run's directories that the catalog does not know
    places: Mapping[str, set[str]]  # from `presence.unidentified`


def _select(database: Database, run: str, *, sample: float | None, shard: tuple[int, int] | None) -> _Selection:
    """Choose the files of a run that are in a shard. Raises `UnknownRunError`.

    A vanished file is in the selection of the process that notices it first, in any shard.
    """
    run_id = find_run(database, run)
    vanished = resolve.bring_up_to_date(database, run_id).vanished
    with database.read() as connection:
        candidates = verifications.candidates(connection, run_id)
        now = reads.files_by_id(connection, [file.id for file in vanished])
        places = presence.unidentified(reads.recorded_paths(connection, run_id))
    unregistered = _unregistered(database, run_id, {each.path for each in candidates})
    back, unknown = _recorded_as_gone(database, unregistered)
    adopt = Command("scan", "DIRECTORY")
    unrecorded = f"the catalog does not know it; to adopt it, if its step is certain: {adopt}"
    return _Selection(
        run_id,
        files=tuple(
            each for each in _sampled(database, run, run_id, candidates, sample) + back if in_shard(each.path, shard)
        ),
        vanished=tuple(file for file in vanished if now[file.id].state is FileState.MISSING),
        unknown=tuple(Skipped(path, unrecorded) for path in unknown if in_shard(path, shard)),
        places=places,
    )


def in_shard(path: str, shard: tuple[int, int] | None) -> bool:
    """Whether a path belongs to shard (I, N), I from 1. Each path is in one of N shards, the same on every machine."""
    if shard is None:
        return True
    number, count = shard
    return int(derived_id(path, size=8), 16) % count == number - 1


def _unregistered(database: Database, run_id: int, known: set[str]) -> dict[str, int]:
    """The checkpoints in the run's directories that are not `known`, with their sizes in bytes."""
    with database.read() as connection:
        directories = {source.directory for source in reads.announced_by(connection, run_id)}
    directories |= {path.rpartition("/")[0] for path in known}
    quiet_since_ns = _quiet_since_ns()  # a newer file may be about to be registered
    sizes = {
        f"{listed.path.rstrip('/')}/{seen.name}": seen.size
        for listed, _ in for_each(look, sorted(directories))
        for seen in listed.files
        if seen.mtime_ns < quiet_since_ns and classify([seen.name]).what is What.CHECKPOINT
    }
    return {path: sizes[path] for path in sorted(sizes.keys() - known)}


def _quiet_since_ns() -> int:
    return int((utc_now() - QUIET).timestamp() * 1e9)


def _recorded_as_gone(database: Database, sizes: dict[str, int]) -> tuple[list[Candidate], list[str]]:
    """The files on disk that the catalog has as missing, and the files that it has no record of."""
    with database.read() as connection:
        recorded = reads.files_at_paths(connection, list(sizes))
    back: list[Candidate] = []
    unknown = []
    for path, size in sizes.items():
        records = recorded.get(path, [])
        if not all(file.state.is_gone for file in records):
            continue
        gone = [file for file in records if file.state is FileState.MISSING and file.size == size]
        back += [Candidate(file.id, path, size, file.launch, file.global_step) for file in gone]
        if not gone:
            unknown.append(path)
    return back, unknown


def _sampled(
    database: Database, run: str, run_id: int, candidates: Sequence[Candidate], sample: float | None
) -> list[Candidate]:
    """The sampled files, with all damaged ones, those of the state that the run would resume from, and newer ones."""
    if sample is None or not candidates:
        return list(candidates)
    plan = resolve.choose(database, run, run_id, NEWEST).plan
    state = (plan.launch.id, plan.global_step) if plan else (candidates[0].launch, candidates[0].global_step)
    last = max((at for at, each in enumerate(candidates) if (each.launch, each.global_step) == state), default=-1)
    others = [at for at, each in enumerate(candidates) if at > last and not each.is_damaged]
    left_out = set(others) - set(CHANCE.sample(others, math.ceil(len(others) * sample)))
    return [each for at, each in enumerate(candidates) if at not in left_out]
