"""gc, undo, purge, policy and tag on the command line."""

from datetime import datetime, timedelta, timezone
from pathlib import Path
from shutil import rmtree

import pytest

from ckptstore.api import Catalog
from ckptstore.core.events import PolicySet
from tests.cli.advice import follow
from tests.command_line import Result, ckptstore
from tests.jobs import Job
from tests.projecting import put


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """Six states of two ranks, steps 10 to 60."""
    made = Job(catalog, tmp_path / "data")
    made.save(made.start(), *range(10, 70, 10))
    return made


@pytest.fixture
def url(job: Job, database_url: str) -> str:
    return database_url


def files(job: Job) -> int:
    return sum(".ckptstore" not in path.parts for path in job.directory.rglob("*.ckpt"))


def steps(rows: list[dict[str, int]]) -> list[int]:
    return [row["global_step"] for row in rows]


@pytest.mark.parametrize(("lost", "gone"), [("net-1_10.ckpt", 2), ("*.ckpt", 6)])
@pytest.mark.parametrize("as_json", [False, True])
def test_undo_of_what_is_not_in_the_trash_any_more(url: str, job: Job, lost: str, gone: int, *, as_json: bool) -> None:
    """Somebody made room by hand: not all came back, and a script must see that."""
    assert ckptstore("--db", url, "gc", "run", "--keep-last", "3", "--apply").code == 0
    for path in job.directory.rglob(f".ckptstore/trash/*/{lost}"):
        path.unlink()
    back = ckptstore("--db", url, "undo", "run", *(["--json"] if as_json else []))
    assert back.code == 1
    assert one_line(back) == f"ckptstore: run run: {gone} files were not in the trash any more\n"
    if as_json:
        assert (back.json["files"], back.json["gone"]) == (6 - gone, gone)
    else:
        assert f"run run: {6 - gone} files brought back" in back.out


def test_now(url: str, job: Job) -> None:
    done = ckptstore("--db", url, "gc", "run", "--keep-last", "3", "--apply", "--now")
    assert "6 files of 3 states deleted" in done.out
    assert list(job.directory.rglob("trash")) == []


def test_a_disk_that_is_away_is_not_passed_over(url: str, job: Job, tmp_path: Path) -> None:
    assert ckptstore("--db", url, "policy", "run", "--keep-last", "2").code == 0
    home = job.folder(0)
    home.rename(tmp_path / "away")
    for asked in (["run"], ["run", "--apply"], ["--all", "--apply"]):
        done = ckptstore("--db", url, "gc", *asked)
        assert done.code == 1
        assert "no states on disk" not in done.out
        assert f"ckptstore: {home}: is not there: it may not be mounted" in done.err
        assert "if a directory is gone for good, make it again, with a .ckptstore in it" in done.err
    told = ckptstore("--db", url, "gc", "run", "--json")
    assert told.code == 1
    assert {"path": str(home), "reason": "is not there: it may not be mounted"} in told.json["troubles"]
    (tmp_path / "away").rename(home)
    assert ckptstore("--db", url, "gc", "run").code == 0


def test_a_directory_that_is_gone_for_good(url: str, job: Job) -> None:
    rmtree(job.folder(0))
    told = ckptstore("--db", url, "gc", "run", "--keep-last", "2").err
    (job.folder(0) / ".ckptstore").mkdir(parents=True)
    assert follow(url, told, DIRECTORY=str(job.folder(0))).code == 0
    assert ckptstore("--db", url, "gc", "run", "--keep-last", "2").code == 0


def one_line(result: Result) -> str:
    assert len(result.err.splitlines()) == 1
    return result.err


def test_nearly_everything_is_not_removed_by_accident(url: str, job: Job, catalog: Catalog) -> None:
    job.save(job.start(), *range(70, 280, 10))
    asked = ["--db", url, "gc", "run", "--keep-last", "1"]
    for apply in ([], ["--apply"]):
        refused = ckptstore(*asked, *apply)
        assert refused.code == 5
        assert "removes 25 of 27 states, more than 90% of the bytes" in one_line(refused)
        assert "remove" in refused.out, "the plan is shown all the same"
    assert ckptstore(*asked, "--apply", "--allow-mass-delete").code == 0
    assert files(job) == 4


def test_policies(url: str, job: Job) -> None:
    rules = ["--keep-last", "3", "--keep-within", "1m", "--keep-kind", "ttp=2", "--grace", "2h"]
    stored = ckptstore("--db", url, "policy", "run", *rules)
    again = ckptstore("--db", url, "policy", "run", *stored.out.split()[2:])
    assert (again.code, again.out) == (0, stored.out), "what it prints can be given back to it"
    assert ckptstore("--db", url, "policy", "run", "--keep-last", "4").code == 0
    shown = ckptstore("--db", url, "gc", "run", "--floor", "5", "--json").json
    assert steps(shown["remove"]) == [10], "the floor goes with the stored rules"
    (done,) = ckptstore("--db", url, "gc", "--all", "--apply", "--json").json
    assert (done["run"], done["applied"], steps(done["remove"])) == ("run", True, [20, 10])
    assert files(job) == 8


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


def test_one_run_that_fails_does_not_stop_the_others(url: str, job: Job, catalog: Catalog) -> None:
    catalog.join("aaa")
    for run in ("aaa", "run"):
        assert ckptstore("--db", url, "policy", run, "--keep-every", "20", "--floor", "0").code == 0
    put(catalog, [PolicySet("aaa", {"keep_lucky": 7}, datetime.now(timezone.utc) + timedelta(seconds=1))])
    done = ckptstore("--db", url, "gc", "--all", "--apply")
    assert done.code == 2
    assert "run aaa: the policy has rules of a newer program" in one_line(done)
    assert files(job) == 6


def test_a_catalog_that_knows_nothing_yet(tmp_path: Path) -> None:
    """In a directory full of checkpoints: what to do first, in one line."""
    for asked in (["gc", "--keep-last", "2"], ["gc", "--all"], ["gc", str(tmp_path), "--keep-last", "2"]):
        result = ckptstore("--db", str(tmp_path / "new.db"), *asked)
        assert result.code == 2
        assert "knows of no checkpoints yet; first: ckptstore scan" in one_line(result)


