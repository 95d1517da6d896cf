"""Finds this process's rank and the number of ranks, and sends values from rank 0 to the others."""

from __future__ import annotations

import json
import logging
import zlib
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import ops
from mindspore.communication import GlobalComm, get_group_size, get_rank

from ckptstore.core.hints import Call
from ckptstore.disk.files import absolute
from ckptstore.disk.name_claims import host_name
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


log = logging.getLogger("ckptstore")

_MOST_EXACT = 1 << 24  # whole numbers below it are exact as float32


def rank_and_world_size() -> tuple[int, int]:
    """The rank of this process and the number of ranks; (0, 1) if MindSpore's communication was not started.

    Raises `UsageError` under `msrun` with several workers before `mindspore.communication.init()`.
    """
    if GlobalComm.INITED:
        return int(get_rank()), int(get_group_size())
    workers = os.environ.get("MS_WORKER_NUM", "")
    if workers.isdigit() and int(workers) > 1:
        raise UsageError(
            f"this is one of {workers} processes, and MindSpore's communication was not started",
            f"call mindspore.communication.init() before {Call('ckptstore.mindspore.join')}",
        )
    return 0, 1


def layout() -> str:
    """The layout that MindSpore's parallel mode proves: "data_parallel" if every rank holds the same state.

    With the optimizer in parallel each rank updates its own share of the moments (MindSpore: `nn/optim/optimizer.py`,
    `enable_parallel_optimizer`): then, and in every other mode, no rank is known to be a replica.
    """
    mode = mindspore.get_auto_parallel_context("parallel_mode")
    shares = mindspore.get_auto_parallel_context("enable_parallel_optimizer")
    return "data_parallel" if rank_and_world_size()[1] > 1 and mode == "data_parallel" and not shares else "stand_alone"


def strategy_file() -> str | None:
    """The strategy file that MindSpore will write, if it is configured to."""
    return str(mindspore.get_auto_parallel_context("strategy_ckpt_save_file")) or None


def layout_files() -> list[str]:
    """The paths to which MindSpore writes this rank's strategy and group info files when it compiles, if configured.

    `AutoParallel(...)` sets the first for the time of `Model.train` (`parallel/_utils.py`).
    """
    named = (strategy_file(), os.environ.get("GROUP_INFO_FILE"))
    return [absolute(path) for path in named if path]


def decided_by_rank_0(decide: Callable[[], Any]) -> Any:
    """The JSON value that `decide` returns on rank 0, on every rank; all ranks must call it.

    If it fails there, rank 0 raises its error and the others a `CkptstoreError` that names it: none is left waiting.
    """
    return decided_together(lambda _: decide(), lambda _: False)


def decided_together(decide: Callable[[Callable[[Any], int]], Any], answer: Callable[[Any], bool]) -> Any:
    """Like `decided_by_rank_0`, but `decide` gets a function that sends a JSON question to all ranks.

    Each rank calls `answer` with the question. The function returns how many of them say yes.
    """
    if rank_and_world_size()[0] == 0:
        return _decided(decide, answer)
    while "question" in (received := json.loads(_from_rank_0(""))):
        added_up([int(_answered(answer, received["question"]))])
    if "error" in received:
        raise CkptstoreError(f"rank 0 could not go on: {received['error']}")
    return received["value"]


def _decided(decide: Callable[[Callable[[Any], int]], Any], answer: Callable[[Any], bool]) -> Any:
    """The part of rank 0: decides, and sends its questions, its value or its error to the others."""

    def ask(question: Any) -> int:
        _from_rank_0(json.dumps({"question": question}))
        return added_up([int(_answered(answer, question))])[0]

    try:
        message = json.dumps({"value": decide(ask)})
    except Exception as error:
        _from_rank_0(json.dumps({"error": str(error) or type(error).__name__}))
        raise
    return json.loads(_from_rank_0(message))["value"]


def _answered(answer: Callable[[Any], bool], question: Any) -> bool:
    """The answer; no after an error, since the other ranks wait for an answer."""
    try:
        return answer(question)
    except Exception:
        log.exception("this rank could not answer what rank 0 asks")
        return False


def added_up(values: Sequence[int]) -> list[int]:
    """The element-wise sum of small numbers of all ranks; all ranks must call it. On CPU only floats can be summed."""
    if rank_and_world_size()[1] == 1:
        return list(values)
    summed = ops.AllReduce(ops.ReduceOp.SUM)(mindspore.Tensor(np.array(values, np.float32)))
    return [round(each) for each in summed.asnumpy().tolist()]


def hosts() -> list[int]:
    """A number for each rank that identifies its host; all ranks must call it."""
    rank, world_size = rank_and_world_size()
    number = zlib.crc32(host_name().encode()) % _MOST_EXACT
    return added_up([number if each == rank else 0 for each in range(world_size)])


def _from_rank_0(message: str) -> str:
    """Rank 0's `message`, on every rank; all ranks must call it. Works before training, in graph mode too.

    On CPU, Broadcast takes int32 and float32 only: each compressed byte travels as one int32.
    """
    rank, world_size = rank_and_world_size()
    if world_size == 1:
        return message
    raw = zlib.compress(message.encode("utf-8"))
    length = int(_broadcast(np.array([len(raw)], np.int32))[0])
    payload = np.zeros(length, np.int32)
    if rank == 0:
        payload[:length] = np.frombuffer(raw, np.uint8)
    return zlib.decompress(bytes(_broadcast(payload)[:length].astype(np.uint8))).decode("utf-8")


def _broadcast(values: Any) -> Any:
    return ops.Broadcast(0)((mindspore.Tensor(values),))[0].asnumpy()
