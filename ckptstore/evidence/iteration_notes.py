"""What the notes in the directory of an iteration of MindFormers say of its step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.iterations import COMMON, Common, Iteration
from ckptstore.errors import UnreadableError
from ckptstore.formats.bounded_json import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.outside import Path

ABNORMAL = "MindFormers' health monitor found the state abnormal (ckpt_status in common.json)"

_ABNORMAL_STATUS = 1  # `CkptHealthStatus` in MindFormers' `checkpoint/utils.py`
_MOST_COMMON = 1 << 16  # bytes; MindFormers writes about 200


def read_iteration(directory: Path, step: int, counters: Mapping[str, int | None]) -> Iteration:
    """What the directory of an iteration tells; `counters` are its parts, with the optimizer's counter in each."""
    common, trouble = None, ""
    try:
        said = read_object(directory / COMMON, "whole common.json", _MOST_COMMON)
        is_abnormal = said.get("ckpt_status") == _ABNORMAL_STATUS
        common = Common(_number(said.get("step_num")), _number(said.get("global_step")), is_abnormal)
    except FileNotFoundError:
        trouble = f"{COMMON}, which is written last, is not there: the save was not finished"
    except UnreadableError as error:
        trouble = str(error)
    except OSError as error:
        trouble = f"{COMMON} cannot be read ({error.strerror})"
    return Iteration(step, counters, common, trouble)


def _number(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
