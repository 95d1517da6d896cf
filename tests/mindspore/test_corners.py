"""What a second reader found: each of these once restored, recorded or destroyed what it must not."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint
from mindspore.train.callback import OnRequestExit

import ckptstore.mindspore
from ckptstore.core.model import Content, FileState, Kind
from ckptstore.errors import DamageError, NothingRestorableError
from ckptstore.mindspore import graceful_exit, registrar
from ckptstore.mindspore.recorder import Recorder
from ckptstore.mindspore.training import Saved
from ckptstore.ops import exits as exit_ops
from ckptstore.ops.connect import Catalog
from ckptstore.ops.register import describe, measured
from ckptstore.storage import claims, files
from tests import ckpt_bytes

from .test_dying_gasp import fail, gasps
from .test_graceful_exit import ExitAt, FirstCounter, SetFlagAt, exits
from .test_resume import RaiseAt, catalog, create_dataset, create_model
from .test_steps import accumulating, overflowing
from .test_steps import create_dataset as random_dataset

__all__ = ["catalog", "exits"]


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore's own class, whatever another test of this process did to it."""
    for name in ("on_train_begin", "on_eval_begin"):
        hook = getattr(OnRequestExit, name)
        monkeypatch.setattr(OnRequestExit, name, getattr(hook, "__wrapped__", hook))


def saving(directory: Path, **config: Any) -> ModelCheckpoint:
    settings = {"save_checkpoint_steps": 2, "keep_checkpoint_max": 50, **config}
    return ModelCheckpoint("net", str(directory / "ckpt"), CheckpointConfig(**settings))


def leaving(directory: Path) -> OnRequestExit:
    flag = str(directory / "flag.json")
    return OnRequestExit(file_name="net", directory=str(directory), save_mindir=False, config_file=flag)


def launch(directory: Path, *more: Any, epochs: int = 1, **settings: Any) -> Any:
    """One launch that saves every 2 steps, its registrar last and finding what saves."""
    model, dataset = create_model(), create_dataset()
    joined = ckptstore.mindspore.join("run")
    start = joined.resume(model, dataset)
    callbacks = [saving(directory), *more, joined.registrar(**settings)]
    model.train(epochs, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch, dataset_sink_mode=False)
    return start


@pytest.mark.usefixtures("exits", "armed")
@pytest.mark.parametrize("given", ["the ModelCheckpoint only", "nothing"])
def test_no_older_exit_is_loaded_however_the_registrar_is_made(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    create_model().train(1, create_dataset(), callbacks=[ExitAt(2), leaving(tmp_path)], dataset_sink_mode=False)
    assert (tmp_path / "rank_0" / "net_train.ckpt").exists()
    launch(tmp_path)
    model, dataset, seen = create_model(), create_dataset(), FirstCounter()
    joined = ckptstore.mindspore.join("run")
    start = joined.resume(model, dataset)
    ckpt_cb = saving(tmp_path)
    made = joined.registrar(ckpt_cb) if given == "the ModelCheckpoint only" else joined.registrar()
    callbacks = [leaving(tmp_path), seen, ckpt_cb, made]
    model.train(2, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch, dataset_sink_mode=False)
    assert (start.global_step, seen.updates) == (6, 6)
    if given == "the ModelCheckpoint only":
        assert "OnRequestExit is in the callbacks but was not given to the registrar" in caplog.text


def test_an_exit_from_before_ckptstore_is_kept(catalog: Catalog, tmp_path: Path, exits: None, armed: None) -> None:
    """Plain MindSpore would have loaded it; here it is neither loaded nor destroyed by the next exit."""
    create_model().train(1, create_dataset(), callbacks=[SetFlagAt(tmp_path / "flag.json", 3), leaving(tmp_path)])
    before = (tmp_path / "rank_0" / "net_train.ckpt").read_bytes()
    (tmp_path / "flag.json").unlink()
    launch(tmp_path, leaving(tmp_path), ExitAt(1))
    names = {path.name for path in (tmp_path / "rank_0").glob("*.ckpt")}
    assert names == {"net_train-step_4.ckpt", "net_train-step_2.ckpt"}
    assert (tmp_path / "rank_0" / "net_train-step_4.ckpt").read_bytes() == before


@pytest.mark.parametrize("how", ["two of them", "one of them twice"])
def test_no_step_is_counted_twice(catalog: Catalog, tmp_path: Path, exits: None, how: str) -> None:
    model, dataset = create_model(), create_dataset()
    joined = ckptstore.mindspore.join("run")
    joined.resume(model, dataset)
    ckpt_cb, exit_cb = saving(tmp_path), leaving(tmp_path)
    if how == "two of them":
        callbacks = [ckpt_cb, joined.registrar(ckpt_cb), exit_cb, joined.registrar(exit_cb)]
    else:
        one = joined.registrar(ckpt_cb)
        callbacks = [one, ckpt_cb, one]
    model.train(1, dataset, callbacks=callbacks, dataset_sink_mode=False)
    assert [(file.global_step, file.optimizer_step) for file in catalog.files("run")] == [(6, 6), (4, 4), (2, 2)]


@pytest.mark.parametrize("content", ["empty", "half", "zeros", "cut between two parameters"])
def test_a_torn_newest_file_does_not_stop_the_start(catalog: Catalog, tmp_path: Path, content: str) -> None:
    """It was announced before it was written; then the node lost its power. Step 6 is whole."""
    launch(tmp_path)
    whole = (tmp_path / "ckpt" / "net-1_6.ckpt").read_bytes()
    torn = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "zeros": bytes(len(whole)),
        "cut between two parameters": whole[: whole.index(b"moments.weight") - 4],
    }[content]
    joined = ckptstore.mindspore.join("run")
    joined.resume(create_model(), create_dataset())
    joined.add_source(
        str(tmp_path / "ckpt"), kind=Kind.PERIODIC, prefix="net_1", breakpoint_prefix="net", names_before=()
    )
    path = tmp_path / "ckpt" / "net-2_1_breakpoint.ckpt"
    begun = describe(joined.facts, rank=0, path=path, kind=Kind.DYING_GASP, global_step=7, optimizer_step=7)
    joined.record([begun])
    path.write_bytes(torn)
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 6


def test_a_file_that_mindspore_cannot_read_is_passed_over_by_the_next_start(catalog: Catalog, tmp_path: Path) -> None:
    """Its bytes are those recorded: it was cut before anybody looked at it, and by a version that did not look."""
    launch(tmp_path)
    joined = ckptstore.mindspore.join("run")
    joined.resume(create_model(), create_dataset())
    cut = tmp_path / "ckpt" / "mine.ckpt"
    cut.write_bytes((tmp_path / "ckpt" / "net-1_6.ckpt").read_bytes()[:-7])
    whole = measured(describe(joined.facts, rank=0, path=cut, kind=Kind.PERIODIC, global_step=9))
    assert whole is not None
    joined.record([whole])
    with pytest.raises(DamageError, match="mine.ckpt is cut or damaged: MindSpore cannot read it; start again"):
        ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 6


def test_a_sink_of_the_training_before_does_not_count(catalog: Catalog, tmp_path: Path) -> None:
    model, dataset = create_model(), create_dataset()
    joined = ckptstore.mindspore.join("run")
    joined.resume(model, dataset)
    made = joined.registrar(saving(tmp_path))
    made._sink_steps = 6  # as a training leaves it whose data sank to a device, which the CPU has not
    model.train(1, dataset, callbacks=[RaiseAt(100), made], dataset_sink_mode=False)
    assert joined.global_step == 6


@pytest.mark.parametrize("create", [overflowing, accumulating])
def test_a_step_that_may_or_may_not_be_done_is_not_guessed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The interrupt comes between the update and MindSpore's note of it; updates were left out before."""
    model, dataset = create(), random_dataset()
    joined = ckptstore.mindspore.join("run")
    joined.resume(model, dataset)
    calls: list[object] = []
    cell = type(model.train_network)
    call = cell.__call__

    def interrupted(self: Any, *inputs: Any) -> Any:
        outputs = call(self, *inputs)
        calls.append(outputs)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return outputs

    monkeypatch.setattr(cell, "__call__", interrupted)
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=3, exception_save=True)
    with pytest.raises(KeyboardInterrupt):
        model.train(
            1, dataset, callbacks=[ckpt_cb, joined.registrar(ckpt_cb, save_on_exception=True)], dataset_sink_mode=False
        )
    joined.adopt()
    steps = {file.global_step for file in catalog.files("run")}
    if create is overflowing:  # since the save of step 3 no update was left out: two updates are two steps
        assert steps == {3, 5}
    else:
        assert steps == {3}
        assert "how far training had come is not certain" in caplog.text


def test_a_file_that_is_not_the_recorded_one_keeps_its_name(catalog: Catalog, tmp_path: Path) -> None:
    """Another state of the same size was written over it: it must not get the step of the one before."""
    joined = catalog.join("run", launch_id="L1")
    home = tmp_path / "rank_0"
    home.mkdir()
    fixed = ckpt_bytes.write(home / "net_train.ckpt", 6)
    joined.add_source(str(home), kind=Kind.GRACEFUL_EXIT, prefix="net", breakpoint_prefix="net", names_before=())
    joined.register(fixed, kind="graceful_exit", global_step=6, optimizer_step=6)
    fixed.unlink()
    ckpt_bytes.write(fixed, 12)
    os.utime(fixed, ns=(1, 1))
    exit_ops.set_aside(catalog.database, 1)
    assert [path.name for path in home.glob("*.ckpt")] == ["net_train.ckpt"]


def test_an_exit_whose_record_was_lost_is_kept_all_the_same(
    catalog: Catalog, tmp_path: Path, exits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after MindSpore's save, before anything of it was in the catalog."""
    with monkeypatch.context() as patch:
        patch.setattr(registrar.Registrar, "__exit__", lambda *_: None)
        patch.setattr(registrar.Registrar, "_hand_over", lambda *_: None)
        launch(tmp_path, leaving(tmp_path), SetFlagAt(tmp_path / "flag.json", 3))
    assert launch(tmp_path, leaving(tmp_path), ExitAt(1), epochs=2).global_step == 4
    names = {path.name for path in (tmp_path / "rank_0").glob("*.ckpt")}
    assert names == {"net_train-step_4.ckpt", "net_train-step_6.ckpt"}
    assert catalog.resolve("run", step=4).plan is not None


def test_an_evaluation_that_fails_says_nothing_of_the_state(catalog: Catalog, tmp_path: Path) -> None:
    class Broken(nn.Cell):
        def construct(self, x: Any, y: Any) -> Any:
            return x * float("nan"), x, y

    network = nn.Dense(3, 4)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)

    class Fails(nn.Accuracy):
        def update(self, *_: Any) -> None:
            raise RuntimeError("on purpose")

    model = Model(network, loss, optimizer, metrics={"acc": Fails()}, eval_network=Broken(), eval_indexes=[0, 1, 2])
    dataset = create_dataset()
    joined = ckptstore.mindspore.join("run")
    joined.resume(model, dataset)
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=100)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(
            2,
            dataset,
            create_dataset(),
            callbacks=[ckpt_cb, joined.registrar(ckpt_cb, save_on_exception=True)],
            dataset_sink_mode=False,
        )
    (file,) = catalog.files("run")
    assert (file.global_step, file.quarantine) == (6, "")
    assert file.metrics["loss"] > 0


def test_an_update_that_was_left_out_leaves_a_good_state(catalog: Catalog, tmp_path: Path) -> None:
    """The loss overflowed, the update was skipped: the weights are those of the step before."""
    model = overflowing()
    x = np.ones((12, 3), np.float32)
    x[2:4] = np.inf
    dataset = ds.NumpySlicesDataset({"x": x, "y": np.zeros(12, np.int32)}, shuffle=False).batch(2)
    joined = ckptstore.mindspore.join("run")
    joined.resume(model, dataset)
    ckpt_cb = saving(tmp_path)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.train(1, dataset, callbacks=[ckpt_cb, joined.registrar(ckpt_cb), RaiseAt(3)], dataset_sink_mode=False)
    (file,) = catalog.files("run")
    assert (file.global_step, file.quarantine) == (2, "")
    assert set(file.metrics) == set()  # its loss was no number that could be kept


def test_the_way_out_of_a_run_whose_every_state_is_quarantined_is_said(catalog: Catalog, tmp_path: Path) -> None:
    joined = catalog.join("run", launch_id="L1")
    path = ckpt_bytes.write(tmp_path / "a.ckpt", 3)
    joined.record(
        [describe(joined.facts, rank=0, path=path, kind="periodic", global_step=3, quarantine="the loss was nan")]
    )
    whole = joined.register(path, global_step=3)
    from dataclasses import replace

    joined.record([replace(whole, quarantine="the loss was nan")])
    with pytest.raises(NothingRestorableError, match="resume with take_quarantined=True, or start a run of another"):
        ckptstore.mindspore.join("run").resume(create_model(), create_dataset())


def test_one_look_that_fails_does_not_cost_the_rest(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system that hiccups when training ends with an exception."""
    seen: list[object] = []

    def stale(path: str) -> Any:
        if not seen and path.endswith("net-1_4.ckpt"):
            seen.append(path)
            raise OSError(errno.ESTALE, "Stale file handle")
        return files.facts(path)

    monkeypatch.setattr(registrar, "facts", stale)
    model, dataset = create_model(), create_dataset()
    joined = ckptstore.mindspore.join("run")
    joined.resume(model, dataset)
    ckpt_cb = saving(tmp_path)
    callbacks = [joined.registrar(ckpt_cb, save_on_exception=True, exception_interval=0), ckpt_cb, RaiseAt(4)]
    with pytest.raises(RuntimeError, match="on purpose"):
        model.train(1, dataset, callbacks=callbacks, dataset_sink_mode=False)
    assert seen
    assert gasps(catalog) == [(4, "net-1_4_breakpoint.ckpt")]


def test_a_device_that_does_not_answer_does_not_hold_the_exit_up(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ckptstore.mindspore import training

    release = threading.Event()
    monkeypatch.setattr(training, "_DEVICE_SECONDS", 0.2)
    loss = training.Training.loss

    def stuck(self: Any) -> float | None:
        if threading.current_thread() is not threading.main_thread():
            release.wait(60)
        return loss(self)

    monkeypatch.setattr(training.Training, "loss", stuck)
    fail(catalog, tmp_path, 3)
    release.set()
    assert "the device did not answer in 0 s" in caplog.text
    assert gasps(catalog) == []


def test_a_save_that_cannot_be_read_yet_is_said_once(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    joined = ckptstore.mindspore.join("run")
    recorder = Recorder(joined)
    path = tmp_path / "net-1_1.ckpt"
    recorder.submit(describe(joined.facts, rank=0, path=path, kind="periodic", global_step=1), asynchronous=True)
    recorder.call(path.mkdir)  # stands for whatever keeps it from being read
    assert not recorder.flush(0.5)
    assert caplog.text.count("cannot be read yet") == 1
    path.rmdir()
    ckpt_bytes.write(path, 1)
    assert recorder.flush(60)
    assert catalog.files("run")[0].state is FileState.COMPLETE


def test_a_graph_that_cannot_be_renamed_does_not_keep_the_file(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    joined = catalog.join("run", launch_id="L1")
    path = ckpt_bytes.write(tmp_path / "net_train.ckpt", 6)
    for name in ("net_train.mindir", "net_train-step_6.mindir"):
        (tmp_path / name).write_text(name)
    whole = joined.register(path, kind="graceful_exit", global_step=6)
    joined.keep_exit(whole, exit_ops.kept_path(str(path), 6))
    assert (tmp_path / "net_train-step_6.ckpt").exists()
    assert (tmp_path / "net_train-step_6.mindir").read_text() == "net_train-step_6.mindir"
    assert "net_train.mindir keeps its name" in caplog.text
    assert {file.state for file in catalog.files("run")} == {FileState.COMPLETE, FileState.MOVED}


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_flag_that_is_being_written_is_heard_later(
    catalog: Catalog, tmp_path: Path, exits: None, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """It asks for an exit when it is noticed, and is half written when it is read to be put back."""
    flag = tmp_path / "flag.json"
    flag.write_text('{"GracefulExit": 1}')
    put_back = graceful_exit._put_back

    def half_written(path: Path, key: str) -> None:
        path.write_text(content)
        put_back(path, key)

    monkeypatch.setattr(graceful_exit, "_put_back", half_written)
    exit_cb = leaving(tmp_path)
    launch(tmp_path, SetFlagAt(flag, 3), exit_cb)
    assert exit_cb.stop_train
    assert json.loads(flag.read_text()) == {"GracefulExit": 1}
    assert not list(tmp_path.glob(".flag.json.*"))


def test_a_breakpoint_of_tomorrow_does_not_keep_today_s_from_being_saved(catalog: Catalog, tmp_path: Path) -> None:
    fail(catalog, tmp_path, 3)
    (first,) = tmp_path.glob("*_breakpoint.ckpt")
    os.utime(first, ns=(2**62, 2**62))
    fail(catalog, tmp_path, 2)
    assert len(gasps(catalog)) == 2


def test_writers_of_one_file_find_each_other_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert claims.claim(str(tmp_path), "net", launch="L1", rank=0) is None
    other = claims.claim(str(tmp_path), "net", launch="L1", rank=1)
    assert other is not None
    assert other.rank == 0
    (tmp_path / "a").write_text("mine")
    files.move(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "mine"


def test_a_rename_never_overwrites(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("one")
    other.write_text("other")
    with pytest.raises(FileExistsError):
        files.move(str(one), str(other))
    assert (one.read_text(), other.read_text()) == ("one", "other")
    other.unlink()
    os.link(one, other)  # a process died between the two halves of the rename
    files.move(str(one), str(other))
    assert not one.exists()
    files.move(str(one), str(other))
    assert other.read_text() == "one"
    with pytest.raises(FileNotFoundError):
        files.move(str(one), str(tmp_path / "third"))


@pytest.fixture(autouse=True)
def _hear_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ckptstore")
    ms.set_seed(1)


def test_what_cannot_be_registered_stops_neither_training_nor_the_others(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory whose name is not UTF-8; and metrics that the user named by numbers."""
    model, dataset = create_model(), create_dataset()
    joined = ckptstore.mindspore.join("run")
    joined.resume(model, dataset)
    broken, whole = saving(tmp_path / "broken"), saving(tmp_path / "whole")
    watched = joined.registrar(broken, whole, metrics=lambda _: {1: 1.0})
    for watch in watched._periodic():
        if watch.callback is broken:
            watch.poll = lambda: Saved("/n\udce9.ckpt", Kind.PERIODIC, Content.FULL)  # type: ignore[method-assign]
    model.train(1, dataset, callbacks=[broken, whole, watched], dataset_sink_mode=False)
    assert "is not registered: path is" in caplog.text
    assert "metrics= failed" in caplog.text
    assert "Traceback" not in caplog.text
    assert {Path(file.path).parents[1].name for file in catalog.files("run")} == {"whole"}
