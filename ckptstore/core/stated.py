"""Replica groups in words: `--replicas`, and the environment by which seed 003 says who loads whose checkpoint.

Ranks are whole numbers. The original of seed 003 looked for "1" in "0,11" and found it (domain §8).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ckptstore.core.replicas import Layout, data_parallel, from_groups, show, stand_alone
from ckptstore.errors import UsageError

_RANK = re.compile(r" *([0-9]{1,9}) *")
_AS_JSON = 'write it as {"groups": [[0, 4], [1, 5]]}'
_LEARN = "use 'dp', 'none', groups as in '0,4;1,5;2,6;3,7', or the path of a file that is there"


def parse(text: str, world_size: int) -> Layout:
    """The layout that a user states: "dp", "none", or groups as in "0,4;1,5"; a rank not named has no replica.

    Raises `UsageError` for anything else, and as `from_groups` does.
    """
    if text == "dp":
        return data_parallel(world_size)
    if text == "none":
        return stand_alone()
    if not text.strip():
        raise UsageError("no replicas are stated", _LEARN)
    return from_groups([_ranks(group, _LEARN) for group in text.split(";")], world_size, "stated")


def from_json_groups(groups: object, world_size: int) -> Layout:
    """The layout of the groups in a user's JSON, a list of lists of ranks. Raises `UsageError` as `parse` does."""
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise UsageError("the replica groups are no list of lists", _AS_JSON)
    if not all(type(rank) is int for group in groups for rank in group):
        raise UsageError("a replica group has something in it that is no whole number", _AS_JSON)
    return from_groups(groups, world_size, "stated")


@dataclass(frozen=True)
class RestoreRanks:
    """What RESTORE_RANKS_MAP says: the replica groups, and for each rank the rank whose file it loads."""

    layout: Layout
    load_from: tuple[int, ...]


def from_restore_ranks(restore_ranks: str, restore_ranks_map: str, world_size: int) -> RestoreRanks | None:
    """Read RESTORE_RANKS ("0,1") and RESTORE_RANKS_MAP ('{"0,8": 0, "1,9": 1}'); None where the first has a -1.

    A -1 is written where some group has no rank left that could save. A rank that no group names loads its own file.
    Raises `UsageError` where a group is to load from a rank outside of it, or one that RESTORE_RANKS does not name,
    and as `from_groups` does. Source: seed 003, and the `RestoreManager` of the samples that it was taken from.
    """
    hint = "the two variables must be as one run of the restore strategy wrote them"
    if "-1" in [part.strip() for part in restore_ranks.split(",")]:
        return None
    have_files = _ranks(restore_ranks, hint)
    sources: dict[tuple[int, ...], int] = {}
    for text, source in _map(restore_ranks_map, hint).items():
        group = _ranks(text, hint)
        if type(source) is not int or source not in group or source not in have_files:
            raise UsageError(
                f"the ranks {show(group)} are to load from {source!r}, RESTORE_RANKS names {show(have_files)}", hint
            )
        sources[group] = source
    layout = from_groups(sources, world_size, "restore_ranks_map")
    source_of = {rank: source for group, source in sources.items() for rank in group}
    return RestoreRanks(layout, tuple(source_of.get(rank, rank) for rank in range(world_size)))


def _map(text: str, hint: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"RESTORE_RANKS_MAP is no JSON: {error}", hint) from None
    if not isinstance(value, dict):
        raise UsageError("RESTORE_RANKS_MAP is no JSON object", hint)
    return value


def _ranks(text: str, hint: str) -> tuple[int, ...]:
    """The ranks of one group; int() alone would take signs, underscores and the digits of every script."""
    if not text.strip():
        raise UsageError("a replica group is empty", hint)
    found = []
    for part in text.split(","):
        rank = _RANK.fullmatch(part)
        if rank is None:
            raise UsageError(f"{part!r} in the replica group {text!r} is no rank", hint)
        found.append(int(rank[1]))
    return tuple(found)
