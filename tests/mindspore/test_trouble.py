"""Nothing that the registrar meets ends training, each trouble is said once; and ranks that make up one state."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mindspore.train import Callback, CheckpointConfig, ModelCheckpoint
from mindspore.train.callback import OnRequestExit

import ckptstore.mindspore
from ckptstore.core.model import Kind
from ckptstore.mindspore.launch import TrainingLaunch
from ckptstore.ops.connect import Catalog, connect
from ckptstore.ops.start import overlooked
from ckptstore.storage import claims
from tests import ckpt_bytes

from .test_resume import RaiseAt, catalog, create_dataset, create_model

__all__ = ["catalog"]


class DoAt(Callback):
    """Does something after a step."""

    def __init__(self, step: int, action: Any) -> None:
        super().__init__()
        self.left, self.action = step, action

    def on_train_step_end(self, run_context: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.action()


def saving(directory: Path, **config: Any) -> ModelCheckpoint:
    return ModelCheckpoint("net", str(directory), CheckpointConfig(**{"save_checkpoint_steps": 1, **config}))


def train(directory: Path, *more: Callback, launch: Any = None, **settings: Any) -> Any:
    model, dataset = create_model(), create_dataset()
    launch = launch or ckptstore.mindspore.join("run")
    start = launch.resume(model, dataset)
    ckpt_cb = saving(directory)
    callbacks = [ckpt_cb, *more, launch.registrar(**settings)]
    model.train(2, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch, dataset_sink_mode=False)
    return launch


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ckptstore" and record.levelno > 20]


def test_a_file_that_was_renamed_or_deleted_meanwhile(catalog: Catalog, tmp_path: Path) -> None:
    def rename() -> None:
        (tmp_path / "ckpt" / "net-1_2.ckpt").rename(tmp_path / "ckpt" / "mine.ckpt")
        (tmp_path / "ckpt" / "net-1_3.ckpt").unlink()

    train(tmp_path / "ckpt", DoAt(3, rename))
    assert catalog.resolve("run").plan.global_step == 12  # type: ignore[union-attr]


def test_saves_that_nobody_knew_of_do_not_stop_a_training_that_has_begun(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in a directory that the callback names in the second epoch only, and in that of the third."""
    readers: list[str] = []

    def read(*asked: Any, **named: Any) -> Any:
        readers.append(threading.current_thread().name)
        return overlooked(*asked, **named)

    monkeypatch.setattr("ckptstore.mindspore.launch.overlooked", read)
    lost = connect(str(tmp_path / "lost.db")).join("run", launch_id="OLD")
    for epoch in (2, 3):
        path = ckpt_bytes.write(tmp_path / f"epoch_{epoch}" / "old-1_1.ckpt", 50 * epoch)
        lost.register(path, global_step=50 * epoch, optimizer_step=50 * epoch)
    lost.ledger.close()
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    ckpt_cb = ModelCheckpoint(
        "net",
        lambda params: str(tmp_path / f"epoch_{params.cur_epoch_num}"),
        CheckpointConfig(save_checkpoint_steps=dataset.get_dataset_size()),
    )
    with caplog.at_level("INFO", "ckptstore"):
        model.train(3, dataset, callbacks=[ckpt_cb, launch.registrar()], dataset_sink_mode=False)
    assert set(readers) == {"ckptstore"}
    (said,) = complaints(caplog)
    assert (
        "holds step 100 of run run, and no catalog knew of it. Training goes on, and its saves are registered" in said
    )
    assert "start again with resume(lineage='OLD')" in said
    size = dataset.get_dataset_size()
    assert {file.global_step for file in catalog.files("run") if file.launch == launch.id} == {size, 2 * size, 3 * size}
    following = catalog.join("run", launch_id="next")
    plan = following.resolve(lineage="OLD")
    assert plan is not None
    assert plan.global_step == 150


@pytest.mark.usefixtures("catalog")
def test_a_first_start_beside_older_files_is_told_of_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The catalog is there and does not know them: an earlier experiment's, or a run whose catalog was lost."""
    ckpt_bytes.write(tmp_path / "ckpt" / "older-2_5.ckpt", 15)
    train(tmp_path / "ckpt")
    (said,) = complaints(caplog)
    assert "older-2_5.ckpt is in no journal, and the catalog knows no save of run run" in said
    assert f"ckptstore scan {tmp_path / 'ckpt'} --run run, and start again" in said


def test_the_catalog_is_deleted_under_a_training(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptstore.mindspore import recorder

    monkeypatch.setattr(recorder, "FLUSH_SECONDS", 0.5)
    where = Path(catalog.database.file)  # type: ignore[arg-type]

    def delete() -> None:
        while not where.is_dir():  # the recorder may be making it anew at this moment
            for path in where.parent.glob(f"{where.name}*"):
                path.unlink(missing_ok=True)
            with suppress(FileExistsError):
                where.mkdir()

    train(tmp_path / "ckpt", DoAt(2, delete))
    assert (tmp_path / "ckpt" / "net-2_6.ckpt").exists()
    said = complaints(caplog)
    assert len([line for line in said if "Records are in the journals, and reach the catalog later" in line]) == 1
    assert len([line for line in said if "the next start takes them up" in line]) == 1
    assert len(said) == len(set(said))


def test_a_catalog_without_room(catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The disk of the catalog is full: SQLite says so, training goes on, and all is there once there is room."""
    where = str(catalog.database.file)
    lowered: list[int] = []
    connect = sqlite3.connect
    launch = ckptstore.mindspore.join("run")

    def fill() -> None:
        def crowded(*given: Any, **more: Any) -> Any:
            connection = connect(*given, **more)
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")
            lowered.append(pages)
            return connection

        sqlite3.connect = crowded
        sqlite3.dbapi2.connect = crowded  # type: ignore[attr-defined]
        launch.database._engine.dispose()

    def once_it_was_noticed() -> None:
        deadline = time.monotonic() + 60
        while not any("full" in line for line in complaints(caplog)) and time.monotonic() < deadline:
            time.sleep(0.01)
        make_room()

    def make_room() -> None:
        sqlite3.connect = connect
        sqlite3.dbapi2.connect = connect  # type: ignore[attr-defined]
        launch.database._engine.dispose()

    assert where
    try:
        train(
            tmp_path / "ckpt",
            DoAt(2, fill),
            DoAt(11, once_it_was_noticed),
            launch=launch,
            metrics=lambda _: {"m" * 4000: 1.0},
        )
    finally:
        make_room()
    assert lowered
    assert any("full" in line for line in complaints(caplog)), complaints(caplog)
    assert len(complaints(caplog)) == len(set(complaints(caplog)))
    assert {file.global_step for file in catalog.files("run")} >= {11, 12}


def test_a_directory_that_is_gone(catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """MindSpore itself cannot save into it any more: its own error is what ends training, and ours stay out of it."""
    with pytest.raises((FileNotFoundError, RuntimeError, ValueError, OSError)) as failure:
        train(tmp_path / "ckpt", DoAt(2, lambda: shutil.rmtree(tmp_path / "ckpt")))
    assert "ckptstore" not in str(failure.value)
    assert not [line for line in complaints(caplog) if "failed in" in line]


def two_ranks(catalog: Catalog) -> list[TrainingLaunch]:
    launches = [catalog.join("run", rank=rank, world_size=2, launch_id="L1") for rank in range(2)]
    return [TrainingLaunch(each.database, each.facts, each.rank) for each in launches]


def test_a_periodic_file_of_one_rank_and_a_dying_gasp_of_the_other_are_one_state(
    catalog: Catalog, tmp_path: Path
) -> None:
    """No rank is the other's replica: both files are needed, and they are of one launch and step."""
    first, second = two_ranks(catalog)
    model, dataset = create_model(), create_dataset()
    first.resume(model, dataset)
    ckpt_cb = saving(tmp_path / "0", save_checkpoint_steps=5)
    with pytest.raises(RuntimeError):
        model.train(1, dataset, callbacks=[ckpt_cb, first.registrar(ckpt_cb), RaiseAt(5)], dataset_sink_mode=False)
    model, dataset = create_model(), create_dataset()
    second.resume(model, dataset)
    ckpt_cb = saving(tmp_path / "1", save_checkpoint_steps=100)
    registrar = second.registrar(ckpt_cb, save_on_exception=True)
    with pytest.raises(RuntimeError):
        model.train(1, dataset, callbacks=[RaiseAt(5), ckpt_cb, registrar], dataset_sink_mode=False)
    plan = catalog.resolve("run").plan
    assert plan is not None
    assert [(plan.global_step, item.rank, item.source.kind) for item in plan.ranks] == [
        (5, 0, Kind.PERIODIC),
        (5, 1, Kind.DYING_GASP),
    ]


def test_two_ranks_that_would_write_the_same_file_are_named(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories are named after the device: nodes on shared storage collide (domain §5)."""
    first, second = two_ranks(catalog)
    model, dataset = create_model(), create_dataset()
    exit_cb = OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False)
    said: list[str] = []

    def train_the_second() -> None:
        other = create_model()
        data = create_dataset()
        second.resume(other, data)
        begun = DoAt(1, lambda: said.extend(complaints(caplog)))
        same = OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False)
        other.train(1, data, callbacks=[begun, same, second.registrar(same)], dataset_sink_mode=False)

    first.resume(model, dataset)
    callbacks = [exit_cb, DoAt(2, train_the_second), first.registrar(exit_cb)]
    model.train(1, dataset, callbacks=callbacks, dataset_sink_mode=False)
    named = [line for line in said if "would both write" in line]
    assert len(named) == 1
    assert named[0].startswith("ranks 1 and 0 (on ")
    assert f"{tmp_path / 'rank_0'}/net*: give each rank a directory of its own" in named[0]
    assert not list((tmp_path / "rank_0" / claims.FOLDER).glob("writer-*"))  # none is left when training has ended


CLAIM = """
import sys
from ckptstore.storage.claims import claim
directory, rank = sys.argv[1], int(sys.argv[2])
print(claim(directory, "periodic-net", launch="L1", rank=rank) is None)
"""


def test_of_many_processes_one_claims_a_name(tmp_path: Path) -> None:
    jobs = [
        subprocess.Popen([sys.executable, "-c", CLAIM, str(tmp_path), str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(8)
    ]
    assert sorted(job.communicate()[0].strip() for job in jobs) == ["False"] * 7 + ["True"]


def test_claims_of_earlier_launches_are_over(tmp_path: Path) -> None:
    assert claims.claim(str(tmp_path), "net", launch="L1", rank=0) is None
    assert claims.claim(str(tmp_path), "net", launch="L2", rank=1) is None
    assert len(list((tmp_path / claims.FOLDER).iterdir())) == 1
    other = claims.claim(str(tmp_path), "net", launch="L2", rank=3)
    assert other is not None
    assert other.rank == 1


def test_a_directory_that_cannot_be_written_is_said_once(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(claims, "claim", refuse)
    launch = train(tmp_path / "ckpt")
    assert launch.global_step == 12
    assert caplog.text.count("cannot see who else saves in") == 1


@pytest.fixture(autouse=True)
def _hear_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ckptstore")
