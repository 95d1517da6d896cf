"""The grammar of the names that MindSpore gives to checkpoint files and directories (mindspore.md §2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ckptstore.core.iterations import above_iteration
from ckptstore.core.limits import HIGHEST

if TYPE_CHECKING:
    from collections.abc import Collection

_NAME = re.compile(
    r"(?P<prefix>.+)-(?P<epoch>\d+)_(?P<step>\d+)(?P<breakpoint>_breakpoint)?\.(?P<format>ckpt|safetensors)",
    re.ASCII | re.DOTALL,
)
_EXIT = re.compile(
    r"(?P<file_name>.+)_train(?:-step_(?P<step>\d+)(?:_\d+)?)?\.ckpt",
    re.ASCII | re.DOTALL,
)
_TTP_DIRECTORY = re.compile(
    r"(?:ttp|tft)_saved_checkpoints-(?:step_(?P<step>\d+)|\d+_\d+)(?P<unfinished>_tmp)?",
    re.ASCII,
)
_TTP_MARK = "_saved_checkpoints-"
_TTP_FILE = re.compile(
    r"(?:ttp_rank_(?P<rank>\d+)|iteration)-(?P<epoch>\d+)_(?P<step>\d+)\.(?P<format>ckpt|safetensors)",
    re.ASCII,
)
_TENSORFLOW = re.compile(r"(?P<prefix>.+)\.(?:index|data-\d{5}-of-(?P<count>\d{5}))", re.ASCII | re.DOTALL)
_STEP_OF_TENSORFLOW = re.compile(r".+\.ckpt-(?P<step>\d+)", re.ASCII | re.DOTALL)
_SHARDS = re.compile(r"global_step_?(?P<step>\d+)", re.ASCII)
# HyperParallel (`core/distributed_checkpoint/filesystem_storage.py`), and PyTorch's distributed checkpoints.
_SHARD = re.compile(r"__\d+_\d+\.(?:safetensors|distcp)|_rank(?P<rank>\d+)_\.safetensors", re.ASCII)
_SEAL_OF_RANK = re.compile(r"\.rank\d+_metadata", re.ASCII)
_RANK_DIRECTORY = re.compile(r"rank_(?P<rank>\d+)", re.ASCII)


ONE_FILE = ("ckpt", "safetensors")
"""The formats of MindSpore."""

PYTORCH, TENSORFLOW, DIRECTORY = "pytorch", "tensorflow", "directory"
FOREIGN = (PYTORCH, TENSORFLOW, DIRECTORY)
"""Formats that MindSpore cannot load: a file of PyTorch, a prefix of TensorFlow's files, a directory of shards."""

SEVERAL = (TENSORFLOW, DIRECTORY)
"""The foreign formats that are several files."""

_PYTORCH = (".pth.tar", ".pth", ".pt")
INDEX = ".index"
SEAL = ".metadata"
"""The file that is written last into a directory of shards."""
POINTER = "latest_checkpoint_iteration.txt"
"""HyperParallel's file beside its directories of shards: it has the step of the newest (`components/checkpoint`)."""
COMPANION = ".companion"
"""Ends the name of the file beside a checkpoint that has the state of callbacks and rank (training/companions.py)."""


@dataclass(frozen=True)
class CheckpointName:
    """What the name of a ModelCheckpoint file says; its epoch and step may be wrong (mindspore.md §3)."""

    prefix: str
    epoch: int
    step_in_epoch: int
    is_breakpoint: bool
    format: str


@dataclass(frozen=True)
class ExitName:
    """What the name of a graceful exit's file says; `global_step` is None under MindSpore's own, fixed name."""

    file_name: str
    global_step: int | None


@dataclass(frozen=True)
class TtpDirectory:
    """What the name of a TTP directory says. `unfinished`: the directory was never renamed.

    `step` is the controller's: None in the names of the earliest adapter.
    """

    step: int | None
    unfinished: bool


@dataclass(frozen=True)
class TensorflowName:
    """What the name of a file of TensorFlow says: the prefix is the checkpoint's path; `count` is 0 in the index."""

    prefix: str
    count: int


@lru_cache(maxsize=1 << 14)  # ranks write the same names
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


@lru_cache(maxsize=1 << 14)
def parse_exit_name(name: str) -> ExitName | None:
    """Read the name of a file that OnRequestExit wrote, as MindSpore named it or as ckptstore keeps it."""
    match = _EXIT.fullmatch(name)
    if match is None:
        return None
    return ExitName(match["file_name"], None if match["step"] is None else int(match["step"]))


def exit_name(file_name: str, global_step: int | None, repeat: int = 0) -> str:
    """The name under which a graceful exit's file is kept; `repeat` counts the files of one step from 0.

    Without a step it is a name that no callback gives.
    """
    again = f"_{repeat}" if repeat else ""
    if global_step is None:
        return f"{file_name}-kept{again}_train.ckpt"
    return f"{file_name}_train-step_{global_step}{again}.ckpt"


def parse_ttp_directory(name: str) -> TtpDirectory | None:
    """Read the name of a directory that the TTP handlers made, of any of the adapters."""
    match = _TTP_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    return TtpDirectory(None if match["step"] is None else int(match["step"]), match["unfinished"] is not None)


def is_ttp_file(name: str) -> bool:
    """Whether a TTP save handler gives this name to a rank's file."""
    return _TTP_FILE.fullmatch(name) is not None


def parse_tensorflow(name: str) -> TensorflowName | None:
    """Read the name of an index or of a file of data; None if TensorFlow writes no such name."""
    match = _TENSORFLOW.fullmatch(name)
    return None if match is None else TensorflowName(match["prefix"], int(match["count"] or 0))


def parse_shards(name: str) -> int | None:
    """The step of a directory of shards, as DeepSpeed names them; None for any other name."""
    match = _SHARDS.fullmatch(name)
    return None if match is None else int(match["step"])


def is_of_shards(name: str) -> bool:
    """Whether a distributed checkpoint has a file of this name: a shard, or a seal."""
    return name == SEAL or _SHARD.fullmatch(name) is not None or _SEAL_OF_RANK.fullmatch(name) is not None


def lacking_seal(names: Collection[str]) -> str:
    """The seal that a directory of shards with these names lacks; empty if it has all seals, or no shards.

    HyperParallel writes one seal when all ranks are done. If ranks do not wait for each other, it writes one a rank.
    """
    shards = [match for name in names if (match := _SHARD.fullmatch(name)) is not None]
    if not shards or SEAL in names:
        return ""
    if not any(_SEAL_OF_RANK.fullmatch(name) for name in names):
        return SEAL
    of_ranks = (f".rank{match['rank']}_metadata" for match in shards if match["rank"])
    return next((seal for seal in sorted(of_ranks) if seal not in names), "")


def step_named(name: str) -> int | None:
    """The step in the name of a directory of shards, or in a prefix of TensorFlow; None if the name has no step.

    `tf.train.Saver` and Estimators append the global step to `….ckpt`. `CheckpointManager` appends its count of saves
    (`ckpt-3`), and `tf.train.Checkpoint.save` does (`model.ckpt-3`): its `save_counter` is the same number.
    """
    match = _STEP_OF_TENSORFLOW.fullmatch(name)
    step = parse_shards(name) if match is None else int(match["step"])
    return None if step is None or step > HIGHEST else step


def parse_rank_directory(name: str) -> int | None:
    """The rank in the name of a directory `rank_R`; None for any other name."""
    match = _RANK_DIRECTORY.fullmatch(name)
    return None if match is None else int(match["rank"])


def unfinished_ttp_directory(path: str) -> str:
    """The name of the TTP directory above `path` if it was never renamed; else empty."""
    for part in path.split("/") if _TTP_MARK in path else ():
        parsed = parse_ttp_directory(part)
        if parsed is not None and parsed.unfinished:
            return part
    return ""


def above_save(path: str) -> str:
    """The directory that contains the directory of a save, of TTP or of an iteration; empty if the path is in none."""
    if _TTP_MARK not in path:
        return above_iteration(path)
    parts = path.split("/")
    for place, part in enumerate(parts[:-1]):
        if parse_ttp_directory(part) is not None:
            return "/".join(parts[:place]) or "/"
    return above_iteration(path)


def is_within(path: str, directory: str) -> bool:
    """Whether a path is a directory, or is below it."""
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def is_numbered(prefix: str, base: str) -> bool:
    """Whether `prefix` is `base` or `base_N`, N being the number MindSpore gives to a later file of that prefix.

    MindSpore: `train.callback._checkpoint._chg_ckpt_file_name_if_same_exist`.
    """
    if prefix == base:
        return True
    head, _, number = prefix.rpartition("_")
    return head == base and number.isascii() and number.isdigit()


def companion_of(path: str) -> str:
    """Where the companion of a checkpoint is: beside it, under its name without the ending."""
    above, separator, name = path.rpartition("/")
    return f"{above}{separator}{name.rpartition('.')[0] or name}{COMPANION}"


def checkpoints_of(companion: str) -> set[str]:
    """The checkpoints that a companion may be of: two of different formats share its name."""
    return {f"{companion.removesuffix(COMPANION)}.{form}" for form in ONE_FILE}


def format_of(path: str) -> str:
    """The format that a file's ending stands for; "unknown" for any other."""
    if path.endswith(_PYTORCH):
        return PYTORCH
    ending = path.rpartition(".")[2]
    return ending if ending in ONE_FILE else "unknown"
