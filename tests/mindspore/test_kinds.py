"""Every kind of checkpoint in one run and one catalog; and the example of a graceful exit, run as its user runs it."""

import filecmp
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mindspore.train.callback import OnRequestExit

from ckptstore.api import Catalog
from tests.command_line import ckptstore as command
from tests.mindspore.trainings import ExitAt, Job, RaiseAt, saving
from tests.mindspore.ttp_ranks import Rank

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(directory: Path, *more: Any, steps: int = 100, **config: Any) -> None:
    job = Job()
    ckpt_cb = saving(directory / "ckpt", save_checkpoint_steps=steps, **config)
    try:
        job.train(*more, ckpt_cb, job.registrar(), epochs=4)
    except RuntimeError:
        job.launch.adopt()


def test_four_kinds_of_one_run(catalog: Catalog, rank: Rank, tmp_path: Path, exits: None) -> None:
    train(tmp_path, RaiseAt(5), steps=2, exception_save=True)
    exit_cb = OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False)
    train(tmp_path, exit_cb, ExitAt(2))
    rank.train(0, tmp_path, launch="L3", step=10, handlers=("save", "rename"), epochs=4)
    listed = [(each["kind"], each["global_step"]) for each in command("list", "run", "--json").json]
    assert listed == [
        ("ttp", 10),
        ("graceful_exit", 8),
        ("periodic", 8),
        ("dying_gasp", 5),
        ("periodic", 4),
        ("periodic", 2),
    ]
    for expected in (("ttp", 10), ("graceful_exit", 8), ("periodic", 8), ("dying_gasp", 5), ("periodic", 4)):
        plan = catalog.resolve("run").plan
        source = plan.ranks[0].source
        assert plan.global_step == expected[1]
        assert source.kind.value in ("periodic", "graceful_exit") if plan.global_step == 8 else expected[0]
        Path(source.path).unlink()
    assert catalog.resolve("run").plan.global_step == 2


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Any]:
    """Starts the example in a directory."""
    jobs: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        environment = {"MS_ENABLE_GRACEFUL_EXIT": "1", "CKPTSTORE_URL": str(tmp_path / f"{name}.db"), "GLOG_v": "3"}
        jobs.append(
            subprocess.Popen(
                [sys.executable, "-u", str(EXAMPLES / "graceful_exit" / "graceful_exit.py"), str(tmp_path / name)],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return jobs[-1]

    yield start
    for job in jobs:
        if job.poll() is None:
            job.kill()
            job.communicate()


@pytest.mark.long
def test_the_example_exits_when_asked_and_goes_on_as_if_it_had_not(example: Any, tmp_path: Path) -> None:
    calm = example("calm")
    calm.communicate()
    assert calm.returncode == 0
    job = example("rough")
    for line in job.stdout:
        if "loss is" in line:  # training is under way: now somebody asks for the node
            (tmp_path / "rough" / "graceful_exit.json").write_text('{"GracefulExit": 1}')
            break
    output, _ = job.communicate()
    assert job.returncode == 0, output
    assert not (tmp_path / "rough" / "final_0.ckpt").exists()
    again = example("rough")
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert "put back to 0" in output
    assert "going on after step" in output
    assert filecmp.cmp(tmp_path / "calm" / "final_0.ckpt", tmp_path / "rough" / "final_0.ckpt", shallow=False)
