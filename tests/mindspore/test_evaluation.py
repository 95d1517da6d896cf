"""`ckptstore.mindspore.load`: the weights of a state in a network, or an error that names what is wrong."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.core.model import Content
from ckptstore.errors import DamageError, RefusedError, UnreadableError, UsageError
from ckptstore.mindspore import evaluation
from ckptstore.tensors.opened import OpenState
from tests.mindspore.trainings import Job, create_model, saving, train
from tests.tensors.states import network as parameters
from tests.tensors.states import saved

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"


def values(network: nn.Cell) -> dict[str, bytes]:
    return {item.name: bytes(item.get_bytes()) for item in network.get_parameters()}


class Named(nn.Cell):
    """Parameters of these values by name."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        for name, value in given.items():
            self.insert_param_to_cell(name.replace(".", "_"), ms.Parameter(ms.Tensor(value), name=name))


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_scalars_that_look_like_appended_values(catalog: Catalog, tmp_path: Path, form: str) -> None:
    given = {"weight": np.ones(3, np.float32), "bn.num_batches_tracked": np.int64(7), "count": np.int64(8)}
    given |= {"flag": np.bool_(1), "logit_scale": np.float32(2.5), "loss_scale": np.float32(8), "step_num": np.int64(9)}
    saved(catalog, tmp_path, 5, given, form=form)
    network = Named({name: np.zeros_like(value) for name, value in given.items()})
    ckptstore.mindspore.load("run", network)
    assert values(network) == {name: value.tobytes() for name, value in given.items()}


@pytest.mark.parametrize(
    ("way", "mode", "form"),
    [
        ("in place", ms.GRAPH_MODE, "ckpt"),
        ("into new memory", ms.PYNATIVE_MODE, "safetensors"),
        ("by MindSpore", ms.PYNATIVE_MODE, "ckpt"),
    ],
    indirect=["way"],
)
def test_weights_of_a_training(  # noqa: PLR0917
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], way: str, mode: int, form: str
) -> None:
    """Into a network that has been used, whose graph is compiled; the optimizer's parameters are left out."""
    set_mode(mode)
    model = create_model(optimizer=nn.Adam)
    job = Job(model)
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=6, format=form)
    job.train(ckpt_cb, job.registrar(ckpt_cb))
    trained = model.train_network.network._backbone  # as the training has it now
    x, network = ms.Tensor(np.ones((2, 3), np.float32)), nn.Dense(3, 4)
    before = network(x).asnumpy()
    state = ckptstore.mindspore.load("run", network)
    assert values(network) == {name: value for name, value in values(trained).items() if name in ("weight", "bias")}
    assert network(x).asnumpy().tolist() == trained(x).asnumpy().tolist() != before.tolist()
    assert (state.run, state.launch, state.global_step) == ("run", job.launch.id, 6)
    assert [*state.metrics] == ["loss"]
    assert {"moment1.weight", "global_step"} <= state.keys()


def test_the_best_state_of_a_catalog_that_is_given(catalog: Catalog, tmp_path: Path) -> None:
    for step, accuracy in ((5, 0.25), (7, 0.75), (9, 0.5)):
        saved(catalog, tmp_path, step, parameters(step), metrics={"accuracy": accuracy})
    network = Named({"conv.bias": np.zeros(4, np.float32)})
    state = ckptstore.mindspore.load("run@best:accuracy:max", network, catalog=catalog)
    assert (state.global_step, state.metrics) == (7, {"accuracy": 0.75})
    assert network.conv_bias.asnumpy().tolist() == parameters(7)["conv.bias"].tolist()


def test_any_ranks_file_serves_and_a_rank_may_be_asked_for(catalog: Catalog, tmp_path: Path) -> None:
    saved(catalog, tmp_path, 5, parameters(1), parameters(2), layout="stand_alone")
    network = Named({"conv.bias": np.zeros(4, np.float32)})
    for rank in (0, 1):
        ckptstore.mindspore.load("run@5", network, rank=rank)
        assert network.conv_bias.asnumpy().tolist() == parameters(rank + 1)["conv.bias"].tolist()
    alike, _ = saved(catalog, tmp_path / "alike", 7, parameters(3), parameters(3))
    alike.unlink()
    ckptstore.mindspore.load("run@7", network)
    assert network.conv_bias.asnumpy().tolist() == parameters(3)["conv.bias"].tolist()


@pytest.mark.parametrize(
    ("given", "layout", "said"),
    [
        (
            {"conv.bias": np.zeros(4, np.float32), "head.weight": np.zeros(2, np.float32)},
            "data_parallel",
            r"rank_0/net-1_5\.ckpt lacks 1 parameter of the network: head\.weight; use the network that was saved$",
        ),
        (
            {"conv.bias": np.zeros(8, np.float32)},
            "stand_alone",
            r"conv\.bias is not the same in .* and in the network: Float32 \(4,\) and .*; this file is the part of r",
        ),
        ({"conv.bias": np.zeros(4, np.float16)}, "data_parallel", r"Float32 \(4,\) and Float16 \(4,\)"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_changes(  # noqa: PLR0917
    catalog: Catalog, tmp_path: Path, way: str, given: dict[str, Any], layout: str, said: str
) -> None:
    saved(catalog, tmp_path, 5, parameters(1), parameters(2), layout=layout)
    network = Named(given)
    before = values(network)
    with pytest.raises(UsageError, match=said):
        ckptstore.mindspore.load("run", network)
    assert values(network) == before


@pytest.mark.parametrize("way", ["in place", "into new memory"], indirect=True)
def test_a_damaged_file(catalog: Catalog, tmp_path: Path, way: str) -> None:
    """It says how to have it passed over; the network that it may be in by half is not trained."""
    train(create_model(), tmp_path / "ckpt")
    path = tmp_path / "ckpt" / "net-1_6.ckpt"
    path.chmod(0o600)
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    model = create_model()
    network = model.train_network.network._backbone
    before = values(network)
    said = r"net-1_6\.ckpt: it has other bytes than those recorded .*; see: ckptstore verify run --digest"
    with pytest.raises(DamageError, match=said):
        ckptstore.mindspore.load("run", network)
    assert (values(network) == before) is (way != "in place")
    job = Job(model, launch=ckptstore.mindspore.join("other"))
    if way == "in place":
        with pytest.raises(RefusedError, match="a part of it is in the network; start again"):
            job.train(job.registrar())
    catalog.verify("run", digest=True)
    assert ckptstore.mindspore.load("run", network).global_step == 4
    job.train(job.registrar())


def test_a_file_that_lacks_a_parameter_by_then(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header was another one when it was looked at."""
    saved(catalog, tmp_path, 5, parameters(1))
    monkeypatch.setattr(evaluation, "_check", lambda *_: None)
    network = Named({"head.bias": np.zeros(4, np.float32)})
    with pytest.raises(DamageError, match=r"net-1_5\.ckpt: it changed while it was read; see: ckptstore verify"):
        ckptstore.mindspore.load("run", network)


def test_an_encrypted_file(catalog: Catalog, tmp_path: Path) -> None:
    written, network, key = nn.Dense(3, 4), nn.Dense(3, 4), b"0" * 16
    path = tmp_path / "a.ckpt"
    ms.save_checkpoint(written, str(path), enc_key=key)
    catalog.join("run").register(path, global_step=5)
    with pytest.raises(UnreadableError, match="is encrypted; only MindSpore with its dec_key can read it"):
        ckptstore.mindspore.load("run", network)
    with pytest.raises(UsageError, match="MindSpore cannot read"):
        ckptstore.mindspore.load("run", network, dec_key=b"1" * 16)
    ckptstore.mindspore.load("run", network, dec_key=key)
    assert values(network) == values(written)


def test_shares_of_a_data_parallel_state(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    whole = parameters(1)
    parts = [{name: whole[name] for name in some} for some in (("conv.weight", "global_step"), ("conv.bias",))]
    saved(catalog, tmp_path, 5, *parts)
    plan = catalog.open("run").plan
    ranks = tuple(each._replace(source=replace(each.source, content=Content.SHARE)) for each in plan.ranks)
    monkeypatch.setattr(evaluation, "open_state", lambda *_, **__: OpenState(replace(plan, ranks=ranks), "run"))
    network = Named({name: np.zeros_like(whole[name]) for name in ("conv.weight", "conv.bias")})
    ckptstore.mindspore.load("run", network, rank=1)
    assert values(network) == {name: whole[name].tobytes() for name in ("conv.weight", "conv.bias")}


def test_networks_of_a_loop_by_their_names(catalog: Catalog, tmp_path: Path, way: str) -> None:
    given = {f"{each}.{name}": value for each in ("student", "teacher") for name, value in parameters(3).items()}
    saved(catalog, tmp_path, 5, given)
    networks = {each: Named({"conv.bias": np.zeros(4, np.float32)}) for each in ("student", "teacher")}
    ckptstore.mindspore.load("run", networks)
    assert networks["teacher"].conv_bias.asnumpy().tolist() == parameters(3)["conv.bias"].tolist()


def test_the_examples_of_the_docs(catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    given = {"weight": weight, "bias": np.zeros(4, np.float32), "moments.weight": weight}
    paths = saved(catalog, tmp_path, 5, given, given, run="digits", metrics={"accuracy": 0.75})
    pages = [(GUIDES / name).read_text() for name in ("evaluate.md", "numpy.md")]
    into_network, arrays = (re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0] for page in pages)
    names = {"network": nn.Dense(3, 4)}
    exec(into_network + arrays, names)  # noqa: S102 - what users are told to write
    assert names["network"].weight.asnumpy().tolist() == names["weight"].tolist() == weight.tolist()
    assert capsys.readouterr().out.splitlines() == [
        "5 {'accuracy': 0.75}",
        "digits L5 5 {'accuracy': 0.75} data_parallel",
        str(tuple(map(str, paths))),
        "weight Float32 (4, 3)",
        "bias Float32 (4,)",
        "moments.weight Float32 (4, 3)",
    ]


def test_a_model_is_no_network(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match=r"load needs a network, not Model; write load\(…, network\)"):
        ckptstore.mindspore.load("run", create_model())
