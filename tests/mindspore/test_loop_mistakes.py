"""What people get wrong with a functional loop is said at once, and what they give it is saved and brought back."""

import json
import multiprocessing
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Parameter, ParameterTuple, Tensor, mint, nn, ops
from mindspore import dataset as ds
from mindspore.experimental import optim

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.disk.files import digest
from ckptstore.errors import RefusedError, UsageError
from ckptstore.mindspore import TrainState, extra_state
from ckptstore.training import rhythm
from tests.mindspore.loops import Trained
from tests.mindspore.trainings import DoAt, Job, complaints, create_dataset, create_model, saving


@pytest.fixture(autouse=True)
def _own_catalog(catalog: Catalog) -> None:
    """Every launch is in the catalog of the test."""


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda of: nn.Momentum(of, 0.1, 0.9),
        lambda of: nn.AdamWeightDecay(of, 0.1),
        pytest.param(lambda of: nn.SGD(of, 0.1), marks=pytest.mark.long),
        lambda of: optim.AdamW(of, lr=0.1),
        pytest.param(lambda of: optim.SGD(of, lr=0.1, momentum=0.9), marks=pytest.mark.long),
        lambda of: mint.optim.SGD(of, lr=0.1, momentum=0.9),
        lambda of: nn.Adam(of, nn.ExponentialDecayLR(0.1, 0.9, 2)),
    ],
)
@pytest.mark.parametrize("form", ["safetensors", pytest.param("ckpt", marks=pytest.mark.long)])
def test_every_optimizer_comes_back(tmp_path: Path, optimizer: Callable[[Any], Any], form: str) -> None:
    ms.set_seed(1)
    first = Trained(optimizer)
    first.train(tmp_path / "ckpt", format=form)
    ms.set_seed(2)
    second = Trained(optimizer)
    assert second.values() != first.values()
    again = second.loop(tmp_path / "ckpt", format=form)
    assert again.global_step == 12
    assert second.values() == first.values()
    assert list(again) == []


class Shadow(nn.Cell):
    """Averaged weights as the tutorials have them: the clones of a network's parameters, in a cell."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.averages = ParameterTuple(network.get_parameters()).clone("average", "same")


class Average:
    """A moving average of a network's parameters, kept in one of several ways; it is none of the training's state."""

    def __init__(self, network: nn.Cell, way: str) -> None:
        self.network = network
        first = {item.name: Parameter(item.copy(), name=item.name) for item in network.get_parameters()}
        self.by_name = first if way not in ("network", "cell") else {}
        self.copy = nn.Dense(3, 4) if way == "network" else None
        self.given = {"average": self}
        if way == "cell":
            shadow = Shadow(network)
            self.by_name = dict(zip(first, shadow.averages, strict=True))
            self.given = {"average": shadow}
        if way == "network":
            self.given["copy"] = self.copy
        if way == "of its own":
            self.state_dict = lambda: {"by_name": self.by_name}
            self.load_state_dict = self.load

    def kept(self) -> dict[str, Parameter]:
        return self.by_name or {item.name: item for item in self.copy.get_parameters()}

    def load(self, state: dict[str, Any]) -> None:
        for name, value in state["by_name"].items():
            self.by_name[name].set_data(value)

    def update(self) -> None:
        kept = self.kept()
        for item in self.network.get_parameters():
            ops.assign(kept[item.name], kept[item.name] * 0.5 + item * 0.5)

    def values(self) -> dict[str, bytes]:
        return {name: item.asnumpy().tobytes() for name, item in self.kept().items()}


@pytest.mark.parametrize("way", ["dict", "network", "cell", "of its own"])
def test_an_average_of_the_weights_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str) -> None:
    def trained(run: str, epochs: int) -> Average:
        ms.set_seed(1)
        made = Trained()
        average = Average(made.network, way)
        launch = ckptstore.mindspore.join(run)
        loop = made.loop(tmp_path / run, launch=launch, epochs=epochs, others=average.given)
        for batch in loop:
            loss = made.step(*batch)
            average.update()
            loop.step(loss=loss)
        return average

    whole = trained("whole", 2)
    trained("run", 1)
    assert trained("run", 2).values() == whole.values()
    assert complaints(caplog) == []


def test_a_network_that_is_not_saved_with_an_object_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Trained()
    made.loop(tmp_path, others={"average": Average(made.network, "network")})
    (told,) = complaints(caplog)
    assert told.startswith("others['average'] is saved without the parameters of copy: ")


class Slotted:
    """An object with a state and without a dict of attributes."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def test_an_object_with_slots_goes_on__before_a_type_error(tmp_path: Path) -> None:
    first, second = Slotted(), Slotted()
    first.steps = 5
    Trained().train(tmp_path, epochs=1, others={"slotted": first})
    Trained().loop(tmp_path, others={"slotted": second})
    assert second.steps == 5


class Notes:
    """An object of a script: of its data only the number can be stored."""

    def __init__(self) -> None:
        self.count, self.path = 0, Path("log")
        self.chance, self.seen = np.random.default_rng(1), {1}


def test_data_of_an_object_that_is_not_saved_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before, it started over after a restart, and nothing told that."""
    Trained().train(tmp_path, others={"notes": Notes()})
    (told,) = complaints(caplog)
    assert told.startswith("others['notes'] is saved without chance, seen: only numbers, text, arrays")


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (5, "others is 5; give objects by name"),
        ({5: Notes()}, "others is .*; give objects by name"),
        ({"tau": 0.5}, "others.'tau'. cannot be saved with the state: a float has no state_dict; give"),
        ({"x": {"a": 1}}, "others.'x'. cannot be saved with the state: a dict has no state_dict; give"),
        ({"chance": np.random.default_rng(1)}, "a Generator has no state_dict"),
        ({"chance": random.SystemRandom()}, "a SystemRandom has no state_dict"),
        ({"seen": Counter()}, "a Counter has no state_dict"),
        ({"scale": Parameter(ms.Tensor(1.0), name="scale")}, "a Parameter has no state_dict"),
    ],
    ids=["number", "number as a name", "number by name", "dict", "generator", "random", "counter", "parameter"],
)
def test_others_that_cannot_be_saved_are_refused(tmp_path: Path, others: Any, told: str) -> None:
    """Before, they ended in a TypeError of Python's own, or started over after a restart."""
    with pytest.raises(UsageError, match=told):
        Trained().loop(tmp_path, others=others)


class Sums:
    """The gradients of several batches, summed up until the update."""

    def __init__(self, optimizer: Any) -> None:
        self.each = [Parameter(ops.zeros_like(item), name=f"sum.{item.name}") for item in optimizer.parameters]

    def add(self, gradients: Any) -> None:
        for there, value in zip(self.each, gradients, strict=True):
            ops.assign(there, there + value)

    def apply(self, optimizer: Any) -> None:
        optimizer(tuple(self.each))
        for item in self.each:
            ops.assign(item, ops.zeros_like(item))


@pytest.mark.parametrize("is_given", [True, False])
def test_gradients_that_a_script_sums_up(tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_given: bool) -> None:
    """An update comes after each third step, a save after each second one, and an exit after step 8."""

    def trained(run: str, last: int) -> Trained:
        ms.set_seed(1)
        made = Trained()
        sums = Sums(made.optimizer)
        others = {"sums": sums} if is_given else {}
        loop = made.loop(tmp_path / run, launch=ckptstore.mindspore.join(run), others=others)
        for batch in loop:
            loss, gradients = made.gradients(*batch)
            sums.add(gradients)
            if loop.step_in_epoch % 3 == 0:
                sums.apply(made.optimizer)
            loop.step(loss=loss)
            if loop.global_step == last:
                break
        return made

    whole = trained("whole", 12)
    trained("run", 8)
    assert (trained("run", 12).values() == whole.values()) is is_given
    told = [each for each in complaints(caplog) if each.startswith("the optimizer did not update in each step")]
    assert bool(told) is not is_given


def test_updates_that_are_passed_over_are_no_gradients_summed_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As by a loss scale, which passes over an update after an overflow. Before, the advice was about other scripts."""
    made = Trained()
    for batch in (loop := made.loop(tmp_path, every=4)):
        loss, gradients = made.gradients(*batch)
        if loop.global_step not in {0, 6}:
            made.optimizer(gradients)
        loop.step(loss=loss)
    assert not complaints(caplog)


def test_a_number_as_a_name_in_keep_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before, the next start brought it back by another name, as text."""
    trained = Trained()
    loop = trained.loop(tmp_path, epochs=1)
    for batch in loop:
        loop.step(loss=trained.step(*batch))
        loop.keep[loop.epoch] = 0.5
        loop.keep["best"] = 0.5
    assert complaints(caplog) == ["keep[1] is not saved with the state: the name 1 is not text"]
    assert Trained().loop(tmp_path, epochs=2).keep == {"best": 0.5}


def test_a_class_in_keep_that_is_lost_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A script that counted on after a restart ended in a KeyError."""
    trained = Trained()
    loop = trained.loop(tmp_path, epochs=1)
    loop.keep |= {"seen": Counter("aab"), "plain": {"a": [1, (2,)]}, "rate": np.float64(0.5)}
    for batch in loop:
        loop.step(loss=trained.step(*batch))
    assert complaints(caplog) == ["keep['seen'] is restored as a dict, without its class Counter"]


@pytest.mark.parametrize("gives", [True, False])
def test_a_schedule_or_a_loss_scale_that_no_save_has__before_silence__now_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, gives: bool
) -> None:
    """It started over after a restart. One of another optimizer is not this loop's; one in another is saved with it."""
    trained, other = Trained(lambda of: optim.SGD(of, lr=0.1)), Trained(lambda of: optim.SGD(of, lr=0.1))
    part = optim.lr_scheduler.ExponentialLR(trained.optimizer, 0.9)
    schedule = optim.lr_scheduler.SequentialLR(
        trained.optimizer, [part, optim.lr_scheduler.ExponentialLR(trained.optimizer, 0.8)], [4]
    )
    others_schedule = optim.lr_scheduler.ExponentialLR(other.optimizer, 0.9)
    scale = ms.amp.DynamicLossScaler(2.0, 2, 4)
    for batch in (loop := trained.loop(tmp_path, others={"a": schedule, "b": scale} if gives else {}, epochs=1)):
        loop.step(loss=trained.step(*batch))
        schedule.step()
        scale.adjust(ms.Tensor(True))  # noqa: FBT003
    assert others_schedule.optimizer is other.optimizer
    said = (
        "a {} of the script is not saved with the state, and starts over after a restart; if this loop uses it, give "
        "it to others="
    )
    both = [said.format(name) for name in ("DynamicLossScaler", "SequentialLR")]
    assert complaints(caplog) == ([] if gives else both)


def test_a_class_that_has_no_hash_stops_no_loop(tmp_path: Path) -> None:
    """The loop looks for schedules among all objects of the process, and libraries have the oddest classes."""
    without_hash = type("WithoutHash", (type,), {"__hash__": None})
    odd = without_hash("Odd", (), {})()
    trained = Trained()
    for batch in (loop := trained.loop(tmp_path, epochs=1)):
        loop.step(loss=trained.step(*batch))
    assert (loop.global_step, type(odd).__name__) == (6, "Odd")


def sgd_by_several_schedules(of: Any) -> nn.Cell:
    optimizer = optim.SGD(of, lr=0.1)
    each = [optim.lr_scheduler.ConstantLR(optimizer, 0.1, 3), optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
    optimizer.schedule = optim.lr_scheduler.SequentialLR(optimizer, each, [4])
    return optimizer


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda of: optim.NAdam(of, lr=0.1),
        pytest.param(lambda of: optim.ASGD(of, lr=0.1), marks=pytest.mark.long),
        lambda of: nn.Adam([{"params": of[:1], "weight_decay": 0.1}, {"params": of[1:]}], 0.1),
        sgd_by_several_schedules,
    ],
    ids=["mu_product of NAdam", "mu and eta of ASGD", "groups of nn.Adam, with one rate", "a schedule of several ones"],
)
def test_what_is_no_parameter_of_the_optimizers_cell_goes_on(tmp_path: Path, optimizer: Callable[[Any], Any]) -> None:
    """Parameters in lists, and what a schedule counts."""

    def trained(run: str, epochs: int) -> Trained:
        ms.set_seed(1)
        made = Trained(optimizer)
        schedule = getattr(made.optimizer, "schedule", None)
        others = {"schedule": schedule} if schedule else {}
        launch = ckptstore.mindspore.join(run)
        for batch in (loop := made.loop(tmp_path / run, launch=launch, epochs=epochs, others=others)):
            loop.step(loss=made.step(*batch))
            if schedule:
                schedule.step()
        return made

    whole = trained("whole", 2)
    trained("run", 1)
    assert trained("run", 2).values() == whole.values()


def test_each_save_tells_what_it_took(catalog: Catalog, tmp_path: Path) -> None:
    Trained().train(tmp_path / "ckpt", every=1)
    first, *others = [file.timing for file in sorted(catalog.files("run"), key=lambda each: each.global_step)]
    assert first.step is None, "it was compiled in it"
    assert len(others) == 11
    for timing in others:
        assert timing.step is not None
        assert timing.written is not None
        assert 0 < timing.pause < timing.written


def test_a_loop_finds_out_how_often_to_save(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At first it saves as soon as it may; then it knows that this small state, once a day lost, may wait."""
    monkeypatch.setattr(rhythm, "SHORTEST", timedelta(microseconds=1))
    trained = Trained()
    with caplog.at_level("INFO"):
        loop = trained.loop(tmp_path / "ckpt", every="auto")
    assert "chooses the save interval for one failure per 24 h, which is assumed" in caplog.text
    for batch in loop:
        loop._writer.wait()
        loop.step(loss=trained.step(*batch))
    assert sorted(file.global_step for file in catalog.files("run")) == [1, 12]


def test_it_goes_on_from_what_model_train_saved(tmp_path: Path) -> None:
    """The names of parameters are the same."""
    trained = Trained()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    job = Job(ms.Model(trained.network, loss, trained.optimizer))
    ckpt_cb = saving(tmp_path / "ckpt")
    job.train(ckpt_cb, job.registrar(ckpt_cb))
    other = Trained()
    assert other.loop(tmp_path / "ckpt").global_step == 6
    assert other.values() == trained.values()


@pytest.mark.parametrize("form", ["safetensors", "ckpt"])
def test_a_parameter_without_values_is_not_missed(tmp_path: Path, form: str) -> None:
    """MindSpore leaves it out of a .ckpt."""

    def trained() -> Trained:
        made = Trained()
        nothing = ms.Parameter(ms.Tensor(np.zeros((0, 3), np.float32)), "nothing", requires_grad=False)
        made.network.insert_param_to_cell("nothing", nothing)
        return made

    for done in (0, 12):
        job = Job(create_model(network=trained().network), launch=ckptstore.mindspore.join("model"))
        assert job.start.global_step == done / 2
        ckpt_cb = saving(tmp_path / "model", format=form)
        job.train(ckpt_cb, job.registrar(ckpt_cb), epochs=2 if done else 1)
        given = trained()
        loop = given.loop(tmp_path / "loop", format=form)
        assert loop.global_step == done
        for batch in loop:
            loop.step(loss=given.step(*batch))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"every": 0}, r'every is 0; give a number of steps, a datetime\.timedelta, or "auto"'),
        ({"every": "often"}, "every is 'often'"),
        ({"epochs": 0}, "epochs is 0"),
        ({"format": "pt"}, "format is 'pt'; use one of ckpt, safetensors"),
    ],
)
def test_impossible_arguments(tmp_path: Path, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Trained().loop(tmp_path, **asked)


def test_numbers_may_be_numpys(catalog: Catalog, tmp_path: Path) -> None:
    trained = Trained()
    for batch in (loop := trained.loop(tmp_path, epochs=np.int64(2), every=np.int32(5))):
        loop.step(loss=trained.step(*batch))
    assert sorted(file.global_step for file in catalog.files("run")) == [5, 10, 12]


def test_things_in_the_wrong_place(tmp_path: Path) -> None:
    trained, launch = Trained(), ckptstore.mindspore.join("run")
    asked: dict[str, Any] = {"epochs": 1, "every": 1, "directory": tmp_path}
    with pytest.raises(UsageError, match="this is no network: Adam"):
        launch.loop(trained.optimizer, trained.network, create_dataset(), **asked)
    with pytest.raises(UsageError, match="this is no optimizer: NumpySlicesDataset|this is no optimizer: BatchDataset"):
        launch.loop(trained.network, create_dataset(), trained.optimizer, **asked)
    with pytest.raises(UsageError, match="needs a dataset of mindspore.dataset, not list"):
        launch.loop(trained.network, trained.optimizer, [], **asked)
    with pytest.raises(UsageError, match="two parameters are named weight; give networks and optimizers by name"):
        TrainState(nn.Dense(3, 4), Trained().optimizer)


def test_steps_without_batches_and_a_loop_gone_through_twice(tmp_path: Path) -> None:
    trained = Trained()
    loop = trained.loop(tmp_path / "ckpt", epochs=1)
    with pytest.raises(UsageError, match=r"loop\.step was called, and no batch was taken"):
        loop.step()
    for batch in loop:
        loop.step(loss=trained.step(*batch))
    with pytest.raises(UsageError, match="gone through before"):
        next(iter(loop))


class Shrinking:
    """Batches of which every epoch has fewer than it said, but for the first."""

    epochs = 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Any:
        self.epochs += 1
        for _ in range(6 if self.epochs == 1 else 5):
            yield np.ones((2, 3), np.float32), np.zeros(2, np.int32)


def test_a_dataset_that_is_shorter_than_it_says_costs_no_step(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended in mid-epoch, and nothing after the last save by number was saved."""
    trained = Trained()
    dataset = ds.GeneratorDataset(Shrinking(), ["x", "y"], shuffle=False)
    launch = ckptstore.mindspore.join("run")
    loop = launch.loop(trained.network, trained.optimizer, dataset, epochs=2, every=4, directory=tmp_path / "ckpt")
    for batch in loop:
        loop.step(loss=trained.step(*batch))
    assert [file.global_step for file in catalog.files("run")] == [11, 8, 4]
    (said,) = (each for each in complaints(caplog) if "an epoch ended" in each)
    assert said == (
        "an epoch ended after step 11, but the dataset reports 6 batches per epoch: after a restart, training goes on "
        "with another batch"
    )


def test_a_dataset_that_repeats_without_end_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The loop trained on after its last epoch without a word. A script may leave it by itself."""
    trained, launch = Trained(), ckptstore.mindspore.join("run")
    asked: dict[str, Any] = {"epochs": 2, "every": 4, "directory": tmp_path / "ckpt"}
    for endless in (create_dataset().repeat(), create_dataset(1).repeat().batch(2)):
        launch.loop(trained.network, trained.optimizer, endless, **asked)
        (told,) = [each for each in caplog.messages if "the dataset repeats without end" in each]
        assert "leave out .repeat()" in told
        caplog.clear()
    loop = launch.loop(trained.network, trained.optimizer, create_dataset().repeat(2), **asked)
    for batch in loop:
        loop.step(loss=trained.step(*batch))
    assert loop.global_step == 24
    assert "without end" not in caplog.text


def test_that_a_source_is_read_to_count_its_batches_is_said_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a start with a source without an end waited for ever, and said nothing."""
    said_before: list[list[str]] = []

    def rows() -> Any:
        said_before.append(list(caplog.messages))
        for _ in range(6):
            yield np.ones((2, 3), np.float32), np.zeros(2, np.int32)

    trained, launch = Trained(), ckptstore.mindspore.join("run")
    dataset = ds.GeneratorDataset(rows, ["x", "y"])
    launch.loop(trained.network, trained.optimizer, dataset, epochs=2, every=4, directory=tmp_path / "ckpt")
    told = (
        "rows has no __len__: MindSpore reads it to its end once to count the batches of an epoch; if it has no end, "
        "let it end after an epoch"
    )
    assert told in said_before[0]
    assert caplog.messages.count(told) == 1


class Loader:
    """Batches as loaders of other libraries give them."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Any:
        return iter([(np.full((2, 3), row, np.float32), np.zeros(2, np.int32)) for row in range(6)])


def test_a_loader_that_is_not_mindspores_is_refused_and_what_is_advised_goes_on(tmp_path: Path) -> None:
    """Before, it was told to give network, optimizer and dataset in this order, as it did."""
    advice = "give the dataset, not its iterator; make another loader a mindspore.dataset.GeneratorDataset"
    asked: dict[str, Any] = {"epochs": 2, "every": 4, "directory": tmp_path / "ckpt"}
    for loader in (Loader(), iter(Loader()), create_dataset().create_tuple_iterator()):
        trained, launch = Trained(), ckptstore.mindspore.join("run")
        with pytest.raises(UsageError) as refused:
            launch.loop(trained.network, trained.optimizer, loader, **asked)
        told = f"loop needs a dataset of mindspore.dataset, not {type(loader).__name__}"
        assert (refused.value.message, refused.value.hint) == (told, advice)
    seen = []
    for _ in range(2):
        trained, launch = Trained(), ckptstore.mindspore.join("run")
        dataset = ds.GeneratorDataset(Loader(), ["x", "y"])
        for x, y in (loop := launch.loop(trained.network, trained.optimizer, dataset, **asked)):
            seen.append(int(x.asnumpy()[0, 0]))
            loop.step(loss=trained.step(x, y))
            if loop.global_step == 8 and len(seen) == 8:
                break
    assert seen == [*range(6), *range(6)]


def test_two_datasets_zipped_go_on_together(tmp_path: Path) -> None:
    """As `own-loop.md` advises it: an iterator that the body makes of a second dataset begins anew at each start."""

    def seen(run: str, stop: int) -> list[tuple[Any, Any]]:
        ms.set_seed(1)
        second = ds.NumpySlicesDataset({"z": np.arange(18)}, shuffle=True).batch(3)
        both = ds.zip((create_dataset(), second))
        trained, launch, found = Trained(), ckptstore.mindspore.join(run), []
        directory = tmp_path / run
        loop = launch.loop(trained.network, trained.optimizer, both, epochs=2, every=4, directory=directory)
        for x, y, z in loop:
            loop.step(loss=trained.step(x, y))
            found.append((loop.global_step, z.asnumpy().tolist()))
            if loop.global_step == stop:
                break
        return found

    assert seen("undisturbed", 12) == seen("run", 4) + seen("run", 9) + seen("run", 12)


def test_a_child_of_a_fork_ends_at_sigterm(tmp_path: Path) -> None:
    """A pool in the script waited for ever: its workers had the loop's handler, and no SIGTERM ended them."""
    trained = Trained()
    loop = trained.loop(tmp_path / "ckpt", epochs=1)
    context = multiprocessing.get_context("fork")
    works = context.Event()

    def work() -> None:
        works.set()
        while True:  # Python handles a signal only after a sleep that begins just behind it
            time.sleep(0.01)

    worker = context.Process(target=work, daemon=True)
    for batch in loop:
        loop.step(loss=trained.step(*batch))
        if loop.global_step == 3:
            worker.start()
            assert works.wait(60)  # Python drops a signal that comes while it forks
            worker.terminate()
            worker.join(10)
    assert (loop.global_step, worker.exitcode) == (6, -signal.SIGTERM)


@pytest.mark.parametrize("is_one", [True, False])
def test_a_state_that_is_loaded_over_the_restored_one_is_refused__before_with_one_network_only(
    tmp_path: Path, *, is_one: bool
) -> None:
    def loop_of(trained: Trained) -> ckptstore.mindspore.Loop:
        given = (trained.network, trained.optimizer) if is_one else ({"a": trained.network}, {"a": trained.optimizer})
        launch = ckptstore.mindspore.join("run")
        return launch.loop(*given, create_dataset(), epochs=2, every=2, directory=tmp_path / "ckpt")

    trained = Trained()
    loop = loop_of(trained)
    for batch in loop:
        loop.step(loss=trained.step(*batch))
        if loop.global_step == 4:
            break
    other = Trained()
    again = loop_of(other)
    other.network.weight.set_data(ops.ones_like(other.network.weight))
    with pytest.raises(
        RefusedError, match="resume restored step 4, but before the first step another state was loaded"
    ):
        next(iter(again))


def test_pretrained_weights_may_be_loaded_before_the_for_statement__before_refused(tmp_path: Path) -> None:
    trained = Trained()
    loop = trained.loop(tmp_path / "ckpt", epochs=1)
    assert loop.fresh
    trained.network.weight.set_data(ops.ones_like(trained.network.weight))
    for batch in loop:
        loop.step(loss=trained.step(*batch))
    assert loop.global_step == 6


def test_what_cannot_be_kept_is_said_and_the_rest_is_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = Trained()
    loop = trained.loop(tmp_path / "ckpt", epochs=1)
    loop.keep["best"] = 0.25
    loop.keep["handle"] = tmp_path
    for batch in loop:
        loop.step(loss=trained.step(*batch))
    assert Trained().loop(tmp_path / "ckpt", epochs=2).keep == {"best": 0.25}
    assert complaints(caplog).count("keep['handle'] is not saved with the state: it holds PosixPath") == 1
    for companion in (tmp_path / "ckpt").glob("*.companion"):
        companion.unlink()
    assert Trained().loop(tmp_path / "ckpt", epochs=2).keep == {}
    assert any("CKP-1_6.safetensors tells what a loop kept: it starts over" in each for each in complaints(caplog))


def test_a_loss_that_is_no_number_quarantines(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    trained = Trained()
    loop = trained.loop(tmp_path / "ckpt", epochs=1)
    for batch in loop:
        trained.step(*batch)
        loop.step(loss=ms.Tensor(float("nan") if loop.global_step > 2 else 0.5, ms.float32))
    assert {file.global_step: bool(file.quarantine) for file in catalog.files("run")} == {2: False, 4: True, 6: True}
    assert Trained().loop(tmp_path / "ckpt").global_step == 2
    assert any(
        "step 4 of run run is quarantined: the loss of its last step was nan" in each for each in complaints(caplog)
    )


def test_an_overflow_that_skipped_its_update_is_saved_as_good(tmp_path: Path, catalog: Catalog) -> None:
    """A cell with a loss scale returns loss, overflow, scale. The loss is no number, and the weights are right."""
    trained = Trained()
    loop = trained.loop(tmp_path / "ckpt", epochs=1)
    for batch in loop:
        trained.step(*batch)
        loop.step(loss=(ms.Tensor(float("inf")), ms.Tensor(np.ones(1, bool)), ms.Tensor(2.0)))
    assert {file.global_step: (file.quarantine, file.metrics) for file in catalog.files("run")} == {
        step: ("", {}) for step in (2, 4, 6)
    }


def test_a_disk_that_takes_nothing_stops_no_training(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained()
    loop = trained.loop(tmp_path / "ckpt", epochs=1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ckptstore.mindspore.state.write_safetensors", full)
    for batch in loop:
        loop.step(loss=trained.step(*batch))
    assert loop.global_step == 6
    assert not catalog.files("run")
    assert any("step 6 is not saved to" in each and "No space left" in each for each in complaints(caplog))


def test_a_device_that_fails_hides_no_error_of_the_script(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained()
    loop = trained.loop(tmp_path / "ckpt", epochs=1)

    def gone(*_: object) -> None:
        raise RuntimeError("the device is gone")

    batches = iter(loop)
    next(batches)
    loop.step()
    monkeypatch.setattr(TrainState, "copied", gone)
    with pytest.raises(KeyError, match="the script's own"):
        batches.throw(KeyError("the script's own"))
    assert any("ckptstore failed when the loop was left" in each for each in complaints(caplog))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(PLAIN)
def test_numbers_and_text_come_back_as_they_were(value: Any) -> None:
    if extra_state.why_not(value):
        return
    assert extra_state.loaded(json.dumps(extra_state.plain(value))) == value


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64"])
def test_arrays_come_back_as_they_were(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    back = extra_state.loaded(json.dumps(extra_state.plain({"a": [array]})))["a"][0]
    assert (back.dtype, back.tolist()) == (array.dtype, array.tolist())
    back[0] = 1  # it can be written to


@pytest.mark.parametrize("kind", ["loop", "model"])
def test_a_generator_of_the_device_that_tells_its_state_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """On CPU MindSpore tells nothing: here its two calls are stood in for."""
    drawn, given = [], []
    monkeypatch.setattr(ms, "get_rng_state", lambda: ms.Tensor(np.full(16, len(drawn) + 1, np.uint8)))
    monkeypatch.setattr(ms, "set_rng_state", lambda state: given.append(state.asnumpy().tolist()))
    if kind == "loop":
        trained = Trained()
        loop = trained.loop(tmp_path / "ckpt", epochs=1, every=4)
        for batch in loop:
            loop.step(loss=trained.step(*batch))
            drawn.append(batch)
        next(iter(Trained().loop(tmp_path / "ckpt", epochs=2)))
        assert given == [[7] * 16]
        return
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt")
    job.train(DoAt(6, lambda: drawn.append(1)), ckpt_cb, job.registrar(ckpt_cb))
    again = Job()
    again.train(again.registrar(), epochs=2)
    assert given == [[2] * 16]


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_generator_of_numpy_goes_on__before_a_value_error(caplog: pytest.LogCaptureFixture) -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        state = json.dumps(extra_state.plain(extra_state.random_state()))
        drawn = np.random.rand()
        extra_state.set_random_state(extra_state.loaded(state))
        assert np.random.rand() == drawn
    finally:
        np.random.set_bit_generator(before)
    extra_state.set_random_state(extra_state.loaded(state))  # the script has another one since
    assert [each.partition(", as ")[0] for each in complaints(caplog)] == ["random numbers start over"]


def test_what_a_script_draws_before_its_first_batch_shifts_nothing(tmp_path: Path) -> None:
    """It does so at every start, also where nothing left to train; the next training draws on from there."""

    def job(home: Path, stops_at: int = 0) -> list[float]:
        drawn = []
        ms.set_seed(1)
        trained = Trained()
        asked: dict[str, Any] = {"epochs": 2, "every": 1, "directory": home}
        launch = ckptstore.mindspore.join(home.name)
        loop = launch.loop(trained.network, trained.optimizer, create_dataset(), **asked)
        first = loop.global_step
        np.random.rand(5)
        for batch in loop:
            drawn.append(np.random.rand() + random.random())  # noqa: S311
            loop.step(loss=trained.step(*batch))
            if loop.global_step == stops_at:
                return drawn
        return [*[0.0] * first, *drawn, np.random.rand()]

    calm = job(tmp_path / "calm")
    assert len(calm) == 13
    assert job(tmp_path / "calm")[12:] == calm[12:]
    assert job(tmp_path / "rough", stops_at=7) + job(tmp_path / "rough")[7:] == calm


def test_the_digest_of_a_save_is_taken_while_it_is_written(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reads the file again; what is recorded is what was to be written."""
    trained = Trained()
    with monkeypatch.context() as patched:
        patched.setattr("ckptstore.resume.register.files.digest", lambda *_: pytest.fail("it was read again"))
        loop = trained.loop(tmp_path / "ckpt", epochs=1, every=3)
        for batch in loop:
            loop.step(loss=trained.step(*batch))
    saved = catalog.files("run")
    assert [file.global_step for file in saved] == [6, 3]
    assert [file.digest for file in saved] == [digest(file.path) for file in saved]


def test_what_a_script_saves_beside_the_loop_without_a_word_is_told_once(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = Trained()
    loop = trained.loop(tmp_path)
    for batch in loop:
        loop.step(loss=trained.step(*batch))
        (tmp_path / f"best-1_{loop.global_step}.ckpt").touch()
    told = [each for each in complaints(caplog) if "was saved, but by no callback that this launch watches" in each]
    assert len(told) == 1
    assert told[0].startswith(f"{tmp_path}/best-1_")


def test_a_cell_that_names_its_state_in_its_own_way_is_not_restored_in_part() -> None:
    """Its parameters stayed as the script made them, without a word."""

    class Named(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.average = Parameter(Tensor(0.0), name="average")

        def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"mine": self.average}

    state = extra_state.state_of(Named())
    with pytest.raises(RuntimeError, match="average"):
        extra_state.set_state_of(Named(), state)
