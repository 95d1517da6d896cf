"""Replica groups out of files, held against what MindSpore computes from the same files."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
from ckptstore.core.strategy_layout import Spread
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


def stand_in_by_mindspore(path: Path, rank: int) -> tuple[int, ...]:
    at_rank = mock.patch("mindspore.train._utils.get_rank", return_value=rank)
    with at_rank, mock.patch("mindspore.train.serialization.get_rank", return_value=rank):
        return tuple(_get_cur_rank_dp(str(path)))


@pytest.mark.parametrize(("name", "expected"), [("a", (0, 1)), ("z", (0,))])
def test_whom_mindspore_lets_stand_in_depends_on_names(tmp_path: Path, name: str, expected: tuple[int, ...]) -> None:
    """The groups of rank 0 are {0,1,2,3}, {0,1,4,5} and {0,1}; MindSpore goes by name."""
    grid = (2, 2, 2)
    parameters = [spread("b", grid, (2,)), spread("c", grid, (1,)), spread(name, grid, (2, 1))]
    path = layouts.write_spreads(tmp_path / "s.ckpt", 0, parameters)
    assert stand_in_by_mindspore(path, 0) == expected
    assert read_layout([path], 8).groups == ((0, 1), (2, 3), (4, 5), (6, 7))


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
