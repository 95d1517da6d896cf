"""What is to be verified of a run: chosen once for all who share the work, in portions; or what is under way."""

from __future__ import annotations

import math
import random
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from ckptstore.catalog import reads, verifications, writes
from ckptstore.catalog.verifications import Candidate, Portion, Verification
from ckptstore.core.classify import What, classify
from ckptstore.core.model import FileState
from ckptstore.ops import resolve
from ckptstore.ops.doubt import QUIET
from ckptstore.ops.examine import Damaged, Examined, Passed, Unseen, Whole, examine
from ckptstore.ops.runs import find_run
from ckptstore.storage.waiting import for_each
from ckptstore.storage.walk import look

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint

FORGOTTEN = timedelta(days=1)
"""A verification that nobody went on with for so long is not gone on with: what it saw is of another day."""

MOST_FILES = 500
MOST_BYTES = 4 << 30
_LEAST_BYTES = 256 << 20
_PORTIONS = 64  # of a run that is large enough, so that several processes have all something to do until the end
_CHANCE = random.SystemRandom()
_UNKNOWN = "the catalog does not know it; ckptstore scan takes in what can be proven of it"


@dataclass(frozen=True)
class Task:
    """A verification to work on; `gone` is how many files that are gone were found before the work began."""

    verification: Verification
    run: str
    gone: int = 0


def begin(database: Database, run: str, *, digest: bool, sample: float | None) -> Task:
    """Join the verification of this kind that is under way, else choose what is to be looked at and begin one.

    It goes on with an interrupted one, if somebody was at work on it within `FORGOTTEN`. Raises `UnknownRunError`.
    """
    run_id = find_run(database, run)
    with database.read() as connection:
        there = _under_way(connection, run_id, digest=digest, sample=sample)
    if there is not None:
        return Task(there, run)
    vanished = resolve.bring_up_to_date(database, run_id).vanished
    with database.read() as connection:
        candidates = verifications.candidates(connection, run_id)
        still = reads.files_by_id(connection, [file.id for file in vanished])
    gone = [file for file in vanished if still[file.id].state is FileState.MISSING]
    seen = [each for file in gone if (each := examine(file, read_bytes=False)) is not None]
    unknown, back = _strangers(database, run_id, candidates)
    chosen = _sampled(database, run, run_id, candidates, sample) + back
    began = Verification(secrets.token_hex(16), run_id, digest, sample, datetime.now(timezone.utc))
    with database.write() as connection:
        writes.lock_run(connection, run_id)
        there = _under_way(connection, run_id, digest=digest, sample=sample)
        now = verifications.clock(connection)
        if there is None:
            stale = verifications.under_way(connection, run_id, digest=digest, sample=sample)
            verifications.end(connection, [stale.id] if stale else [], now)
            verifications.forget(connection, run_id, now - FORGOTTEN)
            began = Verification(began.id, run_id, digest, sample, now)
            verifications.begin(connection, began, _portions(began, chosen), unknown)
        if seen:
            verifications.add_done(connection, (there or began).id, found(seen), now)
    return Task(there or began, run, sum(isinstance(each, Damaged) for each in seen))


def found(seen: Iterable[Examined]) -> dict[str, Any]:
    """What the catalog keeps of what was seen of some files."""
    told: dict[str, Any] = {"checked": 0, "bytes": 0, "new_digests": 0}
    told |= {name: [] for name in ("damaged", "troubles", "skipped", "whole_again")}
    for each in seen:
        path = each.file.path
        match each:
            case Whole():
                told["checked"] += 1
                told["bytes"] += each.size
                told["new_digests"] += each.file.digest is None and each.after.digest is not None
                told["whole_again"] += [path] if each.file.state is not FileState.COMPLETE else []
            case Damaged():
                told["checked"] += 1
                told["bytes"] += each.size
                told["damaged"].append([path, each.rule.value, each.detail])
            case Unseen():
                told["troubles"].append([path, each.reason])
            case Passed():
                told["skipped"].append([path, each.reason])
    return told


def _under_way(connection: Connection, run_id: int, *, digest: bool, sample: float | None) -> Verification | None:
    there = verifications.under_way(connection, run_id, digest=digest, sample=sample)
    if there is None or not verifications.progress(connection, [there.id])[there.id].open_portions:
        return None
    is_recent = verifications.last_sign(connection, there) >= verifications.clock(connection) - FORGOTTEN
    return there if is_recent else None


def _strangers(
    database: Database, run_id: int, candidates: Sequence[Candidate]
) -> tuple[list[tuple[str, str]], list[Candidate]]:
    """What is on disk in the run's directories and not in the catalog, and what that takes to be gone."""
    with database.read() as connection:
        homes = {source.directory for source in reads.sources_of(connection, run_id)}
    known = {candidate.path for candidate in candidates}
    homes |= {path.rpartition("/")[0] for path in known}
    quiet_since_ns = int((datetime.now(timezone.utc) - QUIET).timestamp() * 1e9)  # else it may be being registered
    sizes = {
        f"{listed.path.rstrip('/')}/{seen.name}": seen.size
        for listed, _ in for_each(look, sorted(homes))
        for seen in listed.files
        if seen.mtime_ns < quiet_since_ns and classify([seen.name]).what is What.CHECKPOINT
    }
    strange = sorted(sizes.keys() - known)
    with database.read() as connection:
        recorded = reads.files_at_paths(connection, strange)
    unknown, back = [], []
    for path in strange:
        records = recorded.get(path, [])
        gone = [file for file in records if file.state is FileState.MISSING and file.size == sizes[path]]
        if any(file.state not in (FileState.MISSING, FileState.MOVED) for file in records):
            continue
        if gone:
            back += [_candidate(file) for file in gone]
        else:
            unknown.append((path, _UNKNOWN))
    return unknown, back


def _candidate(file: Checkpoint) -> Candidate:
    return Candidate(file.id, file.path, file.size or 0, False, file.launch, file.global_step)  # noqa: FBT003


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


def _portions(verification: Verification, chosen: Sequence[Candidate]) -> list[Portion]:
    whole = sum(each.size for each in chosen)
    most_bytes = min(max(whole // _PORTIONS, _LEAST_BYTES), MOST_BYTES)
    portions: list[list[Candidate]] = []
    weight = 0
    for each in chosen:
        is_full = bool(portions) and (
            len(portions[-1]) == MOST_FILES or (verification.digest and weight + each.size > most_bytes)
        )
        if not portions or is_full:
            portions.append([])
            weight = 0
        portions[-1].append(each)
        weight += each.size
    return [
        Portion(
            verification.id,
            number,
            tuple(each.id for each in some),
            sum(each.size for each in some) if verification.digest else len(some),
        )
        for number, some in enumerate(portions, 1)
    ]
