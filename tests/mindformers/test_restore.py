"""What is compared after MindFormers has loaded, before the first step."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import pytest
from mindformers.tools.register import MindFormerConfig
from mindspore import nn

from ckptstore.core.model import Checkpoint, Kind
from ckptstore.errors import RefusedError
from ckptstore.mindformers.restore import Wish, _compare, check_restored


def saved(tmp_path: Path, network: Any) -> Checkpoint:
    path = tmp_path / "net.safetensors"
    ms.save_checkpoint(network, str(path).removesuffix(".safetensors"), format="safetensors")
    told = {"run": "run", "launch": "L1", "kind": Kind.PERIODIC, "global_step": 3, "rank": 0, "optimizer_step": 0}
    return Checkpoint(path=str(path), format="safetensors", size=path.stat().st_size, **told)


def train_cell() -> Any:
    network = nn.Dense(4, 4)
    return nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 0.1))


def params_of(cell: Any, *callbacks: Any) -> Any:
    return SimpleNamespace(train_network=cell, list_callback=callbacks)


def test_a_network_that_holds_what_the_file_does(tmp_path: Path) -> None:
    cell = train_cell()
    _compare(params_of(cell), [saved(tmp_path, cell)])


@pytest.mark.parametrize("name", ["weight", "moment1.weight", "global_step"])
def test_a_parameter_that_is_another_stops_the_training(tmp_path: Path, name: str) -> None:
    cell = train_cell()
    file = saved(tmp_path, cell)
    item = {each.name: each for each in cell.get_parameters()}[name]
    ms.ops.assign(item, item + 1)
    with pytest.raises(RefusedError, match=f"{name} in the train network is not what .*net.safetensors holds"):
        _compare(params_of(cell), [file])


def test_the_optimizers_counter_may_be_scaled_as_mindformers_scales_it(tmp_path: Path) -> None:
    cell = train_cell()
    file = replace(saved(tmp_path, cell), optimizer_step=5)
    cell.optimizer.global_step.set_data(ms.Tensor([10], ms.int32))
    _compare(params_of(cell), [file], step_scale=2.0)
    with pytest.raises(RefusedError, match="global_step in the train network is not what"):
        _compare(params_of(cell), [file])


def test_a_start_that_mindformers_scales_to_another_step_stops() -> None:
    """It does so where the batch size of all ranks is not the one that saved the state."""
    launch: Any = SimpleNamespace(start=SimpleNamespace(plan="a plan", global_step=5))
    config = SimpleNamespace(runner_config=SimpleNamespace(initial_step=10))
    with pytest.raises(RefusedError, match="MindFormers goes on after step 10, and the state is of step 5"):
        check_restored(launch, config, params=None)


def test_a_parameter_that_the_file_lacks_is_named_unless_mindformers_never_saves_it(tmp_path: Path) -> None:
    cell = train_cell()
    file = saved(tmp_path, cell)
    cell.more = ms.Parameter(ms.Tensor([1.0]), name="expert_load")
    with pytest.raises(RefusedError, match="1 parameters of the train network .* began with: expert_load"):
        _compare(params_of(cell), [file])
    _compare(params_of(cell, SimpleNamespace(filter_list=["expert_load"])), [file])


@pytest.mark.parametrize(
    ("config", "wish", "left"),
    [
        ({"resume_training": True, "load_checkpoint": "/a"}, Wish("/a", "resume_training"), ""),
        ({"resume_training": "net_rank_0-1_5", "load_checkpoint": "/a"}, Wish("/a", "resume_training"), ""),
        ({"resume_training": False, "load_checkpoint": "/pretrained"}, Wish(), "/pretrained"),
        (
            {"checkpoint": {"load_path": "/a", "no_load_optim": False}, "load_checkpoint": ""},
            Wish("/a", "checkpoint.load_path"),
            "",
        ),
        ({"checkpoint": {"no_load_optim": False}, "load_checkpoint": "/a"}, Wish("/a", "load_checkpoint"), ""),
        ({"checkpoint": {"load_path": "/pretrained", "no_load_optim": True}, "load_checkpoint": ""}, Wish(), ""),
    ],
)
def test_what_a_yaml_asks_to_resume_is_put_aside_and_pretrained_weights_stay(
    config: dict[str, Any], wish: Wish, left: str
) -> None:
    made = MindFormerConfig(**config)
    assert Wish.taken_from(made) == wish
    assert (made.load_checkpoint, made.resume_training) == (left, False)
    if "checkpoint" in config:
        assert made.checkpoint.load_path == ("" if wish.path else "/pretrained")
