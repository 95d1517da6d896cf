"""A companion is used only as it was written, and beside the checkpoint that it was written for."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from ckptstore.core.model import Checkpoint, Kind
from ckptstore.core.naming import companion_of
from ckptstore.training.companions import read, write


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def changed(path: Path) -> None:
    told = json.loads(path.read_text())
    told["content"]["waited"] = 7
    path.write_text(json.dumps(told))


def of_another(path: Path) -> None:
    path.write_bytes(path.with_name("net-1_2.companion").read_bytes())


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (Path.unlink, ""),
        (cut, "is cut or damaged"),
        (changed, "is cut or damaged"),
        (of_another, "is of another checkpoint"),
        (directory, "cannot be read (Is a directory)"),
        (pipe, "is no companion of a checkpoint"),
    ],
)
def test_what_is_wrong_with_one_is_told(tmp_path: Path, spoil: Callable[[Path], None], problem: str) -> None:
    files = [
        Checkpoint(
            run="run", launch="L1", kind=Kind.PERIODIC, global_step=step, rank=0, path=f"{tmp_path}/net-1_{step}.ckpt"
        )
        for step in (2, 4)
    ]
    for file in files:
        write(file, {"waited": 1}, durable=False)
    assert json.loads(read(files[1]).content)["waited"] == 1
    path = Path(companion_of(files[1].path))
    spoil(path)
    assert read(files[1]) == ("", problem and f"{path} {problem}")


def test_the_order_of_what_is_kept_stays(tmp_path: Path) -> None:
    """A callback may have averages in the order of the network's parameters, and take them back by their places."""
    file = Checkpoint(
        run="run", launch="L1", kind=Kind.PERIODIC, global_step=2, rank=0, path=f"{tmp_path}/net-1_2.ckpt"
    )
    averages = {"layer.2": 0.5, "layer.10": float("inf"), "head": 1.0}
    write(file, {"callbacks": {"Averaging": {"averages": averages}}}, durable=False)
    (kept,) = json.loads(read(file).content)["callbacks"].values()
    assert list(kept["averages"].items()) == list(averages.items())
    raw = json.loads(Path(companion_of(file.path)).read_text())
    of_sorted = json.dumps(raw["content"], sort_keys=True)  # releases that sorted the names read it too
    assert raw["checksum"] == blake3(of_sorted.encode()).hexdigest()
