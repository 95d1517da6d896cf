"""Runs get other names, are forgotten, and come back; what was trained and what will be is never mixed in silence."""

import shutil
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.errors import RefusedError, UnknownRunError
from ckptstore.resume import names
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.cli.advice import advised
from tests.command_line import assert_one_line, ckptstore
from tests.contents import contents
from tests.jobs import Job


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """One launch of two ranks, steps 10 to 30."""
    made = Job(catalog, tmp_path / "data")
    made.save(made.begin(), 10, 20, 30)
    return made


@pytest.fixture
def url(job: Job, database_url: str) -> str:
    return database_url


def runs(url: str) -> list[str]:
    return [row["run"] for row in ckptstore("--db", url, "runs", "--json").json]


def everything(job: Job) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in job.directory.rglob("*.ckpt")}


def test_a_forgotten_run_is_nowhere_and_its_files_are_untouched(url: str, job: Job) -> None:
    before = everything(job)
    assert ckptstore("--db", url, "forget", "run", "--apply").code == 0
    assert runs(url) == []
    assert ckptstore("--db", url, "list", "--json").json == []
    assert ckptstore("--db", url, "sync", "--json").json["runs"] == []
    for command in (("list", "run"), ("resolve", "run"), ("gc", "run", "--keep-last", "1"), ("rename", "run", "x")):
        assert_one_line(ckptstore("--db", url, *command), 1, "run 'run' was forgotten")
    refused = ckptstore("--db", url, "doctor", "run")
    assert (refused.code, "was forgotten" in refused.err) == (1, True)
    assert everything(job) == before


def test_no_scan_and_no_sync_brings_it_back_but_the_advice_does(url: str, job: Job) -> None:
    listed = ckptstore("--db", url, "list", "--json").json
    assert ckptstore("--db", url, "forget", "run", "--apply").code == 0
    ckpt_bytes.write(job.folder(0) / "net-4_10.ckpt", 40, 40)
    where = str(job.directory)
    for command in (("scan", where), ("scan", where, "--run", "run"), ("scan", where, "--dry-run")):
        assert "was forgotten" in ckptstore("--db", url, *command).err
        assert runs(url) == [], command
    for command in (("sync", f"{where}/"), ("sync",)):
        ckptstore("--db", url, *command)
        assert runs(url) == [], command
    assert_one_line(ckptstore("--db", url, "scan", str(job.directory), "--run", "run"), 1, "was forgotten")
    refused = ckptstore("--db", url, "list", "run")
    assert ckptstore("--db", url, *advised(refused.err)).code == 0
    assert [row for row in ckptstore("--db", url, "list", "--json").json if row["global_step"] <= 30] == listed


def test_who_joins_a_forgotten_run_is_refused(catalog: Catalog, job: Job) -> None:
    assert catalog.forget("run")
    assert not catalog.forget("run")
    with pytest.raises(RefusedError, match="was forgotten") as refused:
        job.start()
    assert advised(str(refused.value)) == ["forget", "run", "--undo"]
    assert catalog.forget("run", undo=True)
    assert job.begin()[0].facts.parent_step == 30


def test_a_catalog_made_anew_knows_what_was_forgotten_and_renamed(catalog: Catalog, other: Catalog, job: Job) -> None:
    catalog.rename("run", "thesis")
    assert other.scan(job.directory).run == "thesis"
    assert contents(other) == contents(catalog)
    assert [row.run for row in other.runs()] == ["thesis"]
    catalog.forget("thesis")
    anew = connect(str(job.directory.parent / "anew.db"))
    with pytest.raises(RefusedError, match="was forgotten"):
        anew.scan(job.directory)
    assert anew.runs() == []
    assert contents(anew) == contents(catalog)
    told = next(each.reason for each in other.sync(f"{job.directory}/").refused if "forgotten" in each.reason)
    assert [row.run for row in other.runs()] == ["thesis"]  # it knew the run before, and asks for a person's word
    assert advised(told) == ["forget", "run", "--apply"]
    assert ckptstore("--db", str(other.database.file), *advised(told)).code == 0
    assert other.runs() == []


def test_a_name_leads_to_the_run_and_the_first_one_too(catalog: Catalog, url: str, job: Job) -> None:
    assert catalog.rename("run", "thesis")
    assert not catalog.rename("run", "thesis")
    assert runs(url) == ["thesis"]
    for name in ("run", "thesis"):
        assert {row["run"] for row in ckptstore("--db", url, "show", name, "20", "--json").json} == {name}
        assert ckptstore("--db", url, "resolve", name, "--json").json["global_step"] == 30
    catalog.pin("thesis", 10)
    catalog.tag("thesis", 20, "best")
    plan = catalog.plan_gc("thesis", Policy(keep_last=1, floor=1))
    assert catalog.execute(plan).files == 0
    catalog.untag("thesis", "best")
    assert catalog.execute(catalog.plan_gc("thesis", Policy(keep_last=1, floor=1))).files == 2
    assert catalog.undo("thesis").files == 2
    assert runs(url) == ["thesis"]  # nothing of it made a run of its own


def test_a_script_that_joins_the_old_name_goes_on_with_the_run_and_is_told(
    catalog: Catalog, url: str, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    catalog.rename("run", "thesis")
    ranks = job.begin()
    assert ranks[0].facts.parent_step == 30
    assert "run 'run' was renamed to 'thesis': this launch is of that run" in caplog.text
    assert ckptstore("--db", url, "sync", f"{job.directory}/", "--json").json["runs"] == ["thesis"]
    caplog.clear()
    job.run = "thesis"
    job.save(ranks, 40)
    assert job.begin()[0].facts.parent_step == 40
    assert caplog.text == ""
    assert [(row.run, row.launches) for row in catalog.runs()] == [("thesis", 3)]


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_scan_of_a_directory_of_the_new_name_is_of_that_run(
    url: str, catalog: Catalog, job: Job, more: list[str]
) -> None:
    catalog.rename("run", "data")
    Job(catalog, job.directory / "beside", run="beside").begin()  # so that the directory's name decides
    told = ckptstore("--db", url, "scan", str(job.directory), "--json", *more).json
    assert (told["run"], told["known"]) == ("data", 6)
    assert runs(url) == ["beside", "data"]


def test_names_that_are_taken(catalog: Catalog, job: Job) -> None:
    Job(catalog, job.directory.parent / "other", run="other").begin()
    with pytest.raises(RefusedError, match="there is a run 'other' already"):
        catalog.rename("run", "other")
    catalog.forget("other")
    with pytest.raises(RefusedError, match="already, which was forgotten"):
        catalog.rename("run", "other")
    with pytest.raises(UnknownRunError):
        catalog.rename("nobody", "x")


def test_a_directory_that_is_gone_keeps_nobody_from_forgetting(catalog: Catalog, job: Job) -> None:
    shutil.rmtree(job.directory)
    assert names.look(catalog.database, "run").row.launches == 1
    assert catalog.forget("run")
    assert catalog.runs() == []
    assert not job.directory.exists()
