"""`ckptstore inspect`: what it prints of each format, and one line for every file that cannot be read."""

import json
import os
import subprocess
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from safetensors.numpy import save_file

from tests import ckpt_bytes
from tests.command_line import COMMAND, HEAVY, as_who_is_not_root, assert_one_line, ckptstore, loaded
from tests.formats import layouts

WEIGHT = {"name": "weight", "dtype": "Float32", "shape": [2, 2]}
COUNTER = {"name": "global_step", "dtype": "Int32", "shape": [1]}


def save(path: Path, **options: object) -> Path:
    parameters = [
        {"name": "weight", "data": Tensor(np.ones((2, 2), np.float32))},
        {"name": "global_step", "data": Tensor([17], ms.int32)},
    ]
    ms.save_checkpoint(parameters, str(path), format=path.suffix[1:], **options)
    path.chmod(0o600)
    return path


def test_a_ckpt(tmp_path: Path) -> None:
    appended = {"epoch_num": 2, "step_num": 17, "loss_scale": float("inf"), "note": "añ"}
    path = save(tmp_path / "a.ckpt", append_dict=appended)
    found = ckptstore("inspect", str(path), "--json")
    assert found.code == 0
    assert found.json == {
        "path": str(path),
        "format": "ckpt",
        "parameters": [WEIGHT, COUNTER],
        "info": {"epoch_num": 2, "step_num": 17, "loss_scale": "inf", "note": "añ"},
        "optimizer_step": 17,
        "complete": None,
    }
    assert ckptstore("inspect", str(path)).out.splitlines() == [
        f"{path}: ckpt, every entry is whole, but nothing in it marks its end",
        "optimizer step: 17",
        "epoch_num: 2",
        "step_num: 17",
        "loss_scale: inf",
        "note: añ",
        "parameter    type     shape",
        "weight       Float32  (2, 2)",
        "global_step  Int32    (1,)",
    ]


def test_a_ckpt_with_a_crc_is_whole(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ckpt", crc_check=True)
    assert ckptstore("inspect", str(path), "--json").json["complete"] is True
    assert ckptstore("inspect", str(path)).out.startswith(f"{path}: ckpt, whole\n")


def test_a_safetensors(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", append_dict={"epoch_num": 2}, remove_redundancy=False)
    found = ckptstore("inspect", str(path), "--json").json
    assert sorted(found.pop("parameters"), key=lambda parameter: parameter["name"]) == [COUNTER, WEIGHT]
    assert found == {
        "path": str(path),
        "format": "safetensors",
        "info": {"epoch_num": 2},
        "optimizer_step": 17,
        "complete": True,
        "metadata": {"format": "ms", "remove_redundancy": "False"},
    }
    text = ckptstore("inspect", str(path)).out
    assert f"{path}: safetensors, whole\n" in text
    assert "remove_redundancy: False\nepoch_num: 2\n" in text


@pytest.mark.parametrize("ending", ["ckpt", "json"])
def test_a_strategy_file(tmp_path: Path, ending: str) -> None:
    path = layouts.write_strategy(tmp_path / f"strategy.{ending}", names=("w",))
    assert ckptstore("inspect", str(path), "--json").json == {
        "path": str(path),
        "format": "strategy",
        "parameters": [{"name": "w", "stage": 0, **layouts.LAYOUT}],
        "stages": [0],
    }
    first, _, row = ckptstore("inspect", str(path)).out.splitlines()
    assert first == f"{path}: strategy, stages 0"
    assert row.split("  ")[0] == "w"
    assert "2, 4" in row
    assert "1, -1" in row


def test_a_group_info_file(tmp_path: Path) -> None:
    path = layouts.write_group_info(tmp_path / "group_info.pb", {"a": [0, 4]}, [0, 4, 8])
    assert ckptstore("inspect", str(path), "--json").json == {
        "path": str(path),
        "format": "group_info",
        "groups": [{"name": "a", "ranks": [0, 4]}],
        "restore_ranks": [0, 4, 8],
    }
    assert ckptstore("inspect", str(path)).out.splitlines() == [
        f"{path}: group info",
        "ranks with the same checkpoint: 0, 4, 8",
        "group  ranks",
        "a      0, 4",
    ]


def test_a_cut_file_is_damage(tmp_path: Path) -> None:
    """Cut anywhere but between two entries, where only the one that knows what to expect can tell."""
    for path in (save(tmp_path / "a.ckpt"), save(tmp_path / "a.safetensors")):
        os.truncate(path, path.stat().st_size - 1)
        assert_one_line(ckptstore("inspect", str(path)), 6, f"{path} is not a whole")
        told = ckptstore("inspect", str(path), "--json")
        assert (told.code, told.out) == (6, "")
        assert json.loads(told.err)["error"].startswith(f"{path} is not a whole")


def test_a_long_value_has_room_on_a_few_lines(tmp_path: Path) -> None:
    """As the state of a random generator that a functional loop keeps."""
    path = tmp_path / "a.safetensors"
    kept = {"random": "x" * 11_000, "short": "y" * 200}
    save_file({"weight": np.ones((2, 2), np.float32)}, path, metadata=kept)
    (line,) = [line for line in ckptstore("inspect", str(path)).out.splitlines() if line.startswith("random: ")]
    assert line == f"random: {'x' * 200}… (11000 letters; --json has all)"
    assert f"short: {'y' * 200}\n" in ckptstore("inspect", str(path)).out
    assert ckptstore("inspect", str(path), "--json").json["metadata"] == kept


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    notes = tmp_path / "no\ntes.txt"
    notes.write_text("something else")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    encrypted = save(tmp_path / "a.ckpt", enc_key=b"0123456789abcdef")
    for path, code, message in (
        (notes, 6, r"no\ntes.txt is of no known format"),
        (encrypted, 6, "is encrypted; only MindSpore with its dec_key can read it"),
        (tmp_path / "nope", 2, "there is no file"),
        (notes / "x", 2, "there is no file"),
        (tmp_path, 2, "is not a file"),
        (pipe, 2, "is not a file"),
        (Path("/dev/zero"), 2, "is not a file"),
        (Path("/proc/self/mem"), 1, "cannot read /proc/self/mem"),
        (tmp_path / ("x" * 300), 1, "cannot read"),
    ):
        assert_one_line(ckptstore("inspect", str(path)), code, message)


def test_a_file_that_this_user_may_not_read(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ckpt")
    path.chmod(0)
    assert_one_line(as_who_is_not_root("inspect", str(path)), 1, f"cannot read {path}: Permission denied; check")


def test_names_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a[red].ckpt"
    path.write_bytes(ckpt_bytes.value("w\x1b[2J[bold]\n", "Int8", (), b"x"))
    path.write_bytes(path.read_bytes() + ckpt_bytes.value("epoch_num", "str", (0,), "\x1b\r".encode("utf-32-le")))
    text = ckptstore("inspect", str(path)).out
    assert "w\\x1b[2J[bold]\\n" in text
    assert "epoch_num: \\x1b\\r\n" in text
    assert text.startswith(f"{path}: ")
    assert ckptstore("inspect", str(path), "--json").json["parameters"][0]["name"] == "w\x1b[2J[bold]\n"


def test_long_listings_are_shortened(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(b"".join(ckpt_bytes.value(f"w{n}", "Int8", (1,), b"x") for n in range(1003)))
    lines = ckptstore("inspect", str(path)).out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["w999", "…"]
    assert lines[-1] == "… and 3 more parameters; --json has all"
    assert len(ckptstore("inspect", str(path), "--json").json["parameters"]) == 1003
    path.write_bytes(b"".join(ckpt_bytes.value(f"note{n}", "str", (0,), b"x\0\0\0") for n in range(1002)))
    assert "note999: x\n… and 2 more values; --json has all\n" in ckptstore("inspect", str(path)).out
    path = layouts.write_group_info(tmp_path / "g.pb", {f"g{n}": list(range(70)) for n in range(1001)}, [0])
    lines = ckptstore("inspect", str(path)).out.splitlines()
    assert lines[-1] == "… and 1 more groups; --json has all"
    assert lines[-2].rstrip().endswith(", 62, 63, … (70 in all)")


def test_a_path_that_is_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/\xff.ckpt")
    Path(name).write_bytes(ckpt_bytes.checkpoint(3))
    for encoding in ("utf-8:strict", "ascii:strict"):
        environment = os.environ | {"PYTHONIOENCODING": encoding}
        done = subprocess.run([COMMAND, "inspect", name, "--json"], env=environment, capture_output=True, check=True)
        assert json.loads(done.stdout)["path"] == name
    assert "\\udcff.ckpt: ckpt" in ckptstore("inspect", name).out


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_it_needs_nothing_heavy(tmp_path: Path, more: list[str]) -> None:
    for path in (
        ckpt_bytes.write(tmp_path / "a.ckpt", 17),
        save(tmp_path / "a.safetensors"),
        layouts.write_strategy(tmp_path / "s.ckpt"),
        layouts.write_strategy(tmp_path / "s.json"),
        layouts.write_group_info(tmp_path / "g.pb", {}, [0]),
    ):
        assert loaded(["inspect", str(path), *more], "sqlalchemy", "google.protobuf", "safetensors", *HEAVY) == set()


def test_no_catalog_is_opened(tmp_path: Path) -> None:
    path = ckpt_bytes.write(tmp_path / "a.ckpt", 17)
    assert ckptstore("--db", "nonsense://x", "inspect", str(path)).code == 0
