"""`launch.save`: a checkpoint of whatever framework gets its name once it is whole, and never over another one."""

import os
import shutil
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ckptstore.api import Catalog, connect
from ckptstore.core.model import FileState
from ckptstore.disk import aside
from ckptstore.errors import CkptstoreError, RefusedError, UsageError
from ckptstore.training.rank_launch import RankLaunch
from tests.starting import LIBRARY, warm_python

JOB = Path(__file__).with_name("numpy_job.py")


@pytest.fixture
def catalog(sqlite_url: str) -> Catalog:
    return connect(sqlite_url)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """It is made by the first save."""
    return tmp_path / "ckpt"


def joined(catalog: Catalog, launch_id: str = "L1") -> RankLaunch:
    return catalog.join("run", rank=0, world_size=1, launch_id=launch_id)


def weights(path: str) -> None:
    np.savez(path, w=np.arange(4))


def prefix(path: str) -> None:
    Path(f"{path}.data-00000-of-00001").write_bytes(b"values")
    Path(f"{path}.index").write_bytes(b"index")


def folder(path: str) -> None:
    Path(path, "shard").mkdir(parents=True)
    Path(path, "shard", "0.bin").write_bytes(b"shard")


def visible(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir() if each.name != ".ckptstore") if directory.exists() else []


@pytest.mark.parametrize(
    ("write", "name", "names"),
    [
        (weights, "w.npz", ["w.npz"]),
        (folder, None, ["step-5"]),
        (prefix, "ckpt0", ["ckpt0.data-00000-of-00001", "ckpt0.index"]),
    ],
)
def test_it_is_whole_when_it_gets_its_name(catalog: Catalog, directory: Path, write, name, names) -> None:
    file = joined(catalog).save(write, global_step=5, directory=directory, name=name, metrics={"loss": 0.5})
    assert visible(directory) == names
    assert list(catalog.files("run")) == [file]
    assert file.timing.written == file.timing.pause > 0
    assert (file.state, file.global_step, file.metrics) == (FileState.COMPLETE, 5, {"loss": 0.5})
    assert catalog.resolve("run").plan.ranks[0].source.path == file.path


@pytest.mark.parametrize("write", [weights, prefix, folder])
def test_nothing_is_written_over(catalog: Catalog, directory: Path, write) -> None:
    """After a start from an older state the same step is saved a second time."""
    first = joined(catalog).save(write, global_step=5, directory=directory, name="best.pth.npz")
    second = joined(catalog, "L2").save(write, global_step=5, directory=directory, name="best.pth.npz")
    assert [Path(each.path).name for each in (first, second)] == ["best.pth.npz", "best_1.pth.npz"]
    assert {file.path: file.state for file in catalog.files("run")} == dict.fromkeys(
        (first.path, second.path), FileState.COMPLETE
    )


def test_what_write_raises_leaves_nothing(catalog: Catalog, directory: Path) -> None:
    def broken(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        joined(catalog).save(broken, global_step=5, directory=directory)
    assert visible(directory) == []
    assert not catalog.files("run")


@pytest.mark.parametrize(
    ("write", "asked", "says"),
    [
        # numpy adds `.npz` to a name that lacks it
        (weights, {}, r"wrote nothing at .*/step-5, but step-5\.npz; write to that very path"),
        (lambda path: None, {}, r"wrote nothing at .*/step-5; write to that very path"),
        (folder, {"name": ""}, "names no file"),
        (folder, {"name": ".."}, "names no file"),
        (folder, {"name": "a/b"}, "names no file"),
        (folder, {"global_step": -1}, "global_step"),
        (folder, {"directory": "file"}, r"nothing was saved to .*/file: Not a directory"),
    ],
)
def test_what_cannot_be_saved_leaves_nothing(catalog: Catalog, tmp_path: Path, write, asked, says) -> None:
    (tmp_path / "file").write_bytes(b"")
    told = {"global_step": 5, **asked, "directory": tmp_path / asked.get("directory", "ckpt")}
    with pytest.raises(CkptstoreError, match=says):
        joined(catalog).save(write, **told)
    assert visible(tmp_path / "ckpt") == []


def test_what_a_killed_launch_left_is_deleted_by_the_next_and_no_one_elses(
    catalog: Catalog, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # as if killed: nothing is cleared
        patch.setattr(aside.shutil, "rmtree", lambda *_, **__: None)
        for launch in (joined(catalog, "L1"), catalog.join("other", rank=0, world_size=1, launch_id="L1")):
            with pytest.raises(KeyError):
                launch.save(lambda path: {}[path], global_step=5, directory=directory)
    left = directory / ".ckptstore" / "saving"
    before = set(left.iterdir())
    joined(catalog, "L2").save(folder, global_step=5, directory=directory)
    assert len(before) == 2
    assert len(set(left.iterdir()) & before) == 1


@pytest.mark.parametrize("write", [weights, prefix, folder])
def test_its_bytes_are_on_the_disk_before_it_gets_its_name(
    catalog: Catalog, directory: Path, monkeypatch: pytest.MonkeyPatch, write
) -> None:
    """Else a power loss could leave an empty file with the name."""
    synced: dict[str, list[str]] = {}
    fsync = os.fsync

    def noted(opened: int) -> None:
        synced.setdefault(Path(f"/proc/self/fd/{opened}").readlink().name, visible(directory))
        fsync(opened)

    monkeypatch.setattr(os, "fsync", noted)
    joined(catalog).save(write, global_step=5, directory=directory, name="c.npz")
    named = [directory / each for each in visible(directory)]
    members = [(each.name, top.name) for top in named for each in (top, *top.rglob("*")) if each.is_file()]
    assert members
    assert all(top not in synced[member] for member, top in members)


def test_an_index_comes_last(catalog: Catalog, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, what has the name is no checkpoint."""
    linked = []
    link = os.link
    monkeypatch.setattr(os, "link", lambda source, target, **how: (linked.append(target), link(source, target, **how)))
    joined(catalog).save(prefix, global_step=5, directory=directory, name="c")
    assert [Path(each).name for each in linked] == ["c.data-00000-of-00001", "c.index"]


def test_a_training_of_two_ranks_in_numpy_is_killed_and_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """Rank 1 dies after its save of step 9, rank 0 after that of step 12; one name serves for all saves."""

    def train(name: str, launch: str, *killed_at: int) -> list[str]:
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        command = [*warm_python(*LIBRARY, "numpy"), str(JOB), str(home / "catalog.db"), str(home), launch]
        processes = [
            subprocess.Popen([*command, str(rank), str(step)], stdout=subprocess.PIPE, text=True)
            for rank, step in enumerate(killed_at)
        ]
        return [process.communicate()[0].strip() for process in processes]

    train("calm", "L1", 0, 0)
    assert train("rough", "L1", 13, 10) == ["GOES ON AFTER 0"] * 2
    assert train("rough", "L2", 0, 0) == ["GOES ON AFTER 9"] * 2
    for rank in (0, 1):
        calm, rough = (np.load(tmp_path / name / f"final_{rank}.npz")["weights"] for name in ("calm", "rough"))
        assert calm.tobytes() == rough.tobytes()
    names = sorted(path.name for path in (tmp_path / "rough" / "rank_0").glob("*.npz"))
    assert names == ["model.npz", *(f"model_{number}.npz" for number in range(1, 7))]


def test_what_a_kill_left_of_a_prefix_stops_no_later_save(catalog: Catalog, directory: Path) -> None:
    """Its data have their name, its index not yet."""
    directory.mkdir()
    (directory / "ckpt0.data-00000-of-00001").write_bytes(b"of a launch that is dead")
    file = joined(catalog).save(prefix, global_step=5, directory=directory, name="ckpt0")
    assert Path(file.path).name == "ckpt0_1"
    assert (directory / "ckpt0.data-00000-of-00001").read_bytes() == b"of a launch that is dead"


def begun(catalog: Catalog, run: str, launch_id: str) -> tuple[RankLaunch, int]:
    launch = catalog.join(run, launch_id=launch_id)
    plan = launch.resolve()
    return launch, plan.global_step if plan else 0


@pytest.fixture
def new_catalog(catalog: Catalog, directory: Path, tmp_path: Path) -> Catalog:
    """One that was made after the catalog of a run was lost: the run has steps 1 to 6, and was renamed."""
    launch, _ = begun(catalog, "run", "L1")
    for step in range(1, 7):
        launch.save(weights, global_step=step, directory=directory, name="w.npz")
    catalog.rename("run", "thesis")
    return connect(str(tmp_path / "new.db"))


@pytest.mark.parametrize("registers", [True, False])
@pytest.mark.parametrize(
    ("run", "told"),
    [
        ("run", "of run run, .* start again"),
        ("thesis", r"of run run, which was renamed to thesis, .* call join\('run'"),
    ],
)
def test_a_launch_stops_at_its_first_save_beside_states_that_its_catalog_did_not_know(
    new_catalog: Catalog, directory: Path, run: str, told: str, *, registers: bool
) -> None:
    launch, first = begun(new_catalog, run, "L2")
    assert first == 0
    there = visible(directory)
    with pytest.raises(RefusedError, match=f"starts from the beginning, but .* holds step 6 {told}"):
        if registers:
            launch.register(directory / "w.npz", global_step=1)
        else:
            launch.save(weights, global_step=1, directory=directory, name="w.npz")
    assert visible(directory) == there
    assert begun(new_catalog, "run", "L3")[1] == 6


def test_each_rank_stops_even_if_another_has_found_the_states_by_then(
    catalog: Catalog, directory: Path, tmp_path: Path
) -> None:
    def saves(catalog: Catalog, launch_id: str, rank: int, *steps: int) -> None:
        launch = catalog.join("run", rank=rank, world_size=2, launch_id=launch_id)
        assert launch.resolve() is None
        for step in steps:
            launch.save(weights, global_step=step, directory=directory / f"rank_{rank}", name="w.npz")

    saves(catalog, "L1", 0, 1, 6)
    saves(catalog, "L1", 1, 1, 6)
    new_catalog = connect(str(tmp_path / "new.db"))
    for rank in range(2):
        with pytest.raises(RefusedError, match=rf"rank_{rank}/\S+ holds step 6 of run run"):
            saves(new_catalog, "L2", rank, 1)
    assert new_catalog.resolve("run").plan is not None


def test_on_the_machine_of_the_run_a_start_finds_it_without_its_catalog(
    catalog: Catalog, directory: Path, sqlite_url: str
) -> None:
    launch, _ = begun(catalog, "run", "L1")
    launch.save(weights, global_step=6, directory=directory, name="w.npz")
    catalog.rename("run", "thesis")
    catalog.close()
    lost = catalog.database.file
    assert lost is not None
    for each in lost.parent.glob(f"{lost.name}*"):
        each.unlink()
    assert begun(connect(sqlite_url), "thesis", "L2")[1] == 6


def test_a_start_finds_what_was_saved_while_the_catalog_that_had_the_launch_was_away(
    catalog: Catalog, directory: Path, sqlite_url: str
) -> None:
    """Seen before: the catalog knew the run, so no journal was looked for, and training began at step 0."""
    launch, _ = begun(catalog, "run", "L1")
    file = catalog.database.file
    assert file is not None
    with closing(sqlite3.connect(file)) as connection, closing(sqlite3.connect(f"{file}.kept")) as kept:
        connection.backup(kept)
    launch.save(weights, global_step=6, directory=directory, name="w.npz")
    catalog.close()
    for each in file.parent.glob(f"{file.name}-*"):
        each.unlink()
    Path(f"{file}.kept").replace(file)
    assert begun(connect(sqlite_url), "run", "L2")[1] == 6


def test_what_was_overlooked_is_only_logged_once_the_launch_has_saved(
    new_catalog: Catalog, directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launch, _ = begun(new_catalog, "run", "L2")
    launch.save(weights, global_step=1, directory=tmp_path / "other", name="w.npz")
    launch.save(weights, global_step=2, directory=directory, name="w.npz")
    assert "holds step 6 of run run, and the catalog " in caplog.text
    assert "start again with resume(lineage='L1')" in caplog.text


def test_a_launch_does_not_stop_because_of_a_save_of_the_launch_before_that_came_late(
    catalog: Catalog, directory: Path
) -> None:
    before, _ = begun(catalog, "run", "L1")
    before.save(weights, global_step=5, directory=directory, name="w.npz")
    launch, first = begun(catalog, "run", "L2")
    before.save(weights, global_step=9, directory=directory, name="w.npz")
    assert first == 5
    launch.save(weights, global_step=6, directory=directory, name="w.npz")


def test_a_launch_that_goes_back_on_purpose_saves_beside_newer_states(catalog: Catalog, directory: Path) -> None:
    before, _ = begun(catalog, "run", "L1")
    for step in (5, 9):
        before.save(weights, global_step=step, directory=directory, name="w.npz")
    launch = catalog.join("run", launch_id="L2")
    assert launch.resolve(step=5) is not None
    launch.save(weights, global_step=6, directory=directory, name="w.npz")


@pytest.mark.parametrize("joins_late", [False, True])
def test_states_that_were_given_up_stop_no_later_start(catalog: Catalog, directory: Path, *, joins_late: bool) -> None:
    """The job dies before both ranks have saved, again and again."""

    def start(launch_id: str) -> list[RankLaunch]:
        ranks = []
        for rank in range(2):
            ranks.append(catalog.join("run", rank=rank, world_size=2, launch_id=launch_id))
            if joins_late:
                assert ranks[rank].resolve() is None
        assert joins_late or [launch.resolve() for launch in ranks] == [None, None]
        return ranks

    for number, saves in enumerate((0, 1, 1, 0, 0), 1):
        start(f"L{number}")[saves].save(
            weights, global_step=7 - number, directory=directory / f"rank_{saves}", name="w.npz"
        )
    for launch in start("L6"):
        launch.save(weights, global_step=1, directory=directory / f"rank_{launch.rank}", name="w.npz")
    plan = catalog.resolve("run").plan
    assert plan is not None
    assert (plan.launch.id, plan.global_step) == ("L6", 1)


def test_a_scan_brings_files_of_any_name_back_once_their_disk_is_mounted_again(
    catalog: Catalog, directory: Path, tmp_path: Path
) -> None:
    launch, _ = begun(catalog, "run", "L1")
    launch.save(weights, global_step=5, directory=directory, name="w.npz")
    directory.rename(tmp_path / "disk")
    directory.mkdir()
    (directory / "notes.txt").write_text("below the mount point")
    catalog.scan(directory, run="run")
    assert [file.state for file in catalog.files("run")] == [FileState.MISSING]
    shutil.rmtree(directory)
    (tmp_path / "disk").rename(directory)
    catalog.scan(directory, run="run")
    assert [file.state for file in catalog.files("run")] == [FileState.COMPLETE]


def test_threads_that_save_at_once_wait_for_each_other__before_each_deleted_the_others_unfinished_files(
    catalog: Catalog, directory: Path
) -> None:
    launch = joined(catalog)

    def five(thread: int) -> list[int]:
        steps = range(10 * thread, 10 * thread + 5)
        return [launch.save(folder, global_step=step, directory=directory).global_step for step in steps]

    with ThreadPoolExecutor(4) as threads:
        saved = [step for some in threads.map(five, range(4)) for step in some]
    assert visible(directory) == sorted(f"step-{step}" for step in saved)
    assert {file.global_step for file in catalog.files("run")} == set(saved)


def test_an_empty_file_gets_no_name__before_it_stayed_beside_the_checkpoints(catalog: Catalog, directory: Path) -> None:
    launch = joined(catalog)
    with pytest.raises(
        UsageError, match=r"wrote model\.ckpt, which is empty or cut: nothing was saved to .*; write all"
    ):
        launch.save(lambda path: Path(path).touch(), global_step=1, directory=directory, name="model.ckpt")
    assert visible(directory) == []
    saved = launch.save(
        lambda path: Path(path).write_bytes(b"w" * 9), global_step=1, directory=directory, name="model.bin"
    )
    assert Path(saved.path).name == "model.bin"
