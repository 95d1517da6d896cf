"""The readers of strategy and group info files against MindSpore's own messages and functions."""

import json
from pathlib import Path

import pytest
from mindspore import merge_pipeline_strategys, restore_group_info_list
from mindspore.parallel._parallel_serialization import _build_searched_strategy, _convert_to_list
from mindspore.train.node_strategy_pb2 import ParallelStrategyMap

from ckptstore.errors import UnreadableError
from ckptstore.formats.strategy import (
    Group,
    GroupInfo,
    ParameterLayout,
    Strategy,
    read_group_info,
    read_json_strategy,
    read_strategy,
)
from tests.ckpt_bytes import field
from tests.formats import layouts


def expected(name: str, stage: int | None = 0) -> ParameterLayout:
    return ParameterLayout(
        name=name,
        stage=stage,
        dev_matrix=(2, 4),
        tensor_map=(1, -1),
        param_split_shape=(16, 32),
        indices_offset=(5,),
        field=3,
        opt_weight_shard_step=4,
        opt_weight_shard_size=2,
    )


def read(path: Path) -> Strategy:
    return read_json_strategy(path) if path.suffix == ".json" else read_strategy(path)


@pytest.mark.parametrize("ending", ["ckpt", "json"])
def test_a_file_of_one_stage(tmp_path: Path, ending: str) -> None:
    path = layouts.write_strategy(tmp_path / f"strategy.{ending}", stage=3)
    assert read(path) == Strategy((expected("weight", 3), expected("bias", 3)), (3,))
    for name, read_by_mindspore in _convert_to_list(_build_searched_strategy(str(path))).items():
        layout = expected(name)
        assert read_by_mindspore[:6] == [
            list(layout.dev_matrix),
            list(layout.tensor_map),
            list(layout.param_split_shape),
            layout.field,
            layout.opt_weight_shard_step,
            layout.opt_weight_shard_size,
        ]


@pytest.mark.parametrize("ending", ["ckpt", "json"])
def test_a_file_that_mindspore_merged(tmp_path: Path, ending: str) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    layouts.write_strategy(parts / f"s_0.{ending}", 0, ("a", "shared"))
    layouts.write_strategy(parts / f"s_1.{ending}", 1, ("shared", "b.c"))
    merged = tmp_path / f"merged.{ending}"
    merge_pipeline_strategys(str(parts), str(merged))
    found = read(merged)
    assert sorted((layout.stage, layout.name) for layout in found.parameters) == [
        (0, "a"),
        (0, "shared"),
        (1, "b.c"),
        (1, "shared"),
    ]
    assert found.stages == (0, 1)
    assert {expected(layout.name, layout.stage) for layout in found.parameters} == set(found.parameters)


def test_an_axis_that_is_cut_along_several(tmp_path: Path) -> None:
    message = layouts.strategy(names=("weight",))
    maps = message.parallel_layout_item[0].parallel_layouts.tensor_map
    del maps[:]
    for axes in ([1, 0], [], [-1]):
        maps.add(dim=axes)
    path = tmp_path / "s.ckpt"
    path.write_bytes(message.SerializeToString())
    assert read_strategy(path).parameters[0].tensor_map == ((1, 0), (-1,))
    assert _convert_to_list(_build_searched_strategy(str(path)))["weight"][1] == [[1, 0], [-1]]


def test_packed_lists_are_read_too(tmp_path: Path) -> None:
    """Protobuf allows a writer either; MindSpore's own does not pack."""
    path = tmp_path / "s.ckpt"
    layout = field(1, field(1, b"\x02\x04")) + field(2, field(1, b"\x01" + b"\xff" * 9 + b"\x01"))
    path.write_bytes(b"\x08\x01" + field(3, field(1, b"w") + field(2, layout + b"\x28\x00\x30\x00\x38\x00")))
    assert ParallelStrategyMap.FromString(path.read_bytes()).parallel_layout_item[0].param_name == "w"
    (found,) = read_strategy(path).parameters
    assert (found.dev_matrix, found.tensor_map, found.stage) == ((2, 4), (1, -1), None)


def test_json_lists_that_may_be_absent(tmp_path: Path) -> None:
    content = layouts.json_strategy(names=("w",))
    del content["parallel_layout_item"]["w"]["param_split_shape"]
    del content["parallel_layout_item"]["w"]["indices_offset"]
    path = tmp_path / "s.json"
    path.write_text(json.dumps(content))
    assert "w" in _build_searched_strategy(str(path))
    (found,) = read_json_strategy(path).parameters
    assert (found.param_split_shape, found.indices_offset) == ((), ())


def test_a_group_info_file(tmp_path: Path) -> None:
    groups = {"2-5004544844489628105": [0, 4], "hccl_world_group": list(range(300))}
    path = layouts.write_group_info(tmp_path / "group_info.pb", groups, [0, 4, 200])
    found = read_group_info(path)
    assert found == GroupInfo(tuple(Group(name, tuple(ranks)) for name, ranks in groups.items()), (0, 4, 200))
    assert list(found.restore_ranks) == restore_group_info_list(str(path))


def test_a_group_info_file_without_ranks_is_refused(tmp_path: Path) -> None:
    path = layouts.write_group_info(tmp_path / "g.pb", {"a": [0]}, [])
    with pytest.raises(UnreadableError, match="no ckpt_restore_rank_list"):
        read_group_info(path)


def test_a_cut_file_is_an_error_or_has_fewer_parameters(tmp_path: Path) -> None:
    path = layouts.write_strategy(tmp_path / "s.ckpt")
    raw = path.read_bytes()
    fewer = set()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        try:
            fewer.add(tuple(layout.name for layout in read_strategy(path).parameters))
        except UnreadableError as error:
            assert str(path) in str(error)
    assert fewer == {("weight",)}


def test_a_graph_file_is_no_strategy(tmp_path: Path) -> None:
    """MindSpore writes `net-graph.meta` beside every checkpoint: it begins with the number of its version."""
    path = tmp_path / "net-graph.meta"
    node = field(1, field(1, b"weight") + b"\x10\x00") + field(3, b"Load")
    for raw in (b"\x08\x01" + field(4, node), b"\x08\x01"):
        path.write_bytes(raw)
        with pytest.raises(UnreadableError, match=r"not a whole strategy file: at byte \d+: no parallel_layout_item"):
            read_strategy(path)


def test_a_cut_json_or_group_info_file_is_an_error(tmp_path: Path) -> None:
    """The list of ranks of a group info file comes last, and must be there."""
    for path, reader, kind in (
        (
            layouts.write_group_info(tmp_path / "g.pb", {"a": [0, 1], "b": [2, 3]}, [0, 1]),
            read_group_info,
            "group info",
        ),
        (layouts.write_strategy(tmp_path / "s.json", names=("w",)), read_json_strategy, "strategy"),
    ):
        raw = path.read_bytes()
        for length in range(len(raw)):
            path.write_bytes(raw[:length])
            with pytest.raises(UnreadableError, match=rf"{path.name} is not a whole {kind} file"):
                reader(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "no parallel_layout_item"),
        ({"parallel_layout_item": []}, "no parallel_layout_item"),
        ({"parallel_layout_item": {}, "parallel_strategy_item": 5}, "no parallel_layout_item"),
        ({"parallel_layout_item": {"w": 5}}, "no layout of 'w'"),
        ({"parallel_layout_item": {"w": {}}}, "dev_matrix of 'w' is no list of numbers"),
        ({"parallel_layout_item": {"w": {"dev_matrix": [1.5]}}}, "dev_matrix of 'w' is no list of numbers"),
        ({"parallel_layout_item": {"w": {"dev_matrix": [], "tensor_map": []}}}, "field of 'w' is no number"),
    ],
)
def test_json_of_another_kind(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UnreadableError, match=message):
        read_json_strategy(path)


def test_hostile_json(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(b'{"a":' * 100_000)
    with pytest.raises(UnreadableError, match="nested too deeply"):
        read_json_strategy(path)
    path.write_bytes(b"{")
    with path.open("r+b") as file:
        file.truncate(100 << 30)
    with pytest.raises(UnreadableError, match="more than 16777216 bytes"):
        read_json_strategy(path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "no current_stage"),
        (bytes(100), "at byte 1: field 0"),
        (b"\x08\x01\x1a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "a message of 9223372036854775808 bytes"),
        (b"\x08\x01\x1a\x00", "a layout without a parameter's name"),
        (b"\x08\x01" + field(3, field(1, b"\xff")), "not UTF-8"),
        (b"\x08\x01\x18\x05", "wire type 0"),
        (b"\x08\x01\x23\x00", "wire type 3"),  # a group, of protobuf's first years
        (b"\x08\x01" + field(3, field(1, b"w") + field(2, field(1, field(1, b"\x01" * (5 << 20))))), "more parts"),
        (b"\x08\x01" + b"\x4d\x00", "a cut number"),
    ],
)
def test_hostile_bytes(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "s.ckpt"
    path.write_bytes(raw)
    with pytest.raises(UnreadableError, match=message):
        read_strategy(path)
