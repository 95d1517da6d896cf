"""A canary: this MindSpore has every private name that ckptstore relies on, and no module but compat touches one."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore
import pytest
from mindspore.train import CheckpointConfig, ModelCheckpoint
from mindspore.train.callback import OnRequestExit, _train_fault_tolerance

import ckptstore.mindspore
from ckptstore.mindspore import compat
from ckptstore.mindspore.compat import Private

EVERY = (*compat.OF_MODEL_CHECKPOINT, *compat.OF_ON_REQUEST_EXIT, *compat.OF_FAULT_TOLERANCE, *compat.OF_SEED)


@pytest.fixture(params=EVERY, ids=lambda private: f"{private.owner}.{private.name}")
def private(request: pytest.FixtureRequest) -> Private[Any]:
    return request.param


@pytest.fixture
def owner(private: Private[Any], tmp_path: Path) -> object:
    if private in compat.OF_FAULT_TOLERANCE:
        return _train_fault_tolerance
    if private in compat.OF_SEED:
        mindspore.set_seed(1)
        return sys.modules[private.owner]
    if private in compat.OF_ON_REQUEST_EXIT:
        return OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False)
    return ModelCheckpoint("net", str(tmp_path), CheckpointConfig())


def test_this_mindspore_has_it(private: Private[Any], owner: object) -> None:
    assert private.missing_in(owner) == ""
    assert private.of(owner) is not None


def test_a_mindspore_that_lacks_it_is_told_of(
    private: Private[Any], owner: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(OnRequestExit if private in compat.OF_ON_REQUEST_EXIT else owner, private.name)
    with pytest.raises(AttributeError) as failure:
        private.of(owner)
    lacks = f"MindSpore {mindspore.__version__} has no {private.owner}.{private.name}; ckptstore needs it: "
    assert str(failure.value) == lacks + private.purpose


def test_every_one_that_is_defined_is_looked_for() -> None:
    assert {value for value in vars(compat).values() if isinstance(value, Private)} == set(EVERY)


def test_a_callback_for_mindio_is_known_by_the_class_it_comes_from() -> None:
    derived = type("Own", (_train_fault_tolerance.TrainFaultTolerance,), {})
    assert compat.fault_tolerance_module(derived.__new__(derived)) is _train_fault_tolerance
    assert compat.fault_tolerance_module(object()) is None


def test_no_other_module_touches_a_private_name() -> None:
    folder = Path(ckptstore.mindspore.__file__).parent
    paths = list(folder.glob("*.py"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    own = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found = {path.name: list(private_names(tree, own)) for path, tree in zip(paths, trees, strict=True)}
    assert {name: names for name, names in found.items() if names} == {}


def is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def private_names(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """What a module takes from others by a private name: attributes, by getattr and setattr too, and imports.

    Of what it inherits, methods that are `own` ones of the package are no others'.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not is_own and not (is_super(node.value) and node.attr in own):
                yield f"{node.lineno}: {node.attr}"
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or ""
            names = [*module.split("."), *(part for each in node.names for part in each.name.split("."))]
            yield from (f"{node.lineno}: {name}" for name in names if is_private(name) and module != "__future__")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr"):
            values = (getattr(each, "value", None) for each in node.args)
            yield from (f"{node.lineno}: {value}" for value in values if is_private(value))


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")
