"""The guide's script of TensorFlow (seed 003): what it leaves is adopted, handed out, and gone on from."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.running import TENSORFLOW, ckptstore, last_line, script


def train(cwd: Path, model_dir: str, steps: int, *options: object) -> Any:
    arguments = ("--model_dir", model_dir, "--max_train_steps", steps, *options)
    return last_line(script(TENSORFLOW, "guide_tensorflow.py", *arguments, cwd=cwd))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """What two devices left that were killed at different steps, and the weights of one that was not."""
    home = tmp_path_factory.mktemp("trained")
    for rank, steps in enumerate((25, 35)):
        train(home, f"d_solution/ckpt{rank}", steps)
    return home / "d_solution", train(home, "whole", 60)["weights"]


@pytest.fixture
def saved(trained: tuple[Path, Any], tmp_path: Path) -> Path:
    """The same, for one test."""
    return shutil.copytree(trained[0], tmp_path / "d_solution")


def handed_out() -> list[str]:
    return ckptstore("resolve", "d_solution", "--format", "paths").splitlines()


def test_it_goes_on_from_what_is_handed_out(trained: tuple[Path, Any], saved: Path, tmp_path: Path) -> None:
    ckptstore("scan", saved, code=7)
    ckptstore("scan", saved, "--trust", "name")
    assert handed_out() == [str(saved / f"ckpt{rank}" / "model.ckpt-20") for rank in (0, 1)]  # the newest of both
    assert """RESTORE_RANKS_MAP='{"0": 0, "1": 1}'""" in ckptstore("resolve", "d_solution", "--format", "env")
    ckptstore("scan", saved, "--replicas", "dp")
    of_one = str(saved / "ckpt1" / "model.ckpt-35")
    assert handed_out() == [of_one] * 2
    end = train(tmp_path, "moved/ckpt0", 60, "--exists", "--restore_path", of_one)
    assert end == {"began": 35, "weights": trained[1]}


def test_as_it_is_the_script_takes_a_directory_and_no_prefix(trained: tuple[Path, Any], tmp_path: Path) -> None:
    """os.path.exists finds no file of that name: the script starts over, without a word."""
    directory = trained[0] / "ckpt1"
    assert train(tmp_path, "a", 36, "--restore_path", directory)["began"] == 35
    assert train(tmp_path, "b", 36, "--restore_path", directory / "model.ckpt-35")["began"] == 0


def test_the_steps_are_stated(saved: Path) -> None:
    steps = [word for rank in (0, 1) for word in ("--step", f"ckpt{rank}/model.ckpt-20=20")]
    ckptstore("scan", saved, *steps, code=7)
    assert handed_out() == [str(saved / f"ckpt{rank}" / "model.ckpt-20") for rank in (0, 1)]
