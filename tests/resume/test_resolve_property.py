"""Generated jobs on a real disk and in a real catalog: `resolve` answers as the oracle of `tests/oracle.py` does."""

import itertools
import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings

from ckptstore.api import Catalog, connect
from ckptstore.core.events import Event, FileRecorded, LaunchStarted
from ckptstore.core.model import Checkpoint, Launch, Observed, Rule
from tests.oracle import Answer, Candidate, history
from tests.projecting import put
from tests.resume.simulated_jobs import Job, jobs

_runs = itertools.count()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Catalog, Path]:
    """One catalog for all examples: each is a run of its own."""
    root = tmp_path_factory.mktemp("runs")
    return connect(str(root / "catalog.db")), root


@cache
def digest(size: int) -> str:
    return str(blake3(bytes(size)).hexdigest())


def make_real(catalog: Catalog, root: Path, job: Job) -> str:
    """Make a job real: its launches and files in the catalog, and on disk what the job says is seen there."""
    run = f"run-{next(_runs)}"
    now = datetime.now(timezone.utc)
    files = [
        replace(
            file,
            run=run,
            launch=f"{run}.{file.launch}",
            path=f"{root}/{run}{file.path}",
            digest=file.digest and digest(file.size or 0),
        )
        for file in job.files
    ]
    for before, file in zip(job.files, files, strict=True):
        put_file(file, job.disk.get(before.path))
    events: list[Event] = []
    known: dict[str, Launch] = {}
    for launch in sorted(job.launches, key=lambda launch: launch.order):
        began = now + timedelta(seconds=launch.order)
        facts = replace(launch, id=f"{run}.{launch.id}", run=run, parent=None, parent_step=None, created_at=began)
        known[launch.id] = facts
        origin = known.get(launch.parent or "") if launch.parent_step is not None else None
        if origin is not None:
            facts = replace(facts, parent=origin.id, parent_step=launch.parent_step)
        events.append(LaunchStarted(facts, began if launch.decided else None, origin))
    put(catalog, [*events, *(FileRecorded(replace(file, created_at=file.created_at or now)) for file in files)])
    return run


def put_file(file: Checkpoint, seen: Observed | None) -> None:
    if seen is None:
        return
    path = Path(file.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if seen.size is None:
        path.mkdir()
        return
    path.write_bytes((b"x" if seen.digest == "other" else b"\0") * seen.size)
    moment = seen.mtime_ns or file.mtime_ns or 1
    os.utime(path, ns=(moment, moment))


@settings(max_examples=120)
@given(job=jobs())
def test_the_answer_is_the_oracles(place: tuple[Catalog, Path], job: Job) -> None:
    catalog, root = place
    run = make_real(catalog, root, job)
    silent = any(seen.digest == "other" and seen.mtime_ns is None for seen in job.disk.values())
    found = catalog.resolve(run, verify="digest" if silent else "size")

    def known(launch: str, step: int) -> tuple[str, int]:
        return launch.removeprefix(f"{run}."), step

    by_oracle = [Candidate(launch, step, job.files, job.disk) for launch, step in history(job.launches, job.files)]
    order = [(each.launch.id, each.step) for each in by_oracle]
    chosen = known(found.plan.launch.id, found.plan.global_step) if found.plan else None
    newer = by_oracle if chosen is None else by_oracle[: order.index(chosen)]
    if found.plan is not None:
        assert by_oracle[len(newer)].restorable() is not Answer.NO
    assert all(each.restorable() is not Answer.YES for each in newer)

    rules = {
        known(each.launch, each.global_step): {reason.rule for reason in each.reasons} for each in found.rejections
    }
    assert len(rules) == len(found.rejections)
    reached = chosen[1] if chosen else -1
    saved = {(file.launch, file.global_step) for file in job.files}
    abandoned = {each for each in saved - set(order) if each[1] > max(reached, 0)}
    untrained = {each for each in saved if each[1] == 0}
    assert set(rules) == {(each.launch.id, each.step) for each in newer} | abandoned | untrained
    assert all((rules[each] == {Rule.NOT_LINEAGE}) == (each in abandoned) for each in rules)
    assert all(rules[each] == {Rule.UNTRAINED} for each in untrained)
