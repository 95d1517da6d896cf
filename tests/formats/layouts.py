"""Strategy and group info files as MindSpore's own messages write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mindspore.train import node_strategy_pb2 as pb


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
    layout = {
        "dev_matrix": [2, 4],
        "tensor_map": [1, -1],
        "param_split_shape": [16, 32],
        "indices_offset": [5],
        "field": 3,
        "opt_weight_shard_step": 4,
        "opt_weight_shard_size": 2,
    }
    return {
        "current_stage": 1,
        "parallel_strategy_item": {"MatMul-op0": {"stage": stage, "parallel_strategy": [[2, 4]]}},
        "parallel_layout_item": dict.fromkeys(names, layout),
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
