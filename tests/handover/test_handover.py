"""A state leaves one catalog, and comes into another as a run: the same bytes, proved, or nothing."""

import json
import os
import random
import tarfile
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import FileState
from ckptstore.errors import DamageError, NothingRestorableError, RefusedError
from ckptstore.handover import archive
from ckptstore.retention.policy import Policy
from ckptstore.training import companions
from tests.contents import WORK, contents
from tests.handover.builders import snapshot
from tests.jobs import Job

FORMS = pytest.mark.parametrize("target", ["out", "out.tar"], ids=["directory", "tar"])


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    """Two ranks saved steps 5, 10 and 15; beside rank 0's files of the last step lies what goes with it."""
    made = Job(catalog, tmp_path / "ckpt", layout="data_parallel", run="digits")
    files = made.save(made.begin(), 5, 10, 15)
    companions.write(files[0], {"random": [1, 2.5, "x"], "loop": None}, durable=False)
    return made


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
    assert plan is not None
    assert origin is not None
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
    there = Job(other, tmp_path / "there", layout="data_parallel", run="digits")
    ranks = there.begin()
    assert [rank.facts.parent_step for rank in ranks] == [10, 10]
    there.save(ranks, 20, 30, 40)
    assert other.resolve("digits").plan.global_step == 40
    assert [row.status for row in other.runs()] != ["imported"]
    with pytest.raises(RefusedError, match="in this catalog already"):
        other.import_(tmp_path / "out", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_gc_gives_up_what_was_imported_and_brings_it_back(
    job: Job, catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    catalog.export("digits@10", tmp_path / "out")
    other.import_(tmp_path / "out", tmp_path / "there")
    there = Job(other, tmp_path / "there", layout="data_parallel", run="digits")
    there.save(there.begin(), 20, 30)
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
    job = Job(catalog, tmp_path / "ckpt", 1, run="run")
    (launch,) = job.begin()
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
    job = Job(catalog, tmp_path / "ckpt", 1, run="run")
    (launch,) = job.begin()
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
def test_a_file_that_is_not_as_recorded_is_not_exported(
    job: Job, catalog: Catalog, target: str, tmp_path: Path
) -> None:
    path = Path(catalog.show("digits", 10)[1].path)
    raw = bytearray(path.read_bytes())
    raw[40] ^= 1
    at = path.stat()
    path.write_bytes(raw)
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    with pytest.raises(DamageError, match="not those that were recorded"):
        catalog.export("digits@10", tmp_path / target)
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith((".", "out"))) == []


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
