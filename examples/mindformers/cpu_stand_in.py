"""What stands in for an Ascend, so that MindFormers trains on a CPU. On an Ascend nothing imports this file.

- The overflow check of the train cell is an operator of Ascend: here nothing overflows.
- MindFormers waits for all ranks with a barrier, which MindSpore has for no CPU: here the ranks add up one float.
"""

import mindspore
from mindformers import version_control
from mindformers.core.callback import callback
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindformers.trainer import utils
from mindformers.utils import load_checkpoint_utils
from mindformers.wrapper.wrapper import MFTrainOneStepCell
from mindspore import Tensor, ops
from mindspore.communication import comm_func


@MindFormerRegister.register(MindFormerModuleType.WRAPPER)
class CpuTrainOneStepCell(MFTrainOneStepCell):
    """MindFormers' train cell without the overflow check."""

    def start_overflow_check(self, pre_cond, compute_input):
        return pre_cond, compute_input

    def get_overflow_status(self, status, compute_output):
        return Tensor(False)  # noqa: FBT003

    def process_loss_scale(self, overflow):
        return overflow


def barrier(group=None):  # noqa: ARG001
    """Wait for all ranks."""
    ops.AllReduce()(Tensor([1.0], mindspore.float32)).asnumpy()


for module in (comm_func, callback, load_checkpoint_utils, utils, version_control):
    module.barrier = barrier
