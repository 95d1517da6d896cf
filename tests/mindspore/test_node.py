"""What msrun makes of a rank's exit code, and what `examples/node.py` makes of it: real msrun, real processes."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from mindspore.parallel.cluster.run import get_args

from ckptstore.api import connect
from ckptstore.errors import RefusedError
from ckptstore.mindspore.schedule import LEFT
from tests.mindspore.running import with_msrun
from tests.postgres_server import free_port
from tests.starting import TRAINING, warm_programs

NODE = Path(__file__).parents[2] / "examples" / "node.py"
KUBERNETES = NODE.with_name("kubernetes")
pytestmark = pytest.mark.msrun

BEGINS = """
import os, sys, threading, time
from pathlib import Path
from ckptstore.errors import RefusedError
out, rank = Path(sys.argv[1]), os.environ["RANK_ID"]
if os.environ["MS_ROLE"] == "MS_SCHED":
    sys.exit()
"""
WAITS = """
if rank == "0":
    sys.exit(75)
threading.Event().wait()
"""
LEAVES = """
first = out / "first"
if rank == "0":
    (out / "written").write_text(str(os.getpid()))
    (out / "written").rename(first)
    sys.exit(75)
while not first.exists() or Path("/proc", first.read_text()).exists():
    time.sleep(0.05)  # msrun has not yet seen what rank 0 ended with
(out / "saved").touch()
sys.exit(75)
"""
IS_REFUSED = """
if rank == "0":
    raise RefusedError("a newer state is there")
threading.Event().wait()
"""
CATCHES_IT = IS_REFUSED.replace("raise RefusedError", "sys.exit(RefusedError").replace('there")', 'there").exit_code)')


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment in which msrun has imported MindSpore already, and ranks are plain Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "msrun").symlink_to(warm_programs(*TRAINING) / "msrun")
    (programs / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (programs / "python").chmod(0o700)
    return os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def launched(program: list[str], script: str, environment: dict[str, str], out: Path) -> int:
    train = out / "train.py"
    train.write_text(BEGINS + script)
    command = [*program, *workers(out / "log"), str(train), str(out)]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


def workers(log: Path) -> list[str]:
    return ["--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", f"--log_dir={log}"]


def test_msrun_kills_the_others_and_ends_with_1(programs: dict[str, str], tmp_path: Path) -> None:
    assert launched(["msrun", "--join=True"], WAITS, programs, tmp_path) == 1


def test_with_75_all_ranks_leave_in_their_own_time(programs: dict[str, str], tmp_path: Path) -> None:
    assert launched([sys.executable, str(NODE)], LEAVES, programs, tmp_path) == LEFT
    assert (tmp_path / "saved").exists()


def test_a_refused_start_ends_with_its_code(programs: dict[str, str], tmp_path: Path) -> None:
    assert launched([sys.executable, str(NODE)], IS_REFUSED, programs, tmp_path) == RefusedError.exit_code
    said = (tmp_path / "log" / "worker_0.log").read_text()
    assert "Traceback" in said
    assert "a newer state is there" in said


def test_a_script_that_ends_with_the_code_of_an_error_is_heard(programs: dict[str, str], tmp_path: Path) -> None:
    """As docs/how-to/schedulers.md has it."""
    assert launched([sys.executable, str(NODE)], CATCHES_IT, programs, tmp_path) == RefusedError.exit_code


@pytest.mark.parametrize(
    ("ended", "told", "code"), [(0, [], 0), (0, [LEFT], LEFT), (1, [], 1), (1, [LEFT], 1), (1, [1, 5, LEFT], 5)]
)
def test_the_code_of_a_node(ended: int, told: list[int], code: int) -> None:
    assert runpy.run_path(str(NODE))["code_of"](ended, told) == code


@pytest.mark.parametrize("name", ["volcano-job.yaml", "indexed-job.yaml"])
def test_the_manifests_start_it_with_options_that_msrun_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = re.findall(r"exec python /job/node.py (.*?train.py \S+)", (KUBERNETES / name).read_text(), re.DOTALL)
    words = shlex.split(re.sub(r'"\$(MASTER|VC_TASK_INDEX|JOB_COMPLETION_INDEX)"', "1", told.replace("\\\n", "")))
    monkeypatch.setattr(sys, "argv", ["msrun", *words])
    asked = get_args()
    assert (asked.task_script, asked.task_script_args) == ("/job/train.py", ["/checkpoints/digits"])
    assert asked.worker_num == 2 * asked.local_worker_num


@pytest.mark.long
def test_a_training_leaves_and_goes_on(tmp_path: Path) -> None:
    asked = {"out": str(tmp_path), "epochs": 40}
    job = [str(Path(__file__).with_name("loop_job.py")), json.dumps({**asked, "fault": "terminate 17"})]
    environment = os.environ | with_msrun() | {"CKPTSTORE_URL": str(tmp_path / "catalog.db"), "GLOG_v": "3"}
    codes = []
    for _ in range(2):
        command = [sys.executable, str(NODE), *workers(tmp_path / "log"), *job]
        codes.append(subprocess.run(command, env=environment, capture_output=True, check=False).returncode)
        job[1] = json.dumps(asked)
    assert codes == [LEFT, 0]
    assert connect(str(tmp_path / "catalog.db")).saves("run")[0].tally.global_step == 400
