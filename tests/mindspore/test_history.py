"""A tree that real MindSpore made: the history that a scan sees in it is the one that happened."""

import json
import os
import subprocess
from pathlib import Path

from ckptstore.api import connect
from ckptstore.catalog import reads
from tests.mindspore.running import python

PLAIN = '''
import json, sys
from pathlib import Path
import mindspore as ms, numpy as np
from mindspore import dataset as ds, nn
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint
from mindspore.train.callback import OnRequestExit

asked = json.loads(sys.argv[1])
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_device("CPU")
ms.set_seed(1)
network = nn.Dense(3, 4)
model = Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
              nn.Momentum(network.trainable_params(), 0.1, 0.9))
data = {"x": np.ones((80, 3), np.float32), "y": np.zeros(80, np.int32)}
dataset = ds.NumpySlicesDataset(data, shuffle=False).batch(8)
out = Path(asked["out"])
start = asked["start"]
if start:
    ms.load_param_into_net(model.train_network, ms.load_checkpoint(asked["file"]))
    dataset.set_init_step(start)

class Steps(Callback):
    done = start
    def on_train_step_begin(self, run_context):
        if asked["end"] == "raise before" and self.done == asked["stop"]:
            raise RuntimeError("on purpose")
    def on_train_step_end(self, run_context):
        self.done += 1
        if self.done == asked["stop"] and asked["end"] == "raise":
            raise RuntimeError("on purpose")
        if self.done == asked["stop"] - 1 and asked["end"] == "exit":
            (out / "exit.json").write_text('{"GracefulExit": 1}')

class Truth(Callback):
    """What each file is, counted by hand: the callback after those that save."""
    def on_train_step_end(self, run_context):
        latest = ckpt_cb.latest_ckpt_file_name
        if latest and latest not in truth:
            truth[latest] = steps.done

steps, truth = Steps(), {}
config = CheckpointConfig(save_checkpoint_steps=asked["every"], keep_checkpoint_max=50, exception_save=True,
                          append_info=["epoch_num", "step_num"])
ckpt_cb = ModelCheckpoint("my-net", str(out / "ckpt" / "rank_0"), config)
exit_cb = OnRequestExit(file_name="net", directory=str(out / "exits"), config_file=str(out / "exit.json"),
                        save_mindir=False)
try:
    callbacks = [ckpt_cb, steps, Truth()] + ([exit_cb] if asked["end"] == "exit" else [])
    model.train(4, dataset, callbacks=callbacks, initial_epoch=start // 10)
except RuntimeError as error:
    assert "on purpose" in str(error)
(out / "exit.json").unlink(missing_ok=True)
print("TRUTH", json.dumps(truth))
'''


class Plain:
    """A job whose script knows nothing of ckptstore."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.truth: dict[str, int] = {}
        self.script = out / "plain.py"
        self.script.write_text(PLAIN)

    def launch(self, *, start: int = 0, file: str = "", stop: int, end: str = "raise", every: int = 5) -> None:
        asked = {"out": str(self.out), "start": start, "file": file, "stop": stop, "end": end, "every": every}
        environment = os.environ | {"GLOG_v": "3", "MS_ENABLE_GRACEFUL_EXIT": "1"}
        known = {path.name for path in self.out.rglob("*.ckpt")}
        done = subprocess.run(
            [*python(), str(self.script), json.dumps(asked)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        told = next(line for line in done.stdout.splitlines() if line.startswith("TRUTH "))
        self.truth |= {Path(path).name: step for path, step in json.loads(told.removeprefix("TRUTH ")).items()}
        for path in self.out.rglob("*.ckpt"):
            if path.name not in known and path.name not in self.truth:
                self.truth[path.name] = stop  # a breakpoint, or an exit


def test_names_that_lie_after_a_plain_resume(tmp_path: Path) -> None:
    job = Plain(tmp_path)
    job.launch(stop=17)
    job.launch(start=17, file=str(tmp_path / "ckpt/rank_0/my-net-2_7_breakpoint.ckpt"), stop=32, end="raise before")
    job.launch(start=32, file=str(tmp_path / "ckpt/rank_0/my-net_1-4_5.ckpt"), stop=36, end="exit", every=3)
    catalog = connect(str(tmp_path / "catalog.db"))
    done = catalog.scan(tmp_path, run="run", world_size=1)
    assert done.uncertain == ()
    assert {Path(file.path).name: file.global_step for file in done.adopted} == job.truth
    assert job.truth == {
        "my-net-1_5.ckpt": 5,
        "my-net-1_10.ckpt": 10,
        "my-net-2_5.ckpt": 15,
        "my-net-2_7_breakpoint.ckpt": 17,
        "my-net_1-3_5.ckpt": 22,
        "my-net_1-3_10.ckpt": 27,
        "my-net_1-4_5.ckpt": 32,
        "my-net_1-4_6_breakpoint.ckpt": 32,
        "my-net_2-4_3.ckpt": 35,
        "my-net_2-4_4.ckpt": 36,
        "net_train.ckpt": 36,
    }
    with catalog.database.read() as connection:
        launches = reads.launches_of(connection, reads.run_id(connection, "run"))
    assert {launch.steps_per_epoch for launch in launches} == {10}
