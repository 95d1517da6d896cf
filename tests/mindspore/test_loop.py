"""A functional training fails and is started again: it ends with the weights of the one that never failed."""

import io
import json
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ckptstore import progress
from ckptstore.mindspore.schedule import LEFT
from tests.mindspore import loop_job
from tests.mindspore.running import Outcome, Run, outcome, python

JOB = Path(__file__).with_name("loop_job.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "functional" / "train.py"
KILLED = -signal.SIGKILL
ENDS_THE_PROCESS = ("kill", "flag", "exit")


class Training(Run):
    """A run of the job in a directory of its own, launch after launch.

    A launch is a process of its own if the fault ends one, or if all are to be (`apart`); else a call in this one.
    """

    job = JOB

    def __init__(self, out: Path, asked: dict[str, Any] | None = None, *, apart: bool = False) -> None:
        super().__init__(out)
        self.asked, self.output, self.apart = asked or {}, "", apart

    def launch(self, *, ranks: int = 1, **asked: Any) -> Outcome:
        ends = asked.get("fault", "").startswith(ENDS_THE_PROCESS)
        if self.apart or ranks > 1 or ends or asked.get("graph"):
            return super().launch(ranks=ranks, **asked)
        return self._here({"out": str(self.out), **asked})

    def _here(self, asked: dict[str, Any]) -> Outcome:
        printed, code = io.StringIO(), 0
        words = logging.StreamHandler(printed)
        logging.getLogger("ckptstore").addHandler(words)
        with pytest.MonkeyPatch.context() as environment, redirect_stdout(printed):
            environment.setenv("CKPTSTORE_URL", self.url)
            try:
                loop_job.main({**loop_job.DEFAULTS, **asked})
            except SystemExit as left:
                code = left.code
            except Exception as error:  # noqa: BLE001 — as the interpreter prints it
                print(error)
                code = 1
        logging.getLogger("ckptstore").removeHandler(words)
        return outcome(code, printed.getvalue())

    def start(self, fault: str = "none", *, ranks: int = 1, **asked: Any) -> tuple[int, dict[str, Any]]:
        """Its exit code, and where the loop began."""
        outcome = self.launch(ranks=ranks, fault=fault, **{**self.asked, **asked})
        self.output = outcome.output
        return outcome.code, outcome.start

    def saved(self) -> list[tuple[int, str]]:
        """Step and kind of every file, newest first."""
        return [(file.global_step, file.kind.value) for file in self.catalog.files("run")]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Training]:
    """The run that nothing disturbs, for each way to train; made when it is first asked for."""
    made: dict[str, Training] = {}

    def of(ranks: int = 1, **asked: Any) -> Training:
        key = json.dumps([ranks, asked], sort_keys=True)
        if key not in made:
            made[key] = Training(tmp_path_factory.mktemp("calm"), asked)
            code, _ = made[key].start(ranks=ranks)
            assert code == 0, made[key].output
        return made[key]

    return of


def check(calm: Training, rough: Training, fault: tuple[str, int, int | None], ranks: int = 1) -> None:
    """The job fails as it is told, goes on after a step, and ends as if nothing had happened."""
    told, code, step = fault
    failed, _ = rough.start(told, ranks=ranks)
    if ranks == 1:
        assert failed == code, rough.output
    newest = rough.saved()[0] if step is None else (step, "")
    again, start = rough.start(ranks=ranks)
    assert again == 0, rough.output
    assert start["global_step"] == (step if step is not None else newest[0]), rough.output
    for rank in range(ranks):
        assert rough.final(rank) == calm.final(rank)


FAULTS: list[Any] = [
    ("kill 17", KILLED, 15),  # in mid-epoch, between two saves
    pytest.param(("kill 21", KILLED, 20), marks=pytest.mark.long),  # the newest state is exactly the end of an epoch
    ("raise 17", 1, 17),  # between two steps, as far as the loop is told
    ("raise-after-update 17", 1, 15),  # the update is done, and the loop was not told: more may have been to do
    pytest.param(("raise-before-update 17", 1, 16), marks=pytest.mark.long),
    ("raise-in-optimizer 17", 1, 15),  # how much of the update is done is not known
    ("raise-in-data 18", 1, None),  # the pipeline is ahead of the training
    ("terminate 17", LEFT, 17),
    pytest.param(("flag 17", LEFT, 17), marks=pytest.mark.long),
    ("break 13", 0, 13),
]


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault(calm, tmp_path: Path, fault: tuple[str, int, int | None], *, apart: bool) -> None:
    check(calm(), Training(tmp_path, apart=apart), fault)


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_restore_shows_a_bar_on_a_terminal_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two seconds; here at once."""
    training = Training(tmp_path)
    training.start("terminate 3")
    monkeypatch.setattr(progress, "SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    for screen, is_shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", screen)
        assert training.start()[0] == 0
        assert ("loaded" in screen.getvalue()) == is_shown


def test_a_request_to_leave_is_answered_at_once_and_the_process_can_be_asked_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C, which MindSpore turns into SIGTERM: a step may take a minute, and nothing was printed until its end.

    A notebook catches `SystemExit`: SIGTERM was ignored from then on.
    """
    training = Training(tmp_path)
    for step in (3, 8):
        assert training.start(f"terminate {step}")[0] == LEFT
        assert capfd.readouterr().err.count("saving after this step, then training ends; a second signal ends it") == 1
    assert training.saved()[0] == (11, "graceful_exit")  # 8 steps later


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"jit": True}, marks=pytest.mark.long),
        {"jit": True, "graph": True},
        pytest.param({"norm": True}, marks=pytest.mark.long),
        pytest.param({"gan": True}, marks=pytest.mark.long),
        pytest.param({"loop": {"format": "ckpt"}}, marks=pytest.mark.long),
    ],
    ids=str,
)
@pytest.mark.parametrize("fault", [FAULTS[0], pytest.param(FAULTS[3], marks=pytest.mark.long)], ids=str)
def test_ways_to_train(calm, tmp_path: Path, how: dict[str, Any], fault: tuple[str, int, int | None]) -> None:
    check(calm(**how), Training(tmp_path, how), fault)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"keeps": True}, marks=pytest.mark.long),
        pytest.param({"draws": True}, marks=pytest.mark.long),
        {"scheduler": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("fault", ["kill 17", pytest.param("raise 17", marks=pytest.mark.long)])
def test_what_is_no_parameter_goes_on_too(calm, tmp_path: Path, how: dict[str, Any], fault: str) -> None:
    """A scheduler may be stepped after `loop.step`: an exception there may come before."""
    rough = Training(tmp_path, how)
    is_unsure = "kill" in fault or "scheduler" in how
    check(calm(**how), rough, (fault, KILLED if "kill" in fault else 1, 15 if is_unsure else 17))
    if "keeps" in how:
        assert (tmp_path / "losses.json").read_text() == (calm(**how).out / "losses.json").read_text()


@pytest.mark.msrun
@pytest.mark.parametrize(
    ("fault", "step"),
    [
        pytest.param("kill 17", 15, marks=pytest.mark.long),
        pytest.param("raise 17", 17, marks=pytest.mark.long),
        pytest.param("terminate 17", None, marks=pytest.mark.long),
        pytest.param("flag 17", None, marks=pytest.mark.long),
    ],
)
def test_two_ranks(calm, tmp_path: Path, fault: str, step: int | None) -> None:
    """The fault is rank 1's. An exit is asked for in one step, and all leave together after a later one."""
    check(calm(ranks=2), Training(tmp_path, {"rank": 1}), (fault, 1, step), ranks=2)


def test_a_second_fault_after_a_resume_in_mid_epoch_and_a_finished_run(calm, tmp_path: Path) -> None:
    rough = Training(tmp_path)
    rough.start("kill 17")
    rough.apart = True  # its ending is recorded when the interpreter ends
    assert rough.start("raise 3")[1]["global_step"] == 15
    rough.apart = False
    assert rough.start("kill 4")[1]["global_step"] == 18
    assert rough.start()[1]["global_step"] == 20
    assert rough.final() == calm().final()
    code, start = rough.start()
    assert (code, start["global_step"]) == (0, 30)
    assert "all 3 epochs were trained before: nothing left to train" in rough.output
    assert rough.start(epochs=4)[1]["global_step"] == 30
    assert rough.saved()[0] == (40, "periodic")


PATIENT = {"epochs": 8, "patience": 2}


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        pytest.param("kill 17", 15, marks=pytest.mark.long),
        ("kill-late 20", 15),  # evaluated, and not saved
        pytest.param("raise 20", 15, marks=pytest.mark.long),  # before the evaluation, or
        ("raise-late 20", 20),  # after it, and its save was asked for
        pytest.param("terminate 20", 20, marks=pytest.mark.long),
        pytest.param("break 20", 20, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", [{}, pytest.param({"norm": True}, marks=pytest.mark.long)], ids=str)
def test_early_stopping_stops_at_the_same_step(
    calm, tmp_path: Path, fault: str, step: int, how: dict[str, Any], *, apart: bool
) -> None:
    """With the same weights, and what it keeps; started again it trains nothing, and saves nothing."""
    undisturbed, rough = calm(**PATIENT, **how), Training(tmp_path, {**PATIENT, **how}, apart=apart)
    assert rough.start(fault)[0] != 0 or fault.startswith("break")
    assert rough.start()[1]["global_step"] == step
    stopped = json.loads((undisturbed.out / "stopped.json").read_text())
    assert 20 < stopped[0] < 80
    for _ in range(2):
        assert json.loads((rough.out / "stopped.json").read_text()) == stopped
        assert rough.final() == undisturbed.final()
        saved = rough.saved()
        assert saved[0] == (stopped[0], "periodic")
        assert "nothing is saved" not in rough.output
        assert rough.start()[1]["global_step"] == stopped[0]
        assert (rough.saved(), "DONE 0 steps" in rough.output) == (saved, True)


@pytest.mark.msrun
@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill-at-once-late 20", "raise-late 20", "terminate 33"])
def test_two_ranks_stop_early_together(calm, tmp_path: Path, fault: str) -> None:
    undisturbed, rough = calm(ranks=2, **PATIENT), Training(tmp_path, {**PATIENT, "rank": 1})
    rough.start(fault, ranks=2)
    for steps in ("DONE", "DONE 0 steps"):
        assert rough.start(ranks=2)[0] == 0, rough.output
        assert steps in rough.output
        assert (rough.out / "stopped.json").read_text() == (undisturbed.out / "stopped.json").read_text()
        assert [rough.final(rank) for rank in range(2)] == [undisturbed.final(rank) for rank in range(2)]


def test_a_step_that_is_not_told_of_ends_the_training_at_once(tmp_path: Path) -> None:
    rough = Training(tmp_path)
    assert rough.start("no-step 2")[0] == 1
    assert "the batch after step 1 was taken, and loop.step was not called; call loop.step()" in rough.output
    assert rough.saved() == []


def test_time_between_saves_and_retention(tmp_path: Path) -> None:
    """A save is due after every step; retention keeps the newest."""
    rough = Training(tmp_path, {"every": 1e-6, "loop": {"retention": {"keep_last": 3}}})
    assert rough.start()[0] == 0, rough.output
    assert [step for step, _ in rough.saved()][:3] == [30, 29, 28]
    assert len(list(tmp_path.glob("ckpt/*.safetensors"))) == 3


@pytest.mark.long
def test_the_loop_of_mindspores_own_tutorial(tmp_path: Path) -> None:
    """`examples/functional`: killed in its second epoch, and started again by the same command."""
    ends = []
    for name in ("calm", "rough"):
        command = [*python(), str(EXAMPLE), str(tmp_path / name)]
        environment = os.environ | {"CKPTSTORE_URL": str(tmp_path / f"{name}.db"), "GLOG_v": "3"}
        if name == "rough":
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
                assert first.stdout is not None
                assert any(line.startswith("epoch 2 step 10:") for line in first.stdout)
                first.kill()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ends.append((tmp_path / name / "model.ckpt").read_bytes())
    assert "going on after step" in done.stderr
    assert ends[0] == ends[1]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_any_faults_one_after_the_other(calm, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 — moments, not secrets
    ways = [{}, {"jit": True}, {"norm": True}, {"gan": True}, {"keeps": True}, {"draws": True}, {"scheduler": True}]
    how = chance.choice([*ways, PATIENT, {**PATIENT, "norm": True}])
    rough = Training(tmp_path, {**how, "every": chance.choice([1, 3, 5, 7, 0.01])}, apart=True)
    words = ["kill", "kill-at-once", "raise", "raise-after-update", "raise-before-update", "raise-in-optimizer"]
    words += ["raise-in-data", "terminate", "flag", "exit", "break", "raise-late", "exit-late", "kill-at-once-late"]
    for _ in range(4):
        rough.start(f"{chance.choice(words)} {chance.randint(1, 12)}")
    code, _ = rough.start()
    assert code == 0, rough.output
    assert rough.final() == calm(**how).final()
    assert (tmp_path / "stopped.json").read_text() == (calm(**how).out / "stopped.json").read_text()
    if "keeps" in how:
        assert (tmp_path / "losses.json").read_text() == (calm(**how).out / "losses.json").read_text()


@pytest.mark.msrun
@pytest.mark.long
def test_no_rank_leaves_before_the_others_have_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """msrun kills the other ranks once one has left with 75; rank 1 saves when msrun has seen rank 0 go."""
    of_its_own = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "MS_NODE_TIMEOUT": "10"}
    monkeypatch.setattr("tests.mindspore.running.with_msrun", lambda: of_its_own)
    monkeypatch.setattr(Training, "job", JOB.with_name("late_job.py"))
    rough = Training(tmp_path, {"rank": 0})
    rough.start("flag 7", ranks=2)
    step, _ = rough.saved()[0]
    exits = [(file.global_step, file.rank) for file in rough.catalog.files("run", kind="graceful_exit")]
    assert exits == [(step, 0), (step, 1)]
