"""The Python of the pages that MindSpore runs: one after the other in a process, each in a directory of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import HERE, ROOT, Block, how, needs_mindspore
from tests.docs.preludes import PRELUDE, PRELUDE_OF_LOOP

BLOCKS = [each for each in HERE if how(each) == "Python, run here" and needs_mindspore(each)]
MORE = """
import os, sys, types
from pathlib import Path
import ckptstore, ckptstore.mindspore
from mindspore.train import CheckpointConfig, LossMonitor, OnRequestExit, TrainFaultTolerance
rank, EPOCHS = 0, 2
metric = {"accuracy"}

def joined(run):
    global model, dataset, ckpt_cb, launch, start, network, optimizer, callbacks
    model, dataset = make_model(), make_dataset()
    network, optimizer = nn.Dense(3, 4), None
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    ckpt_cb = ModelCheckpoint("net", os.path.join("ckpt", run), CheckpointConfig(save_checkpoint_steps=2))
    launch = ckptstore.mindspore.join(run)
    start = None
"""
TRAIN = "model.train(2, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch, dataset_sink_mode=False)\n"
RESUME = "start = launch.resume(model, dataset)\n"
TRAINED = f"{RESUME}callbacks = [ckpt_cb, launch.registrar(ckpt_cb)]\n{TRAIN}"
FIRST = f"{TRAINED}joined(RUN)\n"
"""A run that has saved, to go back in, or to evaluate."""

BEFORE = {
    "docs/how-to/exceptions.md": RESUME,
    "docs/how-to/free-space.md": RESUME,
    "docs/how-to/graceful-exit.md": RESUME,
    "docs/how-to/go-back.md": FIRST,
    "docs/how-to/several-trainings.md": f"{RESUME}callbacks = [ckpt_cb, launch.registrar(ckpt_cb)]\n",
    "docs/reference/registrar.md": RESUME,
    "docs/reference/saver.md": RESUME,
}
AFTER = {
    "docs/how-to/exceptions.md": TRAIN,
    "docs/how-to/graceful-exit.md": TRAIN,
    "docs/how-to/free-space.md": TRAIN,
    "docs/how-to/go-back.md": "assert start.global_step == 4\n",
    "docs/reference/registrar.md": TRAIN,
}


def program(block: Block, number: int) -> str:
    """A block with what its page takes for granted, as a part of a script."""
    run = re.search(r'join\("([\w-]+)"\)', block.text)
    name = run[1] if run else f"run-{number}"
    text = block.text.replace("step=500", "step=4").replace("every=100", "every=2").replace(" epochs=10", " epochs=1")
    before, after = BEFORE.get(block.page, "").replace("RUN", repr(name)), AFTER.get(block.page, "")
    if "TrainFaultTolerance" in text:  # it takes an Ascend device
        before += "TrainFaultTolerance = lambda ckpt_save_path: ckpt_cb\n"
    if "link(" in text:  # a tracker that is not installed here is refused by name
        text = "try:\n    " + text + "except ckptstore.CkptstoreError as error:\n    assert 'mlflow' in str(error)\n"
    if "while True" in text:  # the run has finished, and is evaluated once
        before = (
            'joined("digits")\n'
            + TRAINED
            + "model = types.SimpleNamespace(eval=lambda _: {'accuracy': 0.5})\nnetwork = nn.Dense(3, 4)\n"
        )
    if "launch.restore" in text:
        text = text.replace("...\n", "step = 3\n")
    if "def scaled" in text:
        text = text.replace('"x")', '"x")\nnext(iter(dataset))')
    if block.page.endswith("your-script.md") and "resume" in text:
        before = 'joined("digits")\n'
    return f"print({block.page!r}, {block.number})\njoined({name!r})\n{before}{text}\n{after}"


@pytest.mark.long
def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTSTORE_URL", str(tmp_path / "catalog.db"))
    monkeypatch.setenv("MS_ENABLE_GRACEFUL_EXIT", "1")
    monkeypatch.setenv("CKPTSTORE_TAKE_OVER", "1")  # each block joins in one and the same process
    parts = [program(block, number) for number, block in enumerate(BLOCKS)]
    script = PRELUDE + PRELUDE_OF_LOOP + MORE + "".join(parts)
    command = [sys.executable, "-c", script, str(tmp_path / "ckpt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


@pytest.mark.long
def test_the_diff_of_the_readme_trains_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTSTORE_URL", str(tmp_path / "catalog.db"))
    (changed,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for sign in "-+":
        lines = "".join(line[1:] + "\n" for line in changed.splitlines() if line[0] == sign)
        script = f"{PRELUDE}from mindspore.train import CheckpointConfig, LossMonitor\n{lines}"
        done = subprocess.run(
            [sys.executable, "-c", script, "ckpt"], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
