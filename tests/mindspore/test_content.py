"""What a file holds and how: the whole state or less, which of several callbacks, which format, which key."""

from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore import mint, nn
from mindspore.experimental import optim as experimental
from mindspore.train import Model, ModelCheckpoint

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.core.model import Content, Rule
from ckptstore.errors import UsageError
from ckptstore.mindspore.launch import TrainingLaunch
from tests.mindspore.plain_trees import Step
from tests.mindspore.trainings import Job, assert_same, create_dataset, create_model, saving, values

KEY = b"0123456789ABCDEF"


def model_with(optimizer: Any) -> tuple[Model, nn.Cell]:
    ms.set_seed(1)
    network = nn.Dense(3, 4)
    loss = nn.WithLossCell(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    return Model(Step(loss, optimizer(network))), network


def momentum(network: nn.Cell) -> nn.Cell:
    return mint.optim.SGD(network.trainable_params(), lr=0.1, momentum=0.9)


def adam(network: nn.Cell) -> nn.Cell:
    return experimental.Adam(network.trainable_params(), lr=0.1)


def train(model: Model, *callbacks: ModelCheckpoint, epochs: int = 1) -> Any:
    job = Job(model)
    job.train(*callbacks, job.registrar(*callbacks), epochs=epochs)
    return job.start


@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_the_state_of_other_optimizers_is_told_by_comparison_not_by_name(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, optimizer: Any
) -> None:
    model, network = model_with(optimizer)
    full = saving(tmp_path / "full", save_checkpoint_steps=4)
    weights = saving(tmp_path / "weights", saved_network=network)
    train(model, full, weights)
    assert caplog.text.count("saved_network leaves out the optimizer") == 1
    contents = {(file.global_step, file.content) for file in catalog.files("run")}
    assert contents == {*((step, Content.WEIGHTS) for step in (2, 4, 6)), (4, Content.FULL), (6, Content.FULL)}
    Path(catalog.resolve("run").plan.ranks[0].source.path).unlink()
    resolution = catalog.resolve("run")
    assert (resolution.plan.global_step, resolution.plan.ranks[0].source.content) == (4, Content.FULL)
    assert {reason.rule for reason in resolution.rejections[0].reasons} == {Rule.MISSING_FILE, Rule.WEIGHTS_ONLY}
    again, _ = model_with(optimizer)
    assert train(again, saving(tmp_path / "again")).global_step == 4
    assert_same(again, model)


def test_a_saved_network_with_the_optimizer_in_it_is_the_whole_state(catalog: Catalog, tmp_path: Path) -> None:
    model = create_model()
    train(model, saving(tmp_path, saved_network=model.train_network))
    assert {file.content for file in catalog.files("run")} == {Content.FULL}


def test_two_callbacks_of_one_job_are_told_apart(catalog: Catalog, tmp_path: Path) -> None:
    """Another prefix in the same directory, another directory with the same prefix, another period."""
    callbacks = (
        saving(tmp_path / "a", "net"),
        saving(tmp_path / "a", "other", save_checkpoint_steps=3),
        saving(tmp_path / "b", "net", save_checkpoint_steps=3, format="safetensors"),
    )
    train(create_model(), *callbacks)
    found: dict[int, set[str]] = {}
    for file in catalog.files("run"):
        found.setdefault(file.global_step, set()).add(str(Path(file.path).relative_to(tmp_path)))
    assert found == {
        2: {"a/net-1_2.ckpt"},
        3: {"a/other-1_3.ckpt", "b/net-1_3.safetensors"},
        4: {"a/net-1_4.ckpt"},
        6: {"a/net-1_6.ckpt", "a/other-1_6.ckpt", "b/net-1_6.safetensors"},
    }
    for name in ("a/net-1_6.ckpt", "a/other-1_6.ckpt"):
        (tmp_path / name).unlink()
    start = ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    assert start.global_step == 6
    assert start.plan.ranks[0].source.format == "safetensors"


def test_encrypted_files_are_registered_and_loaded_with_their_key(catalog: Catalog, tmp_path: Path) -> None:
    first = create_model()
    train(first, saving(tmp_path, enc_key=KEY, enc_mode="AES-GCM"))
    for wrong in ({}, {"dec_key": b"another-key-here"}):
        with pytest.raises(UsageError, match=r"MindSpore cannot read .*; if it was saved with enc_key, give that to"):
            ckptstore.mindspore.join("run").resume(create_model(), create_dataset(), **wrong)
    second = create_model()
    start = ckptstore.mindspore.join("run").resume(second, create_dataset(), dec_key=KEY)
    assert start.global_step == 6  # a key that was forgotten cost nothing
    assert_same(second, first)


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_a_key_does_no_harm_to_a_file_that_is_not_encrypted(catalog: Catalog, tmp_path: Path, form: str) -> None:
    """A script that encrypted changed to a saver, which does not: the older states still need the key."""
    first = create_model()
    train(first, saving(tmp_path, format=form))
    second, third = create_model(), create_model()
    start = ckptstore.mindspore.join("run").resume(second, create_dataset(), dec_key=KEY)
    assert start.global_step == 6
    assert_same(second, first)
    ckptstore.mindspore.join("other").resume(third, create_dataset(), initial="run", dec_key=KEY)
    ckptstore.mindspore.load("run", third._network, dec_key=KEY)


def test_shares_that_a_scan_found_are_put_together_where_the_job_is_data_parallel(
    catalog: Catalog, tmp_path: Path
) -> None:
    """No file says what the launch was that saved them; the network of the one that loads has every parameter whole."""
    first = create_model()
    train(first, saving(tmp_path / "unused"), epochs=2)
    names = list(values(first))
    for rank in range(2):
        home = tmp_path / "tree" / f"rank_{rank}"
        home.mkdir(parents=True)
        share = set(names[rank::2])
        for step, name in ((4, "net-1_4"), (8, "net-2_2"), (12, "net-2_6")):
            path = home / f"{name}.safetensors"
            counted = {item.name: item for item in first.train_network.get_parameters()}
            counted["global_step"] = ms.Parameter(ms.Tensor([step], ms.int32), name="global_step")
            kept = [{"name": name, "data": counted[name]} for name in names if name in share]
            ms.save_checkpoint(kept, str(path), format="safetensors", remove_redundancy=True)
    catalog.scan(tmp_path / "tree", run="shares", world_size=2)
    assert catalog.resolve("shares").plan.in_shares
    joined = catalog.join("shares", rank=1, world_size=2, launch_id="L1", layout="data_parallel")
    second = create_model()
    assert TrainingLaunch(joined.database, joined.facts, 1).resume(second, create_dataset()).global_step == 12
    assert_same(second, first)
