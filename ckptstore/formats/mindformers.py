"""The notes of MindFormers 2.0 beside its files: `common.json`, `metadata.json`, and the tracker (mindspore.md §2)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptstore.core.parts import Common
from ckptstore.errors import UnreadableError
from ckptstore.formats.bounded_json import read_object

if TYPE_CHECKING:
    from ckptstore.outside import Path

_ABNORMAL = 1  # `CkptHealthStatus` in MindFormers' `checkpoint/utils.py`
_MOST_COMMON = 1 << 16  # bytes; MindFormers writes about 200
_MOST_DIGITS = 20
_PIECE = 1 << 20  # bytes
_MOST_METADATA = 1 << 28  # bytes; it grows with the slices of all parameters
_FILE_NAME = re.compile(rb'"file_name":\s*"([^"\\]{1,255})"')
_LONGEST_MATCH = 512  # bytes


def read_common(path: Path) -> Common:
    """What `common.json` says. Raises `UnreadableError` where it is none, `OSError` where it cannot be opened."""
    said = read_object(path, "whole common.json", _MOST_COMMON)
    return Common(_number(said.get("step_num")), _number(said.get("global_step")), said.get("ckpt_status") == _ABNORMAL)


def read_promised(path: Path) -> frozenset[str]:
    """The names of the files that `metadata.json` says parameters are in. Raises `OSError` if it cannot be opened.

    It lists every slice of every parameter: it is searched, not parsed, up to 256 MiB.
    """
    names: set[bytes] = set()
    rest = b""
    with path.open("rb") as file:
        for _ in range(_MOST_METADATA // _PIECE):
            piece = file.read(_PIECE)
            if not piece:
                break
            text = rest + piece
            names.update(_FILE_NAME.findall(text))
            rest = text[-_LONGEST_MATCH:]
    return frozenset(name.decode("utf-8", "replace") for name in names)


def read_tracker(path: Path) -> int:
    """The iteration that the tracker names. Raises `UnreadableError` where it names none, `OSError` as `open` does."""
    with path.open("rb") as file:
        text = file.read(_MOST_COMMON).strip()
    if not text.isdigit() or len(text) > _MOST_DIGITS:
        raise UnreadableError(f"{path} names no iteration", "MindFormers writes a number into it")
    return int(text)


def _number(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
