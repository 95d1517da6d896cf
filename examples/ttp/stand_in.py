"""A stand-in for MindIO's controller, so that the example runs without an Ascend device, on the CPU.

After a fault it does the same as the controller, with MindSpore's own handlers: the chosen healthy ranks save, the
directory is renamed when all of them have saved, and every process ends. On a cluster, the stand-in is not needed.

TTP_FAULT="step=9 dead=1 savers=0,2,3": rank 1 fails after step 9 of the training, and ranks 0, 2 and 3 save. With
"rename=no", a second fault prevents that the directory is renamed.
"""

from __future__ import annotations

import os
import signal
import threading
from enum import Enum
from pathlib import Path
from typing import Any

from mindspore.communication import get_rank
from mindspore.train import TrainFaultTolerance
from mindspore.utils import _tft_handler


class ReportState(Enum):
    """What MindSpore reports to the controller when an exception ends training."""

    RS_UNKNOWN = 0


class Controller:
    """MindIO's interface as `TrainFaultTolerance` uses it. Functions that have no part in saving do nothing here."""

    ReportState = ReportState

    def __init__(self, fault: dict[str, str]) -> None:
        self.fault = fault
        self.handlers: dict[str, tuple[Any, Any]] = {}
        self.step_args: Any = None

    def tft_register_save_ckpt_handler(self, handler: Any, context: Any) -> None:
        self.handlers["save"] = handler, context

    def tft_register_rename_handler(self, handler: Any, context: Any) -> None:
        self.handlers["rename"] = handler, context

    def tft_register_exit_handler(self, handler: Any, context: Any) -> None:
        self.handlers["exit"] = handler, context

    def tft_set_step_args(self, arguments: Any) -> None:
        self.step_args = arguments

    def tft_end_updating_os(self, step: int) -> None:
        """This rank has ended a step, and its weights are updated. Only a fault at this moment can be survived."""
        if self.fault and step == int(self.fault["step"]):
            self._end(step)

    def _end(self, step: int) -> None:
        rank = get_rank()
        savers = sorted(int(saver) for saver in self.fault["savers"].split(","))
        save, context = self.handlers["save"]
        root = Path(context.ckpt_save_path)
        unfinished = next(iter(root.glob(f"*-step_{step}_tmp")), root / f"ttp_saved_checkpoints-step_{step}_tmp")
        if rank in savers:
            save(step, None, self.step_args, context)
        done = root / f"saved_{rank}"
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
        _wait(lambda: all((root / f"saved_{saver}").exists() for saver in savers))
        if self.fault.get("rename") != "no":
            if rank == savers[0]:
                rename, context = self.handlers["rename"]
                rename(step, context)
                (root / "renamed").touch()
            _wait((root / "renamed").exists)
        if rank == int(self.fault["dead"]):  # in a real fault, this rank died before; here its death ends the job
            os.kill(os.getpid(), signal.SIGKILL)
        leave, context = self.handlers["exit"]
        leave(context)
        raise AssertionError(f"the exit handler came back; {unfinished} is left")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("tft_"):
            return lambda *_: None
        raise AttributeError(name)


class OnCpu(TrainFaultTolerance):
    """MindSpore's callback without its checks at the start and its questions to the device, which need an Ascend."""

    def _check_init(self) -> None:
        pass

    def _set_tft_optimizer_replica(self, run_context: Any) -> None:
        pass

    def _is_params_consistent(self) -> bool:
        return True

    def _end_update_report(self, cb_params: Any) -> None:
        self.global_step = self._get_optim(cb_params).global_step.clone()
        self.tft.tft_end_updating_os(self.cur_step_num + self.initial_step)


def install() -> type[TrainFaultTolerance]:
    """Make MindSpore talk to the stand-in, and return the callback to use in place of TrainFaultTolerance."""
    words = os.environ.get("TTP_FAULT", "").split()
    _tft_handler.tft = Controller(dict(word.split("=") for word in words))
    return OnCpu


def _wait(condition: Any) -> None:
    while not condition():
        threading.Event().wait(0.02)
