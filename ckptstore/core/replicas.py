"""Who is whose replica: groups of ranks whose checkpoints hold the same state (domain §8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ckptstore.errors import UsageError


@dataclass(frozen=True)
class Layout:
    """Replica groups over the ranks 0 … world_size-1; a rank in no group is nobody's replica.

    `source` says where the knowledge comes from. `any_world_size` holds where every file serves every rank,
    however many there are: one group of all, as in data parallel.
    """

    source: str
    groups: tuple[tuple[int, ...], ...] = ()
    any_world_size: bool = False

    def partition(self, world_size: int) -> list[tuple[int, ...]]:
        """Every rank of 0 … world_size-1 in exactly one group, one without replicas in a group of its own."""
        grouped = {rank for group in self.groups for rank in group}
        alone = [(rank,) for rank in range(world_size) if rank not in grouped]
        return [*self.groups, *alone]

    def to_json(self) -> dict[str, Any]:
        """The layout as the catalog and `resolve --json` show it."""
        return {"source": self.source, "groups": [list(group) for group in self.groups]}


def stand_alone() -> Layout:
    """Nobody is anybody's replica."""
    return Layout("stand_alone")


def data_parallel(world_size: int) -> Layout:
    """Every rank holds the same weights and optimizer state (parallel_mode "data_parallel")."""
    return Layout("data_parallel", (tuple(range(world_size)),), any_world_size=True)


def from_name(name: str | None, world_size: int) -> Layout:
    """The layout of that MindSpore parallel mode; None and every mode that proves nothing: no replicas."""
    if name == "data_parallel":
        return data_parallel(world_size)
    if name in (None, "stand_alone"):
        return stand_alone()
    raise UsageError(f"unknown layout {name!r}", "use 'data_parallel' or 'stand_alone'")


def from_json(value: dict[str, Any]) -> Layout:
    """The inverse of `Layout.to_json`."""
    groups = tuple(tuple(int(rank) for rank in group) for group in value["groups"])
    return Layout(str(value["source"]), groups, any_world_size=value["source"] == "data_parallel")
