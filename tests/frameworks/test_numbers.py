"""Numbers in checkpoints of the real TensorFlow: what is read without it is what TensorFlow reads."""

import json
from pathlib import Path

import pytest

from ckptstore.formats.tensorflow import read_numbers
from tests.frameworks.running import TENSORFLOW, ckptstore, last_line, script

OBJECT = "/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, int]]]:
    """Where checkpoints are, and by prefix what TensorFlow finds there."""
    directory = tmp_path_factory.mktemp("written")
    return directory, last_line(script(TENSORFLOW, "files_tensorflow.py", cwd=directory))


def test_the_numbers_are_those_that_tensorflow_reads(written: tuple[Path, dict[str, dict[str, int]]]) -> None:
    directory, known = written
    called = {"optimizer/_iterations": "optimizer_step", "model/optimizer/_iterations": "optimizer_step"}
    for prefix, numbers in known.items():
        plain = {name.removesuffix(OBJECT): number for name, number in numbers.items()}
        expected = {called.get(name, name): number for name, number in plain.items()}
        assert read_numbers(str(directory / prefix)) == expected
    assert known.keys() == {
        *(f"managed/ckpt-{count}" for count in (1, 2)),
        *(f"written/at{step}" for step in (6, 11)),
        "named/model.ckpt-3",
        "counted/ckpt0",
        "graph/model.ckpt-7",
        "large/ckpt0",
    }


@pytest.mark.parametrize(
    ("directory", "trust", "steps"),
    [
        ("managed", "info", [6, 11]),
        ("managed", "counter", [5, 10]),
        ("written", "info", [6, 11]),
        ("named", "info", [11]),
        ("counted", "info", [10]),
        ("graph", "name", [7]),
        ("graph", "info", [7]),
        ("large", "info", [1 << 40]),
    ],
)
def test_they_are_adopted_where_they_are_trusted(
    written: tuple[Path, dict[str, dict[str, int]]], directory: str, trust: str, steps: list[int]
) -> None:
    home = written[0] / directory
    done = json.loads(ckptstore("scan", home, "--dry-run", "--json", "--trust", trust))
    assert sorted(file["global_step"] for file in done["adopted"]) == steps
    assert done["uncertain"] == []
