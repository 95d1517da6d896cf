"""Retention with real files, on both databases: what goes, what stays, and that it comes back."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

import ckptstore
from ckptstore.api import Catalog
from ckptstore.errors import UsageError
from ckptstore.resume.register import describe
from ckptstore.retention.decide import Why
from ckptstore.retention.in_trash import purge
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes, parts_bytes
from tests.jobs import begun
from tests.listings import listings
from tests.retention.builders import LAST_2, gc, names, removed, saved, tree


@pytest.mark.parametrize("no", ["False", "0", "", None])
def test_a_text_that_says_no_deletes_nothing(catalog: Catalog, tmp_path: Path, no: object) -> None:
    """As a script gets it from its arguments or from a variable. Any text counted as True: the files were gone."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    before = tree(job.directory)
    plan = catalog.plan_gc("run", ckptstore.Policy(keep_last=2))
    for name in ("now", "allow_mass_delete"):
        with pytest.raises(UsageError, match=f"{name} is {no!r}; give True or False"):
            catalog.execute(plan, **{name: no})
    catalog.execute(plan)
    with pytest.raises(UsageError, match="now is"):
        catalog.purge("run", now=no)
    catalog.undo("run")
    assert tree(job.directory) == before


def test_what_no_rule_keeps_goes_to_the_trash_and_comes_back(catalog: Catalog, tmp_path: Path) -> None:
    """By the calls that the manual shows."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    before = tree(job.directory)
    plan = catalog.plan_gc("run", ckptstore.Policy(keep_last=2))
    assert removed(plan) == [("L1", 20), ("L1", 10)]
    assert tree(job.directory) == before, "a plan changes nothing"
    done = catalog.execute(plan)
    assert (done.files, done.removed, done.troubles) == (4, (("L1", 10), ("L1", 20)), ())
    assert done.bytes == plan.bytes_freed
    assert names(job.directory) == {f"rank_{rank}/net-{end}.ckpt" for rank in (0, 1) for end in ("3_10", "4_10")}
    assert {save.tally.global_step for save in catalog.saves("run")} == {30, 40}
    assert catalog.resolve("run", step=10).plan is None
    back = catalog.undo("run")
    assert (back.files, back.troubles) == (4, ())
    assert tree(job.directory) == before
    assert {save.tally.global_step for save in catalog.saves("run") if save.restorable} == {10, 20, 30, 40}


@pytest.mark.of_files
def test_a_plan_lists_each_directory_once(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For files that are new or gone, for what goes with a file, for debris, and for what the catalog does not know."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    (job.folder(0) / "other-9_9.ckpt").touch()
    with listings(monkeypatch) as counts:
        plan = catalog.plan_gc("run", ckptstore.Policy(keep_last=2))
    assert removed(plan) == [("L1", 20), ("L1", 10)]
    folders = [str(job.folder(rank)) for rank in (0, 1)]
    assert {folder: counts[folder] for folder in folders} == dict.fromkeys(folders, 1)
    assert [each.path for each in plan.unknown] == [str(job.folder(0) / "other-9_9.ckpt")]


def test_the_grace_allows_for_clocks_that_differ(catalog: Catalog, tmp_path: Path) -> None:
    """A host that is 9 minutes ahead deletes nothing that another one has promised; who says --now means it."""
    saved(catalog, tmp_path, 10, 20, 30, 40)
    done = gc(catalog, Policy(keep_last=2, grace=timedelta(minutes=5)))
    assert done.purge_after is not None
    early = purge(catalog.database, "run", now=done.purge_after + timedelta(minutes=9))
    assert (early.files, early.waiting) == (0, 4)
    assert early.next_at == done.purge_after + timedelta(minutes=10)
    assert purge(catalog.database, "run", now=early.next_at).files == 4


def test_a_gc_deletes_what_earlier_ones_removed_and_says_how_much(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(catalog, tmp_path, 10, 20, 30, 40)
    before = gc(catalog)
    assert before.purge_after is not None
    later = before.purge_after + timedelta(minutes=10)
    monkeypatch.setattr("ckptstore.retention.execute.utc_now", lambda: later)
    done = gc(catalog)
    assert (done.purged_files, done.purged_bytes) == (before.files, before.bytes)


@pytest.mark.of_files
def test_every_so_many_steps_of_launches_that_count_differently(catalog: Catalog, tmp_path: Path) -> None:
    """The batch size is doubled after step 1000: the second launch goes on with step 500, and a third one as that."""
    kept = {}
    trainings = ((100, 32, range(100, 1001, 100)), (50, 64, range(550, 801, 50)), (50, 64, range(850, 1001, 50)))
    for order, (epoch, batch, steps) in enumerate(trainings):
        launch = catalog.join("run", launch_id=f"L{order}")
        launch.set_steps_per_epoch(epoch, batch_size=batch)
        launch.resolve()
        for step in steps:
            path = ckpt_bytes.write(tmp_path / f"net_{order}-{step}_1.ckpt", step, step)
            launch.register(path, global_step=step, optimizer_step=step + 500 * bool(order))
        kept |= {(launch.id, step): step % 100 == 0 for step in steps}
    kept["L1", 550] = kept["L2", 950] = True  # the first from step 500 on; the floor
    plan = plan_gc(catalog.database, "run", Policy(keep_every=100))
    assert set(removed(plan)) == {key for key, stays in kept.items() if not stays}


@pytest.mark.of_files
def test_saves_of_mindformers_are_no_business_of_gc(catalog: Catalog, tmp_path: Path) -> None:
    """They are never restored here, which must not make them what goes once a newer state can be restored."""
    root = tmp_path / "data"
    parts = [path for step in (2, 4) for path in parts_bytes.save(root, step).iterdir()]
    for path in parts:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    job = saved(catalog, tmp_path, 10, 20, 30)
    assert len(catalog.scan(root, run="run", world_size=2).adopted) == len(parts) - 4
    policy = Policy(keep_last=1, floor=1)
    assert removed(plan_gc(catalog.database, "run", policy)) == [("L1", 20), ("L1", 10)]
    gc(catalog, policy)
    assert all(path.exists() for path in parts)
    assert job.directory == root


@pytest.mark.of_files
def test_a_state_that_could_not_be_loaded_is_not_counted_and_not_removed(catalog: Catalog, tmp_path: Path) -> None:
    """The disk may give its bytes tomorrow; the floor stands on the states before it."""
    job = saved(catalog, tmp_path, 10, 20, 30)
    newest = [file for file in catalog.files("run") if file.global_step == 30]
    job.start()[0].load_failed(newest[0], "Input/output error")
    plan = plan_gc(catalog.database, "run", Policy(keep_last=1, floor=2))
    assert removed(plan) == []
    assert [verdict.state.key for verdict in plan.decision.keep] == [("L1", 30), ("L1", 20), ("L1", 10)]


def test_a_state_of_which_a_rank_has_not_said_that_its_file_is_whole(catalog: Catalog, tmp_path: Path) -> None:
    """A replica's file makes it whole, and nothing else keeps it: as long as the launch is the newest, it may come."""
    job, ranks = begun(catalog, tmp_path / "data", 10, 20, 30, layout="data_parallel")
    job.save(ranks[:1], 15)
    late = describe(ranks[1].facts, rank=1, path=job.folder(1) / "net-2_5.ckpt", kind="periodic", global_step=15)
    ranks[1].record_files([late])
    plan = plan_gc(catalog.database, "run", LAST_2)
    (kept,) = (verdict for verdict in plan.decision.keep if verdict.state.global_step == 15)
    assert [because.rule for because in kept.reasons] == [Why.IN_PROGRESS]
    assert removed(plan) == [("L1", 10)]
    job.save(job.begin(), 40)
    assert ("L1", 15) in removed(plan_gc(catalog.database, "run", LAST_2))
