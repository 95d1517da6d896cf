"""Replaces parts of MindFormers that need an Ascend device, so that it trains on a CPU. Do not import it on Ascend.

- The overflow check of the train cell is an operator of Ascend. Here the check always reports no overflow.
- MindFormers waits for all ranks with a barrier. MindSpore has no barrier on the CPU. Here the ranks sum up one float.
- The newer checkpoint format needs to know which rank has which slice of a parameter. MindSpore knows this only for
  semi-auto parallel, which does not compile on a CPU. Here each rank of a data-parallel job has whole parameters.
"""

import mindspore
from mindformers import version_control
from mindformers.checkpoint import sharded_tensor
from mindformers.core.callback import callback
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindformers.tools.utils import get_real_group_size, get_real_rank
from mindformers.trainer import utils
from mindformers.utils import load_checkpoint_utils
from mindformers.wrapper.wrapper import MFTrainOneStepCell
from mindspore import Tensor, ops
from mindspore.communication import comm_func
from mindspore.parallel.shard import Layout

_cells = []


@MindFormerRegister.register(MindFormerModuleType.WRAPPER)
class CpuTrainOneStepCell(MFTrainOneStepCell):
    """MindFormers' train cell without the overflow check."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        _cells.append(self)

    def start_overflow_check(self, pre_cond, compute_input):
        return pre_cond, compute_input

    def get_overflow_status(self, status, compute_output):
        return Tensor(False)  # noqa: FBT003

    def process_loss_scale(self, overflow):
        return overflow


def barrier(group=None):  # noqa: ARG001
    """Wait for all ranks."""
    ops.AllReduce()(Tensor([1.0], mindspore.float32)).asnumpy()


def of_every_rank(network):  # noqa: ARG001 — the optimizer's parameters are needed too
    """The layout, type and shape of each parameter of the train cell, by rank and name."""
    ranks = get_real_group_size()
    whole = Layout((ranks,), ("dp",), rank_list=list(range(ranks)))
    cell = _cells[-1]
    told = {
        item.name: [whole(*["None"] * item.ndim), item.dtype, tuple(item.shape)]
        for item in (*cell.network.get_parameters(), *cell.optimizer.get_parameters())
    }
    return dict.fromkeys(range(ranks), told)


for module in (comm_func, callback, load_checkpoint_utils, utils, version_control):
    module.barrier = barrier
sharded_tensor.get_strategy_metadata = of_every_rank
sharded_tensor.get_current_strategy_metadata = lambda network: [of_every_rank(network)[get_real_rank()]]
