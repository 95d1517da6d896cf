"""The files of MindFormers 2.0: their names, both directions, and what proves the step of a directory of them."""

import pytest

from ckptstore.core.iterations import (
    Common,
    Iteration,
    PartName,
    above_iteration,
    doubt,
    lacking,
    optimizer_step,
    parse_iteration,
    parse_part,
    size_of_save,
)
from ckptstore.core.naming import above_save


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("net-model-0000000-0000002.safetensors", PartName("net", "model", 0, 2)),
        ("a-opt-b-opt-0000010-0000012.safetensors", PartName("a-opt-b", "opt", 10, 12)),
        ("model-0000001-0000002.safetensors", PartName("", "model", 1, 2)),
        ("opt-0099999-0100000.safetensors", PartName("", "opt", 99_999, 100_000)),
        ("opt-0000000-0100001.safetensors", None),
        ("net-model-0000002-0000002.safetensors", None),
        ("net-model-000000-0000002.safetensors", None),
        ("net-model-0000000-0000002.ckpt", None),
        ("net-weights-0000000-0000002.safetensors", None),
        ("netmodel-0000000-0000002.safetensors", None),
        ("net-model-000000٠-0000002.safetensors", None),
    ],
)
def test_names_of_parts(name: str, expected: PartName | None) -> None:
    assert parse_part(name) == expected
    if expected is not None:
        assert str(expected) == name


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("iteration_00000040", 40),
        ("iteration_123456789", 123456789),
        ("iteration_40", None),
        ("iteration_00000040_old", None),
        ("xiteration_00000040", None),
    ],
)
def test_names_of_directories(name: str, step: int | None) -> None:
    assert parse_iteration(name) == step


TWO = {"net-model-0000000-0000002.safetensors": None, "net-model-0000001-0000002.safetensors": None}
ONE_OPT = {"net-opt-0000000-0000001.safetensors": 38}


@pytest.mark.parametrize(
    ("common", "parts", "reason"),
    [
        (Common(40, 40), TWO, ""),
        (Common(40, 38), TWO | ONE_OPT, ""),  # two updates were skipped
        (Common(40, None), TWO, ""),
        (Common(1000, 40), TWO, ""),  # PyNative
        (Common(1000, 40), TWO | ONE_OPT, ""),
        (None, TWO, "why not"),
        (Common(), TWO, "says step_num None and global_step None"),
        (Common(39, 39), TWO, "its directory is that of step 40"),
        (Common(40, 41), TWO, "its directory is that of step 40"),
        (Common(38, 41), TWO, "its directory is that of step 40"),
        (Common(40, 40), TWO | ONE_OPT, "is 38, where common.json and the directory say 40"),
        (Common(1000, 40), {"net-opt-0000000-0000001.safetensors": 41}, "is 41, where"),
        (Common(40, 40), {**TWO, "net-model-0000000-0000003.safetensors": None}, "files of several saves"),
        (Common(40, 40), {**TWO, "other-opt-0000000-0000002.safetensors": None}, "files of several saves"),
    ],
)
def test_what_proves_the_step(common: Common | None, parts: dict[str, int | None], reason: str) -> None:
    found = doubt(Iteration(40, parts, common, "" if common else "why not"))
    assert reason in found
    assert bool(reason) == bool(found)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (sorted(TWO), ()),
        (sorted(TWO)[:1], tuple(sorted(TWO)[1:])),
        (sorted(TWO)[1:], tuple(sorted(TWO)[:1])),
        (["common.json"], ()),
    ],
)
def test_what_is_not_there(names: list[str], expected: tuple[str, ...]) -> None:
    assert lacking(names) == expected


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("/d/iteration_00000040/net-model-0000001-0000002.safetensors", "/d"),
        ("/d/iteration_00000040/common.json", "/d"),
        ("/iteration_00000040/metadata.json", "/"),
        ("/d/iteration_00000040/net-1_40.ckpt", ""),
        ("/d/iteration_00000040/rank_0/net-opt-0000001-0000002.safetensors", ""),
        ("/d/iteration_4/common.json", ""),
    ],
)
def test_where_an_iteration_is(path: str, above: str) -> None:
    assert above_iteration(path) == above_save(path) == above


def test_how_many_files_and_updates_there_are() -> None:
    assert size_of_save(Iteration(40, TWO | ONE_OPT, None)) == 2
    assert size_of_save(Iteration(40, {}, None)) == 0
    (name,) = ONE_OPT
    steps = [
        optimizer_step(Iteration(40, ONE_OPT, common), name) for common in (Common(40, 39), Common(1000, 40), None)
    ]
    assert steps == [39, 38, 38]
