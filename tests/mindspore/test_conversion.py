"""What the message prints is performed, and every value compared."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore.train import node_strategy_pb2 as pb
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from ckptstore.api import connect
from ckptstore.core.model import Content, State
from ckptstore.core.replicas import data_parallel, stand_alone
from ckptstore.resume.remedies import how_to_convert
from tests.command_line import ckptstore
from tests.resume.builders import file, launch, state

Array = NDArray[Any]
WEIGHT: Array = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
WHOLE: Mapping[str, Array] = {"w": WEIGHT, "adam_m.w": WEIGHT + 1000, "row.w": WEIGHT + 2000, "bias": WEIGHT[0] + 3000}
CUTS: Mapping[str, tuple[int, ...]] = {"w": (-1, 0), "adam_m.w": (-1, 0), "row.w": (0, -1), "bias": (-1,)}
"""Along which axis of the grid, counted from its end, each axis is cut: by column, by row, not at all."""


def strategy(path: Path, grid: tuple[int, ...], stage: int = 0, names: tuple[str, ...] = tuple(WHOLE)) -> str:
    message = pb.ParallelStrategyMap(current_stage=1)
    message.parallel_strategy_item.add(node_name="MatMul-op0").parallel_strategys.stage = stage
    for name in names:
        layouts = message.parallel_layout_item.add(param_name=name).parallel_layouts
        layouts.field = layouts.opt_weight_shard_step = layouts.opt_weight_shard_size = 0
        layouts.dev_matrix.add(dim=grid)
        layouts.tensor_map.add(dim=CUTS[name])
        layouts.param_split_shape.add(dim=[1])
        layouts.indices_offset.add(dim=[0])
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(message.SerializeToString())
    return str(path)


def part(name: str, grid: tuple[int, ...], rank: int) -> Array:
    value, at = WHOLE[name], np.unravel_index(rank, grid)
    for axis, cut in enumerate(CUTS[name]):
        if cut >= 0:
            place = len(grid) - 1 - cut
            value = np.split(value, grid[place], axis=axis)[at[place]]
    return np.ascontiguousarray(value)


def save(path: Path, values: Mapping[str, Array], form: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    every = {**values, "global_step": np.array([91], np.int32), "learning_rate": np.array(0.1, np.float32)}
    parameters: Any = [{"name": name, "data": mindspore.Tensor(value)} for name, value in every.items()]
    mindspore.save_checkpoint(parameters, str(path), format=form, append_dict={"epoch_num": 10, "step_num": 91})
    return str(path)


def states(tmp_path: Path, form: str, stages: list[tuple[str, ...]], grid: tuple[int, ...], newest: str) -> State:
    """A state with older files beside it, which come later by name."""
    size = int(np.prod(grid))
    of = launch(world_size=size * len(stages))
    files = []
    for stage, names in enumerate(stages):
        told = strategy(tmp_path / "strategies" / f"strategy_{stage}.ckpt", grid, stage, names)
        for rank in range(size):
            home = tmp_path / "saved" / f"rank_{stage * size + rank}"
            path = save(home / f"{newest}.{form}", {name: part(name, grid, rank) for name in names}, form)
            save(home / f"net-9_9.{form}", {name: part(name, grid, rank) * 0 for name in names}, form)
            one = replace(file(of, stage * size + rank, step=91), path=path, format=form, strategy_file=told)
            files.append(replace(one, epoch=10, step_in_epoch=1))
    return state(of, *files, step=91)


def perform(text: str, catalog: str, **names: Any) -> None:
    """Do what a message says is to be done, one thing after another, in a catalog of its own."""
    for each in text.partition("convert it: ")[2].split(", then "):
        if each.startswith("ckptstore "):
            words = [str(names.get(word, word)) for word in each.split()[1:]]
            scanned = ckptstore(*words, CKPTSTORE_URL=catalog)
            assert scanned.code == 0, scanned.err
        else:
            exec(each, {"mindspore": mindspore, **names})  # noqa: S102


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
@pytest.mark.parametrize(
    ("stages", "grid"), [([tuple(WHOLE)], (2, 2)), ([("w", "adam_m.w"), ("row.w", "bias")], (2,))], ids=["tp", "pp"]
)
def test_what_is_printed_converts_every_value(
    tmp_path: Path, form: str, stages: list[tuple[str, ...]], grid: tuple[int, ...]
) -> None:
    text = how_to_convert(states(tmp_path, form, stages, grid, "net-10_1"))
    assert ("merge_pipeline_strategys" in text) == (len(stages) > 1)
    targets: list[tuple[int, ...]] = [(4,), (2, 4), (1,)]
    for target in targets:
        out = tmp_path / f"out_{len(target)}_{target[-1]}"
        out.mkdir()
        wanted = strategy(tmp_path / f"{out.name}.ckpt", target) if target != (1,) else None
        ranks = int(np.prod(target))
        merged = str(tmp_path / "merged.ckpt")
        url = str(tmp_path / f"{out.name}.db")
        perform(text, url, DST_DIR=out, DST_STRATEGY=wanted, NEW_RANKS=ranks, SRC_STRATEGY=merged, NEW_RUN="new")
        plan = connect(url).resolve("new").plan
        assert (plan.global_step, plan.launch.world_size) == (91, ranks)
        for rank in range(ranks):
            (source,) = plan.files_for(rank, plan.launch.layout)
            found = mindspore.load_checkpoint(source.path)
            assert {name: found[name].asnumpy().tolist() for name in WHOLE} == {
                name: part(name, target, rank).tolist() for name in WHOLE
            }
            assert found["global_step"].asnumpy().tolist() == [91]


@pytest.mark.parametrize("layout", [stand_alone(), data_parallel(2)], ids=["alone", "data_parallel"])
def test_what_is_whole_in_one_file_is_cut_for_many(tmp_path: Path, layout: Any) -> None:
    of = launch(world_size=2 if layout.any_world_size else 1, layout=layout)
    files = [
        replace(file(of, rank), path=save(tmp_path / f"rank_{rank}" / "n-10_1.ckpt", WHOLE, "ckpt"))
        for rank in range(of.world_size)
    ]
    wanted = strategy(tmp_path / "wanted.ckpt", (4,))
    out = tmp_path / "out"
    out.mkdir()
    url = str(tmp_path / "catalog.db")
    perform(how_to_convert(state(of, *files)), url, DST_DIR=out, DST_STRATEGY=wanted, NEW_RANKS=4, NEW_RUN="new")
    for rank in range(4):
        found = mindspore.load_checkpoint(str(out / f"converted_rank_{rank}-1_15.ckpt"))
        assert all(np.array_equal(found[name].asnumpy(), part(name, (4,), rank)) for name in WHOLE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # MindSpore leaves files open
def test_shares_are_put_together_as_printed(tmp_path: Path) -> None:
    """Of each pair of replicas one has the first parameters, and the other the rest."""
    of = launch(world_size=4)
    told = strategy(tmp_path / "strategy.ckpt", (2, 2))
    files = []
    for rank in range(4):
        path = tmp_path / "saved" / f"rank_{rank}" / "net-10_1.safetensors"
        path.parent.mkdir(parents=True)
        names = ("w", "bias") if rank < 2 else ("adam_m.w", "row.w")
        values = {name: part(name, (2, 2), rank) for name in names}
        save_file(values, path, {"format": "ms", "remove_redundancy": "True"})
        one = replace(file(of, rank), path=str(path), format="safetensors", strategy_file=told, content=Content.SHARE)
        files.append(one)
    out = tmp_path / "out"
    perform(how_to_convert(state(of, *files)), "", DST_DIR=str(out))
    found: dict[str, Array] = {}
    for each in out.glob("*.safetensors"):
        found |= load_file(each)
    assert {name: found[name].tolist() for name in WHOLE} == {name: value.tolist() for name, value in WHOLE.items()}
