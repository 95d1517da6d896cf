"""Load a restore plan's file into the train network, and say where training goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import mindspore

from ckptstore.core.model import Rule
from ckptstore.errors import CkptstoreError, DamageError, UsageError
from ckptstore.ops.inspect import is_broken
from ckptstore.storage.files import BAD_BYTES, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckptstore.core.model import Checkpoint, RestorePlan
    from ckptstore.core.replicas import Layout

_NAMES_SHOWN = 5
_PASSED = "start again: it is passed over from now on"
COUNTER = "global_step"
"""The optimizer's counter of updates, as MindSpore's own optimizers name it (`nn/optim/optimizer.py`)."""

_FLAGS = ("graceful_exit", "graceful_init")  # requests to stop, not state (domain §5)


OnFailure: TypeAlias = "Callable[[Checkpoint | None, Rule | None, str], None]"
"""Hears of a load that failed: the file (None: it is not to blame), the rule it broke (None: it is there), and why."""


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

    @property
    def place(self) -> str:
        """Where that is, in words."""
        return f"after step {self.global_step}" if self.global_step else "from the beginning"


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


@dataclass(frozen=True)
class Decryption:
    """How to read files that were saved with `enc_key`: as `mindspore.load_checkpoint` takes it."""

    key: bytes | None
    mode: str


def files_to_load(plan: RestorePlan, rank: int, layout: Layout) -> list[Checkpoint]:
    """What a rank reads: the file that the plan gives it; of a data-parallel state in shares, everybody's.

    There MindSpore spreads the parameters over all ranks (`train/callback/_checkpoint.py`, `remove_redundancy`). It is
    the launch that saved that says so, or, where a scan found that and nobody said it, the one that loads: `layout`.
    With any other layout each rank reads its own share, and MindSpore sends the others' over the network.
    """
    own = next(assignment.source for assignment in plan.ranks if assignment.rank == rank)
    if not (plan.in_shares and (plan.launch.layout.any_world_size or layout.any_world_size)):
        return [own]
    return [own, *(assignment.source for assignment in plan.ranks if assignment.rank != rank)]


def load(
    network: Any, plan: RestorePlan, rank: int, decryption: Decryption, *, layout: Layout, on_failure: OnFailure
) -> dict[str, Any]:
    """Load a plan into a train network, every parameter of its state, and return what else the file held.

    `layout` is that of the launch that loads. `on_failure` hears of a file that cannot be loaded before the error is
    raised: `DamageError` for a file that is not what was recorded, or is cut, `CkptstoreError` for one that cannot be
    read now. Raises `UsageError` for one that needs another key, and naming the parameters that it lacks or that do not
    fit: the network is not the one that was saved.
    """
    sources = files_to_load(plan, rank, layout)
    for source in sources:
        if not _is_as_recorded(source, on_failure):
            on_failure(source, Rule.DIGEST_MISMATCH, "it has other bytes than those recorded")
            raise DamageError(f"{source.path} has other bytes than those recorded ({Rule.DIGEST_MISMATCH})", _PASSED)
    file = sources[0]
    parameters: dict[str, Any] = {}
    for source in reversed(sources):
        parameters |= _read(source, decryption, on_failure)
    needed = state_names(network)
    by_broadcast = plan.in_shares and len(sources) == 1
    if not by_broadcast:
        _check_complete(file, needed, parameters)
    kept = {name: value for name, value in parameters.items() if name not in _FLAGS}
    _restore_counter(network, kept)
    try:
        not_loaded, unused = _put(network, kept, by_broadcast=by_broadcast)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{file.path} does not fit the train network: {str(error).splitlines()[0]}",
            "use the network and optimizer that were saved",
        ) from error
    _check_complete(file, needed, needed.difference(not_loaded))
    return {name: _plain(parameters[name]) for name in unused}


def _is_as_recorded(file: Checkpoint, on_failure: OnFailure) -> bool:
    try:
        return file.digest is None or digest(file.path) == file.digest
    except OSError as error:
        is_of_file = error.errno in BAD_BYTES
        on_failure(file if is_of_file else None, None, f"{file.path}: {error.strerror}")
        raise CkptstoreError(
            f"{file.path} of the restore plan cannot be read ({error.strerror})",
            _PASSED if is_of_file else "check that it is there on this node, then start again",
        ) from None


def _read(file: Checkpoint, decryption: Decryption, on_failure: OnFailure) -> dict[str, Any]:
    try:
        parameters: dict[str, Any] = mindspore.load_checkpoint(
            file.path, format=file.format, dec_key=decryption.key, dec_mode=decryption.mode
        )
    except (RuntimeError, TypeError, ValueError) as error:
        if is_broken(file.path):
            on_failure(file, Rule.UNREADABLE, "it is cut or damaged")
            raise DamageError(f"{file.path} is cut or damaged: MindSpore cannot read it", _PASSED) from error
        raise UsageError(
            f"MindSpore cannot read {file.path}: {str(error).splitlines()[0]}",
            "if it was saved with enc_key, give that to resume as dec_key, and its enc_mode as dec_mode",
        ) from error
    return parameters


def _put(network: Any, values: Mapping[str, Any], *, by_broadcast: bool) -> tuple[Iterable[str], Iterable[str]]:
    """Give the parameters of a network these values; which parameters got none, and which values none took.

    In PyNative they are copied to where the parameters are. MindSpore's own loading gives a parameter another tensor
    (`Parameter.set_data`), and a network that has trained in this process goes on updating the one before: its weights
    and its counter would never move again.
    """
    parameters = {parameter.name: parameter for parameter in network.get_parameters()}
    own = {name: value for name, value in values.items() if name in parameters}
    is_pynative = mindspore.get_context("mode") == mindspore.PYNATIVE_MODE
    if by_broadcast or not own or not (is_pynative and all(_fits(parameters[name], own[name]) for name in own)):
        put: tuple[list[str], list[str]] = mindspore.load_param_into_net(
            network, dict(values), strict_load=True, remove_redundancy=by_broadcast
        )
        return put
    for name, value in own.items():
        mindspore.ops.assign(parameters[name], value)
    return parameters.keys() - own.keys(), values.keys() - own.keys()


def _fits(parameter: Any, value: Any) -> bool:
    is_alike = isinstance(value, mindspore.Tensor) and (parameter.shape, parameter.dtype) == (value.shape, value.dtype)
    return is_alike and not parameter.has_init


def _restore_counter(network: Any, parameters: dict[str, Any]) -> None:
    """Give the optimizer's counter its own type and shape again.

    OnRequestExit appends its value under the parameter's name: the file holds one number of 64 bits in its place,
    which MindSpore refuses to load (`train/callback/_on_request_exit.py`, `_do_step_end`).
    """
    saved: Any = parameters.get(COUNTER)
    counter = next((item for item in network.get_parameters() if item.name == COUNTER), None)
    if counter is not None and hasattr(saved, "asnumpy") and saved.asnumpy().size == 1:
        value = mindspore.Tensor(saved.asnumpy().reshape(counter.shape), counter.dtype)
        parameters[COUNTER] = mindspore.Parameter(value, name=COUNTER)


def _check_complete(file: Checkpoint, needed: set[str], present: Iterable[str]) -> None:
    """Raise where parameters are not in a file; that says nothing against the file, which no later launch passes over.

    Another optimizer than the one that was saved lacks the last ones, as a file does that was cut before them: to blame
    the file would cost a user who gave the wrong network one good state a start.
    """
    lacking = sorted(needed.difference(present))
    if lacking:
        shown = ", ".join(lacking[:_NAMES_SHOWN]) + (" …" if len(lacking) > _NAMES_SHOWN else "")
        raise UsageError(
            f"{file.path} lacks {len(lacking)} parameters of the train network: {shown}",
            "use the network and optimizer that were saved; if these are, the file was cut before anybody registered "
            "it: move it away",
        )


def _plain(value: Any) -> Any:
    """An appended scalar as a Python value; strings are that already, tensors become arrays."""
    if not hasattr(value, "asnumpy"):
        return value
    array = value.asnumpy()
    return array.item() if array.size == 1 else array
