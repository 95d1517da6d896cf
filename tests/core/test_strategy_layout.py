"""Replica groups by strategy files: worked cases, then properties. `tests/formats` holds them against MindSpore."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.core import strategy_layout as module
from ckptstore.core.replicas import Layout, from_json
from ckptstore.core.strategy_layout import Spread, from_strategies
from ckptstore.errors import UsageError
from tests.spreads import Job, jobs, spread

ALL = (0, 1, 2, 3, 4, 5, 6, 7)
PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("parameters", "groups"),
    [
        ([spread()], (ALL,)),
        ([spread(grid=(8,))], (ALL,)),
        ([spread(tensor_map=(0, -1))], PAIRS),
        ([spread(tensor_map=(1,))], ((0, 1, 2, 3), (4, 5, 6, 7))),
        ([spread(tensor_map=(0, 1))], ()),
        ([spread(tensor_map=((1, 0), (-1,)))], ()),
        ([spread(grid=(2, 2, 2), tensor_map=((-1,), (0, 1)))], PAIRS),
        ([spread(tensor_map=())], (ALL,)),
        ([spread(step=1, size=-1)], ()),
        ([spread(step=8, size=-1)], (ALL,)),
        ([spread(step=4, size=-1)], ((0, 2, 4, 6), (1, 3, 5, 7))),
        ([spread(step=1, size=2)], ((0, 2, 4, 6), (1, 3, 5, 7))),
        ([spread(step=1, size=1)], (ALL,)),
        ([spread(step=1, size=3)], ()),
        ([spread(step=1, size=-2)], ()),
        ([spread(grid=(4, 2), tensor_map=(0,), step=2, size=2)], ((0, 4), (1, 5), (2, 6), (3, 7))),
        ([spread(tensor_map=(0,)), spread("v")], PAIRS),
        ([spread(tensor_map=(0,)), spread("v", (2, 2, 2), (1,))], ((0, 4), (1, 5), (2, 6), (3, 7))),
        ([spread(tensor_map=(0,)), spread("v", (2, 4), (1,))], ()),
        ([spread(), spread("v", (4, 2), (1,)), spread("u", (2, 2, 2), (2,))], ((0, 1), (2, 3), (4, 5), (6, 7))),
        ([spread(), spread("accu_grads.w", tensor_map=(0, 1)), spread("inputs", tensor_map=(0, 1))], (ALL,)),
        ([spread(), spread("w", tensor_map=(0,))], PAIRS),
        ([spread(stage=None)], (ALL,)),
        ([spread(grid=(4,), stage=1)], ((4, 5, 6, 7),)),
        ([spread(grid=(4,)), spread(grid=(2, 2), tensor_map=(0,), stage=1)], ((0, 1, 2, 3), (4, 6), (5, 7))),
        ([spread(grid=(), stage=5)], ()),
        ([spread("accu_grads.w")], ()),
        ([], ()),
    ],
)
def test_worked_cases_of_eight_ranks(parameters: list[Spread], groups: tuple[tuple[int, ...], ...]) -> None:
    layout = from_strategies(parameters, 8)
    assert layout == Layout("strategy", groups)
    assert from_json(layout.to_json()) == layout


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([spread(stage=None, grid=(4,))], "'w' is on 4 of 8 ranks, and no pipeline stage is given"),
        ([spread(stage=1)], "'w' is on the 8 ranks of stage 1, and the job has 8"),
        ([spread(stage=-1, grid=(4,))], "'w' is on the 4 ranks of stage -1"),
        ([spread(grid=(3,))], "'w' is on the 3 ranks of stage 0, and the job has 8"),
        ([spread(grid=(4, 4))], "'w' is on a grid of 4,4, and the job has 8 ranks"),
        ([spread(grid=(2, 0))], "'w' is on a grid of 2,0"),
        ([spread(grid=(-2, -4))], "'w' is on a grid of -2,-4"),
        ([spread(tensor_map=(2,))], "'w' is cut along axes 2 of a grid of 2,4"),
        ([spread(tensor_map=((0, -2),))], "'w' is cut along axes -2,0 of a grid of 2,4"),
        ([spread(size=-1, step=0)], "'w' has opt_weight_shard_size -1 with opt_weight_shard_step 0"),
        ([spread(size=-1, step=9)], "'w' has opt_weight_shard_size -1 with opt_weight_shard_step 9"),
        ([spread(grid=(4,)), spread("v")], "over 4 and over 8 ranks of a stage"),
        ([spread(grid=(4,)), spread("v", (2,), stage=1)], "over 2 and over 4 ranks of a stage"),
    ],
)
def test_what_cannot_be_is_an_error(parameters: list[Spread], message: str) -> None:
    for order in (parameters, parameters[::-1]):
        with pytest.raises(UsageError, match=message):
            from_strategies(order, 8)


def test_a_hostile_grid_is_refused_before_it_is_multiplied_out() -> None:
    with pytest.raises(UsageError, match=r"on a grid of .*… \(1000000 in all\), and the job has 8 ranks"):
        from_strategies([spread(grid=(2**62,) * 1_000_000)], 8)


@pytest.mark.parametrize("stages", [1, 4])
def test_each_distinct_layout_of_a_stage_is_worked_out_once(monkeypatch: pytest.MonkeyPatch, stages: int) -> None:
    """10,000 ranks with 2,000 parameters of six kinds, told by two files of each stage."""
    looked_at, worked_out = [], []
    monkeypatch.setattr(module, "_cut", lambda of, world, real=module._cut: looked_at.append(of) or real(of, world))
    monkeypatch.setattr(module, "_slices", lambda cut, real=module._slices: worked_out.append(cut) or real(cut))
    stage_size = 10_000 // stages
    wide, narrow = (stage_size // 10, 10), (stage_size // 20, 2, 10)
    kinds = [(wide, (0, -1)), (wide, (-1, 0)), (wide, (-1,)), (narrow, ((1, 0), (-1,)))]
    parameters = [
        spread(f"w{number}", *kinds[number % 4], stage=stage, step=10, size=5 * (number % 8 < 4))
        for number in range(2_000)
        for stage in range(stages)
    ]
    layout = from_strategies(parameters * 2, 10_000)
    assert len(looked_at) == 8 * stages  # two kinds are written in two ways
    assert len(worked_out) == 6 * stages
    assert len(set(worked_out)) == 6
    first_ranks = range(0, 10_000, stage_size)
    expected = [range(first + place, first + stage_size, 100) for first in first_ranks for place in range(100)]
    assert layout.groups == tuple(map(tuple, expected))


@given(jobs(), st.randoms(use_true_random=False))
def test_the_order_of_files_and_parameters_never_matters(job: Job, chance: random.Random) -> None:
    shuffled = job.parameters * 2
    chance.shuffle(shuffled)
    assert from_strategies(shuffled, job.world_size) == from_strategies(job.parameters, job.world_size)
