"""Where steps are easily miscounted: several registrars, sinks, evaluations, names used twice, files that vanish."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore import nn
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint
from mindspore.train.callback._callback import CallbackManager, InternalCallbackParam

import ckptstore.mindspore
from ckptstore.core.model import FileState
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.mindspore import resume as resuming
from ckptstore.mindspore.recorder import Recorder
from ckptstore.ops.connect import Catalog
from tests import ckpt_bytes

from .test_resume import RaiseAt, catalog, create_dataset, create_model, train

__all__ = ["catalog"]


def steps_and_counters(catalog: Catalog) -> set[tuple[int, int | None]]:
    """The steps of the files that are there, with the optimizer's counter that each file really holds."""
    found = set()
    for file in catalog.files("run"):
        if file.state is FileState.COMPLETE:
            counter = ms.load_checkpoint(file.path)["global_step"].asnumpy()[0]
            found.add((file.global_step, int(counter)))
    return found


def test_a_new_registrar_for_each_training_counts_on(catalog: Catalog, tmp_path: Path) -> None:
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path / "ckpt"), CheckpointConfig(save_checkpoint_steps=3))
    for _ in range(2):
        model.train(1, dataset, callbacks=[ckpt_cb, launch.registrar(ckpt_cb)])
    assert {step for step, _ in steps_and_counters(catalog)} >= {9, 12}
    assert all(step == counter for step, counter in steps_and_counters(catalog))


def test_resuming_again_in_one_process_needs_a_new_launch(catalog: Catalog, tmp_path: Path) -> None:
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    config = CheckpointConfig(save_checkpoint_steps=3, exception_save=True)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path / "ckpt"), config)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.train(1, dataset, callbacks=[RaiseAt(4), ckpt_cb, launch.registrar(ckpt_cb)])
    with pytest.raises(UsageError, match="training has begun in this launch; join again"):
        launch.resume(model, create_dataset())
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 4


class Helper:
    """MindSpore's dataset helper as it is where data sinks to the device, which this machine has not."""

    def sink_size(self) -> int:
        return 6

    def __iter__(self) -> Any:
        yield ()

    def continue_send(self) -> None:
        """Nothing to send."""

    stop_send = release = continue_send


def test_a_sink_counts_its_steps_from_the_first_epoch_on(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_mode: Callable[[int], None]
) -> None:
    """MindSpore's own sink process; only what sinks on a device is replaced: one call that trains a whole epoch."""
    set_mode(ms.GRAPH_MODE)
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)

    def sunk(*_: object) -> object:
        return [model.train_network(*batch) for batch in dataset.create_tuple_iterator(num_epochs=1)][-1]

    monkeypatch.setattr(model, "_exec_preprocess", lambda **_: (Helper(), model.train_network))
    monkeypatch.setattr(model, "_check_network_mode", lambda *_: sunk)
    monkeypatch.setattr(model, "_store_training_step_info", lambda _: None)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path / "ckpt"), CheckpointConfig(save_checkpoint_steps=6))
    callbacks = [ckpt_cb, launch.registrar(ckpt_cb)]
    params = InternalCallbackParam()
    params.update(cur_step_num=0, train_network=model.train_network, batch_num=6, mode="train")
    params.update(train_dataset=dataset, list_callback=callbacks, epoch_num=3, dataset_sink_mode=True)
    with CallbackManager(callbacks) as manager:
        model._train_dataset_sink_process(3, dataset, manager, params, -1, 0, (None, 1, False))
    assert steps_and_counters(catalog) == {(6, 6), (12, 12), (18, 18)}


@pytest.mark.parametrize("how", [False, "thread"])
def test_one_name_for_every_save_never_gets_the_step_of_another(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, how: bool | str
) -> None:
    """The recorder comes late: by then the file of step 2 has become that of step 4."""
    release = threading.Event()
    record = Recorder._record
    monkeypatch.setattr(Recorder, "_record", lambda *args, **more: (release.wait(60), record(*args, **more)))
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    config = CheckpointConfig(save_checkpoint_steps=2, async_save=how)
    ckpt_cb = ModelCheckpoint(lambda _: "latest", str(tmp_path / "ckpt"), config)
    registrar = launch.registrar(ckpt_cb)
    end = registrar.on_train_end
    monkeypatch.setattr(registrar, "on_train_end", lambda context: (end(context), release.set()))
    model.train(1, dataset, callbacks=[ckpt_cb, registrar])
    assert steps_and_counters(catalog) == {(6, 6)}


def test_a_file_that_cannot_be_read_now_is_not_given_up(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(create_model(), tmp_path / "ckpt")

    def broken(path: str) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(resuming, "digest", broken)
        for _ in range(2):
            with pytest.raises(CkptstoreError, match="cannot be read .Stale file handle.; check that it is there"):
                ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 6


def test_an_evaluation_inside_fit_ends_nothing(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[float] = []
    flush = Recorder.flush
    monkeypatch.setattr(Recorder, "flush", lambda self, seconds=10.0: (flushes.append(seconds), flush(self))[1])
    network = nn.Dense(3, 4)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, optimizer, metrics={"accuracy"})
    dataset = create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path / "ckpt"), CheckpointConfig(save_checkpoint_steps=6))
    model.fit(3, dataset, create_dataset(), callbacks=[ckpt_cb, launch.registrar(ckpt_cb)])
    assert len(flushes) == 1
    assert steps_and_counters(catalog) == {(6, 6), (12, 12), (18, 18)}


def test_a_callable_directory_is_known_once_it_was_used(catalog: Catalog, tmp_path: Path) -> None:
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    config = CheckpointConfig(save_checkpoint_steps=2, exception_save=True)
    ckpt_cb = ModelCheckpoint("net", lambda _: str(tmp_path / "ckpt"), config)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.train(1, dataset, callbacks=[RaiseAt(5), ckpt_cb, launch.registrar(ckpt_cb)])
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 5


def test_a_file_that_vanished_before_it_was_recorded_holds_nobody_up(catalog: Catalog, tmp_path: Path) -> None:
    launch = ckptstore.mindspore.join("run")
    recorder = Recorder(launch)
    from ckptstore.ops.register import describe

    there = tmp_path / "there.ckpt"
    ckpt_bytes.write(there, 3)
    for path, step, asynchronous in (("gone", 1, False), ("coming", 2, True), ("there", 3, False)):
        file = describe(launch.facts, rank=0, path=tmp_path / f"{path}.ckpt", kind="periodic", global_step=step)
        recorder.submit(file, asynchronous=asynchronous)
    looked_at_all = threading.Event()
    recorder.call(looked_at_all.set)
    assert looked_at_all.wait(60)
    assert not recorder.flush(0)
    assert {file.global_step: file.state for file in catalog.files("run")} == {
        2: FileState.IN_PROGRESS,
        3: FileState.COMPLETE,
    }
    ckpt_bytes.write(tmp_path / "coming.ckpt", 2)
    assert recorder.flush(60)
    assert {file.global_step: file.state for file in catalog.files("run")} == {
        2: FileState.COMPLETE,
        3: FileState.COMPLETE,
    }


def test_an_optimizer_in_shares_makes_no_replicas(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptstore.mindspore import communication

    modes: dict[str, object] = {"parallel_mode": "data_parallel", "enable_parallel_optimizer": False}
    monkeypatch.setattr(ms, "get_auto_parallel_context", modes.get)
    monkeypatch.setattr(communication, "rank_and_world_size", lambda: (0, 2))
    assert communication.layout() == "data_parallel"
    modes["enable_parallel_optimizer"] = True
    assert communication.layout() == "stand_alone"


def test_what_fails_on_rank_0_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptstore.mindspore import communication

    told: list[str] = []
    monkeypatch.setattr(communication, "_from_rank_0", lambda message: (told.append(message), message)[1])

    def fail() -> str:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        communication.decided_by_rank_0(fail)
    monkeypatch.setattr(communication, "rank_and_world_size", lambda: (1, 2))
    monkeypatch.setattr(communication, "_from_rank_0", lambda _: told[0])
    with pytest.raises(CkptstoreError, match="rank 0 could not go on: on purpose"):
        communication.decided_by_rank_0(fail)
