"""The grammar of MindSpore's checkpoint file names (domain §2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(
    r"(?P<prefix>.+)-(?P<epoch>\d+)_(?P<step>\d+)(?P<breakpoint>_breakpoint)?\.(?P<format>ckpt|safetensors)",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True)
class CheckpointName:
    """What the name of a ModelCheckpoint file says; its epoch and step may lie (domain §3)."""

    prefix: str
    epoch: int
    step_in_epoch: int
    is_breakpoint: bool
    format: str


def parse_name(name: str) -> CheckpointName | None:
    """Read a file name without its directory; None if no ModelCheckpoint writes such a name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return CheckpointName(
        prefix=match["prefix"],
        epoch=int(match["epoch"]),
        step_in_epoch=int(match["step"]),
        is_breakpoint=match["breakpoint"] is not None,
        format=match["format"],
    )


def is_numbered(prefix: str, base: str) -> bool:
    """Whether `prefix` is `base` or `base_N`, N being the number MindSpore gives to a later file of that prefix.

    MindSpore: `train.callback._checkpoint._chg_ckpt_file_name_if_same_exist`.
    """
    if prefix == base:
        return True
    head, _, number = prefix.rpartition("_")
    return head == base and number.isascii() and number.isdigit()


def format_of(path: str) -> str:
    """The format that a file's ending stands for; "unknown" for any other."""
    ending = path.rpartition(".")[2]
    return ending if ending in ("ckpt", "safetensors") else "unknown"
