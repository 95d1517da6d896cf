"""Load a restore plan's file into the train network, and say where training goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mindspore

from ckptstore.core.model import Rule
from ckptstore.errors import CkptstoreError, DamageError, UsageError
from ckptstore.storage.files import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptstore.core.model import Checkpoint, RestorePlan

_NAMES_SHOWN = 5
_FLAGS = ("graceful_exit", "graceful_init")  # requests to stop, not state (domain §5)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where training goes on.

    `global_step` batches were consumed; the last of them was step `step_in_epoch` of `epoch`, both from 1 (0 and 0
    when fresh). `initial_epoch` is for `Model.train`. `append_info` holds what the file had beside parameters:
    what `CheckpointConfig(append_info=…)` put there. `plan` is None when `fresh`.
    """

    fresh: bool
    global_step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    initial_epoch: int = 0
    append_info: Mapping[str, Any] = field(default_factory=dict)
    plan: RestorePlan | None = None


def state_names(network: Any) -> set[str]:
    """The parameters that make up the training state of a train network: weights, optimizer, loss scale.

    What `mindspore.load_param_into_net` passes over is left out (MindSpore: `train/serialization.py`): gradients
    being accumulated, parameters shared with another pipeline stage; and the flags of graceful exit.
    """
    return {
        parameter.name
        for parameter in network.get_parameters()
        if not parameter.name.startswith("accu_grads")
        and not parameter.param_info.is_pipeline_shared_param
        and parameter.name not in _FLAGS
    }


def load(network: Any, file: Checkpoint) -> dict[str, Any]:
    """Load a file into a train network, every parameter of its state, and return what else the file held.

    Raises `DamageError` if its bytes are not those recorded, `CkptstoreError` if they cannot be read, `UsageError`
    naming the parameters that it lacks or that do not fit: the network is not the one that was saved.
    """
    try:
        is_same = file.digest is None or digest(file.path) == file.digest
    except OSError as error:
        raise CkptstoreError(
            f"{file.path} of the restore plan cannot be read ({error.strerror})",
            "check that it is there on this node, then start again",
        ) from None
    if not is_same:
        raise DamageError(
            f"{file.path} has other bytes than those recorded ({Rule.DIGEST_MISMATCH})",
            "start again: it is passed over from now on",
        )
    parameters = mindspore.load_checkpoint(file.path, format=file.format)
    needed = state_names(network)
    _check_complete(file, needed, parameters)
    kept = {name: value for name, value in parameters.items() if name not in _FLAGS}
    try:
        not_loaded, unused = mindspore.load_param_into_net(network, kept, strict_load=True)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{file.path} does not fit the train network: {str(error).splitlines()[0]}",
            "use the network and optimizer that were saved",
        ) from error
    _check_complete(file, needed, needed.difference(not_loaded))
    return {name: _plain(parameters[name]) for name in unused}


def _check_complete(file: Checkpoint, needed: set[str], present: Iterable[str]) -> None:
    lacking = sorted(needed.difference(present))
    if lacking:
        shown = ", ".join(lacking[:_NAMES_SHOWN]) + (" …" if len(lacking) > _NAMES_SHOWN else "")
        raise UsageError(
            f"{file.path} lacks {len(lacking)} parameters of the train network: {shown}",
            "use the network and optimizer that were saved",
        )


def _plain(value: Any) -> Any:
    """An appended scalar as a Python value; strings are that already, tensors become arrays."""
    if not hasattr(value, "asnumpy"):
        return value
    array = value.asnumpy()
    return array.item() if array.size == 1 else array
