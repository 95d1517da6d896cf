"""Norms of differences, against NumPy's over whole tensors of 64 bits."""

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.tensors import norms

FLOATS = ("float16", "float32", "float64")
BLOCK = 1 << 16
WHOLE = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
BFLOAT16: Any = ms.Tensor(0, ms.bfloat16).asnumpy().dtype


def named(dtype: str) -> str:
    """MindSpore's name for a type of NumPy."""
    return {"uint": "UInt", "bflo": "BFlo"}.get(dtype[:4], dtype[:4].capitalize()) + dtype[4:]


def of_bytes(dtype: str, *both: bytes) -> norms.Apart:
    def reader(content: bytes) -> Callable[[int, memoryview], None]:
        def read(begin: int, into: memoryview) -> None:
            into[:] = content[begin : begin + into.nbytes]

        return read

    return norms.Room().compared(dtype, range(len(both[0])), *map(reader, both))


def compared(dtype: str, one: Any, other: Any) -> norms.Apart:
    return of_bytes(named(dtype), one.tobytes(), other.tobytes())


def random(dtype: str, count: int, chance: np.random.Generator) -> Any:
    if dtype == "bool":
        return chance.integers(0, 2, count).astype(bool)
    if dtype in WHOLE:
        limits = np.iinfo(dtype)
        return chance.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)
    scale = chance.choice([1e-7, 1.0, 1e4])
    return (chance.standard_normal(count) * scale).astype(BFLOAT16 if dtype == "bfloat16" else dtype)


@given(
    st.sampled_from([*FLOATS, *WHOLE, "bfloat16"]),
    st.sampled_from([0, 1, 7, BLOCK // 4, BLOCK // 4 + 3]),
    st.integers(0, 2**32),
    st.sampled_from(["other", "near", "same", "with odd ones"]),
)
def test_norms_are_those_of_the_whole(dtype: str, count: int, seed: int, relation: str) -> None:
    chance = np.random.default_rng(seed)
    one, other = random(dtype, count, chance), random(dtype, count, chance)
    if relation != "other":
        other = one.copy()
    if relation == "near" and count:
        other[chance.integers(count)] = random(dtype, 1, chance)[0]
    if relation == "with odd ones" and dtype not in WHOLE:
        for values, odd in ((one, np.nan), (other, np.nan), (one, np.inf), (other, -np.inf), (other, np.inf)):
            values[: chance.integers(0, 3)] = odd
            chance.shuffle(values.view(f"u{values.itemsize}"))
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(norms, "_BLOCK", BLOCK)
        patch.setattr(norms, "_SUMMED", BLOCK // 32)
        found = compared(dtype, one, other)
        exact = np.longdouble if dtype in ("int64", "uint64") else np.float64
        a, b = one.astype(exact), other.astype(exact)
        finite = np.isfinite(a) & np.isfinite(b)
        expected = (a - b)[finite]
        assert found.same_bytes == (one.tobytes() == other.tobytes())
        assert found.l2 == pytest.approx(float(np.linalg.norm(expected.astype(np.float64))), rel=1e-5)
        assert found.max_abs == pytest.approx(float(np.abs(expected).max(initial=0)), rel=1e-6)
        for norm, values in zip(found.norms, (a, b), strict=True):
            assert norm == pytest.approx(float(np.linalg.norm(values[finite].astype(np.float64))), rel=1e-5)
        assert found.nan == (np.isnan(a).sum(), np.isnan(b).sum())
        assert found.inf == (np.isinf(a).sum(), np.isinf(b).sum())
        assert 0 <= found.relative <= 2.00001


@pytest.mark.parametrize(
    ("dtype", "one", "other", "l2"),
    [
        ("float32", [3e38, 1.0], [-3e38, 1.0], 6e38),  # more than 32 bits hold
        ("float32", [1e-30, 0.0], [-1e-30, 0.0], 2e-30),  # its square is less than they hold
        ("float64", [1e200, 1.0], [-1e200, 1.0], 2e200),
        ("float64", [1e-200, 0.0], [-1e-200, 0.0], 2e-200),
        ("int64", [2**62 + 1, 0], [2**62, 0], 1.0),  # more than a float tells apart
        ("uint64", [0, 5], [2**64 - 1, 5], 2.0**64),
        ("int64", [-(2**63), 0], [2**63 - 1, 0], 2.0**64),
        ("uint8", [0, 7], [255, 7], 255.0),
        ("float32", [0.0, 0.0], [-0.0, 0.0], 0.0),
    ],
)
def test_what_is_at_the_ends_of_a_type(dtype: str, one: list[float], other: list[float], l2: float) -> None:
    found = compared(dtype, np.array(one, dtype), np.array(other, dtype))
    assert found.l2 == pytest.approx(l2)
    assert found.max_abs == pytest.approx(l2)
    assert not found.same_bytes


def test_a_difference_that_no_float_holds_is_infinite() -> None:
    found = compared("float64", np.array([1.7e308]), np.array([-1.7e308]))
    assert math.isinf(found.l2)
    assert math.isinf(found.max_abs)
    assert found.inf == (0, 0)


def test_of_types_that_are_no_numbers_bytes_are_compared() -> None:
    assert of_bytes("Int4", b"1234", b"1234").same_bytes
    assert not of_bytes("Int4", b"1234", b"1235").same_bytes
    assert "Int4" not in norms.NUMBERS
