"""Reads strategy files and group info files (mindspore.md §8).

A strategy file, a protobuf message or JSON, tells how each parameter is spread over ranks. A group info file tells
which ranks hold the same checkpoint as the rank that wrote it.

    message ParallelStrategyMap  { uint32 current_stage = 1; repeated ParallelStrategyItem parallel_strategy_item = 2;
                                   repeated ParallelLayoutItem parallel_layout_item = 3; }
    message ParallelStrategyItem { string node_name = 1; ParallelStrategys parallel_strategys = 2; }
    message ParallelStrategys    { uint32 stage = 1; … }
    message ParallelLayoutItem   { string param_name = 1; ParallelLayouts parallel_layouts = 2; }
    message ParallelLayouts      { repeated DevMatrix dev_matrix = 1; repeated TensorMap tensor_map = 2;
                                   repeated ParamSplitShape param_split_shape = 3;
                                   repeated IndicesOffset indices_offset = 4; int32 field = 5;
                                   int32 opt_weight_shard_step = 6; int32 opt_weight_shard_size = 7; }
    message DevMatrix, …         { repeated int dim = 1; }   MindSpore does not pack it; it is read packed too

    message ParallelGroupMap     { repeated ParallelGroupItem parallel_group_item = 1;
                                   ParallelGroupRanks ckpt_restore_rank_list = 2; }
    message ParallelGroupItem    { string group_name = 1; ParallelGroupRanks parallel_group_ranks = 2; }
    message ParallelGroupRanks   { repeated uint32 dim = 1; }   likewise

Source: `mindspore/train/node_strategy_pb2.py`; `mindspore.parallel._parallel_serialization` for the JSON form, for
merged files, whose parameters are named `{stage}-{name}`, and for groups (`_restore_group_info_list`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckptstore.core.strategy_layout import Spread
from ckptstore.errors import UnreadableError
from ckptstore.formats.bounded_json import read_object
from ckptstore.formats.header import bytes_of
from ckptstore.formats.wire import WireReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.outside import Path

_MERGED = re.compile(r"(\d{1,9})-(.+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ParameterLayout(Spread):
    """How one parameter is cut and spread. Only a conversion needs the fields below. Names are those of MindSpore."""

    param_split_shape: tuple[int, ...]
    indices_offset: tuple[int, ...]
    field: int


@dataclass(frozen=True)
class Strategy:
    """A strategy file of one pipeline stage, or merged from several: the layout of each parameter, and the stages."""

    parameters: tuple[ParameterLayout, ...]
    stages: tuple[int, ...]


def read_strategy(path: Path) -> Strategy:
    """Read a strategy file in protobuf form.

    Raises `UnreadableError` if the bytes are not of that form, `OSError` if the file cannot be opened.
    """
    with path.open("rb", buffering=0) as file:
        reader = WireReader(bytes_of(file), path, "strategy")
        found = reader.fields(reader.end, {1: WireReader.skip, 2: _operator_stages, 3: _item})
        if 1 not in found:
            raise reader.bad("no current_stage")
        layouts = found.get(3)
        if not layouts:  # a graph file, net-graph.meta, begins with a number too
            raise reader.bad("no parallel_layout_item")
    return _strategy(layouts, (stage for stages in found.get(2, ()) for stage in stages))


def read_json_strategy(path: Path) -> Strategy:
    """Read a strategy file in JSON form. Raises as `read_strategy` does."""
    content = read_object(path, "whole strategy file")
    layouts, operators = content.get("parallel_layout_item"), content.get("parallel_strategy_item", {})
    if not (isinstance(layouts, dict) and layouts and isinstance(operators, dict)):
        raise _bad(path, "no parallel_layout_item in it")
    stages = [operator.get("stage") for operator in operators.values() if isinstance(operator, dict)]
    return _strategy(
        [_json_layout(name, layout, path) for name, layout in layouts.items()],
        [stage for stage in stages if type(stage) is int],
    )


def _strategy(layouts: Iterable[ParameterLayout], operator_stages: Iterable[int]) -> Strategy:
    """Give each parameter its stage: from its name, else from the operators of the file if all have the same stage."""
    stages = set(operator_stages)
    only = next(iter(stages)) if len(stages) == 1 else None
    parameters = tuple(_in_stage(layout, only) for layout in layouts)
    stages |= {parameter.stage for parameter in parameters if parameter.stage is not None}
    return Strategy(parameters, tuple(sorted(stages)))


def _in_stage(layout: ParameterLayout, stage: int | None) -> ParameterLayout:
    merged = _MERGED.fullmatch(layout.name)
    return replace(layout, name=merged[2], stage=int(merged[1])) if merged else replace(layout, stage=stage)


def _operator_stages(reader: WireReader, limit: int, wire_type: int) -> list[int]:
    found = reader.fields(reader.message(limit, wire_type), {2: WireReader.list_of_numbers})
    return [stage for stages in found.get(2, ()) for stage in stages]


def _item(reader: WireReader, limit: int, wire_type: int) -> ParameterLayout:
    found = reader.fields(reader.message(limit, wire_type), {1: WireReader.text, 2: _layout})
    name = found.get(1, [""])[-1]
    if not name:
        raise reader.bad("a layout without a parameter's name")
    layout = found.get(2, [{}])[-1]

    def first(field: int) -> tuple[int, ...]:  # the field may repeat; MindSpore writes and reads one list
        return tuple(layout.get(field, [()])[0])

    def number(field: int) -> int:
        return next(reversed(layout.get(field, [()])[-1]), 0)

    maps = layout.get(2, [()])
    return ParameterLayout(
        name=name,
        stage=None,
        dev_matrix=first(1),
        tensor_map=tuple(axes for axes in maps if axes) if len(maps) > 1 else first(2),
        param_split_shape=first(3),
        indices_offset=first(4),
        field=number(5),
        opt_weight_shard_step=number(6),
        opt_weight_shard_size=number(7),
    )


def _layout(reader: WireReader, limit: int, wire_type: int) -> dict[int, list[Any]]:
    readers = dict.fromkeys((1, 2, 3, 4), WireReader.list_of_numbers) | dict.fromkeys((5, 6, 7), WireReader.numbers)
    return reader.fields(reader.message(limit, wire_type), readers)


def _json_layout(name: str, layout: object, path: Path) -> ParameterLayout:
    if not isinstance(layout, dict):
        raise _bad(path, f"no layout of {name!r}")

    def numbers(key: str, default: Any = None) -> tuple[int, ...]:
        value = layout.get(key, default)
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise _bad(path, f"{key} of {name!r} is no list of numbers")
        return tuple(value)

    def number(key: str) -> int:
        value = layout.get(key)
        if type(value) is not int:
            raise _bad(path, f"{key} of {name!r} is no number")
        return value

    return ParameterLayout(
        name=name,
        stage=None,
        dev_matrix=numbers("dev_matrix"),
        tensor_map=numbers("tensor_map"),
        param_split_shape=numbers("param_split_shape", []),
        indices_offset=numbers("indices_offset", []),
        field=number("field"),
        opt_weight_shard_step=number("opt_weight_shard_step"),
        opt_weight_shard_size=number("opt_weight_shard_size"),
    )


def _bad(path: Path, what: str) -> UnreadableError:
    return UnreadableError(f"{path} is not a whole strategy file: {what}", "it is cut, damaged or of another format")


@dataclass(frozen=True)
class Group:
    """A communication group: its name and its ranks."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class GroupInfo:
    """The groups of a rank, and the ranks whose checkpoints equal its own."""

    groups: tuple[Group, ...]
    restore_ranks: tuple[int, ...]


def read_group_info(path: Path) -> GroupInfo:
    """Read a group info file.

    Raises `UnreadableError` if the bytes are not of that format, or if the list of ranks, which comes last, is missing
    or empty; `OSError` if the file cannot be opened.
    """
    with path.open("rb", buffering=0) as file:
        reader = WireReader(bytes_of(file), path, "group info")
        found = reader.fields(reader.end, {1: _group, 2: WireReader.list_of_numbers})
        restore_ranks = found.get(2, [()])[-1]
        if not restore_ranks:  # it names at least the rank itself
            raise reader.bad("no ckpt_restore_rank_list")
    return GroupInfo(tuple(found.get(1, ())), restore_ranks)


def _group(reader: WireReader, limit: int, wire_type: int) -> Group:
    found = reader.fields(reader.message(limit, wire_type), {1: WireReader.text, 2: WireReader.list_of_numbers})
    return Group(found.get(1, [""])[-1], found.get(2, [()])[-1])
