"""Saves at an exception: ckptstore's own, the Elastic Agent's, and states that are not worth restoring."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import nn, ops
from mindspore.train import Callback, CheckpointConfig, LossMonitor, Model, ModelCheckpoint

import ckptstore.mindspore
from ckptstore.core.model import Rule
from ckptstore.formats.ckpt import read_ckpt
from ckptstore.ops.connect import Catalog, connect

from .running import Run
from .test_faults import undisturbed
from .test_resume import RaiseAt, catalog, create_dataset, create_model

__all__ = ["catalog", "undisturbed"]

ON_EXCEPTION = {"save_on_exception": True}


@pytest.mark.parametrize(
    ("fault", "callbacks", "file_format"),
    [
        ("raise 17", "by position", "ckpt"),
        ("SystemExit 17", "by name", "safetensors"),
        ("KeyboardInterrupt 17", "by position", "safetensors"),
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
    again = run.launch(registrar=ON_EXCEPTION, **asked)
    assert (again.code, again.start["global_step"]) == (0, 17), again.output
    assert again.start["append_info"] == {"epoch_num": 2, "step_num": 17}
    assert run.final() == undisturbed


def fail(catalog: Catalog, directory: Path, steps: int, save_steps: int = 100, **settings: Any) -> None:
    """One launch that raises after `steps` steps of its own."""
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    start = launch.resume(model, dataset)
    ckpt_cb = ModelCheckpoint("net", str(directory), CheckpointConfig(save_checkpoint_steps=save_steps))
    registrar = launch.registrar(ckpt_cb, save_on_exception=True, **settings)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.train(9, dataset, callbacks=[RaiseAt(steps), ckpt_cb, registrar], initial_epoch=start.initial_epoch)


def gasps(catalog: Catalog) -> list[tuple[int, str]]:
    return [(file.global_step, Path(file.path).name) for file in catalog.files("run", kind="dying_gasp")]


def test_a_crash_loop_does_not_fill_the_disk(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fail(catalog, tmp_path, 3)
    fail(catalog, tmp_path, 2)
    assert gasps(catalog) == [(3, "net-1_3_breakpoint.ckpt")]
    assert re.search(r"nothing is saved at this exception: the last such save was \d+ s ago", caplog.text)
    fail(catalog, tmp_path, 2, exception_interval=0)
    assert gasps(catalog) == [(5, "net-1_5_breakpoint.ckpt"), (3, "net-1_3_breakpoint.ckpt")]


def test_another_rank_s_directory_does_not_count(catalog: Catalog, tmp_path: Path) -> None:
    fail(catalog, tmp_path / "a", 3)
    fail(catalog, tmp_path / "b", 2)
    assert [step for step, _ in gasps(catalog)] == [5, 3]


def test_what_was_just_saved_is_not_saved_again(catalog: Catalog, tmp_path: Path) -> None:
    """RaiseAt stands before the ModelCheckpoint: its step 4 is not saved; then the exception comes after the save."""
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(save_checkpoint_steps=4))
    registrar = launch.registrar(ckpt_cb, save_on_exception=True)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.train(1, dataset, callbacks=[ckpt_cb, registrar, RaiseAt(4)])
    assert gasps(catalog) == []
    assert [save.tally.global_step for save in catalog.saves("run")] == [4]


def test_a_start_that_fails_at_once_saves_nothing(catalog: Catalog, tmp_path: Path) -> None:
    class FailsAtOnce(Callback):
        def on_train_step_begin(self, run_context: object) -> None:
            raise RuntimeError("on purpose")

    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path))
    registrar = launch.registrar(ckpt_cb, save_on_exception=True)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.train(1, dataset, callbacks=[ckpt_cb, registrar, FailsAtOnce()])
    assert catalog.files("run") == []


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
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    gasp_cb = ExceptionCheckpoint("agent", str(tmp_path / "gasps"), CheckpointConfig())
    signal.signal(signal.SIGUSR1, gasp_cb.save)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path / "ckpt"), CheckpointConfig(save_checkpoint_steps=2))
    failing = SignalAt(5) if at_signal else RaiseAt(5)
    with pytest.raises(RuntimeError, match="on purpose"):
        model.train(1, dataset, callbacks=[failing, ckpt_cb, gasp_cb, launch.registrar(ckpt_cb, gasp_cb)])
    launch.adopt()  # what the interpreter does when it ends
    assert gasps(catalog) == [(5, "agent-1_5_breakpoint.ckpt")]
    start = ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    assert start.global_step == 5


def poisoned() -> ds.Dataset:
    """The batch of step 5 makes the loss infinite or not a number."""
    x = np.ones((12, 3), np.float32)
    x[8] = np.inf
    return ds.NumpySlicesDataset({"x": x, "y": np.zeros(12, np.int32)}, shuffle=False).batch(2)


def test_a_state_whose_loss_is_not_finite_is_passed_over(catalog: Catalog, tmp_path: Path) -> None:
    model, dataset = create_model(), poisoned()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=50))
    model.train(1, dataset, callbacks=[ckpt_cb, launch.registrar(ckpt_cb)])
    resolution = catalog.resolve("run")
    assert resolution.plan is not None
    assert resolution.plan.global_step == 4
    assert [(each.global_step, each.reasons[0].rule) for each in resolution.rejections] == [
        (6, Rule.QUARANTINED),
        (5, Rule.QUARANTINED),
    ]
    assert "the loss of its last step was nan" in resolution.rejections[0].reasons[0].detail
    assert [save.restorable for save in catalog.saves("run")] == [False, False, True, True, True, True]
    anyway = catalog.resolve("run", take_quarantined=True).plan
    assert anyway is not None
    assert anyway.global_step == 6
    start = ckptstore.mindspore.join("run").resume(create_model(), create_dataset(), take_quarantined=True)
    assert start.global_step == 6
    state = read_ckpt(Path(anyway.ranks[0].source.path))
    assert state.optimizer_step == 6


@pytest.mark.parametrize("own", [False, True])
def test_the_breakpoint_of_a_training_that_ended_since_its_loss_was_no_number(
    catalog: Catalog, tmp_path: Path, *, own: bool
) -> None:
    """LossMonitor raises then (MindSpore: `train/callback/_loss_monitor.py`): restored, it would raise for ever."""
    model, dataset = create_model(), poisoned()
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    config = CheckpointConfig(save_checkpoint_steps=2, exception_save=not own)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path), config)
    registrar = launch.registrar(ckpt_cb, save_on_exception=own)
    with pytest.raises(ValueError, match="loss is NAN or INF"):
        model.train(1, dataset, callbacks=[LossMonitor(), ckpt_cb, registrar])
    launch.adopt()
    assert [step for step, _ in gasps(catalog)] == [5]
    resolution = catalog.resolve("run")
    assert resolution.plan is not None
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
    config = CheckpointConfig(save_checkpoint_steps=4, exception_save=not own)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path), config)
    with pytest.raises(KeyboardInterrupt):
        model.train(1, dataset, callbacks=[ckpt_cb, launch.registrar(ckpt_cb, save_on_exception=own)])
    resolution = catalog.resolve("run")
    assert resolution.plan is not None
    assert resolution.plan.global_step == 4
    assert [(file.global_step, file.quarantine) for file in catalog.files("run")] == (
        [(4, "")] if own else [(6, "an exception came in the middle of its update"), (4, "")]
    )
    again = connect(str(tmp_path / "again.db"))  # the catalog is lost, and made anew
    again.scan(tmp_path)
    plan = again.resolve("run").plan
    assert plan is not None
    assert plan.global_step == 4


def test_an_exception_before_the_update_loses_no_step_in_pynative(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None]
) -> None:
    set_mode(ms.PYNATIVE_MODE)

    class Fails(nn.Dense):
        left = 5

        def construct(self, x: Any) -> Any:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().construct(x)

    network, dataset = Fails(3, 4), create_dataset()
    optimizer = Own(0.1, network.trainable_params())
    optimizer.fails_at = 100
    model = Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), optimizer)
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    ckpt_cb = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(save_checkpoint_steps=3))
    with pytest.raises(KeyboardInterrupt):
        model.train(1, dataset, callbacks=[ckpt_cb, launch.registrar(ckpt_cb, save_on_exception=True)])
    plan = catalog.resolve("run").plan
    assert plan is not None
    assert plan.global_step == 4
