"""`list` and `doctor` tell what tiers have."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from ckptstore.api import Catalog
from ckptstore.catalog import copies, gauges
from ckptstore.catalog.tables import checkpoints
from ckptstore.cli.main import cli
from ckptstore.core.copies import Tier
from ckptstore.core.copy_keys import key_of
from ckptstore.core.model import FileState
from ckptstore.core.naming import companion_of
from ckptstore.doctor import check_tiers
from ckptstore.doctor.checkup import Check, Status
from ckptstore.doctor.doctor import examine
from ckptstore.journal.recorder import shared
from ckptstore.objects.directory import DirectoryStore
from ckptstore.objects.store import Finding, Seen
from ckptstore.outside import utc_now
from ckptstore.resume import dicts
from ckptstore.retention import in_tier as retention
from ckptstore.retention.policy import Policy
from ckptstore.tiers import facts
from ckptstore.verify import in_tier
from ckptstore.verify.verify import verify
from tests.cli.advice import advised
from tests.command_line import ckptstore
from tests.jobs import Job, begun
from tests.tiers.jobs import copied, declared


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    return begun(catalog, tmp_path / "ckpt", 5, 10)[0]


@pytest.fixture
def tier(catalog: Catalog, tmp_path: Path) -> Tier:
    return declared(catalog, tmp_path / "far", "far", 2)


def told(job: Job, *, later: timedelta = timedelta()) -> list[Check]:
    url = job.catalog.database.url.render_as_string(hide_password=False)
    return [each for each in examine(url, now=utc_now() + later).checks if each.name == "tiers"]


def test_list_shows_which_tiers_have_a_save(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, [*job.catalog.show("run", 5), job.catalog.show("run", 10)[0]])
    assert [dicts.save(row)["tiers"] for row in job.catalog.saves("run")] == [{"far": 1}, {"far": 2}]
    url = job.catalog.database.url.render_as_string(hide_password=False)
    printed = CliRunner().invoke(cli, [f"--db={url}", "list", "run"]).stdout
    assert [line.split()[-1] for line in printed.splitlines() if line.strip()[:1].isdigit()] == ["1/2", "far"]
    shared(job.catalog.database).mark(job.catalog.files("run"), FileState.MISSING)
    assert [row.global_step for row in job.catalog.saves("run")] == [10, 5], "what only a tier has is shown"


@pytest.mark.of_files
def test_runs_does_not_deny_what_copies_may_restore(job: Job, tier: Tier) -> None:
    def shown() -> str:
        return CliRunner().invoke(cli, [f"--db={job.catalog.database.url}", "runs"]).stdout.splitlines()[1]

    copied(job.catalog, tier, job.catalog.show("run", 10))
    assert " step 10 " in shown()
    shared(job.catalog.database).mark(job.catalog.files("run"), FileState.MISSING)
    assert " none on disks " in shown()
    facts.remove(job.catalog.database, "far")
    assert " none " in shown()


def test_doctor_says_what_waits_and_what_is_on_nodes_only(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.show("run", 5))
    first, waits, nodes = told(job)
    assert (first.status, first.detail) == (Status.OK, "tier far takes copies and gives them back")
    assert waits.detail.startswith("2 files, ")
    assert (waits.status, nodes.status) == (Status.NOTE, Status.NOTE)
    assert nodes.detail == "1 of 2 states is on nodes only"
    assert told(job, later=timedelta(hours=2))[1].status is Status.WARNING
    copied(job.catalog, tier, job.catalog.show("run", 10))
    assert [each.detail for each in told(job)[1:]] == ["each of 2 states is in a tier"]


def test_doctor_advises_no_copying_where_nothing_waits__before_replicate_that_copies_nothing(
    job: Job, tier: Tier
) -> None:
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    retention.execute(database, retention.plan_tier(database, "run", tier, Policy(keep_last=1, floor=1)))
    nodes = told(job)[1]
    assert (nodes.status, nodes.hint) == (Status.NOTE, "")
    assert nodes.detail.startswith("1 of 2 states is on nodes only, and nothing waits to be copied: gc removed ")


def test_doctor_names_verify_for_files_without_a_digest__before_replicate_that_copies_nothing(
    job: Job, tier: Tier
) -> None:
    """As a scan adopts them."""
    database = job.catalog.database
    database.in_write(lambda connection: connection.execute(checkpoints.update().values(digest=None)))
    nodes = told(job)[1]
    assert nodes.detail == "2 of 2 states are on nodes only: 4 files have no recorded digest, and cannot be copied yet"
    assert nodes.hint.index("verify run --digest") < nodes.hint.index("replicate run")
    assert verify(database, "run", digest=True).new_digests == 4
    assert told(job)[1].detail.startswith("4 files, ")
    assert len(facts.lacking(database, "run", tier)) == 4


def test_a_file_in_a_tier_waits_for_farther_tiers_only(job: Job, tier: Tier, tmp_path: Path) -> None:
    declared(job.catalog, tmp_path / "ckpt", "shared", 1)
    database = job.catalog.database

    def waiting() -> list[str]:
        with database.read() as connection:
            assert gauges.states_only_on_nodes(connection) == {"run": 0}
            return [each.tier for each in gauges.uncopied_files(connection)]

    assert [each.detail.partition(",")[0] for each in told(job)[2:]] == ["4 files"]
    assert waiting() == ["far"]
    copied(job.catalog, tier, job.catalog.files("run"))
    assert [each.detail for each in told(job, later=timedelta(hours=2))[2:]] == ["each of 2 states is in a tier"]
    assert waiting() == []
    declared(job.catalog, tmp_path / "ck", "beside", 2)
    assert waiting() == ["beside"]


@pytest.mark.of_files
def test_doctor_names_a_tier_that_cannot_be_used(
    job: Job, tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (
        Finding("a rule deletes objects", "end that rule"),
        Finding("no versions", "none is needed", is_fault=False),
    )
    monkeypatch.setattr(DirectoryStore, "check", lambda _: found)
    assert [(each.status, each.hint) for each in check_tiers.checks(job.catalog.database)] == [
        (Status.WARNING, "end that rule"),
        (Status.NOTE, "none is needed"),
    ]
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "far")
    assert [each.status for each in check_tiers.checks(job.catalog.database)] == [Status.PROBLEM]


@pytest.mark.of_files
def test_of_a_run_without_a_save_doctor_says_nothing(catalog: Catalog, tmp_path: Path, tier: Tier) -> None:
    assert [each.detail for each in told(begun(catalog, tmp_path / "ckpt")[0])[1:]] == []


@pytest.mark.of_files
def test_without_tiers_doctor_says_nothing_of_them(job: Job) -> None:
    assert told(job) == []


@pytest.mark.of_files
@pytest.mark.parametrize("digest", [False, True])
def test_verify_marks_the_copies_that_are_no_good(job: Job, tier: Tier, tmp_path: Path, *, digest: bool) -> None:
    files = job.catalog.show("run", 5)
    Path(companion_of(files[0].path)).write_text("what goes with it")
    copied(job.catalog, tier, [*files, *job.catalog.show("run", 10)])
    found = in_tier.verify(job.catalog.database, "run", tier, digest=digest)
    assert (found.checked, found.damaged, found.troubles) == (4, (), ())
    other = tmp_path / "far" / key_of(job.catalog.show("run", 10)[0])  # of both ranks: they saved the same bytes
    if digest:
        other.write_bytes(bytes(other.stat().st_size))
    else:
        other.unlink()
    printed = (
        CliRunner()
        .invoke(cli, [f"--db={job.catalog.database.url}", "verify", "--tier", "far", *(["--digest"] if digest else [])])
        .stdout
    )
    assert "2 copies are damaged" in printed
    assert {file.global_step for file in facts.lacking(job.catalog.database, "run", tier)} == {10}
    assert in_tier.verify(job.catalog.database, None, tier, digest=digest).checked == 2


@pytest.mark.of_files
def test_verify_of_the_nodes_own_disks_is_refused__before_no_damage_was_found(
    job: Job, database_url: str, tmp_path: Path
) -> None:
    declared(job.catalog, tmp_path / "ckpt", "local", 0)
    Path(job.catalog.show("run", 10)[0].path).unlink()
    asked = ckptstore("--db", database_url, "verify", "run", "--digest", "--tier", "local")
    assert (asked.code, asked.out) == (2, "")
    assert "is the nodes' own disks, and has no copies" in asked.err
    found = ckptstore("--db", database_url, *advised(asked.err), "--json")
    assert (found.code, len(found.json["damaged"])) == (6, 1)


@pytest.mark.of_files
def test_a_failed_copy_that_is_whole_again_is_ready_again(job: Job, tier: Tier, tmp_path: Path) -> None:
    """The files are lost, and a look at a wrong place found no copy: the right place must count again."""
    database, files = job.catalog.database, job.catalog.show("run", 10)
    Path(companion_of(files[0].path)).write_text("what goes with it")
    copied(job.catalog, tier, files)
    with database.read() as connection:
        before = copies.ready_copies(connection, files)
    away, there = tmp_path / "away", tmp_path / "far" / "run"
    there.rename(away)
    assert len(in_tier.verify(database, "run", tier).damaged) == 2
    found = in_tier.verify(database, "run", tier)
    assert (found.checked, found.whole, found.failed_before) == (0, (), 2)
    printed = CliRunner().invoke(cli, [f"--db={database.url}", "verify", "run", "--tier", "far"]).stdout
    again = f"ckptstore --db {database.url} replicate run --tier far copies the files that are still on disk"
    assert printed.endswith(f"no damage was found; 2 copies were recorded as failed before: {again}\n")
    away.rename(there)
    (there.parent / key_of(files[0])).chmod(0o600)
    content = (there.parent / key_of(files[0])).read_bytes()
    (there.parent / key_of(files[0])).write_bytes(bytes(len(content)))
    assert in_tier.verify(database, "run", tier).whole == (), "of a failed one every byte is read"
    (there.parent / key_of(files[0])).write_bytes(content)
    shutil.rmtree(job.directory)
    assert len(in_tier.verify(database, "run", tier).whole) == 2
    with database.read() as connection:
        after = copies.ready_copies(connection, files)
    assert [[each.beside for each in some] for some in after.values()] == [
        [each.beside for each in some] for some in before.values()
    ]


@pytest.mark.of_files
def test_verify_takes_up_first_which_copies_another_catalog_removed(
    job: Job, other: Catalog, tier: Tier, tmp_path: Path
) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    other.scan(tmp_path / "ckpt")
    policy = Policy(keep_last=1, floor=1)
    retention.execute(other.database, retention.plan_tier(other.database, "run", tier, policy))
    assert retention.purge(other.database, "run", tier, at_once=True).purged == 2
    found = in_tier.verify(job.catalog.database, "run", tier)
    assert (found.checked, found.damaged, found.failed_before) == (2, (), 0)


def test_a_tier_that_does_not_answer_marks_nothing(
    job: Job, tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(job.catalog, tier, job.catalog.show("run", 5))
    shutil.rmtree(tmp_path / "far")
    asked: list[str] = []
    head = DirectoryStore.head

    def noted(store: DirectoryStore, key: str) -> Seen | None:
        asked.append(key)
        return head(store, key)

    monkeypatch.setattr(DirectoryStore, "head", noted)
    found = in_tier.verify(job.catalog.database, "run", tier)
    assert (found.checked, found.bytes, len(found.damaged), len(found.troubles)) == (0, 0, 0, 2)
    told = f"{tmp_path}/far is not there: perhaps it is not mounted"
    assert [each.reason for each in found.troubles] == [told, told]
    assert (len(asked), asked[1]) == (2, "none"), "each may take a minute"
    printed = CliRunner().invoke(cli, [f"--db={job.catalog.database.url}", "verify", "--tier", "far"]).stdout
    assert [line for line in printed.splitlines() if told in line] == [f"not looked at: {told} (2 copies)"]
    assert {file.global_step for file in facts.lacking(job.catalog.database, "run", tier)} == {10}


@pytest.mark.of_files
def test_a_copy_that_cannot_be_read_hides_no_damage(job: Job, tier: Tier, tmp_path: Path) -> None:
    """A bad place on the disk of the tier: the tier was taken for silent, and not asked for the other copies."""
    files = job.catalog.show("run", 5) + job.catalog.show("run", 10)
    copied(job.catalog, tier, files)
    unread, cut = ((tmp_path / "far" / key_of(file)) for file in (files[0], files[-1]))
    shutil.rmtree(unread.parent)
    unread.parent.symlink_to(unread.parent.name)  # each look at it is an error
    cut.write_bytes(b"")
    found = in_tier.verify(job.catalog.database, "run", tier)
    assert [each.path for each in found.damaged] == [key_of(files[-1])] * 2
    assert [each.reason for each in found.troubles] == [
        f"{tmp_path}/far cannot be asked for {key_of(files[0])}: Too many levels of symbolic links"
    ] * 2
