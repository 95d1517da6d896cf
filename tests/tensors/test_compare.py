"""`Catalog.diff`: against NumPy over what was saved; what is read, and what is not."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore.train import serialization

from ckptstore.api import Catalog
from ckptstore.errors import CkptstoreError, DamageError, UnknownRunError, UsageError
from ckptstore.tensors import compare, norms
from tests.ckpt_bytes import value
from tests.tensors.states import network, saved, written

pytestmark = pytest.mark.of_files


def no_database() -> Any:
    raise AssertionError("files need no catalog")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of tensors that were read, of each call."""
    found: list[int] = []
    read = os.preadv

    def noted(descriptor: int, views: list[memoryview], offset: int) -> int:
        found.append(sum(view.nbytes for view in views))
        return read(descriptor, views, offset)

    monkeypatch.setattr(os, "preadv", noted)
    return found


def of_rank_0(found: compare.Compared) -> compare.RankCompared:
    (only,) = found.ranks
    assert only.ranks == (0,)
    return only


FORMS = st.sampled_from(["a.ckpt", "a.safetensors"])


@settings(max_examples=40)
@given(FORMS, FORMS, st.integers(0, 2**32))
def test_random_files_of_both_formats(tmp_path_factory: Any, first: str, second: str, seed: int) -> None:
    """Tensors of several pieces and slices, some the same, some new, gone, or of another shape."""
    chance, work = np.random.default_rng(seed), tmp_path_factory.mktemp("diff")
    one: dict[str, Any] = {}
    other: dict[str, Any] = {}
    for place in range(6):
        shape = tuple(chance.integers(1, 40, chance.integers(1, 4)))
        values = chance.standard_normal(shape).astype(chance.choice(["float32", "float16", "float64", "int32"]))
        changed = values + chance.integers(0, 2, shape).astype(values.dtype)
        one[f"p.{place}"] = values
        other[f"p.{place}"] = changed
        match chance.integers(5):
            case 0:
                del other[f"p.{place}"]
            case 1:
                other[f"new.{place}"] = values
            case 2:
                other[f"p.{place}"] = values.reshape(-1)[:1]
            case 3:
                other[f"p.{place}"] = values
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serialization, "SLICE_SIZE", 1)  # KB
        patch.setattr(compare, "_PIECE", 4096)
        patch.setattr(norms, "_BLOCK", 1024)
        paths = [written(work / "1" / first, one), written(work / "2" / second, other)]
        found = of_rank_0(compare.compare(*paths, no_database))
    both = one.keys() & other.keys()
    alike = {name for name in both if one[name].shape == other[name].shape}
    assert {each.name for each in found.new} == other.keys() - one.keys()
    assert {each.name for each in found.gone} == one.keys() - other.keys()
    assert {each.name: (each.first.shape, each.second.shape) for each in found.reshaped} == {
        name: (one[name].shape, other[name].shape) for name in both - alike
    }
    expected = {name: (other[name].astype(float) - one[name].astype(float)) for name in alike}
    assert {each.name for each in found.changed} == {name for name, apart in expected.items() if apart.any()}
    assert found.same == len(alike) - len(found.changed)
    for each in found.changed:
        apart = expected[each.name]
        assert each.l2 == pytest.approx(float(np.linalg.norm(apart)), rel=1e-5)
        assert each.max_abs == pytest.approx(float(np.abs(apart).max()), rel=1e-6)
        largest = max(float(np.linalg.norm(side[each.name].astype(float))) for side in (one, other))
        assert each.relative == pytest.approx(float(np.linalg.norm(apart)) / largest, rel=1e-5)
        assert (each.dtype.lower(), each.shape) == (str(one[each.name].dtype), one[each.name].shape)
    relative = [each.relative for each in found.changed]
    assert relative == sorted(relative, reverse=True)


def test_states_rank_by_rank(catalog: Catalog, tmp_path: Path, reads: list[int]) -> None:
    """Of three ranks one has another file; what two ranks have alike is compared once."""
    alike, other = network(1), network(2)
    saved(catalog, tmp_path, 5, alike, alike, other, layout="stand_alone", metrics={"loss": 0.5})
    moved = network(3)
    saved(catalog, tmp_path, 7, moved, moved, other, layout="stand_alone")
    found = catalog.diff("run@5", "run@7")
    assert [(each.ranks, each.same_bytes) for each in found.ranks] == [((0, 1), False), ((2,), True)]
    assert sum(reads) == 2 * sum(each.nbytes for each in alike.values())
    assert {each.name for each in found.ranks[0].changed} == alike.keys()
    assert found.ranks[1].same is None
    assert found.ranks[1].changed == ()
    assert (found.first.name, found.first.global_step, found.first.metrics) == ("run@5", 5, {"loss": 0.5})
    assert (found.second.launch, found.second.optimizer_step, found.second.world_size) == ("L7", 7, 3)
    assert found.unmatched == ()


def test_the_same_digest_is_the_same_bytes_and_nothing_is_read(
    catalog: Catalog, tmp_path: Path, reads: list[int]
) -> None:
    saved(catalog, tmp_path, 5, network(1), network(1))
    saved(catalog, tmp_path, 7, network(1), network(1))
    for path in tmp_path.glob("rank_*/*.ckpt"):
        path.chmod(0)
    found = catalog.diff("run@5", "run@7")
    assert [(each.ranks, each.same_bytes) for each in found.ranks] == [((0, 1), True)]
    assert reads == []


def test_ranks_that_one_state_lacks(catalog: Catalog, tmp_path: Path) -> None:
    saved(catalog, tmp_path, 5, network(1), network(1))
    found = catalog.diff("run", written(tmp_path / "a.ckpt", network(1)))
    assert (of_rank_0(found).same, found.unmatched) == (4, (1,))


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_scalars_that_look_like_appended_values_are_compared(tmp_path: Path, form: str) -> None:
    first, second = (
        written(tmp_path / f"{number}.{form}", {"count": np.int64(number)}, append_dict={"epoch_num": number})
        for number in (3, 5)
    )
    found = of_rank_0(compare.compare(first, second, no_database))
    assert [(each.name, each.l2) for each in found.changed] == [("count", 2.0)]


def test_one_file_with_itself_is_not_read(tmp_path: Path, reads: list[int]) -> None:
    path = written(tmp_path / "a.ckpt", network(1))
    (tmp_path / "link.ckpt").symlink_to(path)
    assert of_rank_0(compare.compare(str(path), str(tmp_path / "link.ckpt"), no_database)).same_bytes
    assert reads == []


def test_a_state_and_a_file(catalog: Catalog, tmp_path: Path) -> None:
    saved(catalog, tmp_path, 5, network(1))
    weights = {name: values for name, values in network(1).items() if name.startswith("conv")}
    path = written(tmp_path / "weights.safetensors", weights)
    found = catalog.diff("run", path)
    only = of_rank_0(found)
    assert (only.same, only.changed, only.new) == (2, (), ())
    assert [each.name for each in only.gone] == ["moments.conv.weight", "global_step"]
    assert (found.first.run, found.second.run, found.second.name) == ("run", None, str(path))
    assert (found.first.optimizer_step, found.second.optimizer_step) == (5, None)


def test_what_is_not_finite_comes_first_and_poisons_no_norm(tmp_path: Path) -> None:
    values, others = (np.ones(9, np.float32) for _ in range(2))
    others[:4] = [np.nan, np.inf, -np.inf, 3]
    one, other = {"far": values, "odd": values}, {"far": values + 100, "odd": others}
    found = of_rank_0(
        compare.compare(written(tmp_path / "a.ckpt", one), written(tmp_path / "b.ckpt", other), no_database)
    )
    odd, far = found.changed
    assert (odd.name, odd.nan, odd.inf, odd.l2, odd.max_abs) == ("odd", (0, 1), (0, 2), 2, 2)
    assert (far.name, far.nan, far.max_abs) == ("far", (0, 0), 100)


def test_types(tmp_path: Path) -> None:
    """A type that is no number has no norms; another type is another shape, though the values are the same."""
    one = {"half": ms.Tensor([1.5, 2], ms.bfloat16), "same": np.array([3], np.int32)}
    other = {"half": ms.Tensor([1.5, -2], ms.bfloat16), "same": np.array([3], np.int64)}
    first, second = written(tmp_path / "a.ckpt", one), written(tmp_path / "b.ckpt", other)
    for path, odd in ((first, b"123"), (second, b"12")):
        with path.open("ab") as file:
            file.write(value("odd", "Of the future", (3,), odd) + value("packed", "Int4", (3,), odd[:2]))
    found = of_rank_0(compare.compare(first, second, no_database))
    assert [(each.name, each.first.dtype, each.second.dtype) for each in found.reshaped] == [("same", "Int32", "Int64")]
    assert [(each.name, each.l2, each.relative) for each in found.changed] == [("half", 4, 1.6), ("odd", None, None)]
    assert found.same == 1


def test_what_cannot_be_compared(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = (written(tmp_path / name, network(at)) for at, name in enumerate(("a.ckpt", "b.ckpt")))
    with pytest.raises(UsageError, match="there is no file"):
        compare.compare(path, tmp_path / "none.ckpt", no_database)
    with pytest.raises(UnknownRunError):
        catalog.diff("none@5", path)
    read = os.preadv

    def cut(descriptor: int, views: list[memoryview], offset: int) -> int:
        os.truncate(other, 30)
        return read(descriptor, views, offset)

    monkeypatch.setattr(os, "preadv", cut)
    with pytest.raises(DamageError, match=r"b\.ckpt (ends too early|was replaced)"):
        compare.compare(path, other, no_database)

    def broken(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(CkptstoreError, match=r"cannot read .*: Input/output error"):
        compare.compare(path, written(tmp_path / "c.ckpt", network(3)), no_database)


def test_progress_is_in_bytes(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{seed}.ckpt", network(seed)) for seed in (1, 2)]
    told: list[tuple[int, int]] = []
    compare.compare(*paths, no_database, lambda done, every: told.append((done, every)))
    sizes = [sum(each.nbytes for each in network(seed).values()) for seed in (1, 2)]
    assert told[-1] == (sum(sizes), sum(path.stat().st_size for path in paths))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
