"""Reads a plain checkpoint without MindSpore, once: into the memory of a train network, or into memory of its own."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import mindspore
import numpy as np

from ckptstore.disk.reading import read_into
from ckptstore.errors import UnreadableError
from ckptstore.formats.ckpt import ckpt_slices, parse_ckpt
from ckptstore.formats.header import STRING, BytesOf, Entry, bytes_of, size_of
from ckptstore.formats.safetensors import parse_safetensors
from ckptstore.mindspore.state import UNCUT, is_special
from ckptstore.outside import Path, mmap

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from ckptstore.core.model import Checkpoint
    from ckptstore.formats.header import Header

_APART = 64  # bytes: tensors begin at a multiple
_CHUNK = 64 << 20  # bytes of memory that are asked for at once
_PASSED = 8 << 20  # bytes of memory for what is read and dropped: two reads of `read_into`, which take turns
OTHER_BYTES = "it has other bytes than those recorded"
CHANGED = "it changed while it was read"


class ChangedError(Exception):
    """A file has other bytes than recorded, or changed while it was read; the text says which."""


class DoesNotFitError(Exception):
    """A tensor of the file does not fit its memory; some of that memory may have been written to."""


class Place(NamedTuple):
    """The memory of a parameter, and its use."""

    dtype: str
    shape: tuple[int, ...]
    memory: memoryview


class Content(NamedTuple):
    """The entries of a file that had no memory to go to, as `mindspore.load_checkpoint` returns them."""

    names: frozenset[str]
    others: dict[str, Any]


class _Format(NamedTuple):
    parse: Callable[[BytesOf, Path], Header]
    slices: Callable[[BytesOf, Path], Iterable[Entry]]


_FORMATS: Mapping[str, _Format] = {
    "ckpt": _Format(parse_ckpt, ckpt_slices),
    "safetensors": _Format(parse_safetensors, lambda content, path: parse_safetensors(content, path).entries),
}


def read_plain(
    file: Checkpoint,
    places: Mapping[str, Place],
    wanted: Collection[str] | None,
    told: Callable[[int], None] = lambda _: None,
) -> Content | None:
    """Read a checkpoint: entries that have a place go there, by name, the others into new memory.

    Of the others only the `wanted` ones are kept, by name (None: all); the rest is read for the digest alone. `told` is
    called now and then with the number of bytes read. Returns None for a file that only MindSpore can read, or that is
    unreadable. Raises `ChangedError` if the digest is not the recorded one, `DoesNotFitError`, and `OSError`: EFAULT if
    memory cannot be written to.

    The file is read once, from beginning to end, and its digest is checked last. So after an error, or None, some of
    its bytes may be in the places.
    """
    form = _FORMATS.get(file.format)
    if form is None:
        return None
    path = Path(file.path)
    with path.open("rb", buffering=0) as opened:
        content = bytes_of(opened)
        filling = _Filling(content.end, places, wanted)
        try:
            digest = read_into(opened.fileno(), filling.views(form.slices(content, path)), told)
        except UnreadableError:
            return None
        except EOFError as error:
            raise ChangedError(CHANGED) from error
    if digest != (file.digest or digest):
        raise ChangedError(OTHER_BYTES)
    try:
        header = form.parse(_sparse(filling.between, content.end), path)  # of the bytes that have this digest
    except UnreadableError as error:
        raise ChangedError(CHANGED) from error
    if [Entry(*entry[:3], *part) for entry in header.entries for part in entry.slices] != filling.slices:
        raise ChangedError(CHANGED)
    names = frozenset(entry.name for entry in header.entries)
    if len(names) != len(header.entries):
        return None
    others = {
        entry.name: _value(entry, filling.new[entry.name]) for entry in header.entries if entry.name in filling.new
    }
    return Content(names, others)


class _Filling:
    """Maps the bytes of a file to memory: `slices` of tensors to places or `new` arrays by name, the rest `between`."""

    def __init__(self, size: int, places: Mapping[str, Place], wanted: Collection[str] | None) -> None:
        self.slices: list[Entry] = []
        self.new: dict[str, Any] = {}
        self.between: dict[int, bytearray] = {}
        self._size, self._places, self._wanted = size, places, wanted
        self._dropped, self._passed = memoryview(b""), 0
        self._filled: dict[str, int] = {}
        self._chunk, self._used = np.empty(0, np.uint8), 0

    def views(self, slices: Iterable[Entry]) -> Iterator[memoryview]:
        """Memory for all bytes, in their order. Raises `DoesNotFitError`, and `UnreadableError` for an odd tensor."""
        end = 0
        for part in slices:
            self.between[end] = bytearray(part.offset - end)
            yield memoryview(self.between[end])
            if self._wanted is None or part.name in self._wanted:
                yield self._memory_for(part)
            else:
                yield from self._memory_to_drop(part.nbytes)
            self.slices.append(part)
            end = part.offset + part.nbytes
        self.between[end] = bytearray(self._size - end)
        yield memoryview(self.between[end])

    def _memory_for(self, part: Entry) -> memoryview:
        size = part.nbytes - part.nbytes % 4 if part.dtype == STRING else size_of(part.dtype, part.shape)
        if size is None or not 0 < part.nbytes <= size <= self._size:
            raise UnreadableError("more than plain tensors and strings")
        place = self._places.get(part.name)
        if place is None:
            if part.name not in self.new:
                self.new[part.name] = self._new(part, size)
            memory = _bytes_of(self.new[part.name])
        elif (place.dtype, place.shape) == (part.dtype, part.shape):
            memory = place.memory
        else:
            raise DoesNotFitError
        begin = self._filled.get(part.name, 0)
        self._filled[part.name] = begin + part.nbytes
        if self._filled[part.name] > memory.nbytes:
            raise UnreadableError("a tensor that is there twice")
        return memory[begin : begin + part.nbytes]

    def _memory_to_drop(self, size: int) -> Iterator[memoryview]:
        """Memory for bytes to drop, used again and again."""
        if not self._dropped.nbytes:
            self._dropped = memoryview(bytearray(min(_PASSED, self._size)))
        while size > 0:
            begin = self._passed % self._dropped.nbytes
            view = self._dropped[begin : begin + size]
            self._passed += view.nbytes
            size -= view.nbytes
            yield view

    def _new(self, entry: Entry, size: int) -> Any:
        """An array for a tensor; of bytes, for a string.

        Many arrays are in one piece of memory, with large pages if possible. Allocating and clearing pages takes most
        of the time of a load, and large pages take less.
        """
        if self._used + size > len(self._chunk):
            memory = mmap.mmap(-1, max(size, min(_CHUNK, self._size)))
            with suppress(OSError):  # a kernel without large pages
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._chunk, self._used = np.frombuffer(memory, np.uint8), 0
        array = self._chunk[self._used : self._used + size]
        self._used += -(-size // _APART) * _APART
        return array if entry.dtype == STRING else array.view(_numpy_type(entry.dtype)).reshape(entry.shape)


def _sparse(parts: Mapping[int, bytearray], size: int) -> BytesOf:
    """The bytes of a file with only some known parts, by offset, in order. All other bytes are zero."""
    begins = list(parts)

    def read(offset: int, count: int) -> bytes:
        stop = min(offset + count, size)
        found = bytearray(max(0, stop - offset))
        place = max(0, bisect_right(begins, offset) - 1)
        while place < len(begins) and (begin := begins[place]) < stop:
            part = parts[begin]
            first, last = max(offset, begin), min(stop, begin + len(part))
            if first < last:
                found[first - offset : last - offset] = part[first - begin : last - begin]
            place += 1
        return bytes(found)

    return BytesOf(read, size)


def places_of(parameters: Mapping[str, Any]) -> dict[str, Place]:
    """The memory of these parameters of a network, by name; empty unless all of them can be read into it.

    On CPU `asnumpy` shows a parameter's own memory.
    """
    if mindspore.get_context("device_target") != "CPU":
        return {}
    if mindspore.get_auto_parallel_context("parallel_mode") not in UNCUT:
        return {}
    found: dict[str, Place] = {}
    for name, item in parameters.items():
        if is_special(item):
            return {}
        array = item.asnumpy()
        if not array.flags.c_contiguous or array.ctypes.data != getattr(item, "data_ptr", int)():
            return {}
        found[name] = Place(str(item.dtype), tuple(item.shape), _bytes_of(array))
    return found if are_apart(parameters.values()) else {}


def are_apart(parameters: Iterable[Any]) -> bool:
    """Whether no two parameters have the same memory, as MindSpore's loading may have given them (mindspore.md §4)."""
    places = sorted((item.data_ptr(), item.nbytes) for item in parameters if hasattr(item, "data_ptr"))
    return all(begin + size <= after for (begin, size), (after, _) in pairwise(places))


def _bytes_of(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _numpy_type(dtype: str) -> Any:
    if dtype == "BFloat16":  # NumPy has none: MindSpore brings it
        return mindspore.Tensor(0, mindspore.bfloat16).asnumpy().dtype
    return np.dtype(dtype.lower())


def _value(entry: Entry, array: Any) -> Any:
    if entry.dtype == STRING:
        return str(array.view(f"U{entry.nbytes // 4}")[0])
    return mindspore.Parameter(mindspore.from_numpy(array), entry.name)
