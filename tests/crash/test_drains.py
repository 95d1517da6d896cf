"""A few drains of pods; `make torture` has the long campaign."""

import random
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ckptstore.cli.leave import NOT_LEFT
from tests import ckpt_bytes
from tests.crash.drains import RANKS, Drain, Job, Said, drawn, of_sqlite

CALM = Drain(
    every=2,
    step_seconds=0.05,
    save_seconds=(0.0,) * RANKS,
    aside=True,
    steps_before=3,
    begins=0.0,
    pods=((1, 0.0),),
    grace=20.0,
    trouble="",
    trouble_from=-0.1,
    trouble_until=60.0,
    read_only=None,
    cancelled=None,
)


@pytest.mark.long
def test_drained_pods_leave_nothing_wrong(tmp_path: Path) -> None:
    """One in time, one without the catalog, one whose grace is too short for its step, and one by chance."""
    troubles = of_sqlite(tmp_path / "catalog.db")
    chance = random.Random(3)  # noqa: S311 — moments, not secrets
    drains = [
        CALM,
        replace(CALM, trouble="replaced", save_seconds=(0.0, 0.3, 0.0, 0.1), pods=((1, 0.0), (2, 0.1))),
        replace(CALM, step_seconds=1.0, steps_before=0, grace=0.3),
        drawn(chance, tuple(troubles), 1.5),
    ]
    job = Job(str(tmp_path / "catalog.db"), tmp_path, troubles, None)
    job.run(drains, 600.0)
    found = job.outcome
    assert (found.lost, found.wrong_plans, found.wrong, found.late) == ([], [], [], [])
    assert found.drains == len(drains)
    assert found.newest >= 2
    assert found.codes[str(NOT_LEFT)] >= 1
    assert found.codes["0"] >= 2


def test_the_campaign_sees_what_is_wrong(tmp_path: Path) -> None:
    """A check that cannot fail proves nothing."""
    has_plan = threading.Event()
    has_plan.set()
    files = [
        [rank, rank, str(ckpt_bytes.write(tmp_path / f"rank_{rank}" / "net_L1-2_7.ckpt", 17, 17))]
        for rank in range(RANKS)
    ]

    def seen(newest: str, files: list[list[object]], *said: Said, other: int = 17) -> list[str]:
        job = Job("", tmp_path, {}, None)
        job.newest, job._said = newest, list(said)
        plans = [{"step": step, "launch": "L1", "files": files} for step in (17, 17, 17, other)]
        job._judge([SimpleNamespace(plan=plan, has_plan=has_plan) for plan in plans], "L2")
        return job.outcome.wrong_plans

    def told(code: int, step: int) -> Said:
        return Said(0, code, f"…: a restart goes on after step {step}", 1.0, 2.0)

    assert seen("17 L1", files, told(0, 17), told(NOT_LEFT, 15)) == []
    assert len(seen("17 L1", files, other=15)) == 1
    assert seen("20 L1", files) == ["L2 starts at 17 of L1, not 20 L1"]
    assert len(seen("17 L1", files, told(0, 15))) == 1
    assert len(seen("17 L1", files, told(NOT_LEFT, 18))) == 1
    assert seen("17 L1", files[1:]) == ["L2 has files for ranks [1, 2, 3]"]
    assert len(seen("17 L1", [*files[:3], [3, 2, files[2][2]]])) == 1
    path = Path(str(files[1][2]))
    path.write_bytes(path.read_bytes()[:-1])
    assert seen("17 L1", files) == [f"L2 gives rank 1 {path}"]
