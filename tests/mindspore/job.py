"""A small training job for the tests: one process, 10 steps an epoch, a save every 5 steps.

    python job.py '{"out": "/dir", "fault": "kill 17"}'

Prints START and what `resume` returned, as JSON; writes final.ckpt when training ends. "saves" is how, one of WAYS.
Faults, N counting the steps of this process: "kill N" (SIGKILL after step N, when all that was saved before is in the
catalog), "kill-at-once N" (when the first save is in it), "kill-journalled N" (when it is in the journal), "keep-up"
(none: each step waits for the catalog), "raise N" (in a callback after step N), "raise-before N" (before step N is
computed), "SystemExit N" and "KeyboardInterrupt N" (raised after step N), "kill-writing N" (SIGKILL at the Nth call
that the saver's thread makes to what is written in C), and at such a call "full-writing N" (no room is left on the
disk), "terminate-writing N" (SIGTERM), "asked-writing N" (`ckptstore exit`), "raise-writing N" (the thread waits
there until a callback has raised after the step under way),
"exit-flag N", "exit-signal N" and "exit-asked N" (a graceful exit is asked for after step N: it is taken after step
N+1), "waits N" (after every Nth step it prints WAITS and reads a line: with "flush" it waits for the catalog and prints
whether that has all).
Under msrun it is data parallel, and a fault is that of "rank" only (None: of every rank). With "saves_alone" the
callbacks that save are given to rank 0 only.
"outage" is [process, N]: after step N rank 0 kills that process, a PostgreSQL server, and its children.
"sharded" deals the data out to the ranks, and every rank writes what each step took of it to a file beside "out".
"width" is that of the network: a file has about 200 bytes times it; "classes" that of its head.
"run" is the name, and "begins" are arguments of `resume` that say from which other run's state it begins.
"straight" has files written to their own names, as MindIO does, so that they can be cut.
"pynative" is the mode; "sink" asks for a data sink, which MindSpore leaves out on CPU.
"cell" is the train network: MindSpore's own, one that "inherits" from it, or one of its "own", as seed 000 has them.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
import psutil
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dataset as ds
from mindspore.communication import get_group_size, get_rank, init
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint, serialization
from mindspore.train.callback import OnRequestExit
from mindspore.utils import ExitByRequest

import ckptstore.mindspore
from ckptstore.mindspore.launch import TrainingLaunch
from ckptstore.retention.policy import from_json
from ckptstore.training.recorder_thread import RecorderThread

DEFAULTS = {
    "saves": "ModelCheckpoint",
    "epochs": 3,
    "fault": "none",
    "order": "registrar last",
    "positional": False,
    "config": {},
    "exits": False,
    "cell": "",
    "registrar": {},
    "saver": {},
    "rank": None,
    "saves_alone": False,
    "outage": None,
    "sharded": False,
    "width": 16,
    "classes": 4,
    "run": "run",
    "begins": {},
    "straight": False,
    "pynative": False,
    "sink": False,
}
FLAG = "graceful_exit.json"
WRITING = "-writing"
AFTER_FIRST_SAVE = 6


class Fault(Callback):
    """What goes wrong in a training, and when; however it saves."""

    def __init__(self, fault: str, out: Path, launch: TrainingLaunch) -> None:
        super().__init__()
        self.out, self.launch = out, launch
        self.action, _, step = fault.partition(" ")
        self.step = int(step or 0)
        self.done = 0
        self.recorder: RecorderThread | None = None
        """Of what saves, once that is made."""
        self.written: Callable[[], None] = lambda: None
        """Waits until what is being saved is on the disk."""
        self.is_reached, self.is_over = threading.Event(), threading.Event()  # the call at which to raise

    def on_train_step_begin(self, run_context) -> None:
        if self.action == "raise-before" and self.done + 1 == self.step:
            raise RuntimeError("fault before the step")

    def on_train_step_end(self, run_context) -> None:
        self.done += 1
        if self.is_reached.is_set():
            self.is_over.set()
            raise RuntimeError("fault while the saver writes")
        if self.action == "keep-up" or (self.action == "kill-at-once" and self.done == AFTER_FIRST_SAVE):
            self.written()
            assert self.recorder.flush(60)
        if self.action == "waits" and self.done % self.step == 0:
            self.wait()
        if self.done == self.step and not self.action.endswith(WRITING):
            self.happen()

    def happen(self) -> None:
        if self.action == "raise":
            raise RuntimeError("fault after the step")
        if self.action in ("SystemExit", "KeyboardInterrupt"):
            raise SystemExit(7) if self.action == "SystemExit" else KeyboardInterrupt
        if self.action.startswith("kill"):
            self.kill()
        if self.action == "exit-flag":
            (self.out / FLAG).write_text('{"GracefulExit": 1, "reason": "maintenance"}')
        if self.action == "exit-signal":
            os.kill(os.getpid(), signal.SIGTERM)
        if self.action == "exit-asked":
            self.ask_to_exit()

    def ask_to_exit(self) -> None:
        subprocess.run([Path(sys.executable).with_name("ckptstore"), "exit", "run"], check=True)
        while not self.launch.exit_request.path():
            threading.Event().wait(0.05)

    def happen_while_writing(self) -> None:
        match self.action.removesuffix(WRITING):
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
            case "asked":
                self.ask_to_exit()
            case "raise":
                self.is_reached.set()
                self.is_over.wait()

    def wait(self) -> None:
        print("WAITS", self.done, flush=True)
        self.written()
        if sys.stdin.readline() == "flush\n":
            print("HAS ALL", self.recorder.flush(60), flush=True)
        else:
            self.journalled()

    def kill(self) -> None:
        if self.action != "kill-at-once":
            self.written()
        if self.action == "kill":
            assert self.recorder.flush(60)
        if self.action == "kill-journalled":
            self.journalled()
        os.kill(os.getpid(), signal.SIGKILL)

    def journalled(self) -> None:
        with self.recorder._idle:
            assert self.recorder._idle.wait_for(lambda: self.recorder._open_jobs == 0, 60)


class Outage(Callback):
    def __init__(self, server: int, step: int) -> None:
        super().__init__()
        self.server, self.left = server, step

    def on_train_step_end(self, run_context) -> None:
        self.left -= 1
        if self.left == 0:
            server = psutil.Process(self.server)
            for process in [server, *server.children(recursive=True)]:
                process.kill()


def outage(asked: dict, rank: int) -> list[Callback]:
    return [Outage(*asked["outage"])] if asked["outage"] and rank == 0 else []


class Seen(Callback):
    """Writes, step by step, which samples were taken: each is known by its first number."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_train_step_end(self, run_context) -> None:
        taken = run_context.original_args().train_dataset_element[0].asnumpy()[:, 0].tolist()
        with self.path.open("a") as file:
            file.write(json.dumps(taken) + "\n")


class AllReduceOfIntegers(nn.Cell):
    """AllReduce as ExitByRequest needs it; on the CPU it takes floating point only."""

    def __init__(self) -> None:
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, status):
        return self.all_reduce(status.astype(ms.float32)).astype(ms.int32)


def exit_across_ranks() -> None:
    make = ExitByRequest.__init__

    def make_for_cpu(self: ExitByRequest) -> None:
        make(self)
        self.all_reduce = AllReduceOfIntegers()

    ExitByRequest.__init__ = make_for_cpu


class InheritedCell(nn.TrainOneStepCell):
    """As seed 000 has it: a construct of one's own, with the members of the class it inherits from."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        sens = ops.fill(loss.dtype, loss.shape, self.sens)
        grads = self.grad(self.network, self.weights)(*inputs, sens)
        grads = self.grad_reducer(grads)
        if self.use_graceful_exit:
            grads = self.graceful_exit.exit_by_request(grads, self.init_param, self.exit_param)
        return ops.depend(loss, self.optimizer(grads))


class OwnCell(nn.Cell):
    """As seed 000 has it: not inherited, with ExitByRequest and the two parameters, whose names must not be changed."""

    def __init__(self, network: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__()
        self.network = network
        self.network.set_grad()
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.grad = ops.GradOperation(get_by_list=True)
        self.use_graceful_exit = os.environ.get("MS_ENABLE_GRACEFUL_EXIT") == "1"
        if self.use_graceful_exit:
            self.graceful_exit = ExitByRequest()
            self.exit_param = Parameter(Tensor(False, ms.bool_), name="graceful_exit")  # noqa: FBT003
            self.init_param = Parameter(Tensor([0], ms.int32), name="graceful_init")

    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs)
        if self.use_graceful_exit:
            grads = self.graceful_exit.exit_by_request(grads, self.init_param, self.exit_param)
        return ops.depend(loss, self.optimizer(grads))


def create_dataset(**shards: int) -> ds.Dataset:
    chance = np.random.RandomState(7)
    columns = {"x": chance.rand(80, 12).astype(np.float32), "y": chance.randint(0, 4, 80).astype(np.int32)}
    return ds.NumpySlicesDataset(columns, shuffle=True, **shards).batch(8)


def shards(rank: int) -> dict[str, int]:
    return {"num_shards": get_group_size() if "MS_WORKER_NUM" in os.environ else 1, "shard_id": rank}


def save_straight(asked: dict) -> None:
    if asked["straight"]:
        serialization._ensure_ckpt_fs_initialized()
        serialization._ckpt_fs.backend = "mindio"


def with_checkpoints(launch: TrainingLaunch, trouble: Fault, rank: int, asked: dict) -> list[Callback]:
    """MindSpore's ModelCheckpoint and OnRequestExit, and the registrar."""
    out = trouble.out
    settings = {"save_checkpoint_steps": 5, "keep_checkpoint_max": 50, "exception_save": True, **asked["config"]}
    saving: list[Callback] = [ModelCheckpoint("net", str(out / "ckpt" / f"rank_{rank}"), CheckpointConfig(**settings))]
    if asked["exits"]:
        where = out / "exits" / f"{rank}"  # MindSpore adds the device's id, which is 0 for every rank on the CPU
        saving.append(OnRequestExit(file_name="net", directory=str(where), config_file=str(out / FLAG)))
    given = [] if asked["order"] == "registrar first, finds them" else saving
    options = {name: from_json(value) if name == "retention" else value for name, value in asked["registrar"].items()}
    registrar = launch.registrar(*given, **options)
    trouble.recorder = registrar._session.recorder
    if asked["order"] != "registrar last":
        return [registrar, *reversed(saving), trouble]
    return [trouble, *saving, registrar]


def with_saver(launch: TrainingLaunch, trouble: Fault, rank: int, asked: dict) -> list[Callback]:
    """One callback of ckptstore's own."""
    out = trouble.out
    saver = launch.saver(out / "ckpt", every=5, prefix="net", exit_flag=out / FLAG, **asked["saver"])
    trouble.recorder, trouble.written = saver._session.recorder, saver._writer.wait
    if trouble.action.endswith(WRITING):
        saver._writer._write = at_call(trouble.step, saver._writer._write, trouble.happen_while_writing)
        saver._writer.wait = lambda: (trouble.is_over.set(), trouble.written())  # else each waits for the other
    return [trouble, saver]


def at_call(number: int, write: Callable[..., None], act: Callable[[], None]) -> Callable[..., None]:
    """The same, with `act` at the call of that number, from 1, to what is written in C; 0: at each."""
    made = 0

    def count(_frame: object, event: str, _called: object) -> None:
        nonlocal made
        made += event == "c_call"
        if event == "c_call" and number in (0, made):
            act()

    def wrapped(*given: object, **asked: object) -> None:
        sys.setprofile(count)
        try:
            write(*given, **asked)
        finally:
            sys.setprofile(None)

    return wrapped


WAYS = {"ModelCheckpoint": with_checkpoints, "launch.saver": with_saver}
"""How a script may save: each makes all callbacks of a training, the one that fails among them."""


def main(asked: dict) -> None:
    out = Path(asked["out"])
    ms.set_context(mode=ms.PYNATIVE_MODE if asked["pynative"] else ms.GRAPH_MODE)
    ms.set_device("CPU")
    ms.set_seed(1)
    rank = 0
    if "MS_WORKER_NUM" in os.environ:
        ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
        init()
        rank = get_rank()
        exit_across_ranks()
    fault = asked["fault"] if asked["rank"] in (None, rank) else "none"
    network = nn.SequentialCell(nn.Dense(12, asked["width"]), nn.ReLU(), nn.Dense(asked["width"], asked["classes"]))
    optimizer = nn.Adam(network.trainable_params(), learning_rate=0.01)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    if asked["cell"]:
        cell = {"inherits": InheritedCell, "own": OwnCell}[asked["cell"]]
        model = Model(cell(nn.WithLossCell(network, loss), optimizer))
    else:
        model = Model(network, loss, optimizer)
    dataset = create_dataset(**(shards(rank) if asked["sharded"] else {}))
    launch = ckptstore.mindspore.join(asked["run"])
    start = launch.resume(model, dataset, **asked["begins"])
    shown = {name: getattr(start, name) for name in ("fresh", "global_step", "epoch", "step_in_epoch", "initial_epoch")}
    print("START", json.dumps({**shown, "append_info": dict(start.append_info)}), flush=True)
    seen = [Seen(out / f"seen-{launch.facts.order}-{rank}.jsonl")] if asked["sharded"] else []
    saving = WAYS[asked["saves"]](launch, Fault(fault, out, launch), rank, asked)
    callbacks = [*seen, *([] if asked["saves_alone"] and rank else saving), *outage(asked, rank)]
    if asked["positional"]:
        model.train(asked["epochs"], dataset, callbacks, False, -1, start.initial_epoch)  # noqa: FBT003
    else:
        model.train(
            asked["epochs"],
            dataset,
            callbacks=callbacks,
            initial_epoch=start.initial_epoch,
            dataset_sink_mode=asked["sink"],
        )
    if launch.global_step == asked["epochs"] * dataset.get_dataset_size():
        ms.save_checkpoint(model.train_network, str(out / f"final{rank or ''}.ckpt"))


if __name__ == "__main__":
    told = {**DEFAULTS, **json.loads(sys.argv[1])}
    save_straight(told)
    main(told)
