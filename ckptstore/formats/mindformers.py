"""What MindFormers 2.0 notes beside its files in `common.json` (mindspore.md §2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.iterations import Common
from ckptstore.formats.bounded_json import read_object

if TYPE_CHECKING:
    from ckptstore.outside import Path

_ABNORMAL = 1  # `CkptHealthStatus` in MindFormers' `checkpoint/utils.py`
_MOST_COMMON = 1 << 16  # bytes; MindFormers writes about 200


def read_common(path: Path) -> Common:
    """What `common.json` says. Raises `UnreadableError` where it is none, `OSError` where it cannot be opened."""
    said = read_object(path, "whole common.json", _MOST_COMMON)
    return Common(_number(said.get("step_num")), _number(said.get("global_step")), said.get("ckpt_status") == _ABNORMAL)


def _number(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
