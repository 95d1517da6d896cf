"""The names that MindSpore gives to checkpoint files (domain §2)."""

from __future__ import annotations

import pytest

from ckptstore.core.naming import CheckpointName, format_of, is_numbered, parse_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lenet-1_5.ckpt", CheckpointName("lenet", 1, 5, is_breakpoint=False, format="ckpt")),
        ("lenet_1-3_9.ckpt", CheckpointName("lenet_1", 3, 9, is_breakpoint=False, format="ckpt")),
        ("lenet-10_1.safetensors", CheckpointName("lenet", 10, 1, is_breakpoint=False, format="safetensors")),
        ("a-b_2-c-2_8_breakpoint.ckpt", CheckpointName("a-b_2-c", 2, 8, is_breakpoint=True, format="ckpt")),
        ("x-1_2-3_4.ckpt", CheckpointName("x-1_2", 3, 4, is_breakpoint=False, format="ckpt")),
        ("lenet-1_0_breakpoint.ckpt", CheckpointName("lenet", 1, 0, is_breakpoint=True, format="ckpt")),
    ],
)
def test_what_model_checkpoint_writes(name: str, expected: CheckpointName) -> None:
    assert parse_name(name) == expected


@pytest.mark.parametrize(
    "name",
    ["lenet-graph.meta", "lenet-1_5.tmp", "LeNet_train.ckpt", "strategy.ckpt", "-1_5.ckpt", "lenet-1_٥.ckpt", ""],
)
def test_what_it_does_not(name: str) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize(
    ("prefix", "base", "expected"),
    [
        ("lenet", "lenet", True),
        ("lenet_3", "lenet", True),
        ("lenet_12", "lenet", True),
        ("lenet_x", "lenet", False),
        ("lenet_3_4", "lenet", False),
        ("lenet2", "lenet", False),
        ("ckpt_1", "ckpt_0", False),
    ],
)
def test_numbered_prefixes(prefix: str, base: str, *, expected: bool) -> None:
    assert is_numbered(prefix, base) is expected


def test_formats() -> None:
    assert [format_of(name) for name in ("a.ckpt", "a.safetensors", "a.pth.tar", "a")] == [
        "ckpt",
        "safetensors",
        "unknown",
        "unknown",
    ]
