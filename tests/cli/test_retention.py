"""gc, undo, purge, policy and tag on the command line."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.events import PolicySet
from tests.command_line import Result, ckptstore
from tests.jobs import Job, started
from tests.projecting import put


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """Six states of two ranks, steps 10 to 60."""
    return started(catalog, tmp_path / "data", *range(10, 70, 10))[0]


@pytest.fixture
def url(job: Job, database_url: str) -> str:
    return database_url


def files(job: Job) -> int:
    return sum(".ckptstore" not in path.parts for path in job.directory.rglob("*.ckpt"))


def one_line(result: Result) -> str:
    assert len(result.err.splitlines()) == 1
    return result.err


def test_a_metric_that_no_state_has(url: str, job: Job) -> None:
    """Mistyped, it would keep the floor alone."""
    asked = ["--keep-best", "3", "--metric", "los", "--mode", "min"]
    assert ckptstore("--db", url, "policy", "run", *asked).code == 0, "no state has a metric yet"
    ranks = job.start()
    for step in (70, 80, 90):
        for launch in ranks:
            launch.register(
                job.write(launch, step), global_step=step, optimizer_step=step, metrics={"loss": 1.0 / step}
            )
    for command in (["gc", "run", *asked], ["gc", "run", *asked, "--apply", "--allow-mass-delete"], ["gc", "run"]):
        result = ckptstore("--db", url, *command)
        assert result.code == 5
        assert "no state of run 'run' has the metric 'los'; known: loss" in one_line(result)
    refused = ckptstore("--db", url, "policy", "run", *asked)
    assert (refused.code, "known: loss" in one_line(refused)) == (5, True)
    assert ckptstore("--db", url, "gc", "--all", "--apply").code == 5
    assert files(job) == 18
    asked[3] = "loss"
    assert ckptstore("--db", url, "policy", "run", *asked).code == 0
    assert ckptstore("--db", url, "gc", "--all", "--apply").code == 0
    assert files(job) == 6


def test_gc_says_from_when_on_purge_deletes(url: str, job: Job) -> None:
    """Ten minutes after the grace, since clocks differ; until the grace ends undo is promised."""
    done = ckptstore("--db", url, "gc", "run", "--keep-last", "3", "--apply", "--json").json
    waits = ckptstore("--db", url, "purge", "run", "--json").json["next_at"]
    assert done["trash"]["next_at"] == waits > done["purge_after"]
    shown = ckptstore("--db", url, "gc", "run", "--keep-last", "3", TZ="UTC").out
    told = datetime.fromisoformat(waits).strftime("%Y-%m-%d %H:%M:%SZ")
    assert f"the first gc or purge after {told} deletes them" in shown


def test_purge_names_marks_only_if_there_are_some(url: str, job: Job) -> None:
    assert ckptstore("--db", url, "gc", "run", "--keep-last", "5", "--apply").code == 0
    job.directory.rename(job.directory.with_name("unmounted"))
    waits = ckptstore("--db", url, "purge", "run")
    assert (waits.code, waits.out.splitlines()[1]) == (0, "2 files wait in the trash, 212 B")


def test_one_run_that_fails_does_not_stop_the_others(url: str, job: Job, catalog: Catalog) -> None:
    catalog.join("aaa")
    for run in ("aaa", "run"):
        assert ckptstore("--db", url, "policy", run, "--keep-every", "20", "--floor", "0").code == 0
    put(catalog, [PolicySet("aaa", {"keep_lucky": 7}, datetime.now(timezone.utc) + timedelta(seconds=1))])
    done = ckptstore("--db", url, "gc", "--all", "--apply")
    assert done.code == 2
    assert "run aaa: the policy has unknown rules" in one_line(done)
    assert files(job) == 6


def test_an_error_of_gc_is_json_too(url: str, job: Job) -> None:
    """Without a plan stdout stays empty; a refused plan is on it."""
    for asked, code, has_plan in (
        (["run"], 5, False),
        (["other", "--keep-last", "3"], 2, False),
        (["run", "--keep-kind", "ttp=1", "--floor", "0"], 5, True),
        (["run", "--tier", "away"], 5, False),
    ):
        if "--tier" in asked:
            ckptstore("--db", url, "tier", "add", "away", str(job.directory / "away"))
        text = ckptstore("--db", url, "gc", *asked)
        result = ckptstore("--db", url, "gc", *asked, "--json")
        told = json.loads(one_line(result))
        assert (result.code, told["exit_code"], bool(result.out)) == (code, code, has_plan)
        assert one_line(text) == f"ckptstore: {told['error']}; {told['hint']}\n"
        if has_plan:
            assert result.json["refused"] == told["error"]
