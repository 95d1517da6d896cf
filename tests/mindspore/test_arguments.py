"""Wrong arguments are told at the first start, when nothing was saved yet: after a crash it is too late."""

import logging
from pathlib import Path
from typing import Any

import mindspore
import pytest

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.errors import UsageError
from tests.mindspore.trainings import Job, create_dataset, create_model

MODEL = "model = mindspore.Model(network, loss_fn, optimizer); start = launch.resume(model, dataset)"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (lambda model, data: (model.train_network, data), f"resume got a network (TrainOneStepCell); write {MODEL}"),
        (lambda model, data: (data, model), "resume got dataset and model in the wrong order; write"),
        (lambda model, data: (None, data), f"resume needs a mindspore.Model, not NoneType; write {MODEL}"),
        (lambda model, _: (model, None), "resume needs a dataset of mindspore.dataset, not NoneType; write"),
        (lambda model, data: (model, [data]), "resume needs a dataset of mindspore.dataset, not list; write"),
    ],
    ids=["cell", "swapped", "no model", "no dataset", "list"],
)
def test_resume_says_what_it_needs(catalog: Catalog, arguments: Any, told: str) -> None:
    model, dataset = create_model(), create_dataset()
    launch = ckptstore.mindspore.join("run")
    with pytest.raises(UsageError) as refused:
        launch.resume(*arguments(model, dataset))
    assert str(refused.value).startswith(told)
    assert "\n" not in str(refused.value)
    names: dict[str, Any] = {"launch": launch, "model": model, "dataset": dataset, "mindspore": mindspore}
    names |= {"network": model._network, "loss_fn": model._loss_fn, "optimizer": model._optimizer}
    exec(refused.value.hint.removeprefix("write "), names)  # noqa: S102
    assert names["start"].fresh
    assert catalog.resolve("run").plan is None


def test_restore_without_a_dataset(catalog: Catalog) -> None:
    """Before, it ended in an AttributeError."""
    model = create_model()
    with pytest.raises(UsageError, match="restore needs a dataset of mindspore.dataset, not NoneType; give it netw"):
        ckptstore.mindspore.join("run").restore(model.train_network, model._optimizer, None)
    assert catalog.resolve("run").plan is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"run": 5}, "the name of a run is text, not int; use"),
        ({"run": None}, "the name of a run is text, not NoneType; use"),
        ({"run": "run", "launch_id": 7}, "the name of a launch is text, not int; use"),
        ({"run": "run", "directories": "ckpt"}, "directories is 'ckpt', not a list; write directories=['ckpt']"),
        ({"run": "run", "directories": Path("ckpt")}, "directories is 'ckpt', not a list; write directories=['ckpt']"),
        ({"run": "run", "directories": None}, "directories is None, not a list; give paths"),
        ({"run": "run", "directories": [None]}, "one of directories is None, not a text; give"),
        ({"run": "run", "catalog": "my.db"}, "catalog is 'my.db'; write catalog=ckptstore.connect('my.db')"),
    ],
)
def test_join_says_what_it_needs(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        ckptstore.mindspore.join(**arguments)
    assert str(refused.value).startswith(told)
    assert catalog.runs() == []
    if refused.value.hint.startswith("write "):
        assert eval(f"ckptstore.mindspore.join('run', {refused.value.hint.removeprefix('write ')})").id  # noqa: S307


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"directory": b"ckpt"}, "directory is b'ckpt', not a text; give"),
        ({"directory": None}, "directory is None, not a text; give"),
        ({"prefix": 5}, "prefix is 5; give a text without /"),
        ({"exit_flag": 1}, "exit_flag is 1, not a text; give"),
    ],
)
@pytest.mark.parametrize("way", ["saver", "loop"])
def test_what_saves_says_what_it_needs__before_a_saver_trained_without_saving(
    catalog: Catalog, tmp_path: Path, arguments: dict[str, Any], told: str, way: str
) -> None:
    model, asked = create_model(), {"directory": tmp_path, "every": 2, **arguments}
    launch = ckptstore.mindspore.join("run")
    with pytest.raises(UsageError) as refused:
        if way == "saver":
            model.train(1, create_dataset(), callbacks=[launch.saver(**asked)])
        else:
            launch.loop(model.train_network.network, model._optimizer, create_dataset(), epochs=1, **asked)
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize("way", ["a library", "the script", "a format with the rank", "a handler of ckptstore"])
def test_a_library_that_logs__before_silence__now_the_start_is_said(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    """`logging.info` sets up the root logger for warnings. What a script sets up itself stays as it is.

    Before, a format whose fields a filter of the script adds ended join with a ValueError.
    """
    root, log = logging.getLogger(), logging.getLogger("ckptstore")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(log, "handlers", [])
    levels = [(each, each.level) for each in (root, log)]
    try:
        root.setLevel(logging.WARNING)
        log.setLevel(logging.NOTSET)
        if way == "a library":
            logging.info("AdaFactor init completed")  # noqa: LOG015
        elif way == "a handler of ckptstore":
            log.addHandler(logging.StreamHandler())
        else:
            logging.basicConfig(format="%(message)s" if way == "the script" else "%(rank)d %(message)s")
        Job()
    finally:
        for each, level in levels:
            each.setLevel(level)
    said = [line for line in capsys.readouterr().err.splitlines() if "no complete checkpoint yet" in line]
    if way == "a library":
        assert said == ["INFO:ckptstore:run run: no complete checkpoint yet: starting at step 0"]
    else:
        assert not said
