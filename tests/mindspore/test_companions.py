"""What is in no checkpoint of MindSpore and goes on after a restart: callbacks, random numbers, averages of a rank."""

import json
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.experimental import optim
from mindspore.train import Callback, EarlyStopping, LambdaCallback, LearningRateScheduler, ReduceLROnPlateau
from mindspore.train.callback._callback import CallbackManager

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.core.model import Assignment, FileState, RestorePlan
from ckptstore.errors import UsageError
from ckptstore.mindspore import extra_state
from ckptstore.mindspore.extra_state import Keeper, Remembered
from ckptstore.mindspore.hook_code import sets_parameters
from ckptstore.retention.policy import Policy
from ckptstore.training import companions
from ckptstore.training.companions import Companions
from tests.mindspore.trainings import (
    DoAt,
    ExitAt,
    Job,
    RaiseAt,
    complaints,
    create_dataset,
    create_model,
    leaving,
    on_purpose,
    saving,
    two_ranks,
)

AN_EPOCH = 6


@pytest.fixture(autouse=True)
def random_states() -> Iterator[None]:
    before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


class RaiseAfterEpoch(Callback):
    """An exception when all before it have heard of the end of an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_train_epoch_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_epoch_num == self.epoch:
            on_purpose()


class RaiseInEpoch(RaiseAfterEpoch):
    """An exception before the next step begins, after the registrar: nothing of the epoch's end is missing."""

    def on_train_epoch_end(self, run_context: Any) -> None:
        pass

    def on_train_epoch_begin(self, run_context: Any) -> None:
        if run_context.original_args().cur_epoch_num == self.epoch + 1:
            on_purpose()


class Counting(Callback):
    """A callback of the user's: it counts, draws, and forgets at the begin of a training."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = self.epochs = 0
        self.drawn: list[float] = []
        self.of_epoch = 0.0

    def on_train_begin(self, run_context: Any) -> None:
        self.steps = self.epochs = 0

    def on_train_epoch_begin(self, run_context: Any) -> None:
        self.epochs += 1
        self.of_epoch = float(np.random.random())

    def on_train_step_begin(self, run_context: Any) -> None:
        self.drawn.append(random.random() + np.random.random())  # noqa: S311

    def on_train_step_end(self, run_context: Any) -> None:
        self.steps += 1


class Telling(Counting):
    """The same, and it says what its state is."""

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.epochs = state["steps"], state["epochs"]


def train(
    directory: Path, *callbacks: Callback, run: str = "run", every: int = 2, epochs: int = 12, **asked: Any
) -> Job:
    """A launch as a process of its own begins it; what raises comes after the registrar."""
    ms.set_seed(1)  # NumPy's and Python's too
    job = Job(launch=ckptstore.mindspore.join(run), model=asked.pop("model", None), dataset=asked.pop("dataset", None))
    ckpt_cb = saving(directory / run, save_checkpoint_steps=every)
    faults = [each for each in callbacks if isinstance(each, (RaiseAt, RaiseAfterEpoch))]
    others = [each for each in callbacks if each not in faults]
    (job.fail if faults else job.train)(ckpt_cb, *others, job.registrar(ckpt_cb, **asked), *faults, epochs=epochs)
    return job


def weights(job: Job) -> dict[str, bytes]:
    return {item.name: item.asnumpy().tobytes() for item in job.model.train_network.get_parameters()}


def stopping() -> EarlyStopping:
    return EarlyStopping(monitor="loss", min_delta=0.05, patience=5)


def reducing() -> ReduceLROnPlateau:
    return ReduceLROnPlateau(monitor="loss", min_delta=0.05, patience=2, factor=0.5, cooldown=1)


def newest(directory: Path) -> Path:
    return max((directory / "run").glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)


def test_early_stopping_stops_where_it_would_have(tmp_path: Path, catalog: Catalog) -> None:
    whole = train(tmp_path, stopping(), run="whole", epochs=30)
    end = whole.launch.global_step
    assert AN_EPOCH * 5 < end < AN_EPOCH * 20
    train(tmp_path, stopping(), RaiseInEpoch(end // AN_EPOCH - 2), epochs=30)
    train(tmp_path, stopping(), RaiseAt(AN_EPOCH + 3), epochs=30)
    last = train(tmp_path, stopping(), epochs=30)
    assert last.launch.global_step == end
    assert weights(last) == weights(whole)


def test_a_training_that_was_stopped_trains_no_more(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    first = train(tmp_path, stopping(), epochs=30)
    again = train(tmp_path, stopping(), epochs=30)
    assert again.launch.global_step == first.launch.global_step
    assert weights(again) == weights(first)
    assert "training was stopped by EarlyStopping after epoch" in caplog.text
    patient = EarlyStopping(monitor="loss", min_delta=0.05, patience=7)
    assert train(tmp_path, patient, epochs=30).launch.global_step == first.launch.global_step + 2 * AN_EPOCH
    assert train(tmp_path, epochs=30).launch.global_step == 30 * AN_EPOCH


def test_callbacks_in_a_tuple_count_as_in_a_list(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    ends = []
    for _ in range(2):
        ms.set_seed(1)
        job = Job()
        ckpt_cb = saving(tmp_path / "run")
        callbacks = (ckpt_cb, stopping(), job.registrar(ckpt_cb))
        job.model.train(30, job.dataset, callbacks=callbacks, initial_epoch=job.start.initial_epoch)
        ends.append(job.launch.global_step)
    assert ends[0] == ends[1] < AN_EPOCH * 30
    assert "training was stopped by EarlyStopping after epoch" in caplog.text
    assert complaints(caplog) == []


@pytest.mark.parametrize(
    "fault", [pytest.param(lambda: RaiseInEpoch(6), marks=pytest.mark.long), lambda: RaiseAt(6 * AN_EPOCH + 3)]
)
def test_learning_rates_go_on(tmp_path: Path, catalog: Catalog, fault: Callable[[], Callback]) -> None:
    whole = train(tmp_path, reducing(), run="whole", every=3)
    train(tmp_path, reducing(), fault(), every=3)
    last = train(tmp_path, reducing(), every=3)
    assert last.start.global_step > 0
    assert weights(last) == weights(whole)
    assert float(whole.model.train_network.parameters_dict()["learning_rate"].asnumpy()) < 0.05


@pytest.mark.parametrize(("make", "fault"), [(Counting, lambda: RaiseInEpoch(2)), (Telling, lambda: RaiseAt(16))])
def test_a_callback_of_the_users_goes_on_and_draws_what_came_next(
    tmp_path: Path, catalog: Catalog, make: type[Counting], fault: Callable[[], Callback]
) -> None:
    undisturbed, before, after = make(), make(), make()
    train(tmp_path, undisturbed, run="whole", epochs=4)
    train(tmp_path, before, fault(), epochs=4, keeps=[before])
    job = train(tmp_path, after, epochs=4, keeps=[after])
    assert (after.steps, after.epochs) == (24, 4)
    assert after.drawn[-(24 - job.start.global_step) :] == undisturbed.drawn[job.start.global_step :]


class Best(NamedTuple):
    step: int
    loss: float


class Attributes(dict[str, Any]):
    """Its entries are its attributes, as in many scripts."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)
        self.__dict__ = self


class Gathering(Callback):
    """Its data are of classes that JSON does not tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.best = Best(0, 1.0)
        self.marks: dict[str, list[int]] = defaultdict(list)
        self.steps: tuple[int, ...] = ()
        self.sum = np.float32(0)
        self.sums: list[Any] = []
        self.own = Attributes(steps=0)

    def on_train_step_end(self, run_context: Any) -> None:
        step = run_context.original_args().cur_step_num
        self.best = Best(self.best.step + 1, 0.5)
        self.marks[f"epoch {(step - 1) // AN_EPOCH}"].append(step)
        self.steps = self.steps + (step,)  # noqa: RUF005
        self.sum += np.float32(1)
        self.sums.append(self.sum)
        self.own.steps += 1


def test_data_of_a_kept_callback_comes_back_as_it_was(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    """A tuple came back as a list, and a `defaultdict` as a `dict`: the callback failed in the first steps."""
    undisturbed, before, after = Gathering(), Gathering(), Gathering()
    train(tmp_path, undisturbed, run="whole", epochs=4)
    train(tmp_path, before, RaiseAt(9), epochs=4, keeps=[before])
    train(tmp_path, after, epochs=4, keeps=[after])
    assert vars(after) == vars(undisturbed)
    assert {name: type(value) for name, value in vars(after).items()} == {
        name: type(value) for name, value in vars(undisturbed).items()
    }
    assert complaints(caplog) == []


@dataclass(eq=False)
class Defaulting(Callback):
    """Its attribute has a default value, which is an attribute of its class."""

    steps: int = 0

    def on_train_step_end(self, run_context: Any) -> None:
        self.steps += 1


def test_attributes_with_a_default_value_go_on(tmp_path: Path, catalog: Catalog) -> None:
    """They were taken for methods, and started over."""
    before, after = Defaulting(), Defaulting()
    train(tmp_path, before, RaiseAt(9), epochs=4, keeps=[before])
    train(tmp_path, after, epochs=4, keeps=[after])
    assert after.steps == 24


class Charting(Callback):
    """It keeps a value for each epoch, by the epoch's number."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, float] = {}

    def on_train_epoch_end(self, run_context: Any) -> None:
        self.values[run_context.original_args().cur_epoch_num] = 0.5


def test_data_of_a_kept_callback_that_cannot_be_stored_is_named(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, it started over after a restart, and nothing told that."""
    chart = Charting()
    train(tmp_path, chart, epochs=2, keeps=[chart])
    (told,) = complaints(caplog)
    assert told.startswith("Charting is kept without values: only numbers, text, arrays")


@pytest.mark.parametrize("value", [ms.Tensor([1, 2], ms.bfloat16), [1j]], ids=["bfloat16", "complex"])
def test_other_numbers_that_cannot_be_stored_are_named(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    counting = Counting()
    counting.average = value
    train(tmp_path, counting, epochs=2, keeps=[counting])
    (told,) = complaints(caplog)
    assert told.startswith("Counting is kept without average: only numbers, text, arrays")


def test_an_object_that_cannot_be_kept_is_refused(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="keeps has an object that cannot be kept: a Generator has no state_dict"):
        ckptstore.mindspore.join("run").registrar(keeps=[np.random.default_rng(1)])


class RaiseInStep(DoAt):
    """An exception in the step after so many, when it has begun."""

    def __init__(self, step: int) -> None:
        super().__init__(step + 1, on_purpose)

    def on_train_step_begin(self, run_context: object) -> None:
        super().on_train_step_end(run_context)

    def on_train_step_end(self, run_context: object) -> None:
        pass


class Beginning(Callback):
    """A callback with a state that hears of the begin of steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]

    def on_train_step_begin(self, run_context: Any) -> None:
        self.steps += 1


class Decaying(Callback):
    """Multiplies the rate in one hook, itself or in a method of its own."""

    def __init__(self, hook: str, *, in_method: bool = False) -> None:
        super().__init__()
        setattr(self, hook, self.call if in_method else self.decay)

    def call(self, run_context: Any) -> None:
        self.decay(run_context)

    def decay(self, run_context: Any) -> None:
        rate = run_context.original_args().optimizer.learning_rate
        ms.ops.assign(rate, rate * 0.9)


class Drawing(nn.TrainOneStepCell):
    """A step that draws from NumPy's random numbers, in PyNative mode, and may raise after that."""

    raises_after: int | None = None
    draws_from = 0

    def __init__(self, network: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(network, optimizer)
        self.drawn: list[float] = []

    def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        self.drawn.append(float(np.random.random()) if len(self.drawn) >= self.draws_from else 1.0)
        if len(self.drawn) - 1 == self.raises_after:
            on_purpose()
        return super().construct(x * self.drawn[-1], y)


def train_and_save(
    directory: Path, how: str, *, before: Any = (), kept: Any = (), after: Any = (), fails: bool = False, **asked: Any
) -> Job:
    """A launch with a way to save at exceptions."""
    ms.set_seed(1)
    job = Job(launch=ckptstore.mindspore.join(directory.name), **asked)
    if how == "saver":
        saves = [*kept, job.launch.saver(directory, every=5)]
    else:
        ckpt_cb = saving(directory, save_checkpoint_steps=5)
        saves = [ckpt_cb, *kept, job.registrar(ckpt_cb, save_on_exception=True)]
    (job.fail if before or after or fails else job.train)(*before, *saves, *after, epochs=4)
    return job


@pytest.mark.parametrize("how", ["saver", "registrar"])
@pytest.mark.usefixtures("catalog")
@pytest.mark.parametrize(
    "case",
    [
        (Beginning, "after", lambda: RaiseInStep(13), 10, "Beginning may have handled the begin of the next step"),
        (Telling, "after", lambda: RaiseInEpoch(2), 10, "Telling may have handled the begin of the next step"),
        (Telling, "before", lambda: RaiseAt(16), 15, "Telling may not have handled its end"),
        (Beginning, "before", lambda: RaiseAt(16), 16, ""),
        (Telling, "after", lambda: RaiseAt(16), 16, ""),
    ],
    ids=["in a step", "in an epoch's begin", "before it heard", "heard before", "between steps"],
)
def test_what_a_kept_callback_counts_is_that_of_the_saved_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, case: Any
) -> None:
    make, where, fault, restored, why = case
    train_and_save(tmp_path / "run", how, kept=[make()], **{where: [fault()]})
    assert any(
        f"is not saved{'' if how == 'saver' else ' at this exception'}: {why}" in each for each in complaints(caplog)
    ) == bool(why)
    after = make()
    job = train_and_save(tmp_path / "run", how, kept=[after])
    assert job.start.global_step == restored
    assert after.steps == 24


def test_a_callback_that_did_not_hear_of_the_step_that_modelcheckpoint_saved_is_named(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    train_and_save(tmp_path / "run", "registrar", kept=[RaiseAt(5), Telling()], fails=True)
    assert train_and_save(tmp_path / "run", "registrar", kept=[Telling()]).start.global_step == 5
    assert any("ended before Telling handled the end of the step or epoch" in each for each in complaints(caplog))


def test_nothing_is_saved_where_an_exception_comes_before_any_callback_heard(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of a signal handler does."""
    tell = CallbackManager.on_train_step_end

    def raise_at_16(self: CallbackManager, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == 16:
            on_purpose()
        tell(self, run_context)

    with monkeypatch.context() as patch:
        patch.setattr(CallbackManager, "on_train_step_end", raise_at_16)
        train_and_save(tmp_path / "run", "saver", kept=[Telling()], fails=True)
    assert any("step 16 is not saved: Telling may not have handled its end" in each for each in complaints(caplog))
    after = Telling()
    train_and_save(tmp_path / "run", "saver", kept=[after])
    assert after.steps == 24


def _adds(rate: Any) -> None:
    ms.ops.assign_sub(rate, rate * 0.1)


def _copies(rate: Any) -> None:
    rate.copy_(rate * 0.9)


def _multiplies(rate: Any) -> None:
    rate.mul_(0.9)


def _sets(rate: Any) -> None:
    rate.set_data(ms.Tensor(float(rate) * 0.9, rate.dtype))


def _has_each_set(rates: Any) -> list[Any]:
    return [ms.ops.assign(rate, rate * 0.9) for rate in rates]


def _asks_another(rate: Any) -> None:
    _sets(rate)


@pytest.mark.parametrize("hook", [_adds, _copies, _multiplies, _sets, _has_each_set, _asks_another])
def test_a_callback_that_sets_parameters_is_known_by_its_code(hook: Any) -> None:
    assert sets_parameters(LambdaCallback(on_train_step_end=hook))
    assert not sets_parameters(LambdaCallback(on_train_step_begin=hook))


class Inheriting(LearningRateScheduler):
    """It does more in the hook of MindSpore's callback."""

    def step_end(self, run_context: Any) -> None:
        super().step_end(run_context)


class Plotting(Callback):
    """It has the line of a plot follow the loss, by a method that parameters have too."""

    def __init__(self) -> None:
        super().__init__()
        self.line = SimpleNamespace(set_data=lambda *_: None)

    def on_train_step_end(self, run_context: Any) -> None:
        self.line.set_data([1], [float(run_context.original_args().net_outputs)])


def test_a_callback_that_inherits_its_hook_sets_parameters_and_one_that_draws_does_not() -> None:
    assert sets_parameters(Inheriting(lambda rate, _: rate))
    assert not sets_parameters(Plotting())


@pytest.mark.parametrize("how", ["saver", "registrar"])
def test_what_an_interrupted_step_draws_is_drawn_again(
    tmp_path: Path, catalog: Catalog, set_mode: Callable[[int], None], how: str
) -> None:
    set_mode(ms.PYNATIVE_MODE)

    def train_one(run: str, raises_after: int | None = None) -> tuple[Job, list[float]]:
        ms.set_seed(1)
        model = create_model(cell=Drawing)
        model.train_network.raises_after = raises_after
        job = train_and_save(tmp_path / run, how, model=model, fails=raises_after is not None)
        return job, model.train_network.drawn

    whole, undisturbed = train_one("whole")
    train_one("run", raises_after=16)
    job, drawn = train_one("run")
    assert job.start.global_step == 16
    assert drawn == undisturbed[16:]
    assert weights(job) == weights(whole)


def test_nothing_is_saved_where_the_interrupted_step_was_the_first_to_draw(
    tmp_path: Path, catalog: Catalog, set_mode: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The numbers before that draw were not noted: to do so after each step takes time."""
    set_mode(ms.PYNATIVE_MODE)
    model = create_model(cell=Drawing)
    model.train_network.raises_after = model.train_network.draws_from = 16
    train_and_save(tmp_path / "run", "saver", model=model, fails=True)
    (told,) = complaints(caplog)
    assert "step 16 is not saved: the first random numbers were drawn after it" in told
    assert catalog.resolve("run").plan.global_step == 15


def test_nothing_is_saved_where_it_cannot_be_told_of_which_step_the_kept_state_is(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keeper, "doubt", lambda *_, **__: 1 / 0)
    train_and_save(tmp_path / "run", "saver", after=[RaiseInStep(13)])
    assert catalog.resolve("run").plan.global_step == 10


@pytest.mark.parametrize("how", ["saver", "registrar"])
@pytest.mark.parametrize(
    ("hook", "before", "fault", "restored"),
    [
        ("on_train_epoch_end", True, lambda: RaiseAfterEpoch(2), 10),
        ("on_train_epoch_end in a method", True, lambda: RaiseAfterEpoch(2), 10),
        ("on_train_epoch_end", True, lambda: RaiseAt(12), 10),
        ("on_train_epoch_end", False, lambda: RaiseInEpoch(2), 12),
        ("on_train_epoch_begin", False, lambda: RaiseInStep(13), 13),
        ("on_train_epoch_begin", False, lambda: RaiseInStep(12), 10),
        ("on_train_epoch_begin", False, lambda: RaiseAt(16), 16),
        ("on_train_step_begin", False, lambda: RaiseInStep(13), 10),
    ],
    ids=[
        "before an epoch's end",
        "seen in a method",
        "in its last step",
        "after it",
        "in an epoch",
        "in its first step",
        "between steps",
        "of each step, in the next",
    ],
)
def test_a_rate_that_a_callback_sets_goes_on(
    tmp_path: Path,
    catalog: Catalog,
    caplog: pytest.LogCaptureFixture,
    *,
    how: str,
    hook: str,
    before: bool,
    fault: Callable[[], Callback],
    restored: int,
) -> None:
    def decaying() -> Decaying:
        return Decaying(hook.partition(" ")[0], in_method=hook.endswith("method"))

    whole = train_and_save(tmp_path / "whole", how, kept=[decaying()])
    train_and_save(tmp_path / "run", how, kept=[decaying()], **{"before" if before else "after": [fault()]})
    job = train_and_save(tmp_path / "run", how, kept=[decaying()])
    assert job.start.global_step == restored
    assert weights(job) == weights(whole)
    assert any("which had begun before this start: it stays" in each for each in complaints(caplog)) == (
        hook == "on_train_epoch_begin"
    )


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_rate_that_is_set_after_the_last_save_of_an_epoch_goes_on(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, *, is_seen: bool
) -> None:
    """MindSpore saves before an epoch ends; the code of the callback need not tell what it does."""
    if not is_seen:
        monkeypatch.setattr(extra_state, "sets_parameters", lambda *_: False)

    def train_one(run: str, *faults: Callback) -> Job:
        return train(tmp_path, Decaying("on_train_epoch_end"), *faults, run=run, every=6, epochs=4)

    whole = train_one("whole")
    train_one("run", RaiseAt(14))
    job = train_one("run")
    assert job.start.global_step == 12
    assert weights(job) == weights(whole)


@pytest.mark.parametrize("groups", [False, True])
def test_nothing_is_written_where_nothing_is_to_be_kept(tmp_path: Path, catalog: Catalog, *, groups: bool) -> None:
    """Not the rate either that MindSpore's optimizer keeps of each group until it has made one of all."""

    def optimizer(parameters: Any, learning_rate: float) -> nn.Cell:
        return nn.Adam([{"params": [each]} for each in parameters] if groups else parameters, learning_rate)

    train(tmp_path, model=create_model(optimizer=optimizer), epochs=2)
    assert not list(tmp_path.rglob("*.companion"))


def test_a_companion_that_is_cut_is_told_and_costs_no_weights(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    """What else may be wrong with one: tests/training/test_companions.py."""
    train(tmp_path, stopping(), RaiseAt(15))
    companion = newest(tmp_path).with_suffix(".companion")
    companion.write_bytes(companion.read_bytes()[:-9])
    job = train(tmp_path, stopping(), epochs=3)
    assert job.start.global_step == 14
    assert f"{companion} is cut or damaged: it is not used" in complaints(caplog)
    assert any(
        "no saved state was found" in each and "EarlyStopping: they start from their initial state" in each
        for each in complaints(caplog)
    )
    assert job.launch.global_step == 18


def test_a_companion_with_a_type_that_is_none_stops_no_start(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    """NumPy reads the name of a type as Python code: a start ended in a SyntaxError."""
    train(tmp_path, stopping(), RaiseAt(15))
    file = next(each for each in catalog.files("run") if each.global_step == 14)
    companions.write(file, {"random": {"__array__": ["<f4,(", [1], ""]}}, durable=False)
    assert train(tmp_path, stopping(), epochs=3).start.global_step == 14
    assert f"the companion of {file.path} is not used: '<f4,(' is no type of numbers" in complaints(caplog)


def test_an_epoch_whose_end_nobody_heard_is_told(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    class RaiseFirst(RaiseAfterEpoch):
        """Before any other hears of it."""

    job = Job()
    ckpt_cb, first = saving(tmp_path / "run"), stopping()
    job.fail(ckpt_cb, RaiseFirst(2), first, job.registrar(ckpt_cb), epochs=4)
    after = stopping()
    assert train(tmp_path, after, epochs=4).start.global_step == 12
    assert any("ended before EarlyStopping handled the end of the step or epoch" in each for each in complaints(caplog))
    assert after.best < np.inf


def test_a_callback_behind_the_registrar_is_named(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    ckpt_cb = saving(tmp_path / "run")
    job.train(ckpt_cb, job.registrar(ckpt_cb), stopping())
    assert any("EarlyStopping comes after the registrar" in each for each in complaints(caplog))


def test_a_state_that_cannot_be_kept_stops_nothing(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    class Bad(Telling):
        def state_dict(self) -> dict[str, Any]:
            raise OSError("on purpose")

    assert train(tmp_path, Bad(), stopping(), epochs=2).launch.global_step == 12
    assert any("the state of Bad is not kept" in each for each in complaints(caplog))
    content = json.loads(newest(tmp_path).with_suffix(".companion").read_text())["content"]
    assert (list(content["callbacks"]), list(content["alike"])) == ([], ["EarlyStopping"])


def test_companions_of_files_that_mindspore_deletes_go_too(tmp_path: Path, catalog: Catalog) -> None:
    job = Job()
    ckpt_cb = saving(tmp_path / "run", keep_checkpoint_max=2)
    job.train(ckpt_cb, stopping(), job.registrar(ckpt_cb), epochs=4)
    stems = {path.stem for path in (tmp_path / "run").glob("*.ckpt")}
    assert {path.stem for path in (tmp_path / "run").glob("*.companion")} == stems
    assert len(stems) == 2


def test_gc_takes_companions_along_and_undo_brings_them_back(tmp_path: Path, catalog: Catalog) -> None:
    train(tmp_path, stopping(), RaiseAt(15))
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert sum(name.endswith(".companion") for name in before) == 7
    plan = catalog.plan_gc("run", Policy(keep_last=2))
    catalog.execute(plan, allow_mass_delete=True)
    names = {path.name for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert sorted(name for name in names if name.endswith((".ckpt", ".companion"))) == [
        "net-2_6.ckpt",
        "net-2_6.companion",
        "net-3_2.ckpt",
        "net-3_2.companion",
    ]
    catalog.undo("run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before
    assert catalog.scan(tmp_path / "run") is not None


def test_what_a_rank_has_of_its_own_comes_back_though_a_replica_stands_in(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a loss of its file, whose record the plan's launch still has."""
    launches = two_ranks(catalog)
    network = nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4))
    files = []
    for launch in launches:
        (tmp_path / f"rank_{launch.rank}").mkdir()
        path = tmp_path / f"rank_{launch.rank}" / "net-1_2.ckpt"
        ms.save_checkpoint(network, str(path))
        files.append(launch.register(path, global_step=2))
        averages = {name: np.full(4, launch.rank + 5, np.float32) for name in ("1.moving_mean", "1.moving_variance")}
        kept = Companions(launch.live_files.at, durable=False)
        kept.keep(str(path), 2, lambda: {"averages": extra_state.plain(averages)})  # noqa: B023 — called at once
    plan = RestorePlan(
        launch=launches[0].facts, global_step=2, ranks=tuple(Assignment(rank, files[1]) for rank in (0, 1))
    )
    Remembered(plan, [files[0]], launches[1]).put(network)
    assert network[1].moving_mean.asnumpy().tolist() == [0.0] * 4  # its own file has them
    Remembered(plan, [files[0]], launches[0]).put(network)
    assert network[1].moving_mean.asnumpy().tolist() == [5.0] * 4
    assert network[1].moving_variance.asnumpy().tolist() == [5.0] * 4
    assert not complaints(caplog)
    Remembered(plan, [], launches[0]).put(network)
    assert "rank 0 uses 2 moving averages of rank 1, because it loads that rank's file" in complaints(caplog)[0]


def test_a_graceful_exit_keeps_what_callbacks_were_before_it(tmp_path: Path, catalog: Catalog, exits: None) -> None:
    """MindSpore tells of the end of an epoch in its middle, and then saves a second time."""
    job = Job()
    (tmp_path / "flag.json").write_text('{"GracefulExit": 0}')
    exit_cb, ckpt_cb = leaving(tmp_path), saving(tmp_path / "run", save_checkpoint_steps=100)
    watched = stopping()
    job.train(ExitAt(9), exit_cb, ckpt_cb, watched, reducing(), job.registrar(exit_cb, ckpt_cb), epochs=4)
    left = [Path(file.path) for file in catalog.files("run", kind="graceful_exit") if file.state is FileState.COMPLETE]
    content = json.loads(left[0].with_suffix(".companion").read_text())["content"]
    assert content["of"]["global_step"] == job.launch.global_step
    assert content["heard_all"]
    assert watched.wait == 1
    assert content["alike"]["EarlyStopping"]["wait"] == 0


class Experimental(nn.Cell):
    """A train cell with an optimizer of `mindspore.experimental`, whose rates are no parameters of the cell."""

    def __init__(self, loss: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.loss, self.optimizer = loss, optimizer
        self.grad = ms.ops.GradOperation(get_by_list=True)

    def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        self.optimizer(self.grad(self.loss, self.optimizer.parameters)(x, y))
        return self.loss(x, y)


class Scheduling(Callback):
    def __init__(self, hook: str, schedule: Any) -> None:
        super().__init__()
        self.schedule = schedule
        setattr(self, hook, lambda _: self.schedule.step())


def every_fifth(optimizer: nn.Cell) -> Any:
    return optim.lr_scheduler.StepLR(optimizer, 5, 0.5)


def one_after_the_other(optimizer: nn.Cell) -> Any:
    schedules = [every_fifth(optimizer), optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)]
    return optim.lr_scheduler.SequentialLR(optimizer, schedules, [3])


@pytest.mark.parametrize("make", [every_fifth, one_after_the_other])
@pytest.mark.parametrize("hook", ["on_train_step_end", "on_train_epoch_end"])
@pytest.mark.parametrize("how", ["saver", "registrar"])
def test_what_an_optimizer_holds_outside_of_the_train_cell_goes_on(
    tmp_path: Path,
    catalog: Catalog,
    set_mode: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
    *,
    how: str,
    hook: str,
    make: Callable[[nn.Cell], Any],
) -> None:
    """The rate, and `mu_product` of NAdam; of a scheduler what it counts."""
    set_mode(ms.PYNATIVE_MODE)

    def train_one(run: str, *faults: Callback) -> Job:
        ms.set_seed(1)

        def optimizer(parameters: Any, learning_rate: float) -> nn.Cell:
            return optim.NAdam(parameters, lr=learning_rate)

        model = create_model(optimizer=optimizer, cell=Experimental)
        schedule = Scheduling(hook, make(model.train_network.optimizer))
        return train_and_save(tmp_path / run, how, model=model, kept=[schedule], after=faults)

    whole = train_one("whole")
    train_one("run", RaiseAt(13))
    job = train_one("run")
    assert job.start.global_step == 13
    assert weights(job) == weights(whole)
    assert complaints(caplog) == []
    for path in (tmp_path / "run").glob("*.companion"):
        path.unlink()
    train_one("run")
    (told,) = complaints(caplog)
    assert "for optimizer.learning_rate_group_0, optimizer.mu_product_bias, optimizer.mu_product_weight: " in told


class Scaled(Experimental):
    """A train cell with a loss scale that is no cell: its parameters are none of the train network's."""

    def __init__(self, loss: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(loss, optimizer)
        self.first, self.second = ms.amp.DynamicLossScaler(2.0, 2, 4), ms.amp.DynamicLossScaler(2.0**30, 2, 5)

    def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        self.optimizer(self.grad(self.loss, self.optimizer.parameters)(x, y))
        self.first.adjust(ms.Tensor(True))  # noqa: FBT003
        self.second.adjust(ms.Tensor(False))  # noqa: FBT003
        return self.loss(x, y)

    def scales(self) -> list[float]:
        return [float(each.asnumpy()) for one in (self.first, self.second) for each in (one.scale_value, one.counter)]


@pytest.mark.parametrize("how", ["saver", "registrar"])
def test_a_loss_scale_of_a_train_cell__before_began_anew_in_silence__now_goes_on(
    tmp_path: Path, catalog: Catalog, set_mode: Callable[[int], None], caplog: pytest.LogCaptureFixture, *, how: str
) -> None:
    set_mode(ms.PYNATIVE_MODE)
    whole = train_and_save(tmp_path / "whole", how, model=create_model(cell=Scaled))
    train_and_save(tmp_path / "run", how, model=create_model(cell=Scaled), after=[RaiseAt(13)])
    job = train_and_save(tmp_path / "run", how, model=create_model(cell=Scaled))
    assert job.start.global_step == 13
    assert job.model.train_network.scales() == whole.model.train_network.scales() == [2.0**7, 0, 2.0**6, 0]
    assert complaints(caplog) == []


@pytest.mark.parametrize("has_own", [False, True])
def test_a_scheduler_that_no_callback_has_is_told(
    tmp_path: Path,
    catalog: Catalog,
    set_mode: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
    *,
    has_own: bool,
) -> None:
    set_mode(ms.PYNATIVE_MODE)

    def optimizer(parameters: Any, learning_rate: float) -> nn.Cell:
        return optim.Adam(parameters, lr=learning_rate)

    model = create_model(optimizer=optimizer, cell=Experimental)
    schedule = every_fifth(model.train_network.optimizer)
    steps = LambdaCallback(on_train_epoch_end=lambda _: schedule.step())
    steps.schedule = schedule if has_own else None
    train_and_save(tmp_path / "run", "saver", model=model, kept=[steps])
    assert [each.partition(" that ")[0] for each in complaints(caplog)] == (
        [] if has_own else ["LambdaCallback uses a scheduler of learning rates"]
    )


def test_a_rate_that_is_set_when_training_stops_in_mid_epoch_is_not_restored(
    tmp_path: Path, catalog: Catalog, exits: None
) -> None:
    """MindSpore calls the hooks for the epoch's end then; OnRequestExit saves after them."""

    def train_one(run: str, *faults: Callback) -> Job:
        ms.set_seed(1)
        job = Job(launch=ckptstore.mindspore.join(run))
        exit_cb = leaving(tmp_path / run)
        job.train(*faults, exit_cb, Decaying("on_train_epoch_end"), job.registrar(exit_cb), epochs=4)
        return job

    whole = train_one("whole")
    train_one("run", ExitAt(9))
    job = train_one("run")
    assert job.start.step_in_epoch not in {0, AN_EPOCH}
    assert weights(job) == weights(whole)


def test_debris_of_companions_is_found(tmp_path: Path, catalog: Catalog) -> None:
    train(tmp_path, stopping(), RaiseAt(15))
    old, gone = tmp_path / "run" / "net-1_2.companion", tmp_path / "run" / "net-1_4.companion"
    draft = tmp_path / "run" / ".net-2_2.companion.a1b2c3"
    draft.write_text("{")
    gone.with_suffix(".ckpt").unlink()
    for path in (old, gone, draft):
        os.utime(path, (1, 1))
    plan = catalog.plan_gc("run", Policy(keep_last=50))
    assert sorted(each.path for each in plan.debris) == sorted(map(str, (draft, gone)))
    catalog.execute(plan)
    assert old.exists()
    assert not gone.exists()
    assert not draft.exists()


@pytest.mark.parametrize("evaluated", ["another dataset", "the trained dataset", "a part of it"])
def test_early_stopping_by_evaluations_inside_fit(tmp_path: Path, catalog: Catalog, evaluated: str) -> None:
    """MindSpore evaluates before callbacks hear of an epoch's end; the registrar is among the evaluation's too.

    After a restart, an evaluation of the trained dataset left out its first batches, or failed at each start.
    """

    def fit(*faults: Callback, run: str) -> Job:
        ms.set_seed(1)
        loss = {"loss": nn.Loss()}
        job = Job(create_model(metrics=loss), launch=ckptstore.mindspore.join(run))
        ckpt_cb = saving(tmp_path / run, save_checkpoint_steps=3)
        watched = EarlyStopping(monitor="eval_loss", min_delta=0.05, patience=3)
        callbacks = [ckpt_cb, watched, job.registrar(ckpt_cb), *faults]
        with pytest.raises(RuntimeError, match="on purpose") if faults else nullcontext():
            valid = {"another dataset": create_dataset(), "the trained dataset": job.dataset}
            of_epochs = {"callbacks": callbacks, "initial_epoch": job.start.initial_epoch}
            job.model.fit(20, job.dataset, valid.get(evaluated, job.dataset.take(2)), **of_epochs)
        return job

    whole = fit(run="whole")
    fit(RaiseInEpoch(2), run="run")
    fit(RaiseAt(4), run="run")
    assert fit(run="run").launch.global_step == whole.launch.global_step < 20 * AN_EPOCH


def test_evaluations_of_the_trained_dataset_before_training_and_as_an_epoch_begins(
    tmp_path: Path, catalog: Catalog
) -> None:
    """After a restart, the first of them left out batches, or failed at each start."""

    class Evaluates(Callback):
        def __init__(self, job: Job) -> None:
            super().__init__()
            self.job = job
            self.losses: list[float] = []

        def on_train_epoch_begin(self, run_context: Any) -> None:
            self.losses.append(self.job.model.eval(self.job.dataset)["loss"])

    def evaluated(*faults: Callback, run: str) -> list[float]:
        ms.set_seed(1)
        job = Job(create_model(metrics={"loss": nn.Loss()}), launch=ckptstore.mindspore.join(run))
        ckpt_cb, evaluates = saving(tmp_path / run, save_checkpoint_steps=3), Evaluates(job)
        before = job.model.eval(job.dataset)["loss"]
        (job.fail if faults else job.train)(evaluates, ckpt_cb, job.registrar(ckpt_cb), *faults, epochs=4)
        return [before, *evaluates.losses]

    _, *whole = evaluated(run="whole")
    evaluated(RaiseAt(2 * AN_EPOCH + 2), run="run")
    assert evaluated(run="run") == [whole[2], *whole[2:]]


def test_a_dataset_made_of_the_trained_one_begins_anew_after_its_evaluation(tmp_path: Path, catalog: Catalog) -> None:
    """Evaluated before training, it kept the place of the trained one: `Model.fit` left out batches of it for ever."""
    first = Job()
    first.train(saving(tmp_path / "ckpt"), first.registrar())
    job = Job(create_model(metrics={"loss": nn.Loss()}))
    some = job.dataset.take(AN_EPOCH)
    job.model.eval(some)
    job.train(saving(tmp_path / "ckpt"), job.registrar(), epochs=2)
    assert len(list(some.create_tuple_iterator(num_epochs=1))) == AN_EPOCH
