"""The example's script, with a callback that kills a rank."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindspore.train import Callback

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "mindformers"))

import run_mindformer


@MindFormerRegister.register(MindFormerModuleType.CALLBACK)
class KillAt(Callback):
    """Kills a rank after a step of this launch, once the catalog has what it saved before."""

    def __init__(self, kill_at: int, kill_rank: int = 0) -> None:
        super().__init__()
        self.step, self.rank = kill_at, kill_rank

    def on_train_step_end(self, run_context: Any) -> None:
        """Kill it, perhaps."""
        params = run_context.original_args()
        if params.cur_step_num == self.step and int(os.environ.get("RANK_ID", "0")) == self.rank:
            registrar = next(each for each in params.list_callback if type(each).__name__ == "Registrar")
            registrar._session.recorder.flush(60.0)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run_mindformer.main()
