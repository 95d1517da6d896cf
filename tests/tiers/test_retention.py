"""gc of one tier: the newest states stay, what is protected stays, and a local file waits for its copy."""

import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from ckptstore.api import Catalog
from ckptstore.catalog import copies
from ckptstore.cli.main import cli
from ckptstore.core.copies import CopyState, Tier
from ckptstore.core.copy_keys import key_of
from ckptstore.core.events import CopyRecorded, to_line
from ckptstore.core.limits import CLOCKS_DIFFER
from ckptstore.core.model import Content
from ckptstore.errors import RefusedError
from ckptstore.journal import jsonl
from ckptstore.journal.recorder import shared
from ckptstore.objects.directory import DirectoryStore
from ckptstore.objects.tiers import open_tier
from ckptstore.outside import utc_now
from ckptstore.resume.resolve import resolve
from ckptstore.resume.resolver import Query
from ckptstore.retention import in_tier, stored_policy, worker
from ckptstore.retention.execute import execute
from ckptstore.retention.in_tier import TierPlan
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.tiers import facts
from ckptstore.training import companions
from ckptstore.verify.in_tier import verify
from tests.cli import advice
from tests.command_line import ckptstore
from tests.jobs import Job, begun
from tests.replicate.rounds import one_round
from tests.retention.builders import doubts, forget_the_holder
from tests.tiers.jobs import copied, declared

pytestmark = pytest.mark.of_files

STEPS = (5, 10, 15, 20)
KEEP = Policy(keep_last=1, floor=1)


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    return begun(catalog, tmp_path / "ckpt", *STEPS)[0]


@pytest.fixture
def tier(catalog: Catalog, tmp_path: Path) -> Tier:
    return declared(catalog, tmp_path / "far", "far", 2)


def steps(plan: TierPlan) -> tuple[list[int], list[int]]:
    keep, remove = plan.decision.keep, plan.decision.remove
    return [each.state.global_step for each in keep], [each.state.global_step for each in remove]


def ready(job: Job, tier: Tier) -> set[int]:
    """The steps that the tier has a ready copy of."""
    with job.catalog.database.read() as connection:
        files = {file.id: file for file in job.catalog.files("run")}
        known = copies.ready_copies(connection, files.values())
    return {files[file].global_step for file, some in known.items() if tier in [copy.tier for copy in some]}


def objects(tier: Tier) -> int:
    return len(list(open_tier(tier.url).list()))


def test_old_states_go_and_come_back_and_are_deleted_after_the_grace(job: Job, tier: Tier) -> None:
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    there = objects(tier)
    plan = in_tier.plan_tier(database, "run", tier, KEEP)
    assert steps(plan) == ([20], [15, 10, 5])
    done = in_tier.execute(database, plan)
    assert (done.copies, done.skipped, done.troubles) == (6, (), ())
    assert in_tier.execute(database, plan).copies == 0, "what is in the trash goes once"
    assert (ready(job, tier), objects(tier)) == ({20}, there), "until the grace is over nothing is deleted"
    assert facts.lacking(database, "run", tier) == [], "what retention removed is not copied again"
    assert in_tier.undo(database, "run", tier).copies == 6
    assert ready(job, tier) == set(STEPS)
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP))
    assert in_tier.purge(database, "run", tier).purged == 0
    assert in_tier.purge(database, "run", tier, at_once=True).purged == 6
    assert {seen.key for seen in open_tier(tier.url).list()} == {key_of(file) for file in job.catalog.show("run", 20)}
    assert in_tier.undo(database, "run", tier).copies == 0
    assert facts.lacking(database, "run", tier) == []


def test_what_a_gc_by_a_clock_that_is_ahead_removed_comes_back(
    job: Job, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """undo on another node counted 6 copies as brought back, and purge deleted them."""
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    with monkeypatch.context() as ahead:
        ahead.setattr(in_tier, "utc_now", lambda: utc_now() + timedelta(minutes=5))
        in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP))
    assert in_tier.undo(database, "run", tier).copies == 6
    assert ready(job, tier) == set(STEPS)
    assert in_tier.purge(database, "run", tier, at_once=True).purged == 0


def test_what_was_copied_by_a_clock_that_is_ahead_is_removed(
    job: Job, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as ahead:
        ahead.setattr(facts, "utc_now", lambda: utc_now() + timedelta(minutes=5))
        copied(job.catalog, tier, job.catalog.files("run"))
    database = job.catalog.database
    assert in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP)).copies == 6
    assert ready(job, tier) == {20}
    assert in_tier.purge(database, "run", tier, at_once=True).purged == 6
    assert in_tier.purge(database, "run", tier, at_once=True).purged == 0


def test_the_next_gc_deletes_what_is_over_its_grace(job: Job, tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    at_once = Policy(keep_last=1, floor=1, grace=timedelta(microseconds=1))
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, at_once))
    monkeypatch.setattr(in_tier, "utc_now", lambda: utc_now() + CLOCKS_DIFFER - timedelta(minutes=1))
    assert in_tier.purge(database, "run", tier).purged == 0, "this node's clock may be ahead"
    monkeypatch.setattr(in_tier, "utc_now", lambda: utc_now() + CLOCKS_DIFFER)
    done = in_tier.execute(database, in_tier.plan_tier(database, "run", tier, at_once))
    assert (done.copies, done.purged) == (0, 6)


def test_only_what_the_tier_has_whole_counts(job: Job, tier: Tier) -> None:
    """The newest states are not copied yet: the newest that is in the tier stays."""
    copied(job.catalog, tier, [file for file in job.catalog.files("run") if file.global_step <= 10])
    copied(job.catalog, tier, [file for file in job.catalog.show("run", 15) if file.rank == 0])
    assert steps(in_tier.plan_tier(job.catalog.database, "run", tier, KEEP)) == ([15, 10], [5])


def test_a_state_that_needs_what_is_elsewhere_stays(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, [file for file in job.catalog.files("run") if (file.global_step, file.rank) != (5, 1)])
    plan = in_tier.plan_tier(job.catalog.database, "run", tier, KEEP)
    assert steps(plan) == ([20, 5], [15, 10])
    assert plan.decision.keep[1].reasons[0].detail == "it can be restored only with files from elsewhere"


def test_a_lost_node_changes_nothing_of_what_goes_in_the_tier(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    for rank in (0, 1):
        for path in job.folder(rank).glob("*.ckpt"):
            path.unlink()
    plan = in_tier.plan_tier(job.catalog.database, "run", tier, KEEP)
    assert steps(plan) == ([20], [15, 10, 5])
    in_tier.execute(job.catalog.database, plan)
    assert resolve(job.catalog.database, "run", Query(fetches=True)).plan.global_step == 20


def test_pins_and_starts_protect_what_is_in_the_tier_also_at_the_last_moment(job: Job, tier: Tier) -> None:
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    job.catalog.pin("run", 10)
    plan = in_tier.plan_tier(database, "run", tier, KEEP)
    assert steps(plan) == ([20, 10], [15, 5])
    job.catalog.tag("run", 5, "final")
    done = in_tier.execute(database, plan)
    assert (done.copies, [each.path for each in done.skipped]) == (2, ["step 5 of launch L1"])
    assert ready(job, tier) == {5, 10, 20}


def test_a_state_that_only_a_tier_has_can_be_protected(job: Job, tier: Tier, tmp_path: Path) -> None:
    """gc has freed its files on the node."""
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    local = facts.tier_of("local", str(tmp_path / "ckpt"), 0)
    job.catalog.execute(plan_gc(database, "run", KEEP, tier=local), now=True)
    assert job.catalog.pin("run", 10)
    assert job.catalog.tag("run", 5, "final")
    assert steps(in_tier.plan_tier(database, "run", tier, KEEP)) == ([20, 10, 5], [15])
    facts.remove(database, tier.name)
    with pytest.raises(RefusedError, match="nothing of step 15 of run 'run' is left"):
        job.catalog.pin("run", 15)


def test_a_state_that_a_launch_starts_from_stays(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    plan = in_tier.plan_tier(job.catalog.database, "run", tier, KEEP)
    for launch in job.start(resume=False):
        launch.resolve(step=10)
    with pytest.raises(RefusedError, match="the run went back to an older state; make the plan again"):
        in_tier.execute(job.catalog.database, plan)
    in_tier.execute(job.catalog.database, in_tier.plan_tier(job.catalog.database, "run", tier, KEEP))
    assert 10 in ready(job, tier)


def test_nothing_goes_where_the_floor_is_not_in_the_tier(job: Job, database_url: str, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    open_tier(tier.url).remove(key_of(job.catalog.show("run", 20)[0]))
    with pytest.raises(RefusedError, match="step 20 must stay, and .* is not in tier far") as refused:
        in_tier.execute(job.catalog.database, in_tier.plan_tier(job.catalog.database, "run", tier, KEEP))
    assert ready(job, tier) == set(STEPS)
    for words in advice.commands_in(refused.value.hint or ""):  # before, `replicate` alone: it took the copy for there
        advice.run(database_url, *words)
    assert in_tier.execute(job.catalog.database, in_tier.plan_tier(job.catalog.database, "run", tier, KEEP)).copies == 6


@pytest.mark.parametrize("how", ["could not be loaded", "was quarantined"])
def test_nothing_goes_where_the_floor_no_longer_counts(job: Job, tier: Tier, how: str) -> None:
    """Before, the copies of all states that can be restored went, if that was recorded after the plan was made."""
    copied(job.catalog, tier, job.catalog.files("run"))
    plan = in_tier.plan_tier(job.catalog.database, "run", tier, KEEP)
    newest, (rank, _) = job.catalog.show("run", 20)[0], job.start()
    if how == "could not be loaded":
        rank.load_failed(newest, "Input/output error")
    else:
        rank.record_files([replace(newest, quarantine="the loss was nan")])
    with pytest.raises(RefusedError, match="the plan keeps step 20 of launch L1, but it no longer counts"):
        in_tier.execute(job.catalog.database, plan)
    assert ready(job, tier) == set(STEPS)
    assert steps(in_tier.plan_tier(job.catalog.database, "run", tier, KEEP)) == ([20, 15], [10, 5])


def test_a_file_that_had_failed_to_load_stops_no_gc(catalog: Catalog, tier: Tier, tmp_path: Path) -> None:
    """A replica serves for what failed to load. Before, gc of the tier and of the disks stopped each time."""
    job, _ = begun(catalog, tmp_path / "ckpt", *STEPS, layout="data_parallel")
    copied(catalog, tier, catalog.files("run"))
    job.start()[0].load_failed(catalog.show("run", 20)[1], "Input/output error")
    assert in_tier.execute(catalog.database, in_tier.plan_tier(catalog.database, "run", tier, KEEP)).copies == 6
    assert catalog.execute(plan_gc(catalog.database, "run", KEEP)).files == 6


def test_weights_that_are_quarantined_stop_no_gc(catalog: Catalog, tier: Tier, tmp_path: Path) -> None:
    """The state beside them counts without them. Before, gc of the tier stopped each time."""
    _, ranks = begun(catalog, tmp_path / "ckpt", *STEPS)
    copied(catalog, tier, catalog.files("run"))
    weights = replace(catalog.show("run", 20)[0], path=f"{tmp_path}/ckpt/weights.ckpt", content=Content.WEIGHTS)
    ranks[0].record_files([replace(weights, quarantine="the loss was nan")])
    assert in_tier.execute(catalog.database, in_tier.plan_tier(catalog.database, "run", tier, KEEP)).copies == 6


def test_a_tier_that_does_not_answer_is_not_said_to_lack_its_copies(job: Job, tier: Tier, tmp_path: Path) -> None:
    """Before, gc advised to copy again what was there, and undo called it lost."""
    copied(job.catalog, tier, job.catalog.files("run"))
    plan = in_tier.plan_tier(job.catalog.database, "run", tier, KEEP)
    in_tier.execute(job.catalog.database, plan)
    (tmp_path / "far").rename(tmp_path / "not mounted")
    with pytest.raises(RefusedError, match="step 20 must stay, and .*/far is not there: perhaps it is not mounted"):
        in_tier.execute(job.catalog.database, plan)
    found = in_tier.undo(job.catalog.database, "run", tier)
    assert {each.reason for each in found.troubles} == {f"{tmp_path / 'far'} is not there: perhaps it is not mounted"}
    (tmp_path / "not mounted").rename(tmp_path / "far")
    assert in_tier.undo(job.catalog.database, "run", tier).copies == len(found.troubles)


def test_an_object_that_another_copy_needs_is_not_deleted(job: Job, tier: Tier) -> None:
    """Ranks that save the same bytes under one name share an object."""
    copied(job.catalog, tier, job.catalog.files("run"))
    first, second = job.catalog.show("run", 5)
    assert key_of(first) == key_of(second)
    facts.record_copy(shared(job.catalog.database), first, tier, CopyState.TRASHED, detail="2026-01-01T00:00:00+00:00")
    assert in_tier.purge(job.catalog.database, "run", tier).purged == 1
    assert open_tier(tier.url).head(key_of(second)) is not None


def test_an_object_that_another_users_tier_with_this_url_needs_is_not_deleted(job: Job, tier: Tier) -> None:
    files = job.catalog.show("run", 5)
    copied(job.catalog, tier, files)
    copied(job.catalog, tier._replace(name="theirs"), files)
    for file in files:
        facts.record_copy(
            shared(job.catalog.database), file, tier, CopyState.TRASHED, detail="2026-01-01T00:00:00+00:00"
        )
    assert in_tier.purge(job.catalog.database, "run", tier).purged == 2
    assert objects(tier) == 1


def test_an_object_that_is_about_to_be_shared_is_not_deleted(job: Job, tier: Tier) -> None:
    """A process that copies the second file finds the object there, and records a copy that must not lose it."""
    first, second = job.catalog.show("run", 5)
    copied(job.catalog, tier, [first])
    facts.record_copy(shared(job.catalog.database), first, tier, CopyState.TRASHED, detail="2026-01-01T00:00:00+00:00")
    done = in_tier.purge(job.catalog.database, "run", tier)
    assert (done.purged, [each.path for each in done.troubles]) == (0, [key_of(first)])
    assert open_tier(tier.url).head(key_of(second)) is not None
    facts.record_copy(shared(job.catalog.database), second, tier, CopyState.READY)
    assert in_tier.purge(job.catalog.database, "run", tier).purged == 1
    assert open_tier(tier.url).head(key_of(second)) is not None


def test_undo_says_what_is_not_there_any_more(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    in_tier.execute(job.catalog.database, in_tier.plan_tier(job.catalog.database, "run", tier, KEEP))
    open_tier(tier.url).remove(key_of(job.catalog.show("run", 5)[0]))
    done = in_tier.undo(job.catalog.database, "run", tier)
    assert (done.copies, len(done.troubles)) == (4, 2)


def test_undo_goes_on_to_the_gc_before_if_nothing_of_the_last_one_is_there(job: Job, tier: Tier) -> None:
    """Before, every further undo looked at the last gc again, until the grace of both was over."""
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    for newest in (3, 2):
        in_tier.execute(database, in_tier.plan_tier(database, "run", tier, Policy(keep_last=newest, floor=1)))
    open_tier(tier.url).remove(key_of(job.catalog.show("run", 10)[0]))
    done = in_tier.undo(database, "run", tier)
    assert (done.copies, len(done.troubles), ready(job, tier)) == (2, 2, {5, 15, 20})


def test_copies_of_a_step_that_was_pinned_or_tagged_since_are_not_deleted(job: Job, tier: Tier) -> None:
    """Before, purge deleted them, and replicate did not make them again."""
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP))
    job.catalog.pin("run", 5)
    job.catalog.tag("run", 10, "good")
    done = in_tier.purge(database, "run", tier, at_once=True)
    assert (done.purged, [each.path for each in done.skipped]) == (2, ["step 5 of launch L1", "step 10 of launch L1"])
    assert in_tier.undo(database, "run", tier).copies == 4
    assert ready(job, tier) == {5, 10, 20}


def test_copies_stay_after_their_grace_while_nothing_else_can_be_restored(
    job: Job, tier: Tier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the next gc of the tier deleted the last whole states of the run."""
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP))
    for file in job.catalog.files("run"):
        Path(file.path).unlink()
    open_tier(tier.url).remove(key_of(job.catalog.show("run", 20)[0]))
    assert len(verify(database, "run", tier).damaged) == 2
    with monkeypatch.context() as later:
        later.setattr(in_tier, "utc_now", lambda: utc_now() + timedelta(days=3))
        assert in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP)).purged == 0
        assert in_tier.purge(database, "run", tier).purged == 0
    assert "ckptstore undo run --tier far brings files back" in caplog.text
    assert in_tier.undo(database, "run", tier).copies == 6
    assert resolve(database, "run", Query(fetches=True)).plan is not None


def test_a_step_of_which_gc_removed_the_last_copies_is_not_said_to_be_lost(job: Job, tier: Tier) -> None:
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    execute(database, plan_gc(database, "run", KEEP), at_once=True)
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP))
    with pytest.raises(RefusedError, match="has removed the copies of step 10 .* in tier far; .* undo run --tier far"):
        job.catalog.pin("run", 10)
    in_tier.undo(database, "run", tier)
    assert job.catalog.pin("run", 10)


def test_a_local_file_waits_if_the_tier_has_lost_its_companion(job: Job, tier: Tier, tmp_path: Path) -> None:
    """Before, gc removed the file, and no start could take the copy: a fetch begins with the companion."""
    database = job.catalog.database
    files = job.catalog.files("run")
    for file in files:
        companions.write(file, {"kept": file.global_step}, durable=False)
    one_round(job.catalog)
    facts.add(database, facts.tier_of("local", str(tmp_path / "ckpt"), 0))
    local = facts.named(database, "local")
    next((tmp_path / "far/run/L1/10").glob("*.companion")).unlink()
    plan = plan_gc(database, "run", KEEP, tier=local)
    assert [each.state.global_step for each in plan.decision.remove] == [15, 5]


@pytest.mark.parametrize("detail", ["2026-01-01T00:00:00+00:00", "", "2026-01-01T00:00:00"])
def test_a_journal_has_no_objects_of_another_run_deleted(job: Job, tier: Tier, tmp_path: Path, detail: str) -> None:
    """It may be of a user who knows the tier: its run had a trashed copy under the key of another run."""
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    there = objects(tier)
    begun(job.catalog, tmp_path / "other", 5, run="other", world_size=1)
    (file,) = job.catalog.files("other")
    told = CopyRecorded.of(file, tier, CopyState.TRASHED, utc_now(), detail=detail)
    if detail.endswith("+00:00"):
        told = replace(told, key=key_of(job.catalog.show("run", 20)[0]))
    directory = Path(file.path).parent
    journal = next((directory / ".ckptstore").glob("rank_0-*.jsonl"))
    with journal.open("ab") as opened:
        opened.write(jsonl.encode(to_line(told, str(directory))))
    job.catalog.scan(directory)
    assert in_tier.purge(database, "other", tier).purged == 0
    assert objects(tier) == there


def test_a_purge_that_lost_its_lock_deletes_nothing_more(job: Job, tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had not renewed the lock for all its objects: another host brought back copies, and it deleted their bytes."""
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP))
    monkeypatch.setattr(worker, "RENEWED_EVERY", timedelta(0))
    remove = DirectoryStore.remove

    def undone_meanwhile(store: DirectoryStore, key: str) -> None:
        remove(store, key)
        forget_the_holder(job.catalog)
        in_tier.undo(database, "run", tier)

    with monkeypatch.context() as slow, pytest.raises(RefusedError, match="has taken over the files"):
        slow.setattr(DirectoryStore, "remove", undone_meanwhile)
        in_tier.purge(database, "run", tier, at_once=True)
    assert len(ready(job, tier)) == 3, "one object was on its way out"
    assert objects(tier) == 3


def test_a_local_file_waits_until_a_tier_above_has_it(job: Job, tier: Tier, tmp_path: Path) -> None:
    database = job.catalog.database
    local = facts.tier_of("local", str(tmp_path / "ckpt"), 0)
    facts.add(database, local)

    def going() -> list[int]:
        return [each.state.global_step for each in plan_gc(database, "run", KEEP, tier=local).decision.remove]

    assert going() == []
    copied(job.catalog, tier, [file for file in job.catalog.files("run") if file.global_step in (5, 10)])
    assert going() == [10, 5]
    assert [each.state.global_step for each in plan_gc(database, "run", KEEP).decision.remove] == [15, 10, 5]
    open_tier(tier.url).remove(key_of(job.catalog.show("run", 10)[0]))
    assert going() == [5], "the tier is asked"
    facts.remove(database, tier.name)
    assert going() == [], "no start reads a tier that was taken back"
    assert plan_gc(database, "run", KEEP, tier=facts.tier_of("other", str(tmp_path / "x"), 0)).removes_nothing


def test_a_file_whose_copy_gc_removed_first_waits_for_no_copy__before_it_was_said_to_wait_for_ever(
    job: Job, tier: Tier, tmp_path: Path
) -> None:
    database = job.catalog.database
    local = declared(job.catalog, tmp_path / "ckpt", "local", 0)
    copied(job.catalog, tier, job.catalog.files("run"))
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP))
    kept = doubts(plan_gc(database, "run", KEEP, tier=local))
    assert {step: why.endswith("gc without --tier removes it") for (_, step), why in kept.items()} == dict.fromkeys(
        (5, 10, 15), True
    )
    done = execute(database, plan_gc(database, "run", KEEP))
    assert [step for _, step in done.removed] == [5, 10, 15]


def test_a_file_whose_copy_gc_removed_still_waits_for_the_copy_in_another_tier(
    job: Job, tier: Tier, tmp_path: Path
) -> None:
    """A gc without --tier, as the reason said, would have removed the file before the archive had it."""
    database = job.catalog.database
    local = declared(job.catalog, tmp_path / "ckpt", "local", 0)
    archive = declared(job.catalog, tmp_path / "archive", "archive", 2)
    copied(job.catalog, tier, job.catalog.files("run"))
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP))
    kept = doubts(plan_gc(database, "run", KEEP, tier=local))
    assert {step for (_, step), why in kept.items() if why.endswith(" yet")} == {5, 10, 15}
    copied(job.catalog, archive, job.catalog.files("run"))
    done = execute(database, plan_gc(database, "run", KEEP, tier=local))
    assert [step for _, step in done.removed] == [5, 10, 15]


def test_what_left_a_node_comes_back_by_the_command_for_files(job: Job, tier: Tier, tmp_path: Path) -> None:
    """With the tier, undo and purge found no copy there, and ended with 0."""
    declared(job.catalog, tmp_path / "ckpt", "local", 0)
    copied(job.catalog, tier, job.catalog.files("run"))
    url = job.catalog.database.url.render_as_string(hide_password=False)
    rules = ("--keep-last", "1", "--floor", "1")
    assert "moved to the trash" in advice.run(url, "gc", "run", "--tier", "local", *rules, "--apply").out
    refused = advice.run(url, "undo", "run", "--tier", "local")
    assert refused.code == 2
    assert "6 files brought back" in advice.follow(url, refused.err).out
    refused = advice.run(url, "purge", "run", "--tier", "local", "--now")
    assert (refused.code, advice.advised(refused.err)) == (2, ["purge", "run", "--now"])


def test_gc_of_the_disks_keeps_what_only_they_and_a_tier_have_together(job: Job, tier: Tier) -> None:
    """Step 10 is whole only by rank 0's file on its disk and rank 1's copy."""
    files = job.catalog.files("run")
    copied(job.catalog, tier, [file for file in files if file.rank == 1 or file.global_step == 5])
    for file in files:
        if file.rank == 1 and file.global_step in (5, 10):
            Path(file.path).unlink()
    plan = plan_gc(job.catalog.database, "run", KEEP)
    assert [each.state.global_step for each in plan.decision.keep] == [20, 10]
    assert [each.state.global_step for each in plan.decision.remove] == [15, 5], "the tier has all of step 5"
    assert plan.decision.keep[1].reasons[0].detail == "it can be restored only with files from elsewhere"
    facts.remove(job.catalog.database, tier.name)
    plan = plan_gc(job.catalog.database, "run", KEEP)
    assert [each.state.global_step for each in plan.decision.remove] == [15, 10, 5], "no start reads that tier any more"


def test_what_left_the_node_is_restored_from_the_tier(job: Job, tier: Tier, tmp_path: Path) -> None:
    database = job.catalog.database
    local = facts.tier_of("local", str(tmp_path / "ckpt"), 0)
    copied(job.catalog, tier, job.catalog.files("run"))
    job.catalog.execute(plan_gc(database, "run", KEEP, tier=local))
    assert sorted(path.name for path in job.folder(0).glob("*.ckpt")) == ["net-2_10.ckpt"]
    plan = job.start(resume=False)[0].resolve(step=10)
    assert plan.global_step == 10
    assert Path(plan.ranks[0].source.path).exists()


def test_what_journals_may_protect_stays_while_they_are_away(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))
    shutil.rmtree(job.folder(1))
    assert in_tier.plan_tier(job.catalog.database, "run", tier, KEEP).decision.remove == ()


def test_no_copy_is_deleted_that_a_journal_may_protect_which_is_away(job: Job, other: Catalog, tier: Tier) -> None:
    """Before, purge deleted the copies of a step that another catalog had pinned on a node that did not answer."""
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, KEEP))
    other.sync(job.directory)
    other.pin("run", 5)
    job.folder(0).rename(job.directory / "away")
    done = in_tier.purge(database, "run", tier, at_once=True)
    assert (done.purged, len(done.troubles)) == (0, 6)
    (job.directory / "away").rename(job.folder(0))
    done = in_tier.purge(database, "run", tier, at_once=True)
    assert (done.purged, [each.path for each in done.skipped]) == (4, ["step 5 of launch L1"])


def test_the_commands(job: Job, tier: Tier) -> None:
    copied(job.catalog, tier, job.catalog.files("run"))

    def told(*arguments: str) -> str:
        command = [f"--db={job.catalog.database.url}", *arguments]
        return CliRunner().invoke(cli, command, catch_exceptions=False, standalone_mode=False).stdout

    rules = ("gc", "run", "--tier", "far", "--keep-last", "1", "--floor", "1")
    assert "run run, tier far: 1 state stays, 3 go" in told(*rules)
    assert "nothing was changed; --apply does it" in told(*rules)
    (shown,) = json.loads(told(*rules, "--json"))
    assert ([each["global_step"] for each in shown["remove"]], shown["applied"]) == ([15, 10, 5], False)
    assert "6 copies" in told(*rules, "--apply")
    assert told("undo", "run", "--tier", "far") == "run run, tier far: 6 copies brought back\n"
    told(*rules, "--apply")
    assert json.loads(told("purge", "run", "--tier", "far", "--now", "--json"))["purged"] == 6
    assert told("purge", "run", "--tier", "far", "--now") == "run run, tier far: 0 copies deleted\n"


def test_a_local_file_stays_whose_copy_goes_after_the_plan(job: Job, tier: Tier, tmp_path: Path) -> None:
    """A gc of the bucket between the plan for the node's disk and its end: step 5 is in one of them still."""
    database = job.catalog.database
    local = facts.tier_of("local", str(tmp_path / "ckpt"), 0)
    facts.add(database, local)
    copied(job.catalog, tier, job.catalog.files("run"))
    plan = plan_gc(database, "run", KEEP, tier=local)
    in_tier.execute(database, in_tier.plan_tier(database, "run", tier, Policy(keep_last=2, floor=1)))
    done = job.catalog.execute(plan)
    assert done.removed == (("L1", 15),)
    assert [(each.path, each.reason) for each in done.skipped] == [
        (f"step {step} of launch L1", "its copies in tiers have changed since the plan was made") for step in (5, 10)
    ]


def test_a_state_stays_that_a_copy_makes_whole_after_the_plan(job: Job, tier: Tier) -> None:
    """A copy that was under way when the file was lost: with it, step 10 is whole by a disk and the tier together."""
    database = job.catalog.database
    lost = job.catalog.show("run", 10)[1]
    Path(lost.path).rename(kept := Path(lost.path).with_name("elsewhere"))
    plan = plan_gc(database, "run", KEEP)
    copies_of_10 = in_tier.plan_tier(database, "run", tier, KEEP)
    assert [each.state.global_step for each in plan.decision.remove] == [15, 10, 5]
    copied(job.catalog, tier, [lost], at=kept)
    done = job.catalog.execute(plan)
    assert [each.path for each in done.skipped] == ["step 10 of launch L1"]
    assert in_tier.execute(database, copies_of_10).copies == 0


def test_copies_stay_that_another_copy_makes_whole_after_the_plan(job: Job, tier: Tier) -> None:
    """Step 10 lacked a rank in the tier and on the disks: that rank's copy is told while the gc is at it."""
    database = job.catalog.database
    files = job.catalog.files("run")
    late = job.catalog.show("run", 10)[1]
    copied(job.catalog, tier, [file for file in files if file.id != late.id])
    Path(late.path).rename(kept := Path(late.path).with_name("elsewhere"))
    plan = in_tier.plan_tier(database, "run", tier, Policy(keep_last=1, keep_every=10, floor=1))
    assert steps(plan) == ([20, 15], [10, 5])
    copied(job.catalog, tier, [late], at=kept)
    done = in_tier.execute(database, plan)
    assert [(each.path, each.reason) for each in done.skipped] == [
        ("step 10 of launch L1", "its copies in tiers have changed since the plan was made")
    ]
    assert ready(job, tier) == {10, 15, 20}


def test_every_run_with_a_policy_on_the_command_line(job: Job, tier: Tier, tmp_path: Path) -> None:
    """One that is refused stops no other; none is no fault."""
    far = ("gc", "--all", "--tier", tier.name)
    none = ckptstore(f"--db={job.catalog.database.url}", *far)
    assert (none.code, none.out) == (0, "no run has a stored policy\n")
    wrong = ckptstore(f"--db={job.catalog.database.url}", *far, "--apply", "--now")
    assert wrong.code == 2
    assert f"ckptstore purge RUN --now --tier {tier.name}" in wrong.err
    copied(job.catalog, tier, job.catalog.files("run"))
    stored_policy.store(job.catalog.database, "run", KEEP)
    begun(job.catalog, tmp_path / "another", *STEPS, run="another")
    copied(job.catalog, tier, job.catalog.files("another"))
    stored_policy.store(job.catalog.database, "another", Policy(keep_best=1, metric="loss", mode="min"))
    done = ckptstore(f"--db={job.catalog.database.url}", *far, "--apply")
    assert (done.code, ready(job, tier)) == (5, {20})
    assert done.err.startswith("ckptstore: run another: ")
