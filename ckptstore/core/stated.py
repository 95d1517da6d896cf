"""The replica groups that a user states: `--replicas`, in words or in JSON."""

from __future__ import annotations

import re

from ckptstore.core.replicas import Layout, data_parallel, from_groups, stand_alone
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
    return from_groups([_ranks(group) for group in text.split(";")], world_size, "stated")


def from_json_groups(groups: object, world_size: int) -> Layout:
    """The layout of the groups in a user's JSON, a list of lists of ranks. Raises `UsageError` as `parse` does."""
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise UsageError("the replica groups are no list of lists", _AS_JSON)
    if not all(type(rank) is int for group in groups for rank in group):
        raise UsageError("a replica group has something in it that is no whole number", _AS_JSON)
    return from_groups(groups, world_size, "stated")


def _ranks(text: str) -> tuple[int, ...]:
    """The ranks of one group; int() alone would take signs, underscores and the digits of every script."""
    if not text.strip():
        raise UsageError("a replica group is empty", _LEARN)
    found = []
    for part in text.split(","):
        rank = _RANK.fullmatch(part)
        if rank is None:
            raise UsageError(f"{part!r} in the replica group {text!r} is no rank", _LEARN)
        found.append(int(rank[1]))
    return tuple(found)
