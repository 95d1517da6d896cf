"""The README's examples are run, and its listings compared with what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ckptstore.ops.connect import connect

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
LAUNCH = "20261121T034217-0d35d4"
SIZE = 494_183

PRELUDE = """
import sys
import numpy as np
from mindspore import dataset as ds, nn
from mindspore.train import Model, ModelCheckpoint

network = nn.Dense(3, 4)
model = Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True), nn.Momentum(network.trainable_params(), 0.1, 0.9))
dataset = ds.NumpySlicesDataset({"x": np.ones((12, 3), np.float32), "y": np.zeros(12, np.int32)}).batch(2)
ckpt_cb = ModelCheckpoint("net", sys.argv[1])
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run that the README shows: its files, and its catalog."""
    monkeypatch.setenv("CKPTSTORE_URL", str(tmp_path / "catalog.db"))
    data = tmp_path / "digits"
    ranks = [
        connect().join("digits", rank=rank, world_size=2, launch_id=LAUNCH, layout="data_parallel") for rank in (0, 1)
    ]
    for step, name in ((35, "lenet-2_7"), (40, "lenet-2_12"), (41, "lenet-2_13_breakpoint")):
        for launch in ranks:
            launch.set_steps_per_epoch(28)
            launch.resolve()
            if step == 41 and launch.rank == 0:
                continue
            path = data / f"rank_{launch.rank}" / f"{name}.ckpt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.truncate(path, SIZE)
            launch.register(path, kind="dying_gasp" if step == 41 else "periodic", global_step=step)
    os.truncate(path, SIZE - 1)
    return data


def as_in_the_readme(text: str, data: Path) -> list[str]:
    text = text.replace(str(data), "/data/digits")
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "<moment>", text)
    return [line.rstrip() for line in text.strip().splitlines()]


def test_the_listings_are_what_the_commands_print(digits: Path) -> None:
    listings = [block for block in blocks("console") if block.startswith("$ ")]
    assert len(listings) == 2
    for listing in listings:
        command, shown = listing.removeprefix("$ ").split("\n", 1)
        program, *arguments = command.split()
        done = subprocess.run(
            [Path(sys.executable).with_name(program), *arguments], capture_output=True, text=True, check=True
        )
        assert as_in_the_readme(done.stdout, digits) == as_in_the_readme(shown, digits)


def test_the_python_example_runs(digits: Path) -> None:
    (program,) = (block for block in blocks("python") if "connect()" in block)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert as_in_the_readme(done.stdout, digits)[:2] == [
        "0 /data/digits/rank_0/lenet-2_12.ckpt",
        "1 /data/digits/rank_1/lenet-2_12.ckpt",
    ]


def test_the_five_lines_train_and_are_in_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTSTORE_URL", str(tmp_path / "catalog.db"))
    (program,) = (block for block in blocks("python") if "registrar" in block)
    assert program.count("  # ") == 5
    command = [sys.executable, "-c", PRELUDE + program, str(tmp_path / "ckpt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert connect().saves("digits")[0].tally.global_step == 60
    example = (ROOT / "examples" / "digits" / "train.py").read_text().splitlines()
    assert len([line for line in example if line.endswith("# ckptstore")]) == 5


def test_every_command_is_documented() -> None:
    from ckptstore.cli.main import cli

    operating = (ROOT / "docs" / "operating.md").read_text()
    for name in cli.commands:
        assert f"ckptstore {name}" in operating or f"`{name}`" in operating, name
