"""What to call to make the files of one layout into those of another, where no file serves every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.model import Content
from ckptstore.core.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.core.model import Checkpoint, State


def how_to_convert(state: State) -> str:
    """The call of MindSpore 2.10 that converts a state for another number of ranks, filled in as far as it is known.

    `unified_safetensors` finds the files of each `rank_R` by the end of their names. `transform_checkpoints` takes the
    last one by name, which need not be the newest: `-9_5` is after `-10_1` (`parallel/transform_safetensors.py`,
    `parallel/checkpoint_transform.py`).
    """
    files = sorted((file for file in state.files if file.content is not Content.WEIGHTS), key=lambda file: file.rank)
    formats = {file.format for file in files}
    shares = any(file.content is Content.SHARE for file in files)
    root = _root(files)
    source = repr(root) if root else "SRC_DIR"
    strategy, first = _strategy(state, files)
    if formats == {"safetensors"}:
        suffix = _common_end([file.path.rpartition("/")[2].removesuffix(".safetensors") for file in files])
        named = f", file_suffix={suffix!r}" if suffix else ""
        whole = ", merge_with_redundancy=False" if shares else ""
        call = f"mindspore.unified_safetensors({source}, {strategy}, DST_DIR{whole}{named})"
        place = "" if root else "with the files as SRC_DIR/rank_R/*.safetensors, "
    elif shares or formats != {"ckpt"}:
        return f"{as_many_ranks(state)}: MindSpore converts no such files"
    else:
        call = f"mindspore.transform_checkpoints({source}, DST_DIR, PREFIX, {strategy}, DST_STRATEGY)"
        place = f"with only the files of step {state.global_step} as {root or 'SRC_DIR'}/rank_R/*.ckpt, "
    return f"{as_many_ranks(state)}, or convert it: {first}{place}{call}"


def as_many_ranks(state: State) -> str:
    """The other way: to start as many ranks as saved it."""
    return f"start with {count(state.launch.world_size, 'rank', 'ranks')}"


def _root(files: Sequence[Checkpoint]) -> str:
    """The directory that has the files of rank R in `rank_R`; empty where they are not kept so."""
    roots = {file.path.rpartition(f"/rank_{file.rank}/") for file in files}
    if len({root for root, _, _ in roots}) == 1 and all("/" not in name and found for _, found, name in roots):
        return next(iter(roots))[0] or "/"
    return ""


def _strategy(state: State, files: Iterable[Checkpoint]) -> tuple[str, str]:
    """How the call names the strategy that the files were saved with, and what must be done to have it."""
    if state.launch.layout.any_world_size or state.launch.world_size == 1:
        return "None", ""
    named = sorted({file.strategy_file for file in files if file.strategy_file})
    if len(named) == 1:
        return repr(named[0]), ""
    if not named:
        return "SRC_STRATEGY", ""
    return "SRC_STRATEGY", f"mindspore.merge_pipeline_strategys({_directory(named)}, SRC_STRATEGY), then "


def _directory(paths: Iterable[str]) -> str:
    directories = {path.rpartition("/")[0] for path in paths}
    return repr(directories.pop()) if len(directories) == 1 else "STRATEGY_DIR"


def _common_end(names: Sequence[str]) -> str:
    """The longest text that all names end in."""
    shortest = min(names, key=len)
    length = len(shortest)
    while length and not all(name.endswith(shortest[len(shortest) - length :]) for name in names):
        length -= 1
    return shortest[len(shortest) - length :]
