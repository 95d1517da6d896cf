"""A state leaves one catalog, and comes into another as a run: the same bytes, proved, or nothing."""

import json
import random
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog.project import project
from ckptstore.core.events import LaunchStarted, LayoutFileKept
from ckptstore.core.model import Content, FileState
from ckptstore.core.replicas import Layout, from_groups
from ckptstore.errors import DamageError, NothingRestorableError, RefusedError
from ckptstore.handover import archive
from ckptstore.handover import import_ as import_module
from ckptstore.retention.policy import Policy
from ckptstore.training import companions
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes
from tests.contents import WORK, contents
from tests.handover.builders import snapshot
from tests.jobs import Job, begun

FORMS = pytest.mark.parametrize("target", ["out", "out.tar"], ids=["directory", "tar"])


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """Two ranks saved steps 5, 10 and 15; beside rank 0's files of the last step lies what goes with it."""
    made = Job(catalog, tmp_path / "ckpt", layout="data_parallel", run="digits")
    files = made.save(made.begin(), 5, 10, 15)
    companions.write(files[0], {"random": [1, 2.5, "x"], "loop": None}, durable=False)
    return made


def test_an_export_of_a_run_says_which_newer_state_it_leaves_out(
    job: Job, catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = [job.folder(rank) / "net-2_5.ckpt" for rank in (0, 1)]
    for path in lost:
        path.write_bytes(path.read_bytes()[:-1])
    assert catalog.export("digits", tmp_path / "out").global_step == 10
    assert "step 10 of run digits is taken, though step 15 of launch L1 was complete once: " in caplog.text
    assert str(lost[0]) in caplog.text
    caplog.clear()
    catalog.export("digits@10", tmp_path / "asked for")
    assert caplog.text == ""


@FORMS
def test_a_state_goes_from_one_catalog_to_another(
    job: Job, catalog: Catalog, other: Catalog, target: str, tmp_path: Path
) -> None:
    before = snapshot(job.directory)
    exported = catalog.export("digits", tmp_path / target)
    assert (exported.run, exported.global_step, exported.files) == ("digits", 15, 3)
    assert snapshot(job.directory) == before
    done = other.import_(tmp_path / target, tmp_path / "there")
    assert (done.run, done.global_step, done.directory) == ("digits", 15, str(tmp_path / "there"))
    plan, origin = other.resolve("digits").plan, catalog.resolve("digits").plan
    assert plan.launch.layout == origin.launch.layout
    assert (plan.launch.world_size, plan.launch.steps_per_epoch) == (2, 10)
    for (rank, here), (_, there) in zip(plan.ranks, origin.ranks, strict=True):
        assert Path(here.path) == tmp_path / "there" / f"rank_{rank}" / Path(there.path).name
        assert Path(here.path).read_bytes() == Path(there.path).read_bytes()
        for name in ("digest", "size", "kind", "epoch", "step_in_epoch", "optimizer_step", "mtime_ns", "created_at"):
            assert getattr(here, name) == getattr(there, name), name
    kept = [json.loads(companions.read(each.source).content or "{}") for each in plan.ranks]
    assert [each.get("random") for each in kept] == [[1, 2.5, "x"], None]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.of_files
def test_a_rank_whose_file_is_gone_gets_that_of_its_replica(
    job: Job, catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    Path(catalog.show("digits", 15)[1].path).unlink()
    exported = catalog.export("digits", tmp_path / "out")
    assert (exported.global_step, exported.files) == (15, 2)
    other.import_(tmp_path / "out", tmp_path / "there")
    plan = other.resolve("digits").plan
    assert [(rank, file.rank, file.global_step) for rank, file in plan.ranks] == [(0, 0, 15), (1, 0, 15)]


@pytest.mark.of_files
def test_shares_and_layouts_and_strategy_files_come_along(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """Four ranks, of which two and two are replicas; and two that save their shares alone."""
    strategy = tmp_path / "strategy.ckpt"
    strategy.write_bytes(b"how they share it")
    job = Job(catalog, tmp_path / "ckpt", 4, run="cut")
    ranks = [replace_layout(launch, from_groups([(0, 2), (1, 3)], 4, "strategy")) for launch in job.begin()]
    for launch in ranks:
        launch.register(job.write(launch, 5), global_step=5, strategy_file=strategy, metrics={"loss": 2.0})
    done = catalog.export("cut", tmp_path / "cut.tar")
    assert done.files == 5
    other.import_(tmp_path / "cut.tar", tmp_path / "there")
    plan = other.resolve("cut").plan
    assert plan.launch.layout == catalog.resolve("cut").plan.launch.layout
    assert plan.metrics == {"loss": 2.0}
    assert {each.source.strategy_file for each in plan.ranks} == {f"{tmp_path}/there/rank_0/strategy/strategy.ckpt"}
    assert (tmp_path / "there" / "rank_0" / "strategy" / "strategy.ckpt").read_bytes() == strategy.read_bytes()
    kept = LayoutFileKept("cut", "L1", 0, str(strategy), "0" * 64, "strategy", b"")
    with catalog.database.write() as connection:
        project(connection, [kept], lambda launch, _: launch.layout)
    assert catalog.export("cut", tmp_path / "written again.tar").files == 4
    strategy.unlink()
    assert catalog.export("cut", tmp_path / "gone.tar").files == 4
    shares = Job(catalog, tmp_path / "shares", 2, "data_parallel", run="shares")
    for launch in shares.begin():
        file = launch.register(shares.write(launch, 5), global_step=5)
        launch.recorder.record_files([file.amended(content=Content.SHARE)])
    catalog.export("shares", tmp_path / "shares.tar")
    other.import_(tmp_path / "shares.tar", tmp_path / "shared")
    assert other.resolve("shares").plan.in_shares
    with pytest.raises(RefusedError, match="no one has them all"):
        catalog.export("shares", tmp_path / "out", weights_only=True)


@pytest.mark.of_files
def test_what_a_scan_found_is_handed_over_with_its_grade(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        ckpt_bytes.write(tmp_path / "found" / f"net-{epoch}_10.ckpt", epoch * 10, epoch)
    catalog.scan(tmp_path / "found")
    catalog.tag("found", 20, "good")
    catalog.export("found@good", tmp_path / "out.tar")
    other.import_(tmp_path / "out.tar", tmp_path / "there")
    here, there = (each.resolve("found", step=20).plan for each in (catalog, other))
    assert (there.grade, there.doubt) == (here.grade, here.doubt)
    assert there.grade is not None
    assert there.launch.id.startswith("import-")


def replace_layout(launch: RankLaunch, layout: Layout) -> RankLaunch:
    """A launch whose strategy files told its layout."""
    facts = replace(launch.facts, layout=layout)
    launch.facts = facts
    launch.recorder.record([LaunchStarted(facts.undecided())])
    return launch


def test_two_imports_of_one_name_at_a_time(
    job: Job, catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one ends while this one copies."""
    for step in (5, 10):
        catalog.export(f"digits@{step}", tmp_path / f"out-{step}")
    copy = import_module._copy

    def slowly(*args: Any) -> None:
        copy(*args)
        monkeypatch.undo()
        other.import_(tmp_path / "out-10", tmp_path / "there-10")

    monkeypatch.setattr(import_module, "_copy", slowly)
    with pytest.raises(RefusedError, match=f"is in this catalog already.*remove the files in {tmp_path}/there-5"):
        other.import_(tmp_path / "out-5", tmp_path / "there-5")
    assert {file.global_step for file in other.files("digits")} == {10}
    assert len(other.history("digits")) == 1


@FORMS
def test_a_lost_catalog_is_made_anew_from_what_was_imported(
    job: Job, catalog: Catalog, other: Catalog, target: str, tmp_path: Path
) -> None:
    catalog.export("digits@10", tmp_path / target)
    catalog.import_(tmp_path / target, tmp_path / "there", run="again")
    catalog.database.disconnect()
    other.scan(job.directory)
    other.scan(tmp_path / "there")
    assert contents(other, but=WORK) == contents(catalog, but=WORK)
    assert other.resolve("again").plan.global_step == 10


def test_training_goes_on_from_what_was_imported(job: Job, catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    catalog.export("digits@10", tmp_path / "out")
    other.import_(tmp_path / "out", tmp_path / "there")
    there, ranks = begun(other, tmp_path / "there", layout="data_parallel", run="digits")
    assert [rank.facts.parent_step for rank in ranks] == [10, 10]
    there.save(ranks, 20, 30, 40)
    assert other.resolve("digits").plan.global_step == 40
    assert [row.status for row in other.runs()] != ["imported"]
    with pytest.raises(RefusedError, match="in this catalog already"):
        other.import_(tmp_path / "out", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.of_files
def test_gc_gives_up_what_was_imported_and_brings_it_back(
    job: Job, catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    catalog.export("digits@10", tmp_path / "out")
    other.import_(tmp_path / "out", tmp_path / "there")
    begun(other, tmp_path / "there", 20, 30, layout="data_parallel", run="digits")
    assert other.execute(other.plan_gc("digits", Policy(keep_last=2))).files == 2
    assert {file.state for file in other.show("digits", 10)} == {FileState.TRASHED}
    assert other.undo("digits").files == 2
    assert companions.read(other.resolve("digits", step=10).plan.ranks[0].source).problem == ""
    assert other.verify("digits", digest=True).damaged == ()


@pytest.mark.of_files
@FORMS
@pytest.mark.parametrize(
    "name", ["n" * 200 + "-1_5.ckpt", "网络 net-1_5.ckpt", "e\u0301-1_5.ckpt"], ids=["long", "cjk", "nfd"]
)
def test_names_of_any_length_and_script(
    name: str, target: str, catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    job, (launch,) = begun(catalog, tmp_path / "ckpt", world_size=1)
    launch.register(job.write(launch, 5, name=name), global_step=5)
    catalog.export("run", tmp_path / target)
    other.import_(tmp_path / target, tmp_path / "there")
    assert (tmp_path / "there" / "rank_0" / name).read_bytes() == (job.folder(0) / name).read_bytes()
    if target == "out.tar":
        with tarfile.open(tmp_path / target) as packed:
            assert packed.getnames() == ["manifest.json", f"rank_0/{name}"]


def test_sizes_beyond_what_tar_had_room_for() -> None:
    """More than 8 GB have no room in the octal digits of a header."""
    head = archive._head("rank_0/net.ckpt", 9 << 30, 0)
    assert tarfile.TarInfo.frombuf(head, "utf-8", "strict").size == 9 << 30


@pytest.mark.of_files
@FORMS
def test_checkpoints_of_several_files(target: str, catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """A prefix of TensorFlow, and a directory of shards: their digest is one of all."""
    job, (launch,) = begun(catalog, tmp_path / "ckpt", world_size=1)
    for name, content in (("model.ckpt-5.index", b"index"), ("model.ckpt-5.data-00000-of-00001", b"data")):
        (job.folder(0) / name).write_bytes(content)
    launch.register(job.folder(0) / "model.ckpt-5", global_step=5)
    shards = job.folder(0) / "global_step_6"
    shards.mkdir()
    for name in ("__0_0.distcp", ".metadata"):
        (shards / name).write_bytes(name.encode())
    launch.register(shards, global_step=6)
    for step in (5, 6):
        catalog.export(f"run@{step}", tmp_path / f"{step}-{target}")
        done = other.import_(tmp_path / f"{step}-{target}", tmp_path / f"there-{step}", run=f"run-{step}")
        assert done.files == 2
        here, there = (each.resolve(run).plan for each, run in ((catalog, f"run@{step}"), (other, f"run-{step}")))
        assert here.ranks[0].source.digest == there.ranks[0].source.digest
    assert other.verify(digest=True).damaged == ()
    (shards / ".metadata").write_bytes(b"METADATA")
    with pytest.raises((DamageError, NothingRestorableError)):
        catalog.export("run@6", tmp_path / target)


@pytest.mark.of_files
def test_what_is_imported_again_changes_nothing(job: Job, catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    catalog.export("digits", tmp_path / "out")
    done = other.import_(tmp_path / "out", tmp_path / "there")
    seen = snapshot(tmp_path / "there")
    assert other.import_(tmp_path / "out", tmp_path / "there") == done
    assert snapshot(tmp_path / "there") == seen
    assert [row.status for row in other.runs()] == ["imported"]
    with pytest.raises(RefusedError, match="in this catalog already"):
        other.import_(tmp_path / "out", tmp_path / "elsewhere")
    with pytest.raises(RefusedError, match="is there already"):
        other.import_(tmp_path / "out", tmp_path / "there", run="other")
    other.import_(tmp_path / "out", tmp_path / "elsewhere", run="other")
    assert other.resolve("other").plan.global_step == 15


@pytest.mark.of_files
@FORMS
def test_a_target_that_is_there_is_refused(job: Job, catalog: Catalog, target: str, tmp_path: Path) -> None:
    (tmp_path / target).write_text("mine")
    with pytest.raises(RefusedError, match="is there already"):
        catalog.export("digits", tmp_path / target)
    assert (tmp_path / target).read_text() == "mine"


@pytest.mark.of_files
@FORMS
@pytest.mark.parametrize("apart", [199, pytest.param(5, marks=pytest.mark.long)])
def test_a_byte_that_is_flipped_anywhere_is_refused(
    apart: int, target: str, job: Job, other: Catalog, tmp_path: Path
) -> None:
    job.catalog.export("digits", tmp_path / target)
    files = [path for path in sorted([tmp_path / target, *(tmp_path / target).rglob("*")]) if path.is_file()]
    chance = random.Random(target)  # noqa: S311 — drawn, and the same each time
    flips = [(path, place) for path in files for place in range(chance.randrange(apart), path.stat().st_size, apart)]
    empty = contents(other)
    for path, place in flips:
        raw = path.read_bytes()
        path.write_bytes(raw[:place] + bytes([raw[place] ^ (1 << chance.randrange(8))]) + raw[place + 1 :])
        with pytest.raises(DamageError):
            other.import_(tmp_path / target, tmp_path / "there")
        path.write_bytes(raw)
        assert not (tmp_path / "there").exists()
    assert contents(other) == empty
    other.import_(tmp_path / target, tmp_path / "there")
