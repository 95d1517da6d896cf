"""A small functional training for the tests: 10 steps an epoch, a save every 5 steps.

    python loop_job.py '{"out": "/dir", "fault": "kill 17"}'

Prints START and where the loop goes on, as JSON; writes final.ckpt when it ends. Faults, N counting the steps of this
process: "kill N" (SIGKILL after step N, when all that was saved before is registered), "kill-at-once N", "raise N" (in
the script's lines after step N), "raise-after-update N" (after the update of step N, before `loop.step`),
"raise-before-update N", "raise-in-optimizer N" (between the updates of two parameters), "raise-in-data N",
"terminate N" (SIGTERM in step N), "flag N" (and SIGTERM at the end), "exit N" (sys.exit after step N), "break N",
"no-step N", "waits N" (in step N, for a request to leave and the file go). "raise-late", "exit-late", "kill-late" and
"kill-at-once-late" come at the end of the body.
"jit" compiles the step, "graph" sets GRAPH_MODE. "norm" has batch normalization, "keeps" counts in `loop.keep`, "draws"
adds noise that NumPy draws, "gan" has two networks and optimizers, "scheduler" a learning rate that falls. "patience"
stops after so many epochs that were not better.
"pods" gives each rank a temporary directory of its own, as containers have, "nodes" a disk of its own, below
node-RANK, at the same path as the others' (mount namespaces). Under msrun it is data parallel, and a
fault is that of "rank" only (None: of every rank).
"""

import atexit
import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import dataset as ds
from mindspore import nn, ops
from mindspore.communication import get_group_size, get_rank, init
from mindspore.experimental import optim

import ckptstore.mindspore
from ckptstore.retention.policy import from_json

DEFAULTS = {
    "epochs": 3,
    "every": 5,
    "fault": "none",
    "rank": None,
    "jit": False,
    "graph": False,
    "norm": False,
    "keeps": False,
    "draws": False,
    "gan": False,
    "scheduler": False,
    "patience": None,
    "pods": False,
    "nodes": False,
    "loop": {},
}


def create_dataset(fault: "Fault", rank: int, ranks: int) -> ds.Dataset:
    chance = np.random.RandomState(7)
    count = 80 * ranks
    columns = {"x": chance.rand(count, 12).astype(np.float32), "y": chance.randint(0, 4, count).astype(np.int32)}
    dataset = ds.NumpySlicesDataset(columns, shuffle=True, num_shards=ranks, shard_id=rank)
    if fault.action == "raise-in-data":
        left = iter(range(8 * (fault.step - 1)))
        dataset = dataset.map(lambda x: (x, next(left))[0], input_columns=["x"])
    return dataset.batch(8)


class Training:
    """Networks, optimizers and the step of a script."""

    def __init__(self, asked: dict, ranks: int) -> None:
        norm = [nn.BatchNorm1d(16)] if asked["norm"] else []
        self.network = nn.SequentialCell(nn.Dense(12, 16), *norm, nn.ReLU(), nn.Dense(16, 4))
        self.network.set_train()
        self.scheduler = None
        if asked["scheduler"]:
            self.optimizer = optim.AdamW(self.network.trainable_params(), lr=0.02)
            self.scheduler = optim.lr_scheduler.StepLR(self.optimizer, step_size=4, gamma=0.7)
        else:
            self.optimizer = nn.Adam(self.network.trainable_params(), learning_rate=0.01)
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.gradients = ops.value_and_grad(self.forward, None, self.network.trainable_params())
        self.reducer = nn.DistributedGradReducer(self.network.trainable_params()) if ranks > 1 else ops.identity
        self.given = (self.network, self.optimizer)
        if asked["gan"]:
            self.critic = nn.SequentialCell(nn.Dense(12, 16), nn.ReLU(), nn.Dense(16, 4))
            self.of_critic = nn.Momentum(self.critic.trainable_params(), 0.05, 0.9)
            self.gradients_of_critic = ops.value_and_grad(self.critic_forward, None, self.critic.trainable_params())
            self.given = (
                {"net": self.network, "critic": self.critic},
                {"net": self.optimizer, "critic": self.of_critic},
            )
        self.step = ms.jit(self.train_step) if asked["jit"] else self.train_step
        self.before_update = lambda: None

    def forward(self, x, y):
        return self.loss(self.network(x), y)

    def critic_forward(self, x, y):
        return self.loss(self.critic(x), y)

    def train_step(self, x, y):
        loss, gradients = self.gradients(x, y)
        self.before_update()
        self.optimizer(self.reducer(gradients))
        return loss

    def evaluate(self, x, y):
        """The loss of some rows, of which the next ones are not much better."""
        self.network.set_train(mode=False)
        loss = round(float(self.forward(x, y).asnumpy()), 1)
        self.network.set_train()
        return loss

    def __call__(self, x, y):
        loss = self.step(x, y)
        if hasattr(self, "critic"):
            _, gradients = self.gradients_of_critic(x, y)
            self.of_critic(gradients)
        return loss


def fail() -> None:
    raise RuntimeError("on purpose")


def arm(training: Training, action: str) -> None:
    """Have the step that comes fail in its middle."""
    if action == "raise-before-update":
        training.before_update = fail
    if action == "raise-in-optimizer":
        optimizer = training.optimizer
        construct = optimizer.construct

        def half(gradients):
            construct(gradients)
            fail()

        optimizer.construct = half


class Fault:
    """What goes wrong in a step, and when."""

    def __init__(self, told: str, out: Path) -> None:
        self.action, _, number = told.partition(" ")
        self.step = int(number or 0)
        self.done = 0
        self.out = out

    def is_now(self, *actions: str, when: str = "") -> bool:
        return self.done == self.step and self.action in [f"{action}{when}" for action in actions]

    def begin_step(self, training: Training, loop: ckptstore.mindspore.Loop) -> None:
        self.done += 1
        if self.is_now("waits"):
            (self.out / f"in-step-{loop._launch.rank}").write_text(str(os.getpid()))
            while not (loop._launch.exit_request.path() and (self.out / "go").exists()):
                threading.Event().wait(0.05)
        if self.done == self.step:
            arm(training, self.action)
        if self.is_now("terminate"):
            os.kill(os.getpid(), signal.SIGTERM)
        if self.is_now("flag"):
            (self.out / "exit.json").write_text('{"GracefulExit": 1}')

    def after_step(self, loop: ckptstore.mindspore.Loop, when: str = "") -> None:
        if self.is_now("raise", when=when):
            fail()
        if self.is_now("exit", when=when):
            sys.exit(9)
        if self.is_now("kill", when=when):
            loop._writer.wait()
            assert loop._session.recorder.flush(60)
        if self.is_now("kill", "kill-at-once", when=when):
            os.kill(os.getpid(), signal.SIGKILL)


def ranks_of(asked: dict) -> tuple[int, int]:
    if asked["graph"]:
        ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    if "MS_WORKER_NUM" not in os.environ:
        return 0, 1
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    init()
    return get_rank(), get_group_size()


def move_to_node(rank: int, disk: Path, where: Path) -> None:
    """From now on this thread, and those that it starts, are on a host with that name and that disk."""
    disk.mkdir(exist_ok=True)
    where.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, new_names, private, bind = 0x20000, 0x4000000, 0x44000, 0x1000
    for call in (
        lambda: libc.unshare(new_mounts | new_names),
        lambda: libc.mount(b"none", b"/", None, private, None),
        lambda: libc.mount(bytes(disk), bytes(where), None, bind, None),
        lambda: libc.sethostname(name := f"node-{rank}".encode(), len(name)),
    ):
        if call():
            raise OSError(ctypes.get_errno(), "namespaces are not permitted here")


def options_of(asked: dict, training: Training) -> dict:
    every = asked["every"] if isinstance(asked["every"], int) else timedelta(seconds=asked["every"])
    options = {"epochs": asked["epochs"], "every": every, **asked["loop"]}
    if "retention" in options:
        options["retention"] = from_json(options["retention"])
    if training.scheduler is not None:
        options["others"] = {"scheduler": training.scheduler}
    return options


def train(loop: ckptstore.mindspore.Loop, training: Training, asked: dict, fault: Fault) -> None:
    rows = [ms.Tensor(each) for each in (np.eye(8, 12, dtype=np.float32), np.arange(8, dtype=np.int32) % 4)]
    for x, y in loop:
        if asked["patience"] and loop.keep.get("waited") == asked["patience"]:
            break
        noise = ms.Tensor(np.random.rand(*x.shape).astype(np.float32)) if asked["draws"] else 0
        fault.begin_step(training, loop)
        loss = training(x + noise, y)
        if asked["keeps"]:
            loop.keep["losses"] = [*loop.keep.get("losses", []), float(loss.asnumpy())]
            loop.keep["last"] = x.asnumpy()[0]
        if fault.is_now("raise-after-update"):
            fail()
        if fault.is_now("no-step"):
            continue
        loop.step(loss=loss)
        fault.after_step(loop)
        if training.scheduler is not None and loop.global_step % 5 == 0:
            training.scheduler.step()
        if asked["patience"] and loop.ends_epoch:
            error = training.evaluate(*rows)
            is_better = error < loop.keep.get("best", 99)
            loop.keep |= {"best": error, "waited": 0} if is_better else {"waited": loop.keep["waited"] + 1}
            loop.save()
        fault.after_step(loop, "-late")
        if fault.is_now("break"):
            break


def main(asked: dict) -> None:
    out = Path(asked["out"])
    rank, ranks = ranks_of(asked)
    if asked["nodes"]:
        move_to_node(rank, out / f"node-{rank}", out / "ckpt")
    if asked["pods"]:
        tempfile.tempdir = str(out / f"pod-{rank}")
        Path(tempfile.tempdir).mkdir(exist_ok=True)
    if asked["fault"].startswith("flag"):  # as the kubelet does, when the preStop hook has seen the save
        atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
    fault = Fault(asked["fault"] if asked["rank"] in (None, rank) else "none", out)
    dataset = create_dataset(fault, rank, ranks)
    training = Training(asked, ranks)
    launch = ckptstore.mindspore.join("run")
    options = options_of(asked, training)
    loop = launch.loop(*training.given, dataset, directory=out / "ckpt", exit_flag=out / "exit.json", **options)
    told = {"fresh": loop.fresh, "global_step": loop.global_step, "epoch": loop.epoch, "keep": sorted(loop.keep)}
    print("START", json.dumps(told), flush=True)
    train(loop, training, asked, fault)
    print(f"DONE {fault.done} steps", flush=True)
    has_stopped = asked["patience"] and loop.keep.get("waited") == asked["patience"]
    if has_stopped or loop.global_step == asked["epochs"] * 10:
        state = ckptstore.mindspore.TrainState(*training.given)
        values = [{"name": name, "data": value} for name, value in state.named.items()]
        ms.save_checkpoint(values, str(out / f"final{rank or ''}.ckpt"))
        if asked["keeps"]:
            (out / "losses.json").write_text(json.dumps(loop.keep["losses"]))
        (out / "stopped.json").write_text(
            json.dumps([loop.global_step, loop.keep.get("best"), loop.keep.get("waited")])
        )


if __name__ == "__main__":
    ms.set_device("CPU")  # refused once a process has computed something: not in main
    main({**DEFAULTS, **json.loads(sys.argv[1])})
