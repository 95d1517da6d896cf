"""Look into one file, without a catalog."""

from __future__ import annotations

import stat
from pathlib import Path

from ckptstore.errors import CkptstoreError, UnreadableError, UsageError
from ckptstore.formats.ckpt import is_encrypted
from ckptstore.formats.group_info import GroupInfo
from ckptstore.formats.header import Header, Scalar
from ckptstore.formats.inspect import inspect as read
from ckptstore.formats.inspect import read_checkpoint
from ckptstore.formats.safetensors import SafetensorsHeader
from ckptstore.formats.strategy import Strategy

__all__ = ["Found", "GroupInfo", "Header", "SafetensorsHeader", "Scalar", "Strategy", "inspect", "is_broken"]

Found = Header | Strategy | GroupInfo


def is_broken(path: str) -> bool:
    """Whether the bytes of a checkpoint are cut, or not those of one; one that is encrypted cannot tell."""
    try:
        with Path(path).open("rb") as file:
            if is_encrypted(file.read(4)):
                return False
        read_checkpoint(Path(path))
    except UnreadableError:
        return True
    except OSError:
        return False
    return False


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
