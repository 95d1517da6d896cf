"""Files that nobody registered, as a scan sees them."""

from typing import Any

from ckptstore.core.model import Content, Kind
from ckptstore.evidence.unregistered import FoundFile
from tests.scan.plain_mindspore import SECOND

P, B, X, T = Kind.PERIODIC, Kind.DYING_GASP, Kind.GRACEFUL_EXIT, Kind.TTP


def found(
    kind: Kind,
    named: tuple[int, int] | None,
    counter: int | None,
    *,
    launch: int = 0,
    rank: int | None = 0,
    time: int = 0,
    family: str = "net",
    **more: Any,
) -> FoundFile:
    epoch, step = named or (None, None)
    settings: dict[str, Any] = {
        "path": f"/out/rank_{rank}/{family}_{launch}-{epoch}_{step}{kind}-{more.get('named_step')}.ckpt",
        "content": Content.FULL,
        "format": "ckpt",
        "named_step": None,
        "updates_every_step": True,
        "size": 100,
    }
    return FoundFile(
        kind=kind,
        family=family,
        relaunch=launch,
        rank=rank,
        epoch=epoch,
        step_in_epoch=step,
        optimizer_step=counter,
        mtime_ns=time * SECOND,
        **{**settings, **more},
    )
