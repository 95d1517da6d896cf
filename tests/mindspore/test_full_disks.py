"""Disks that are full, for real: of the catalog, of the journal, of the checkpoints. And one that hangs."""

import logging
import os
import queue
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mindspore.train import Callback, RunContext

import ckptstore.mindspore
from ckptstore.api import Catalog, connect
from ckptstore.retention import free_space
from ckptstore.retention.policy import Policy
from ckptstore.training import retention_thread
from tests.cli.advice import follow
from tests.mindspore.running import RECORDED_ALIKE, Run
from tests.mindspore.trainings import Job, complaints, create_dataset, create_model, train
from tests.postgres_server import wait_for
from tests.small_disks import fill, give_room, hanging_disk, small_disk

STEPS = [30, 25, 20, 15, 10, 5]
STEPS_PER_EPOCH = 10


def warnings(output: str) -> list[str]:
    """What ckptstore said, but for where training starts."""
    said = [re.sub(r"^.*?ckptstore: ", "", line) for line in output.splitlines() if "ckptstore: " in line]
    return [line for line in said if not line.startswith("run run: ")]


def free(home: Path) -> int:
    found = os.statvfs(home)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("saves", RECORDED_ALIKE)
def test_the_catalogs_disk(tmp_path: Path, undisturbed: bytes, saves: str) -> None:
    """It is full from step 10 to step 20: training goes on, and the catalog has all once there is room again."""
    with small_disk(tmp_path / "small", "size=1m") as disk:
        run = Run(tmp_path / "run", str(disk / "catalog.db"), saves=saves)
        fillers = []

        def at_wait(step: int) -> str:
            if step == 10:
                fillers.append(fill(disk))
            if step == 20:
                assert len(run.catalog.files("run")) <= 3
                fillers.pop().unlink()
            return "flush" if step == 20 else ""

        said = run.played(at_wait, fault="waits 5")
        assert "HAS ALL True" in said
        assert run.final() == undisturbed
        assert run.steps() == STEPS
        full, back = warnings(said)
        assert "database or disk is full" in full
        assert "can be used again, and has all records" in back


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Path]:
    """The journal of rank 0 on a disk of its own: it has room for three pages, some twenty records."""
    with small_disk(tmp_path / "run" / "ckpt" / "rank_0" / ".ckptstore", "size=12k") as disk:
        yield disk


def test_the_journals_disk(tmp_path: Path, journal: Path, undisturbed: bytes) -> None:
    """A line is torn there, and records go to the catalog alone; later ones are whole again."""
    run = Run(tmp_path / "run", str(tmp_path / "catalog.db"))
    outcome = run.launch(config={"save_checkpoint_steps": 1})
    assert outcome.code == 0, outcome.output
    assert "Traceback" not in outcome.output
    (said,) = warnings(outcome.output)
    assert "cannot be written (No space left on device): records go to the catalog alone" in said
    assert run.final() == undisturbed
    assert run.steps() == list(range(30, 0, -1))
    (torn,) = journal.glob("rank_0-*.jsonl")
    assert not torn.read_bytes().endswith(b"\n")
    give_room(journal, "1m")
    assert warnings(run.again(step=30, epochs=4).output) == []
    assert len(list(journal.glob("shared-*.jsonl"))) == 1  # what the first launch could not write
    connect(str(tmp_path / "other.db")).sync(run.out)
    steps = [file.global_step for file in connect(str(tmp_path / "other.db")).files("run")]
    assert set(steps) > {40, 35, 1}
    assert run.catalog.sync(run.out).records == 0


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The undisturbed run of a network whose checkpoints take several pages, so that they can be cut."""
    run = Run(tmp_path_factory.mktemp("calm"))
    assert run.launch(width=512).code == 0
    return run


def newest_whole(disk: Path, calm: Run) -> int:
    """The newest step of which a file is as long as that of the undisturbed run."""
    sizes = {path.name: path.stat().st_size for path in calm.out.rglob("net-*.ckpt")}
    names = [path.stem for path in disk.rglob("net-*.ckpt") if path.stat().st_size == sizes.get(path.name)]
    places = [map(int, name.rpartition("-")[2].split("_")) for name in names]
    return max((epoch - 1) * STEPS_PER_EPOCH + step for epoch, step in places)


@pytest.mark.parametrize(
    ("straight", "config", "code"),
    [
        (False, {}, 1),  # MindSpore writes to `.tmp` and renames it; that it cannot ends its training
        (True, {}, 1),
        # a thread of MindSpore's dies each time, and training goes on
        pytest.param(True, {"async_save": "thread"}, 0, marks=pytest.mark.long),
    ],
    ids=["to .tmp", "to its own name", "by a thread"],
)
def test_the_checkpoints_disk(tmp_path: Path, calm: Run, *, straight: bool, config: dict[str, str], code: int) -> None:
    """What was cut is never in a plan, and the job goes on from what is whole when there is room."""
    size = max(path.stat().st_size for path in calm.out.rglob("*.ckpt")) // 1024
    asked = {"width": 512, "straight": straight, "config": config}
    with small_disk(tmp_path / "run" / "ckpt", f"size={20 + size * 7 // 2}k") as disk:  # three checkpoints and a half
        run = Run(tmp_path / "run", str(tmp_path / "catalog.db"))
        failed = run.launch(**asked)
        assert "No space left on device" in failed.output
        assert failed.code == code, failed.output
        assert not [line for line in warnings(failed.output) if "Traceback" in line]
        cut = [path for path in disk.rglob("net-*.*") if 0 < path.stat().st_size < size * 1024 // 2]
        assert {path.suffix for path in cut} - {".meta"} == {".ckpt" if straight else ".tmp"}
        plan = run.catalog.resolve("run").plan
        newest = newest_whole(disk, calm)
        assert newest == 15 or (config and newest == 10)  # MindSpore's threads may write two at a time: both are cut
        assert plan.global_step == newest
        give_room(disk, "4m")
        run.again(step=newest, **{**asked, "config": {}})
        assert run.final() == calm.final()
        whole = {file.path: file.global_step for file in run.catalog.files("run") if file.state == "complete"}
        assert sorted(whole.values()) == sorted(STEPS)
        other = connect(str(tmp_path / "other.db"))
        other.scan(disk)  # the full disk was the journal's too: not all of it is there
        assert {file.path for file in other.files("run") if file.state == "complete"} <= whole.keys()
        assert other.resolve("run").plan.global_step == 30


def test_a_full_disk_with_our_trash__before_died_at_every_start__now_goes_on(tmp_path: Path) -> None:
    """MindSpore keeps all, and a policy says what stays, as is advised."""
    config = {"save_checkpoint_steps": 1, "keep_checkpoint_max": 1_000_000}
    asked = {"width": 2000, "config": config, "registrar": {"retention": {"keep_last": 3}}}
    with small_disk(tmp_path / "small", "size=7m") as disk:
        run = Run(disk, str(tmp_path / "catalog.db"))

        def at_wait(_: int) -> str:
            wait_for(lambda: free(disk) >= 408_620 + free_space._SPARE)  # a checkpoint of this width
            return "flush"

        said = run.played(at_wait, fault="waits 1", **asked)
        (told,) = (line for line in warnings(said) if "it would not fit" in line)
        assert told.endswith("then the oldest states, down to the newest 2; this is logged once")
        assert [save.tally.global_step for save in run.catalog.saves("run") if save.restorable][:3] == [30, 29, 28]


def test_a_half_written_file_of_a_launch_that_died_is_removed_by_the_next_one(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.launch(fault="kill 7")
    home = tmp_path / "ckpt" / "rank_0"
    left, other = home / "net-1_8.tmp", home / "other-1_8.tmp"
    left.write_bytes(b"half")
    other.write_bytes(b"half")
    outcome = run.launch()
    assert outcome.code == 0, outcome.output
    assert not left.exists()
    assert other.exists()
    assert f"{left} was left by a save that was never finished: deleted" in outcome.output


def test_what_is_printed_frees_room_for_the_next_start(tmp_path: Path, calm: Run) -> None:
    """A run without retention has filled its disk."""
    size = max(path.stat().st_size for path in calm.out.rglob("*.ckpt")) // 1024
    with small_disk(tmp_path / "run" / "ckpt", f"size={20 + size * 9 // 2}k") as disk:  # four checkpoints and a half
        run = Run(tmp_path / "run", str(tmp_path / "catalog.db"))
        failed = run.launch(width=512)
        assert failed.code == 1, failed.output
        (said,) = [line for line in warnings(failed.output) if line.startswith("a disk is full: ")]
        for command in said.split(" and "):  # one that shows, one that does
            assert follow(run.url, command).code == 0
        for leftover in disk.rglob("*.tmp"):
            leftover.unlink()
        again = run.launch(width=512)
        assert again.start["global_step"] == 20, again.output
        assert run.catalog.resolve("run").plan.global_step == 30


def test_a_save_that_found_no_room_has_room_made_for_the_next_one(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, nothing was deleted until a state was saved: so no later save of the launch had room either."""
    with small_disk(tmp_path / "small", "size=4m") as disk:
        left: list[list[str]] = []  # after each look whether the next save fits

        def look(*asked: Any) -> Any:
            found = free_space.free_space(*asked)
            left.append([path.name for path in disk.glob("*.safetensors")])
            return found

        class FillsTheDisk(Callback):
            def on_train_step_end(self, run_context: RunContext) -> None:
                step = run_context.original_args().cur_step_num
                if 1 < step < 11:
                    wait_for(lambda: left[-1:] == [[f"CKP-1_{step - 1}.safetensors"]])
                if step == 10:
                    fill(disk)
                if step == 11:
                    wait_for(lambda: not any(disk.glob(".ckptstore/trash/*/*")))

        monkeypatch.setattr(retention_thread, "free_space", look)
        job = Job(dataset=create_dataset(1))  # the trash of ten states: journals need room as well
        job.train(FillsTheDisk(), job.launch.saver(disk, every=1, keep=Policy(keep_last=1, floor=1)))
        assert any(each.startswith("step 10 is not saved") for each in complaints(caplog))
        assert catalog.resolve("run").plan.global_step in (11, 12)


def test_a_start_that_waits_for_a_disk_names_it(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited without a word until the server was back."""
    monkeypatch.setattr("ckptstore.disk.waiting.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("ckptstore.doctor.unanswered.ANSWER_SECONDS", 1.0)
    told: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(logging.getLogger("ckptstore"), "warning", lambda *what: told.put(what[0] % what[1:]))
    train(create_model(), tmp_path / "nfs")

    def start() -> None:
        ckptstore.mindspore.join("run").resume(create_model(), create_dataset())

    with ThreadPoolExecutor(1) as other, hanging_disk(tmp_path / "nfs"):
        done = other.submit(start)
        assert told.get(timeout=60).startswith(f"{tmp_path}/nfs: no answer from the disk")
        assert not done.done()
