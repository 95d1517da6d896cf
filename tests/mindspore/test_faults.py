"""A real job fails and is started again: it ends with the weights of the run that never failed, bit for bit."""

import re
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from mindspore.train import Callback

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.errors import RefusedError
from ckptstore.training import life_signs
from tests.cli.advice import follow
from tests.mindspore.job import WAYS
from tests.mindspore.running import Run
from tests.mindspore.trainings import Job, create_dataset, on_purpose, saving

SAVER = "launch.saver"


@pytest.mark.parametrize(
    ("fault", "kind", "step"),
    [
        pytest.param("kill 17", "periodic", 15, marks=pytest.mark.long),  # in mid-epoch, between two saves
        ("kill-at-once 16", "", 15),  # the save of step 15 may not be in the catalog yet: it is found on disk
        pytest.param(
            "kill 21", "periodic", 20, marks=pytest.mark.long
        ),  # the newest state is exactly the end of an epoch
        ("raise 17", "dying_gasp", 17),  # MindSpore's breakpoint, newer than the last periodic save
        pytest.param(
            "raise-before 18", "dying_gasp", 17, marks=pytest.mark.long
        ),  # named after a step whose update was never applied
    ],
)
def test_one_fault(run: Run, undisturbed: bytes, fault: str, kind: str, step: int) -> None:
    """What a process that failed has left is registered by itself."""
    crashed = run.launch(fault=fault)
    assert crashed.code == (-signal.SIGKILL if fault.startswith("kill") else 1), crashed.output
    assert not (run.out / "final.ckpt").exists()
    if kind:
        assert run.files()[0][:3] == (kind, step, "complete")
        file = run.catalog.files("run")[0]
        place = ((step - 1) // 10 + 1, (step - 1) % 10 + 1)
        assert (file.optimizer_step, file.epoch, file.step_in_epoch) == (step, *place)
    if fault.startswith("kill-at-once") and run.saves == SAVER and not (run.out / "ckpt/net-2_5.safetensors").exists():
        step = 10  # killed while it was being written
    again = run.again(step=step)
    assert (again.start["initial_epoch"], again.start["fresh"]) == (step // 10, False)
    assert run.final() == undisturbed
    assert run.steps()[:2] == [30, 25]


def test_two_faults_the_second_after_a_resume_in_mid_epoch(run: Run, undisturbed: bytes) -> None:
    run.launch(fault="kill 17")
    assert run.launch(fault="raise 8").start["global_step"] == 15
    assert run.launch(fault="kill 1").start["global_step"] == 23
    run.again(step=23)
    assert run.final() == undisturbed
    if run.saves != SAVER:
        assert [file[1::2] for file in run.files()] == NAMED


NAMED = [
    (30, "net_2-3_10.ckpt"),
    (25, "net_2-3_5.ckpt"),
    (23, "net-3_3_breakpoint.ckpt"),
    (20, "net_1-2_10.ckpt"),
    (15, "net-2_5.ckpt"),
    (10, "net-1_10.ckpt"),
    (5, "net-1_5.ckpt"),
]
"""By their true steps. Plain MindSpore counts from 1 again: it would give the name of step 20 to another one."""


class FailFirst(Callback):
    """An exception before the first step is computed."""

    def on_train_step_begin(self, run_context: object) -> None:
        on_purpose()


@pytest.mark.parametrize("saves", WAYS)
@pytest.mark.parametrize("fails", ["a callback", "the data"])
def test_an_untrained_breakpoint_is_known_and_never_restored(
    catalog: Catalog, tmp_path: Path, fails: str, saves: str
) -> None:
    dataset = create_dataset()
    if fails == "the data":
        dataset = dataset.map(lambda _: on_purpose(), input_columns=["x"])
    job, ckpt_cb = Job(dataset=dataset), saving(tmp_path, exception_save=True)
    saver = [job.launch.saver(tmp_path, every=2)] if saves == SAVER else [ckpt_cb, job.registrar(ckpt_cb)]
    job.fail(*([FailFirst()] if fails == "a callback" else []), *saver)
    job.launch.adopt()  # what the interpreter does when it ends
    assert [(file.kind, file.global_step) for file in catalog.files("run")] == (
        [] if saves == SAVER else [("dying_gasp", 0)]
    )
    assert Job().start.fresh


def test_a_tree_that_was_moved(tmp_path: Path, undisturbed: bytes) -> None:
    """The start names the command that finds it; after that the job goes on as if nothing had happened."""
    url = str(tmp_path / "catalog.db")
    assert Run(tmp_path / "old", url).launch(fault="kill 17").code == -signal.SIGKILL
    (tmp_path / "old").rename(tmp_path / "new")
    run = Run(tmp_path / "new", url)
    refused = run.launch()
    assert refused.code == 1
    assert follow(url, refused.output[refused.output.index("is gone") :], NEW=str(run.out)).code == 0
    run.again(step=15)
    assert run.final() == undisturbed


@pytest.mark.parametrize(
    ("fault", "asked"),
    [
        pytest.param("kill 17", {"order": "registrar first"}, marks=pytest.mark.long),
        ("kill 17", {"order": "registrar first, finds them"}),
        ("raise 17", {"config": {"async_save": "thread", "exception_save": False}}),
        pytest.param(
            "raise 17", {"config": {"async_save": "process", "exception_save": False}}, marks=pytest.mark.long
        ),
    ],
    ids=str,
)
def test_ways_to_use_model_checkpoint(tmp_path: Path, undisturbed: bytes, fault: str, asked: dict[str, Any]) -> None:
    """The registrar may stand anywhere, and saves may be asynchronous."""
    run = Run(tmp_path)
    run.launch(fault=fault, **asked)
    run.again(step=15, **asked)
    assert run.final() == undisturbed
    assert run.steps() == [30, 25, 20, 15, 10, 5]


def test_what_the_user_appended_is_handed_back(catalog: Catalog, tmp_path: Path) -> None:
    own = {"note": "abc", "lr": 0.5, "n": 7, "flag": True}
    for epochs in (1, 2, 3):
        job = Job()
        if epochs > 1:
            assert job.start.append_info == {**own, "epoch_num": epochs - 1, "step_num": 6 * epochs - 6}
        ckpt_cb = saving(tmp_path, append_info=["epoch_num", "step_num", own])
        job.train(ckpt_cb, job.registrar(ckpt_cb), epochs=epochs)


def test_the_same_job_twice__before_the_first_was_given_up__now_the_second_is_refused(
    run: Run, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process, while the first one trains."""
    with run.waiting(fault="waits 7") as first:
        assert first.stdout is not None
        assert any(line.startswith("WAITS") for line in first.stdout)
        monkeypatch.setattr(life_signs, "SILENT", timedelta(seconds=0.5))
        with pytest.raises(RefusedError, match=r"is alive: process \d+ on ") as told:
            ckptstore.mindspore.join("run", catalog=run.catalog)
        assert run.catalog.runs()[0].status == "training"
        assert "join(take_over=True)" in told.value.hint
        process = psutil.Process(int(re.findall(r"process (\d+) on", told.value.message)[0]))
        assert len({file.launch for file in run.catalog.files("run")}) == 1
    process.wait(60)
    assert run.catalog.runs()[0].status == "killed"
    again = run.launch()
    assert again.code == 0, again.output
    assert [row.ending for row in run.catalog.history("run")] == ["killed", "finished"]
    assert "may be alive" not in again.output, "a process that was killed on this host delays nothing"
    assert run.final() == undisturbed
