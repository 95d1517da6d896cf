"""The entries of a checkpoint of any format, and the rules that tell which of them are appended values."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, ClassVar, NamedTuple

from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Scalar = bool | int | float | str

STRING = "str"
OPTIMIZER_STEP = "global_step"
# The counter of MindSpore's `experimental.optim.Adam` and `AdamW`: an Int32 scalar. The counter of `mint.optim` is a
# Float32, and is not used: it begins at 0 or at -1, and the file does not tell at which.
STATE_STEP = "state_step"
MOST_DIMS = 64

# MindSpore: `train.serialization.tensor_to_ms_type`. The `struct` code of a scalar of each type gives its size too.
_CODES = {"Bool": "<?", "Int8": "<b", "UInt8": "<B", "Int16": "<h", "UInt16": "<H", "Int32": "<i", "UInt32": "<I"}
_CODES |= {"Int64": "<q", "UInt64": "<Q", "Float16": "<e", "Float32": "<f", "Float64": "<d"}
_SIZES = {"BFloat16": 2, **{dtype: struct.calcsize(code) for dtype, code in _CODES.items()}}
_SCALARS = frozenset(_SIZES)
_SIZES |= {"Complex64": 8, "Complex128": 16}
_LONGEST_STRING = 4096  # bytes in the file, four a character

# `CheckpointConfig(append_info=…)`, `OnRequestExit` and the TTP handler append these first, then the user's own values.
_MARKERS = frozenset({"__exception_save__", "epoch_num", "step_num", "cur_rank", "batch_num"})
_ALSO_APPENDED = frozenset({"loss_scale"})
# The types that a Python bool, int and float get (MindSpore: `Tensor(value)` in `train.serialization.save_checkpoint`).
_FROM_PYTHON = ("Bool", "Int64", "Float32")


class BytesOf(NamedTuple):
    """The bytes of a file. `read(offset, count)` returns fewer bytes at the end of the file; `end` is its size."""

    read: Callable[[int, int], bytes]
    end: int


def bytes_of(file: BinaryIO) -> BytesOf:
    """The bytes of an open file: each call of `read` reads the file."""
    descriptor = file.fileno()
    return BytesOf(lambda offset, count: os.pread(descriptor, count, offset), os.fstat(descriptor).st_size)


class Entry(NamedTuple):
    """One parameter or appended entry."""

    name: str
    dtype: str  # MindSpore's name for it
    shape: tuple[int, ...]
    offset: int  # in the file
    nbytes: int  # of all slices
    later: tuple[tuple[int, int], ...] = ()  # the slices after the first one: offset and size

    @property
    def slices(self) -> tuple[tuple[int, int], ...]:
        """Where its bytes are: offset and size of each slice."""
        return (self.offset, self.nbytes - sum(size for _, size in self.later)), *self.later

    @property
    def is_scalar(self) -> bool:
        """Whether it is one value, or a string."""
        return self.dtype == STRING or (self.shape == () and self.dtype in _SCALARS)


@dataclass(frozen=True)
class Header:
    """The entries of a checkpoint file. A cut file has no header."""

    format: ClassVar[str]

    entries: tuple[Entry, ...]
    optimizer_step: int | None  # the optimizer's counter of updates applied; None: absent
    info: Mapping[str, Scalar]  # the appended values by name
    complete: bool | None  # True: proved to be whole; None: nothing in the file marks its end
    appended: frozenset[int]  # the indexes of the appended entries

    @property
    def parameters(self) -> tuple[Entry, ...]:
        """The entries that are not appended values."""
        return tuple(entry for index, entry in enumerate(self.entries) if index not in self.appended)


def size_of(dtype: str, shape: Iterable[int]) -> int | None:
    """The bytes of a tensor; None for a type whose size is not known."""
    size = _SIZES.get(dtype)
    return None if size is None else math.prod(shape) * size


def value_of(entry: Entry, read: Callable[[int, int], bytes]) -> Scalar | None:
    """The value of a scalar or of a string of up to 1,024 characters; None for anything else."""
    if not entry.is_scalar or entry.nbytes > _LONGEST_STRING:
        return None
    raw = read(entry.offset, entry.nbytes)
    if len(raw) != entry.nbytes:
        return None
    if entry.dtype == STRING:  # numpy's own layout of text: UTF-32, filled up with zeros
        return raw.decode("utf-32-le", errors="replace").rstrip("\0")
    if entry.dtype == "BFloat16":  # the upper half of a Float32
        return float(struct.unpack("<f", b"\0\0" + raw)[0])
    value: Scalar = struct.unpack(_CODES[entry.dtype], raw)[0]
    return value


def appended_last(entries: Sequence[Entry]) -> frozenset[int]:
    """The indexes of the appended values of a `.ckpt`, which come last, except an appended `global_step`.

    They begin with the first string, or with the first name that MindSpore appends itself. Without one of these, they
    are the last scalars of the types that Python's values become, except those of a layer. (A network may end in other
    scalars too: those of `DynamicLossScaleUpdateCell` are Int32.) `save_checkpoint` keeps entries by name: an appended
    `global_step`, which has no shape, takes the place of the optimizer's.
    """
    marks = (entry.dtype == STRING or (entry.name in _MARKERS and entry.is_scalar) for entry in entries)
    begin = next((index for index, is_mark in enumerate(marks) if is_mark), None)
    if begin is None:
        begin = len(entries)
        while begin and may_be_appended(entries[begin - 1]):
            begin -= 1
    return frozenset(
        index
        for index, entry in enumerate(entries)
        if entry.is_scalar and (index >= begin or entry.name == OPTIMIZER_STEP)
    )


def may_be_appended(entry: Entry) -> bool:
    """Whether a scalar has a type that Python's values become, and is not of a layer: a "." in its name tells that."""
    return entry.shape == () and entry.dtype in _FROM_PYTHON and "." not in entry.name


def appended_anywhere(entries: Sequence[Entry]) -> frozenset[int]:
    """The indexes of the appended values in a file with sorted entries: MindSpore's own, whole numbers and flags.

    A user's Float32 cannot be told from a `learning_rate`, so it stays a parameter. So do scalars of a layer, as the
    `num_batches_tracked` of `mint.nn.BatchNorm2d`.
    """
    return frozenset(
        index
        for index, entry in enumerate(entries)
        if (may_be_appended(entry) and entry.dtype != "Float32")
        or (entry.is_scalar and (entry.name in _MARKERS or entry.name in _ALSO_APPENDED))
    )


def certainly_appended(found: Header) -> frozenset[str]:
    """The names of appended values that cannot be scalars of the network: by their names, or by their place."""
    appended = [found.entries[index] for index in found.appended]
    if found.format == "ckpt" and any(entry.dtype == STRING or entry.name in _MARKERS for entry in appended):
        return frozenset(entry.name for entry in appended)
    known = _MARKERS | _ALSO_APPENDED | {OPTIMIZER_STEP}
    return frozenset(entry.name for entry in appended if entry.dtype == STRING or entry.name in known)


def info_of(entries: Sequence[Entry], appended: Iterable[int], read: Callable[[int, int], bytes]) -> dict[str, Scalar]:
    """The appended values by name. If a name occurs twice, the last value counts, as for `load_checkpoint`."""
    values = {entries[index].name: value_of(entries[index], read) for index in sorted(appended)}
    return {name: value for name, value in values.items() if value is not None}


def counter_of(entries: Iterable[Entry]) -> Entry | None:
    """The entry that counts the optimizer's updates; None if there is none."""
    found = {entry.name: entry for entry in entries if entry.name in (OPTIMIZER_STEP, STATE_STEP)}
    other = found.get(STATE_STEP)
    return found.get(OPTIMIZER_STEP) or (other if other and other.dtype == "Int32" else None)


def optimizer_step_of(entries: Iterable[Entry], read: Callable[[int, int], bytes]) -> int | None:
    """The value of the optimizer's counter; None if there is none, or it is no count.

    It is an Int32, of shape (1,) for `global_step`; or an Int64 without a shape, if an appended one took its place.
    """
    entry = counter_of(entries)
    if entry is None or entry.dtype not in ("Int32", "Int64") or entry.nbytes != _SIZES[entry.dtype]:
        return None
    number = value_of(entry._replace(shape=()), read)
    return number if isinstance(number, int) and number >= 0 else None
