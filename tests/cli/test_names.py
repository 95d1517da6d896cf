"""Runs get other names, are forgotten, and come back; what was trained and what will be is never mixed in silence."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import reads
from ckptstore.errors import CatalogUnavailableError, RefusedError
from ckptstore.retention import stored_policy
from ckptstore.retention.policy import Policy
from tests.cli.advice import advised
from tests.command_line import ckptstore
from tests.contents import contents
from tests.jobs import Job, begun
from tests.small_disks import fill, small_disk


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """One launch of two ranks, steps 10 to 30."""
    return begun(catalog, tmp_path / "data", 10, 20, 30)[0]


@pytest.fixture
def url(job: Job, database_url: str) -> str:
    return database_url


def test_every_list_has_the_present_name(catalog: Catalog, job: Job) -> None:
    catalog.rename("run", "thesis")
    lists = [catalog.runs(), catalog.saves("thesis"), catalog.files("thesis"), catalog.history("thesis")]
    assert [{row["run"] for row in each.to_dicts()} for each in lists] == [{"thesis"}] * 4


def test_a_catalog_made_anew_knows_what_was_forgotten_and_renamed(catalog: Catalog, other: Catalog, job: Job) -> None:
    catalog.rename("run", "thesis")
    assert other.scan(job.directory).run == "thesis"
    assert contents(other) == contents(catalog)
    assert [row.run for row in other.runs()] == ["thesis"]
    assert catalog.forget("thesis")
    assert not catalog.forget("thesis")
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


def test_a_line_that_is_refused_is_not_told_as_damaged(catalog: Catalog, other: Catalog, job: Job) -> None:
    """Another catalog has stored a policy: the journal has it, and this one asks for a person's word."""
    other.scan(job.directory)
    stored_policy.store(catalog.database, "run", Policy(keep_last=3))
    told = ckptstore("--db", str(other.database.file), "sync", "run").out.splitlines()
    assert told[1] == "1 line was skipped: incomplete, or written by another program, or refused for a reason below"
    assert "it has another policy" in told[2]


def test_a_change_that_only_the_journals_took_is_told_as_that(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        catalog = connect(str(disk / "catalog.db"))
        begun(catalog, tmp_path / "data", 10)
        filler = fill(disk)
        with pytest.raises(CatalogUnavailableError, match="in the journals, and reaches the catalog later") as failed:
            catalog.rename("run", "thesis")
        assert "database or disk is full" in failed.value.message
        assert [row.run for row in catalog.runs()] == ["run"]
        filler.unlink()
        catalog.sync("run")
        assert [row.run for row in catalog.runs()] == ["thesis"]


def test_a_change_that_the_catalog_does_not_take_from_journals_is_to_be_made_again(tmp_path: Path) -> None:
    """The message said that an unpin reaches the catalog later. It never did: whoever writes journals could unpin."""
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        catalog = connect(str(disk / "catalog.db"))
        begun(catalog, tmp_path / "data", 10)
        catalog.pin("run", 10)
        filler = fill(disk)
        with pytest.raises(CatalogUnavailableError, match="make it again once the catalog can be used"):
            catalog.unpin("run", 10)
        filler.unlink()
        assert len(catalog.sync("run").refused) == 1
        assert catalog.unpin("run", 10)


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


def test_a_name_that_two_users_gave_is_everywhere_that_of_one_run(tmp_path: Path) -> None:
    """Each had a catalog of their own. What `runs` calls `thesis` is what every command finds by that name."""
    anew = connect(str(tmp_path / "anew.db"))
    for run, step in (("later", 10), ("earlier", 20)):
        own = connect(str(tmp_path / f"{run}.db"))
        job = Job(own, tmp_path / run, run=run)
        job.save(job.start(), step)
        own.rename(run, "thesis")
        anew.scan(tmp_path / run)
    newest = {row.run: row.last.global_step for row in anew.runs()}
    assert newest == {name: anew.resolve(name).plan.global_step for name in newest}
    assert newest == {"thesis": 20, "later": 10}
    with anew.database.read() as connection:
        assert {name: called.name for name in ("thesis", "later") if (called := reads.called(connection, name))} == {
            "thesis": "thesis",
            "later": "later",
        }
