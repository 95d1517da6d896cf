"""What an exception left of the step that was under way."""

from __future__ import annotations

import traceback
from enum import Enum
from typing import TYPE_CHECKING

import mindspore
from mindspore import nn

if TYPE_CHECKING:
    from types import TracebackType


class UnderWay(Enum):
    """What is in the network of the step: nothing, all of it, perhaps a part of its update, or nobody knows what."""

    NOT_DONE = "not done"
    DONE = "done"
    HALF_DONE = "half done"
    UNKNOWN = "unknown"


def by_counter(updates: int, *, counts_all: bool, raised: TracebackType | None) -> UnderWay:
    """What the optimizer's counter tells: it went on by `updates` beyond the steps that were counted.

    `counts_all`: it left out no step so far. A step is one call of the device in GRAPH_MODE: all of it or nothing. In
    PyNative an exception comes between two operators: the optimizer may have counted the step, and changed some of the
    parameters.
    """
    is_one_call = mindspore.get_context("mode") == mindspore.GRAPH_MODE
    if updates == 1 and is_one_call:
        return UnderWay.DONE
    if not is_one_call and (updates == 1 or _came_out_of_an_optimizer(raised)):
        return UnderWay.HALF_DONE
    return UnderWay.NOT_DONE if updates == 0 and counts_all else UnderWay.UNKNOWN


def _came_out_of_an_optimizer(raised: TracebackType | None) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(raised))
    return any(isinstance(frame.f_locals.get("self"), nn.Optimizer) for frame in frames)
