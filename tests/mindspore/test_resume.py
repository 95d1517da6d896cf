"""What `resume` refuses, and what training survives, in this process with real networks."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import nn
from mindspore.common.api import _pynative_executor
from mindspore.train import Callback, Model, ModelCheckpoint, RunContext
from mindspore.train.callback import _InternalCallbackParam

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.errors import NothingRestorableError, RefusedError, UsageError
from ckptstore.mindspore import launch as launch_module
from ckptstore.mindspore.data import check_start
from ckptstore.mindspore.state import NetworkState
from ckptstore.training.start import Start
from tests.foreign_bytes import pytorch
from tests.mindspore.trainings import (
    Job,
    RaiseAt,
    assert_same,
    complaints,
    create_dataset,
    create_model,
    saving,
    to_step_12,
    train,
    values,
)


def test_every_parameter_comes_from_the_file(catalog: Catalog, tmp_path: Path) -> None:
    first = create_model()
    train(first, tmp_path / "ckpt")
    second = create_model()
    launch = ckptstore.mindspore.join("run")
    start = launch.resume(second, create_dataset())
    assert (start.global_step, start.initial_epoch, start.epoch, start.step_in_epoch) == (6, 1, 1, 6)
    assert start.plan is not None
    names = [parameter.name for parameter in second.train_network.get_parameters()]
    assert "moments.weight" in names
    for one, other in zip(first.train_network.get_parameters(), second.train_network.get_parameters(), strict=True):
        assert np.array_equal(one.asnumpy(), other.asnumpy()), one.name


def test_a_learning_rate_that_the_saved_one_replaces_is_named(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """MindSpore keeps a fixed rate as a parameter, and a script that sets another one expects that one."""
    train(create_model(), tmp_path / "ckpt")
    ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    assert "learning_rate" not in caplog.text
    model = with_rate(0.025)
    ckptstore.mindspore.join("run").resume(model, create_dataset())
    (told,) = (message for message in caplog.messages if "learning_rate" in message)
    assert told.startswith("learning_rate is 0.1, from the saved state, not the script's 0.025: ")
    assert values(model)["learning_rate"] == pytest.approx(0.1)


def with_rate(rate: Any) -> Model:
    network = nn.Dense(3, 4)
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=rate, momentum=0.9)
    return Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), optimizer)


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, pytest.param(ms.PYNATIVE_MODE, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("saved", "asked"),
    [([0.1] * 6, [0.1] * 12), ([0.1] * 6, [0.2] * 6), ([0.1] * 6, 0.2), (0.1, [0.2] * 12)],
    ids=["longer", "other values", "a number", "a table"],
)
def test_a_schedule_of_learning_rates_is_the_scripts(
    catalog: Catalog,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    set_mode: Callable[[int], None],
    way: str,
    mode: int,
    saved: float | list[float],
    asked: float | list[float],
) -> None:
    """Who trains for more epochs makes a longer one."""
    set_mode(mode)
    first = with_rate(saved)
    train(first, tmp_path / "ckpt")
    ckptstore.mindspore.join("run").resume(with_rate(saved), create_dataset())
    assert "learning_rate" not in caplog.text
    again = with_rate(asked)
    start = ckptstore.mindspore.join("run").resume(again, create_dataset())
    assert start.global_step == 6
    assert "learning_rate" not in start.append_info
    now, before = values(again), values(first)
    assert now.pop("learning_rate").tolist() == np.asarray(asked, np.float32).tolist()
    assert all(np.array_equal(now[name], before[name]) for name in now)
    (told,) = (message for message in caplog.messages if "learning_rate" in message)
    assert told == "learning_rate is the script's: a schedule is not restored, and the saved one differs"


@pytest.mark.parametrize("rate", [0.2, [0.2] * 12], ids=["a number", "a table"])
def test_rates_may_take_the_place_of_a_cell_that_computed_them(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, rate: float | list[float]
) -> None:
    first = with_rate(nn.CosineDecayLR(0.0, 0.1, 6))
    train(first, tmp_path / "ckpt")
    again = with_rate(rate)
    assert ckptstore.mindspore.join("run").resume(again, create_dataset()).global_step == 6
    now, before = values(again), values(first)
    assert now.pop("learning_rate").tolist() == np.asarray(rate, np.float32).tolist()
    assert all(np.array_equal(now[name], before[name]) for name in now)
    assert [message for message in caplog.messages if "learning_rate" in message] == [
        "learning_rate is the script's: the saved state has none"
    ]


class Two(nn.Cell):
    """A network and its critic, each with an optimizer: both have a `global_step`, until MindSpore renames them."""

    def __init__(self, of_first: Any = 0.1, of_second: Any = 0.05) -> None:
        super().__init__(auto_prefix=False)
        self.first, self.second = nn.Dense(3, 4), nn.Dense(3, 4)
        for name in ("first", "second"):
            getattr(self, name).update_parameters_name(f"{name}.")
        self.by_first = nn.Adam(self.first.trainable_params(), of_first)
        self.by_second = nn.Adam(self.second.trainable_params(), of_second)
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.grad = ms.ops.GradOperation(get_by_list=True)

    def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        for _ in range(2):
            self.by_second(self.grad(self.of_second, self.by_second.parameters)(x, y))
        self.by_first(self.grad(self.of_first, self.by_first.parameters)(x, y))
        return self.of_first(x, y)

    def of_first(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        return self.loss(self.first(x), y)

    def of_second(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        return self.loss(self.second(x), y)


def test_the_rates_of_two_optimizers_are_told_and_kept_as_that_of_one(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """A parameter of a network may have the name of a rate: it is restored as every other one."""

    def network(*rates: Any, own: float) -> Model:
        cell = Two(*rates)
        cell.first.learning_rate = ms.Parameter(ms.Tensor(own), name="first.learning_rate")
        return Model(cell)

    train(network(0.1, [0.05] * 12, own=1.0), tmp_path / "ckpt")
    again = network(0.025, [0.01] * 24, own=2.0)
    assert ckptstore.mindspore.join("run").resume(again, create_dataset()).global_step == 6
    now = values(again)
    assert now["by_second.learning_rate.learning_rate"].tolist() == pytest.approx([0.01] * 24)
    assert (now["by_first.learning_rate"], now["first.learning_rate"]) == (pytest.approx(0.1), 1.0)
    assert [message.partition(":")[0] for message in complaints(caplog) if "learning_rate" in message] == [
        "by_second.learning_rate.learning_rate is the script's",
        "by_first.learning_rate is 0.1, from the saved state, not the script's 0.025",
    ]


@pytest.mark.parametrize("saves", ["saver", "registrar"])
def test_two_optimizers_of_a_train_cell_go_on(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], saves: str
) -> None:
    set_mode(ms.PYNATIVE_MODE)

    def train_one(run: str, *faults: Callback) -> Job:
        ms.set_seed(1)
        job = Job(Model(Two()), launch=ckptstore.mindspore.join(run))
        ckpt_cb = saving(tmp_path / run)
        callbacks = (
            [job.launch.saver(tmp_path / run, every=2)] if saves == "saver" else [ckpt_cb, job.registrar(ckpt_cb)]
        )
        (job.fail if faults else job.train)(*callbacks, *faults, epochs=2)
        return job

    whole = train_one("whole")
    train_one("run", RaiseAt(8))
    job = train_one("run")
    assert job.start.global_step == 8
    assert values(job.model)["by_second.global_step"] == 2 * values(job.model)["by_first.global_step"] == 24
    assert_same(job.model, whole.model)


def test_parameters_that_the_network_has_no_more_are_named(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(create_model(network=nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 4))), tmp_path / "ckpt")
    smaller = create_model(network=nn.SequentialCell(nn.Dense(3, 4)))
    ckptstore.mindspore.join("run").resume(smaller, create_dataset())
    (told,) = complaints(caplog)
    assert told == (
        "the saved state has 4 arrays that the train network has no parameter for: 1.bias, 1.weight, moments.1.bias "
        "and 1 more. They are not restored"
    )


def test_a_load_that_takes_long_is_announced(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train(create_model(), tmp_path / "ckpt")
    ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    assert "loading step" not in caplog.text
    (file,) = catalog.show("run", 6)
    monkeypatch.setattr(launch_module, "_LONG_LOAD", file.size)
    ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    said = [message for message in caplog.messages if "step 6" in message][-2:]
    assert said[0] == f"run run: loading step 6, {file.size} B on each rank"
    assert said[1].startswith("run run: going on after step 6")


def test_what_mindspore_cannot_load_is_refused_in_one_line(catalog: Catalog, tmp_path: Path) -> None:
    path = pytorch(tmp_path / "best.pth.tar")
    catalog.join("run", launch_id="other").register(path, global_step=6)
    launch = ckptstore.mindspore.join("run")
    with pytest.raises(NothingRestorableError, match=f"MindSpore cannot load {path}: its format is pytorch") as refused:
        launch.resume(create_model(), create_dataset())
    assert "\n" not in str(refused.value)
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset(), fresh=True).fresh


def test_a_run_that_was_renamed_is_called_by_its_name(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The script joins the first name, and goes on doing so."""
    for _ in range(2):
        train(create_model(), tmp_path / "ckpt", steps=3)
    catalog.rename("run", "thesis")
    (tmp_path / "ckpt" / "net_1-2_6.ckpt").unlink()
    caplog.clear()
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt")
    job.fail(RaiseAt(2), ckpt_cb, job.registrar(ckpt_cb), epochs=9)
    said = [message for message in caplog.messages if "was renamed to" not in message]
    assert "run thesis goes on after step 9, though step 12" in said[0]
    assert "run thesis: going on after step 9" in said[1]
    assert not [message for message in said if "run run" in message]
    shutil.rmtree(tmp_path / "ckpt")
    with pytest.raises(NothingRestorableError, match="nothing of run 'thesis' .* ckptstore resolve thesis --explain"):
        Job()
    assert Job(fresh=True).start.fresh
    with pytest.raises(RefusedError, match="run 'thesis' has saved up to step"):
        model = create_model()
        model.train(1, create_dataset(), callbacks=[ckptstore.mindspore.join("run").registrar()])


def test_a_parameter_that_the_file_lacks_is_named(catalog: Catalog, tmp_path: Path) -> None:
    train(create_model(), tmp_path / "ckpt")
    other = create_model(optimizer=nn.Adam)
    with pytest.raises(
        UsageError,
        match="lacks .* parameters of the train network: .*moment1.*that were saved; if you already do, .* move it",
    ):
        ckptstore.mindspore.join("run").resume(other, create_dataset())
    # A file that was cut between two parameters lacks the last ones too: nothing tells which of the two is wrong.
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 6


def test_a_network_of_another_shape_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    train(create_model(), tmp_path / "ckpt")
    with pytest.raises(
        UsageError,
        match="does not fit the train network: .*weight has the shape .* in the file, and .*; use the network",
    ):
        ckptstore.mindspore.join("run").resume(create_model(width=5), create_dataset())
    # The user's mistake does not cost the state: with the right network it is there.
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 6


REFUSED = """
import sys
import ckptstore.mindspore
from ckptstore.errors import UsageError
from tests.mindspore.trainings import create_dataset, create_model

launch = ckptstore.mindspore.join("run")
try:
    launch.resume(create_model(width=5), create_dataset())
except UsageError:
    if "again" in sys.argv:
        launch.resume(create_model(), create_dataset())
"""


@pytest.mark.parametrize(("again", "ending"), [([], "ended: UsageError"), (["again"], "")])
def test_history_tells_of_a_start_that_was_refused(
    catalog: Catalog, tmp_path: Path, again: list[str], ending: str
) -> None:
    """Unless its script caught the error and called `resume` again."""
    train(create_model(), tmp_path / "ckpt")
    subprocess.run([sys.executable, "-c", REFUSED, *again], check=True)
    assert catalog.history("run")[-1].ending == ending


def resumed(batch: int) -> tuple[int, int, int, int]:
    start = ckptstore.mindspore.join("run").resume(create_model(), create_dataset(batch))
    return start.global_step, start.epoch, start.step_in_epoch, start.initial_epoch


def test_an_epoch_of_another_length(catalog: Catalog, tmp_path: Path) -> None:
    """12 samples in steps of 2: the end of an epoch is one with any batch; inside one, samples decide."""
    train(create_model(), tmp_path / "ckpt", steps=1)
    assert resumed(batch=4) == (3, 1, 3, 1)
    assert resumed(batch=5) == (3, 1, 3, 1)  # of which the last is of 2 samples
    (tmp_path / "ckpt" / "net-1_6.ckpt").unlink()
    with pytest.raises(
        UsageError, match=r"step 5 .* the 10 samples .* do not divide into steps of 4; .*earlier step that works is 4"
    ):
        resumed(batch=4)
    (tmp_path / "ckpt" / "net-1_5.ckpt").unlink()
    assert resumed(batch=4) == (2, 1, 2, 0)
    assert resumed(batch=1) == (8, 1, 8, 0)
    with pytest.raises(
        UsageError, match="an epoch had 12 samples, now it has 15, and the rest of a started epoch cannot"
    ):
        resumed(batch=5)


def test_data_that_grew_goes_on_at_the_end_of_an_epoch(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody changed the number of ranks; and only steps are proposed that are saved."""
    for _ in range(2):
        train(create_model(), tmp_path / "ckpt", steps=3)
    Path(catalog.show("run", 12)[0].path).unlink()
    with pytest.raises(UsageError) as stopped:
        ckptstore.mindspore.join("run").resume(create_model(), create_dataset().repeat(4))
    assert "an epoch had 6 steps, now it has 24; an epoch had 12 samples, now it has 48" in stopped.value.message
    assert stopped.value.hint == (
        "use the data that it was trained with; the newest earlier step that works is 6: resume(step=6)"
    )
    with caplog.at_level(logging.WARNING, "ckptstore"):
        start = ckptstore.mindspore.join("run").resume(create_model(), create_dataset().repeat(4), step=6)
    assert (start.global_step, start.initial_epoch) == (24, 1)
    assert "goes on after an epoch's end with other data: an epoch had 12 samples, now it has 48" in caplog.text


def test_without_resume_the_count_starts_at_the_initial_epoch(catalog: Catalog, tmp_path: Path) -> None:
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=3)
    model.train(3, dataset, callbacks=[ckpt_cb, launch.registrar(ckpt_cb)], initial_epoch=2)
    assert [save.tally.global_step for save in catalog.saves("run")] == [18, 15]


class Watching(Callback):
    """Notes the first number of each batch, and raises after one of the steps."""

    def __init__(self, raises_at: int = 0) -> None:
        super().__init__()
        self.batches: list[int] = []
        self._raises_at = raises_at

    def on_train_step_end(self, run_context: RunContext) -> None:
        self.batches.append(int(run_context.original_args().train_dataset_element[0].asnumpy()[0, 0]))
        if len(self.batches) == self._raises_at:
            raise RuntimeError("fault")


def test_a_training_for_each_epoch_starts_at_its_epoch_after_a_resume_too(catalog: Catalog, tmp_path: Path) -> None:
    """MindSpore keeps at the dataset where the first one starts, and would start each of them there."""

    def launched(*more: Callback) -> Start:
        model = create_model(1)
        numbers = np.arange(6, dtype=np.float32).reshape(6, 1) * np.ones((6, 3), np.float32)
        dataset = ds.NumpySlicesDataset({"x": numbers, "y": np.zeros(6, np.int32)}, shuffle=False).batch(1)
        launch = ckptstore.mindspore.join("run")
        start = launch.resume(model, dataset)
        ckpt_cb = saving(tmp_path / "ckpt", keep_checkpoint_max=5)
        for epoch in range(start.initial_epoch, 4):
            model.train(epoch + 1, dataset, callbacks=[ckpt_cb, *more, launch.registrar(ckpt_cb)], initial_epoch=epoch)
        assert launch.global_step == 24
        return start

    with pytest.raises(RuntimeError, match="fault"):
        launched(Watching(10))
    watching = Watching()
    assert launched(watching).global_step == 10
    assert watching.batches == [4, 5, *range(6), *range(6)]
    there = [24, 22, 20, 18, 16, 10, 8, 6, 4, 2]  # MindSpore keeps five of a launch
    assert [save.tally.global_step for save in catalog.saves("run")] == there
    assert len(list((tmp_path / "ckpt").glob("*.ckpt"))) == len(there)


@pytest.mark.parametrize(
    ("sink_size", "first", "start"),
    [
        (-1, 15, 12),
        pytest.param(-1, 12, 12, marks=pytest.mark.long),
        (5, 15, 15),
        (4, 15, 12),
        pytest.param(None, 15, 15, marks=pytest.mark.long),
    ],
)
def test_data_that_sinks_begins_with_a_whole_sink(
    catalog: Catalog, tmp_path: Path, sink_size: int | None, first: int, start: int
) -> None:
    """The CPU has no sink: what MindSpore tells its callbacks there is made by hand."""
    for _ in range(3):
        train(create_model(), tmp_path / "ckpt", steps=1)
    for step in (*range(first + 1, 19), *range(start + 1, first)):
        Path(catalog.show("run", step)[0].path).unlink()
    launch = ckptstore.mindspore.join("run")
    dataset = create_dataset()
    assert launch.resume(create_model(), dataset).global_step == first
    params = _InternalCallbackParam()
    params.train_dataset = dataset
    params.dataset_sink_mode = sink_size is not None
    params.sink_size = sink_size
    with nullcontext() if start == first else pytest.raises(RefusedError, match=rf"resume\(step={start}\)$"):
        check_start(params, first, launch.earlier_start)
    if start != first:
        again = ckptstore.mindspore.join("run").resume(create_model(), dataset, step=start)
        check_start(params, again.global_step, launch.earlier_start)


def test_another_dataset_than_resume_got_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    """It would start at its beginning, and each step after that be counted wrong."""
    train(create_model(), tmp_path / "ckpt")
    job = Job()
    callbacks = [ModelCheckpoint("net", str(tmp_path / "ckpt")), job.registrar()]
    with pytest.raises(RefusedError, match="goes on after step 6, but the dataset that it gets starts after step 0"):
        job.model.train(2, create_dataset(), callbacks=callbacks, initial_epoch=job.start.initial_epoch)
    job.train(*callbacks, epochs=2)
    assert job.launch.global_step == 12


def test_a_broken_hook_is_logged_once_and_training_goes_on(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> None:
        raise ZeroDivisionError("broken on purpose")

    job = Job()
    monkeypatch.setattr(NetworkState, "optimizer_step", broken)
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=1)
    with caplog.at_level(logging.ERROR, "ckptstore"):
        job.train(ckpt_cb, job.registrar(ckpt_cb))
    assert (tmp_path / "ckpt" / "net-1_6.ckpt").exists()
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(messages) == len(set(messages))
    assert all("training goes on" in message for message in messages)


def test_communication_that_was_not_started_is_noticed(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    with pytest.raises(UsageError, match="one of 2 processes.*init.. before"):
        ckptstore.mindspore.join("run")


class Breaking(nn.Dense):
    """Fails in the middle of a step: MindSpore goes on taking what is called for a part of it (PyNative)."""

    left = 0

    def construct(self, x: object) -> object:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("on purpose")
        return super().construct(x)


def test_a_network_that_failed_in_the_middle_of_a_step_goes_on_after_a_resume(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None]
) -> None:
    set_mode(ms.PYNATIVE_MODE)

    def trained(name: str, fails_at: int) -> bytes:
        ms.set_seed(1)
        network, dataset = Breaking(3, 4), create_dataset()
        network.left = fails_at
        model = create_model(network=network)
        for is_last in (False, True) if fails_at else (True,):
            launch = ckptstore.mindspore.join(name)
            flag = _pynative_executor.grad_flag()
            _pynative_executor.set_grad_flag(True)  # an exception may leave it so: no parameter may be copied to
            start = launch.resume(model, dataset)
            network.weight.asnumpy()  # MindSpore looks at the flag when it comes to it
            _pynative_executor.set_grad_flag(flag)
            ckpt_cb = saving(tmp_path / name)
            callbacks = [ckpt_cb, launch.registrar(ckpt_cb)]
            with nullcontext() if is_last else pytest.raises(RuntimeError, match="on purpose"):
                model.train(2, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch)
        assert values(model)["global_step"] == 12
        return bytes(network.weight.asnumpy().tobytes())

    assert trained("retried", 6) == trained("undisturbed", 0)


class Interrupted(nn.TrainOneStepCell):
    """A signal arrives when the update is applied and MindSpore has not yet noted the step's outputs."""

    left = 3

    def __call__(self, *inputs: object) -> object:
        outputs = super().__call__(*inputs)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return outputs


def test_an_update_that_only_the_optimizer_knows_of_is_counted(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None]
) -> None:
    """In GRAPH_MODE, where a step is one call of the device; in PyNative a part of it may be missing."""
    set_mode(ms.GRAPH_MODE)
    job = Job(create_model(cell=Interrupted))
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=100, exception_save=True)
    with pytest.raises(KeyboardInterrupt):
        job.train(ckpt_cb, job.registrar(ckpt_cb), epochs=2)
    job.launch.adopt()
    (file,) = catalog.files("run")
    assert (file.global_step, file.optimizer_step) == (3, 3)


def test_a_callback_that_is_not_known_is_named_and_stops_nothing(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=3)
    job.train(ckpt_cb, job.registrar(ckpt_cb, RaiseAt(100)))
    assert caplog.text.count("does not know what RaiseAt saves: it is not watched") == 1
    assert [save.tally.global_step for save in catalog.saves("run")] == [6, 3]


def test_the_optimizer_is_asked_at_saves_only(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a parameter waits for the device: once a step would slow training."""
    asked: list[int] = []
    ask = NetworkState.optimizer_step
    monkeypatch.setattr(NetworkState, "optimizer_step", lambda self: (asked.append(1), ask(self))[1])
    train(create_model(), tmp_path / "ckpt", steps=3)
    assert len(asked) == 2 + 2  # at the beginning and the end, and at the saves of steps 3 and 6


def test_a_branch_goes_on_from_the_step_that_was_asked_for(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, end = to_step_12(tmp_path)
    assert start == 0
    ckptstore.mindspore.join("run").resume(create_model(), create_dataset(), step=4)  # and dies
    plan = catalog.resolve("run").plan
    assert plan.global_step == 4
    assert to_step_12(tmp_path) == (4, end)
    assert catalog.resolve("run").plan.global_step == 12
    assert catalog.resolve("run").plan.launch.id != plan.launch.id
    given_up = {row.tally.global_step for row in catalog.saves("run") if row.abandoned}
    assert given_up == {6, 8, 10, 12}
    assert "going on after step 4 (epoch 1, step 4 of 6), saved by launch" in caplog.text
    start_again = ckptstore.mindspore.join("run").resume(create_model(), create_dataset(), lineage=plan.launch.id)
    assert (start_again.global_step, start_again.plan.launch.id) == (12, plan.launch.id)
