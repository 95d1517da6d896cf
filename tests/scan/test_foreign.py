"""Checkpoints of PyTorch and TensorFlow, and directories of shards (seed 003): MindSpore cannot load them."""

import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.limits import TOO_LATE
from ckptstore.core.model import FileState, Grade, Rule
from ckptstore.errors import NothingRestorableError, RefusedError, UsageError
from ckptstore.resume.export import paths, restore_ranks
from ckptstore.resume.resolver import Loads, Query
from ckptstore.scan.plan import Scanned
from tests.cli.advice import follow
from tests.foreign_bytes import pytorch, shards, stamped, tensorflow, written
from tests.scan.builders import save
from tests.small_disks import date_far_ahead

FOR_MINDSPORE = Query(loads=Loads.MINDSPORE)


def told(done: Scanned) -> list[tuple[str, int, int, str]]:
    return sorted((Path(file.path).name, file.rank, file.global_step, file.format) for file in done.adopted)


def left_out(done: Scanned, root: Path) -> dict[str, tuple[int | None, str]]:
    return {str(Path(each.path).relative_to(root)): (each.best_guess, each.remedy) for each in done.uncertain}


def test_what_has_no_step_is_listed_and_a_start_does_not_pass_it_over(catalog: Catalog, root: Path) -> None:
    for name in ("rank_12/model_best.pth.tar", "rank3/model_best.pth.tar", "x.pth"):
        stamped(written(root / name, b"12345"), 10**9)
    tensorflow(root / "ckpt7", parts=1, at=10**9)
    done = catalog.scan(root)
    shown = {str(Path(each.path).relative_to(root)): (each.rank, each.size, each.modified) for each in done.opaque}
    at = datetime.fromtimestamp(10**9, timezone.utc)
    assert shown == {
        "rank_12/model_best.pth.tar": (12, 5, at),
        "rank3/model_best.pth.tar": (3, 5, at),
        "ckpt7": (7, 15, at),
        "x.pth": (None, 5, at),
    }
    assert (done.adopted, done.skipped) == ((), ())
    assert "their steps are not known: no run can go on from them" in done.warnings[0]
    assert {path: remedy for path, (_, remedy) in left_out(done, root).items()} == {
        "rank_12/model_best.pth.tar": "--step FILE=STEP",
        "rank3/model_best.pth.tar": "--step FILE=STEP",
        "ckpt7": "--step FILE=STEP",
        "x.pth": "--world-size 1",
    }
    with pytest.raises(RefusedError, match="4 newer files have no certain step or rank"):
        catalog.join("job").resolve()


def test_weights_that_somebody_trained_before_stop_no_start(catalog: Catalog, root: Path) -> None:
    save(root, 3, 6)
    pytorch(root / "pretrained" / "resnet50.pth", at=100, epoch=300)
    done = catalog.scan(root, world_size=1)
    assert [Path(each.path).name for each in done.opaque] == ["resnet50.pth"]
    assert done.uncertain == ()
    launch = catalog.join("job")
    launch.set_steps_per_epoch(5)
    assert launch.resolve().global_step == 6


def test_the_best_models_of_pytorch_are_adopted_and_handed_out(catalog: Catalog, other: Catalog, root: Path) -> None:
    """Seed 003: on each node one rank saves, and nothing but its user knows of which step."""
    best = pytorch(root / "rank_0" / "model_best.pth.tar", at=50, epoch=5)
    other_best = pytorch(root / "rank_8" / "model_best.pth.tar", at=51, epoch=5)
    before = catalog.scan(root, world_size=16)
    remedy = "--step FILE=STEP"
    assert set(left_out(before, root).values()) == {(None, remedy)}
    other.sync(root)  # the journal says it too
    assert {each.remedy for each in other.resolve("job").unplaced} == {remedy}
    done = catalog.scan(root, world_size=16, steps_per_epoch=10, steps={best: 50, other_best: 50}, replicas="dp")
    assert told(done) == [("model_best.pth.tar", rank, 50, "pytorch") for rank in (0, 8)]
    assert {(file.grade, file.doubt, file.epoch) for file in done.adopted} == {
        (Grade.ASSUMED, "its step was stated", 5)
    }
    assert (done.uncertain, done.opaque) == ((), ())
    plan = catalog.resolve("job").plan
    assert paths(plan)[:2] == [str(best), str(best)]
    assert len(plan.ranks) == 16
    assert restore_ranks(plan)["RESTORE_RANKS"] == "0,8"
    assert catalog.scan(root, world_size=16).adopted == ()


def test_mindspore_does_not_start_from_what_it_cannot_load(catalog: Catalog, database_url: str, root: Path) -> None:
    path = pytorch(root / "rank_0" / "a.pth", at=50)
    catalog.scan(root, steps={path: 40})
    launch = catalog.join("job")
    with pytest.raises(NothingRestorableError) as refused:
        launch.decide_start(catalog.database, FOR_MINDSPORE)
    assert f"MindSpore cannot load {path}: its format is pytorch" in refused.value.message
    assert "ckptstore resolve job --step 40 --format paths" in refused.value.hint
    assert follow(database_url, refused.value.hint.partition("that can load them")[2]).out == f"{path}\n"
    assert "\n" not in str(refused.value)
    assert launch.resolve().global_step == 40  # what is no script of MindSpore loads it


def test_mindspore_goes_on_from_its_own_and_the_reason_is_told(catalog: Catalog, root: Path) -> None:
    save(root, 3, 6)
    path = pytorch(root / "rank_0" / "a.pth", at=50)
    catalog.scan(root, steps={path: 40})
    resolution = catalog.resolve("job")
    assert resolution.plan.global_step == 40
    launch = catalog.join("job")
    plan = launch.decide_start(catalog.database, FOR_MINDSPORE).plan
    assert plan.global_step == 6
    history = catalog.history("job")[-1]
    assert [(each.global_step, each.rule) for each in history.passed] == [(40, Rule.FOREIGN_FORMAT)]


def test_a_prefix_of_tensorflow_is_one_checkpoint(catalog: Catalog, root: Path) -> None:
    tensorflow(root / "ckpt0", at=5)
    tensorflow(root / "rank_0" / "model.ckpt-1000", at=6)
    done = catalog.scan(root, steps={root / "ckpt0": 30}, run="job")
    assert told(done) == [("ckpt0", 0, 30, "tensorflow")]
    assert left_out(done, root)["rank_0/model.ckpt-1000"] == (1000, "--trust name")
    (file,) = done.adopted
    assert (file.size, file.mtime_ns) == (len(b"an index") + 2 * len(b"shard 0"), 5 * 10**9)
    named = catalog.scan(root / "rank_0", trust=["name"], run="job")
    assert told(named) == [("model.ckpt-1000", 0, 1000, "tensorflow")]
    assert catalog.resolve("job").plan.global_step == 1000


def test_the_prefix_that_most_scripts_of_tensorflow_use(catalog: Catalog, root: Path) -> None:
    prefix = tensorflow(root / "model.ckpt")
    assert told(catalog.scan(root, steps={prefix: 7})) == [("model.ckpt", 0, 7, "tensorflow")]
    assert paths(catalog.resolve("job", verify="digest").plan) == [str(prefix)]
    assert catalog.verify("job", digest=True).damaged == ()


def test_the_directories_of_ranks_of_tensorflow_are_one_job(catalog: Catalog, tmp_path: Path) -> None:
    """Seed 003: each device has a directory `ckpt{R}`, with `model.ckpt-1000` of an Estimator in it."""
    root = tmp_path / "d_solution"
    for rank in (0, 1):
        for step in (10, 20):
            tensorflow(root / f"ckpt{rank}" / f"model.ckpt-{step}", at=step)
    before = catalog.scan(root)
    assert set(left_out(before, root)) == {f"ckpt{rank}/model.ckpt-{step}" for rank in (0, 1) for step in (10, 20)}
    with pytest.raises(RefusedError) as refused:
        catalog.join("d_solution", world_size=2, launch_id="L1").resolve()
    assert f"ckptstore scan {root} --run d_solution --trust name places it" in refused.value.hint
    done = catalog.scan(root, trust=["name"])
    assert told(done) == [(f"model.ckpt-{step}", rank, step, "tensorflow") for step in (10, 20) for rank in (0, 1)]
    assert len({file.launch for file in done.adopted}) == 1
    plan = catalog.resolve("d_solution").plan
    assert paths(plan) == [str(root / f"ckpt{rank}" / "model.ckpt-20") for rank in (0, 1)]


def test_a_root_that_has_the_name_of_a_rank_is_none(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "ckpt10000000"
    for place in ("a", "b"):
        tensorflow(root / place / "model.ckpt-10")
    done = catalog.scan(root, run="job", trust=["name"])
    assert len({file.launch for file in done.adopted}) == 2


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ("ckpt0.data-00001-of-00002", "it lacks ckpt0.data-00001-of-00002"),
        ("ckpt0.index", "its index is not there"),
    ],
)
def test_a_prefix_that_is_not_whole_is_none(catalog: Catalog, root: Path, lost: str, reason: str) -> None:
    tensorflow(root / "ckpt0")
    (root / lost).unlink()
    done = catalog.scan(root, world_size=1)
    assert [(each.path, each.reason) for each in done.skipped] == [
        (str(root / "ckpt0"), f"a checkpoint of several files: {reason}")
    ]
    with pytest.raises(UsageError, match="there is no checkpoint"):
        catalog.scan(root, steps={"ckpt0": 3})


def test_several_files_of_a_time_that_no_catalog_holds_are_none(catalog: Catalog, tmp_path: Path) -> None:
    """The scan ended with a traceback, when its launches were recorded already."""
    directory, prefix = shards(tmp_path / "ck" / "step-1"), tensorflow(tmp_path / "ck" / "model-2")
    date_far_ahead(directory / "latest.txt")
    date_far_ahead(Path(f"{prefix}.index"))
    found = catalog.scan(tmp_path / "ck", run="run", trust=["name"])
    assert found.adopted == ()
    assert f"a checkpoint of several files: {TOO_LATE}" in [each.reason for each in found.skipped]
    with pytest.raises(UsageError, match="step-1 is no checkpoint: its modification time is beyond the year 2262"):
        catalog.scan(tmp_path / "ck", run="run", steps={"step-1": 1})


def test_a_directory_of_shards_is_one_checkpoint_of_all_ranks(catalog: Catalog, root: Path) -> None:
    home = shards(root / "global_step_100", at=5)
    pytorch(root / "rank_0" / "a.pth", at=1)
    before = catalog.scan(root, world_size=4)
    assert left_out(before, root)["rank_0/a.pth"] == (None, "--step FILE=STEP")
    done = catalog.scan(root, trust=["name"], world_size=4, replicas="dp")
    assert told(done) == [("global_step_100", 0, 100, "directory")]
    assert paths(catalog.resolve("job").plan) == [str(home)] * 4
    again = catalog.scan(root, trust=["name"], world_size=4)
    assert (again.adopted, again.damaged, again.missing) == ((), (), ())


def test_a_directory_that_its_user_names_is_one_checkpoint_for_good(catalog: Catalog, root: Path) -> None:
    shards(root / "epoch-3")
    done = catalog.scan(root, steps={"epoch-3": 30})
    assert told(done) == [("epoch-3", 0, 30, "directory")]
    again = catalog.scan(root)
    assert (again.adopted, again.uncertain, again.opaque, again.known) == ((), (), (), 1)


def test_a_directory_with_checkpoints_of_mindspore_is_none(catalog: Catalog, root: Path) -> None:
    save(root / "global_step_100", 3, 6)
    written(root / "global_step_100" / "a.pt", b"x")
    with pytest.raises(UsageError, match="has checkpoints of MindSpore in it"):
        catalog.scan(root, steps={"global_step_100": 30})
    done = catalog.scan(root, world_size=1)
    assert [file.global_step for file in done.adopted] == [3, 6]
    assert [Path(each.path).name for each in done.opaque] == ["a.pt"]


def test_a_directory_with_a_link_in_it_is_none(catalog: Catalog, root: Path) -> None:
    home = shards(root / "global_step_100")
    (home / "loop").symlink_to(root)
    done = catalog.scan(root, trust=["name"])
    assert done.adopted == ()
    assert any("loop of it is a link" in each.reason for each in done.skipped)


@pytest.mark.parametrize("format_", ["tensorflow", "directory"])
@pytest.mark.parametrize("damage", ["cut", "missing", "rewritten", "gone"])
def test_what_happens_to_one_part_is_found(catalog: Catalog, root: Path, format_: str, damage: str) -> None:
    make = tensorflow if format_ == "tensorflow" else shards
    older, newer = make(root / "early", at=1), make(root / "late", at=100)
    catalog.scan(root, steps={older: 10, newer: 20}, world_size=1)
    catalog.verify("job", digest=True)
    assert catalog.resolve("job", verify="digest").plan.global_step == 20
    parts = sorted(path for path in (newer.rglob("*") if newer.is_dir() else root.glob("late.*")) if path.is_file())
    if damage == "cut":
        parts[0].write_bytes(b"sh")
        expected = Rule.SIZE_MISMATCH
    elif damage == "missing":
        parts[0].unlink()
        expected = Rule.SIZE_MISMATCH
    elif damage == "rewritten":
        parts[0].write_bytes(b"x" * parts[0].stat().st_size)
        expected = Rule.DIGEST_MISMATCH
    else:
        for part in parts:
            part.unlink()
        if newer.is_dir():
            shutil.rmtree(newer)
        expected = Rule.MISSING_FILE
    resolution = catalog.resolve("job")
    assert resolution.plan.global_step == 10
    assert [reason.rule for reason in resolution.rejections[0].reasons] == [expected]
    assert [each.rule for each in catalog.verify("job").damaged] == [expected]
    again = catalog.scan(root)
    assert {Path(file.path).name for file in (*again.damaged, *again.missing)} <= {newer.name}


def test_an_older_part_with_its_time_is_found_by_the_bytes(catalog: Catalog, root: Path) -> None:
    tensorflow(root / "ckpt0", at=5)
    catalog.scan(root, steps={"ckpt0": 10})
    assert catalog.verify("job", digest=True).new_digests == 1
    stamped(written(root / "ckpt0.data-00000-of-00002", b"older 0"), 1)
    assert catalog.resolve("job", verify="digest").plan is None


def test_a_file_that_is_saved_again_under_its_name_is_another_state(catalog: Catalog, root: Path) -> None:
    """A script keeps its best model under one name."""
    path = pytorch(root / "rank_0" / "model_best.pth.tar", at=5, global_step=10)
    catalog.scan(root, steps={path: 10})
    pytorch(path, at=6, global_step=20_000_000_000)
    silent = catalog.scan(root)
    assert left_out(silent, root) == {"rank_0/model_best.pth.tar": (None, "--step FILE=STEP")}
    assert silent.damaged == ()
    done = catalog.scan(root, steps={path: 20_000_000_000})
    assert told(done) == [("model_best.pth.tar", 0, 20_000_000_000, "pytorch")]
    assert catalog.resolve("job").plan.global_step == 20_000_000_000
    states = {file.global_step: file.state for file in catalog.files("job")}
    assert states == {10: FileState.MISSING, 20_000_000_000: FileState.COMPLETE}


@pytest.mark.parametrize("left", [0, 0.5, 0.99])
def test_a_file_of_pytorch_that_is_cut_is_no_checkpoint(catalog: Catalog, root: Path, left: float) -> None:
    """A script was killed while it saved over its best model."""
    path = pytorch(root / "rank_0" / "model_best.pth.tar", at=5, global_step=10)
    whole = path.read_bytes()
    catalog.scan(root, steps={path: 10})
    stamped(written(path, whole[: int(len(whole) * left)]), 6)
    done = catalog.scan(root, steps={path: 20})
    assert [(each.path, each.reason) for each in done.skipped] == [(str(path), "it is empty or cut")]
    assert (done.adopted, done.uncertain, done.opaque) == ((), (), ())
    assert catalog.resolve("job").plan is None
    with pytest.raises(UsageError, match="is empty or cut"):
        catalog.join("job").register(path, global_step=20)
    stamped(written(path, whole), 7)
    assert told(catalog.scan(root, steps={path: 10})) == [("model_best.pth.tar", 0, 10, "pytorch")]


def test_another_step_is_stated_for_what_was_adopted(catalog: Catalog, root: Path) -> None:
    path = pytorch(root / "rank_0" / "a.pth", at=5)
    catalog.scan(root, steps={path: 10})
    catalog.scan(root, steps={path: 30})
    assert catalog.resolve("job").plan.global_step == 30
    assert {file.global_step: file.state for file in catalog.files("job")} == {
        10: FileState.MOVED,
        30: FileState.COMPLETE,
    }


@pytest.mark.parametrize("make", [pytorch, tensorflow, shards])
def test_replicas_are_stated_for_what_was_adopted(catalog: Catalog, root: Path, make: Callable[[Path], Path]) -> None:
    path = make(root / "rank_0" / "a.pt")
    catalog.scan(root, steps={path: 10}, world_size=4)
    assert catalog.resolve("job").plan is None
    catalog.scan(root, world_size=4, replicas="dp")
    assert paths(catalog.resolve("job").plan) == [str(path)] * 4


def test_a_rank_that_no_launch_has_is_not_taken(catalog: Catalog, root: Path, tmp_path: Path) -> None:
    path = pytorch(root / "rank999999999" / "a.pth")
    done = catalog.scan(root, steps={path: 5}, replicas="dp")
    assert done.adopted == ()
    assert "a launch has at most" in done.uncertain[0].reason
    other = tensorflow(tmp_path / "other" / "rank7" / "model.ckpt-5")
    with pytest.raises(UsageError, match="is of rank 7, and the job is said to have 2 ranks"):
        catalog.scan(other.parent.parent, trust=["name"], world_size=2)


def test_a_catalog_made_anew_knows_them(catalog: Catalog, other: Catalog, root: Path) -> None:
    shards(root / "global_step7", at=3)
    tensorflow(root / "ckpt0", at=1)
    catalog.scan(root, trust=["name"], steps={"ckpt0": 3}, world_size=1)
    dry = other.scan(root, run="job", dry_run=True)
    assert other.runs() == []
    done = other.scan(root, run="job")
    assert (done.adopted, done.uncertain, done.synced.records) == ((), (), dry.synced.records)
    assert [
        (file.global_step, file.format) for file in sorted(other.files("job"), key=lambda each: each.global_step)
    ] == [
        (3, "tensorflow"),
        (7, "directory"),
    ]
    assert {file.state for file in other.files("job")} == {FileState.COMPLETE}
    assert Path(other.resolve("job").plan.ranks[0].source.path).is_dir()


def hyperparallel(root: Path, step: int, *, seals: tuple[str, ...] = (".metadata",), shards: str = "__{}_0") -> Path:
    """A directory as HyperParallel writes it: a shard and training state of each rank, and what it writes last."""
    home = root / f"global_step_{step}"
    for rank in range(2):
        written(home / f"{shards.format(rank)}.safetensors", f"shard {rank} of {step}".encode())
        pytorch(home / "extra_state" / f"extra_state_rank_{rank}.pt", at=step)
    for seal in seals:
        written(home / seal, b"pickled")
    return home


def test_a_directory_of_hyperparallel_is_one_checkpoint_whole_or_not(catalog: Catalog, root: Path) -> None:
    """Its name is the step, and the pointer says the newest: no option is needed."""
    older, newest = hyperparallel(root, 40), hyperparallel(root, 80)
    hyperparallel(root, 120, seals=())
    hyperparallel(root, 20, seals=(".rank0_metadata",), shards="_rank{}_")
    each_its_own = hyperparallel(root, 10, seals=(".rank0_metadata", ".rank1_metadata"), shards="_rank{}_")
    written(root / "latest_checkpoint_iteration.txt", b"80\n")
    done = catalog.scan(root)
    found = {file.path: (file.global_step, file.grade) for file in done.adopted}
    assert found == {
        str(each_its_own): (10, Grade.ASSUMED),
        str(older): (40, Grade.ASSUMED),
        str(newest): (80, Grade.PROVEN),
    }
    assert {Path(each.path).name: each.reason for each in done.skipped} == {
        "global_step_120": "a checkpoint of several files: it lacks .metadata",
        "global_step_20": "a checkpoint of several files: it lacks .rank1_metadata",
    }
    plan = catalog.resolve("job").plan
    assert plan is not None
    assert paths(plan) == [str(newest)]
