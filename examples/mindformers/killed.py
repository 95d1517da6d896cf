"""run_mindformer.py with a callback that kills a rank, for the demo and the tests."""

import os
import signal

import run_mindformer
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindspore.train import Callback


@MindFormerRegister.register(MindFormerModuleType.CALLBACK)
class KillAt(Callback):
    """Kills rank `kill_rank` with SIGKILL after step `kill_at` of this launch, once its saves are registered."""

    def __init__(self, kill_at: int, kill_rank: int = 0) -> None:
        super().__init__()
        self.step, self.rank = kill_at, kill_rank

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        if params.cur_step_num == self.step and int(os.environ.get("RANK_ID", "0")) == self.rank:
            registrar = next(each for each in params.list_callback if type(each).__name__ == "Registrar")
            registrar._session.recorder.flush(60.0)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run_mindformer.main()
