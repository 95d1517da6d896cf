"""The examples of two ranks: one gets SIGKILL, and started again they end with the weights of an undisturbed run."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.running import TENSORFLOW

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(python: Path, framework: str, out: Path, launch: str, killed_at: int = 0) -> list[str]:
    """Start both ranks, to their ends, and return what they said. Where one is killed the other fails, or goes on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CKPTSTORE_LAUNCH_ID": launch}
    common |= {"CKPTSTORE_URL": str(out.with_suffix(".db")), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    ranks = [
        subprocess.Popen(
            [python, EXAMPLES / framework / "train.py", out],
            env=os.environ | common | {"RANK": str(rank), "KILLED_AT": str(killed_at if rank == 1 else 0)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    if killed_at:
        assert ranks[1].returncode == -signal.SIGKILL
    else:
        assert [rank.returncode for rank in ranks] == [0, 0]
    return said


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch"])
def test_a_rank_is_killed(framework: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = TENSORFLOW if framework == "tensorflow" else request.getfixturevalue("torch")
    train(python, framework, tmp_path / "calm", "L1")
    train(python, framework, tmp_path / "rough", "L1", killed_at=13)
    assert train(python, framework, tmp_path / "rough", "L2")[1] == "rank 1 goes on after step 10\n"
    finals = sorted((tmp_path / "calm").glob("final_*"))
    assert len(finals) == 2
    for final in finals:
        assert final.read_bytes() == (tmp_path / "rough" / final.name).read_bytes()
