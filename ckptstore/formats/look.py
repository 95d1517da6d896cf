"""Look into one file, without a catalog."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.formats.group_info import GroupInfo
from ckptstore.formats.header import Header, Scalar
from ckptstore.formats.inspect import inspect as read
from ckptstore.formats.safetensors import SafetensorsHeader
from ckptstore.formats.strategy import Strategy

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Found", "GroupInfo", "Header", "SafetensorsHeader", "Scalar", "Strategy", "inspect"]

Found = Header | Strategy | GroupInfo


def inspect(path: Path) -> Found:
    """Read the header of a checkpoint, strategy or group info file.

    Raises `UsageError` where there is no such file, `UnreadableError` where it is cut, encrypted or of another format,
    `CkptstoreError` where it cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise UsageError(f"{path} is not a file", "inspect looks into one file")
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"there is no file {path}", "check its name") from None
    except OSError as error:
        raise CkptstoreError(
            f"cannot read {path}: {error.strerror or error}", "check permissions and the disk"
        ) from None
