"""Who is whose replica: groups of ranks whose checkpoints hold the same state (mindspore.md §8)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptstore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_RANKS_SHOWN = 8
_RANK = re.compile(r" *([0-9]{1,9}) *")  # int() alone would take signs, underscores and the digits of every script
_AS_JSON = 'write it as {"groups": [[0, 4], [1, 5]]}'
_LEARN = "use 'dp', 'none', groups as in '0,4;1,5;2,6;3,7', or the path of a file that is there"


@dataclass(frozen=True)
class Layout:
    """Replica groups over the ranks 0 … world_size-1. A rank in none of them has no replica."""

    source: str  # where the groups were learnt from
    groups: tuple[tuple[int, ...], ...] = ()
    any_world_size: bool = False  # every file serves every rank, of any number of ranks, as in data parallel

    def partition(self, world_size: int) -> list[tuple[int, ...]]:
        """Every rank of 0 … world_size-1 in exactly one group, one without replicas in a group of its own."""
        grouped = {rank for group in self.groups for rank in group}
        alone = [(rank,) for rank in range(world_size) if rank not in grouped]
        return [*self.groups, *alone]

    def covers(self, ranks_with_a_file: Iterable[int], world_size: int) -> bool:
        """Whether files of those ranks make up a state of the whole job, by the layout alone."""
        have = set(ranks_with_a_file)
        return all(any(rank in have for rank in group) for group in self.partition(world_size))

    def writers(self, copies: int, hosts: Sequence[int]) -> frozenset[int]:
        """The `copies` ranks of each replica group that write: on different hosts if possible, lowest ranks first.

        `hosts` has a number for each rank, the same one for ranks on one host.
        """
        chosen: set[int] = set()
        for group in self.partition(len(hosts)):
            on_host: Counter[int] = Counter()
            in_turns = []
            for rank in group:
                in_turns.append((on_host[hosts[rank]], rank))
                on_host[hosts[rank]] += 1
            chosen.update(rank for _, rank in sorted(in_turns)[:copies])
        return frozenset(chosen)

    def to_json(self) -> dict[str, Any]:
        """The layout as the catalog and `resolve --json` show it."""
        return {"source": self.source, "groups": [list(group) for group in self.groups]}


def stand_alone() -> Layout:
    """The layout without replicas."""
    return Layout("stand_alone")


def data_parallel(world_size: int) -> Layout:
    """Every rank holds the same weights and optimizer state (parallel_mode "data_parallel")."""
    return Layout("data_parallel", (tuple(range(world_size)),), any_world_size=True)


def from_name(name: str | None, world_size: int) -> Layout:
    """The layout for "data_parallel", or the one without replicas for "stand_alone" and None.

    Raises `UsageError` for any other name.
    """
    if name == "data_parallel":
        return data_parallel(world_size)
    if name in (None, "stand_alone"):
        return stand_alone()
    raise UsageError(f"unknown layout {name!r}", "use 'data_parallel' or 'stand_alone'")


def from_json(value: dict[str, Any]) -> Layout:
    """The inverse of `Layout.to_json`."""
    groups = tuple(tuple(int(rank) for rank in group) for group in value["groups"])
    return Layout(str(value["source"]), groups, any_world_size=value["source"] == "data_parallel")


def from_groups(groups: Iterable[Sequence[int]], world_size: int, source: str) -> Layout:
    """The layout of these groups, in any order; a rank in none of them, or alone in one, has no replica.

    Raises `UsageError` for an empty group, a rank that is not one of 0 … world_size-1, and one that is named twice.
    """
    named: set[int] = set()
    kept: list[tuple[int, ...]] = []
    for group in groups:
        if not group:
            raise UsageError("a replica group is empty", "name its ranks, or leave it out")
        for rank in group:
            if not 0 <= rank < world_size:
                raise UsageError(
                    f"the replica group {show(group)} names rank {rank}, but there are {world_size} ranks",
                    "ranks are counted from 0 to world_size - 1",
                )
            if rank in named:
                raise UsageError(
                    f"rank {rank} is named twice, the second time in the replica group {show(group)}",
                    "a rank is in one group at most",
                )
            named.add(rank)
        if len(group) > 1:
            kept.append(tuple(sorted(group)))
    return Layout(source, tuple(sorted(kept)))


def from_group_info(said: Mapping[str, Sequence[int]], world_size: int) -> Layout:
    """The layout by group info files: `said` maps the name of each file to the ranks in it.

    Each rank writes the ranks whose checkpoints equal its own, itself among them (`FindCommonMirrorGroup` in
    `frontend/parallel/step_parallel_utils.cc`): one member's file speaks for its whole group. Raises `UsageError` if
    two files contradict each other, and as `from_groups` does.
    """
    says: dict[tuple[int, ...], str] = {}
    for who, ranks in said.items():
        says.setdefault(tuple(ranks), who)
    group_of: dict[int, tuple[int, ...]] = {}
    for ranks in sorted(says):
        group = tuple(sorted(ranks))
        for rank in set(group):
            other = group_of.setdefault(rank, ranks)
            if sorted(other) != list(group):
                raise UsageError(
                    f"{says[other]} says that the replicas are {show(other)}, {says[ranks]} says {show(ranks)}",
                    "the files must all be of one launch",
                )
    distinct = {tuple(sorted(ranks)) for ranks in says}
    return from_groups(sorted(distinct), world_size, "group_info")


def parse_layout(text: str, world_size: int) -> Layout:
    """The layout that a user states: "dp", "none", or groups as in "0,4;1,5".

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
    """The layout of a user's JSON, a list of lists of ranks. Raises `UsageError` as `parse_layout` does."""
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise UsageError("the replica groups are no list of lists", _AS_JSON)
    if not all(type(rank) is int for group in groups for rank in group):
        raise UsageError("a replica group has something in it that is no whole number", _AS_JSON)
    return from_groups(groups, world_size, "stated")


def _ranks(text: str) -> tuple[int, ...]:
    if not text.strip():
        raise UsageError("a replica group is empty", _LEARN)
    found = [(part, _RANK.fullmatch(part)) for part in text.split(",")]
    for part, rank in found:
        if rank is None:
            raise UsageError(f"{part!r} in the replica group {text!r} is no rank", _LEARN)
    return tuple(int(rank[1]) for _, rank in found if rank)


def show(ranks: Sequence[int]) -> str:
    """Ranks for a message, a long list shortened."""
    shown = ",".join(map(str, ranks[:_RANKS_SHOWN]))
    return shown if len(ranks) <= _RANKS_SHOWN else f"{shown}… ({len(ranks)} in all)"
