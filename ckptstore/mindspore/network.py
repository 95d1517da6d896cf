"""What can be read of the train network while it trains: how far it is, and whether its state is good."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np

from ckptstore.formats.header import STATE_STEP
from ckptstore.mindspore.state import named
from ckptstore.outside import threading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.training.complaints import Complaints

COUNTER = "global_step"
"""The optimizer's counter of updates, as MindSpore's own optimizers name it (`nn/optim/optimizer.py`)."""

_RATE = "learning_rate"

EXIT_FLAGS = ("graceful_exit", "graceful_init")
"""Parameters that ask for a graceful exit. They are no state."""

_DEVICE_SECONDS = 5.0


def is_state(parameter: Any) -> bool:
    """Whether a parameter of a train network is a part of the training state: weights, optimizer, loss scale.

    Left out are: parameters that `mindspore.load_param_into_net` skips (MindSpore: `train/serialization.py`), which
    are gradients being accumulated and parameters shared with another pipeline stage; the flags of graceful exit; and
    parameters of size 0, which a .ckpt lacks.
    """
    name = parameter.name
    is_flag_or_sum = name in EXIT_FLAGS or name.startswith("accu_grads")
    return not (is_flag_or_sum or 0 in parameter.shape or parameter.param_info.is_pipeline_shared_param)


def state_names(network: Any) -> set[str]:
    """The names of the parameters that make up the training state of a train network."""
    return {parameter.name for parameter in network.get_parameters() if is_state(parameter)}


def fixed_rates(network: Any) -> dict[str, float]:
    """The learning rates that an optimizer holds as single numbers, by the parameter's name.

    MindSpore: `nn/optim/optimizer.py`; a schedule is a table or a cell instead.
    """
    return {
        name: float(item.asnumpy().reshape(-1)[0])
        for name, item in named(network).items()
        if name.startswith(_RATE) and item.size == 1 and not item.has_init
    }


def _state_step(parameters: Mapping[str, Any]) -> Any | None:
    """The counter of an optimizer that has its own, as the reader of headers knows it."""
    counter = parameters.get(STATE_STEP)
    return counter if counter is not None and counter.dtype == mindspore.int32 else None


class NetworkState:
    """The train network of one training.

    `parameters` are those of its state by name, `names` their names, `outputs` what it returned last: an evaluation
    inside `fit` puts its own into MindSpore's callback parameters. `is_readable` is False once the device did not
    answer.
    """

    def __init__(self, network: Any, complaints: Complaints) -> None:
        self.parameters = {name: item for name, item in named(network).items() if is_state(item)}
        self.names = set(self.parameters)
        self.outputs: Any = None
        self.is_readable = True
        self._counter = self.parameters[COUNTER] if COUNTER in self.parameters else _state_step(self.parameters)
        self._complaints = complaints

    @property
    def has_counter(self) -> bool:
        """Whether the files of this network tell how many updates are in them."""
        return self._counter is not None

    def optimizer_step(self) -> int | None:
        """Updates applied; None if the optimizer has no counter, or a fault of the device made it unreadable."""
        if self._counter is None or not self.is_readable:
            return None
        try:
            return int(self._counter.asnumpy().reshape(-1)[0])
        except RuntimeError as error:
            self._complaints.warn(f"the optimizer's counter cannot be read any more: {str(error).splitlines()[0]}")
            return None

    def loss(self) -> float | None:
        """The loss of the last step on this rank, as LossMonitor reads it; None if the network returns none.

        MindSpore: `train/callback/_loss_monitor.py`.
        """
        outputs = self.outputs
        first: Any = next(iter(outputs), None) if isinstance(outputs, (tuple, list)) else outputs
        if first is None or not self.is_readable:
            return None
        try:
            array = np.asarray(first.asnumpy() if hasattr(first, "asnumpy") else first, dtype=np.float64)
        except (RuntimeError, TypeError, ValueError):
            return None
        return float(array.mean()) if array.size else None

    def problem(self) -> str:
        """What the last loss says against the state; empty if nothing does."""
        loss = self.loss()
        if loss is None or math.isfinite(loss) or self._update_was_skipped():
            return ""
        return f"the loss of its last step was {loss}"

    def check_device(self) -> None:
        """See, after an exception, whether the device still answers: a peer that died may have left it waiting.

        An endless wait for it would keep the process from ending, and the job from being started again.
        """
        reader = threading.Thread(target=lambda: (self.optimizer_step(), self.loss()), daemon=True)
        reader.start()
        reader.join(_DEVICE_SECONDS)
        self.is_readable = not reader.is_alive()
        if not self.is_readable:
            self._complaints.warn(
                f"the device did not answer in {_DEVICE_SECONDS:.0f} s: nothing is read from it any more"
            )

    def _update_was_skipped(self) -> bool:
        """Whether the last update was left out since it overflowed: then the weights are those of the step before.

        Cells with a loss scale return (loss, overflow, scale) (MindSpore: `nn/wrap/loss_scale.py`).
        """
        outputs = self.outputs
        if not isinstance(outputs, (tuple, list)) or len(outputs) < 3:  # noqa: PLR2004
            return False
        overflow = outputs[1]
        return str(getattr(overflow, "dtype", "")) == "Bool" and bool(overflow.asnumpy().any())
