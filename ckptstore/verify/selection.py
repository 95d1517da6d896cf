"""Which files of a run a verification looks at."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, verifications
from ckptstore.catalog.runs import find_run
from ckptstore.catalog.verifications import Candidate
from ckptstore.core.classify import What, classify
from ckptstore.core.model import FileState, Skipped
from ckptstore.disk.waiting import for_each
from ckptstore.disk.walk import look
from ckptstore.resume import resolve
from ckptstore.resume.uncertainty import QUIET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint

_CHANCE = random.SystemRandom()
_UNKNOWN = "the catalog does not know it; ckptstore scan takes in what can be proven of it"


@dataclass(frozen=True)
class Selection:
    """The files of a run to look at, newest first.

    Choosing them showed which others have `vanished` since the catalog last looked, marked there by now, and which
    checkpoints in the run's directories are `unknown` to it.
    """

    run: str
    run_id: int
    files: tuple[Candidate, ...]
    vanished: tuple[Checkpoint, ...]
    unknown: tuple[Skipped, ...]


def select(database: Database, run: str, *, sample: float | None, shard: tuple[int, int] | None) -> Selection:
    """Choose the files of a run that are in a shard. Raises `UnknownRunError`.

    What has vanished is in the selection of whoever notices first, whatever its shard.
    """
    run_id = find_run(database, run)
    vanished = resolve.bring_up_to_date(database, run_id).vanished
    with database.read() as connection:
        candidates = verifications.candidates(connection, run_id)
        now = reads.files_by_id(connection, [file.id for file in vanished])
    unregistered = _unregistered(database, run_id, {each.path for each in candidates})
    back, unknown = _recorded_as_gone(database, unregistered)
    return Selection(
        run,
        run_id,
        files=tuple(
            each for each in _sampled(database, run, run_id, candidates, sample) + back if in_shard(each.path, shard)
        ),
        vanished=tuple(file for file in vanished if now[file.id].state is FileState.MISSING),
        unknown=tuple(Skipped(path, _UNKNOWN) for path in unknown if in_shard(path, shard)),
    )


def in_shard(path: str, shard: tuple[int, int] | None) -> bool:
    """Whether a path belongs to shard (I, N), I from 1: each path to one of N shards, the same on every machine."""
    if shard is None:
        return True
    number, count = shard
    hashed = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(hashed, "big") % count == number - 1


def _unregistered(database: Database, run_id: int, known: set[str]) -> dict[str, int]:
    """The checkpoints in the run's directories that are not `known`, with their sizes in bytes."""
    with database.read() as connection:
        directories = {source.directory for source in reads.sources_of(connection, run_id)}
    directories |= {path.rpartition("/")[0] for path in known}
    quiet_since_ns = int((datetime.now(timezone.utc) - QUIET).timestamp() * 1e9)  # else it may be being registered
    sizes = {
        f"{listed.path.rstrip('/')}/{seen.name}": seen.size
        for listed, _ in for_each(look, sorted(directories))
        for seen in listed.files
        if seen.mtime_ns < quiet_since_ns and classify([seen.name]).what is What.CHECKPOINT
    }
    return {path: sizes[path] for path in sorted(sizes.keys() - known)}


def _recorded_as_gone(database: Database, sizes: dict[str, int]) -> tuple[list[Candidate], list[str]]:
    """Of files that are there: those that the catalog takes to be gone, and those that it does not know."""
    with database.read() as connection:
        recorded = reads.files_at_paths(connection, list(sizes))
    back: list[Candidate] = []
    unknown = []
    for path, size in sizes.items():
        records = recorded.get(path, [])
        if any(file.state not in (FileState.MISSING, FileState.MOVED) for file in records):
            continue
        gone = [file for file in records if file.state is FileState.MISSING and file.size == size]
        back += [Candidate(file.id, path, size, file.launch, file.global_step) for file in gone]
        if not gone:
            unknown.append(path)
    return back, unknown


def _sampled(
    database: Database, run: str, run_id: int, candidates: Sequence[Candidate], sample: float | None
) -> list[Candidate]:
    """The part of the files that is looked at: always what the run would go on from, what is newer, what is damaged."""
    if sample is None or not candidates:
        return list(candidates)
    plan = resolve.newest(database, run, run_id)
    state = (plan.launch.id, plan.global_step) if plan else (candidates[0].launch, candidates[0].global_step)
    last = max((at for at, each in enumerate(candidates) if (each.launch, each.global_step) == state), default=-1)
    others = [at for at, each in enumerate(candidates) if at > last and not each.is_damaged]
    left_out = set(others) - set(_CHANCE.sample(others, math.ceil(len(others) * sample)))
    return [each for at, each in enumerate(candidates) if at not in left_out]
