"""Compares two tensors piece by piece: L2 norms and the largest difference, of elements that are finite on both sides.

It needs NumPy, which ckptstore does not install: this module is imported only to compare.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptstore.tensors.arrays import TYPES, WHOLE  # isort: skip -- it raises `UsageError` without NumPy

import numpy as np

from ckptstore.outside import mmap

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[Any]
    """Of 32 bits or of 64."""
    Read = Callable[[int, memoryview], None]
    """Fills writable memory with the bytes of a tensor, from an offset in the tensor on."""

_BLOCK = 1 << 20  # bytes compared at a time: with fewer, calls take longer than the work; more do not fit the caches
_SUMMED = 1 << 16  # elements summed at a time: with more, a sum in 32 bits loses digits
_SAFE = {4: (1e-20, 1e30), 8: (1e-280, 1e300)}  # by bytes of a number: a sum of squares between these lost no digits

NUMBERS = {"Bool", *WHOLE, "Float16", "BFloat16", "Float32", "Float64"}
"""The types that are compared as numbers, by MindSpore's names; of other types only bytes are compared."""
_IN_64_BITS = ("Int32", "UInt32", "Int64", "UInt64", "Float64")
_LONG = ("Int64", "UInt64")


class Apart(NamedTuple):
    """The difference of two tensors, or of pieces of them, and their norms."""

    same_bytes: bool = True
    l2: float = 0.0  # of the difference
    max_abs: float = 0.0  # its largest element
    norms: tuple[float, float] = (0.0, 0.0)  # L2 of the first and of the second
    nan: tuple[int, int] = (0, 0)  # how many elements of each
    inf: tuple[int, int] = (0, 0)

    @property
    def relative(self) -> float:
        """The L2 norm of the difference, divided by the larger norm of the two tensors: from 0 to 2."""
        largest = max(self.norms)
        return self.l2 / largest if largest else 0.0

    def with_piece(self, more: Apart) -> Apart:
        """The values of two pieces together. `hypot` adds the squares of very large or small numbers without loss."""
        return Apart(
            self.same_bytes and more.same_bytes,
            math.hypot(self.l2, more.l2),
            max(self.max_abs, more.max_abs),
            (math.hypot(self.norms[0], more.norms[0]), math.hypot(self.norms[1], more.norms[1])),
            (self.nan[0] + more.nan[0], self.nan[1] + more.nan[1]),
            (self.inf[0] + more.inf[0], self.inf[1] + more.inf[1]),
        )


class Room:
    """Memory to compare a block of two tensors. It is allocated once, since new pages cost the most time."""

    def __init__(self) -> None:
        memory = np.frombuffer(mmap.mmap(-1, 26 * _BLOCK), np.uint8)  # page-aligned: NumPy's own is slower
        self._one, self._other = memory[: 2 * _BLOCK].reshape(2, -1)
        self._scratch = memory[2 * _BLOCK :].reshape(3, -1)  # a byte may become a float of 8 bytes

    def compared(self, dtype: str, piece: range, read_one: Read, read_other: Read) -> Apart:
        """Compare a piece of two tensors of one type. `piece` is a range of bytes, with whole elements."""
        found = Apart()
        with np.errstate(all="ignore"):  # elements that are not finite are counted
            for begin in piece[::_BLOCK]:
                size = min(_BLOCK, piece.stop - begin)
                one, other = self._one[:size], self._other[:size]
                read_one(begin, one.data)
                read_other(begin, other.data)
                found = found.with_piece(self._block(dtype, one, other))
        return found

    def _block(self, dtype: str, one: Bytes, other: Bytes) -> Apart:
        if dtype not in NUMBERS:
            return Apart(same_bytes=bool(np.array_equal(one, other)))
        a, b = (_floats(dtype, data, room) for data, room in zip((one, other), self._scratch, strict=False))
        if dtype in _LONG:
            apart = _between(one.view(TYPES[dtype]), other.view(TYPES[dtype]))
        else:
            apart = np.subtract(a, b, out=self._scratch[2].view(a.dtype)[: len(a)])
        largest = max(float(np.maximum.reduce(apart)), -float(np.minimum.reduce(apart)))
        if not math.isfinite(largest):
            return _of_finite(one, other, a, b)
        return Apart(
            not largest and bool(np.array_equal(one, other)),  # 0.0 equals -0.0, with other bytes
            _l2(apart) if largest else 0.0,
            largest,
            (_l2(a), _l2(b)),
        )


def _of_finite(one: Bytes, other: Bytes, a: Floats, b: Floats) -> Apart:
    """Compare a block with elements that are not finite, or with differences that its type cannot hold."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    apart = a[finite] - b[finite]
    return Apart(
        bool(np.array_equal(one, other)),
        _l2(apart),
        float(np.abs(apart).max(initial=0.0)),
        (_l2(a[finite]), _l2(b[finite])),
        (int(np.isnan(a).sum()), int(np.isnan(b).sum())),
        (int(np.isinf(a).sum()), int(np.isinf(b).sum())),
    )


def _floats(dtype: str, data: Bytes, room: Bytes) -> Floats:
    """The elements as floats: in place, or converted into `room`."""
    values = data.view(TYPES[dtype])
    if dtype in ("Float32", "Float64"):
        return values
    if dtype == "BFloat16":  # the upper half of a Float32
        wide = room.view(np.uint32)[: len(values)]
        np.copyto(wide, values)
        wide <<= 16
        return wide.view(np.float32)
    floats = room.view(np.float64 if dtype in _IN_64_BITS else np.float32)[: len(values)]
    np.copyto(floats, values)
    return floats


def _between(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """The distances of 64-bit whole numbers, as floats. A float cannot hold the numbers: they are subtracted first."""
    up = a.view(np.uint64) - b.view(np.uint64)
    return np.where(a > b, up, 0 - up).astype(np.float64)


def _l2(values: Floats) -> float:
    """The L2 norm of finite numbers."""
    parts = (values[begin : begin + _SUMMED] for begin in range(0, len(values), _SUMMED))
    squares = sum(float(np.dot(part, part)) for part in parts)
    least, most = _SAFE[values.itemsize]
    if least < squares < most:
        return math.sqrt(squares)
    largest = float(np.abs(values).max(initial=0.0))
    if largest in (0.0, math.inf):
        return largest
    return largest * float(np.linalg.norm(values.astype(np.float64) / largest))
