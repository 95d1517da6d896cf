"""Who this process is among the ranks, and how rank 0 tells the others."""

from __future__ import annotations

import os
from typing import Any

import mindspore
import numpy as np
from mindspore import ops
from mindspore.communication import GlobalComm, get_group_size, get_rank

from ckptstore.errors import UsageError


def rank_and_world_size() -> tuple[int, int]:
    """Rank of this process and the number of ranks; (0, 1) where MindSpore's communication was not started.

    Raises `UsageError` under `msrun` with several workers before `mindspore.communication.init()`.
    """
    if GlobalComm.INITED:
        return int(get_rank()), int(get_group_size())
    workers = os.environ.get("MS_WORKER_NUM", "")
    if workers.isdigit() and int(workers) > 1:
        raise UsageError(
            f"this is one of {workers} processes, and MindSpore's communication was not started",
            "call mindspore.communication.init() before ckptstore.mindspore.join()",
        )
    return 0, 1


def parallel_mode() -> str:
    """MindSpore's parallel mode, as "stand_alone", "data_parallel" or "semi_auto_parallel"."""
    return str(mindspore.get_auto_parallel_context("parallel_mode"))


def strategy_file() -> str | None:
    """The strategy file that MindSpore was told to write, if it was."""
    return str(mindspore.get_auto_parallel_context("strategy_ckpt_save_file")) or None


def from_rank_0(message: str) -> str:
    """Rank 0's `message`, on every rank; all ranks must call it. Works before training, in graph mode too.

    On CPU, Broadcast takes int32 and float32 only (domain §10): each byte of UTF-8 travels as one int32.
    """
    rank, world_size = rank_and_world_size()
    if world_size == 1:
        return message
    raw = message.encode("utf-8")
    length = int(_broadcast(np.array([len(raw)], np.int32))[0])
    payload = np.zeros(max(length, 1), np.int32)
    if rank == 0:
        payload[:length] = np.frombuffer(raw, np.uint8)
    return bytes(_broadcast(payload)[:length].astype(np.uint8)).decode("utf-8")


def _broadcast(values: Any) -> Any:
    return ops.Broadcast(0)((mindspore.Tensor(values),))[0].asnumpy()
