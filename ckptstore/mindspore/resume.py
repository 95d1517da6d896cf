"""Loads the files that a restore plan names for a rank into the train network."""

from __future__ import annotations

import errno
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import mindspore
import numpy as np

from ckptstore import progress
from ckptstore.core.hints import Call
from ckptstore.core.model import Rule
from ckptstore.core.text import count, some
from ckptstore.disk.files import BAD_BYTES, digest
from ckptstore.errors import CkptstoreError, DamageError, UsageError, reason_of
from ckptstore.formats.header import OPTIMIZER_STEP
from ckptstore.formats.inspect import begins_encrypted, is_broken
from ckptstore.mindspore.data import check_dataset
from ckptstore.mindspore.loader import OTHER_BYTES, ChangedError, DoesNotFitError, are_apart, places_of, read_plain
from ckptstore.mindspore.state import (
    EXIT_FLAGS,
    Parameters,
    TrainState,
    fixed_rates,
    named,
    schedules,
    state_names,
)
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from ckptstore.core.model import Checkpoint, RestorePlan
    from ckptstore.core.replicas import Layout
    from ckptstore.mindspore.loader import Content

log = logging.getLogger("ckptstore")

_AGAIN = "start again: it is passed over from now on"

OnFailure: TypeAlias = "Callable[[Checkpoint | None, Rule | None, str], None]"
"""Called when a load fails: the file (None: it is not the cause), the rule that it broke or None, and the reason."""


def unmarked(*_: object) -> None:
    """An `OnFailure` that leaves the file as it is recorded: `verify` of its run records its faults."""


def check_arguments(model: Any, dataset: Any) -> None:
    """Raise `UsageError` for invalid arguments: a first start loads nothing, and would not notice them."""
    call = f"start = {Call('launch.resume', 'model', 'dataset')}"
    if hasattr(model, "get_dataset_size") and hasattr(dataset, "train_network"):
        raise UsageError("resume got dataset and model in the wrong order", f"write {call}")
    if isinstance(model, mindspore.nn.Cell) or not hasattr(model, "train_network"):
        name = type(model).__name__
        is_network = isinstance(model, mindspore.nn.Cell)
        raise UsageError(
            f"resume got a network ({name})" if is_network else f"resume needs a mindspore.Model, not {name}",
            f"write model = mindspore.Model(network, loss_fn, optimizer); {call}",
        )
    check_dataset(dataset, "resume", f"write {call}")


def load(
    network: Any,
    plan: RestorePlan,
    rank: int,
    decryption: Mapping[str, Any],
    *,
    layout: Layout,
    on_failure: OnFailure,
    on_put: Callable[[], None],
) -> dict[str, Any]:
    """Load every parameter of a plan's state into a train network; return the other values of the file.

    - `decryption` are the arguments of `mindspore.load_checkpoint` for files that were saved with `enc_key`, `layout`
      is that of the launch that loads.
    - `on_failure` is called for a file that cannot be loaded, before the error is raised. `on_put` is called before the
      network changes: an error after that leaves it with a part of the state.
    - Raises `DamageError` for a file that differs from its record, or is truncated; `CkptstoreError` for a file that
      cannot be read now; `UsageError` for a file that needs another key. For a network that is not the one that was
      saved `UsageError` names the parameters that are missing or do not fit.
    """
    sources = plan.files_for(rank, layout)
    file = sources[0]
    needed = set(network.named) if isinstance(network, TrainState) else state_names(network)
    needs_mindspore = plan.in_shares or asks_mindspore(decryption)
    in_place: Collection[str] = ()
    parameters: dict[str, Any] = {}
    is_writable = True
    content: Content | None = None
    if not needs_mindspore:
        with telling(file, on_failure), progress.bar("loaded", in_bytes=True, shown=rank == 0) as show:
            size = file.size or 0
            content, in_place, is_writable = read_plain_into(network, file, on_put, told=lambda done: show(done, size))
    if content is not None:
        parameters = content.others
    else:
        for source in reversed(sources):
            parameters |= read(source, decryption, on_failure)
    by_broadcast = plan.in_shares and len(sources) == 1
    present = needed if by_broadcast else {*parameters, *in_place}
    _keep_schedules(network, parameters, present, told=rank == 0)
    _check_complete(file, needed, {*parameters, *present})
    kept = {name: value for name, value in parameters.items() if name not in EXIT_FLAGS}
    _restore_counter(network, kept)
    on_put()
    try:
        not_loaded, unused = put(network, kept, in_place, by_broadcast=by_broadcast, is_writable=is_writable)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{file.path} does not fit the train network: {_misfit(network, kept) or str(error).splitlines()[0]}",
            "use the network and optimizer that were saved, or train this network as another run",
        ) from error
    _check_complete(file, needed, needed.difference(not_loaded))
    return {name: _plain(parameters[name]) for name in unused}


def _keep_schedules(network: Any, parameters: dict[str, Any], present: set[str], *, told: bool) -> None:
    """Put the script's schedules of learning rates in the place of the saved ones: more epochs need other ones.

    A schedule is a table with the rates of all steps, in the network or in the file. If it is a cell that computes
    them, the file has no rates.
    """
    own = named(network)
    for name in sorted((schedules(network) | fixed_rates(network).keys()) - present):
        parameters[name] = mindspore.Parameter(mindspore.Tensor(own[name].asnumpy(), own[name].dtype), name=name)
        if told:
            log.warning("%s is the script's: the saved state has none", name)
    fixed = {name for name in fixed_rates(network) if getattr(parameters.get(name), "size", 1) > 1}
    for name in sorted(parameters.keys() & (schedules(network) | fixed)):
        scripts = mindspore.Tensor(own[name].asnumpy(), own[name].dtype)
        if told and not np.array_equal(parameters[name].asnumpy(), scripts.asnumpy()):
            log.warning("%s is the script's: a schedule is not restored, and the saved one differs", name)
        parameters[name] = mindspore.Parameter(scripts, name=name)


def _misfit(network: Any, parameters: Mapping[str, Any]) -> str:
    """The first parameter whose shape is another one in the file; empty if there is none."""
    for name, there in named(network).items():
        saved = parameters.get(name)
        if saved is not None and tuple(saved.shape) != tuple(there.shape):
            return f"{name} has the shape {tuple(saved.shape)} in the file, and {tuple(there.shape)} in the network"
    return ""


def asks_mindspore(decryption: Mapping[str, Any]) -> bool:
    """Whether MindSpore must read the files: only it can decrypt them, or the user wants it to."""
    return bool(decryption.get("dec_key")) or os.environ.get("CKPTSTORE_LOADER") == "mindspore"


def prove(file: Checkpoint, on_failure: OnFailure) -> None:
    """Raise as `load` does for a file that differs from its record."""
    with telling(file, on_failure):
        if file.digest is not None and digest(file.path) != file.digest:
            raise ChangedError(OTHER_BYTES)


def read_plain_into(
    network: Any,
    file: Checkpoint,
    on_put: Callable[[], None],
    wanted: Collection[str] | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> tuple[Content | None, Collection[str], bool]:
    """Read a file, into the network's memory if possible; None for a file that only MindSpore can read.

    Also returns the parameters that have their values now, and whether the network's memory is writable. Values that
    the network lacks are kept only if they are `wanted` (None: all are). Raises as `read_plain` does.

    If the network has memory for all parameters, reading takes half the time: no second copy's pages must be allocated
    and cleared. If the file turns out to differ from its record, the network is half loaded: the start stops, and
    nothing trains it.
    """
    scripts = {*EXIT_FLAGS, *schedules(network)}
    own = {name: item for name, item in named(network).items() if name not in scripts}
    own.pop(OPTIMIZER_STEP, None)  # it may have another type in the file
    places = places_of(own)
    is_writable = True
    if places:
        on_put()
        try:
            content = read_plain(file, places, wanted, told)
        except DoesNotFitError:  # MindSpore converts what it can, and says what it cannot
            pass
        except OSError as error:
            if error.errno != errno.EFAULT:  # memory that may not be written to: other memory takes its place
                raise
            is_writable = False
        else:
            return content, places.keys() & content.names if content is not None else (), True
    return read_plain(file, {}, wanted, told), (), is_writable


@contextmanager
def telling(file: Checkpoint, on_failure: OnFailure) -> Iterator[None]:
    """Report a file whose bytes are not the recorded ones, or that cannot be read, and raise as `load` does."""
    try:
        yield
    except ChangedError as error:
        on_failure(file, Rule.DIGEST_MISMATCH, str(error))
        raise DamageError(f"{file.path}: {error} ({Rule.DIGEST_MISMATCH})", _AGAIN) from error
    except OSError as error:
        is_of_file = error.errno in BAD_BYTES
        cause, damage = (file, Rule.UNREADABLE) if is_of_file else (None, None)
        on_failure(cause, damage, f"{file.path}: {reason_of(error)}")
        raise CkptstoreError(
            f"{file.path} of the restore plan cannot be read ({reason_of(error)})",
            _AGAIN if is_of_file else "see that it is there on this node and that you may read it, then start again",
        ) from None


def read(file: Checkpoint, decryption: Mapping[str, Any], on_failure: OnFailure) -> dict[str, Any]:
    """The values of a file by name, as MindSpore reads them, once the file is proved. Raises as `load` does."""
    prove(file, on_failure)
    if is_broken(file.path):  # MindSpore would write behind the memory of a tensor, or take half of one for the whole
        on_failure(file, Rule.UNREADABLE, "it is cut or damaged")
        raise DamageError(f"{file.path} is cut or damaged: MindSpore cannot read it", _AGAIN)
    with telling(file, on_failure):  # MindSpore refuses a key for a file that was saved without one
        keys = decryption if begins_encrypted(Path(file.path)) else {}
    try:
        parameters: dict[str, Any] = mindspore.load_checkpoint(file.path, format=file.format, **keys)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"MindSpore cannot read {file.path}: {str(error).splitlines()[0]}",
            "if it was saved with enc_key, give that to resume as dec_key, and its enc_mode as dec_mode",
        ) from error
    return parameters


def put(
    network: Any, values: Mapping[str, Any], in_place: Collection[str], *, by_broadcast: bool, is_writable: bool
) -> tuple[Iterable[str], Iterable[str]]:
    """Set the parameters of a network; return the parameters without a value, and the values without a parameter.

    Parameters `in_place` have their values already; then only the counter is left, if it is in the file.

    In PyNative the values are copied into the parameters' memory. MindSpore's own loading gives a parameter another
    tensor (`Parameter.set_data`), but a network that has trained in this process keeps updating the old one: its
    weights and its counter would never change again. Parameters get another tensor only if their memory cannot be used,
    or two of them share it.
    """
    parameters = named(network)
    own = {name: value for name, value in values.items() if name in parameters}
    if isinstance(network, Parameters):
        for name, value in own.items():
            if not _fits(parameters[name], value):
                raise ValueError(f"{name} is {_shown(parameters[name])}, and {_shown(value)} in the file")
    is_pynative = isinstance(network, Parameters) or mindspore.get_context("mode") == mindspore.PYNATIVE_MODE
    fits = is_pynative and own and all(_fits(parameters[name], own[name]) for name in own)
    if by_broadcast or not (in_place or fits):
        put: tuple[list[str], list[str]] = mindspore.load_param_into_net(
            network, dict(values), strict_load=True, remove_redundancy=by_broadcast
        )
        return put
    is_usable = is_writable and are_apart(map(parameters.__getitem__, own))
    for name, value in own.items():
        if is_usable:
            _copy(parameters[name], value)
        else:
            parameters[name].set_data(value)
    return parameters.keys() - own.keys() - set(in_place), values.keys() - own.keys()


def _copy(parameter: Any, value: Any) -> None:
    """Copy a value into a parameter's memory. On CPU no operator supports BFloat16, but `asnumpy` shows the memory."""
    if parameter.dtype == mindspore.bfloat16 and mindspore.get_context("device_target") == "CPU":
        np.copyto(parameter.asnumpy(), value.asnumpy())
    else:
        try:
            mindspore.ops.assign(parameter, value)
        except (RuntimeError, TypeError):
            if parameter.requires_grad:
                raise
            parameter.set_data(value)  # a view of another tensor, or Int4: no operator copies it, and nothing trains it


def _fits(parameter: Any, value: Any) -> bool:
    is_alike = isinstance(value, mindspore.Tensor) and (parameter.shape, parameter.dtype) == (value.shape, value.dtype)
    return is_alike and not parameter.has_init


def _shown(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, mindspore.Tensor) else type(value).__name__


def _restore_counter(network: Any, parameters: dict[str, Any]) -> None:
    """Give the optimizer's counter its own type and shape again.

    OnRequestExit appends its value under the parameter's name: the file holds one number of 64 bits in its place,
    which MindSpore refuses to load (`train/callback/_on_request_exit.py`, `_do_step_end`).
    """
    saved: Any = parameters.get(OPTIMIZER_STEP)
    counter = named(network).get(OPTIMIZER_STEP)
    if counter is not None and hasattr(saved, "asnumpy") and saved.asnumpy().size == 1:
        value = mindspore.Tensor(saved.asnumpy().reshape(counter.shape), counter.dtype)
        parameters[OPTIMIZER_STEP] = mindspore.Parameter(value, name=OPTIMIZER_STEP)


def _check_complete(file: Checkpoint, needed: set[str], present: Iterable[str]) -> None:
    """Raise if a file lacks parameters; the file is not recorded as failed, so later launches still try it.

    A wrong optimizer looks like a file that was truncated. Blaming the file would cost a user with the wrong network
    one good state a start.
    """
    lacking = sorted(needed.difference(present))
    if lacking:
        raise UsageError(
            f"{file.path} lacks {count(len(lacking), 'parameter', 'parameters')} of the train network: {some(lacking)}",
            "use the network and optimizer that were saved; if you already do, the file was cut before it was "
            "registered: move it away",
        )


def _plain(value: Any) -> Any:
    if not hasattr(value, "asnumpy"):
        return value
    array = value.asnumpy()
    return array.item() if array.size == 1 else array
