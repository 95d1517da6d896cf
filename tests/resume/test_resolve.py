"""Where a run goes on, with real files on disk, on both databases."""

import shutil
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from ckptstore.catalog.engine import Connection, Database
from ckptstore.core.model import Content, Kind, Launch, Resolution, Rule
from ckptstore.disk import files as storage_files
from ckptstore.disk import name_claims
from ckptstore.errors import NothingRestorableError, RefusedError, UnknownRunError, UsageError
from ckptstore.outside import utc_now
from ckptstore.resume import start
from ckptstore.resume.register import describe
from ckptstore.resume.resolver import Loads, Query
from ckptstore.retention.policy import Policy
from ckptstore.training.rank_launch import RankLaunch
from ckptstore.training.start import begin, decide
from tests.formats.layouts import write_spreads
from tests.jobs import Job, begun, known_of, set_ending, started
from tests.projecting import put_files, put_start
from tests.spreads import spread


def chosen(resolution: Resolution) -> tuple[int, list[int]] | None:
    plan = resolution.plan
    return plan and (plan.global_step, [assignment.source.rank for assignment in plan.ranks])


def rejected(resolution: Resolution) -> list[tuple[int, list[tuple[Rule, int | None]]]]:
    return [
        (rejection.global_step, [(reason.rule, reason.rank) for reason in rejection.reasons])
        for rejection in resolution.rejections
    ]


@pytest.mark.of_files
def test_what_cannot_be_looked_at_is_passed_over_and_named(catalog: Catalog, tmp_path: Path) -> None:
    """Here it is a directory by now. What else may become of a file: test_faults.py."""
    job, ranks = started(catalog, tmp_path, 10)
    path = Path(job.save(ranks, 15)[1].path)
    path.unlink()
    path.mkdir()
    found = catalog.resolve("run")
    assert chosen(found) == (10, [0, 1])
    assert rejected(found) == [(15, [(Rule.UNREADABLE, 1)])]
    assert str(path) in found.rejections[0].reasons[0].detail


def test_one_launch_has_one_plan_even_if_files_vanish_while_it_starts(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = started(catalog, tmp_path, 10)
    files = job.save(ranks, 15)
    starting = job.start(resume=False)
    first = starting[0].resolve()
    Path(files[1].path).unlink()
    second = starting[1].resolve()
    late = catalog.join("run", rank=1, world_size=2, launch_id="L2").resolve()
    assert first == second == late
    assert first.global_step == 15
    assert chosen(catalog.resolve("run")) == (10, [0, 1])


def test_the_first_plan_that_is_stored_wins(catalog: Catalog, tmp_path: Path) -> None:
    """Two ranks that decide at the same time, on disks that differ between their looks."""
    job, ranks = started(catalog, tmp_path)
    older = job.save(ranks, 10)
    job.save(ranks, 15)
    starting = job.start(resume=False)
    for step in (10, 15):
        put_start(catalog, starting[0].facts, ranks[0].facts, step, older)
    plans = [launch.resolve() for launch in starting]
    assert [plan and plan.global_step for plan in plans] == [10, 10]


def test_a_rank_that_waited_for_the_catalog_gets_the_answer_that_was_stored(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its moment is the earlier one, and a newer state became complete between the choices of the two ranks."""
    job, ranks = started(catalog, tmp_path, 10)
    job.save(ranks[:1], 20)
    starting = job.start(resume=False)
    steps: list[int | None] = []

    def resolve(launch: RankLaunch) -> None:
        plan = launch.resolve()
        steps.append(plan.global_step if plan else None)

    def another_is_faster() -> datetime:
        monkeypatch.undo()
        now = utc_now()
        job.save(ranks[1:], 20)
        resolve(starting[0])
        return now

    monkeypatch.setattr(start, "utc_now", another_is_faster)
    resolve(starting[1])
    assert steps == [20, 20]


def test_a_rolled_back_branch_is_not_the_newest(catalog: Catalog, tmp_path: Path) -> None:
    job, first = started(catalog, tmp_path, 10)
    newer = job.save(first, 20)
    for file in newer:
        Path(file.path).rename(file.path + ".away")
    second = job.start()
    assert second[0].facts.parent_step == 10
    for file in newer:
        Path(file.path + ".away").rename(file.path)
    assert chosen(catalog.resolve("run")) == (20, [0, 1])
    job.save(second, 15)
    found = catalog.resolve("run")
    assert chosen(found) == (15, [0, 1])
    assert rejected(found) == [(20, [(Rule.NOT_LINEAGE, None)])]
    (row,) = catalog.runs()
    assert row.newest_restorable.tally.global_step == 15
    assert rejected(catalog.resolve("run", step=20)) == [(20, [(Rule.NOT_LINEAGE, None)])]
    job.save(second, 25)
    assert rejected(catalog.resolve("run")) == []


def test_a_crash_before_the_first_whole_save_starts_fresh(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(catalog, tmp_path)
    assert job.start()[0].facts.parent is None
    job.save(job.start()[:1], 5)
    assert not caplog.messages
    third = job.start()
    assert third[0].resolve() is None
    assert third[0].facts.decided
    (said,) = caplog.messages
    assert said == (
        "run run starts from the beginning; 1 step that was saved since then "
        "is incomplete; the newest one because: no file of rank 1 "
        "was recorded; see: ckptstore resolve run --explain"
    )


def test_a_start_from_the_beginning_says_why_not_from_weights(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training began at step 0 beside a save of the network alone, and did not say why."""
    job, ranks = started(catalog, tmp_path, world_size=1)
    (file,) = job.save(ranks, 5)
    put_files(catalog, [replace(file, content=Content.WEIGHTS, mtime_ns=(file.mtime_ns or 0) + 1)])
    job.start()
    (said,) = caplog.messages
    assert f"because: {file.path} holds weights without the optimizer's state; see" in said


@pytest.mark.of_files
@pytest.mark.parametrize("away", [False, True])
def test_many_saves_of_which_no_state_is_whole_are_not_a_fresh_start(
    catalog: Catalog, tmp_path: Path, *, away: bool
) -> None:
    """As where ranks save by the second, each at other steps; or where rank 0 speaks for all, and was not told so."""
    job, ranks = begun(catalog, tmp_path / "ckpt")
    for step in (5, 15):
        job.save(ranks[:1], step)
        job.save(ranks[1:], step + 1)
    told = "launch L1 saved 4 steps, and none of them is complete; the newest: no file of rank 0 was recorded"
    with pytest.raises(NothingRestorableError, match=f"nothing of run 'run' can be restored: {told}") as raised:
        job.start()
    assert "give the run another name" in str(raised.value)
    if away:  # one node sees only its own rank's directory, and the catalog cannot be asked
        (tmp_path / "ckpt" / "rank_1").rename(tmp_path / "not_mounted")
        job.save(ranks[:1], 25)
        url = "sqlite:////proc/nowhere/catalog.db"
        other = begin(Database(sa.make_url(url)), "run", rank=0, world_size=2, launch_id="L9", layout=None)
        with pytest.raises(NothingRestorableError, match="launch L1 saved 3 steps, and none of them is complete"):
            decide(other, [tmp_path / "ckpt"])


def test_losing_every_state_is_not_a_fresh_start(catalog: Catalog, tmp_path: Path) -> None:
    """A file system that is not mounted would otherwise cost the whole training."""
    job = Job(catalog, tmp_path / "mounted")
    files = job.save(job.start(), 15)
    (tmp_path / "mounted").rename(tmp_path / "unmounted")
    with pytest.raises(NothingRestorableError, match="step 15 was whole, .* is gone.*; bring the files back, or"):
        job.start()
    (tmp_path / "unmounted").rename(tmp_path / "mounted")
    plan = catalog.join("run", rank=0, world_size=2, launch_id="L2").resolve()
    assert [assignment.source.path for assignment in plan.ranks] == [file.path for file in files]


@pytest.mark.of_files
def test_a_start_says_what_was_whole_once_and_is_left_behind(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mount that comes late: what it holds is of an abandoned branch then, and nobody had heard of it."""
    job, ranks = started(catalog, tmp_path, 10)
    late = [*job.save(ranks, 15), *job.save(ranks, 20)]
    job.save(ranks[:1], 25)  # rank 1 did not come to it: nothing was whole
    caplog.clear()
    assert job.start()[0].facts.parent_step == 20
    assert not caplog.messages
    for file in late:
        Path(file.path).unlink()
    assert job.start()[0].facts.parent_step == 10
    missed = f"step 20 of launch L1 was complete once: {late[2].path} is gone; 1 more newer state is lost too"
    assert caplog.messages == [f"run run goes on after step 10, though {missed}; see: ckptstore history run"]


@pytest.mark.of_files
def test_a_start_says_that_of_many_newer_saves_none_is_whole(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk of one rank was full for days; or its journals were lost together with the catalog."""
    job, ranks = started(catalog, tmp_path, 10)
    job.save(ranks[:1], 15, 20)
    caplog.clear()
    (first, _) = job.start()
    assert first.facts.parent_step == 10
    assert not caplog.messages
    job.save([first], 25, 30, 35)
    assert job.start()[0].facts.parent_step == 10
    (said,) = caplog.messages
    assert said == (
        "run run goes on after step 10; 3 steps that were saved since then are "
        "incomplete; the newest one because: no file of rank 1 was "
        "recorded; see: ckptstore resolve run --explain"
    )


@pytest.mark.of_files
@pytest.mark.parametrize("branched", [False, True])
def test_a_save_that_was_never_finished_gives_nothing_up(catalog: Catalog, tmp_path: Path, *, branched: bool) -> None:
    """The mount of rank 1 was missing at a start, and is there again; one that was asked to go back does."""
    job, first = begun(catalog, tmp_path / "data", 10)
    hidden = Path(job.save(first, 20)[1].path)
    hidden.rename(tmp_path / "away")
    second = job.start(resume=not branched)
    for launch in second:
        assert not branched or launch.resolve(step=10) is not None
        assert launch.facts.parent_step == 10
        job.announce(launch)
    path = job.folder(0) / "net_1-2_5.ckpt"
    second[0].record_files([describe(second[0].facts, rank=0, path=path, kind="periodic", global_step=15)])
    (tmp_path / "away").rename(hidden)
    found = catalog.resolve("run")
    assert found.plan.global_step == (10 if branched else 20)
    told = {(step, reason[0]) for step, reasons in rejected(found) for reason in reasons}
    assert (15, Rule.IN_PROGRESS) in told
    assert ((20, Rule.NOT_LINEAGE) in told) == branched
    going = {verdict.state.key for verdict in catalog.plan_gc("run", Policy(keep_last=1, floor=1)).decision.remove}
    assert going == set()  # the second launch holds the state that it started from
    third = job.start()
    assert third[0].facts.parent_step == (10 if branched else 20)


def test_a_fresh_start_never_hides_a_branch_that_was_given_up(catalog: Catalog, tmp_path: Path) -> None:
    """The second launch began again from step 0 by itself, and died with one rank's file of step 5 written."""
    job, _ = started(catalog, tmp_path, 10)
    job.save(job.start(resume=False)[:1], 5)
    assert catalog.resolve("run").plan is None
    with pytest.raises(NothingRestorableError) as refused:
        job.start()
    assert str(refused.value) == (
        "nothing of run 'run' can be restored except step 10 of launch L1, which was abandoned when the run went back "
        "to an older state; see: ckptstore resolve run --all; choose it with "
        "resume(lineage='L1'), or start a run of another name"
    )
    again = job.start(resume=False)
    plan = again[0].resolve(lineage="L1")
    assert (plan.launch.id, plan.global_step) == ("L1", 10)
    assert chosen(catalog.resolve("run")) == (10, [0, 1])


def test_a_fresh_start_does_not_hide_that_a_branch_was_lost(catalog: Catalog, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path)
    for file in job.save(job.start(), 10):
        Path(file.path).unlink()
    job.save(job.start(resume=False)[:1], 5)
    with pytest.raises(NothingRestorableError, match="step 10 was whole, but .* is gone; see: .* --all"):
        job.start()


def test_a_state_of_another_format_than_the_jobs_is_not_lost(catalog: Catalog, tmp_path: Path) -> None:
    """Its files are there: nothing has to be brought back."""
    job = Job(catalog, tmp_path)
    job.save(job.start(), 15)
    later = job.start(resume=False)[0]
    with pytest.raises(NothingRestorableError, match="use_legacy_format: False MindFormers cannot load") as raised:
        later.decide_start(catalog.database, Query(loads=Loads.MINDFORMERS))
    assert "; go on in the format of its files, or start over: " in raised.value.hint


def test_a_run_whose_directory_and_catalog_are_lost_may_start_over(catalog: Catalog, tmp_path: Path) -> None:
    """A later launch saves elsewhere, and its journal tells which state it went on from; no scan finds that."""
    lost = connect(str(tmp_path / "lost.db"))
    first, second = Job(lost, tmp_path / "first"), Job(lost, tmp_path / "second")
    second.launches = 1
    first.save(first.begin(), 10)
    second.begin()
    shutil.rmtree(tmp_path / "first")
    catalog.sync(tmp_path / "second")
    third = Job(catalog, tmp_path / "second")
    third.launches = 2
    with pytest.raises(NothingRestorableError, match="if the files are lost, start over: .*fresh=True"):
        third.start()
    third.launches = 3
    launch = third.start(resume=False)[0]
    assert launch.decide_start(catalog.database, Query(fresh=True)).plan is None


def test_stated_replicas_are_those_of_the_launch_whose_state_is_asked_for(catalog: Catalog, tmp_path: Path) -> None:
    """Not of a start that was refused, nor of a later launch with more ranks."""
    started(catalog, tmp_path, 10, 20)
    with pytest.raises(NothingRestorableError, match="2 ranks saved it, 1 are to load it"):
        catalog.join("run", world_size=1, launch_id="L2").resolve()
    assert chosen(catalog.resolve("run", replicas="dp", world_size=1)) == (20, [0])
    assert chosen(catalog.resolve("run", replicas="0,1")) == (20, [0, 1])
    catalog.branch(catalog.resolve("run", replicas="dp", step=10).plan)
    more = Job(catalog, tmp_path / "more", 4, layout="data_parallel")
    more.launches = 2
    more.save(more.start(), 5)
    (more.folder(3) / "net_2-1_5.ckpt").unlink()
    assert chosen(catalog.resolve("run", replicas="2,3")) == (5, [0, 1, 2, 2])
    assert chosen(catalog.resolve("run@10", replicas="0,1")) == (10, [0, 1])
    assert chosen(catalog.resolve("run", lineage="L1", replicas="0,1")) == (20, [0, 1])
    with pytest.raises(UsageError, match="names rank 2, but there are 2 ranks"):
        catalog.resolve("run", step=20, every_lineage=True, replicas="2,3")


@pytest.mark.parametrize("suffix", ["ckpt", "json"])
def test_a_strategy_file_of_another_training_states_no_replicas(catalog: Catalog, tmp_path: Path, suffix: str) -> None:
    """The slices have the same shapes, so nothing else would notice that rank 1 loads those of rank 0."""
    job, _ = started(catalog, tmp_path / "job", 10)
    own = write_spreads(tmp_path / f"own.{suffix}", 0, [spread("weight", grid=(2,))])
    other = write_spreads(tmp_path / f"other.{suffix}", 0, [spread("conv.weight", grid=(2,))])
    assert chosen(catalog.resolve("run", replicas=str(other))) == (10, [0, 1])  # nobody stands in
    (job.folder(1) / "net-1_10.ckpt").unlink()
    assert chosen(catalog.resolve("run", replicas=str(own))) == (10, [0, 0])
    with pytest.raises(UsageError, match=r"other\.\w+ names no parameter of .*rank_0/net-1_10\.ckpt; give the"):
        catalog.resolve("run", replicas=str(other))


def test_what_cannot_be_meant(catalog: Catalog) -> None:
    with pytest.raises(UnknownRunError, match="no run 'nope' in .*: this catalog has no runs; check --db"):
        catalog.resolve("nope")
    for no_name in (None, 5, Path("run")):
        with pytest.raises(UsageError, match="the name of a run is text, not "):
            catalog.resolve(no_name)  # type: ignore[arg-type]
    catalog.join("run")
    with pytest.raises(UsageError, match="step is -1"):
        catalog.resolve("run", step=-1)
    with pytest.raises(UsageError, match="step is '8', not a whole number"):
        catalog.resolve("run", step="8")
    for world_size in (0, 1_000_001, "2"):
        with pytest.raises(UsageError, match="world size is .*, not a whole number from 1 to 100000"):
            catalog.resolve("run", world_size=world_size)
    for step in (-1, 2**70, "8", 8.0):
        with pytest.raises(UsageError, match="step is .*, not a whole number from 0"):
            catalog.join("run").resolve(step=step)
        for ask in (catalog.pin, catalog.unpin, catalog.show, partial(catalog.tag, name="best")):
            with pytest.raises(UsageError, match="step is .*, not a whole number from 0"):
                ask("run", step=step)
    with pytest.raises(UsageError, match="verify is 'sizes'"):
        catalog.resolve("run", verify="sizes")
    for listed in (catalog.saves, catalog.files):
        with pytest.raises(UsageError, match="there is no kind 'graceful'; use one of: periodic, graceful_exit, "):
            listed("run", kind="graceful")


def test_a_breakpoint_that_nobody_registered_is_adopted_and_serves_both_ranks(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path, 15, layout="data_parallel")
    set_ending(ranks[1], 17, 17, "RuntimeError")
    path = job.write(ranks[1], 17, name="net-2_8_breakpoint.ckpt")
    found = catalog.resolve("run")
    assert chosen(found) == (17, [1, 1])
    assert [(file.kind, file.path) for file in catalog.files("run") if file.global_step == 17] == [
        (Kind.DYING_GASP, str(path))
    ]
    assert chosen(catalog.resolve("run")) == (17, [1, 1])
    assert len(catalog.files("run")) == 3


@pytest.mark.of_files
def test_a_breakpoint_of_an_earlier_step_than_the_saves_is_of_another_launch(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing tells of that launch: a disk was away when it began, so its journals are below the mount point."""
    job, ranks = begun(catalog, tmp_path, 5, 10)
    for name in ("net-1_5.ckpt", "net-1_10.ckpt"):
        (job.folder(0) / name).unlink()
    path = job.write(ranks[0], 5, name="net-1_5_breakpoint.ckpt")
    assert catalog.resolve("run").plan is None
    assert f"{path} was not taken into the catalog: launch L1 had got further before" in caplog.text


def test_an_untrained_breakpoint_never_wins(catalog: Catalog, tmp_path: Path) -> None:
    """It is the newest file by time, of the newest launch, and holds the initial weights."""
    job, _ = started(catalog, tmp_path, 15, world_size=1)
    second = job.start(resume=False)
    job.announce(second[0])
    job.write(second[0], 0, name="net-1_1_breakpoint.ckpt")
    found = catalog.resolve("run")
    assert chosen(found) == (15, [0])
    assert rejected(found) == [(0, [(Rule.UNTRAINED, None)])]
    assert rejected(catalog.resolve("run", step=0)) == [(0, [(Rule.UNTRAINED, None)])]


@pytest.mark.of_files
@pytest.mark.parametrize(
    ("left", "told"), [(slice(None), "its name, its content"), (slice(0), ""), (slice(-3), ""), (slice(40, None), "")]
)
def test_a_breakpoint_that_is_not_whole_or_of_no_proven_step_is_not_adopted(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, left: slice, told: str
) -> None:
    """Nobody saw the exception: step 18 was not done, or it was and its update was skipped by an overflow."""
    job, ranks = begun(catalog, tmp_path, 15, world_size=1)
    path = job.write(ranks[0], 17, name="net-2_8_breakpoint.ckpt")
    path.write_bytes(path.read_bytes()[left])
    assert chosen(catalog.resolve("run")) == (15, [0])
    assert f"{path} was not taken into the catalog: {told}" in caplog.text


@pytest.mark.of_files
def test_strangers_in_the_directory_are_left_alone(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path, 15, world_size=1)
    for name in ("other-9_9.ckpt", "net_7-9_9.ckpt", "net-9_9.tmp", "strategy.ckpt", "netx-2_9_breakpoint.ckpt"):
        job.write(ranks[0], 99, name=name)
    (job.folder(0) / "net-9_9.ckpt").symlink_to("nowhere")
    before = {path: path.lstat().st_mtime_ns for path in job.folder(0).iterdir()}
    assert chosen(catalog.resolve("run")) == (15, [0])
    assert len(catalog.files("run")) == 1
    assert {path: path.lstat().st_mtime_ns for path in job.folder(0).iterdir()} == before


def test_an_asynchronous_save_that_its_process_did_not_live_to_see(catalog: Catalog, tmp_path: Path) -> None:
    """A file of another step does not finish it."""
    job, ranks = begun(catalog, tmp_path, 15, world_size=1)
    path = job.folder(0) / "net-2_10.ckpt"
    ranks[0].record_files(
        [describe(ranks[0].facts, rank=0, path=path, kind="periodic", global_step=20, optimizer_step=20)]
    )
    for step in (None, 12):
        if step is not None:
            job.write(ranks[0], step, name=path.name)
        assert chosen(catalog.resolve("run")) == (15, [0])
        assert rejected(catalog.resolve("run")) == [(20, [(Rule.IN_PROGRESS, 0)])]
    job.write(ranks[0], 20)
    assert chosen(catalog.resolve("run")) == (20, [0])


def test_a_resolution_connects_once(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL starts a process for each connection; while files are read there is none."""
    job, (launch,) = begun(catalog, tmp_path, 5, world_size=1)
    database = catalog.database
    connected: list[object] = []
    connect, digest = database._engine.connect, storage_files.digest

    def once_more() -> object:
        connected.append(connect())
        return connected[-1]

    def read(path: str, *heard: Any) -> str:
        assert database._own.connection is None
        return digest(path, *heard)

    monkeypatch.setattr(storage_files, "digest", read)
    if not database.is_sqlite:
        monkeypatch.setattr(database._engine, "connect", once_more)
    assert chosen(catalog.resolve("run")) == (5, [0])
    assert len(connected) == (0 if database.is_sqlite else 1)
    assert chosen(catalog.resolve("run", verify="digest")) == (5, [0])
    assert len(connected) == (0 if database.is_sqlite else 3)  # before the bytes are read, and after
    job.write(launch, 10)
    assert chosen(catalog.resolve("run")) == (10, [0])


def test_steps_of_another_size_after_a_change_of_ranks(catalog: Catalog, tmp_path: Path) -> None:
    """Step 10 of two ranks is step 20 of one. Older saves that count higher are not given up, nor newer ones older."""
    job, ranks = started(catalog, tmp_path, layout="data_parallel")
    for launch in ranks:
        launch.set_steps_per_epoch(10, batch_size=8, shards=2)
    job.save(ranks, 10)
    alone = catalog.join("run", rank=0, world_size=1, launch_id="L2")
    alone.set_steps_per_epoch(20, batch_size=8, shards=1)
    plan = alone.resolve()
    assert (plan.global_step, alone.facts.parent_step, alone.facts.start_step) == (10, 10, 20)
    folder = str(job.folder(0))
    alone.add_source(folder, kind=Kind.PERIODIC, prefix="net_1", breakpoint_prefix="net", names_before=())
    job.write(alone, 12, name="net_1-2_2_breakpoint.ckpt")
    assert chosen(catalog.resolve("run")) == (22, [0])
    both = [catalog.join("run", rank=rank, world_size=2, launch_id="L3", layout="data_parallel") for rank in (0, 1)]
    for launch in both:
        launch.set_steps_per_epoch(10, batch_size=8, shards=2)
    start = decide(both[0])
    assert (start.global_step, start.offset) == (11, 11 - 12)  # the optimizer counted 12
    assert both[1].resolve() is not None
    job.save(both, 12)
    found = catalog.resolve("run")
    assert (chosen(found), rejected(found)) == ((12, [0, 1]), [])


@pytest.mark.parametrize(
    ("steps", "damaged", "proposed"),
    [((15, 17), None, None), ((10, 14, 16, 17), None, 16), ((10, 14, 16, 17), 16, 14)],
    ids=["none is saved", "the newest", "one that is whole"],
)
def test_a_step_without_a_place_stops_the_start_and_names_one_that_is_there(
    catalog: Catalog, tmp_path: Path, steps: tuple[int, ...], damaged: int | None, proposed: int | None
) -> None:
    job, (rank,) = started(catalog, tmp_path, world_size=1)
    rank.set_steps_per_epoch(10, batch_size=8, shards=1)
    files = {step: job.save([rank], step) for step in steps}
    if damaged is not None:
        Path(files[damaged][0].path).unlink()
    two = catalog.join("run", rank=0, world_size=2, launch_id="L2", layout="data_parallel")
    two.set_steps_per_epoch(5, batch_size=8, shards=2)
    with pytest.raises(
        UsageError, match="step 17 of launch L1 has no matching position .* do not divide into steps of 16"
    ) as stopped:
        two.resolve()
    assert "use the number of ranks and the batch size that were saved" in stopped.value.hint
    assert not known_of(two).decided
    if proposed is None:
        assert "resume" not in stopped.value.hint
        return
    assert stopped.value.hint.endswith(f"; the newest earlier step that works is {proposed}: resume(step={proposed})")
    plan = two.resolve(step=proposed)
    assert (plan.global_step, two.facts.start_step) == (proposed, proposed // 2)


@pytest.mark.of_files
def test_other_ranks_that_share_nothing_are_told_what_to_call(catalog: Catalog, tmp_path: Path) -> None:
    started(catalog, tmp_path, 15)
    with pytest.raises(NothingRestorableError) as stopped:
        catalog.join("run", rank=0, world_size=4, launch_id="L2").resolve()
    assert "step 15 was whole, but 2 ranks saved it, 4 are to load it" in stopped.value.message
    assert "mindspore.rank_list_for_transform(N, SRC_STRATEGY, DST_STRATEGY)" in stopped.value.hint
    assert f"{{R: f'{tmp_path}/rank_{{R}}/" in stopped.value.hint


def test_a_replica_of_the_same_host_is_nearer(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ranks = started(catalog, tmp_path, world_size=4, layout="data_parallel")
    for launch in ranks:
        monkeypatch.setattr(name_claims, "host_name", lambda host=f"node{launch.rank // 2}": host)
        job.announce(launch)
    files = job.save(ranks, 15)
    for lost in (1, 3):
        Path(files[lost].path).unlink()
    assert chosen(catalog.resolve("run")) == (15, [0, 0, 2, 2])


def test_a_start_says_which_history_it_leaves_behind(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two jobs on one run by mistake: what was started last counts. Nothing is said of what was given up on purpose."""
    job, first = started(catalog, tmp_path / "ckpt", 10, world_size=1)
    job.save(job.start(), 20)
    job.save(first, 30)
    caplog.clear()
    (third,) = job.start()
    assert (third.facts.parent, third.facts.parent_step) == ("L2", 20)
    assert "goes on after step 20 of launch L2. Step 30 of launch L1 is complete too" in caplog.text
    assert "resume(lineage='L1')" in caplog.text
    chosen = catalog.join("run", launch_id="L4")
    assert chosen.resolve(lineage="L1").global_step == 30
    job.launches = 4
    job.save([chosen], 40)
    job.save([third], 50)
    caplog.clear()
    job.start()
    assert "on a branch that was not abandoned" not in caplog.text


def test_an_id_that_was_used_before_starts_nothing_from_an_old_state(catalog: Catalog, tmp_path: Path) -> None:
    """A job that was requeued under its own id, while others went on; ranks of one launch may ask again and again."""
    job, _ = started(catalog, tmp_path / "ckpt", 10, world_size=1)
    used = catalog.join("run", launch_id="job7")
    assert used.resolve().global_step == 10
    assert used.resolve().global_step == 10
    (later,) = job.start()
    assert catalog.join("run", launch_id="job7").resolve().global_step == 10
    job.save([later], 20)
    with pytest.raises(RefusedError, match=r"'job7' of run 'run' is older than launch L2, which has saved .* its own"):
        catalog.join("run", launch_id="job7").resolve()


def test_a_slow_rank_gets_the_answer_of_those_that_train_already(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had begun to look before there was an answer: what its own launch has saved since is nothing that is lost."""
    job = Job(catalog, tmp_path)
    slow, quick = job.start(resume=False)
    stored = start._stored
    looks = []

    def before(connection: Connection, database: Database, launch: Launch) -> object:
        looks.append(launch.id)
        return None if len(looks) == 1 else stored(connection, database, launch)

    assert quick.resolve() is None
    job.save([quick], 3, 6, 9)
    monkeypatch.setattr(start, "_stored", before)
    assert slow.resolve() is None
