"""`advise` counts what saves cost and how often launches failed, and says what the present interval loses."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ckptstore.advise.advise import ASSUMED, mtbf_of
from ckptstore.api import Catalog
from ckptstore.catalog import leases
from ckptstore.catalog.engine import open_database
from ckptstore.core.events import Event, FileRecorded, LaunchStarted, TrainingEnded
from ckptstore.core.interval import Cost, Failures, best_steps, lost
from ckptstore.core.model import BRANCH, IMPORTED, SCANNED, Checkpoint, Kind, Launch, Timing, launch_key
from ckptstore.core.replicas import data_parallel
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.retention import stored_policy
from ckptstore.retention.policy import Policy
from tests.command_line import assert_one_line, ckptstore
from tests.projecting import put

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
HOUR = 3600.0
WEEK = 7 * 86400
TIMING = Timing(2.0, 10.0, 0.5)
SIZE = 1000


def launch(number: int, *, name: str = "", at: float) -> Launch:
    return Launch(
        id=name or f"L{number}",
        run="run",
        order=0,
        world_size=2,
        layout=data_parallel(2),
        created_at=START + timedelta(hours=at),
    )


def saved(of: Launch, step: int, at: float, timings: Sequence[Timing | None] = (TIMING, TIMING)) -> list[Event]:
    """A save of both ranks, so many hours after the start of the launch."""
    assert of.created_at is not None
    file = Checkpoint(
        run="run",
        launch=of.id,
        kind=Kind.PERIODIC,
        global_step=step,
        rank=0,
        path="/x",
        size=SIZE,
        mtime_ns=10**9 * step,
        created_at=of.created_at + timedelta(hours=at),
    )
    return [
        FileRecorded(replace(file, rank=rank, path=f"/run/{of.id}/rank_{rank}/{step}", timing=timing))
        for rank, timing in enumerate(timings)
    ]


def trained(
    number: int, error: str | None = None, *, hours: float = 10.0, name: str = "", step: int = 3000, ends: bool = True
) -> list[Event]:
    """A launch that saved three times, and then ended."""
    of = launch(number, name=name, at=20.0 * number)
    found: list[Event] = [LaunchStarted(of)]
    for count in (1, 2, 3):
        found += saved(of, step * count // 3, hours * count / 3)
    if ends:
        assert of.created_at is not None
        at = of.created_at + timedelta(hours=hours)
        found += [TrainingEnded("run", of.id, rank, step, None, error, "", at) for rank in (0, 1)]
    return found


def test_a_run_that_failed_twice(catalog: Catalog, database_url: str) -> None:
    put(catalog, [*trained(1, "RuntimeError"), *trained(2, "RuntimeError"), *trained(3)])
    stored_policy.store(catalog.database, "run", Policy(keep_last=5, keep_every=9000, grace=timedelta(hours=1)))
    found = catalog.advise("run")
    cost = Cost(2.0, 10.0)
    assert (found.cost, found.is_written, found.step, found.state_bytes) == (cost, True, 0.5, 2 * SIZE)
    assert (found.failures.count, found.failures.seconds, found.mtbf) == (2, 30 * HOUR, 15 * HOUR)
    assert (found.present.steps, found.present.seconds) == (1000, 500.0)
    assert found.present.lost_steps == lost(500.0, cost, 15 * HOUR) * WEEK / 0.5
    assert found.best.steps == best_steps(cost, 15 * HOUR, 0.5) == 927
    assert found.best.lost_steps is not None
    assert 0 < found.best.lost_steps < found.present.lost_steps
    assert found.present.room.states == 5 * 2 * SIZE
    assert found.present.room.trash == 8 * 2 * SIZE, "of an hour, one each 502 s"
    assert found.present.room.each_week == pytest.approx(WEEK / 502 / 9 * 2 * SIZE, abs=1)
    given = catalog.advise("run", mtbf=timedelta(hours=1))
    assert (given.mtbf, given.is_given, given.failures) == (HOUR, True, found.failures)
    assert given.best.steps < 300
    told = ckptstore("--db", database_url, "advise", "run", "--json").json
    assert (told["failures"], told["mtbf_seconds"], told["best"]["steps"]) == (2, 15 * HOUR, 927)
    assert told["present"]["lost_steps_a_week"] == found.present.lost_steps
    assert told["policy"]["keep_last"] == 5
    shown = ckptstore("--db", database_url, "advise", "run").out.splitlines()
    assert shown[:2] == [
        "a save: training stands still for 2 s; on the disk after 10 s; 2.0 kB",
        "a step: 0.5 s",
    ]
    assert shown[2].startswith("failures: 2 in 30 h of training: one each 15 h, between 4 h and ")
    assert [row.split()[:2] for row in shown[3:6]] == [["saves", "every"], ["now", "1000"], ["best", "927"]]
    assert shown[6] == "the sizes above are upper limits, by the stored policy"
    grace = "set the grace period of your scheduler (Kubernetes: terminationGracePeriodSeconds) to 26 s or more"
    assert shown[7:] == [f"an exit on request takes up to 26 s: {grace}"]
    for given, said in (
        ("30s", "and the run has 30 s"),
        ("25", "and the run has 25 s: TOO SHORT, the last save would be cut"),
    ):
        lines = ckptstore("--db", database_url, "advise", "run", "--grace", given).out.splitlines()
        assert lines[-1] == f"an exit on request takes up to 26 s, {said}"
    assert (told["grace_seconds"], told["grace_given_seconds"]) == (26, None)


@pytest.mark.parametrize("mtbf", [timedelta(0), timedelta(hours=-1), 3600])
def test_a_time_between_failures_that_is_none(catalog: Catalog, mtbf: object) -> None:
    """0 was taken for one that is not given, and reported as given; the others raised errors of Python."""
    put(catalog, trained(1))
    with pytest.raises(UsageError, match="give a time above 0"):
        catalog.advise("run", mtbf=mtbf)


def test_a_run_that_never_failed_needs_to_be_told(catalog: Catalog, database_url: str) -> None:
    put(catalog, trained(1))
    found = catalog.advise("run")
    assert (found.mtbf, found.best, found.failures.count) == (None, None, 0)
    assert found.present.lost_steps is None
    assert found.present.room.each_week == pytest.approx(WEEK / 502 * 2 * SIZE, abs=1)
    assert [each.steps for each in found.others] == sorted(each.steps for each in found.others)
    shown = ckptstore("--db", database_url, "advise", "run").out.splitlines()
    assert shown[2] == (
        "failures: none in 10 h of training, so one each 3 h or less often in nine of ten cases; "
        "say how often with --mtbf"
    )
    assert [row.split("  ")[0] for row in shown[5:9]] == [
        f"best at a failure each {each}" for each in ("60 min", "6 h", "24 h", "7 d")
    ]
    assert ckptstore("--db", database_url, "advise", "run", "--mtbf", "12h", "--json").json["best"]["steps"] > 1


@pytest.mark.parametrize(
    ("events", "count", "hours"),
    [
        (trained(1, "KeyboardInterrupt"), 0, 10),
        (trained(1, ends=False), 0, 10),  # the newest: it may be training
        ([*trained(1, ends=False), *trained(2)], 1, 20),  # it was killed elsewhere
        ([*trained(1, ends=False), LaunchStarted(launch(2, at=40.0))], 1, 10),
        ([*trained(1, "OSError", name=f"{SCANNED}1"), *trained(2)], 0, 10),
        ([*trained(1, "OSError", name=f"{IMPORTED}1"), *trained(2)], 0, 10),
        ([*trained(1, "OSError", name=f"{BRANCH}1"), *trained(2)], 0, 10),
    ],
    ids=[
        "a person",
        "in training",
        "not heard of again",
        "nor the next one yet",
        "scanned",
        "imported",
        "a decision",
    ],
)
def test_what_is_a_failure(catalog: Catalog, events: list[Event], count: int, hours: int) -> None:
    put(catalog, events)
    found = catalog.advise("run").failures
    assert (found.count, found.seconds) == (count, hours * HOUR)


def test_a_launch_that_ended_before_its_first_step_lost_nothing(catalog: Catalog) -> None:
    """A mistake in the script ends launch after launch, and is no reason to save more often."""
    origin = launch(1, at=20.0)
    again = replace(launch(2, at=40.0), decided=True, parent="L1", parent_step=3000, start_step=3000)
    assert again.created_at is not None
    ended = TrainingEnded("run", "L2", 0, 3000, None, "ValueError", "", again.created_at + timedelta(minutes=1))
    put(catalog, [*trained(1), LaunchStarted(again, again.created_at, origin), ended])
    assert catalog.advise("run").failures.count == 0


def test_a_process_that_was_killed_here_failed(catalog: Catalog) -> None:
    """Its signs of life name it; nothing else tells."""
    put(catalog, trained(1, ends=False))
    program = "from ckptstore.disk.owner import this_process; print(this_process())"
    gone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    with catalog.database.write() as connection:
        leases.give_sign(connection, launch_key("run", "L1"), gone, START + timedelta(hours=35))
    assert catalog.advise("run").failures == Failures(1, 15 * HOUR)


def test_the_slowest_rank_counts_and_what_was_not_measured_does_not(catalog: Catalog) -> None:
    of = launch(1, at=0)
    events: list[Event] = [LaunchStarted(of)]
    for step in (100, 200, 300):
        events += saved(of, step, step / 100, (None, Timing(3.0)) if step > 100 else (None, None))
    put(catalog, events)
    found = catalog.advise("run", mtbf=timedelta(hours=24))
    assert (found.cost, found.is_written) == (Cost(3.0, 3.0), False)
    assert found.step == 36.0, "from save to save, where nothing else tells"


def test_what_a_loop_asks_when_it_begins(catalog: Catalog, tmp_path: Path) -> None:
    put(catalog, [*trained(1, "RuntimeError"), *trained(2)])
    assert mtbf_of(catalog.database, "run") == (20 * HOUR, True)
    put(catalog, [LaunchStarted(replace(launch(1, at=0), run="another"))])
    for run in ("another", "unknown"):
        assert mtbf_of(catalog.database, run) == (ASSUMED, False)
    (tmp_path / "no.db").write_bytes(b"no database at all" * 100)
    assert mtbf_of(open_database(tmp_path / "no.db"), "run") == (ASSUMED, False)


def test_where_no_save_was_measured_it_says_so(catalog: Catalog, database_url: str) -> None:
    of = launch(1, at=0)
    put(catalog, [LaunchStarted(of), *saved(of, 100, 1, (None, None)), *saved(of, 200, 2, (None, None))])
    with pytest.raises(CkptstoreError, match="nothing tells what a save of run 'run' costs"):
        catalog.advise("run")
    assert_one_line(ckptstore("--db", database_url, "advise", "run"), 1, "nothing tells what a save")
    assert_one_line(ckptstore("--db", database_url, "advise", "run", "--mtbf", "soon"), 2, "is not a duration")
    assert_one_line(ckptstore("--db", database_url, "advise", "another"), 2, "no run 'another'")
