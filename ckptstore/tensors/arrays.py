"""Tensors of a file as NumPy arrays. ckptstore does not install NumPy: this module is imported for the first array."""

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
TYPES = {name: name.lower() for name in ("Bool", *WHOLE, "Float16", "Float32", "Float64", "Complex64", "Complex128")}
TYPES |= {"BFloat16": "uint16", "Int4": "int8"}  # NumPy lacks these types: their bits. Two Int4 are in a byte
_EIGHT_BITS = "F8_"  # the names of 8-bit floats in a .safetensors begin with it


def array_of(file: TensorFile, entry: Entry) -> Array:
    """Read a tensor into new memory. Raises `UsageError` for a type that NumPy lacks, and as `TensorFile.opened`."""
    dtype = "uint8" if entry.dtype.startswith(_EIGHT_BITS) else TYPES.get(entry.dtype)
    if dtype is None or entry.nbytes != math.prod(entry.shape) * np.dtype(dtype).itemsize:
        what = f"{entry.name} of {file.path} is {entry.dtype} {entry.shape} in {entry.nbytes} bytes"
        raise UsageError(f"{what}, which NumPy has not", "use MindSpore")
    data = np.empty(entry.nbytes, np.uint8)
    with file.opened() as read:
        read(entry, 0, data.data)
    return data.view(dtype).reshape(entry.shape)
