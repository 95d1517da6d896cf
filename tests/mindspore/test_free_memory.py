"""How much memory a copy may take."""

from pathlib import Path

import psutil
import pytest

from ckptstore.mindspore import state_writer


def test_what_is_free_on_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_writer, "_GROUPS", tmp_path)
    found = state_writer.free_memory()
    assert found is not None
    assert 0 < found < psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("own", "folder", "names"),
    [
        ("0::/pods/own", "pods/own", ("memory.max", "memory.current", "inactive_file")),
        ("7:memory:/own", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_a_control_group_with_less_than_the_machine_bounds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, folder: str, names: tuple[str, ...]
) -> None:
    most, used, cache = names
    monkeypatch.setattr(state_writer, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(state_writer, "_GROUPS", tmp_path)
    (tmp_path / "own").write_text(f"12:pids:/\n{own}\n")
    group = tmp_path / folder
    group.mkdir(parents=True)
    (group / used).write_text("70000\n")
    (group / "memory.stat").write_text(f"anon 50000\n{cache} 20000\n")  # page cache counts as free
    for bound, free in (("100000", 50000), ("40000", 0), ("max", None), (f"{1 << 63}", None)):
        (group / most).write_text(f"{bound}\n")
        found = state_writer.free_memory()
        assert found == free if free is not None else found is not None and found > 100000
