"""A run that begins from the state of another one, in this process with real networks."""

import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, nn
from mindspore.experimental import optim
from mindspore.train import Model

import ckptstore.mindspore
from ckptstore.api import Catalog, connect
from ckptstore.errors import DamageError, NothingRestorableError, RefusedError, UnknownRunError, UsageError
from ckptstore.mindspore import TrainState
from ckptstore.mindspore.initial import Warm, asked_for
from ckptstore.mindspore.launch import TrainingLaunch
from ckptstore.retention.policy import Policy
from tests.mindspore import cells
from tests.mindspore.running import Run
from tests.mindspore.trainings import RaiseAt, create_dataset, create_model, saving, values

KILLED = -signal.SIGKILL


class Net(nn.Cell):
    """A part that is trained before, under a name of its own, and a head."""

    def __init__(self, part: str = "backbone", width: int = 4) -> None:
        super().__init__()
        self.part = nn.Dense(3, 5)
        self.part.update_parameters_name(f"{part}.")
        self.head = nn.Dense(5, width)

    def construct(self, x: Any) -> Any:
        return self.head(self.part(x))


def create(part: str = "backbone", width: int = 4, *, fill: float | None = None, optimizer: Any = nn.Adam) -> Model:
    """A model whose weights are all one number, if there is one."""
    network = Net(part, width)
    for item in network.get_parameters() if fill is not None else ():
        item.set_data(ms.Tensor(np.full(item.shape, fill, np.float32)))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return Model(network, loss, optimizer(network.trainable_params(), learning_rate=0.1))


def pretrain(directory: Path, *steps: int) -> Model:
    """One launch, which has saved a model at these steps, the best last."""
    model = create()
    for item in model.train_network.get_parameters():
        if item.name == "global_step" or item.name.startswith("moment"):
            item.set_data(ms.Tensor(np.full(item.shape, 7), item.dtype))
    directory.mkdir(exist_ok=True)
    launch = connect().join("pretrain")
    launch.resolve()
    for step in steps:
        path = directory / f"{launch.id}-{step}.ckpt"
        ms.save_checkpoint(model.train_network, str(path), append_dict={"epoch_num": 1})
        launch.register(path, global_step=step, metrics={"loss": 1 / step})
    return model


def begin(model: Model, *, run: str = "ft", **asked: Any) -> tuple[TrainingLaunch, Any]:
    """A launch of the run, and where it starts."""
    launch = ckptstore.mindspore.join(run)
    return launch, launch.resume(model, create_dataset(), **{"initial": "pretrain@best:loss", **asked})


def train(model: Model, launch: TrainingLaunch, directory: Path, *more: Any, epochs: int = 1, steps: int = 3) -> None:
    ckpt_cb = saving(directory, save_checkpoint_steps=steps)
    dataset = create_dataset()
    dataset.set_init_step(launch.global_step)
    model.train(
        epochs,
        dataset,
        callbacks=[*more, ckpt_cb, launch.registrar(ckpt_cb)],
        initial_epoch=launch.start.initial_epoch if launch.start else 0,
    )


def said(caplog: pytest.LogCaptureFixture) -> str:
    return next(message for message in reversed(caplog.messages) if "began from" in message)


def die_before_a_save(directory: Path) -> None:
    """A launch of the run that begins from another one, and fails; then that other one has a better state."""
    launch, _ = begin(model := create())
    with pytest.raises(RuntimeError, match="on purpose"):
        train(model, launch, directory / "ft", RaiseAt(2))
    pretrain(directory / "pretrain", 12)


@pytest.fixture
def parent(catalog: Catalog, tmp_path: Path) -> dict[str, Any]:
    """The weights of the run `pretrain` at its best state, the last: step 6."""
    return values(pretrain(tmp_path / "pretrain", 2, 4, 6))


def test_it_begins_with_the_weights_that_fit(parent: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    model = create(width=2, fill=0.5)
    _, start = begin(model)
    assert (start.fresh, start.global_step, start.initial_epoch) == (True, 0, 0)
    assert (start.initial.launch.run, start.initial.global_step) == ("pretrain", 6)
    now = values(model)
    for name in ("backbone.weight", "backbone.bias"):
        assert np.array_equal(now[name], parent[name])
        assert not now[f"moment1.{name}"].any()
    assert (now["head.weight"] == 0.5).all()
    assert (now["global_step"], now["learning_rate"]) == (0, np.float32(0.1))
    assert said(caplog) == (
        f"run ft: began from step 6 of run pretrain (launch {start.initial.launch.id}), 2 parameters; "
        "of another shape or type: 2 (head.bias: Float32 (4,) for Float32 (2,), "
        "head.weight: Float32 (4, 5) for Float32 (2, 5))"
    )


def test_the_optimizer_too_with_other_names(parent: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    model = create("encoder", fill=0.5)
    begin(model, initial_optimizer=True, rename={"backbone.": "encoder."})
    now = values(model)
    for name, before in parent.items():
        taken = now[name.replace("backbone.", "encoder.")]
        if name not in ("global_step", "learning_rate"):
            assert np.array_equal(taken, before), name
    assert now["global_step"] == 0
    assert said(caplog).endswith("14 parameters")


class Counting(nn.Cell):
    """Scalars beside its weights, which look like appended values."""

    def __init__(self, count: int, scale: float) -> None:
        super().__init__()
        self.layer = mint.nn.BatchNorm1d(3)
        self.layer.num_batches_tracked.set_data(ms.Tensor(count, ms.int64))
        self.count = ms.Parameter(ms.Tensor(count, ms.int64), name="count", requires_grad=False)
        self.scale = ms.Parameter(ms.Tensor(scale, ms.float32), name="scale")
        self.step_num = ms.Parameter(ms.Tensor(count, ms.int64), name="step_num", requires_grad=False)


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
@pytest.mark.parametrize("appended", [None, {"epoch_num": 1, "a.b": 2}])
def test_scalars_that_look_like_appended_values(
    catalog: Catalog, tmp_path: Path, form: str, appended: dict[str, int] | None
) -> None:
    path = tmp_path / f"a.{form}"
    ms.save_checkpoint(Counting(7, 2.5), str(path), format=form, append_dict=appended)
    first = catalog.join("pretrain")
    first.resolve()
    first.register(path, global_step=5)
    network = Counting(0, 0.5)
    begin(
        Model(network, optimizer=nn.Momentum(network.trainable_params(), 0.1, 0.9)),
        initial="pretrain",
        strict=form == "ckpt",
    )
    of_counts = (network.layer.num_batches_tracked, network.count, network.step_num)
    found = [item.asnumpy().item() for item in (*of_counts, network.scale)]
    assert found == [7, 7, 7, 2.5]


def test_what_is_left_over_is_listed_and_strict_refuses_it(
    parent: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = create("encoder", fill=0.5)
    with pytest.raises(
        UsageError, match=r"do not fit: 2 parameters; not in the file: 2 \(encoder.bias, encoder.weight\)"
    ):
        begin(model, strict=True)
    assert (values(model)["head.weight"] == 0.5).all(), "it was refused before anything changed"
    begin(model)
    assert said(caplog).endswith("not used: 2 (backbone.bias, backbone.weight)")
    begin(model, strict=True, rename={"backbone.": "encoder."})
    assert said(caplog).endswith(", 4 parameters")


def test_what_makes_no_sense_is_refused(parent: dict[str, Any], catalog: Catalog) -> None:
    for asked, error, told in (
        ({"initial": "pretrian@6"}, UnknownRunError, "no run 'pretrian'"),
        ({"initial": "ft"}, UsageError, "names run 'ft' itself"),
        ({"initial": "pretrain@7"}, NothingRestorableError, "no save of step 7; it has 2, 4, 6"),
        ({"initial": "pretrain@nobody"}, UsageError, "has no tag 'nobody'"),
        ({"initial": 6}, UsageError, "initial is 6"),
        ({"initial": None, "strict": True}, UsageError, "no state is named"),
        ({"rename": "backbone."}, UsageError, "rename is 'backbone.'"),
        ({"rename": {"bakcbone.": "encoder."}}, UsageError, "no parameter of the file begins with 'bakcbone.'"),
        (
            {"rename": {"backbone.": "head."}},
            UsageError,
            "both backbone.bias and head.bias of the file would be head.bias",
        ),
        ({"rename": {"backbone.": "a.", "head.": "b."}}, UsageError, "no parameter of .* fits the network"),
    ):
        with pytest.raises(error, match=told):
            begin(create(), **asked)


def test_a_restart_begins_from_the_same_state_though_the_best_has_moved(
    parent: dict[str, Any], tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    die_before_a_save(tmp_path)
    best = catalog.resolve("pretrain@best:loss").plan
    assert best.global_step == 12
    again = create()
    launch, second = begin(again)
    assert second.initial.global_step == 6
    assert np.array_equal(values(again)["head.weight"], parent["head.weight"])
    train(again, launch, tmp_path / "ft")
    started = create()
    _, third = begin(started)
    assert (third.fresh, third.initial, third.global_step) == (False, None, 6)
    assert np.array_equal(values(started)["head.weight"], values(again)["head.weight"])
    assert "going on after step 6" in caplog.messages[-1]


def test_another_reference_or_a_fresh_start_chooses_anew(parent: dict[str, Any], tmp_path: Path) -> None:
    begin(create())
    assert begin(create(), initial="pretrain@4")[1].initial.global_step == 4
    pretrain(tmp_path / "pretrain", 12)
    assert begin(create(), initial="pretrain")[1].initial.global_step == 12
    assert begin(create(), initial="pretrain@4", fresh=True)[1].initial.global_step == 4
    assert ckptstore.mindspore.join("ft").resume(create(), create_dataset(), fresh=True).initial is None
    assert begin(create(), initial="pretrain@best:loss")[1].initial.global_step == 12


def test_no_start_begins_with_other_weights_in_silence(parent: dict[str, Any], catalog: Catalog) -> None:
    begin(create())
    with pytest.raises(NothingRestorableError, match=r"began from step 6 .* no state of its own yet; resume\(initial="):
        ckptstore.mindspore.join("ft").resume(create(), create_dataset())
    (file,) = catalog.show("pretrain", 6)
    kept, seen = Path(file.path).read_bytes(), Path(file.path).stat()
    Path(file.path).write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    os.utime(file.path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    model = create(fill=0.5)
    with pytest.raises(DamageError, match=f"{file.path}.* other bytes than those recorded.*verify pretrain --digest"):
        begin(model)
    assert (values(model)["head.weight"] == 0.5).all()
    Path(file.path).unlink()
    told = r"run 'ft' began from step 6 of run pretrain \(launch .*\) and has no state of its own, and that one cannot"
    with pytest.raises(NothingRestorableError, match=told):
        begin(create())
    assert begin(create(), fresh=True)[1].initial.global_step == 4


def test_the_parents_gc_keeps_the_state_until_the_child_has_its_own(
    parent: dict[str, Any], tmp_path: Path, catalog: Catalog
) -> None:
    newest = Policy(keep_last=1, floor=1)
    before = catalog.plan_gc("pretrain", newest)
    launch, _ = begin(model := create(), initial="pretrain@2")
    kept = {each.state.global_step: each.reasons for each in catalog.plan_gc("pretrain", newest).decision.keep}
    assert [why.detail for why in kept[2]] == ["run ft began from it and has no state of its own yet"]
    assert 4 not in kept
    done = catalog.execute(before)
    assert ([step for _, step in done.removed], [each.reason for each in done.skipped]) == (
        [4],
        ["run ft began from it and has no state of its own yet"],
    )
    train(model, launch, tmp_path / "ft")
    shutil.rmtree(tmp_path / "ft")
    gone = catalog.plan_gc("pretrain", newest)
    assert [each.state.global_step for each in gone.decision.remove] == [2], "it had one: what is lost is no new begin"


def test_the_catalog_tells_who_began_from_where_and_a_run_that_was_forgotten_keeps_nothing(
    parent: dict[str, Any], catalog: Catalog
) -> None:
    begin(create(), initial="pretrain@2")
    (row,) = catalog.history("ft")
    assert (row.launch.initial.run, row.launch.initial.global_step) == ("pretrain", 2)
    assert {row.global_step: row.began for row in catalog.saves("pretrain")} == {6: (), 4: (), 2: ("ft",)}
    catalog.forget("ft")
    plan = catalog.plan_gc("pretrain", Policy(keep_last=1, floor=1))
    assert [each.state.global_step for each in plan.decision.remove] == [4, 2]
    assert {row.began for row in catalog.saves("pretrain")} == {()}


def test_journals_alone_tell_what_it_began_from(parent: dict[str, Any], tmp_path: Path, catalog: Catalog) -> None:
    die_before_a_save(tmp_path)
    shown = catalog.history("ft")[0].launch.initial
    anew = connect(str(tmp_path / "anew.db"))
    for name in ("ft", "pretrain"):
        anew.sync(tmp_path / name)
    assert anew.history("ft")[0].launch.initial == shown
    assert [row.began for row in anew.saves("pretrain")] == [row.began for row in catalog.saves("pretrain")]
    launch = ckptstore.mindspore.join("ft", catalog=anew)
    assert launch.resume(create(), create_dataset(), initial="pretrain@best:loss").initial.global_step == 6


def test_without_the_catalog_it_begins_from_the_same_state(
    parent: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: Catalog
) -> None:
    die_before_a_save(tmp_path)
    catalog.close()
    away = tmp_path / "catalog.db"
    away.rename(tmp_path / "away.db")
    away.mkdir()
    _, start = begin(create())
    assert (start.by_journals, start.initial.global_step) == (True, 6)
    for memory in Path(os.environ["XDG_STATE_HOME"]).glob("ckptstore/directories/*"):
        if "pretrain" in memory.read_text():  # as if the parent had been trained on another machine
            memory.unlink()
    told = "cannot be loaded now: the catalog has no run 'pretrain'; ckptstore scan DIRECTORY --run pretrain"
    with pytest.raises(NothingRestorableError, match=told):
        begin(create())
    monkeypatch.setenv("CKPTSTORE_DIRECTORIES", str(tmp_path / "pretrain"))
    _, start = begin(create())
    assert (start.by_journals, start.initial.global_step) == (True, 6)


@pytest.mark.parametrize("way", ["loop", "restore"])
def test_a_loop_of_the_scripts_own_begins_so_too(parent: dict[str, Any], tmp_path: Path, way: str) -> None:
    network = Net("encoder")
    optimizer = nn.Adam(network.trainable_params(), 0.1)
    asked: dict[str, Any] = {"initial": "pretrain", "rename": {"backbone.": "encoder."}, "strict": True}
    launch = ckptstore.mindspore.join("ft")
    if way == "loop":
        directory = tmp_path / "ft"
        loop = launch.loop(network, optimizer, create_dataset(), epochs=1, every=9, directory=directory, **asked)
        assert (loop.start.global_step, loop.start.initial.global_step) == (0, 6)
    else:
        assert launch.restore(network, optimizer, create_dataset(), **asked).initial.global_step == 6
    for name in ("weight", "bias"):
        assert np.array_equal(getattr(network.part, name).asnumpy(), parent[f"backbone.{name}"])
    assert not any(item.asnumpy().any() for item in optimizer.moment1)


def test_networks_and_optimizers_by_name(catalog: Catalog, tmp_path: Path) -> None:
    def made(fill: float) -> tuple[dict[str, nn.Cell], dict[str, Any]]:
        networks = {name: nn.Dense(3, 4, weight_init="ones") for name in ("g", "d")}
        optimizers = {f"of_{name}": optim.Adam(each.trainable_params()) for name, each in networks.items()}
        for item in TrainState(networks, optimizers).named.values():
            item.set_data(ms.Tensor(np.full(item.shape, fill), item.dtype))
        return networks, optimizers

    path = tmp_path / "gan.safetensors"
    TrainState(*made(2)).write(str(path))
    catalog.join("pretrain").register(path, global_step=6)
    for number, optimizer in enumerate((False, True)):
        networks, optimizers = made(5)
        launch = ckptstore.mindspore.join(f"ft-{number}")
        asked: dict[str, Any] = {"initial": "pretrain", "initial_optimizer": optimizer, "strict": True}
        launch.restore(networks, optimizers, create_dataset(), **asked)
        named = TrainState(networks, optimizers).named
        now = {name: float(item.asnumpy().reshape(-1)[0]) for name, item in named.items()}
        left = {name for name, value in now.items() if value == 5}
        scripts = {name for name in now if name.split(".")[1] in ("state_step", "learning_rate_group_0")}
        assert left == scripts | {name for name in now if name.startswith("of_") and not optimizer}


@pytest.mark.parametrize("how", ["graph mode", "by MindSpore", "encrypted", "half precision", "safetensors"])
def test_whatever_the_file_and_the_mode(
    catalog: Catalog, tmp_path: Path, set_mode: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    model = create()
    before = values(model)
    asked: dict[str, Any] = {}
    path, saved = tmp_path / ("a.safetensors" if how == "safetensors" else "a.ckpt"), model.train_network
    if how == "encrypted":
        asked = {"enc_key": b"0123456789abcdef"}
    if how == "half precision":
        kinds = {"head.weight": ms.bfloat16, "head.bias": ms.float64}
        saved = [
            {
                "name": name,
                "data": ms.Tensor(value, kinds.get(name, ms.float16)) if value.size > 1 else ms.Tensor(value),
            }
            for name, value in before.items()
        ]
    ms.save_checkpoint(saved, str(path), format=path.suffix[1:], **asked)
    catalog.join("pretrain").register(path, global_step=6)
    if how == "by MindSpore":
        monkeypatch.setenv("CKPTSTORE_LOADER", "mindspore")
    set_mode(ms.GRAPH_MODE if how == "graph mode" else ms.PYNATIVE_MODE)
    second = create(fill=0.5)
    launch, _ = begin(second, initial="pretrain", strict=True, **({"dec_key": asked["enc_key"]} if asked else {}))
    for name, value in values(second).items():
        if name.partition(".")[0] in ("backbone", "head"):
            assert np.allclose(value, before[name], atol=0 if how != "half precision" else 0.01), name
    if how == "graph mode":
        train(second, launch, tmp_path / "ft")
        assert not np.array_equal(values(second)["head.weight"], before["head.weight"]), "it is these that are trained"


def test_the_lines_of_the_page(parent: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "how-to" / "fine-tune.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    shorter = program.replace("10, dataset", "1, dataset").replace("every=100", "every=2")
    exec(shorter, {"ckptstore": ckptstore, "model": create(), "dataset": create_dataset()})  # noqa: S102
    assert [row.global_step for row in connect().saves("tuned")] == [6, 4, 2]


def test_a_network_with_half_of_the_state_is_not_trained(
    parent: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("the device is gone")

    model = create()
    monkeypatch.setattr("ckptstore.mindspore.initial.put", fails)
    with pytest.raises(RuntimeError, match="the device is gone"):
        begin(model)
    launch = ckptstore.mindspore.join("other")
    launch.resume(model, create_dataset())
    with pytest.raises(RefusedError, match="a part of it is in the network"):
        train(model, launch, tmp_path / "ft")
    monkeypatch.undo()
    launch = ckptstore.mindspore.join("third", catalog=connect(str(tmp_path / "catalog.db")))
    launch.resume(model, create_dataset(), initial="pretrain")
    train(model, launch, tmp_path / "ft")


def test_what_is_a_weight() -> None:
    for model in (cells.overflowing(), cells.accumulating(), create_model()):
        assert asked_for(model.train_network, Warm("run")).keys() == {"weight", "bias"}
    scale = {"scale_sense", "current_iterator_step", "last_overflow_iterator_step"}
    moments = {"momentum", "moments.weight", "moments.bias"}
    found = asked_for(cells.overflowing().train_network, Warm("run", optimizer=True)).keys()
    assert found == {"weight", "bias", *moments, *scale}
    networks = {name: nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4)) for name in ("g", "d")}
    optimizers = {name: optim.Adam(each.trainable_params()) for name, each in networks.items()}
    state = TrainState(networks, {f"{name}_optimizer": each for name, each in optimizers.items()})
    own = ("0.weight", "0.bias", "1.gamma", "1.beta", "1.moving_mean", "1.moving_variance")
    assert asked_for(state, Warm("run")).keys() == {f"{name}.{each}" for name in networks for each in own}
    assert "g_optimizer.state_step" in state.named
    more = asked_for(state, Warm("run", optimizer=True)).keys() - asked_for(state, Warm("run")).keys()
    assert {name.split(".")[1] for name in more} == {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}


@pytest.mark.long
def test_the_whole_story(tmp_path: Path) -> None:
    """Trained on 2 ranks, tuned on 1 with another head from its best state; killed before its first save, and after."""
    base = Run(tmp_path / "base")
    assert base.launch(ranks=2, sharded=True, epochs=4).code == 0
    base.catalog.record("run@15", quality=0.9)
    asked = {"classes": 6, "begins": {"initial": "run@best:quality:max"}}
    calm, rough = (Run(tmp_path / name, base.url) for name in ("calm", "rough"))
    done = calm.launch(run="calm", **asked)
    assert done.code == 0
    assert "run calm: began from step 15 of run run" in done.output
    assert rough.launch(run="rough", fault="kill-at-once 3", **asked).code == KILLED

    assert base.launch(ranks=2, sharded=True, epochs=6).start["global_step"] == 20
    base.catalog.record("run@30", quality=0.95)
    policy = Policy(keep_last=1, floor=1)
    plan = base.catalog.plan_gc("run", policy)
    kept = {each.state.global_step: [str(why.rule) for why in each.reasons] for each in plan.decision.keep}
    assert kept == {30: ["floor", "last"], 15: ["initial"]}
    base.catalog.execute(plan)
    died = rough.launch(run="rough", fault="kill 17", **asked)
    assert (died.code, died.start["fresh"]) == (KILLED, True)
    assert "run rough: began from step 15 of run run" in died.output
    plan = base.catalog.plan_gc("run", policy)
    assert [each.state.global_step for each in plan.decision.remove] == [15]
    base.catalog.execute(plan)
    again = rough.launch(run="rough", **asked)
    assert (again.code, again.start["global_step"]) == (0, 15), again.output
    assert rough.final() == calm.final()

    anew = connect(str(tmp_path / "anew.db"))
    for name in ("rough", "calm", "base"):
        anew.sync(tmp_path / name)
    for name in ("rough", "calm"):
        told = [[each.launch.initial for each in of.history(name)] for of in (anew, base.catalog)]
        assert told[0] == told[1]


@pytest.mark.long
def test_every_rank_s_journal_tells_what_two_ranks_began_from(tmp_path: Path) -> None:
    base, tuned = Run(tmp_path / "base"), Run(tmp_path / "tuned", str(tmp_path / "base" / "catalog.db"))
    assert base.launch().code == 0
    done = tuned.launch(ranks=2, run="tuned", sharded=True, begins={"initial": "run", "strict": True})
    assert done.code == 0, done.output
    assert (tmp_path / "tuned" / "final.ckpt").read_bytes() == (tmp_path / "tuned" / "final1.ckpt").read_bytes()
    for rank in range(2):
        anew = connect(str(tmp_path / f"anew{rank}.db"))
        anew.sync(tmp_path / "tuned" / "ckpt" / f"rank_{rank}")
        (row,) = anew.history("tuned")
        assert (row.launch.initial.run, row.launch.initial.global_step) == ("run", 30)
