"""What a scan found: one file, what its path says and what is in it. Nothing here is believed yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.core.model import Content, Kind


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint file that nobody registered.

    `rank` is that of its directory or name (None: neither says one). `family` is what one callback of one rank calls
    its files, without the number of the relaunch, so that files of several ranks and relaunches compare; `relaunch`
    is that number, N of `prefix_N` (0: none). `epoch` and `step_in_epoch` are the name's, `named_step` a global_step
    that the name or its directory states; each is None where the name has none. `info` is what MindSpore appended
    (`epoch_num`, `step_num`, `batch_num`, `cur_rank`, …), `optimizer_step` the counter of updates in it; None and
    empty where the file was not read or has none. `updates_every_step`: the file was read, and nothing in it is known
    to let a step pass without an update: no loss scale (`scale_sense`, MindSpore: `nn/wrap/loss_scale.py`) and no
    gathered gradients (`accu_grads…`). `size` in bytes, `mtime_ns` in nanoseconds since 1970.
    """

    path: str
    kind: Kind
    content: Content
    format: str
    family: str
    relaunch: int
    rank: int | None
    epoch: int | None
    step_in_epoch: int | None
    named_step: int | None
    optimizer_step: int | None
    info: Mapping[str, object] = field(default_factory=dict)
    updates_every_step: bool = False
    size: int
    mtime_ns: int
