"""What a launch finds in a TTP directory that an earlier one left, and renames with what it saved itself."""

import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.core.events import LaunchStarted
from ckptstore.core.model import FileState, Kind, RestorePlan, Rule
from ckptstore.core.replicas import from_groups
from ckptstore.disk.files import names_in
from ckptstore.evidence import writers
from ckptstore.evidence.writers import ttp_names_before
from ckptstore.resume.register import describe, measured
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes
from tests.jobs import STEPS_PER_EPOCH, Job, known_of
from tests.projecting import put

pytestmark = pytest.mark.of_files

FIRST, LAST = "ttp_saved_checkpoints-step_20_tmp", "ttp_saved_checkpoints-step_20"


class Hybrid(Job):
    """Four ranks, of which 0 and 2 hold the same, and 1 and 3."""

    def __init__(self, catalog: Catalog, directory: Path) -> None:
        super().__init__(catalog, directory / "ckpt", world_size=4)
        self.root = directory / "ttp"

    def start(self, *, resume: bool = True) -> list[RankLaunch]:
        ranks = super().start(resume=resume)
        layout = from_groups([(0, 2), (1, 3)], 4, "strategy")
        put(self.catalog, [LaunchStarted(replace(ranks[0].facts.undecided(), layout=layout))])
        for launch in ranks:
            launch.facts = known_of(launch)
            launch.set_steps_per_epoch(STEPS_PER_EPOCH)  # with which the journals get the layout
        return ranks

    def watch(self, ranks: Sequence[RankLaunch]) -> None:
        """What the registrar says of TTP when training begins."""
        for launch in ranks:
            before = ttp_names_before(str(self.root), names_in(str(self.root)), launch.rank)
            launch.add_source(str(self.root), kind=Kind.TTP, prefix="", breakpoint_prefix="", names_before=before)

    def path(self, rank: int, directory: str = FIRST) -> Path:
        return self.root / directory / f"rank_{rank}" / f"ttp_rank_{rank}-2_10.ckpt"

    def fault(self, launch: RankLaunch, *, recorded: bool = True) -> None:
        """What the save handler does at step 20; the weights are the launch's number."""
        path = ckpt_bytes.write(self.path(launch.rank), 20, float(launch.id[1:]))
        if recorded:
            file = measured(
                describe(launch.facts, rank=launch.rank, path=path, kind="ttp", global_step=20, optimizer_step=20)
            )
            launch.record_files([file])

    def rename(self, launch: RankLaunch) -> None:
        (self.root / FIRST).rename(self.root / LAST)
        launch.moved(str(self.root / FIRST), str(self.root / LAST))

    def states(self, catalog: Catalog, launch: str) -> list[tuple[int, str, FileState]]:
        """Rank, directory and state of a launch's TTP files."""
        every = [file for file in catalog.files("run", kind="ttp") if file.launch == launch]
        return sorted((file.rank, Path(file.path).parents[1].name, file.state) for file in every)


def loaded(plan: RestorePlan | None) -> tuple[str, int, list[float]]:
    """Launch, step, and the weights that each rank gets."""
    bare = ckpt_bytes.value("weight", "Float32", (2, 2), struct.pack("<4f", *[0.0] * 4))
    contents = [Path(each.source.path).read_bytes() for each in plan.ranks]
    weights = [struct.unpack("<f", content[len(bare) - 4 : len(bare)])[0] for content in contents]
    return plan.launch.id, plan.global_step, weights


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Hybrid:
    return Hybrid(catalog, tmp_path)


def left_behind(job: Hybrid, *, recorded: bool = True) -> list[RankLaunch]:
    """Only rank 0 of the first launch saved at step 20; the second one begins after step 15."""
    first = job.begin()
    job.watch(first)
    job.save(first, 15)
    if recorded:
        job.fault(first[0])
    second = job.start()
    assert second[0].facts.parent_step == 15
    if not recorded:  # its node answers again, but nobody has asked it
        job.fault(first[0], recorded=False)
    for launch in second:
        job.announce(launch)
    job.watch(second)
    return second


@pytest.mark.parametrize("rename_recorded", [True, False])
def test_a_file_that_another_launch_left_stays_that_one_s(
    catalog: Catalog, job: Hybrid, tmp_path: Path, *, rename_recorded: bool
) -> None:
    second = left_behind(job)
    job.fault(second[2])
    job.fault(second[1])
    if rename_recorded:
        job.rename(second[1])
    else:
        (job.root / FIRST).rename(job.root / LAST)
    for _ in range(2):  # the second look changes nothing
        assert loaded(catalog.resolve("run").plan) == ("L2", 20, [2.0] * 4)
        for each in (catalog, connect(str(tmp_path / "anew.db"))):
            if each is not catalog:
                each.sync(tmp_path)
                assert loaded(each.resolve("run").plan) == ("L2", 20, [2.0] * 4)
            assert (0, LAST, FileState.COMPLETE) in job.states(each, "L1")
            assert [rank for rank, directory, _ in job.states(each, "L2") if directory == LAST] == [1, 2]
        assert job.states(catalog, "L1") == [(0, LAST, FileState.COMPLETE), (0, FIRST, FileState.MOVED)]


def test_what_nobody_recorded_is_not_of_a_launch_that_found_it(
    catalog: Catalog, job: Hybrid, caplog: pytest.LogCaptureFixture
) -> None:
    second = left_behind(job, recorded=False)
    job.fault(second[2])
    job.fault(second[1])
    job.rename(second[1])
    assert loaded(catalog.resolve("run").plan) == ("L2", 20, [2.0] * 4)
    assert "rank_0/ttp_rank_0-2_10.ckpt was not taken into the catalog: it was there before launch L2" in caplog.text
    assert job.states(catalog, "L1") == []


def test_what_nobody_recorded_is_of_the_launch_before_while_the_next_has_saved_nothing(
    catalog: Catalog, job: Hybrid
) -> None:
    second = left_behind(job, recorded=False)
    job.rename(second[1])
    assert loaded(catalog.resolve("run").plan)[:2] == ("L1", 15)
    assert job.states(catalog, "L1") == [(0, LAST, FileState.COMPLETE)]
    assert job.states(catalog, "L2") == []


@pytest.mark.parametrize("left", [True, False])
def test_what_was_written_over_a_left_file_is_of_the_launch_that_did_it(
    catalog: Catalog, job: Hybrid, *, left: bool
) -> None:
    """Its own rank 0 was killed before it could record that."""
    second = left_behind(job) if left else left_behind(job, recorded=False)
    if not left:
        shutil.rmtree(job.root / FIRST)
    job.fault(second[0], recorded=False)
    job.fault(second[1])
    job.rename(second[1])
    found = catalog.resolve("run").plan
    if left:
        assert loaded(found) == ("L2", 20, [2.0] * 4)
        assert (0, LAST, FileState.COMPLETE) in job.states(catalog, "L2")
    else:  # nobody knows of it that it was deleted and written anew: an older state is taken
        assert loaded(found)[:2] == ("L1", 15)


@pytest.mark.parametrize("how", ["damaged", "copied"])
def test_a_left_file_that_is_no_good_or_still_there_is_taken_for_nobody(
    catalog: Catalog, job: Hybrid, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    second = left_behind(job)
    (file,) = catalog.files("run", kind="ttp")
    if how == "damaged":
        second[0].mark_damaged(file, Rule.UNREADABLE)
    job.fault(second[2])
    job.fault(second[1])
    if how == "copied":
        shutil.copytree(job.root / FIRST, job.root / LAST)
    else:
        job.rename(second[1])
    assert loaded(catalog.resolve("run").plan)[1] == 20
    assert f"it is what launch L1 wrote to {job.path(0)}" in caplog.text
    assert [directory for _, directory, _ in job.states(catalog, "L1")] == [FIRST]


def test_a_file_that_lacks_what_is_appended_last_is_cut(
    catalog: Catalog, job: Hybrid, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends between two parameters, and is the first file of its rank: nothing else shows what it lacks."""
    ranks = job.begin()
    job.watch(ranks)
    for launch in ranks:
        job.fault(launch, recorded=False)
    whole = job.path(3).read_bytes()
    job.path(3).write_bytes(whole[: whole.index(b"global_step") - 4])
    assert loaded(catalog.resolve("run").plan) == ("L1", 20, [1.0] * 4)
    assert [rank for rank, _, _ in job.states(catalog, "L1")] == [0, 1, 2]
    assert "it lacks 'step_num', which MindSpore appends: it may be cut" in caplog.text


def test_a_directory_of_all_ranks_is_listed_once(job: Hybrid, monkeypatch: pytest.MonkeyPatch) -> None:
    first = job.begin()
    job.watch(first)
    job.save(first, 15)
    for launch in first:
        job.fault(launch, recorded=False)
    job.rename(first[0])
    listed = []
    monkeypatch.setattr(writers, "names_in", lambda directory: (listed.append(directory), names_in(directory))[1])
    assert job.catalog.resolve("run").plan.global_step == 20
    shared = {str(job.root), str(job.root / LAST)}
    assert sorted(each for each in listed if each in shared) == sorted(shared)
