"""Replica groups by strategy files: how each parameter is cut and spread over the ranks (mindspore.md §8).

Two ranks are replicas if they hold the same slice of every parameter. `mindspore.train._utils.get_parameter_redundancy`
computes which ranks hold the same slice of one parameter. This module differs from MindSpore, so that no group is
wrong:

- If an axis of a tensor is cut along several axes of the grid, MindSpore writes a `tensor_map` for each of those axes
  (`StrategyCheckpointInfo::to_protobuf`). `get_parameter_redundancy` reads only the first; here all of them count.
- `get_parameter_redundancy` keeps coordinates in int8: on an axis of the grid longer than 256, ranks that are 256 apart
  look like replicas. Here they do not.
- `mindspore.train.serialization._get_cur_rank_dp` finds the ranks that may stand in for a rank. It ignores a parameter
  that leaves the rank in no group; here such a rank has no replica. If two groups of a rank overlap and neither
  contains the other, it finds either the ranks common to all groups or none, depending on how the parameter names sort;
  here the common ranks are replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.groups import grouped
from ckptstore.core.replicas import Layout, from_groups, show
from ckptstore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_NO_STATE = ("accu_grads", "inputs")  # _get_cur_rank_dp passes over these


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How one parameter is cut and spread; the names are those of MindSpore's `ParallelLayouts`."""

    name: str
    stage: int | None  # the pipeline stage; None: the file does not tell
    dev_matrix: tuple[int, ...]  # the ranks of a stage as a grid, its last axis running fastest; empty for one rank
    # For each axis of the tensor the axis of the grid that it is cut along, counted from the last one, -1 for none; a
    # tuple if it is cut along several.
    tensor_map: tuple[int | tuple[int, ...], ...]
    opt_weight_shard_step: int
    # Over how many ranks with the same slice the optimizer divides it; 0: over none, -1: ranks of the stage / step.
    opt_weight_shard_size: int


class _Cut(NamedTuple):
    """What decides which rank holds which slice: the grid, the axes that the tensor is cut along, the shards."""

    dev_matrix: tuple[int, ...]
    axes: frozenset[int]
    shards: int


def from_strategies(parameters: Iterable[Spread], world_size: int) -> Layout:
    """The layout by the parameters of all strategy files of a launch, in any order.

    Stage s of n ranks begins at rank s * n (`_get_initial_rank`). If several files of a stage give a parameter several
    layouts, two ranks are replicas only if all layouts agree on it. A stage without parameters has no replicas.
    Raises `UsageError` if the parameters cannot be those of a launch of `world_size` ranks.
    """
    told: dict[tuple[object, ...], Spread] = {}
    for parameter in parameters:
        if not parameter.name.startswith(_NO_STATE):
            sharding = parameter.opt_weight_shard_step, parameter.opt_weight_shard_size
            told.setdefault((parameter.stage, parameter.dev_matrix, parameter.tensor_map, sharding), parameter)
    cuts: dict[int, set[_Cut]] = {}
    for parameter in told.values():
        cut = _cut(parameter, world_size)
        cuts.setdefault(_stage(parameter, prod(cut.dev_matrix), world_size), set()).add(cut)
    _check_one_size(cuts)
    groups = [group for stage in cuts for group in _groups(stage, cuts[stage])]
    return from_groups(groups, world_size, "strategy")


def _cut(parameter: Spread, world_size: int) -> _Cut:
    grid = parameter.dev_matrix
    stage_size = 1
    for size in grid:
        stage_size *= size
        if not 0 < stage_size <= world_size:
            raise _impossible(parameter, f"is on a grid of {show(grid)}, and the job has {world_size} ranks")
    axes: set[int] = set()
    for mapped in parameter.tensor_map:
        axes.update(mapped if isinstance(mapped, tuple) else (mapped,))
    axes.discard(-1)
    if not all(0 <= axis < len(grid) for axis in axes):
        raise _impossible(parameter, f"is cut along axes {show(sorted(axes))} of a grid of {show(grid)}")
    shards = parameter.opt_weight_shard_size or 1
    if shards == -1:
        step = parameter.opt_weight_shard_step
        if not 0 < step <= stage_size:
            raise _impossible(parameter, f"has opt_weight_shard_size -1 with opt_weight_shard_step {step}")
        shards = stage_size // step
    return _Cut(grid, frozenset(len(grid) - 1 - axis for axis in axes), shards)


def _stage(parameter: Spread, stage_size: int, world_size: int) -> int:
    stage = parameter.stage
    if stage is None and stage_size == world_size:
        return 0
    if stage is None:
        raise _impossible(parameter, f"is on {stage_size} of {world_size} ranks, and no pipeline stage is given")
    if stage < 0 or world_size % stage_size or (stage + 1) * stage_size > world_size:
        raise _impossible(parameter, f"is on the {stage_size} ranks of stage {stage}, and the job has {world_size}")
    return stage


def _check_one_size(cuts: dict[int, set[_Cut]]) -> None:
    """Check that all stages have the same size: the first rank of a stage is computed from it."""
    sizes = sorted({prod(cut.dev_matrix) for of_stage in cuts.values() for cut in of_stage})
    if len(sizes) > 1:
        raise UsageError(
            f"the strategy spreads parameters over {sizes[0]} and over {sizes[1]} ranks of a stage",
            "the files must all be of one launch",
        )


def _groups(stage: int, cuts: Collection[_Cut]) -> Iterable[tuple[int, ...]]:
    """The ranks of a stage that hold the same slice by every cut."""
    slices: list[int] = []
    for cut in cuts:
        of_cut = _slices(cut)
        numbers: dict[tuple[int, int], int] = {}
        pairs = zip(slices or [0] * len(of_cut), of_cut, strict=True)
        slices = [numbers.setdefault(pair, len(numbers)) for pair in pairs]
    groups = grouped((number, rank) for rank, number in enumerate(slices, stage * len(slices)))
    return map(tuple, groups.values())


def _slices(cut: _Cut) -> list[int]:
    """For each rank of a stage a number for the slice that it holds.

    The optimizer's state of a slice is dealt out in turn to the ranks that hold it. If their number is not divisible by
    the number of shards, `_get_strategy_opt_shard` leaves them in no group: then each gets a number of its own.
    """
    uncut = frozenset(range(len(cut.dev_matrix))) - cut.axes
    replicas = prod(cut.dev_matrix[axis] for axis in uncut)
    if cut.shards < 1 or replicas % cut.shards:
        return list(range(prod(cut.dev_matrix)))
    pairs = zip(_coordinates(cut.dev_matrix, cut.axes), _coordinates(cut.dev_matrix, uncut), strict=True)
    return [number * cut.shards + holder % cut.shards for number, holder in pairs]


def _coordinates(grid: tuple[int, ...], axes: frozenset[int]) -> list[int]:
    """For each rank of a grid, its coordinates along `axes` as one number, which grows with the rank."""
    found = [0]
    for axis, size in enumerate(grid):
        if axis in axes:
            found = [before * size + step for before in found for step in range(size)]
        else:
            found = [before for before in found for _ in range(size)]
    return found


def _impossible(parameter: Spread, what: str) -> UsageError:
    return UsageError(f"parameter {parameter.name!r} {what}", "the strategy file is damaged or of another launch")
