"""Replica groups out of files, held against what MindSpore computes from the same files."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import merge_pipeline_strategys
from mindspore.train._utils import get_parameter_redundancy
from mindspore.train.serialization import _get_cur_rank_dp
from safetensors.numpy import save_file

from ckptstore.core.replicas import Layout, from_groups
from ckptstore.core.strategy_layout import Spread, from_strategies
from ckptstore.errors import UnreadableError, UsageError
from ckptstore.formats.replica_groups import read_layout
from tests.formats import layouts
from tests.spreads import Job, common_groups, flat, jobs, spread

Groups = list[tuple[int, ...]]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def by_mindspore(path: Path, first_rank: int) -> dict[str, Groups]:
    """The replica groups of each parameter of a strategy file whose stage begins at that rank."""
    return {name: list(groups) for name, groups in get_parameter_redundancy(str(path), first_rank).items()}


def is_state(name: str) -> bool:
    return not name.startswith(("accu_grads", "inputs"))


def expected(job: Job, at: Path) -> set[tuple[int, ...]]:
    """The groups that MindSpore computes, stage by stage: the ranks that have all of them in common.

    MindSpore reads the first row of a `tensor_map` only, so it is given the same cuts in one row.
    """
    found: set[tuple[int, ...]] = set()
    for stage, parameters in enumerate(job.stages):
        first = stage * job.stage_size
        path = layouts.write_spreads(at / f"flat_{stage}.ckpt", stage, map(flat, parameters))
        groups = [of_one for name, of_one in by_mindspore(path, first).items() if is_state(name)]
        found |= {group for group in common_groups(groups, job.world_size) if group[0] // job.stage_size == stage}
    return found


@settings(max_examples=100)
@given(jobs())
def test_each_parameter_has_the_groups_that_mindspore_gives_it(job: Job) -> None:
    with folder() as at:
        for stage, parameters in enumerate(job.stages):
            first = stage * job.stage_size
            path = layouts.write_spreads(at / "flat.ckpt", stage, map(flat, parameters))
            redundancy = by_mindspore(path, first)
            assert set(redundancy) == {parameter.name for parameter in parameters}
            for parameter in parameters:
                named = replace(parameter, name="w")  # whatever it is called
                path = layouts.write_spreads(at / "one.ckpt", stage, [named])
                groups = {group for group in redundancy[parameter.name] if len(group) > 1}
                assert set(read_layout([path], job.world_size).groups) == groups


@settings(max_examples=100)
@given(jobs(), st.sampled_from(["ckpt", "json"]), st.sampled_from(["stages", "merged", "ranks"]), st.data())
def test_the_files_of_a_launch_have_the_groups_that_mindspore_gives_all_parameters(
    job: Job, ending: str, kind: str, data: st.DataObject
) -> None:
    with folder() as at:
        parts = at / "parts"
        parts.mkdir()
        ranks = job.stage_size if kind == "ranks" else 1
        paths = [
            layouts.write_spreads(parts / f"strategy_{stage * ranks + rank}.{ending}", stage, parameters)
            for stage, parameters in enumerate(job.stages)
            for rank in range(ranks)
        ]
        if kind == "merged":
            paths = [at / f"merged.{ending}"]
            merge_pipeline_strategys(str(parts), str(paths[0]))
        layout = read_layout(data.draw(st.permutations(paths)), job.world_size)
        assert set(layout.groups) == expected(job, at)
        assert layout.source == "strategy"


@settings(max_examples=50)
@given(jobs())
def test_a_merged_file_as_mindspore_itself_reads_it(job: Job) -> None:
    """`_transform_safetensors_single` shifts the groups of each `{stage}-{name}` by the ranks of the stages before."""
    with folder() as at:
        parts = at / "parts"
        parts.mkdir()
        for stage, parameters in enumerate(job.stages):
            layouts.write_spreads(parts / f"strategy_{stage}.ckpt", stage, map(flat, parameters))
        merged = at / "merged.ckpt"
        merge_pipeline_strategys(str(parts), str(merged))
        shifted: dict[int, list[Groups]] = {}
        for prefixed, groups in by_mindspore(merged, 0).items():
            stage, name = prefixed.split("-", 1)
            if is_state(name):
                first = int(stage) * job.stage_size
                shifted.setdefault(int(stage), []).append([tuple(rank + first for rank in group) for group in groups])
        common = {
            group
            for stage, of_stage in shifted.items()
            for group in common_groups(of_stage, job.world_size)
            if group[0] // job.stage_size == stage
        }
        assert set(read_layout([merged], job.world_size).groups) == common


POWERS = (1, 2, 4, 8, 16, 32, 64)
SIZES = [(dp, tp, pp) for dp in POWERS for tp in POWERS for pp in POWERS if dp * tp * pp <= 64]


def usual_job(dp: int, tp: int, pp: int, shards: int) -> Job:
    """How a transformer is cut, `tp` ranks next to each other; the optimizer deals its state to `shards` ranks."""
    grid = tuple(size for size in (dp, tp) if size > 1) or (1,)  # MindSpore leaves out axes of one
    along_tp = 0 if tp > 1 else -1
    stages = tuple(
        (
            spread("qkv.weight", grid, (along_tp, -1), stage=stage, step=tp, size=shards),
            spread("out.weight", grid, (-1, along_tp), stage=stage, step=tp, size=shards),
            spread("norm.weight", grid, (-1,), stage=stage),
            spread("adam_m.qkv.weight", grid, (along_tp, -1), stage=stage, step=tp, size=shards),
            spread("accu_grads.qkv.weight", grid, (along_tp, -1), stage=stage, step=1, size=-1),
        )
        for stage in range(pp)
    )
    return Job(dp * tp, stages)


@pytest.mark.parametrize("pp", POWERS)
def test_every_usual_layout_up_to_64_ranks(tmp_path: Path, pp: int) -> None:
    """dp x tp x pp, each with the optimizer's state in every number of shards: 0 for none, -1 for as many as can be."""
    for dp, tp in [(dp, tp) for dp, tp, stages in SIZES if stages == pp]:
        for shards in (0, -1, *(shards for shards in POWERS if shards <= dp)):
            job = usual_job(dp, tp, pp, shards)
            paths = [
                layouts.write_spreads(tmp_path / f"strategy_{stage}.ckpt", stage, parameters)
                for stage, parameters in enumerate(job.stages)
            ]
            groups = read_layout(paths, job.world_size).groups
            dealt = dp if shards == -1 else max(shards, 1)
            alike = [
                tuple(rank for rank in range(stage * dp * tp, (stage + 1) * dp * tp) if rank % (tp * dealt) == place)
                for stage in range(pp)
                for place in range(tp * dealt)
            ]
            assert set(groups) == expected(job, tmp_path)
            assert {group for group in alike if len(group) > 1} == set(groups), (dp, tp, pp, shards)


def stand_in_by_mindspore(path: Path, rank: int) -> tuple[int, ...]:
    at_rank = mock.patch("mindspore.train._utils.get_rank", return_value=rank)
    with at_rank, mock.patch("mindspore.train.serialization.get_rank", return_value=rank):
        return tuple(_get_cur_rank_dp(str(path)))


@settings(max_examples=100)
@given(jobs(), st.data())
def test_the_ranks_that_mindspore_lets_stand_in(job: Job, data: st.DataObject) -> None:
    """`_get_cur_rank_dp` finds the same, where every parameter puts the rank in a group and they hold one another."""
    rank = data.draw(st.integers(0, job.world_size - 1))
    stage = rank // job.stage_size
    with folder() as at:
        path = layouts.write_spreads(at / "s.ckpt", stage, map(flat, job.stages[stage]))
        stand_in = stand_in_by_mindspore(path, rank)
        redundancy = by_mindspore(path, stage * job.stage_size)
        groups = read_layout([path], job.world_size).partition(job.world_size)
    mine = next(group for group in groups if rank in group)
    own = [set(group) for name, each in redundancy.items() if is_state(name) for group in each if rank in group]
    own.sort(key=len)
    if len(own) < sum(map(is_state, redundancy)):
        assert mine == (rank,)
        return
    assert set(mine) == set.intersection(*own)
    if all(small <= large for small, large in pairwise(own)):
        assert stand_in == mine
    else:
        assert stand_in in {mine, (rank,)}


@pytest.mark.parametrize(("name", "expected"), [("a", (0, 1)), ("z", (0,))])
def test_whom_mindspore_lets_stand_in_depends_on_names(tmp_path: Path, name: str, expected: tuple[int, ...]) -> None:
    """The groups of rank 0 are {0,1,2,3}, {0,1,4,5} and {0,1}; MindSpore goes by name."""
    grid = (2, 2, 2)
    parameters = [spread("b", grid, (2,)), spread("c", grid, (1,)), spread(name, grid, (2, 1))]
    path = layouts.write_spreads(tmp_path / "s.ckpt", 0, parameters)
    assert stand_in_by_mindspore(path, 0) == expected
    assert read_layout([path], 8).groups == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_a_parameter_that_leaves_ranks_in_no_group(tmp_path: Path) -> None:
    """Eight ranks cannot be dealt three shards: MindSpore drops their group, then passes over the parameter."""
    path = layouts.write_spreads(tmp_path / "s.ckpt", 0, [spread("v"), spread("w", step=1, size=3)])
    assert by_mindspore(path, 0)["w"] == []
    assert stand_in_by_mindspore(path, 0) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert read_layout([path], 8).groups == ()


def test_rows_of_a_tensor_map_that_mindspore_passes_over(tmp_path: Path) -> None:
    """Each rank holds another slice, and `get_parameter_redundancy` has 0 and 4 hold the same."""
    path = layouts.write_spreads(tmp_path / "s.ckpt", 0, [spread(grid=(2, 2, 2), tensor_map=((1, 0), (2,)))])
    assert sorted(by_mindspore(path, 0)["w"]) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert read_layout([path], 8).groups == ()


@settings(max_examples=100)
@given(jobs())
def test_rows_passed_over_only_ever_make_groups_too_wide(job: Job) -> None:
    """Only parameters that the optimizer does not shard: it deals a group that is too wide out in another way."""
    with folder() as at:
        for stage, parameters in enumerate(job.stages):
            path = layouts.write_spreads(at / "s.ckpt", stage, parameters)
            redundancy = by_mindspore(path, stage * job.stage_size)
            whole = [parameter for parameter in parameters if parameter.opt_weight_shard_size in {0, 1}]
            for parameter in whole:
                wider = [set(group) for group in redundancy[parameter.name]]
                groups = from_strategies([replace(parameter, name="w")], job.world_size).groups
                assert all(any(set(group) <= wide for wide in wider) for group in groups)


@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion of out-of-bound:DeprecationWarning")
def test_a_grid_too_long_for_mindspores_int8(tmp_path: Path) -> None:
    """Ranks 0 and 512 hold slices 0 and 256 of 300."""
    path = layouts.write_spreads(tmp_path / "s.ckpt", 0, [spread(grid=(300, 2), tensor_map=(1,))])
    assert (0, 1, 512, 513) in by_mindspore(path, 0)["w"]
    assert read_layout([path], 600).groups == tuple((rank, rank + 1) for rank in range(0, 600, 2))


@pytest.mark.parametrize(
    ("parameter", "error"),
    [
        (spread(size=-1, step=0), ZeroDivisionError),
        (spread(size=-1, step=9), ZeroDivisionError),
        (spread(tensor_map=(2,)), IndexError),
    ],
)
def test_what_mindspore_fails_on_is_refused(tmp_path: Path, parameter: Spread, error: type[Exception]) -> None:
    path = layouts.write_spreads(tmp_path / "s.ckpt", 0, [parameter])
    with pytest.raises(error):
        by_mindspore(path, 0)
    with pytest.raises(UsageError, match="parameter 'w' .*; the strategy file is damaged or of another launch"):
        read_layout([path], 8)


@pytest.mark.parametrize(
    ("parameter", "groups"), [(spread(grid=(), stage=5), ()), (spread(grid=(8,), tensor_map=()), (tuple(range(8)),))]
)
def test_empty_lists_that_mindspore_fails_on_are_read(
    tmp_path: Path, parameter: Spread, groups: tuple[tuple[int, ...], ...]
) -> None:
    """It writes them: the grid of a stage of one rank, whose axes of one it leaves out, and the map of a scalar."""
    path = layouts.write_spreads(tmp_path / "s.ckpt", parameter.stage or 0, [parameter])
    with pytest.raises(IndexError):
        by_mindspore(path, 0)
    assert read_layout([path], 8).groups == groups


def group_info(at: Path, groups: dict[int, list[int]]) -> list[Path]:
    return [layouts.write_group_info(at / f"rank_{rank}.pb", {}, ranks) for rank, ranks in groups.items()]


def test_group_info_files(tmp_path: Path) -> None:
    paths = group_info(tmp_path, {0: [0, 4], 5: [1, 5], 1: [1, 5], 6: [6]})
    assert read_layout(paths, 8) == Layout("group_info", ((0, 4), (1, 5)))


def test_group_info_files_that_contradict_each_other(tmp_path: Path) -> None:
    paths = group_info(tmp_path, {0: [0, 4], 4: [4, 5]})
    with pytest.raises(UsageError, match=r"rank_0\.pb says that the replicas are 0,4, .*rank_4\.pb says 4,5"):
        read_layout(paths, 8)


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("before", ["", "\n  " * 20])
def test_groups_that_a_user_wrote(tmp_path: Path, before: str) -> None:
    path = write(tmp_path / "groups.json", {"groups": [[0, 4], [5, 1]]})
    path.write_text(before + path.read_text())
    assert read_layout([path], 8) == Layout("stated", ((0, 4), (1, 5)))


def test_a_layout_that_was_printed_can_be_given_back(tmp_path: Path) -> None:
    layout = from_groups([(0, 4), (1, 5)], 8, "strategy")
    assert read_layout([write(tmp_path / "layout.json", layout.to_json())], 8).groups == layout.groups


def test_a_parameter_called_groups_makes_no_file_of_groups(tmp_path: Path) -> None:
    path = layouts.write_spreads(tmp_path / "s.json", 0, [spread("groups", tensor_map=(0,))])
    assert read_layout([path], 8) == Layout("strategy", ((0, 4), (1, 5), (2, 6), (3, 7)))


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ({"groups": 5}, UsageError, "the replica groups are no list of lists"),
        ({"groups": [[0, 4], [4]]}, UsageError, "rank 4 is named twice"),
        ({"group": [[0, 4]]}, UnreadableError, "is not a whole strategy file: no parallel_layout_item"),
        ([[0, 4]], UnreadableError, "is of no known format"),
    ],
)
def test_json_that_tells_no_groups(tmp_path: Path, content: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_layout([write(tmp_path / "g.json", content)], 8)


def test_cut_json_of_groups(tmp_path: Path) -> None:
    path = write(tmp_path / "g.json", {"groups": [[0, 4]]})
    path.write_text(path.read_text()[:-2])
    with pytest.raises(UnreadableError, match=r"g\.json is not a whole file of replica groups"):
        read_layout([path], 8)


def test_files_of_other_kinds_and_of_several(tmp_path: Path) -> None:
    strategy = layouts.write_strategy(tmp_path / "s.ckpt")
    info = layouts.write_group_info(tmp_path / "g.pb", {}, [0, 4])
    stated = write(tmp_path / "g.json", {"groups": []})
    tensors = tmp_path / "m.safetensors"
    save_file({"w": np.zeros(1)}, tensors)
    other = write(tmp_path / "h.json", {"groups": []})
    pairs = ([strategy, info], [info, stated], [stated, strategy], [info, tensors], [stated, other])
    for paths in ([], [tensors], *pairs):
        with pytest.raises(UsageError, match="cannot tell who is whose replica"):
            read_layout(paths, 8)
