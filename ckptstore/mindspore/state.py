"""What a functional loop trains: its networks and optimizers as one state, copied, written and restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import Parameter, nn
from mindspore.experimental import MapParameter

from ckptstore.errors import UsageError
from ckptstore.formats.header import OPTIMIZER_STEP, STATE_STEP
from ckptstore.formats.safetensors import Tensor, can_hold, write_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

UNCUT = ("stand_alone", "data_parallel")
"""The parallel modes in which each rank has its parameters whole."""

_OF_NUMBERS = {bool: mindspore.bool_, int: mindspore.int64, float: mindspore.float32}

_COUNTERS = (OPTIMIZER_STEP, STATE_STEP)
"""Which optimizers count before they update anything. `mint.optim.SGD` counts `step_t` after, `nn.LARS` too."""
OF_BATCH_NORM = ("moving_mean", "moving_variance")


class Parameters:
    """Parameters by the name that a file has them under, and memory for one copy of their values."""

    def __init__(self, named: dict[str, Parameter]) -> None:
        self.named = named
        self._buffers: dict[str, Any] = {}

    def get_parameters(self) -> Iterator[Parameter]:
        """As `nn.Cell.get_parameters`."""
        return iter(self.named.values())

    @property
    def nbytes(self) -> int:
        """The bytes of all values."""
        return sum(item.nbytes for item in self.named.values())

    def check_format(self, form: str) -> None:
        """Raise `UsageError` where files of a format cannot hold a parameter."""
        for name, item in self.named.items():
            if form == "safetensors" and not can_hold(_type_of(item)):
                raise UsageError(
                    f"a .safetensors file cannot hold {name}, which is {_type_of(item)}", 'use format="ckpt"'
                )

    def make_room(self) -> None:
        """Allocate and touch the memory for a copy, so that the first copy is as quick as the others."""
        for name, item in self.named.items():
            self._buffers[name] = np.full(item.nbytes, 0, np.uint8)

    def copied(self) -> Values:
        """The values as they are now. The memory is that of the copy before: that one must not be in use any more."""
        copies = []
        for name, item in self.named.items():
            values = item.asnumpy()
            room = self._buffers.get(name)
            if room is None or room.nbytes != values.nbytes:
                room = self._buffers[name] = np.empty(values.nbytes, np.uint8)
            copy = room.view(values.dtype).reshape(values.shape)
            np.copyto(copy, values)
            copies.append((name, _type_of(item), copy))
        return Values(copies)

    def uncopied(self) -> Values:
        """The values, each read when it is written: no step may change them before that."""
        return Values([(name, _type_of(item), item) for name, item in self.named.items()])

    def write(self, path: str) -> None:
        """Write the values to a new file, a `.safetensors` or `.ckpt` by its name: for `launch.save`."""
        self.copied().write(path)


class TrainState(Parameters):
    """Every parameter of networks and optimizers, by the name that a file has it under.

    One of a kind has MindSpore's own names. Of several, given as a list or by names, each name begins with that of its
    network or optimizer. Learning rates that are parameters of `param_groups` belong to it (`has_rates`). Raises
    `UsageError` if one is no network or optimizer, or if two parameters have one name.
    """

    def __init__(self, network: Any, optimizer: Any) -> None:
        super().__init__({})
        self.networks, self.optimizers = _each("network", network), _each("optimizer", optimizer)
        self._known: set[int] = set()
        for prefix, each in self.networks.items():
            self._add(prefix, each.get_parameters())
        for prefix, each in self.optimizers.items():
            self._add(prefix, (*each.get_parameters(), *_of_groups(each)))
        for item in self.named.values():
            if item.has_init:
                item.init_data()
        self.has_rates = any(True for each in self.optimizers.values() for _ in _of_groups(each))

    def counters(self) -> tuple[int | None, ...]:
        """The updates that each optimizer has begun; None for one that does not tell."""
        return tuple(_counter(each) for each in self.optimizers.values())

    def other_than_updated(self) -> tuple[bool, bool]:
        """Whether the networks have parameters that no optimizer updates: of batch normalization, and other ones."""
        updated = {id(item) for each in self.optimizers.values() for item in each.parameters}
        names = [
            item.name for each in self.networks.values() for item in each.get_parameters() if id(item) not in updated
        ]
        of_norms = [name for name in names if name.endswith(OF_BATCH_NORM)]
        return bool(of_norms), len(of_norms) < len(names)

    def _add(self, prefix: str, found: Iterable[Parameter]) -> None:
        for item in found:
            if id(item) in self._known or 0 in item.shape:  # no values: a .ckpt lacks it
                continue
            whole = f"{prefix}{item.name}"
            if whole in self.named:
                raise UsageError(
                    f"two parameters are named {whole}", 'give networks and optimizers by name: {"generator": …, …}'
                )
            self.named[whole] = item
            self._known.add(id(item))


class Values:
    """Values to be written, by name and type: arrays, or parameters whose values are read when they are written."""

    def __init__(self, values: list[tuple[str, str, Any]]) -> None:
        self._values = values

    def with_numbers(self, numbers: Mapping[str, Any]) -> Values:
        """These and numbers, as the tensors that `mindspore.save_checkpoint` makes of them in `append_dict`."""
        tensors = [(name, mindspore.Tensor(each, _type_of_number(each))) for name, each in numbers.items()]
        return Values([*self._values, *((name, str(each.dtype), each.asnumpy()) for name, each in tensors)])

    def write(self, path: str) -> str | None:
        """Write them to a new file; returns its digest, if it is known. Raises `OSError`."""
        if path.endswith(".safetensors"):
            tensors = [_tensor(*each) for each in self._values]
            return write_safetensors(path, tensors, {"format": "ms", "remove_redundancy": "False"})
        values = [
            {"name": name, "data": value if isinstance(value, Parameter) else mindspore.Tensor(value)}
            for name, _, value in self._values
        ]
        mindspore.save_checkpoint(values, path, format="ckpt")
        return None


def _type_of_number(number: float) -> Any:
    return next(each for kind, each in _OF_NUMBERS.items() if isinstance(number, kind))


def _tensor(name: str, kind: str, value: Any) -> Tensor:
    def data() -> memoryview:
        array: Any = value.asnumpy() if isinstance(value, mindspore.Tensor) else value
        rows: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return memoryview(rows)

    return Tensor(name, kind, tuple(value.shape), value.nbytes, data)


def tensors_of(network: Any, appended: Mapping[str, Any]) -> list[Tensor] | None:
    """What MindSpore would write of a network and of appended values; None where it is more than plain values.

    Numbers become what `mindspore.save_checkpoint` makes of them (MindSpore: `train/serialization.py`).
    """
    if mindspore.get_auto_parallel_context("parallel_mode") not in UNCUT:
        return None
    values: dict[str, Any] = {}
    for item in network.get_parameters():
        if is_special(item):
            return None
        values[item.name] = item
    for name, value in appended.items():
        kind = _OF_NUMBERS.get(type(value))
        if kind is None and not isinstance(value, mindspore.Tensor):
            return None
        values[name] = value if kind is None else mindspore.Tensor(value, kind)
    if not all(can_hold(str(value.dtype)) for value in values.values()):
        return None
    return [_tensor(name, str(value.dtype), value) for name, value in values.items()]


def is_special(parameter: Any) -> bool:
    """Whether MindSpore saves and loads it in a way of its own."""
    return parameter.has_init or parameter.param_info.is_pipeline_shared_param or isinstance(parameter, MapParameter)


def named(network: Any) -> dict[str, Any]:
    """The parameters of a train network, or of a state, by name."""
    return network.named if isinstance(network, Parameters) else {item.name: item for item in network.get_parameters()}


def _each(what: str, given: Any) -> dict[str, Any]:
    """Networks or optimizers by how their names begin; one alone has no such beginning."""
    if isinstance(given, (list, tuple)) and len(given) == 1:
        given = given[0]
    if isinstance(given, (list, tuple)):
        given = {str(place): each for place, each in enumerate(given)}
    several = {f"{name}.": each for name, each in given.items()} if isinstance(given, Mapping) else {"": given}
    for each in several.values():
        if not isinstance(each, nn.Cell) or (what == "optimizer") != hasattr(each, "parameters"):
            raise UsageError(
                f"this is no {what}: {type(each).__name__}",
                "give network, optimizer and dataset in this order; of several a list, or a dict by names",
            )
    return several


def _of_groups(optimizer: Any) -> Iterator[Parameter]:
    """Learning rates that a scheduler sets: they are no parameters of the cell (`mindspore.experimental.optim`)."""
    groups = getattr(optimizer, "param_groups", ())
    return (value for group in groups for value in group.values() if isinstance(value, Parameter))


def _counter(optimizer: Any) -> int | None:
    own = {} if isinstance(optimizer, nn.LARS) else {item.name: item for item in optimizer.get_parameters()}
    found = next((own[name] for name in _COUNTERS if name in own), None)
    return None if found is None else int(found.asnumpy().reshape(-1)[0])


def _type_of(item: Parameter) -> str:
    return str(item.dtype)
