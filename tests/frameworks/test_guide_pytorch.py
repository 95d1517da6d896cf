"""The guide's script of PyTorch (seed 003): what it leaves is adopted, handed out, and gone on from."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.running import HERE, ckptstore, last_line

BATCHES, EPOCHS = 8, 4
BEST = "model_best.pth.tar"


def places(*epochs: int) -> tuple[object, ...]:
    """The options that say of which step each rank's file is, by the epochs that it had done."""
    steps = [f"rank_{rank}/{BEST}={epoch * BATCHES}" for rank, epoch in enumerate(epochs)]
    return (*(word for step in steps for word in ("--step", step)), "--steps-per-epoch", BATCHES, "--replicas", "dp")


def launch(torch: Path, cwd: Path, *, epochs: int, name: str, resume: bool = True, **environment: str) -> list[Any]:
    """What both ranks print at their end."""
    script = [torch, HERE / "guide_pytorch.py", "--world-size", "2", "--epochs", str(epochs)]
    variables = os.environ | {"LAUNCH": name, "OMP_NUM_THREADS": "1"} | environment
    ranks = [
        subprocess.Popen(
            [*script, "--rank", str(rank), *(["--resume"] if resume else [])],
            cwd=cwd,
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    printed = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    return [last_line(each) for each in printed]


@pytest.fixture(scope="module")
def whole(torch: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The weights of a job that nothing happened to."""
    ends = launch(torch, tmp_path_factory.mktemp("whole"), epochs=EPOCHS, name="whole", resume=False)
    assert ends[0] == ends[1]
    return ends[0]["weights"]


@pytest.fixture
def killed(torch: Path, tmp_path: Path) -> Path:
    """The directory of a job that ended after two epochs."""
    home = tmp_path / "job"
    home.mkdir()
    launch(torch, home, epochs=2, name="killed", resume=False)
    return home


def handed_out(run: str) -> tuple[list[str], Mapping[str, str]]:
    """The paths, and the variables as a shell has them."""
    command = f'eval "$(ckptstore resolve {run} --format env)"; printenv RESTORE_RANKS RESTORE_RANKS_MAP'
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = subprocess.run(
        ["sh", "-c", command], env=os.environ | {"PATH": paths}, capture_output=True, text=True, check=True
    )
    ranks, groups = shell.stdout.splitlines()
    return ckptstore("resolve", run, "--format", "paths").splitlines(), {"RANKS": ranks, **json.loads(groups)}


def test_it_goes_on_from_what_is_handed_out(torch: Path, killed: Path, whole: Any) -> None:
    ckptstore("scan", killed, code=7)
    assert "newest step 16" in ckptstore("scan", killed, *places(2, 2))
    paths, variables = handed_out("job")
    assert paths == [str(killed / f"rank_{rank}" / BEST) for rank in (0, 1)]
    assert variables == {"RANKS": "0,1", "0": 0, "1": 1}
    ends = launch(torch, killed, epochs=EPOCHS, name="again", CANDIDATE=paths[0])
    assert ends == [{"start_epoch": 2, "weights": whole}] * 2
    assert "newest step 32" in ckptstore("scan", killed, *places(4, 4))  # it saved over its files
    assert handed_out("job")[0] == paths


def test_as_it_is_the_script_goes_on_where_all_files_are_of_one_epoch(torch: Path, killed: Path, whole: Any) -> None:
    assert launch(torch, killed, epochs=EPOCHS, name="again") == [{"start_epoch": 2, "weights": whole}] * 2


def test_of_two_ranks_the_newer_file_serves_both(torch: Path, killed: Path, tmp_path: Path, whole: Any) -> None:
    """Each node keeps its own best. As it is, the script takes the first that glob finds, on each node another."""
    older = tmp_path / "older"
    older.mkdir()
    launch(torch, older, epochs=1, name="older", resume=False)
    (older / "rank_0" / BEST).replace(killed / "rank_0" / BEST)
    ckptstore("scan", killed, *places(1, 2))
    paths, variables = handed_out("job")
    assert paths == [str(killed / "rank_1" / BEST)] * 2
    assert variables == {"RANKS": "1", "0,1": 1}
    assert launch(torch, killed, epochs=EPOCHS, name="again", CANDIDATE=paths[0])[0]["weights"] == whole


def test_a_file_that_is_cut_is_passed_over(killed: Path) -> None:
    steps = [word for rank in (0, 1) for word in ("--step", f"rank_{rank}/{BEST}={rank + 15}")]
    ckptstore("scan", killed, *steps, "--replicas", "dp")
    newest = killed / "rank_1" / BEST
    assert handed_out("job")[0] == [str(newest)] * 2
    newest.write_bytes(newest.read_bytes()[:-100])
    assert handed_out("job")[0] == [str(killed / "rank_0" / BEST)] * 2
    assert f"{newest}: it is empty or cut" in ckptstore("scan", killed)
