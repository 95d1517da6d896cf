"""Generated jobs: how the parameters of up to 64 ranks may be cut and spread."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from ckptstore.core.strategy_layout import Spread

_NAMES = ("weight", "adam_m.weight", "bias", "moments.bias", "accu_grads.weight", "inputs.0")


def spread(
    name: str = "w",
    grid: tuple[int, ...] = (2, 4),
    tensor_map: tuple[int | tuple[int, ...], ...] = (-1,),
    *,
    stage: int | None = 0,
    step: int = 0,
    size: int = 0,
) -> Spread:
    return Spread(
        name=name,
        stage=stage,
        dev_matrix=grid,
        tensor_map=tensor_map,
        opt_weight_shard_step=step,
        opt_weight_shard_size=size,
    )


@dataclass(frozen=True)
class Job:
    """`stages[s]` are the parameters of stage s, `stage_size` its ranks."""

    stage_size: int
    stages: tuple[tuple[Spread, ...], ...]

    @property
    def world_size(self) -> int:
        return self.stage_size * len(self.stages)

    @property
    def parameters(self) -> list[Spread]:
        return [parameter for stage in self.stages for parameter in stage]


def flat(parameter: Spread) -> Spread:
    """The same cut, written as one list: it does not matter which axis of the tensor is cut along which of the grid."""
    axes = [axes if isinstance(axes, tuple) else (axes,) for axes in parameter.tensor_map]
    return replace(parameter, tensor_map=tuple(axis for several in axes for axis in several))


@st.composite
def _grids(draw: st.DrawFn, stage_size: int) -> tuple[int, ...]:
    """The ranks of a stage as a grid; MindSpore leaves out axes of one, but nothing in the format does."""
    grid = []
    left = stage_size
    while left > 1:
        size = draw(st.sampled_from([size for size in range(1, left + 1) if left % size == 0]))
        grid.append(size)
        left //= size
        if len(grid) == 4:
            grid.append(left)
            break
    return tuple(grid) or (1,)


@st.composite
def _spreads(draw: st.DrawFn, name: str, stage: int, stage_size: int, dp: int) -> Spread:
    grid = draw(_grids(stage_size // dp))
    axes = draw(st.permutations(range(len(grid))))
    grid = (dp, *grid) if dp > 1 else grid
    kept = axes[: draw(st.integers(0, len(axes)))]
    uncut = [-1] * draw(st.integers(0 if kept else 1, 2))
    tensor_map: tuple[int | tuple[int, ...], ...] = tuple(draw(st.permutations([*kept, *uncut])))
    if draw(st.booleans()) and len(kept) > 1:
        cuts = sorted(draw(st.sets(st.integers(1, len(kept) - 1), max_size=2)))
        rows = [tuple(kept[a:b]) for a, b in zip([0, *cuts], [*cuts, len(kept)], strict=True)]
        tensor_map = tuple(draw(st.permutations([*rows, *[(-1,)] * len(uncut)])))
    size = draw(st.sampled_from([0, 0, 0, 0, 1, 2] if dp > 1 else [0, 1, 2, 3, 4, 8, -1, -2]))
    step = draw(st.sampled_from([step for step in (1, 2, 3, 4, 8) if step <= stage_size]))
    return spread(name, grid, tensor_map, stage=stage, step=step, size=size)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """With `dp` above 1 the first axis of each grid is data parallel, never cut; else anything goes."""
    stages = draw(st.sampled_from([1, 1, 2, 4]))
    stage_size = draw(st.sampled_from([size for size in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64) if size * stages <= 64]))
    dp = draw(st.sampled_from([dp for dp in (1, 2, 4, 8) if stage_size % dp == 0]))
    names = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=5, unique=True)
    return Job(
        stage_size,
        tuple(
            tuple(draw(_spreads(name, stage, stage_size, dp)) for name in ("kernel", *draw(names)))
            for stage in range(stages)
        ),
    )


def common_groups(groups: list[list[tuple[int, ...]]], world_size: int) -> set[tuple[int, ...]]:
    """The ranks that share a group in every list of groups; those that have none in one of them share nothing."""
    shared: dict[tuple[int, ...], list[int]] = {}
    for rank in range(world_size):
        of_rank = [next((index for index, group in enumerate(each) if rank in group), -1 - rank) for each in groups]
        shared.setdefault(tuple(of_rank), []).append(rank)
    return {tuple(ranks) for ranks in shared.values() if len(ranks) > 1}
