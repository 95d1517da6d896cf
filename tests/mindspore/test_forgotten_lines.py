"""A line that is forgotten is told before the first step: nothing starts over in silence."""

import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import LambdaCallback, Model

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.errors import RefusedError, UsageError
from tests.cli.advice import follow
from tests.mindspore.trainings import (
    DoAt,
    Job,
    RaiseAt,
    complaints,
    create_dataset,
    create_model,
    saving,
    to_step_12,
    trained,
)


def steps(catalog: Catalog) -> list[tuple[str, int]]:
    return sorted({(file.launch, file.global_step) for file in catalog.files("run")}, key=lambda each: each[1])


def test_resume_forgotten__before_began_at_step_0_in_silence__now_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    trained(tmp_path)
    before = steps(catalog)
    launch = ckptstore.mindspore.join("run")
    ckpt_cb = saving(tmp_path / "ckpt")
    with pytest.raises(RefusedError, match="run 'run' has saved up to step 6, and training would begin at step 0"):
        create_model().train(1, create_dataset(), callbacks=[ckpt_cb, launch.registrar(ckpt_cb)])
    assert steps(catalog) == before
    assert to_step_12(tmp_path)[0] == 6, "the first way out of it"


@pytest.mark.parametrize("how", ["begin_fresh", "resume"])
def test_to_begin_anew_on_purpose(catalog: Catalog, tmp_path: Path, how: str) -> None:
    """What was saved before stays, and is given up; each later start goes on from the new history."""
    trained(tmp_path)
    launch = ckptstore.mindspore.join("run")
    model, dataset = create_model(), create_dataset()
    start = launch.begin_fresh() if how == "begin_fresh" else launch.resume(model, dataset, fresh=True)
    assert (start.fresh, start.global_step) == (True, 0)
    ckpt_cb = saving(tmp_path / "anew")
    model.train(1, dataset, callbacks=[ckpt_cb, launch.registrar(ckpt_cb)], initial_epoch=start.initial_epoch)
    plan = catalog.resolve("run").plan
    assert (plan.launch.id, plan.global_step) == (launch.id, 6)
    assert len(list((tmp_path / "ckpt").glob("*.ckpt"))) == 3
    assert Job().start.plan.launch.id == launch.id
    other = ckptstore.connect(str(tmp_path / "other.db"))
    other.scan(tmp_path, run="run")
    assert other.resolve("run").plan.launch.id == launch.id


def test_a_job_that_began_anew_and_saved_nothing_begins_anew_again(catalog: Catalog, tmp_path: Path) -> None:
    trained(tmp_path)
    ckptstore.mindspore.join("run").begin_fresh()
    job = Job()
    assert job.start.fresh
    first = catalog.files("run")[0].launch
    assert Job(lineage=first).start.global_step == 6


def test_a_fresh_start_and_an_older_state(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="a fresh start and an older state are asked for"):
        Job(fresh=True, step=2)


@pytest.mark.parametrize("name", ["fresh", "take_quarantined"])
def test_a_text_is_neither_true_nor_false(catalog: Catalog, tmp_path: Path, name: str) -> None:
    """Before, take_quarantined="False" took the bad states, and fresh="False" ended in an error of SQLAlchemy."""
    trained(tmp_path)
    with pytest.raises(UsageError, match=f"{name} is 'False'; give True or False"):
        Job(**{name: "False"})
    with pytest.raises(UsageError, match="take_over is '0'; give True or False"):
        ckptstore.mindspore.join("run", take_over="0")  # type: ignore[arg-type]


@pytest.mark.parametrize("fresh", [np.bool_(1), 1])
def test_true_is_also_that_of_numpy(catalog: Catalog, tmp_path: Path, fresh: Any) -> None:
    """With numpy 1 a refusal read "fresh is True; give True or False"."""
    trained(tmp_path)
    job = Job(launch=ckptstore.mindspore.join("run", take_over=fresh), fresh=fresh, take_quarantined=np.bool_(0))
    assert job.start.fresh


def test_registrar_forgotten__before_began_again_at_step_0__now_is_said(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    job.train(saving(tmp_path))
    (said,) = complaints(caplog)
    assert said.startswith("no registrar is among the callbacks: what this training saves is not registered")
    caplog.clear()
    job.train(saving(tmp_path / "other"), job.registrar())
    assert complaints(caplog) == []


def test_a_script_without_a_saver_is_told_which_line_it_lacks(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    """It was told to add the registrar, which then had nothing to register."""
    Job().train()
    (said,) = complaints(caplog)
    assert said.endswith('a restart begins where this start began; add launch.saver("checkpoints", every=100) to them')


def test_a_call_for_each_epoch_without_a_registrar_goes_on_after_a_restart(catalog: Catalog, tmp_path: Path) -> None:
    """As on rank 1 where only rank 0 has callbacks that save: its second call was refused, the data began at step 8."""
    trained(tmp_path, epochs=2)
    job, epochs = Job(step=8), []
    noted = LambdaCallback(on_train_step_end=lambda context: epochs.append(context.original_args().cur_epoch_num))
    for epoch in range(job.start.initial_epoch, 4):
        job.model.train(epoch + 1, job.dataset, callbacks=[noted], initial_epoch=epoch)
    assert epochs == [2] * 4 + [3] * 6 + [4] * 6


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_registrar_in_some_calls_only__before_was_refused_after_a_restart__now_goes_on(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, epoch: int
) -> None:
    """A script may save in each fifth epoch only; in a notebook a call is repeated with what it lacked."""
    trained(tmp_path, epochs=2)
    job = Job(step=8)
    job.train(epochs=2)
    caplog.clear()
    callbacks = [saving(tmp_path / "other"), job.registrar()]
    job.model.train(epoch + 1, job.dataset, callbacks=callbacks, initial_epoch=epoch)
    assert complaints(caplog) == []
    assert [step for launch, step in steps(catalog) if launch == job.launch.id] == [14, 16, 18]


def test_the_registrar_is_forgotten_and_it_is_said_again_at_exit(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, where files were saved; and the command that it names takes in what can be proven."""
    at_exit: set[Callable[[], None]] = set()
    monkeypatch.setattr("atexit.register", at_exit.add)
    job = Job()
    job.train(saving(tmp_path / "lost"), epochs=2)
    caplog.clear()
    for say in at_exit:
        say()
    (said,) = complaints(caplog)
    assert said.startswith(f"{tmp_path / 'lost' / 'net-2_6.ckpt'} was saved while no registrar was among the callbacks")
    assert follow(os.environ["CKPTSTORE_URL"], said).code == 0
    job = Job()
    assert job.start.global_step == 12
    at_exit.clear()
    ckpt_cb = saving(tmp_path / "ckpt")
    job.fail(RaiseAt(1), ckpt_cb, epochs=4)  # nothing was saved
    job = Job()
    job.train(ckpt_cb, job.registrar(), epochs=4)
    caplog.clear()
    for say in at_exit:
        say()
    assert complaints(caplog) == []


def test_a_callback_that_the_registrar_has_and_training_has_not(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    job.train(job.registrar(saving(tmp_path)))
    assert complaints(caplog)[0].startswith("ModelCheckpoint was given to the registrar and is not in the callbacks")


def test_an_initial_epoch_that_leaves_out_the_first_ones_is_warned_of(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    job.model.train(2, job.dataset, callbacks=[saving(tmp_path), job.registrar()], initial_epoch=1)
    assert "the run starts at step 0, and initial_epoch=1 leaves out 1 epoch: pass" in "".join(complaints(caplog))


def test_training_again_after_an_exception_without_join__before_silence__now_is_said(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps count on, and the rest of the interrupted epoch is left out."""
    job = Job()
    saver = job.launch.saver(tmp_path, every=2)
    job.fail(RaiseAt(3), saver)
    assert complaints(caplog) == []
    job.train(saver)
    (told,) = complaints(caplog)
    assert "an exception ended the last training after step 3" in told
    assert "join and resume again" in told
    again = Job()
    again.train(again.launch.saver(tmp_path, every=2), epochs=3)
    assert len(complaints(caplog)) == 1


def test_initial_epoch_forgotten__before_epochs_were_trained_twice__now_is_refused(
    catalog: Catalog, tmp_path: Path
) -> None:
    """MindSpore counts the epochs from 1 again, and the dataset goes on."""
    trained(tmp_path)
    job = Job()
    with pytest.raises(UsageError, match="training would begin in epoch 1, but 6 steps were trained before") as told:
        job.model.train(2, job.dataset, callbacks=[saving(tmp_path), job.registrar()])
    assert "pass initial_epoch=start.initial_epoch" in told.value.hint
    job.train(saving(tmp_path / "ckpt"), job.registrar(), epochs=2)
    assert catalog.resolve("run").plan.global_step == 12


@pytest.mark.parametrize("call", ["train", "fit"])
def test_a_finished_job_again__before_died_of_value_error__now_ends_well(
    catalog: Catalog, tmp_path: Path, call: str
) -> None:
    """As after a kill before its last line."""
    end = to_step_12(tmp_path)[1]
    (tmp_path / "end.ckpt").unlink()
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt")
    arguments = [2, job.dataset] if call == "train" else [2, job.dataset, job.dataset]
    initial_epoch = job.start.initial_epoch
    getattr(job.model, call)(*arguments, callbacks=[ckpt_cb, job.registrar(ckpt_cb)], initial_epoch=initial_epoch)
    ms.save_checkpoint(job.model.train_network, str(tmp_path / "end.ckpt"))
    assert (tmp_path / "end.ckpt").read_bytes() == end
    assert len(catalog.saves("run")) == 6


def test_a_loop_of_single_epochs(catalog: Catalog, tmp_path: Path) -> None:
    """It would end without a word and without a step: each call counts the epochs of the whole run."""
    to_step_12(tmp_path)
    job = Job()
    with pytest.raises(UsageError, match="asks for 1 epoch of 6 steps, but 12 steps were trained before") as told:
        job.train(job.registrar(saving(tmp_path)))
    ckpt_cb = saving(tmp_path / "ckpt")
    names = {"start": job.start, "model": job.model, "dataset": job.dataset, "EPOCHS": 4}
    exec(told.value.hint.rpartition("write: ")[2], names | {"CALLBACKS": [ckpt_cb, job.registrar(ckpt_cb)]})  # noqa: S102
    assert catalog.resolve("run").plan.global_step == 24
    anew = Job(step=6)
    anew.train(anew.registrar(saving(tmp_path)))
    with pytest.raises(UsageError, match="all epochs of this call were trained before .*step 6.*, and so were"):
        anew.train(anew.registrar(saving(tmp_path)))


@pytest.mark.parametrize("shuffles", [True, False])
def test_a_call_for_each_epoch_begins_the_shuffle_anew__before_silence__now_is_said(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, shuffles: bool
) -> None:
    """A restart in mid-epoch goes on in the order that the dataset has in one call for all epochs."""

    class Watching(RaiseAt):
        def __init__(self, step: int) -> None:
            super().__init__(step)
            self.rows: list[float] = []

        def on_train_step_end(self, run_context: Any) -> None:
            self.rows += run_context.original_args().train_dataset_element[0].asnumpy()[:, 0].tolist()
            super().on_train_step_end(run_context)

    def rows(step: int) -> list[float]:
        ms.set_seed(1)
        x = np.arange(12, dtype=np.float32).reshape(12, 1) * np.ones((12, 3), np.float32)
        job = Job(dataset=ds.NumpySlicesDataset({"x": x, "y": np.zeros(12, np.int32)}, shuffle=shuffles).batch(2))
        ckpt_cb, watching = saving(tmp_path / "ckpt"), Watching(step)
        callbacks = [ckpt_cb, watching, job.registrar(ckpt_cb)]
        with suppress(RuntimeError):
            for epoch in range(job.start.initial_epoch, 3):
                job.model.train(epoch + 1, job.dataset, callbacks=callbacks, initial_epoch=epoch)
        return watching.rows

    interrupted = rows(8)[12:] + rows(0)[:8]
    assert (sorted(interrupted) == [*range(12)]) is not shuffles
    assert any("each call of model.train begins the random numbers" in each for each in complaints(caplog)) is shuffles


class Counting(nn.TrainOneStepCell):
    """Counts its steps in a number, as one that updates in each fourth step may do in PyNative mode."""

    def __init__(self, network: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(network, optimizer)
        self.every, self.steps, self.best = 4, 0, math.nan

    def construct(self, *inputs: Any) -> Any:
        self.steps += 1
        return super().construct(*inputs)


@pytest.mark.parametrize("way", ["registrar", "saver", "loop"])
def test_a_number_that_a_cell_counts__before_silence__now_is_said(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """It started over after a restart. What does not change in training is the script's, and is not named."""
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        job = Job(create_model(cell=Counting))
        if way == "registrar":
            job.train(ckpt_cb := saving(tmp_path), job.registrar(ckpt_cb))
        elif way == "saver":
            job.train(job.launch.saver(tmp_path, every=3))
        else:
            cell = job.model.train_network
            loop = job.launch.loop(cell, cell.optimizer, job.dataset, epochs=1, directory=tmp_path, every=3)
            for batch in loop:
                loop.step(loss=cell(*batch))
    finally:
        ms.set_context(mode=mode)
    told = "training changes Counting.steps, which no file has: it starts over after a restart; hold it in a Parameter"
    assert complaints(caplog) == [told]


@pytest.mark.parametrize("shuffles", [True, False])
def test_a_dataset_that_shuffles_without_a_seed(
    catalog: Catalog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, shuffles: bool
) -> None:
    """Its order is another one in each process: a resume in mid-epoch repeats some samples and leaves others out."""
    data = {"x": np.ones((12, 3), np.float32), "y": np.zeros(12, np.int32)}
    with monkeypatch.context() as context:
        context.setattr(ds.config, "get_seed", lambda: 5489)
        Job(dataset=ds.NumpySlicesDataset(data, shuffle=shuffles).batch(2))
    assert [each for each in complaints(caplog) if "no seed is set" in each] == complaints(caplog)
    assert bool(complaints(caplog)) is shuffles
    caplog.clear()
    ms.set_seed(1)
    Job(launch=ckptstore.mindspore.join("other"), dataset=ds.NumpySlicesDataset(data, shuffle=True).batch(2))
    assert complaints(caplog) == []


def test_saves_beside_the_watched_files__before_silence__now_is_said(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No start finds them. What was there before is nobody's fault."""
    (tmp_path / "old.ckpt").write_bytes(b"!")
    for name, said in (("old.ckpt", 0), ("best.ckpt", 1), ("iteration_00000003", 1)):
        caplog.clear()
        job = Job(launch=ckptstore.mindspore.join(f"of-{name}"))
        ckpt_cb, own = saving(tmp_path, f"net{said}"), DoAt(3, (tmp_path / name).touch)
        job.train(own, ckpt_cb, job.registrar(ckpt_cb))
        told = [each for each in complaints(caplog) if "was saved, but by no callback that this launch watches" in each]
        assert len(told) == said
        assert all(each.startswith(f"{tmp_path / name} ") for each in told)


def test_a_new_run_that_saves_where_another_one_did(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path)
    caplog.clear()
    job = Job(launch=ckptstore.mindspore.join("mistyped"))
    job.train(saving(tmp_path / "ckpt"), job.registrar())
    (said,) = complaints(caplog)
    where = tmp_path / "ckpt"
    assert said.startswith(
        f"run mistyped is new, and {where} has checkpoints of run run, up to step 6: to go on from those, call "
    )
    name = re.search(r"join\('(\w+)'\)", said)
    assert Job(launch=ckptstore.mindspore.join(name[1])).start.global_step == 6


def test_a_model_whose_train_takes_other_arguments(catalog: Catalog, tmp_path: Path) -> None:
    """Nothing is known of its call, and it is left alone."""

    class Short(Model):
        def train(self, epochs: int, *callbacks: Any) -> None:
            super().train(epochs, create_dataset(), callbacks=list(callbacks))

    network = nn.Dense(3, 4)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Short(network, loss, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, create_dataset())
    ckpt_cb = saving(tmp_path)
    model.train(1, ckpt_cb, launch.registrar(ckpt_cb))
    assert catalog.resolve("run").plan.global_step == 6
