"""Tells a file of PyTorch that is cut, without reading what it holds.

`torch.save` writes a zip since PyTorch 1.6, and before (and with `_use_new_zipfile_serialization=False`) a plain file,
whose end nothing marks.
"""

from __future__ import annotations

import zipfile

from ckptstore.outside import Path

_ZIPPED = b"PK\x03\x04"


def ends_too_early(path: str) -> bool:
    """Whether a file is empty, or begins as those of PyTorch since 1.6 do and has not their end.

    Raises `OSError` where it cannot be opened.
    """
    with Path(path).open("rb") as file:
        head = file.read(len(_ZIPPED))
        return not head or (head == _ZIPPED and not zipfile.is_zipfile(file))
