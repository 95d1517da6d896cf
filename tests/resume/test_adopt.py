"""What is taken into the catalog though nobody registered it, with real files on disk, on both databases."""

import os
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog import live
from ckptstore.catalog.runs import find_run
from ckptstore.core.events import LaunchStarted, SourceAdded
from ckptstore.core.model import Checkpoint, Content, FileState, Kind, Launch, Resolution, Rule, Source
from ckptstore.core.replicas import stand_alone
from ckptstore.evidence import writers
from ckptstore.formats.safetensors import head_of
from ckptstore.journal import jsonl
from ckptstore.outside import utc_now
from ckptstore.resume import join, reconcile, register
from ckptstore.resume.register import describe, measured
from ckptstore.retention.policy import Policy
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes
from tests.jobs import Job, begun, set_ending, started
from tests.projecting import put, put_files
from tests.resume import builders
from tests.resume.wide import statements

pytestmark = pytest.mark.of_files


def chosen(resolution: Resolution) -> tuple[str, int] | None:
    plan = resolution.plan
    return plan and (plan.launch.id, plan.global_step)


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, at_last: bool = False) -> None:
    """Act once, after the next file was read, or `at_last` after it was seen that nobody has recorded it."""

    def asked(*about: Any) -> list[Checkpoint]:
        still = still_unrecorded(*about)
        monkeypatch.setattr(reconcile, "_still_unrecorded", still_unrecorded)
        act()
        return still

    still_unrecorded = reconcile._still_unrecorded
    if at_last:
        monkeypatch.setattr(reconcile, "_still_unrecorded", asked)
        return

    def read(file: Checkpoint, **asked: Any) -> Checkpoint | None:
        whole = measured(file, **asked)
        monkeypatch.setattr(register, "measured", measured)
        act()
        return whole

    monkeypatch.setattr(register, "measured", read)


@pytest.mark.parametrize("at_last", [False, True])
@pytest.mark.parametrize("was_noted", [False, True])
def test_what_the_registrar_recorded_meanwhile_stands(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_noted: bool, at_last: bool
) -> None:
    """A catalog made anew from the journals says the same: at last both records are in them."""
    job, (rank,) = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    path = job.folder(0) / "net-2_10.ckpt"
    bare = describe(rank.facts, rank=0, path=path, kind="periodic", global_step=20, optimizer_step=20)
    told = describe(
        rank.facts, rank=0, path=path, kind="periodic", global_step=20, metrics={"loss": 0.5}, quarantine="nan"
    )
    if was_noted:
        rank.record_files([bare])
    job.write(rank, 20)

    def record() -> None:
        whole = measured(told)
        rank.record_files([whole])

    meanwhile(monkeypatch, record, at_last=at_last)
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    other.sync(tmp_path / "ckpt")
    assert any((job.folder(0) / ".ckptstore").glob("shared*")) is at_last
    for each in (catalog, other):
        newest = each.files("run")[0]
        assert (newest.global_step, newest.state) == (20, FileState.COMPLETE)
        assert (newest.quarantine, dict(newest.metrics)) == ("nan", {"loss": 0.5})
        assert [reason.rule for each in catalog.resolve("run").rejections for reason in each.reasons] == [
            Rule.QUARANTINED
        ]


@pytest.mark.parametrize("was_noted", [False, True])
def test_a_save_that_is_recorded_while_directories_are_listed_is_there(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_noted: bool
) -> None:
    """Another file that nobody recorded, or one that was being written, has the rank looked at more closely."""
    job, (launch,) = begun(catalog, tmp_path, 5, world_size=1)
    if was_noted:
        path = job.folder(0) / "net-1_10.ckpt"
        launch.record_files(
            [describe(launch.facts, rank=0, path=path, kind="periodic", global_step=10, optimizer_step=10)]
        )
    else:
        job.write(launch, 9)
    listed = reconcile.listed

    def listed_before(directory: str) -> frozenset[str] | OSError:
        found = listed(directory)
        monkeypatch.setattr(reconcile, "listed", listed)
        job.save([launch], 10)
        return found

    monkeypatch.setattr(reconcile, "listed", listed_before)
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    assert {file.state for file in catalog.files("run")} == {FileState.COMPLETE}


def test_what_was_given_up_meanwhile_is_not_there_again(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was back was looked at, and is gone again before that is recorded."""
    job, (rank,) = begun(catalog, tmp_path, 10, world_size=1)
    path = job.write(rank, 20)

    def gone() -> None:
        whole = measured(describe(rank.facts, rank=0, path=path, kind="periodic", global_step=20, optimizer_step=20))
        rank.record_files([whole])
        rank.mark_damaged(whole, Rule.UNREADABLE)

    meanwhile(monkeypatch, gone)
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    assert catalog.files("run")[0].state is FileState.DAMAGED


def share(path: Path, step: int, rank: int, *, cut: bool = False) -> Path:
    """What `remove_redundancy` leaves to a rank of two: the weight, or the rest, with the optimizer's counter."""
    whole = ckpt_bytes.checkpoint(step)
    weight = ckpt_bytes.value("weight", "Float32", (2, 2), struct.pack("<4f", *[1.0] * 4))
    moments = ckpt_bytes.value("moments.weight", "Float32", (2, 2), struct.pack("<4f", *[0.5] * 4))
    assert whole.startswith(weight)
    rest = whole.removeprefix(weight)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(weight if rank == 0 else rest if cut else rest + moments)
    return path


def saves_shares(job: Job, launch: RankLaunch) -> None:
    """What the registrar says of a callback with `remove_redundancy`."""
    folder = str(job.folder(launch.rank))
    named = {"prefix": "net", "breakpoint_prefix": "net", "names_before": ()}
    launch.add_source(folder, kind=Kind.PERIODIC, content=Content.SHARE, **named)


def without_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file has the optimizer's counter from now on."""
    whole = ckpt_bytes.checkpoint
    monkeypatch.setattr(ckpt_bytes, "checkpoint", lambda *told: whole(*told).replace(b"global_step", b"other__step"))


def test_a_share_that_nobody_registered_is_not_taken_for_the_whole_state(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """Its callback said what it saves."""
    job, ranks = started(catalog, tmp_path / "ckpt", layout="data_parallel")
    for launch in ranks:
        saves_shares(job, launch)
    for step in (10, 20, 30):
        for launch in ranks:
            path = share(job.folder(launch.rank) / f"net-{step // 10}_10.ckpt", step, launch.rank)
            told = {"kind": "periodic", "global_step": step, "optimizer_step": step, "content": Content.SHARE}
            file = measured(describe(launch.facts, rank=launch.rank, path=path, **told))
            if (step, launch.rank) != (30, 1):
                launch.record_files([file])
    other.sync(tmp_path)
    for each in (catalog, other):
        found = each.resolve("run")
        assert chosen(found) == ("L1", 30)
        assert [(item.source.rank, item.source.content) for item in found.plan.ranks] == [
            (0, Content.SHARE),
            (1, Content.SHARE),
        ]


def test_the_first_share_of_a_launch_is_one_by_what_its_callback_said(catalog: Catalog, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path, layout="data_parallel")
    for launch in job.start():
        saves_shares(job, launch)
        share(job.folder(launch.rank) / "net-1_10.ckpt", 10, launch.rank)
    launch.register(job.write(launch, 0, name="net-1_1_breakpoint.ckpt"), kind="dying_gasp", global_step=0)
    assert chosen(catalog.resolve("run")) is None  # that of rank 0 has no counter to prove its step
    found = [(file.rank, file.content) for file in catalog.files("run") if file.global_step]
    assert found == [(1, Content.SHARE)]


def test_a_share_that_lacks_what_the_rank_s_others_have_is_cut(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A whole file of the rank, as of an exception, has more than any of its shares."""
    job, ranks = started(catalog, tmp_path, layout="data_parallel")
    for launch in ranks:
        saves_shares(job, launch)
    ranks[1].register(job.write(ranks[1], 5, name="net-1_5_breakpoint.ckpt"), kind="dying_gasp", global_step=5)
    share(job.folder(1) / "net-1_10.ckpt", 10, 1)
    assert [file.global_step for file in catalog.resolve("run") and catalog.files("run")] == [10, 5]
    share(job.folder(1) / "net-2_10.ckpt", 20, 1, cut=True)
    assert [file.global_step for file in catalog.resolve("run") and catalog.files("run")] == [10, 5]
    assert "it lacks 'moments.weight', which other files of its rank have" in caplog.text


def test_a_number_of_the_script_in_the_other_files_is_nothing_that_a_breakpoint_lacks(
    catalog: Catalog, tmp_path: Path
) -> None:
    """`append_info` had it, and has it no more; in a `.safetensors` file it looks like a parameter."""
    job, ranks = begun(catalog, tmp_path, layout="data_parallel")
    four, counter, best = struct.pack("<4f", *[1.0] * 4), struct.pack("<i", 10), struct.pack("<f", 0.9)
    described = (
        ("weight", "Float32", (2, 2), four),
        ("global_step", "Int32", (1,), counter),
        ("best", "Float32", (), best),
    )
    head = head_of(((name, dtype, shape, len(data)) for name, dtype, shape, data in described), {"format": "ms"})
    for launch in ranks:
        path = job.folder(launch.rank) / "net-1_10.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(head + b"".join(data for *_, data in described))
        launch.register(path, global_step=10, optimizer_step=10)
        set_ending(launch, 17, 17, "RuntimeError")
        job.write(launch, 17, name="net-2_7_breakpoint.ckpt")
    assert chosen(catalog.resolve("run")) == ("L1", 17)


def test_a_number_of_the_optimizer_that_a_file_lacks_is_cut_off(catalog: Catalog, tmp_path: Path) -> None:
    """In a `.ckpt` the order tells it from an appended one. A share may end with it."""
    _, (launch,) = begun(catalog, tmp_path, world_size=1)
    momentum = ckpt_bytes.value("momentum", "Float32", (), struct.pack("<f", 0.9))
    whole = ckpt_bytes.checkpoint(10)
    appended = whole.index(b"step_num", whole.index(b"global_step")) - 4
    path = tmp_path / "rank_0" / "net-1_10.ckpt"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(whole[:appended] + momentum + whole[appended:])
    launch.register(path, global_step=10, optimizer_step=10)
    assert "momentum" in register.parameters_of(catalog.database, find_run(catalog.database, "run"), 0)


def two_launches(catalog: Catalog, directory: Path, ended: int | None = None) -> tuple[Job, list[RankLaunch]]:
    """The second goes on after step 10 of the first, which was killed, or ended at a step and left no breakpoint."""
    job, first = begun(catalog, directory)
    for launch in first:
        if ended is not None:
            set_ending(launch, ended, ended, "RuntimeError")
    job.save(first, 10)
    second = job.start()
    assert second[0].facts.parent_step == 10
    for launch in second:
        job.announce(launch)
    return job, second


@pytest.mark.parametrize(
    ("first", "second", "expected", "told"),
    [
        # of rank 0, and was seen late
        (None, {1: 17}, ("L1", 10), "launch L1 may have written it, and nothing proves that L2 did\n"),
        (None, {0: 17, 1: 17}, ("L2", 17), ""),  # its rank said so before it wrote it
        (13, {}, ("L2", 17), ""),
        (13, {0: 15, 1: 15}, ("L1", 10), "the training of launch L2 ended with another state"),
    ],
)
def test_a_breakpoint_is_of_the_launch_that_alone_may_have_written_it(  # noqa: PLR0917
    catalog: Catalog,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    first: int | None,
    second: dict[int, int],
    expected: tuple[str, int],
    told: str,
) -> None:
    """By the steps that trainings ended at: that of the first launch, and those of the ranks of the second."""
    job, ranks = two_launches(catalog, tmp_path, first)
    for launch in ranks:
        if launch.rank in second:
            set_ending(launch, second[launch.rank], second[launch.rank], "RuntimeError")
        job.write(launch, 17, name="net-2_7_breakpoint.ckpt")
    assert chosen(catalog.resolve("run")) == expected
    late = job.folder(0) / "net-2_7_breakpoint.ckpt"
    assert (f"{late} was not taken into the catalog: {told}" in caplog.text) is bool(told)


@pytest.mark.parametrize(("name", "step"), [("net-2_7", 17), ("net-2_8", 17), ("net-2_3", 10)])
def test_a_breakpoint_without_a_counter_is_told_by_its_name(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: int
) -> None:
    """MindSpore names it after the step that was under way."""
    without_counters(monkeypatch)
    job, second = two_launches(catalog, tmp_path)
    for launch in second:
        set_ending(launch, 17, None, "RuntimeError")
        job.write(launch, 17, name=f"{name}_breakpoint.ckpt")
    assert chosen(catalog.resolve("run")) == (("L2", 17) if step == 17 else ("L1", 10))


@pytest.mark.parametrize(("name", "step"), [("net_1-3_4", 24), ("net_1-3_5", 24), ("net_1-1_4", 20), (None, 20)])
def test_only_the_breakpoint_that_is_named_after_an_ending_is_its_state(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, step: int
) -> None:
    """Without a counter nothing else tells: another one is of a training before it in this launch, or was copied back.

    Where MindSpore counted the epochs from 1 again, an older state is taken.
    """
    without_counters(monkeypatch)
    job, (launch,) = begun(catalog, tmp_path, world_size=1)
    for saved in (10, 20):
        launch.register(job.write(launch, saved), global_step=saved)
    set_ending(launch, 24, None, "RuntimeError")
    job.write(launch, 13, name="net-2_4_breakpoint.ckpt")
    if name is not None:
        job.write(launch, 24, name=f"{name}_breakpoint.ckpt")
    plan = catalog.resolve("run").plan
    assert plan.global_step == step
    assert Path(plan.ranks[0].source.path).name == (f"{name}_breakpoint.ckpt" if step == 24 else "net-2_10.ckpt")


@pytest.mark.parametrize("is_after_a_scanned_one", [False, True])
@pytest.mark.parametrize(("minutes", "step"), [(5, 20), (15, 10)])
def test_a_file_that_is_older_than_the_launch_is_not_its_own(
    catalog: Catalog,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    minutes: int,
    step: int,
    *,
    is_after_a_scanned_one: bool,
) -> None:
    """Clocks may differ by ten minutes."""
    job, (rank,) = begun(catalog, tmp_path, 10, world_size=1)
    assert rank.facts.created_at is not None
    if is_after_a_scanned_one:
        just_before = rank.facts.created_at - timedelta(microseconds=1)
        rank.recorder.record([LaunchStarted(replace(rank.facts.undecided(), id="scan-1", created_at=just_before))])
    before = rank.facts.created_at - timedelta(minutes=minutes)
    os.utime(job.write(rank, 20), (before.timestamp(), before.timestamp()))
    assert chosen(catalog.resolve("run")) == ("L1", step)
    assert ("it was written before launch L1 began" in caplog.text) is (step == 10)


def test_vanished_files_are_not_compared_with_each_new_one(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of ranks may have lost old files and left new ones."""
    job, ranks = begun(catalog, tmp_path, 10, 20)
    for rank in ranks:
        job.folder(rank.rank).joinpath("net-1_10.ckpt").unlink()
        job.write(rank, 30)
    compared: list[Any] = []
    monkeypatch.setattr(reconcile, "_is_moved", lambda *files: compared.append(files))
    assert chosen(catalog.resolve("run")) == ("L1", 30)
    assert compared == []


@pytest.mark.parametrize("hours_later", [0, 24])
def test_a_clock_that_was_ahead_makes_no_file_older_than_its_launch(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours_later: int
) -> None:
    """Each later launch begins after that one, by the catalog: until then their files would all seem older."""
    job = Job(catalog, tmp_path, world_size=1)
    with monkeypatch.context() as patch:
        patch.setattr(join, "utc_now", lambda: utc_now() + timedelta(hours=8))
        job.save(job.begin(), 10)
    (rank,) = job.begin()
    job.save([rank], 20)
    job.write(rank, 30)
    monkeypatch.setattr(reconcile, "utc_now", lambda: utc_now() + timedelta(hours=hours_later))
    assert chosen(catalog.resolve("run")) == ("L2", 30)


@pytest.mark.parametrize("registered", ["by register", "without digest"])
def test_a_newer_file_of_the_same_second_is_not_the_older_one(
    catalog: Catalog, tmp_path: Path, registered: str
) -> None:
    """MindSpore deleted step 10 and wrote step 20 within a second, and the file system tells no less than that."""
    job, ranks = started(catalog, tmp_path)
    at = int(time.time())
    for launch in ranks:
        job.announce(launch)
        old = job.write(launch, 10)
        os.utime(old, (at, at))
        file = launch.register(old, global_step=10, optimizer_step=10)
        if registered == "without digest":
            launch.record_files([replace(file, digest=None)])
    (job.folder(0) / "net-1_10.ckpt").unlink()
    os.utime(job.write(ranks[0], 20), (at, at))
    found = catalog.resolve("run")
    assert chosen(found) is None
    assert [(file.global_step, file.rank, file.state) for file in catalog.files("run") if file.rank == 0] == [
        (20, 0, FileState.COMPLETE),
        (10, 0, FileState.MISSING),
    ]


@pytest.mark.parametrize("has_digest", [True, False])
def test_a_file_that_was_renamed_is_still_the_file(catalog: Catalog, tmp_path: Path, *, has_digest: bool) -> None:
    """Its name may say another step: MindSpore's own numbering after a resume in mid-epoch does."""
    job, (rank,) = begun(catalog, tmp_path, world_size=1)
    (file,) = job.save([rank], 15)
    if not has_digest:
        rank.record_files([replace(file, digest=None)])
    Path(file.path).rename(job.folder(0) / "net-3_9.ckpt")
    assert chosen(catalog.resolve("run")) == ("L1", 15)
    assert sorted(each.state for each in catalog.files("run")) == [FileState.COMPLETE, FileState.MOVED]


def test_a_file_that_is_put_back_under_its_first_name_is_still_the_file(catalog: Catalog, tmp_path: Path) -> None:
    """It was renamed, and somebody asked in between while it was nowhere: its first record says that it was moved."""
    job, (rank,) = begun(catalog, tmp_path / "ckpt", 10, 20, world_size=1)
    first, second = job.folder(0) / "net-2_10.ckpt", job.folder(0) / "net-3_9.ckpt"
    rank.let_go()
    first.rename(second)
    assert chosen(catalog.resolve("run")) == ("L1", 20)
    second.rename(tmp_path / "away")
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    (tmp_path / "away").rename(first)
    assert chosen(catalog.resolve("run")) == ("L1", 20)


def test_a_file_in_another_directory_at_the_path_is_not_taken_and_that_is_told(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk to which the launch saved is not mounted."""
    job, (rank,) = begun(catalog, tmp_path, 5, world_size=1)
    job.folder(0).rename(tmp_path / "away")
    path = job.write(rank, 10)
    assert chosen(catalog.resolve("run")) is None
    assert f"{path} was not taken into the catalog: its directory has no .ckptstore any more" in caplog.text
    assert [file.global_step for file in catalog.files("run")] == [5]


def test_a_file_is_gone_though_its_record_names_no_directory(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path, 5, 10, world_size=1)
    files = catalog.files("run")
    put_files(catalog, [file.amended(directory_id="") for file in files])
    Path(files[0].path).unlink()
    assert chosen(catalog.resolve("run")) == ("L1", 5)
    assert [file.state for file in catalog.files("run")] == [FileState.MISSING, FileState.COMPLETE]


def test_paths_with_line_breaks_are_compared_as_all_others(catalog: Catalog, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path / "one\nor\n\nmore", world_size=2)
    ranks = job.begin()
    files = [*job.save(ranks, 10), *job.save(ranks, 20)]
    with catalog.database.read() as connection:
        found, has_unsettled = live.paths(connection, [ranks[0].key])
    assert (found, has_unsettled) == ({file.path for file in files}, False)
    Path(files[2].path).unlink()
    assert chosen(catalog.resolve("run")) == ("L1", 10)


@pytest.mark.parametrize(("seconds", "step"), [(0, 5), (60, None)])
def test_a_save_under_a_prefix_that_the_launch_before_had_too(
    catalog: Catalog, tmp_path: Path, seconds: int, step: int | None
) -> None:
    """That one was gone before its first save, as far as its directory showed: MindSpore gave no number."""
    job = Job(catalog, tmp_path, world_size=1)
    for _ in range(2):
        (rank,) = job.start()
        folder = str(job.folder(0))
        rank.add_source(folder, kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
    rank.register(job.write(rank, 0, name="net-0_0.ckpt"), global_step=0)
    path = job.write(rank, 5, name="net-1_5.ckpt")
    assert rank.facts.created_at is not None
    if seconds:
        at = rank.facts.created_at.timestamp() - seconds
        os.utime(path, (at, at))
    assert chosen(catalog.resolve("run")) == (("L2", 5) if step else None)


def test_a_save_that_nothing_tells_the_step_of_is_named_with_the_reason(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its launch was killed right after it had written it. Not every optimizer counts."""
    without_counters(monkeypatch)
    job, (launch,) = begun(catalog, tmp_path, world_size=1)
    launch.register(job.write(launch, 10), global_step=10)
    path = job.write(launch, 20)
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    assert f"{path} was not taken into the catalog: nothing in it counts its updates" in caplog.text


def test_the_saves_of_a_script_that_does_without_are_not_those_of_a_launch_that_saved_nothing(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It died before its first save; then somebody looked for the fault, in the same directory."""
    job, (launch,) = begun(catalog, tmp_path, world_size=1)
    path = job.write(launch, 5)
    assert job.start()[0].resolve() is None
    assert f"{path} was not taken into the catalog: launch L1 has registered nothing" in caplog.text


def test_a_save_under_way_is_finished_though_the_launch_after_it_came_to_nothing(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was being written when the second launch asked, which made no save before it died."""
    job, (first,) = begun(catalog, tmp_path, 10, world_size=1)
    path = job.folder(0) / "net-2_10.ckpt"
    first.record_files([describe(first.facts, rank=0, path=path, kind="periodic", global_step=20, optimizer_step=20)])
    for _ in range(2):
        (later,) = job.begin()
        assert later.facts.parent_step == 10
    untrained = job.write(later, 0, name="net-1_1_breakpoint.ckpt")
    later.register(untrained, kind="dying_gasp", global_step=0, optimizer_step=0)
    job.write(first, 20)
    caplog.clear()
    assert chosen(catalog.resolve("run")) == ("L1", 20)
    assert job.start()[0].facts.parent_step == 20
    assert not caplog.messages


@pytest.mark.parametrize("ended", [None, 17])
@pytest.mark.parametrize("kind", [Kind.PERIODIC, Kind.GRACEFUL_EXIT])
def test_what_a_launch_of_another_run_may_have_written_is_nobodys(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: Kind, ended: int | None
) -> None:
    """Two runs in one directory: the first was killed, and then the second ended, and nobody heard of it."""
    job, other = Job(catalog, tmp_path, world_size=1), Job(catalog, tmp_path, world_size=1, run="other")
    (own,) = job.begin()
    job.save([own], 10)
    foreign = catalog.join("other", launch_id="M1")
    foreign.set_steps_per_epoch(10)
    for launch in (own, foreign):
        launch.add_source(
            str(job.folder(0)), kind=Kind.GRACEFUL_EXIT, prefix="Net", breakpoint_prefix="", names_before=[]
        )
    other.announce(foreign)
    name = "net-2_7_breakpoint.ckpt" if kind is Kind.PERIODIC else "Net_train-step_17.ckpt"
    late = job.write(own, 17, name=name)
    if ended is not None:
        set_ending(own, ended, ended, "RuntimeError")
        assert chosen(catalog.resolve("run")) == ("L1", 17)
    else:
        assert chosen(catalog.resolve("run")) == ("L1", 10)
        assert f"{late} was not taken into the catalog: launch M1 of run other may have written it" in caplog.text


def test_what_a_living_launch_has_not_registered_yet_is_left_to_it(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen before: gc took a file of bad weights for the newest good state, and removed all others."""
    job, (rank,) = begun(catalog, tmp_path, 10, world_size=1)
    rank.signs.begin()
    path = job.write(rank, 20)
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    assert not caplog.messages
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    assert f"{path} was not taken into the catalog: its launch is alive, and has not registered it" in caplog.text
    path.touch()
    rank.adopt()
    assert chosen(catalog.resolve("run")) == ("L1", 20), "it may itself"
    path = job.write(rank, 30)
    rank.signs.end()
    assert chosen(catalog.resolve("run")) == ("L1", 30)
    assert path.exists()


def test_what_was_saved_after_a_bad_state_is_as_bad(catalog: Catalog, tmp_path: Path) -> None:
    """A process that was killed could not say what the loss was."""
    job, (rank,) = begun(catalog, tmp_path, 10, world_size=1)
    bad = rank.register(job.write(rank, 20), global_step=20, optimizer_step=20)
    rank.record_files([replace(bad, quarantine="the loss of its last step was nan")])
    job.write(rank, 30)
    resolution = catalog.resolve("run")
    assert chosen(resolution) == ("L1", 10)
    assert [each.global_step for each in resolution.rejections] == [30, 20]
    assert "it was saved after step 20, and of that the loss of its last step was nan" in (
        resolution.rejections[0].reasons[0].detail
    )


@pytest.mark.parametrize("is_trashed", [True, False])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_file_that_is_brought_back_has_the_bytes_that_were_recorded(
    catalog: Catalog, tmp_path: Path, *, is_trashed: bool, is_damaged: bool
) -> None:
    """Copied without its times, out of the trash or from a backup: its digest tells whether it is the same file."""
    job, (rank,) = begun(catalog, tmp_path / "ckpt", 10, 20, 30, world_size=1)
    path = job.folder(0) / "net-1_10.ckpt"
    content = path.read_bytes()
    if is_trashed:
        catalog.execute(catalog.plan_gc("run", Policy(keep_last=2, floor=1)))
    else:
        path.unlink()
        catalog.resolve("run")
    (known,) = catalog.show("run", 10)
    assert known.state is (FileState.TRASHED if is_trashed else FileState.MISSING)
    rank.let_go()
    path.write_bytes(content[:40] + bytes([content[40] ^ is_damaged]) + content[41:])
    skipped = reconcile.reconcile(catalog.database, find_run(catalog.database, "run")).skipped
    told = [each.reason for each in skipped]
    assert told == (["its bytes are not those that were recorded for step 10 of launch L1"] if is_damaged else [])
    assert chosen(catalog.resolve("run", step=10)) == (None if is_damaged else ("L1", 10))
    catalog.scan(tmp_path / "ckpt", run="run")
    assert chosen(catalog.resolve("run", step=10)) == (None if is_damaged else ("L1", 10))
    assert catalog.show("run", 10)[0].digest == known.digest


def test_no_file_beside_a_journal_that_was_not_read_is_adopted(catalog: Catalog, tmp_path: Path) -> None:
    """It may be the record of that file, of a later launch with the same prefix: here a newer program wrote it."""
    job, (rank,) = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    path = job.write(rank, 20)
    rank.let_go()
    journal = next(job.folder(0).rglob("rank_0-*.jsonl"))
    with journal.open("ab") as file:
        file.write(jsonl.encode({"t": "pin", "v": jsonl.VERSION + 1}))
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    assert str(path) not in {file.path for file in catalog.files("run")}
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    assert chosen(catalog.resolve("run")) == ("L1", 20)


@pytest.mark.parametrize("step", [10, 15])
def test_of_records_with_one_size_and_time_the_counter_tells_which_the_file_is(tmp_path: Path, step: int) -> None:
    """A scan recorded them, so they have no digest, and the file system stores whole seconds."""
    path = ckpt_bytes.write(tmp_path / "renamed.ckpt", step)
    records = [replace(builders.file(builders.launch(), 0, at), digest=None, optimizer_step=at) for at in (10, 15)]
    assert reconcile._same(str(path), records) == next(each for each in records if each.global_step == step)
    assert reconcile._same(str(ckpt_bytes.write(tmp_path / "other.ckpt", 20)), records) is None


def test_the_file_to_compare_with_is_looked_for_once__before_for_each_file(catalog: Catalog, tmp_path: Path) -> None:
    """Each look may read all files of the rank: of 32,000 adopted files, a scan took 150 seconds."""
    job, (rank,) = begun(catalog, tmp_path / "run", 10, world_size=1)
    for step in range(20, 32):
        job.write(rank, step)
    with statements() as asked:
        catalog.scan(tmp_path / "run")
    assert len(catalog.files("run")) == 13
    assert sum("launch_order DESC, saves.global_step DESC" in each.text for each in asked) == 1


@pytest.mark.parametrize("name", ["net_rank_{}-1_5_breakpoint.ckpt", "net_rank_{}-1_5.ckpt"])
def test_each_file_is_compared_with_its_own_writers_alone(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All ranks may save to one directory."""
    asked = []
    writes = writers._writes
    monkeypatch.setattr(writers, "_writes", lambda *about: (asked.append(about), writes(*about))[1])
    works = []
    for ranks in (2, 16):
        run, home = f"job-{ranks}", tmp_path / str(ranks)
        now = datetime.now(timezone.utc) - timedelta(seconds=5)
        launches = [
            Launch(id=id_, run=run, order=0, world_size=ranks, layout=stand_alone(), steps_per_epoch=5, created_at=now)
            for id_ in ("L1", "L2")
        ]
        put(catalog, [LaunchStarted(launch) for launch in launches])
        for launch, rank in product(launches, range(ranks)):
            prefix = f"net_rank_{rank}"
            source = Source(
                run=run,
                launch=launch.id,
                rank=rank,
                directory=str(home),
                kind=Kind.PERIODIC,
                prefix=prefix,
                breakpoint_prefix=prefix,
                names_before=frozenset(),
            )
            put(catalog, [SourceAdded(source, now)])
        for rank in range(ranks):
            ckpt_bytes.write(home / name.format(rank), 5)
        asked.clear()
        reconcile.reconcile(catalog.database, find_run(catalog.database, run))
        assert asked
        works.append(len(asked) / ranks)
    assert works[1] <= works[0] + 1
