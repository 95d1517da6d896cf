"""Whoever loads another state after `resume` is noticed before the first step, and named (mindspore.md §4)."""

from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from mindspore.train import Callback, LearningRateScheduler, LossMonitor, Model
from mindspore.train.callback import BackupAndRestore, LambdaCallback

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.errors import RefusedError
from ckptstore.mindspore import load_guard
from tests.mindspore.cells import with_loss
from tests.mindspore.trainings import (
    Job,
    complaints,
    create_dataset,
    create_model,
    fail,
    saving,
    trained,
)


@pytest.fixture(params=[ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def _mode(request: pytest.FixtureRequest, set_mode: Callable[[int], None]) -> None:
    set_mode(request.param)


@pytest.fixture
def older(catalog: Catalog, tmp_path: Path) -> Path:
    """A run that stands at step 8, and its state of step 6, which somebody will load over that."""
    fail(catalog, tmp_path / "ckpt", steps=8, save_steps=2)
    return tmp_path / "ckpt" / "net-1_6.ckpt"


class Loads(Callback):
    """A user's callback that loads a file when one of its hooks is called."""

    def __init__(self, hook: str, path: Path) -> None:
        super().__init__()
        setattr(self, hook, lambda run: ms.load_checkpoint(str(path), net=run.original_args().train_network))


class Unrelated(Callback):
    """A user's callback that loads nothing."""


def backup(directory: Path, older: Path) -> BackupAndRestore:
    callback = BackupAndRestore(str(directory / "backup"))
    Path(callback.backup_file).write_bytes(older.read_bytes())
    return callback


def refused(job: Job, *callbacks: Callback, match: str) -> str:
    with pytest.raises(RefusedError, match=match) as raised:
        job.train(*callbacks, epochs=3)
    assert raised.value.exit_code == 5
    return str(raised.value)


@pytest.mark.usefixtures("_mode")
@pytest.mark.parametrize("place", ["first", "last"])
def test_backup_and_restore_is_refused(older: Path, tmp_path: Path, place: str) -> None:
    """Without the guard training goes on after step 6, and counts from 8."""
    job, ckpt_cb, before = Job(), saving(tmp_path / "ckpt"), Unrelated()
    loading = backup(tmp_path, older)
    callbacks = [ckpt_cb, before, job.registrar(save_on_exception=True), LossMonitor()]
    said = refused(job, *([loading, *callbacks] if place == "first" else [*callbacks, loading]), match="step 8")
    assert "before the first step another state was loaded over it: global_step, " in said
    assert "remove BackupAndRestore from the callbacks" in said
    assert "Unrelated" not in said
    refused(job, ckpt_cb, job.registrar(), match="step 8")  # the network still holds the other state
    again = Job()
    assert again.start.global_step == 8
    again.train(ckpt_cb, again.registrar(), epochs=2)
    assert again.launch.global_step == 12


def test_what_is_saved_at_the_refusal_is_not_taken(catalog: Catalog, older: Path, tmp_path: Path) -> None:
    """MindSpore's own breakpoint holds step 6 under a name of step 8."""
    job, ckpt_cb = Job(), saving(tmp_path / "ckpt", exception_save=True)
    refused(job, ckpt_cb, backup(tmp_path, older), job.registrar(), match="step 8")
    job.launch.adopt()
    (left,) = [file for file in catalog.files("run", kind="dying_gasp") if file.launch == job.launch.id]
    assert (left.optimizer_step, left.quarantine.split(" over ")[0]) == (6, "another state was loaded")
    model = create_model()
    assert ckptstore.mindspore.join("run").resume(model, Job().dataset).global_step == 8
    assert int(model.train_network.optimizer.global_step.asnumpy()[0]) == 8


@pytest.mark.parametrize("hook", ["on_train_begin", "on_train_epoch_begin", "on_train_step_begin", "begin"])
def test_a_callback_of_the_users_is_named(older: Path, tmp_path: Path, hook: str) -> None:
    job, quiet = Job(), LambdaCallback()
    said = refused(job, Loads(hook, older), LossMonitor(), quiet, Unrelated(), job.registrar(), match="step 8")
    assert "remove Loads or LambdaCallback or Unrelated from the callbacks" in said


@pytest.mark.parametrize("saved", ["weights", "moments"])
def test_a_part_of_the_state_is_enough(older: Path, tmp_path: Path, saved: str) -> None:
    job = Job()
    values = {name: value for name, value in ms.load_checkpoint(str(older)).items() if name != "global_step"}
    chosen = {name: value for name, value in values.items() if name.startswith("moments") == (saved == "moments")}
    ms.load_param_into_net(job.model.train_network, chosen)
    assert "global_step" not in refused(job, saving(tmp_path / "ckpt"), job.registrar(), match="changed")


@pytest.mark.usefixtures("_mode")
def test_pretrained_weights_are_allowed_at_a_fresh_start(catalog: Catalog, tmp_path: Path) -> None:
    """Also with a callback that sets a learning rate of its own before the first step."""
    job = Job()
    ms.load_param_into_net(job.model.train_network, {"weight": Parameter(Tensor(np.ones((4, 3)), ms.float32))})
    rate = job.model.train_network.optimizer.learning_rate
    warm = LambdaCallback(on_train_begin=lambda _: rate.set_data(Tensor(0.5, ms.float32)))
    job.train(warm, saving(tmp_path / "ckpt"), job.registrar())
    assert [save.tally.global_step for save in catalog.saves("run")] == [6, 4, 2]


def test_a_callback_that_loads_at_a_fresh_start_is_refused(catalog: Catalog, older: Path, tmp_path: Path) -> None:
    job = Job(launch=ckptstore.mindspore.join("another"))
    assert job.start.fresh
    said = refused(job, saving(tmp_path / "new"), backup(tmp_path, older), job.registrar(), match="after step 0")
    assert "remove BackupAndRestore" in said


def test_where_resume_is_not_called_scripts_load_as_they_like(catalog: Catalog, older: Path, tmp_path: Path) -> None:
    model, dataset, launch = create_model(), Job().dataset, ckptstore.mindspore.join("another")
    dataset.set_init_step(0)
    model.train(1, dataset, callbacks=[backup(tmp_path, older), saving(tmp_path / "new"), launch.registrar()])
    assert int(model.train_network.optimizer.global_step.asnumpy()[0]) == 12


@pytest.mark.usefixtures("_mode")
def test_an_undisturbed_run_says_nothing(catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path, LossMonitor(), LambdaCallback())
    assert trained(tmp_path, LossMonitor(), Unrelated(), epochs=2).global_step == 6
    assert complaints(caplog) == []


def test_later_trainings_go_on_from_where_the_network_is(older: Path, tmp_path: Path) -> None:
    """What a script loads between two trainings of a launch is its own; what a callback loads is not."""
    job = Job()
    made = job.registrar()
    job.train(saving(tmp_path / "ckpt"), made, epochs=2)
    job.model.train_network.network.trainable_params()[0].set_data(Tensor(np.ones((4, 3)), ms.float32))
    job.model.train(3, job.dataset, callbacks=[saving(tmp_path / "ckpt"), made], initial_epoch=2)
    callbacks = [saving(tmp_path / "ckpt"), backup(tmp_path, older), made]
    with pytest.raises(RefusedError, match="after step 18, but .* remove BackupAndRestore"):
        job.model.train(4, job.dataset, callbacks=callbacks, initial_epoch=3)


def test_another_model_than_the_restored_one_is_refused_and_one_after_it_is_not(older: Path, tmp_path: Path) -> None:
    job, other = Job(), create_model()
    restored, job.model = job.model, other
    refused(job, saving(tmp_path / "ckpt"), job.registrar(), match="resume restored step 8")
    job = Job(restored)
    made = job.registrar()
    job.train(saving(tmp_path / "ckpt"), made, epochs=2)
    other.train(3, create_dataset(), callbacks=[saving(tmp_path / "ckpt"), made], initial_epoch=2)
    assert job.launch.global_step == 18


@pytest.mark.usefixtures("_mode")
@pytest.mark.parametrize("is_fresh", [True, False], ids=["fresh", "restored"])
def test_a_model_without_the_optimizer_is_refused__before_the_optimizer_started_over(
    catalog: Catalog, tmp_path: Path, *, is_fresh: bool
) -> None:
    """A second model of the same network, as one for evaluation, has its weights and nothing of the optimizer."""
    if not is_fresh:
        fail(catalog, tmp_path / "ckpt", steps=8, save_steps=2)
    trains = create_model()
    job = Job(Model(trains.train_network.network.backbone_network))
    job.model = trains
    said = refused(job, saving(tmp_path / "ckpt"), job.registrar(), match="resume got another model")
    assert "it lacks 5 parameters of the network that is trained: " in said
    assert "with its optimizer" in said


@pytest.mark.parametrize("is_restored", [True, False], ids=["restored", "fresh"])
def test_a_second_network_in_one_launch_is_refused__before_no_later_start_could_load_the_newest_state(
    catalog: Catalog, tmp_path: Path, *, is_restored: bool
) -> None:
    if is_restored:
        fail(catalog, tmp_path / "ckpt", steps=8, save_steps=2)
    job, other = Job(), create_model(optimizer=nn.Adam)
    made = job.registrar()
    job.train(saving(tmp_path / "ckpt"), made, epochs=2)
    with pytest.raises(RefusedError, match=r"lacks 6 parameters .* moment1.weight.* join under another name"):
        other.train(3, create_dataset(), callbacks=[saving(tmp_path / "ckpt"), made], initial_epoch=2)
    assert Job().start.global_step == 12


def test_a_network_that_cannot_be_read_stops_nothing(
    older: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("on purpose")

    job = Job()
    monkeypatch.setattr(load_guard, "_digests", broken)
    job.train(saving(tmp_path / "ckpt"), job.registrar(), epochs=2)
    assert job.launch.global_step == 12
    assert caplog.text.count("ckptstore failed in the search for another state") == 1


@pytest.mark.parametrize(("order", "warns"), [("after", True), ("before", False), ("first", True)])
def test_who_sets_parameters_after_a_save_is_named_once(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, order: str, *, warns: bool
) -> None:
    job, ckpt_cb, scheduler = Job(), saving(tmp_path / "ckpt"), LearningRateScheduler(lambda rate, _: rate / 2)
    made = job.registrar()
    callbacks = {
        "after": [ckpt_cb, scheduler, made],
        "before": [scheduler, ckpt_cb, made],
        "first": [made, ckpt_cb, scheduler],
    }[order]
    job.train(*callbacks)
    named = [line for line in complaints(caplog) if "put LearningRateScheduler before ModelCheckpoint" in line]
    assert len(named) == warns
    rate = ms.load_checkpoint(str(tmp_path / "ckpt" / "net-1_2.ckpt"))["learning_rate"].asnumpy()
    assert rate == pytest.approx(0.05 if warns else 0.025)


def bytes_read(monkeypatch: pytest.MonkeyPatch, network: nn.Cell) -> tuple[list[str], int]:
    """What is looked at of a network, and how many bytes that are."""
    read: list[int] = []
    get_bytes = Parameter.get_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Parameter, "get_bytes", lambda self: (read.append(self.nbytes), get_bytes(self))[1])
        names = list(load_guard._digests({item.name: item for item in load_guard.sample(network)}))
    assert len(read) == len(names) == len(set(names))
    return names, sum(read)


@pytest.mark.parametrize(
    ("widths", "count", "most"),
    [
        ([(3, 4)] * 2, 9, 1 << 10),
        ([(8, 8)] * 200, 33, 1 << 20),  # many small ones: some from the first to the last
        ([(512, 1024)] * 4, 33, 1 << 20),  # weights of 2 MiB are left out
    ],
)
def test_little_is_read_of_a_large_network(
    monkeypatch: pytest.MonkeyPatch, widths: list[tuple[int, int]], count: int, most: int
) -> None:
    network = nn.CellList([nn.Dense(*width) for width in widths])
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    names, read = bytes_read(monkeypatch, nn.TrainOneStepCell(network, optimizer))
    assert len(names) <= count
    assert read <= most + 4
    assert names[0] == "global_step"
    assert names[1].startswith("0.")
    assert names[-1] == f"moments.{len(widths) - 1}.bias"


def test_planned_learning_rates_may_be_changed() -> None:
    loss, _ = with_loss()
    planned = nn.Momentum(loss.trainable_params(), [0.1] * 8, 0.9)
    looked_at = load_guard.sample(nn.TrainOneStepCell(loss, planned))
    assert [item.name for item in looked_at] == ["global_step", "weight", "bias", "moments.weight", "moments.bias"]
