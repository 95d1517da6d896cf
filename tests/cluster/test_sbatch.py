"""`examples/slurm/train.sbatch` under bash. Slurm cannot run here: its programs record what they are asked for."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ckptstore.api import connect
from ckptstore.core.model import Kind
from tests.command_line import COMMAND
from tests.mindspore.running import python

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"
TRAINING = Path(__file__).parents[1] / "mindspore" / "loop_job.py"

Job = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Runs the script, with an `srun` that does as it is told: its exit code, and what it called."""
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()

    def stand_in(name: str, does: str = "") -> None:
        program = programs / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >> "{calls}"\n{does}\n')
        program.chmod(0o700)

    def run(*, srun: str, ckptstore: str = "exit 0", restarts: int = 0) -> tuple[int, list[str]]:
        stand_in("srun", srun)
        stand_in("scontrol", 'test "$1" != show || echo node7 node8 | tr " " "\\n"')
        stand_in("ckptstore", ckptstore)
        environment = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NODELIST": "node[7-8]",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        with subprocess.Popen(["bash", SCRIPT], env=environment, start_new_session=True) as script:
            try:
                code = script.wait(timeout=60)
            finally:
                with suppress(ProcessLookupError):  # as Slurm ends what is left of a job
                    os.killpg(script.pid, signal.SIGKILL)
        called = calls.read_text().splitlines()
        calls.unlink()
        assert called[0] == "scontrol show hostnames node[7-8]"
        assert called[1].startswith("srun --wait=0 --kill-on-bad-exit=0 bash -c exec python node.py --worker_num=")
        return code, called[-2:]

    return run


ASKS = "scontrol requeue 4711"
LEAVES = "ckptstore exit digits --wait --timeout 9m --reason Slurm job 4711"


@pytest.mark.parametrize("left", [0, 8])
def test_at_sigterm_it_has_the_run_leave_and_comes_back(job: Job, left: int) -> None:
    """Its step goes on until Slurm ends it: what was saved is whole, or the restart gets an older state."""
    code, called = job(srun="kill -TERM $PPID; exec tail -f /dev/null", ckptstore=f"exit {left}")
    assert (code, called) == (0, [LEAVES, ASKS])


@pytest.mark.parametrize("code", [1, 75, 137])
def test_what_may_be_started_again_is(job: Job, code: int) -> None:
    assert job(srun=f"exit {code}")[1][-1] == ASKS


@pytest.mark.parametrize("code", [0, 2, 3, 5])
def test_what_is_finished_or_refused_is_not(job: Job, code: int) -> None:
    ended, called = job(srun=f"exit {code}")
    assert ended == code
    assert ASKS not in called


def test_it_does_not_come_back_for_ever(job: Job) -> None:
    code, called = job(srun="exit 1", restarts=20)
    assert code == 1
    assert ASKS not in called


@pytest.mark.long
def test_a_training_leaves_before_its_time_is_over_and_goes_on(job: Job, tmp_path: Path) -> None:
    """With the real command: SIGTERM comes in the 7th step, which waits until the run is asked to leave."""
    database = tmp_path / "catalog.db"
    train = f"CKPTSTORE_URL={database} exec {shlex.join([*python(), str(TRAINING)])}"
    (tmp_path / "go").touch()  # the step ends as soon as the request is seen
    in_step = tmp_path / "in-step-0"
    terminated = f"(until [ -s {in_step} ]; do sleep 0.1; done; kill -TERM $PPID) & {train}"
    real = f'CKPTSTORE_URL={database} exec {COMMAND} exit run "${{@:3}}"'
    asked = {"out": str(tmp_path)}
    left = job(srun=f"{terminated} '{json.dumps({**asked, 'fault': 'waits 7'})}'", ckptstore=real)
    assert left == (0, [LEAVES, ASKS])
    catalog = connect(str(database))
    newest = catalog.files("run")[0]
    assert newest.kind is Kind.GRACEFUL_EXIT
    assert catalog.resolve("run").plan.global_step == newest.global_step
    assert job(srun=f"{train} '{json.dumps(asked)}'")[0] == 0
    assert catalog.saves("run")[0].tally.global_step == 30


def test_its_options_give_the_time_that_it_takes() -> None:
    """SIGTERM goes to the script alone, and in time for what it waits for."""
    asked = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2]
        for line in SCRIPT.read_text().splitlines()
        if line.startswith("#SBATCH")
    )
    receiver, seconds = asked["signal"].split("@")
    assert receiver == "B:TERM"
    assert int(seconds) >= 9 * 60 + 30
    assert {"requeue", "time"} <= asked.keys()
