"""Metrics of evaluations, by whoever makes them, get to the state that was evaluated."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore.train import Callback

import ckptstore.mindspore
from ckptstore.api import Catalog
from tests.mindspore.loops import Trained
from tests.mindspore.trainings import DoAt, Job, complaints, create_dataset, create_model, saving


def metrics(catalog: Catalog, name: str) -> dict[int, float]:
    return {file.global_step: file.metrics[name] for file in catalog.files("run") if name in file.metrics}


class Evaluate(Callback):
    """As people write it: it evaluates after some steps, or at the end of the epoch."""

    def __init__(self, job: Job, *steps: int, found: list[float]) -> None:
        super().__init__()
        self.job, self.steps, self.found = job, steps, found

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num in self.steps:
            self._evaluate()

    def on_train_epoch_end(self, run_context: Any) -> None:
        if not self.steps:
            self._evaluate()

    def _evaluate(self) -> None:
        self.found.append(self.job.model.eval(create_dataset())["loss"])


def new_job() -> Job:
    ms.set_seed(1)
    return Job(create_model(metrics={"loss", "accuracy"}))


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_what_fit_evaluates_after_the_save(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], mode: int
) -> None:
    set_mode(mode)
    job = new_job()
    ckpt_cb = saving(tmp_path)
    job.model.fit(2, job.dataset, create_dataset(), callbacks=[ckpt_cb, job.registrar(ckpt_cb)])
    assert metrics(catalog, "accuracy").keys() == metrics(catalog, "eval_loss").keys() == {6, 12}
    assert metrics(catalog, "loss").keys() == {2, 4, 6, 8, 10, 12}


@pytest.mark.parametrize("is_last", [True, False], ids=["before the registrar", "after it"])
@pytest.mark.parametrize("steps", [(4, 10), ()], ids=["steps", "epochs"])
def test_what_a_callback_evaluates(catalog: Catalog, tmp_path: Path, steps: tuple[int, ...], *, is_last: bool) -> None:
    """A callback before the registrar hears of the step's end earlier."""
    job, found = new_job(), list[float]()
    ckpt_cb, evaluate = saving(tmp_path), Evaluate(job, *steps, found=found)
    registrar = job.registrar(ckpt_cb)
    job.train(ckpt_cb, *([evaluate, registrar] if is_last else [registrar, evaluate]), epochs=2)
    at = steps or (6, 12)
    assert metrics(catalog, "eval_loss") == dict(zip(at, found, strict=True))


def test_with_the_saver_the_evaluation_may_come_before_or_after_the_save(catalog: Catalog, tmp_path: Path) -> None:
    job, found = new_job(), list[float]()
    job.train(Evaluate(job, 2, 6, found=found), job.launch.saver(tmp_path, every=2))
    assert metrics(catalog, "eval_loss") == dict(zip((2, 6), found, strict=True))


def test_an_evaluation_after_training_is_nobodys(catalog: Catalog, tmp_path: Path) -> None:
    """Another state may have been loaded by then: the script says which step it was."""
    job = new_job()
    job.train(job.launch.saver(tmp_path, every=2))
    found = job.model.eval(create_dataset())
    assert metrics(catalog, "accuracy") == {}
    job.launch.record(step=6, accuracy=found["accuracy"])
    job.launch.record(step=2, accuracy=0.25)
    assert metrics(catalog, "accuracy") == {6: found["accuracy"], 2: 0.25}


def test_a_callback_records_for_a_step_that_is_saved_later(catalog: Catalog, tmp_path: Path) -> None:
    job = new_job()
    job.train(DoAt(4, lambda: job.launch.record(step=4, bleu=0.5)), job.launch.saver(tmp_path, every=2))
    assert metrics(catalog, "bleu") == {4: 0.5}


def test_the_state_that_a_launch_started_from(catalog: Catalog, tmp_path: Path) -> None:
    job = new_job()
    job.train(job.launch.saver(tmp_path, every=2))
    again = new_job()
    again.launch.record(step=6, bleu=0.5)
    assert metrics(catalog, "bleu") == {6: 0.5}
    again.train(
        DoAt(1, lambda: again.launch.record(step=6, bleu=0.75)), again.launch.saver(tmp_path, every=2), epochs=2
    )
    assert metrics(catalog, "bleu") == {6: 0.75}


def test_an_evaluation_before_the_first_step_is_of_no_state(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was told as an error: a checkpoint could not be registered."""

    class EvaluateFirst(Evaluate):
        def on_train_begin(self, run_context: Any) -> None:
            self._evaluate()

    job = new_job()
    ckpt_cb = saving(tmp_path)
    job.train(ckpt_cb, job.registrar(ckpt_cb), EvaluateFirst(job, 2, found=[]))
    assert metrics(catalog, "accuracy").keys() == {2}
    assert complaints(caplog) == []


def test_metrics_of_a_loop(catalog: Catalog, tmp_path: Path) -> None:
    trained, launch = Trained(), ckptstore.mindspore.join("run")
    loop = trained.loop(tmp_path, every=4, launch=launch)
    for _ in loop:
        loop.step(loss=ms.Tensor(0.5), metrics={"accuracy": ms.Tensor(0.25), "step": loop.global_step})
        if loop.global_step == 8:
            launch.record(step=8, bleu=0.5)
    assert metrics(catalog, "accuracy") == {4: 0.25, 8: 0.25, 12: 0.25}
    assert metrics(catalog, "bleu") == {8: 0.5}
