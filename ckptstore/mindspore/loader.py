"""Reads a plain checkpoint without MindSpore: into the memory of a train network, or into memory of its own."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np

from ckptstore.disk.reading import read_into, read_through
from ckptstore.errors import UnreadableError
from ckptstore.formats.ckpt import parse_ckpt
from ckptstore.formats.header import STRING, BytesOf, bytes_of, size_of
from ckptstore.formats.safetensors import SafetensorsHeader, parse_safetensors
from ckptstore.mindspore.state import UNCUT, is_special

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from ckptstore.core.model import Checkpoint
    from ckptstore.formats.header import Entry, Header

_PARSERS: Mapping[str, Callable[[BytesOf, Path], Header]] = {"ckpt": parse_ckpt, "safetensors": parse_safetensors}
_APART = 64  # bytes: tensors begin at a multiple
OTHER_BYTES = "it has other bytes than those recorded"
_MEANWHILE = "it changed while it was read"


class ChangedError(Exception):
    """A file has other bytes than it should have; the text says so of it."""


class PlainFile:
    """An open checkpoint of plain tensors and strings, proved by its digest: `entries` by name. Close it by `with`.

    Raises `ChangedError` where its digest is not the recorded one, `UnreadableError` for what only MindSpore may read,
    or nobody, and `OSError`.
    """

    def __init__(self, file: Checkpoint, parse: Callable[[BytesOf, Path], Header]) -> None:
        self._path, self._parse = Path(file.path), parse
        self._file = self._path.open("rb", buffering=0)
        try:
            content = bytes_of(self._file)
            self._size = content.end
            self._digest = self._proved(file.digest)  # before the header: to jump through a file is slow on many disks
            self._header = parse(content, self._path)
            self.entries = _by_name(self._header.entries, self._path)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def metadata(self) -> Mapping[str, str]:
        """What a `.safetensors` file holds beside tensors."""
        return self._header.metadata if isinstance(self._header, SafetensorsHeader) else {}

    def _proved(self, recorded: str | None) -> str:
        try:
            digest = read_through(self._file.fileno(), self._size)
        except EOFError as error:
            raise ChangedError(_MEANWHILE) from error
        if digest != (recorded or digest):
            raise ChangedError(OTHER_BYTES)
        return digest

    def read(self, memory: Mapping[str, memoryview]) -> dict[str, Any]:
        """Read it again: entries that have `memory` into that; the others, as `mindspore.load_checkpoint` gives them.

        Raises `ChangedError` where it is not what was proved, and `OSError`: EFAULT where memory cannot be written to.
        """
        others = [entry for name, entry in self.entries.items() if name not in memory]
        arrays = _new_arrays(others)
        views: list[memoryview] = []
        between: dict[int, bytearray] = {}
        end = 0
        for offset, view in self._in_order({**{name: _bytes_of(each) for name, each in arrays.items()}, **memory}):
            between[end] = bytearray(offset - end)
            views += memoryview(between[end]), view
            end = offset + view.nbytes
        try:
            digest = read_into(self._file.fileno(), views)
            header = self._parse(_sparse(between, self._size), self._path)  # of the bytes whose digest that is
        except (EOFError, UnreadableError) as error:
            raise ChangedError(_MEANWHILE) from error
        if digest != self._digest or header.entries != self._header.entries:
            raise ChangedError(_MEANWHILE)
        self._header = header
        return {entry.name: _value(entry, arrays[entry.name]) for entry in others}

    def _in_order(self, memory: Mapping[str, memoryview]) -> list[tuple[int, memoryview]]:
        """Where in the file each slice begins, and the memory for it; at last where the file ends."""
        placed = [(self._size, memoryview(b""))]
        for name, entry in self.entries.items():
            begin = 0
            for offset, size in entry.slices:
                placed.append((offset, memory[name][begin : begin + size]))
                begin += size
        return sorted(placed, key=itemgetter(0))


def plain_file(file: Checkpoint) -> PlainFile | None:
    """A checkpoint to be read without MindSpore; None for any other: MindSpore reads it, or says why not.

    Raises `ChangedError` and `OSError`.
    """
    parse = _PARSERS.get(file.format)
    try:
        return PlainFile(file, parse) if parse is not None else None
    except UnreadableError:
        return None


def _by_name(entries: Sequence[Entry], path: Path) -> dict[str, Entry]:
    found = {entry.name: entry for entry in entries}
    if len(found) != len(entries) or not all(map(_is_known, entries)):
        raise UnreadableError(f"{path} holds more than plain tensors and strings")
    return found


def _is_known(entry: Entry) -> bool:
    size = entry.nbytes - entry.nbytes % 4 if entry.dtype == STRING else size_of(entry.dtype, entry.shape)
    return entry.nbytes == size and entry.nbytes > 0


def _sparse(parts: Mapping[int, bytearray], size: int) -> BytesOf:
    """The bytes of a file of which some parts are known, by where they begin, in order; all else is zero."""
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


def memory_of(parameters: Mapping[str, Any], entries: Iterable[Entry]) -> dict[str, memoryview]:
    """The memory in which a network has parameters, by name; none unless all of these entries can be read into there.

    On CPU `asnumpy` shows a parameter's own memory.
    """
    if mindspore.get_context("device_target") != "CPU":
        return {}
    if mindspore.get_auto_parallel_context("parallel_mode") not in UNCUT:
        return {}
    found: dict[str, memoryview] = {}
    for entry in entries:
        item = parameters[entry.name]
        if (str(item.dtype), tuple(item.shape)) != (entry.dtype, entry.shape) or is_special(item):
            return {}
        array = item.asnumpy()
        if not array.flags.c_contiguous or array.ctypes.data != getattr(item, "data_ptr", int)():
            return {}
        found[entry.name] = _bytes_of(array)
    return found if are_apart(parameters[name] for name in found) else {}


def are_apart(parameters: Iterable[Any]) -> bool:
    """Whether no two parameters have the same memory, as MindSpore's loading may have given them (mindspore.md §4)."""
    places = sorted((item.data_ptr(), item.nbytes) for item in parameters if hasattr(item, "data_ptr"))
    return all(begin + size <= after for (begin, size), (after, _) in pairwise(places))


def _bytes_of(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _new_arrays(entries: Iterable[Entry]) -> dict[str, Any]:
    """Arrays for entries, by name; of bytes, for a string.

    All are in one piece of memory: to find and clear its pages is most of what a load takes, and large ones take less.
    """
    begins: dict[Entry, int] = {}
    end = 0
    for entry in entries:
        begins[entry] = end
        end = -(-(end + entry.nbytes) // _APART) * _APART
    if not begins:
        return {}
    memory = mmap.mmap(-1, end)
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return {
        entry.name: np.frombuffer(memory, np.uint8, entry.nbytes, begin).view(kind).reshape(shape)
        for entry, begin in begins.items()
        for kind, shape in [(np.uint8, -1) if entry.dtype == STRING else (_numpy_type(entry.dtype), entry.shape)]
    }


def _numpy_type(dtype: str) -> Any:
    if dtype == "BFloat16":  # NumPy has none: MindSpore brings it
        return mindspore.Tensor(0, mindspore.bfloat16).asnumpy().dtype
    return np.dtype(dtype.lower())


def _value(entry: Entry, array: Any) -> Any:
    if entry.dtype == STRING:
        return str(array.view(f"U{entry.nbytes // 4}")[0])
    return mindspore.Parameter(mindspore.from_numpy(array), entry.name)
