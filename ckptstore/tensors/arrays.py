"""Tensors of a file as NumPy arrays, which ckptstore does not install: this module is imported with the first array."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from ckptstore.errors import UsageError

try:
    import numpy as np
except ModuleNotFoundError:
    raise UsageError("tensors are read with NumPy, which is not installed", "pip install numpy") from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptstore.formats.header import Entry
    from ckptstore.formats.tensor_file import TensorFile

Array: TypeAlias = "NDArray[Any]"

WHOLE = ("Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64")
TYPES = {name: name.lower() for name in ("Bool", *WHOLE, "Float16", "Float32", "Float64", "Complex64")}
TYPES |= {"BFloat16": "uint16", "Int4": "int8"}  # the bits of what NumPy has not; Int4 lies two in a byte
_EIGHT_BITS = "F8_"  # how a .safetensors names its floats of 8 bits


def array_of(file: TensorFile, entry: Entry) -> Array:
    """A tensor of a file in memory of its own. Raises `UsageError` for a type that NumPy has not, and as `opened`."""
    dtype = "uint8" if entry.dtype.startswith(_EIGHT_BITS) else TYPES.get(entry.dtype)
    if dtype is None or entry.nbytes != math.prod(entry.shape) * np.dtype(dtype).itemsize:
        what = f"{entry.name} of {file.path} is {entry.dtype} {entry.shape} in {entry.nbytes} bytes"
        raise UsageError(f"{what}, which NumPy has not", "use MindSpore")
    data = np.empty(entry.nbytes, np.uint8)
    with file.opened() as read:
        read(entry, 0, data.data)
    return data.view(dtype).reshape(entry.shape)
