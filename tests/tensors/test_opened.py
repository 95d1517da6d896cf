"""`Catalog.open`: which state it is, and its tensors as NumPy arrays, against what MindSpore loads."""

import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest

from ckptstore.api import Catalog, connect
from ckptstore.core.model import Content
from ckptstore.errors import DamageError, UsageError
from ckptstore.tensors.opened import OpenState
from tests.ckpt_bytes import value
from tests.tensors.states import network, saved, written

pytestmark = pytest.mark.of_files
TYPES = ("bool_", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32")
TYPES += ("float64", "bfloat16")


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_each_type_is_as_mindspore_loads_it(catalog: Catalog, tmp_path: Path, form: str) -> None:
    chance = np.random.default_rng(1)
    given = {
        f"{dtype}.{len(shape)}": ms.Tensor(chance.integers(0, 100, shape), ms.float32).astype(getattr(ms, dtype))
        for dtype in TYPES
        for shape in ((), (1,), (3, 5), (40, 9, 1))
    }
    (path,) = saved(catalog, tmp_path, 5, given, form=form)
    state = catalog.open("run")
    loaded = ms.load_checkpoint(str(path), format=form)
    named = sorted(loaded.keys() - state.info.keys())  # of a .safetensors two scalars look like appended values
    assert sorted(state) == named
    assert len(state) == len(named) >= len(given) - 2
    for name in named:
        expected = loaded[name]
        array, bits = state[name], np.asarray(expected.asnumpy())
        assert (array.shape, array.tobytes()) == (bits.shape, bits.tobytes()), name
        assert array.dtype == (np.uint16 if name.startswith("bfloat16") else bits.dtype)
        assert array.flags.writeable
        assert (state.tensors[name].dtype, state.tensors[name].shape) == (str(expected.dtype), bits.shape)


def test_which_state_it_is(catalog: Catalog, tmp_path: Path) -> None:
    paths = saved(catalog, tmp_path, 5, network(1), network(2), layout="stand_alone", metrics={"accuracy": 0.5})
    saved(catalog, tmp_path, 7, network(3), network(4), layout="stand_alone", metrics={"accuracy": 0.25})
    state = catalog.open("run@best:accuracy:max")
    assert (state.run, state.launch, state.global_step, state.metrics) == ("run", "L5", 5, {"accuracy": 0.5})
    assert state.paths == tuple(map(str, paths))
    assert (state.layout.source, state.layout.groups) == ("stand_alone", ())
    assert repr(state) == "<state run@5 of launch L5, rank 0 of 2>"
    assert np.array_equal(state["conv.weight"], network(1)["conv.weight"])
    assert np.array_equal(state.rank(1)["conv.weight"], network(2)["conv.weight"])
    with pytest.raises(UsageError, match="step 5 of run has no rank 2; it has ranks 0 to 1"):
        state.rank(2)
    with pytest.raises(UsageError, match="step 5 of run has no rank '1'; it has ranks 0 to 1"):
        state.rank("1")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"conv\.wieght"):
        state["conv.wieght"]
    assert "conv.bias" in state
    assert state == state  # noqa: PLR0124 - a mapping would compare all arrays
    assert state.info == {}
    catalog.rename("run", "thesis")
    assert {catalog.open(name).run for name in ("run", "thesis@7")} == {"thesis"}
    assert catalog.diff("run", "thesis@7").first.run == "thesis"


def test_appended_values_are_no_tensors(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run")
    path = written(tmp_path / "a.ckpt", network(1), append_dict={"epoch_num": 3, "note": "x"})
    launch.register(path, global_step=5)
    state = catalog.open("run@5")
    assert sorted(state) == sorted(network(1))
    assert state.info == {"epoch_num": 3, "note": "x"}


def test_shares_are_one_state(catalog: Catalog, tmp_path: Path) -> None:
    """Each rank of a data-parallel job saved a part of the parameters (`remove_redundancy`)."""
    values = network(1)
    parts = [{name: values[name] for name in some} for some in (("conv.weight", "global_step"), ("conv.bias",))]
    saved(catalog, tmp_path, 5, *parts)
    plan = catalog.resolve("run").plan
    assert sorted(OpenState(plan, "run")) == sorted(parts[0])
    ranks = [each._replace(source=replace(each.source, content=Content.SHARE)) for each in plan.ranks]
    for rank in (0, 1):
        state = OpenState(replace(plan, ranks=tuple(ranks)), "run", rank)
        assert sorted(state) == ["conv.bias", "conv.weight", "global_step"]
        assert np.array_equal(state["conv.bias"], values["conv.bias"])
        assert np.array_equal(state["conv.weight"], values["conv.weight"])


def test_a_file_that_was_replaced_since_is_not_mixed(catalog: Catalog, tmp_path: Path) -> None:
    (path,) = saved(catalog, tmp_path, 5, network(1))
    state = catalog.open("run")
    before = state["conv.bias"]
    written(tmp_path / "other.ckpt", network(2)).replace(path)
    with pytest.raises(DamageError, match=r"net-1_5\.ckpt was replaced since its header was read; open it again"):
        state["conv.bias"]
    assert np.array_equal(before, network(1)["conv.bias"])


def test_what_numpy_has_no_type_for(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(value("packed", "Int4", (3,), b"\1\2") + value("odd", "Of the future", (3,), b"123"))
    catalog.join("run").register(path, global_step=5)
    state = catalog.open("run")
    for name, is_of in (("odd", r"Of the future \(3,\) in 3 bytes"), ("packed", r"Int4 \(3,\) in 2 bytes")):
        with pytest.raises(UsageError, match=rf"{name} of .*a\.ckpt is {is_of}, which NumPy has not; use MindSpore"):
            state[name]


def test_a_file_of_another_framework_has_paths_only(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", "")
    catalog.join("run").register(path, global_step=5)
    state = catalog.open("run")
    assert state.paths == (str(path),)
    with pytest.raises(UsageError, match=r"a\.pt is of another framework than MindSpore; read it with the one"):
        list(state)


LAZY = """
import sys
import ckptstore
catalog = ckptstore.connect(sys.argv[1])
state = catalog.open("run@5")
print(state.global_step, sorted(state.tensors))
assert not {"numpy", "mindspore"} & {*sys.modules}
if sys.argv[2] == "absent":
    sys.modules["numpy"] = None
try:
    print(state["global_step"])
except ckptstore.CkptstoreError as error:
    print(error)
assert "mindspore" not in sys.modules
"""


@pytest.mark.parametrize("numpy", ["there", "absent"])
def test_numpy_is_imported_with_the_first_array(sqlite_url: str, tmp_path: Path, numpy: str) -> None:
    saved(connect(sqlite_url), tmp_path, 5, network(7))
    done = subprocess.run([sys.executable, "-c", LAZY, sqlite_url, numpy], capture_output=True, text=True, check=True)
    names = "['conv.bias', 'conv.weight', 'global_step', 'moments.conv.weight']"
    expected = "[7]" if numpy == "there" else "tensors are read with NumPy, which is not installed; pip install numpy"
    assert done.stdout.splitlines() == [f"5 {names}", expected]


def test_only_what_is_asked_for_is_read(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {f"layer.{place}": np.full(1 << 18, place, np.float32) for place in range(8)}
    saved(catalog, tmp_path, 5, values)
    reads: list[int] = []
    read = os.preadv

    def noted(descriptor: int, views: list[memoryview], offset: int) -> int:
        reads.append(sum(view.nbytes for view in views))
        return read(descriptor, views, offset)

    monkeypatch.setattr(os, "preadv", noted)
    state = catalog.open("run")
    assert len(state.tensors) == 8
    assert reads == []
    assert state["layer.3"].sum() == 3 << 18
    assert reads == [1 << 20]
