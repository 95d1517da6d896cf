"""A start takes what is on its node, and fetches what only a tier has."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ckptstore.api import Catalog
from ckptstore.catalog import copies
from ckptstore.catalog.runs import find_run
from ckptstore.cli.main import cli
from ckptstore.core.copies import CopyState, Tier
from ckptstore.core.copy_keys import key_of
from ckptstore.core.model import Checkpoint, Rejection, RestorePlan, Rule, State
from ckptstore.core.naming import companion_of
from ckptstore.disk import files
from ckptstore.disk.aside import clear_unfinished
from ckptstore.errors import NothingRestorableError, RefusedError
from ckptstore.journal.recorder import shared
from ckptstore.objects.directory import DirectoryStore
from ckptstore.objects.tiers import open_tier
from ckptstore.resume import dicts, resolver
from ckptstore.resume.resolve import choose, choose_state, resolve, step_named, step_to_tag
from ckptstore.resume.resolver import Query
from ckptstore.tiers import facts
from ckptstore.training.start import decide, start_from_json
from tests import ckpt_bytes
from tests.jobs import Job, begun
from tests.replicate.rounds import one_round
from tests.resume.wide import statements
from tests.tiers.jobs import copied, declared

pytestmark = pytest.mark.of_files


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """Two ranks have saved steps 5 and 10, each other bytes."""
    job, ranks = begun(catalog, tmp_path / "ckpt")
    for step in (5, 10):
        for launch in ranks:
            path = job.write(launch, step)
            ckpt_bytes.write(path, step, step + launch.rank / 2)
            launch.register(path, global_step=step, optimizer_step=step)
    return job


@pytest.fixture
def tier(catalog: Catalog, tmp_path: Path) -> Tier:
    return declared(catalog, tmp_path / "shared")


def of(job: Job, step: int, rank: int) -> Checkpoint:
    (file,) = [each for each in job.catalog.show("run", step) if each.rank == rank]
    return file


def step_of(job: Job, *, fetches: bool = True) -> int | None:
    plan = resolve(job.catalog.database, "run", Query(fetches=fetches)).plan
    return plan.global_step if plan else None


def test_a_state_that_a_tier_alone_has_gets_a_tag_by_its_launch(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    for file in job.catalog.show("run", 10):
        Path(file.path).unlink()
    assert step_to_tag(job.catalog.database, "run/L1@10", "good") == ("run", 10)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_fetched_file_that_was_damaged_since_is_fetched_again(job: Job, tier: Tier, *, is_cut: bool) -> None:
    """Before, every start was refused: a file was there already, and another name was to be given."""
    lost = of(job, 10, 1)
    content = Path(lost.path).read_bytes()
    copied(job.catalog, tier, job.catalog.files("run"))
    shutil.rmtree(job.folder(1))
    fetched = Path(job.start(resume=False)[1].resolve().ranks[1].source.path)
    fetched.write_bytes(content[:-1] + (b"" if is_cut else bytes([content[-1] ^ 1])))
    again = Path(job.start(resume=False)[1].resolve().ranks[1].source.path)
    assert (again, again.read_bytes()) == (fetched, content)


def test_a_damaged_file_is_deleted_while_no_other_rank_fetches_it(
    job: Job, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks of a node may load one file. One that saw the damaged file deleted the one that another had fetched."""
    copied(job.catalog, tier, job.catalog.files("run"))
    shutil.rmtree(job.folder(1))
    fetched = Path(job.start(resume=False)[1].resolve().ranks[1].source.path)
    fetched.write_bytes(b"damaged")
    opened_directory, asked = files.opened_directory, []

    def while_another_rank_asks(directory: str) -> AbstractContextManager[int]:
        if directory == str(fetched.parent) and not asked:
            asked.append(directory)
            with pytest.raises(RefusedError, match="is being written by another process"):
                clear_unfinished(str(fetched))
        return opened_directory(directory)

    monkeypatch.setattr(files, "opened_directory", while_another_rank_asks)
    job.start(resume=False)[1].resolve()
    assert asked
    assert fetched.read_bytes() != b"damaged"


@pytest.mark.parametrize("length", [244, 250, 255])
def test_a_file_with_a_long_name_is_copied_fetched_and_missed(
    catalog: Catalog, tier: Tier, tmp_path: Path, length: int
) -> None:
    """Before, the folder for the fetch, the companion or the index had a longer name than a file system allows."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    path = job.write(ranks[0], 10, name="-1_10.ckpt".rjust(length, "n"))
    ranks[0].register(path, global_step=10, optimizer_step=10)
    content = path.read_bytes()
    assert one_round(catalog).files == 2
    path.unlink()
    assert [each.path for each in catalog.verify("run").damaged] == [str(path)]
    (rank,) = job.start(resume=False)
    plan = rank.resolve()
    assert (plan.global_step, Path(plan.ranks[0].source.path).read_bytes()) == (10, content)


def test_a_replaced_node_gets_its_files_back_and_the_other_reads_nothing(job: Job, tier: Tier) -> None:
    lost, kept = of(job, 10, 1), of(job, 10, 0)
    Path(companion_of(lost.path)).write_text("what goes with it")
    content = Path(lost.path).read_bytes()
    copied(job.catalog, tier, job.catalog.files("run"))
    open_tier(tier.url).remove(key_of(kept))  # whoever read it would fail
    shutil.rmtree(job.folder(1))
    ranks = job.start(resume=False)
    first, second = (launch.resolve() for launch in ranks)
    assert (first.global_step, second.global_step) == (10, 10)
    assert first.ranks[0].source.path == kept.path
    there = second.ranks[1].source
    assert Path(there.path).read_bytes() == content
    assert (there.digest, there.size) == (lost.digest, lost.size)
    assert Path(companion_of(there.path)).read_text() == "what goes with it"
    assert Path(there.path).is_relative_to(job.folder(1) / ".ckptstore" / "fetched")
    assert [each.name for each in job.folder(1).iterdir()] == [".ckptstore"], "no name of the user's is taken"
    again = job.catalog.join("run", rank=1, world_size=2, launch_id="L2").resolve()
    assert again.ranks[1].source.path == there.path
    job.announce(ranks[1])
    job.save(ranks[1:], 15)
    assert not Path(there.path).exists(), "the launch has a state of its own"


@pytest.mark.parametrize("state", [CopyState.PENDING, CopyState.FAILED, CopyState.GONE])
def test_a_copy_that_is_not_ready_counts_for_nothing(job: Job, tier: Tier, state: CopyState) -> None:
    file = of(job, 10, 1)
    copied(job.catalog, tier, [file])
    facts.record_copy(shared(job.catalog.database), file, tier, state)
    Path(file.path).unlink()
    assert step_of(job) == 5


def test_another_copy_is_taken_if_the_nearest_is_in_a_store_of_an_unknown_kind(job: Job, tier: Tier) -> None:
    """Before, the start ended: the URL, which is in the journal of another user, "names no tier"."""
    file = of(job, 10, 1)
    facts.record_copy(shared(job.catalog.database), file, Tier("a", "gs://bucket/x", 1), CopyState.READY)
    copied(job.catalog, tier, [file])
    Path(file.path).unlink()
    plan = job.start(resume=False)[1].resolve()
    assert [copy.tier.name for copy in plan.copies[file.id]] == ["a", "shared"]
    assert plan.ranks[1].source.digest == file.digest


def test_another_copy_is_taken_where_the_nearest_is_not_there(job: Job, tier: Tier, tmp_path: Path) -> None:
    far = declared(job.catalog, tmp_path / "far", "far", 2)
    file = of(job, 10, 1)
    for each in (far, tier):
        copied(job.catalog, each, [file])
    open_tier(tier.url).remove(key_of(file))
    Path(file.path).unlink()
    plan = job.start(resume=False)[1].resolve()
    assert Path(plan.ranks[1].source.path).exists()
    with job.catalog.database.read() as connection:
        states = {copy.tier.name: copy.state for copy in copies.copies_of(connection, [file.id])[file.id]}
    assert states == {"shared": CopyState.FAILED, "far": CopyState.READY}


def test_what_no_tier_gives_stops_the_start_and_the_next_one_goes_on(job: Job, tier: Tier) -> None:
    file = of(job, 10, 1)
    copied(job.catalog, tier, [file])
    open_tier(tier.url).remove(key_of(file))
    Path(file.path).unlink()
    with pytest.raises(NothingRestorableError, match="is not here, and no tier gives it") as refused:
        job.start(resume=False)[1].resolve()
    assert "\n" not in str(refused.value)
    assert [launch.facts.parent_step for launch in job.start()] == [5, 5]


def test_a_directory_that_takes_no_file_is_named(job: Job, tier: Tier) -> None:
    """Before, the start ended with a traceback where the folder could not be listed."""
    file = of(job, 10, 1)
    copied(job.catalog, tier, [file])
    Path(file.path).unlink()
    (job.folder(1) / ".ckptstore" / "fetched").touch()
    with pytest.raises(NothingRestorableError, match=f"cannot write {job.folder(1)}"):
        job.start(resume=False)[1].resolve()


def test_a_file_that_cannot_be_loaded_once_it_was_fetched_is_not_taken_again(job: Job, tier: Tier) -> None:
    file = of(job, 10, 1)
    copied(job.catalog, tier, [file])
    Path(file.path).unlink()
    ranks = job.start(resume=False)
    plan = ranks[1].resolve()
    ranks[1].record_load_failure(plan.ranks[1].source, Rule.DIGEST_MISMATCH, "it changed while it was read")
    assert {each.path for each in job.catalog.show("run", 10)} == {of(job, 10, 0).path, file.path}
    assert step_of(job) == 5


def test_what_an_earlier_launch_fetched_is_removed(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    shutil.rmtree(job.folder(1))
    before = job.start(resume=False)[1].resolve().ranks[1].source.path
    after = job.start(resume=False)[1].resolve(step=5).ranks[1].source.path
    assert (Path(before).exists(), Path(after).exists()) == (False, True)


def test_what_a_killed_launch_fetched_goes_with_the_next_save__before_it_stayed_unless_something_was_fetched(
    job: Job, tier: Tier
) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    Path(of(job, 10, 1).path).unlink()
    fetched = Path(job.start(resume=False)[1].resolve().ranks[1].source.path)
    ranks = job.start(resume=False)
    assert [each.resolve(step=5).global_step for each in ranks] == [5, 5]
    assert fetched.exists()
    for each in ranks:
        job.announce(each)
    job.save(ranks, 6)
    assert not fetched.parent.exists()


def test_what_a_rank_still_fetches_is_not_removed_by_one_that_has_saved(
    catalog: Catalog, tmp_path: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that share a directory and do not wait for each other: the start of the slower one failed."""
    home = tmp_path / "ckpt"
    home.mkdir()
    for launch in (catalog.join("run", rank=rank, world_size=2, launch_id="L1") for rank in range(2)):
        launch.register(ckpt_bytes.write(home / f"r{launch.rank}-1_5.ckpt", 5, 5), global_step=5)
    copied(catalog, tier, catalog.files("run"))
    for file in catalog.files("run"):
        Path(file.path).unlink()
    first, second = (catalog.join("run", rank=rank, world_size=2, launch_id="L2") for rank in range(2))
    fetched = Path(first.resolve().ranks[0].source.path)
    pieces = DirectoryStore.pieces

    def meanwhile(store: DirectoryStore, *asked: Any) -> Iterator[bytes]:
        for piece in pieces(store, *asked):
            yield piece[:10]
            first.register(ckpt_bytes.write(home / "r0-2_1.ckpt", 6, 6), global_step=6)
            assert not fetched.exists()
            yield piece[10:]

    monkeypatch.setattr(DirectoryStore, "pieces", meanwhile)
    source = second.resolve().ranks[1].source
    assert Path(source.path).stat().st_size == source.size
    second.register(ckpt_bytes.write(home / "r1-2_1.ckpt", 6, 6), global_step=6)
    assert list((home / ".ckptstore" / "fetched").iterdir()) == []


def test_rank_0_sends_the_copies(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    shutil.rmtree(job.folder(1))
    start = decide(job.start(resume=False)[0], query=Query(fetches=True))
    sent = start_from_json(start.to_json())
    assert sent.plan.to_dicts() == start.plan.to_dicts()
    assert sent.plan.copies == start.plan.copies
    assert {copy.tier for each in sent.plan.copies.values() for copy in each} == {tier}


def test_a_damaged_file_is_fetched_and_a_state_that_is_known_to_be_bad_is_not(job: Job, tier: Tier) -> None:
    file = of(job, 10, 1)
    copied(job.catalog, tier, [file])
    ranks = job.start(resume=False)
    ranks[1].mark_damaged(file, Rule.DIGEST_MISMATCH)
    assert step_of(job) == 10
    ranks[1].recorder.record_files([of(job, 10, 1).amended(quarantine="its loss was nan")])
    assert step_of(job) == 5


def test_it_is_told_what_must_be_fetched_and_what_an_older_state_costs(job: Job, tier: Tier, tmp_path: Path) -> None:
    """`resolve --explain` and its JSON."""
    file = of(job, 10, 1)
    for each in (declared(job.catalog, tmp_path / "far", "far", 2), tier):
        copied(job.catalog, each, [file])
    Path(file.path).unlink()
    found = job.catalog.resolve("run")
    told = dicts.resolution(found)["to_fetch"]
    assert told["files"] == [{"path": file.path, "tier": "shared", "key": key_of(file), "bytes": file.size}]
    assert (told["bytes"], told["without"]) == (file.size, {"global_step": 5, "launch": "L1"})
    printed = CliRunner().invoke(cli, [f"--db={job.catalog.database.url}", "resolve", "run", "--explain"]).stdout
    assert f"{file.path}, from tier shared" in printed
    assert f"1 file, {file.size} B, must be fetched from shared; a start does that" in printed
    assert "step 5 needs no copy, and is 5 steps older: resume(step=5)" in printed
    Path(of(job, 5, 1).path).unlink()
    printed = CliRunner().invoke(cli, [f"--db={job.catalog.database.url}", "resolve", "run", "--explain"]).stdout
    assert "no state can be restored without copies" in printed
    with pytest.raises(RefusedError, match="only tiers have"):
        CliRunner().invoke(
            cli,
            [f"--db={job.catalog.database.url}", "resolve", "run", "--format", "paths"],
            catch_exceptions=False,
            standalone_mode=False,
        )


def test_a_state_in_a_tier_alone_has_a_name_and_who_reads_files_is_told_where_they_are(job: Job, tier: Tier) -> None:
    files = job.catalog.show("run", 10) + job.catalog.show("run", 5)
    copied(job.catalog, tier, files)
    for file in files:
        Path(file.path).unlink()
    database = job.catalog.database
    assert step_named(database, "run") == ("run", 10)
    with pytest.raises(NothingRestorableError, match="only shared has files of step 5 of run run: a start"):
        job.catalog.export("run@5", job.directory / "target")
    with pytest.raises(NothingRestorableError, match="run run has no save of step 7"):
        choose_state(database, "run@7")


def test_nothing_more_is_asked_where_every_file_is_at_home(job: Job, tmp_path: Path) -> None:
    """Neither of the catalog nor of the disk: not without tiers, and not with copies of all that is there."""
    database = job.catalog.database

    def asked(*, fetches: bool) -> int:
        with statements() as made:
            assert step_of(job, fetches=fetches) == 10
        return len(made)

    without = asked(fetches=False)
    assert asked(fetches=True) == without
    copied(job.catalog, declared(job.catalog, tmp_path / "shared"), job.catalog.files("run"))
    assert asked(fetches=True) == without
    Path(of(job, 10, 1).path).unlink()
    with database.read() as connection:
        assert copies.ready_copies(connection, [of(job, 10, 1)])
    resolve(database, "run", Query(fetches=True))  # it is recorded as gone
    with statements() as made:
        assert choose(database, "run", find_run(database, "run"), Query(fetches=True)).plan.global_step == 10
    lost = len(made)
    with statements() as made:
        assert choose(database, "run", find_run(database, "run"), Query()).plan.global_step == 5
    assert lost < len(made), "one statement for the copies of a state, in place of the next state"


def test_each_state_is_looked_at_once_though_an_older_one_is_compared(
    job: Job, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What must be fetched is judged without copies and with them, and the older state only without."""
    copied(job.catalog, tier, job.catalog.files("run"))
    for rank in range(2):
        Path(of(job, 10, rank).path).unlink()
    judged: list[int] = []
    judge = resolver.judge

    def noted(state: State, *asked: Any) -> RestorePlan | Rejection:
        judged.append(state.global_step)
        return judge(state, *asked)

    monkeypatch.setattr(resolver, "judge", noted)
    found = resolve(job.catalog.database, "run", Query(fetches=True))
    assert (found.plan.global_step, found.without_fetching.global_step, judged) == (10, 5, [10, 10, 5])


def test_a_copy_serves_for_a_file_that_a_start_found_to_have_other_bytes(job: Job, tier: Tier) -> None:
    """Seen before: the state was passed over for good. Where the copy cannot be loaded either, it is."""
    copied(job.catalog, tier, job.catalog.files("run"))
    bad = of(job, 10, 1)
    job.start()[1].record_load_failure(bad, Rule.DIGEST_MISMATCH, "other bytes")
    assert step_of(job) == 10
    assert step_of(job, fetches=False) == 5
    last = job.start()[1]
    plan = last.resolve()
    fetched = plan.ranks[1].source
    assert (plan.global_step, "/fetched/" in fetched.path) == (10, True)
    last.record_load_failure(fetched, Rule.UNREADABLE, "it is cut or damaged")
    assert step_of(job) == 5
