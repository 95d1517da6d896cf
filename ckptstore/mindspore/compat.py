"""Every private name of MindSpore that ckptstore relies on, with the reason. No other module uses one.

MindSpore may rename or drop them in any release. tests/mindspore/test_compat.py looks for each in the installed one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import mindspore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


@dataclass(frozen=True)
class Private(Generic[T]):
    """A private attribute: its class or module, its name, and the reason why ckptstore needs it."""

    owner: str
    name: str
    purpose: str

    def of(self, owner: object) -> T:
        """Its value. Raises `AttributeError`, which names its use, if this MindSpore lacks it."""
        missing = self.missing_in(owner)
        if missing:
            raise AttributeError(missing)
        return cast("T", getattr(owner, self.name))

    def get(self, owner: object, default: T) -> T:
        """Its value, or a default: older releases lack it, or it is not set yet."""
        return cast("T", getattr(owner, self.name, default))

    def put(self, owner: object, value: T) -> None:
        """Set it."""
        setattr(owner, self.name, value)

    def missing_in(self, owner: object) -> str:
        """The error message if the attribute is missing; empty if it is there."""
        if hasattr(owner, self.name):
            return ""
        lacks = f"MindSpore {mindspore.__version__} has no {self.owner}.{self.name}"
        return f"{lacks}; ckptstore needs it: {self.purpose}"


_PERIODIC = "ModelCheckpoint"

CONFIG: Private[Any] = Private(_PERIODIC, "_config", "its CheckpointConfig says what the files hold and how")
DIRECTORY: Private[object] = Private(_PERIODIC, "_directory", "where the next file goes, once it is known")
PREFIX: Private[object] = Private(_PERIODIC, "_prefix", "how names of the next files begin, with MindSpore's _N")
EXCEPTION_PREFIX: Private[object] = Private(_PERIODIC, "_exception_prefix", "how names of breakpoints begin")
APPEND_DICT: Private[Mapping[str, Any]] = Private(_PERIODIC, "_append_dict", "what each file holds beside parameters")
APPEND_STEP: Private[Any] = Private(_PERIODIC, "_append_step_num", "the steps before this launch, as the script says")
APPEND_EPOCH: Private[int] = Private(_PERIODIC, "_append_epoch_num", "the epochs before this launch, likewise")
LAST_TRIGGERED_STEP: Private[int] = Private(_PERIODIC, "_last_triggered_step", "the step of its last save")

CHECK_EXIT_FLAG: Private[Callable[[], bool]] = Private(
    "OnRequestExit", "_check_config_info", "whether the JSON file asks for an exit"
)

_TTP = "mindspore.train.callback._train_fault_tolerance"

TTP_SAVE: Private[Callable[..., None]] = Private(
    _TTP, "_save_checkpoint_on_failure", "saves the state of a rank after a fault"
)
TTP_RENAME: Private[Callable[..., None]] = Private(_TTP, "_rename_save_result", "gives the saved directory its name")
TTP_EXIT: Private[Callable[..., None]] = Private(_TTP, "_tft_exit_cb", "ends the process after a fault")

_SEED = "mindspore.common.seed"

GLOBAL_SEED: Private[int | None] = Private(_SEED, "_GLOBAL_SEED", "the seed of random layers, without NumPy's")
RESET_SEEDS: Private[Callable[[], None]] = Private(_SEED, "_reset_op_seed", "has the seeds of their calls start over")

OF_MODEL_CHECKPOINT = (
    CONFIG, DIRECTORY, PREFIX, EXCEPTION_PREFIX, APPEND_DICT, APPEND_STEP, APPEND_EPOCH, LAST_TRIGGERED_STEP,
)  # fmt: skip
OF_ON_REQUEST_EXIT = (CHECK_EXIT_FLAG,)
OF_FAULT_TOLERANCE = (TTP_SAVE, TTP_RENAME, TTP_EXIT)
OF_SEED = (GLOBAL_SEED, RESET_SEEDS)

_TTP_CALLBACKS = ("TrainFaultTolerance", "TFTRegister")


def fault_tolerance_module(callback: object) -> Any:
    """The module with the handlers of MindSpore's callback for MindIO; None for every other callback.

    It is `TrainFaultTolerance`, or a class derived from it. Earlier releases have it as `TFTRegister`.
    """
    names = (each.__module__ for each in type(callback).__mro__ if each.__name__ in _TTP_CALLBACKS)
    return next((sys.modules[name] for name in names), None)
