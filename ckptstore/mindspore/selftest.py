"""Tries on this machine what ckptstore promises: a small training is saved, killed, restored and compared.

`ckptstore selftest` runs this module, with its parameters in JSON, and reads a row of JSON for each promise. If the
parameters name a fault, the module is one rank of such a training.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import dataset as ds
from mindspore import nn
from mindspore.communication import get_rank, init
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint
from mindspore.train.callback import OnRequestExit

import ckptstore.mindspore
from ckptstore.api import connect
from ckptstore.errors import CkptstoreError
from ckptstore.mindspore import compat
from ckptstore.outside import Path, os, signal, socket, subprocess, tempfile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

EPOCHS, STEPS, EVERY, FAULT_AT = 2, 8, 3, 11
_SECONDS = 300
_FLAG = "exit.json"
_RUN = "selftest"
_SAVER = "saver "
_ERROR = re.compile(r"[\w.]+Error: ")


@dataclass(frozen=True)
class Asked:
    """The parameters of a self-test: number of ranks, device, graph or pynative mode."""

    ranks: int = 1
    device: str = "CPU"
    mode: str = "graph"


@dataclass(frozen=True)
class Row:
    """A promise: whether it held (None: it could not be tried), and the observation."""

    promise: str
    held: bool | None
    seen: str


class _SeenError(Exception):
    """A promise did not hold; the message is the observation."""


# The parent: launches and their outcomes


class SelfTest:
    """Tries the promises, one after the other, below a directory; `python` is the command that runs this module."""

    def __init__(self, asked: Asked, home: Path, python: Sequence[str] = (sys.executable,)) -> None:
        self._asked = asked
        self._home = home
        self._python = python
        self._undisturbed: list[bytes] = []

    @property
    def _exits(self) -> bool:
        return self._asked.ranks == 1 or self._asked.device != "CPU"

    def rows(self) -> Iterator[Row]:
        """A row for each promise."""
        yield Row("this MindSpore has the private parts that ckptstore uses", *_private_parts())
        yield self._row("an undisturbed training repeats, bit for bit", self._repeats)
        if not self._undisturbed:
            return
        for promise, fault, kind in (
            ("killed between two saves: goes on from the save before", "kill", "periodic"),
            ("ended by an exception: goes on from MindSpore's breakpoint", "raise", "dying_gasp"),
            ("ended by an exception: goes on from what save_on_exception saved", "raise-saved", "dying_gasp"),
            ("asked to exit: goes on from the state of the graceful exit", "exit", "graceful_exit"),
            ("the newest file was cut: goes on from the state before", "cut", "periodic"),
            ("saved by launch.saver, and killed: goes on from its last file", "saver kill", "periodic"),
            ("saved by launch.saver at an exception: goes on from that state", "saver raise", "dying_gasp"),
        ):
            if fault == "exit" and not self._exits:
                yield Row(promise, None, "MindSpore's AllReduce takes no integers on the CPU")
                continue
            yield self._row(promise, partial(self._restores, fault, kind))
        yield Row("a fault that MindIO TTP handles: goes on from its state", None, "this needs MindIO's controller")

    def _row(self, promise: str, attempt: Callable[[], str]) -> Row:
        try:
            return Row(promise, held=True, seen=attempt())
        except (_SeenError, CkptstoreError, OSError, subprocess.SubprocessError) as error:
            return Row(promise, held=False, seen=str(error))

    def _repeats(self) -> str:
        finals = []
        for name in ("first", "second"):
            code, output = self._launch(self._home / name, "none")
            if code:
                raise _SeenError(f"it ended with {code}: {last_line(output)}")
            finals.append(self._finals(self._home / name))
        if finals[0] != finals[1]:
            raise _SeenError("two undisturbed trainings differ: nothing can be compared on this device")
        self._undisturbed = finals[0]
        return f"{EPOCHS * STEPS} steps"

    def _restores(self, fault: str, kind: str) -> str:
        home = self._home / fault
        code, output = self._launch(home, "kill" if fault == "cut" else fault)
        if (code == 0) is not (fault == "exit"):
            raise _SeenError(f"the first start ended with {code}: {last_line(output)}")
        catalog = connect(str(home / "catalog.db"))
        if fault == "cut":
            # The disk says which is the newest: its rank may have been killed before it had registered it.
            cut = max(home.glob("rank_*/*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
            content = cut.read_bytes()
            cut.unlink()
            cut.write_bytes(content[:-1])
        code, output = self._launch(home, "none")
        if code:
            raise _SeenError(f"the second start ended with {code}: {last_line(output)}")
        if self._finals(home) != self._undisturbed:
            raise _SeenError("the final weights are others than those of the undisturbed training")
        if not any(file.kind == kind for file in catalog.files(_RUN)):
            raise _SeenError(f"no file of kind {kind} was registered")
        started = int(next(line for line in output.splitlines() if line.startswith("STARTED ")).split()[1])
        if fault == "cut" and started >= FAULT_AT // EVERY * EVERY:
            raise _SeenError(f"it went on after step {started}, whose file was cut")
        return f"from step {started}"

    def _finals(self, home: Path) -> list[bytes]:
        return [(home / f"final-{rank}.ckpt").read_bytes() for rank in range(self._asked.ranks)]

    def _launch(self, home: Path, fault: str) -> tuple[int, str]:
        home.mkdir(exist_ok=True)
        told = json.dumps({**asdict(self._asked), "home": str(home), "fault": fault})
        command = [*self._python, str(Path(__file__)), told]
        log = home / "log"
        if self._asked.ranks > 1:
            workers = [f"--worker_num={self._asked.ranks}", f"--local_worker_num={self._asked.ranks}"]
            workers += [f"--master_port={_free_port()}", "--join=True", f"--log_dir={log}"]
            command = ["msrun", *workers, str(Path(__file__)), told]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # msrun starts "python"
        own = {"CKPTSTORE_URL": str(home / "catalog.db"), "CKPTSTORE_LAUNCH_ID": ""}  # each start is a new launch
        environment = os.environ | own | {"PATH": path}
        environment.setdefault("MS_NODE_TIMEOUT", "20")  # seconds until msrun sees that a rank is gone
        environment |= {"MS_ENABLE_GRACEFUL_EXIT": "1"} if self._exits else {}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
        output = done.stdout + done.stderr
        if self._asked.ranks > 1 and (log / "worker_0.log").exists():
            output = (log / "worker_0.log").read_text(encoding="utf-8", errors="replace")
        return done.returncode, output


def _private_parts() -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as home:
        owners = (
            (ModelCheckpoint("net", home), compat.OF_MODEL_CHECKPOINT),
            (OnRequestExit(file_name="net", directory=home), compat.OF_ON_REQUEST_EXIT),
        )
        missing = [lack for owner, parts in owners for part in parts if (lack := part.missing_in(owner))]
    return not missing, "; ".join(missing) or f"MindSpore {mindspore.__version__}"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def last_line(output: str) -> str:
    """The last line that names an error, else the last one: MindSpore's errors go on with lines of its C++ code."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("[")]
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or ["it said nothing"])[-1]


# One rank of a training


class _Fault(Callback):
    def __init__(self, fault: str, home: Path) -> None:
        super().__init__()
        self._fault, self._home = fault, home
        self._step = 0

    def on_train_step_end(self, run_context: Any) -> None:  # noqa: ARG002
        self._step += 1
        if self._step != FAULT_AT:
            return
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault.startswith("raise"):
            raise RuntimeError("on purpose")
        if self._fault == "exit":
            (self._home / _FLAG).write_text('{"GracefulExit": 1}', encoding="utf-8")


def train(asked: dict[str, Any]) -> None:
    """Train as described, from where the run goes on, and save the final state."""
    mode = mindspore.GRAPH_MODE if asked["mode"] == "graph" else mindspore.PYNATIVE_MODE
    mindspore.set_context(mode=mode)
    mindspore.set_device(asked["device"])
    mindspore.set_seed(1)
    rank, home, fault = 0, Path(asked["home"]), asked["fault"]
    if asked["ranks"] > 1:
        mindspore.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
        init()
        rank = int(get_rank())
    chance = np.random.default_rng(7)
    data = {"x": chance.random((STEPS * 4, 8), np.float32), "y": chance.integers(0, 3, STEPS * 4).astype(np.int32)}
    dataset = ds.NumpySlicesDataset(data, shuffle=True).batch(4)
    network = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 3))
    optimizer = nn.Adam(network.trainable_params(), learning_rate=0.01)
    model = Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), optimizer)
    config = CheckpointConfig(save_checkpoint_steps=EVERY, keep_checkpoint_max=50, exception_save=fault == "raise")
    directory = str(home / f"rank_{rank}")
    saving = [
        ModelCheckpoint("net", directory, config),
        OnRequestExit(file_name="net", directory=directory, save_mindir=False, config_file=str(home / _FLAG)),
    ]
    launch = ckptstore.mindspore.join(_RUN)
    start = launch.resume(model, dataset)
    print("STARTED", start.global_step, flush=True)  # noqa: T201 — the parent reads it
    if fault.startswith(_SAVER):
        callbacks = [_Fault(fault.removeprefix(_SAVER), home), launch.saver(home / "saved", every=EVERY)]
    else:
        registrar = launch.registrar(*saving, save_on_exception=fault == "raise-saved")
        callbacks = [*saving, _Fault(fault, home), registrar]
    model.train(EPOCHS, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch, dataset_sink_mode=False)
    if launch.global_step == EPOCHS * STEPS:
        mindspore.save_checkpoint(model.train_network, str(home / f"final-{rank}.ckpt"))


def main(asked: dict[str, Any]) -> None:
    """Be a rank, or try everything, and print a line of JSON for each promise."""
    if "fault" in asked:
        train(asked)
        return
    with tempfile.TemporaryDirectory(prefix="ckptstore-selftest-") as home:
        for row in SelfTest(Asked(**asked), Path(home)).rows():
            print(json.dumps(asdict(row)), flush=True)  # noqa: T201 — the command reads it


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
