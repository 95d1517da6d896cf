"""Strategy and group info files as MindSpore's own messages write them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mindspore.train import node_strategy_pb2 as pb

from ckptstore.core.strategy_layout import Spread
from tests.spreads import flat

LAYOUT = {
    "dev_matrix": [2, 4],
    "tensor_map": [1, -1],
    "param_split_shape": [16, 32],
    "indices_offset": [5],
    "field": 3,
    "opt_weight_shard_step": 4,
    "opt_weight_shard_size": 2,
}
"""That of each parameter, as JSON has it."""


def strategy(stage: int = 0, names: tuple[str, ...] = ("weight", "bias")) -> pb.ParallelStrategyMap:
    """Each parameter cut in two along its first axis on a grid of 2 x 4, and its optimizer's state in two more."""
    message = pb.ParallelStrategyMap(current_stage=1)
    operator = message.parallel_strategy_item.add(node_name="MatMul-op0")
    operator.parallel_strategys.stage = stage
    operator.parallel_strategys.parallel_strategy.add(dim=[2, 4])
    for name in names:
        item = message.parallel_layout_item.add(param_name=name)
        layouts = item.parallel_layouts
        layouts.field, layouts.opt_weight_shard_step, layouts.opt_weight_shard_size = 3, 4, 2
        layouts.dev_matrix.add(dim=[2, 4])
        layouts.tensor_map.add(dim=[1, -1])
        layouts.param_split_shape.add(dim=[16, 32])
        layouts.indices_offset.add(dim=[5])
    return message


def json_strategy(stage: int = 0, names: tuple[str, ...] = ("weight", "bias")) -> dict[str, Any]:
    """The same in MindSpore's JSON form."""
    return {
        "current_stage": 1,
        "parallel_strategy_item": {"MatMul-op0": {"stage": stage, "parallel_strategy": [[2, 4]]}},
        "parallel_layout_item": {name: dict(LAYOUT) for name in names},
    }


def write_strategy(path: Path, stage: int = 0, names: tuple[str, ...] = ("weight", "bias")) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps(json_strategy(stage, names)))
    else:
        path.write_bytes(strategy(stage, names).SerializeToString())
    return path


def write_group_info(path: Path, groups: dict[str, list[int]], restore: list[int]) -> Path:
    message = pb.ParallelGroupMap()
    for name, ranks in groups.items():
        item = message.parallel_group_item.add(group_name=name)
        item.parallel_group_ranks.dim.extend(ranks)
    message.ckpt_restore_rank_list.dim.extend(restore)
    path.write_bytes(message.SerializeToString())
    return path


def write_spreads(path: Path, stage: int, parameters: Iterable[Spread]) -> Path:
    """The strategy file of one stage as MindSpore writes it: in JSON every cut is written as one list."""
    return _write_json(path, stage, parameters) if path.suffix == ".json" else _write_pb(path, stage, parameters)


def _write_pb(path: Path, stage: int, parameters: Iterable[Spread]) -> Path:
    message = strategy(stage, names=())
    for parameter in parameters:
        layouts = message.parallel_layout_item.add(param_name=parameter.name).parallel_layouts
        layouts.field = 0
        layouts.opt_weight_shard_step = parameter.opt_weight_shard_step
        layouts.opt_weight_shard_size = parameter.opt_weight_shard_size
        layouts.dev_matrix.add(dim=parameter.dev_matrix)
        for row in _rows(parameter):
            layouts.tensor_map.add(dim=row)
        layouts.param_split_shape.add()
        layouts.indices_offset.add()
    path.write_bytes(message.SerializeToString())
    return path


def _rows(parameter: Spread) -> list[list[int]]:
    """One row, or one for each axis of the tensor, and never one alone (`StrategyCheckpointInfo::to_protobuf`)."""
    if not any(isinstance(axes, tuple) for axes in parameter.tensor_map):
        return [[axis for axis in parameter.tensor_map if isinstance(axis, int)]]
    rows = [list(axes) if isinstance(axes, tuple) else [axes] for axes in parameter.tensor_map]
    return rows if len(rows) > 1 else [*rows, []]


def _write_json(path: Path, stage: int, parameters: Iterable[Spread]) -> Path:
    content = json_strategy(stage, names=())
    for parameter in parameters:
        content["parallel_layout_item"][parameter.name] = {
            "dev_matrix": parameter.dev_matrix,
            "tensor_map": flat(parameter).tensor_map,
            "tensor_shape": [64],
            "field": 0,
            "opt_weight_shard_step": parameter.opt_weight_shard_step,
            "opt_weight_shard_size": parameter.opt_weight_shard_size,
        }
    path.write_text(json.dumps(content))
    return path
