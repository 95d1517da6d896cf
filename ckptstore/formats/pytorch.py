"""Reads which numbers stand beside the tensors in a file of PyTorch, without running what is in it.

`torch.save` pickles an object: into `data.pkl` of a zip, or, before PyTorch 1.6 (and with
`_use_new_zipfile_serialization=False`), as the fourth pickle of a plain file. The opcodes alone are looked at: nothing
is imported, called or made but dictionaries of numbers. PyTorch: `torch/serialization.py` (`_save`, `_legacy_save`).
"""

from __future__ import annotations

import pickletools
import struct
import zipfile
import zlib
from io import BytesIO, FileIO
from typing import TYPE_CHECKING, Any

from ckptstore.core.limits import HIGHEST
from ckptstore.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

_MOST_BYTES = 4 << 20
"""Of the pickle, and of the zip's directory: a state of ten thousand tensors has less than 2 MB of either."""

_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY = b"\x80\x02\x8a\x0a"  # protocol 2, and a number of ten bytes
_ZIPPED = b"PK\x03\x04"
_NUMBERS = ("global_step", "step", "iteration", "epoch")


def read_numbers(path: str) -> dict[str, int]:
    """The whole numbers under these names in the dictionary that a file holds: epoch, step, global_step, iteration.

    Raises `UnreadableError` where that cannot be told, `OSError` where the file cannot be opened.
    """
    with _Bounded(path) as file:
        try:
            if file.read(len(_LEGACY)) == _LEGACY:
                file.seek(0)
                found = _legacy(BytesIO(file.read(_MOST_BYTES)))
            else:
                found = _zipped(file)
        except (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, ValueError, OSError) as error:
            raise UnreadableError(f"{path} is no file of PyTorch that can be looked into: {error}") from None
    if not isinstance(found, dict):
        return {}
    told = {name: found[name] for name in _NUMBERS if type(found.get(name)) is int}
    return {name: number for name, number in told.items() if 0 <= number <= HIGHEST}


def ends_too_early(path: str) -> bool:
    """Whether a file is empty, or begins as those of PyTorch since 1.6 do and has not their end.

    Raises `OSError` where it cannot be opened.
    """
    with _Bounded(path) as file:
        head = file.read(len(_ZIPPED))
        return not head or (head == _ZIPPED and not zipfile.is_zipfile(file))


class _Bounded(FileIO):
    """A file of which no more is read at a time than a directory of a zip needs: another one may tell of gigabytes."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes of it would be needed")
        return super().read(_MOST_BYTES if size is None or size < 0 else size)


def _zipped(file: IO[bytes]) -> Any:
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
        if len(names) != 1:
            raise ValueError("it has no data.pkl")
        with archive.open(names[0]) as pickled:
            return _value(BytesIO(pickled.read(_MOST_BYTES)))


def _legacy(file: IO[bytes]) -> Any:
    """Magic number, protocol, facts of the machine, and the object."""
    if _value(file) != _MAGIC:
        raise ValueError("it does not begin as one")
    _value(file)
    _value(file)
    return _value(file)


def _value(file: IO[bytes]) -> Any:
    """What a pickle stands for: a whole number, a text, or a dictionary of what it has under texts; None for all else.

    Raises `ValueError` for what is no pickle.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[object, Any] = {}
    for opcode, argument, _ in pickletools.genops(file):
        name = opcode.name
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if name == "MEMOIZE" else argument] = _last(stack)
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo.get(argument))
        elif name in ("SETITEM", "SETITEMS"):
            begin = len(stack) - 2 if name == "SETITEM" else _mark(marks)
            pairs = stack[begin:]
            del stack[begin:]
            if isinstance(_last(stack), dict):
                stack[-1].update(_texts(pairs))
        elif name == "DICT":
            begin = _mark(marks)
            stack[begin:] = [_texts(stack[begin:])]
        elif name == "STOP":
            return _last(stack)
        else:
            _take(stack, marks, opcode)
            is_number = name in ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")
            is_known = is_number or (isinstance(argument, str) and "UNICODE" in name)
            made = {} if name == "EMPTY_DICT" else argument if is_known else None
            stack += [made] * len(opcode.stack_after)
    raise ValueError("its pickle has no end")


def _texts(pairs: list[Any]) -> Mapping[str, Any]:
    return {key: value for key, value in zip(pairs[::2], pairs[1::2], strict=False) if isinstance(key, str)}


def _take(stack: list[Any], marks: list[int], opcode: pickletools.OpcodeInfo) -> None:
    """Take from the stack what an opcode takes."""
    takes = list(opcode.stack_before)
    if pickletools.markobject in takes:
        del stack[_mark(marks) :]
        takes = takes[: takes.index(pickletools.markobject)]
    if len(takes) > len(stack):
        raise ValueError("its pickle takes what is not there")
    del stack[len(stack) - len(takes) :]


def _mark(marks: list[int]) -> int:
    if not marks:
        raise ValueError("its pickle has no mark")
    return marks.pop()


def _last(stack: list[Any]) -> Any:
    if not stack:
        raise ValueError("its pickle holds nothing")
    return stack[-1]
