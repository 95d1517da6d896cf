"""A real job fails and is started again: it ends with the weights of the run that never failed, bit for bit."""

import re
import signal
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

import ckptstore.mindspore
from ckptstore.errors import RefusedError
from ckptstore.training import life_signs
from tests.cli.advice import follow
from tests.mindspore.running import Run


@pytest.mark.parametrize(
    ("fault", "step", "newest"),
    [
        ("kill 17", 15, "net-2_5.ckpt"),  # in mid-epoch, between two saves
        ("kill-at-once 16", 15, ""),  # the save of step 15 may not be in the catalog yet: it is found on disk
        ("kill 21", 20, "net-2_10.ckpt"),  # the newest state is exactly the end of an epoch
        ("raise 17", 17, "net-2_7_breakpoint.ckpt"),  # MindSpore's breakpoint, newer than the last periodic save
        ("raise-before 18", 17, "net-2_8_breakpoint.ckpt"),  # named after a step whose update was never applied
    ],
)
def test_one_fault(tmp_path: Path, undisturbed: bytes, fault: str, step: int, newest: str) -> None:
    """What a process that failed has left is registered by itself; what is saved after it is named by its true step."""
    run = Run(tmp_path)
    crashed = run.launch(fault=fault)
    assert crashed.code == (-signal.SIGKILL if fault.startswith("kill") else 1), crashed.output
    assert not (tmp_path / "final.ckpt").exists()
    if newest:
        kind = "dying_gasp" if "breakpoint" in newest else "periodic"
        assert run.files()[0] == (kind, step, "complete", newest)
        file = run.catalog.files("run")[0]
        place = ((step - 1) // 10 + 1, (step - 1) % 10 + 1)
        assert (file.optimizer_step, file.epoch, file.step_in_epoch) == (step, *place)
    again = run.launch()
    assert again.code == 0, again.output
    assert (again.start["global_step"], again.start["initial_epoch"]) == (step, step // 10)
    assert not again.start["fresh"]
    assert run.final() == undisturbed
    # Plain MindSpore counts from 1 again: it would give the name of step 20 to another one.
    assert [file[1::2] for file in run.files()[:2]] == [(30, "net_1-3_10.ckpt"), (25, "net_1-3_5.ckpt")]


def test_two_faults_the_second_after_a_resume_in_mid_epoch(tmp_path: Path, undisturbed: bytes) -> None:
    run = Run(tmp_path)
    run.launch(fault="kill 17")
    second = run.launch(fault="raise 8")
    assert second.start["global_step"] == 15
    third = run.launch(fault="kill 1")
    assert third.start["global_step"] == 23
    fourth = run.launch()
    assert fourth.start["global_step"] == 23
    assert run.final() == undisturbed
    second_launch = [(step, name) for _, step, _, name in run.files() if 15 < step < 25]
    assert second_launch == [(23, "net-3_3_breakpoint.ckpt"), (20, "net_1-2_10.ckpt")]


@pytest.mark.parametrize("fault", ["raise-before 1", "bad-dataset"])
def test_an_untrained_breakpoint_is_known_and_never_restored(tmp_path: Path, undisturbed: bytes, fault: str) -> None:
    run = Run(tmp_path)
    run.launch(fault=fault)
    kind, step, _, name = run.files()[0]
    assert (kind, step) == ("dying_gasp", 0)
    assert name in ("net-1_0_breakpoint.ckpt", "net-1_1_breakpoint.ckpt")
    again = run.launch()
    assert again.start["fresh"]
    assert run.final() == undisturbed


def test_a_tree_that_was_moved(tmp_path: Path, undisturbed: bytes) -> None:
    """The start names the command that finds it; after that the job goes on as if nothing had happened."""
    url = str(tmp_path / "catalog.db")
    assert Run(tmp_path / "old", url).launch(fault="kill 17").code == -signal.SIGKILL
    (tmp_path / "old").rename(tmp_path / "new")
    run = Run(tmp_path / "new", url)
    refused = run.launch()
    assert refused.code == 1
    assert follow(url, refused.output[refused.output.index("is gone") :], NEW=str(run.out)).code == 0
    assert run.launch().start["global_step"] == 15
    assert run.final() == undisturbed


@pytest.mark.parametrize("order", ["registrar first", "registrar first, finds them"])
def test_the_registrar_may_stand_anywhere(tmp_path: Path, undisturbed: bytes, order: str) -> None:
    run = Run(tmp_path)
    run.launch(fault="kill 17", order=order)
    assert [file[1] for file in run.files()] == [15, 10, 5]
    again = run.launch(order=order)
    assert again.start["global_step"] == 15
    assert run.final() == undisturbed
    assert run.steps() == [30, 25, 20, 15, 10, 5]


@pytest.mark.parametrize("how", ["thread", "process"])
def test_asynchronous_saves(tmp_path: Path, undisturbed: bytes, how: str) -> None:
    run = Run(tmp_path)
    config = {"async_save": how, "exception_save": False}
    run.launch(fault="raise 17", config=config)
    again = run.launch(config=config)
    assert again.code == 0, again.output
    assert again.start["global_step"] == 15
    assert run.final() == undisturbed
    assert run.steps() == [30, 25, 20, 15, 10, 5]


def test_what_mindspore_deleted_is_not_shown_as_present(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.launch(config={"keep_checkpoint_max": 2}, fault="keep-up")
    assert run.steps() == [30, 25]
    assert {file[1]: file[2] for file in run.files()} == {
        30: "complete",
        25: "complete",
        **dict.fromkeys((20, 15, 10, 5), "missing"),
    }


def test_what_the_user_appended_is_handed_back(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = {"append_info": ["epoch_num", "step_num", {"note": "abc", "lr": 0.5, "n": 7, "flag": True}]}
    run.launch(fault="kill 17", config=config)
    again = run.launch(fault="kill 8", config=config)
    expected = {"epoch_num": 2, "step_num": 15, "note": "abc", "lr": 0.5, "n": 7, "flag": True}
    assert again.start["append_info"] == expected
    third = run.launch(config=config)
    assert third.start["append_info"] == {**expected, "epoch_num": 2, "step_num": 20}


def test_weights_only_are_catalogued_and_never_chosen(tmp_path: Path) -> None:
    run = Run(tmp_path)
    first = run.launch(fault="kill 17", config={"weights_only": True})
    assert [file[1] for file in run.files()] == [15, 10, 5]
    assert not any(save.restorable for save in run.catalog.saves("run"))
    rejections = run.catalog.resolve("run").rejections
    assert {reason.rule.value for rejection in rejections for reason in rejection.reasons} == {"weights_only"}
    assert "saved_network leaves out the optimizer" in first.output
    assert run.launch().start["fresh"]


def test_the_same_job_twice__before_the_first_was_given_up__now_the_second_is_refused(
    tmp_path: Path, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process, while the first one trains."""
    run = Run(tmp_path)
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
