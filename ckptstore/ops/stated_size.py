"""The number of ranks that a scan is told, held against the ranks whose files it would take in.

A launch of one rank serves every rank: a state of several that was recorded with too few would give each rank another's
file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.history import rank_of
from ckptstore.core.words import count
from ckptstore.errors import UsageError
from ckptstore.ops.adoption import SCANNED
from ckptstore.ops.parts import is_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptstore.core.found import Found
    from ckptstore.core.model import Checkpoint
    from ckptstore.ops.adoption import FoundLaunch
    from ckptstore.ops.tree import Tree


def may_be_beyond(tree: Tree, world_size: int) -> bool:
    """Whether a file of the tree may be of a rank that a job of this size has not, as far as paths tell."""
    ranks = (named.rank for path, (named, _) in tree.checkpoints.items() if not is_part(tree, path))
    return any(rank is None or rank >= world_size for rank in ranks)


def ranks_of(tree: Tree, paths: Iterable[str], found: Iterable[Found]) -> dict[str, int | None]:
    """The rank of each of these files, by its path, or else by what was read of it; None where neither says one."""
    ranks = {path: tree.checkpoints[path][0].rank for path in paths}
    return ranks | {file.path: rank_of(file) for file in found if file.path in ranks}


def check(
    world_size: int, ranks: Mapping[str, int | None], launches: Iterable[FoundLaunch], known: Mapping[str, int]
) -> None:
    """Raise `UsageError` where a rank beyond the stated size left one of the new files, whose `ranks` are given.

    `known` is the size of each launch of the run that the catalog has: those keep it, and what is of no launch may be
    of any of them.
    """
    sizes = dict.fromkeys(ranks, max([world_size, *known.values()]))
    for launch in launches:
        size = max(world_size, known.get(launch.id, 0))
        sizes |= dict.fromkeys((file.path for file in launch.files if file.path in ranks), size)
    beyond = [(rank, path) for path, rank in ranks.items() if rank is not None and rank >= sizes[path]]
    if beyond:
        rank, path = min(beyond, key=lambda each: (-each[0], each[1]))
        raise UsageError(
            f"{path} is of rank {rank}, and the job is said to have {count(world_size, 'rank', 'ranks')}",
            f"give the number of ranks that saved it, --world-size {rank + 1} or more; if the file is of another job, "
            "scan each alone",
        )


def too_small(files: Iterable[Checkpoint], known: Mapping[str, int]) -> set[str]:
    """The scanned launches that have fewer ranks in the catalog than left these files: it was told a wrong number."""
    return {
        file.launch
        for file in files
        if file.launch.startswith(SCANNED) and file.launch in known and file.rank >= known[file.launch]
    }
