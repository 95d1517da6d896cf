"""Recognizes a file's format by its bytes, and reads it: a strategy file may end in `.ckpt` too (mindspore.md §2)."""

from __future__ import annotations

import stat
import zipfile
from typing import TYPE_CHECKING

from ckptstore.core.naming import PYTORCH, format_of
from ckptstore.errors import CkptstoreError, UnreadableError, UsageError, reason_of
from ckptstore.formats import ckpt, safetensors
from ckptstore.formats.ckpt import begins_with_a_value, ends_too_early, is_encrypted, read_ckpt
from ckptstore.formats.header import bytes_of
from ckptstore.formats.safetensors import read_safetensors
from ckptstore.formats.strategy import read_group_info, read_json_strategy, read_strategy
from ckptstore.formats.wire import WireReader
from ckptstore.outside import Path

if TYPE_CHECKING:
    from ckptstore.formats.header import Header
    from ckptstore.formats.strategy import GroupInfo, Strategy

_HEAD = 64  # bytes
_SAFETENSORS_HEAD = 9  # bytes: a length, and where its JSON begins
_ZIPPED = b"PK\x03\x04"


def inspect(path: Path) -> Header | Strategy | GroupInfo:
    """Read the header of a file of any MindSpore format.

    Raises `UnreadableError` if it is cut, encrypted or of no known format; `OSError` if it cannot be opened.
    """
    with path.open("rb", buffering=0) as file:
        head = file.read(_HEAD)
        if head[5:9] == b"\0\0\0{":  # eight bytes of a length below 2^40, then JSON
            return read_safetensors(path)
        if head[:1] == b"\x0a":  # field 1 with a length: the values of a checkpoint, or the groups of a group info file
            is_group_info = _begins_with_a_group(WireReader(bytes_of(file), path, ""))
            return read_group_info(path) if is_group_info else read_ckpt(path)
    if not head or is_encrypted(head):
        return read_ckpt(path)  # raises an error that says so
    if head.lstrip()[:1] == b"{":
        return read_json_strategy(path)
    if head[:1] == b"\x08":  # field 1 with a number: current_stage
        return read_strategy(path)
    if head[:1] == b"\x12":  # field 2 with a length: a group info file without groups, only the list of ranks
        return read_group_info(path)
    raise UnreadableError(f"{path} is of no known format", "it is damaged, or MindSpore did not write it")


def look_into(path: Path) -> Header | Strategy | GroupInfo:
    """Read a header as `inspect` does, with errors for users.

    Raises `UsageError` if there is no such file, `CkptstoreError` if it cannot be opened.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
            raise UsageError(f"{path} is not a file", "inspect looks into one file")
        return inspect(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"there is no file {path}", "check its name") from None
    except OSError as error:
        raise CkptstoreError(f"cannot read {path}: {reason_of(error)}", "check permissions and the disk") from None


def _begins_with_a_group(reader: WireReader) -> bool:
    """Whether a group comes first, and not a value of a checkpoint. Both are `{name = 1, message = 2}`.

    The message of a group has only field 1, `{dim = 1}`. The message of a value, a tensor, has more fields.
    """
    try:
        reader.key(reader.end)
        found = reader.fields(reader.message(reader.end), {2: _has_dims_alone})
    except UnreadableError:
        return False  # `read_ckpt` then reports where the file is cut
    return 2 in found and found[2][0]  # noqa: PLR2004


def _has_dims_alone(reader: WireReader, limit: int, wire_type: int) -> bool:
    stop = reader.message(limit, wire_type)
    while reader.position < stop:
        field, wire_type = reader.key(stop)
        if field != 1:
            reader.position = stop
            return False
        reader.skip(stop, wire_type)
    return True


def begins_as(head: bytes, form: str) -> bool:
    """Whether the first 64 bytes of a file are those of a checkpoint of a format. An empty file passes."""
    if not head:
        return True
    if form == "safetensors":
        return head[5:9] == b"\0\0\0{"
    return is_encrypted(head) or begins_with_a_value(head)


def read_checkpoint(path: Path) -> Header:
    """Read the header of a checkpoint. A name that ends in `.safetensors` tells that format, any other name `.ckpt`.

    Raises as `inspect` does.
    """
    return read_safetensors(path) if path.suffix == ".safetensors" else read_ckpt(path)


def crc_is_right(path: Path) -> bool | None:
    """Whether the CRC32 that MindSpore put into a checkpoint is that of its bytes; None if there is none.

    The name tells the format, as for `read_checkpoint`. Reads the whole file. Raises as `inspect` does.
    """
    return safetensors.crc_is_right(path) if path.suffix == ".safetensors" else ckpt.crc_is_right(path)


def read_unless_encrypted(path: Path) -> Header | None:
    """Read a header as `read_checkpoint` does; None for an encrypted file: without its key, it cannot be checked."""
    try:
        return read_checkpoint(path)
    except UnreadableError:
        if begins_encrypted(path):
            return None
        raise


def begins_encrypted(path: Path) -> bool:
    """Whether a checkpoint is one that MindSpore encrypted, by its first bytes. Raises `OSError` if it is missing."""
    with path.open("rb") as file:
        return is_encrypted(file.read(4))


def is_broken(path: str) -> bool:
    """Whether a checkpoint is cut, or has bytes of another format. Encrypted and missing files are not broken."""
    try:
        read_unless_encrypted(Path(path))
    except UnreadableError:
        return True
    except OSError:
        return False
    return False


def is_cut(path: Path) -> bool:
    """Whether a checkpoint is empty, or begins as its format does and ends too early. Its name tells the format.

    False for any other beginning, for example of an encrypted file. Raises `OSError` if the file cannot be opened.
    """
    if path.suffix == ".ckpt":
        return ends_too_early(path)
    if format_of(path.name) == PYTORCH:
        return _zip_ends_too_early(path)
    if path.suffix != ".safetensors":
        return path.stat().st_size == 0
    with path.open("rb") as file:
        head = file.read(_SAFETENSORS_HEAD)
    if len(head) == _SAFETENSORS_HEAD and not head.endswith(b"{"):
        return False
    try:
        read_safetensors(path)
    except UnreadableError:
        return True
    return False


def _zip_ends_too_early(path: Path) -> bool:
    """Whether a file of PyTorch is empty, or begins as a zip file and lacks its end.

    `torch.save` writes zip files since PyTorch 1.6. Before (or with `_use_new_zipfile_serialization=False`) it wrote a
    plain file without a mark at its end.
    """
    with path.open("rb") as file:
        head = file.read(len(_ZIPPED))
        return not head or (head == _ZIPPED and not zipfile.is_zipfile(file))
