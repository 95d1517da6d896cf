"""The dataset's step and the optimizer's, told apart where they differ; and the counts that a script brings along."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore.train import CheckpointConfig, LambdaCallback, Model, ModelCheckpoint

import ckptstore.mindspore
from ckptstore.api import Catalog
from tests.mindspore.cells import accumulating, overflowing, varied_dataset
from tests.mindspore.trainings import Job, RaiseAt, assert_same, complaints, saving

STEPS = 6


def launch(model: Model, directory: Path, *, epochs: int = 2, fail_after: int = 100, **config: Any) -> Any:
    dataset = varied_dataset()
    joined = ckptstore.mindspore.join("run")
    start = joined.resume(model, dataset)
    settings = {"save_checkpoint_steps": 2, "keep_checkpoint_max": 50, "exception_save": True, **config}
    ckpt_cb = saving(directory, **settings)
    callbacks = [RaiseAt(fail_after), ckpt_cb, joined.registrar(ckpt_cb)]
    try:
        model.train(epochs, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch)
    except RuntimeError as error:
        assert "on purpose" in str(error)
    joined.adopt()
    return start


@pytest.mark.parametrize(("create", "lag"), [(overflowing, "some"), (accumulating, "most")])
def test_updates_that_did_not_happen_do_not_move_the_dataset(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: Any, lag: str
) -> None:
    calm = create()
    launch(calm, tmp_path / "calm")
    files = [file for file in catalog.files("run") if file.path.startswith(str(tmp_path / "calm"))]
    assert [file.global_step for file in files] == [12, 10, 8, 6, 4, 2]
    behind = [file.global_step - (file.optimizer_step or 0) for file in files]
    assert min(behind) > 0
    assert (len(set(behind)) == 1) == (lag == "some")

    monkeypatch.setenv("CKPTSTORE_URL", str(tmp_path / "second.db"))
    launch(create(), tmp_path / "rough", fail_after=7)  # in mid-epoch, and in mid-accumulation
    again = create()
    start = launch(again, tmp_path / "rough")
    assert start.global_step == 7
    assert_same(again, calm)


def test_a_base_in_append_info_is_not_counted_twice(catalog: Catalog, tmp_path: Path) -> None:
    """Seed 003 hands the epochs and steps done to `append_info`; with a count that goes on they are in it already."""
    launch(accumulating(), tmp_path, fail_after=7, append_info=[{"epoch_num": 0, "step_num": 0}])
    joined_at = launch(accumulating(), tmp_path, append_info=[{"epoch_num": 1, "step_num": 7}])
    assert joined_at.append_info["step_num"] in (7, 1)  # MindSpore's breakpoint has the step in the epoch
    for file in catalog.files("run"):
        if file.kind.value == "periodic" and file.global_step > 7:
            held = ms.load_checkpoint(file.path)
            assert int(held["step_num"].asnumpy()) == file.global_step
            assert int(held["epoch_num"].asnumpy()) == file.epoch


def test_a_base_in_append_info_of_a_run_that_starts_at_step_0_is_not_counted(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where weights of another training were loaded: a restart would leave out the batches of that."""
    job = Job(accumulating(), varied_dataset())
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=3, append_info=[{"epoch_num": 2, "step_num": 2 * STEPS}])
    job.train(ckpt_cb, job.registrar(ckpt_cb))
    assert [file.global_step for file in catalog.files("run")] == [6, 3]
    newest = ms.load_checkpoint(catalog.files("run")[0].path)
    assert (int(newest["step_num"].asnumpy()), int(newest["epoch_num"].asnumpy())) == (6, 1)
    (said,) = complaints(caplog)
    assert said == "append_info says that 12 steps were done before, but the run starts at step 0: they are not counted"


def test_a_script_that_restores_by_itself_says_its_steps_in_append_info(catalog: Catalog, tmp_path: Path) -> None:
    """As seed 003 trains on: weights loaded by hand, no `resume`, no `initial_epoch`."""
    model, dataset = accumulating(), varied_dataset()
    joined = ckptstore.mindspore.join("run")
    info = [{"epoch_num": 2, "step_num": 2 * STEPS}]
    config = CheckpointConfig(save_checkpoint_steps=3, append_info=info)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path), config)
    model.train(1, dataset, callbacks=[ckpt_cb, joined.registrar(ckpt_cb)])
    assert [file.global_step for file in catalog.files("run")] == [18, 15]
    newest = ms.load_checkpoint(catalog.files("run")[0].path)
    assert int(newest["step_num"].asnumpy()) == 18
    assert int(newest["epoch_num"].asnumpy()) == 3


def test_the_loss_and_what_the_user_adds_are_kept_with_a_save(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def metrics(params: Any) -> dict[str, float]:
        if params.cur_step_num == 4:
            raise ZeroDivisionError("on purpose")
        return {"step_seen": params.cur_step_num, "loss_seen": params.net_outputs.asnumpy(), "bad": float("inf")}

    job = Job(accumulating(), varied_dataset())
    ckpt_cb = saving(tmp_path)
    registrar = job.registrar(ckpt_cb, metrics=metrics)
    job.train(ckpt_cb, registrar)
    six, four, two = catalog.files("run")
    for step, file in ((2, two), (6, six)):
        assert file.metrics == {"step_seen": step, "loss_seen": file.metrics["loss"], "loss": file.metrics["loss"]}
    assert two.metrics["loss"] != six.metrics["loss"]
    assert set(four.metrics) == {"loss"}
    assert caplog.text.count("metrics that are not finite are not stored: bad") == 1
    assert caplog.text.count("metrics= failed, saves are registered without: ZeroDivisionError: on purpose") == 1


def rows_by_epoch(*rows: int) -> ds.Dataset:
    """Two rows to a batch, and so many rows in each epoch; it reports the batches of the first one."""
    left = list(rows)

    class Rows:
        def __iter__(self) -> Iterator[Any]:
            for _ in range(left.pop(0)):
                yield np.ones(3, np.float32), np.int32(0)

        def __len__(self) -> int:
            return rows[0]

    return ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=False).batch(2)


def test_epochs_of_several_lengths_are_told_once(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(dataset=rows_by_epoch(12, 10, 12, 10))
    job.train(job.launch.saver(tmp_path, every=100), epochs=4)
    (said,) = complaints(caplog)
    assert said.startswith("an epoch ended after step 11, but the dataset reports 6 batches per epoch: after a restart")


def test_two_trainings_with_epochs_of_two_lengths_are_not_told(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(dataset=rows_by_epoch(10))
    saver = job.launch.saver(tmp_path, every=100)
    job.train(saver)
    job.dataset = rows_by_epoch(12, 12)
    job.train(saver, epochs=2)
    assert [each for each in complaints(caplog) if "an epoch ended" in each] == []


@pytest.mark.parametrize("sink_size", [1, 4, 12])
def test_a_sink_that_is_asked_for_where_nothing_sinks_is_no_epoch(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, sink_size: int
) -> None:
    """MindSpore tells its size all the same, and an epoch ends with the dataset."""

    def train(epochs: int, *faults: RaiseAt) -> tuple[int, int]:
        job = Job()
        rate = job.model.train_network.optimizer.learning_rate
        sets = LambdaCallback(on_train_epoch_end=lambda _: ms.ops.assign(rate, rate * 1))
        callbacks = [*faults, sets, job.launch.saver(tmp_path, every=100)]
        first = job.start.initial_epoch
        with pytest.raises(RuntimeError, match="on purpose") if faults else nullcontext():
            job.model.train(
                epochs, job.dataset, callbacks, dataset_sink_mode=True, sink_size=sink_size, initial_epoch=first
            )
        return job.start.global_step, job.launch.global_step

    assert train(2, RaiseAt(8)) == (0, 8)
    assert train(2) == (8, 12)
    assert train(3) == (12, 18)
    assert complaints(caplog) == []
