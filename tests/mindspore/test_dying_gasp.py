"""Saves at an exception: ckptstore's own, the Elastic Agent's, and states that are not worth restoring."""

import errno
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import nn, ops
from mindspore.train import Callback, CheckpointConfig, LearningRateScheduler, LossMonitor, Model

import ckptstore.mindspore
from ckptstore.api import Catalog, connect
from ckptstore.core.model import Kind, Rule
from ckptstore.disk import files
from ckptstore.errors import NothingRestorableError, UsageError
from ckptstore.mindspore import registrar
from tests import ckpt_bytes
from tests.mindspore.cells import overflowing
from tests.mindspore.running import Run
from tests.mindspore.trainings import (
    Job,
    RaiseAt,
    complaints,
    create_dataset,
    create_model,
    fail,
    gasps,
    poisoned,
    saving,
)

ON_EXCEPTION = {"save_on_exception": True}


@pytest.mark.parametrize(
    ("fault", "callbacks", "file_format"),
    [
        pytest.param("raise 17", "by position", "ckpt", marks=pytest.mark.long),
        ("SystemExit 17", "by name", "safetensors"),
        pytest.param("KeyboardInterrupt 17", "by position", "safetensors", marks=pytest.mark.long),
        ("raise-before 18", "by name", "ckpt"),
    ],
)
def test_the_registrar_saves_where_mindspore_does_not(
    tmp_path: Path, undisturbed: bytes, fault: str, callbacks: str, file_format: str
) -> None:
    run = Run(tmp_path)
    asked = {"positional": callbacks == "by position", "config": {"format": file_format, "exception_save": False}}
    crashed = run.launch(fault=fault, registrar=ON_EXCEPTION, **asked)
    own_codes = {"SystemExit": (7,), "KeyboardInterrupt": (1, -2)}  # the interpreter ends itself by SIGINT, or with 1
    assert crashed.code in own_codes.get(fault.split(maxsplit=1)[0], (1,)), crashed.output
    assert run.files()[0] == ("dying_gasp", 17, "complete", f"net-2_7_breakpoint.{file_format}")
    again = run.again(step=17, registrar=ON_EXCEPTION, **asked)
    assert again.start["append_info"] == {"epoch_num": 2, "step_num": 17}
    assert run.final() == undisturbed


def test_a_crash_loop_does_not_fill_the_disk(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fail(catalog, tmp_path, 3)
    fail(catalog, tmp_path, 2)
    assert gasps(catalog) == [(3, "net-1_3_breakpoint.ckpt")]
    assert re.search(r"nothing is saved at this exception: the last such save was \d+ s ago", caplog.text)
    fail(catalog, tmp_path, 2, exception_interval=0)
    assert gasps(catalog) == [(5, "net-1_5_breakpoint.ckpt"), (3, "net-1_3_breakpoint.ckpt")]


@pytest.mark.parametrize("interval", [timedelta(minutes=1), "60", None, -1, float("nan")])
def test_an_interval_that_is_no_number_of_seconds_is_refused(catalog: Catalog, interval: Any) -> None:
    """At the second exception, the comparison with it failed, and the state was lost."""
    with pytest.raises(UsageError, match=r"exception_interval is .*; give seconds"):
        Job().registrar(**ON_EXCEPTION, exception_interval=interval)


def test_a_callable_prefix_names_no_function(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was saved before: the directory is recorded before the file is begun."""
    for _ in range(2):
        job = Job()
        ckpt_cb = saving(tmp_path / "ckpt", prefix=lambda params: f"s{params.cur_step_num}", save_checkpoint_steps=100)
        job.fail(RaiseAt(3), ckpt_cb, job.registrar(ckpt_cb, **ON_EXCEPTION, exception_interval=0))
        assert complaints(caplog) == []
    assert gasps(catalog) == [(6, "net-1_6_breakpoint.ckpt"), (3, "net-1_3_breakpoint.ckpt")]
    assert (tmp_path / "ckpt" / ".ckptstore").is_dir()


def test_what_was_just_saved_is_not_saved_again(catalog: Catalog, tmp_path: Path) -> None:
    """RaiseAt stands before the ModelCheckpoint: its step 4 is not saved; then the exception comes after the save."""
    job = Job()
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=4)
    registrar = job.registrar(ckpt_cb, save_on_exception=True)
    job.fail(ckpt_cb, registrar, RaiseAt(4))
    assert gasps(catalog) == []
    assert [save.tally.global_step for save in catalog.saves("run")] == [4]


def test_a_save_that_fails_hides_no_exception(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ms, "save_checkpoint", full)
    fail(catalog, tmp_path, 3)
    assert "ckptstore failed in save_on_exception" in caplog.text
    assert "No space left on device" in caplog.text
    assert catalog.resolve("run").plan is None


class ExceptionCheckpoint(Callback):
    """As the Elastic Agent's: it saves at a signal, or when it is left with an exception, and names the file so."""

    def __init__(self, prefix: str, directory: str, config: CheckpointConfig) -> None:
        super().__init__()
        self._prefix, self._directory, self._config = prefix, directory, config
        self.params: Any = None
        Path(directory).mkdir(parents=True, exist_ok=True)

    def begin(self, run_context: Any) -> None:
        self.params = run_context.original_args()

    def __exit__(self, *error: object) -> None:
        if error[0] is not None and not os.environ.get("AT_SIGNAL"):
            self.save()

    def save(self, *_: object) -> None:
        params = self.params
        name = f"{self._prefix}-{params.cur_epoch_num}_{(params.cur_step_num - 1) % params.batch_num + 1}_breakpoint"
        ms.save_checkpoint(params.train_network, str(Path(self._directory) / f"{name}.ckpt"))
        if os.environ.get("AT_SIGNAL"):
            raise RuntimeError("on purpose, at a signal")


class SignalAt(RaiseAt):
    def on_train_step_end(self, run_context: object) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("at_signal", [False, True])
def test_what_the_elastic_agent_saves(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None, *, at_signal: bool
) -> None:
    monkeypatch.setenv("AT_SIGNAL", "1" if at_signal else "")
    job = Job()
    gasp_cb = ExceptionCheckpoint("agent", str(tmp_path / "gasps"), CheckpointConfig())
    signal.signal(signal.SIGUSR1, gasp_cb.save)
    ckpt_cb = saving(tmp_path / "ckpt")
    failing = SignalAt(5) if at_signal else RaiseAt(5)
    job.fail(failing, ckpt_cb, gasp_cb, job.registrar(ckpt_cb, gasp_cb))
    job.launch.adopt()  # what the interpreter does when it ends
    assert gasps(catalog) == [(5, "agent-1_5_breakpoint.ckpt")]
    start = ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    assert start.global_step == 5


@pytest.mark.parametrize("own", [False, True])
def test_the_breakpoint_of_a_training_that_ended_since_its_loss_was_no_number(
    catalog: Catalog, tmp_path: Path, *, own: bool
) -> None:
    """LossMonitor raises then (MindSpore: `train/callback/_loss_monitor.py`): restored, it would raise for ever."""
    job = Job(dataset=poisoned(5, 6))
    ckpt_cb = saving(tmp_path, exception_save=not own)
    registrar = job.registrar(ckpt_cb, save_on_exception=own)
    with pytest.raises(ValueError, match="loss is NAN or INF"):
        job.train(LossMonitor(), ckpt_cb, registrar)
    job.launch.adopt()
    assert [step for step, _ in gasps(catalog)] == [5]
    resolution = catalog.resolve("run")
    assert resolution.plan.global_step == 4
    assert resolution.rejections[0].reasons[0].rule is Rule.QUARANTINED


class Own(nn.Optimizer):
    """One of the user's own, in Python: an exception comes when some parameters are updated and others are not."""

    counts_first = True
    fails_at = 6

    def construct(self, grads: Any) -> Any:
        lr = self.get_lr()
        if self.counts_first:
            self.count()
        for number, (parameter, grad) in enumerate(zip(self.parameters, grads, strict=True)):
            ops.assign_sub(parameter, lr * grad)
            self.fails_at -= number == 0
            if number == 0 and not self.fails_at:
                raise KeyboardInterrupt
        if not self.counts_first:
            self.count()
        return True

    def count(self) -> None:
        self.assignadd(self.global_step, self.global_step_increase_tensor)


@pytest.mark.parametrize("counts_first", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_a_half_updated_network_is_never_restored(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], *, own: bool, counts_first: bool
) -> None:
    """In PyNative; neither what ckptstore saves nor MindSpore's own breakpoint, adopted by whoever looks next."""
    set_mode(ms.PYNATIVE_MODE)
    network, dataset = nn.Dense(3, 4), create_dataset()
    optimizer = Own(0.1, network.trainable_params())
    optimizer.counts_first = counts_first
    model = Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), optimizer)
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=4, exception_save=not own)
    with pytest.raises(KeyboardInterrupt):
        model.train(1, dataset, callbacks=[ckpt_cb, launch.registrar(ckpt_cb, save_on_exception=own)])
    resolution = catalog.resolve("run")
    assert resolution.plan.global_step == 4
    assert [(file.global_step, file.quarantine) for file in catalog.files("run")] == (
        [(4, "")] if own else [(6, "an exception came in the middle of its update"), (4, "")]
    )
    again = connect(str(tmp_path / "again.db"))  # the catalog is lost, and made anew
    again.scan(tmp_path)
    assert again.resolve("run").plan.global_step == 4


def test_a_look_that_fails_as_a_step_begins_hides_no_half_update(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step was taken for one that had not begun: step 4 was saved with a part of the fifth update in it."""
    set_mode(ms.PYNATIVE_MODE)

    def stale(path: str) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(registrar, "facts", stale)
    network = nn.Dense(3, 4)
    optimizer = Own(0.1, network.trainable_params())
    optimizer.fails_at = 5
    job = Job(Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), optimizer))
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=4)
    with pytest.raises(KeyboardInterrupt):
        job.train(job.registrar(ckpt_cb, save_on_exception=True), ckpt_cb)
    assert gasps(catalog) == []


@pytest.mark.parametrize("saves", ["launch.saver", "the registrar", "MindSpore"])
@pytest.mark.parametrize("is_set", [True, False])
def test_a_rate_that_the_exception_kept_from_being_set_is_not_restored(
    catalog: Catalog, tmp_path: Path, *, saves: str, is_set: bool
) -> None:
    """A callback raises at the end of the step after which another one, behind it, sets another learning rate."""
    job = Job()
    sets = LearningRateScheduler(lambda _, step: 0.1 if step < 5 else 0.01)
    callbacks = [sets, RaiseAt(5)] if is_set else [RaiseAt(5), sets]
    if saves == "launch.saver":
        callbacks += [job.launch.saver(tmp_path, every=4)]
    else:
        ckpt_cb = saving(tmp_path, save_checkpoint_steps=4, exception_save=saves == "MindSpore")
        callbacks += [ckpt_cb, job.registrar(ckpt_cb, save_on_exception=saves == "the registrar")]
    job.fail(*callbacks)
    job.launch.adopt()
    assert catalog.resolve("run").plan.global_step == (5 if is_set else 4)


@pytest.mark.parametrize("own", [False, True])
def test_a_file_that_was_saved_before_the_exception_is_of_its_step(
    catalog: Catalog, tmp_path: Path, *, own: bool
) -> None:
    """The callback that raises keeps another one from setting the rate, and the registrar from hearing of the step."""
    job = Job()
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=4, exception_save=not own)
    sets = LearningRateScheduler(lambda rate, _: rate)
    job.fail(ckpt_cb, RaiseAt(4), sets, job.registrar(ckpt_cb, save_on_exception=own))
    job.launch.adopt()
    found = [(file.kind, file.global_step, file.optimizer_step, file.quarantine) for file in catalog.files("run")]
    bad = (Kind.DYING_GASP, 4, 4, "an exception came in the middle of its update")
    assert sorted(found, reverse=True) == [(Kind.PERIODIC, 4, 4, ""), *([] if own else [bad])]


class FailsAt6(nn.SoftmaxCrossEntropyWithLogits):
    """A loss that finds something wrong in the sixth step, before its update."""

    left = 6

    def construct(self, logits: Any, labels: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().construct(logits, labels)


@pytest.mark.parametrize("saves", ["launch.saver", "the registrar", "MindSpore"])
@pytest.mark.parametrize("has_averages", [True, False])
def test_averages_that_changed_before_the_exception_are_never_restored(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], *, saves: str, has_averages: bool
) -> None:
    """In PyNative, batch normalization changes its averages before any update."""
    set_mode(ms.PYNATIVE_MODE)
    network = nn.SequentialCell(nn.Dense(3, 4), *([nn.BatchNorm1d(4)] if has_averages else []))
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    job = Job(Model(network, FailsAt6(sparse=True, reduction="mean"), optimizer))
    if saves == "launch.saver":
        callbacks = [job.launch.saver(tmp_path, every=4)]
    else:
        ckpt_cb = saving(tmp_path, save_checkpoint_steps=4, exception_save=saves == "MindSpore")
        callbacks = [ckpt_cb, job.registrar(ckpt_cb, save_on_exception=saves == "the registrar")]
    with pytest.raises(KeyboardInterrupt):
        job.train(*callbacks)
    job.launch.adopt()
    assert catalog.resolve("run").plan.global_step == (4 if has_averages else 5)


def test_an_evaluation_that_fails_says_nothing_of_the_state(catalog: Catalog, tmp_path: Path) -> None:
    class Broken(nn.Cell):
        def construct(self, x: Any, y: Any) -> Any:
            return x * float("nan"), x, y

    class Fails(nn.Accuracy):
        def update(self, *_: Any) -> None:
            raise RuntimeError("on purpose")

    model = create_model(metrics={"acc": Fails()}, eval_network=Broken(), eval_indexes=[0, 1, 2])
    job = Job(model)
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=100)
    with pytest.raises(RuntimeError, match="on purpose"):
        callbacks = [ckpt_cb, job.registrar(ckpt_cb, save_on_exception=True)]
        model.fit(2, job.dataset, create_dataset(), callbacks=callbacks, dataset_sink_mode=False)
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
    ckpt_cb = saving(tmp_path / "ckpt")
    with pytest.raises(RuntimeError, match="on purpose"):
        model.train(1, dataset, callbacks=[ckpt_cb, joined.registrar(ckpt_cb), RaiseAt(3)])
    (file,) = catalog.files("run")
    assert (file.global_step, file.quarantine) == (2, "")
    assert set(file.metrics) == set()  # its loss was no number that could be kept


def test_the_way_out_of_a_run_whose_every_state_is_quarantined_is_said(catalog: Catalog, tmp_path: Path) -> None:
    joined = catalog.join("run", launch_id="L1")
    path = ckpt_bytes.write(tmp_path / "a.ckpt", 3)
    whole = joined.register(path, global_step=3)
    joined.record_files([replace(whole, quarantine="the loss was nan")])
    with pytest.raises(NothingRestorableError, match=r"resume\(take_quarantined=True\) loads it anyway"):
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
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt")
    job.fail(job.registrar(ckpt_cb, save_on_exception=True, exception_interval=0), ckpt_cb, RaiseAt(4))
    assert seen
    assert gasps(catalog) == [(4, "net-1_4_breakpoint.ckpt")]


def test_a_device_that_does_not_answer_does_not_hold_the_exit_up(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ckptstore.mindspore import state

    release = threading.Event()
    monkeypatch.setattr(state, "_DEVICE_SECONDS", 0.2)
    loss = state.NetworkState.loss

    def stuck(self: Any) -> float | None:
        if threading.current_thread() is not threading.main_thread():
            release.wait(60)
        return loss(self)

    monkeypatch.setattr(state.NetworkState, "loss", stuck)
    fail(catalog, tmp_path, 3)
    release.set()
    assert "the device did not answer in 0 s" in caplog.text
    assert gasps(catalog) == []


def test_a_breakpoint_of_tomorrow_does_not_keep_today_s_from_being_saved(catalog: Catalog, tmp_path: Path) -> None:
    fail(catalog, tmp_path, 3)
    (first,) = tmp_path.glob("*_breakpoint.ckpt")
    os.utime(first, ns=(2**62, 2**62))
    fail(catalog, tmp_path, 2)
    assert len(gasps(catalog)) == 2
