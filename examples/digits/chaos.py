"""Makes a training fail on purpose, as the environment variable CHAOS says. A real script does not need this.

    CHAOS="kill rank=1 step=41"          SIGKILL to rank 1 when step 41 is done
    CHAOS="raise rank=1 step=41"         an exception in a callback when step 41 is done
    CHAOS="raise-before rank=0 step=18"  an exception before step 18 is computed

This callback counts the steps, from the start of the process.
"""

from __future__ import annotations

import os
import signal

from mindspore.train import Callback


class Chaos(Callback):
    def __init__(self, rank: int) -> None:
        super().__init__()
        action, *options = os.environ.get("CHAOS", "none rank=0 step=0").split()
        wanted = dict(option.split("=") for option in options)
        self.action = action if int(wanted["rank"]) == rank else "none"
        self.step = int(wanted["step"])
        self.done = 0

    def on_train_step_begin(self, run_context) -> None:
        if self.action == "raise-before" and self.done + 1 == self.step:
            raise RuntimeError(f"chaos before step {self.step}")

    def on_train_step_end(self, run_context) -> None:
        self.done += 1
        if self.done != self.step:
            return
        if self.action == "raise":
            raise RuntimeError(f"chaos after step {self.step}")
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
