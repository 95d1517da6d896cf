"""Loads the weights of a state into a network, for evaluation and inference: no launch, no optimizer, no dataset."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from mindspore import nn

from ckptstore.api import connect
from ckptstore.core.gc_paused import gc_paused
from ckptstore.core.hints import Call, Command
from ckptstore.core.text import count, some
from ckptstore.errors import DamageError, UsageError
from ckptstore.formats.tensor_file import TensorFile
from ckptstore.mindspore.initial import kind_of
from ckptstore.mindspore.load_guard import LoadGuard
from ckptstore.mindspore.loader import CHANGED
from ckptstore.mindspore.resume import asks_mindspore, put, read, read_plain_into, telling, unmarked
from ckptstore.mindspore.state import TrainState, is_state
from ckptstore.outside import Path
from ckptstore.resume.resolver import Loads
from ckptstore.tensors.opened import open_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ckptstore.api import Catalog
    from ckptstore.core.model import Checkpoint, RestorePlan
    from ckptstore.tensors.opened import OpenState

    _Kinds = Mapping[str, tuple[str, tuple[int, ...]]]


@gc_paused()  # with networks of MindSpore in memory one collection takes a tenth of a second
def load(
    reference: str,
    network: Any,
    *,
    rank: int = 0,
    catalog: Catalog | None = None,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
) -> OpenState:
    """Load the parameters of a network from a state of a run, for evaluation or inference, and return the state.

    `reference` names the state, as "digits", "digits@1200", "digits@best:accuracy:max". Every parameter of the network
    comes from the file, by its name, and the file is proved by its digest. Other parameters of the file, as the
    optimizer's, are left out. `network` is a cell, or a list or dict of cells as they were given to `launch.loop`.
    `rank` is the rank whose file is read: any serves, unless the layout cuts parameters over the ranks. `catalog` is an
    open one (None: `ckptstore.connect()`). `dec_key` and `dec_mode` are those of `mindspore.load_checkpoint`, for files
    saved with `enc_key`.

    It raises:

    - `UnknownRunError` and `NothingRestorableError` for a state that does not exist, or is incomplete,
    - `UsageError` before the network changes: it names the parameters that the file lacks or has in another type or
      shape,
    - `UnreadableError` for an encrypted file without its key,
    - `DamageError` for a file that differs from its record: a part of it may be in the network then,
    - `CkptstoreError` if the file cannot be read.
    """
    target = _target(network)
    opened = catalog or connect()
    state = open_state(opened.database, reference, loads=Loads.MINDSPORE).rank(rank)
    if catalog is None:
        opened.close()
    decryption = {"dec_key": dec_key, "dec_mode": dec_mode}
    if not asks_mindspore(decryption):
        _check(target, _kinds_in(state.plan.files_for(rank, state.layout)), state.plan, rank)
    try:
        _load(target, state.plan, rank, decryption)
    except DamageError as error:
        raise DamageError(error.message, f"see: {Command('verify', state.run, '--digest')}") from error
    return state


def _target(network: Any) -> TrainState:
    """The parameters of one or several networks, as a file has them. Raises `UsageError` if it is no network."""
    if not isinstance(network, (nn.Cell, list, tuple, Mapping)):
        call = Call("load", "…", "network")
        raise UsageError(
            f"load needs a network, not {type(network).__name__}",
            f"write {call}; pass the network, not the Model that was made from it",
        )
    target = TrainState(network, ())
    target.named = {name: item for name, item in target.named.items() if is_state(item)}
    return target


def _load(target: TrainState, plan: RestorePlan, rank: int, decryption: Mapping[str, Any]) -> None:
    values: dict[str, Any] = {}
    in_place: set[str] = set()
    is_writable = True
    files = plan.files_for(rank, plan.launch.layout)
    with ExitStack() as loading:

        def begin() -> None:  # a network with half of a state is not trained
            loading.enter_context(LoadGuard().loading(target))

        for file in files:
            found, placed, may_write = _read(file, target, decryption, begin)
            values = {**found, **values}
            in_place.update(placed)
            is_writable = is_writable and may_write
        if asks_mindspore(decryption):
            kinds = {name: kind_of(value) for name, value in values.items() if hasattr(value, "dtype")}
            _check(target, kinds, plan, rank)
        if not target.named.keys() <= in_place | values.keys():
            raise DamageError(f"{files[0].path}: {CHANGED}")
        begin()
        put(target, values, in_place, by_broadcast=False, is_writable=is_writable)


def _read(
    file: Checkpoint, target: TrainState, decryption: Mapping[str, Any], begin: Callable[[], None]
) -> tuple[Mapping[str, Any], Collection[str], bool]:
    """The values not yet in the network, the names of those that are, and whether its memory is writable."""
    if not asks_mindspore(decryption):
        with telling(file, unmarked):
            content, placed, is_writable = read_plain_into(target, file, begin, target.named.keys())
        if content is not None:
            return content.others, placed, is_writable
    return read(file, decryption, unmarked), (), True


def _kinds_in(files: Sequence[Checkpoint]) -> _Kinds:
    """The entries of files, with appended values: the network may have a parameter of such a name."""
    headers = [TensorFile(Path(file.path)).header for file in reversed(files)]
    return {entry.name: (entry.dtype, entry.shape) for header in headers for entry in header.entries}


def _check(target: TrainState, there: _Kinds, plan: RestorePlan, rank: int) -> None:
    """Raise if a file lacks parameters of the network, or has them with another type or shape."""
    path = plan.ranks[rank].source.path
    lacking = [name for name in target.named if name not in there]
    if lacking:
        number = count(len(lacking), "parameter", "parameters")
        raise UsageError(f"{path} lacks {number} of the network: {some(lacking)}", _hint(plan, rank))
    for name, item in target.named.items():
        if there[name] != kind_of(item):
            kinds = " and ".join(f"{dtype} {shape}" for dtype, shape in (there[name], kind_of(item)))
            raise UsageError(f"{name} is not the same in {path} and in the network: {kinds}", _hint(plan, rank))


def _hint(plan: RestorePlan, rank: int) -> str:
    hint = "use the network that was saved"
    if plan.launch.any_file_serves:
        return hint
    return (
        f"{hint}; this file is the part of rank {rank} of {plan.launch.world_size}: use {Call('load', '…', rank=rank)}"
    )
