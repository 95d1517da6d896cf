"""How much memory a copy may take."""

from pathlib import Path

import psutil
import pytest

from ckptstore.mindspore import free_memory


def test_a_control_group_with_less_than_the_machine_bounds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "_GROUPS", tmp_path / "none")
    of_machine = free_memory.free_memory()
    assert of_machine is not None
    assert 0 < of_machine < psutil.virtual_memory().total
    monkeypatch.setattr(free_memory, "_GROUPS", tmp_path)
    group = tmp_path / Path("/proc/self/cgroup").read_text().strip().rpartition("0::")[2].lstrip("/")
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.current").write_text("70000\n")
    (group / "memory.stat").write_text("anon 50000\ninactive_file 20000\n")  # page cache counts as free
    for most, free in (("100000", 50000), ("40000", 0), ("max", None)):
        (group / "memory.max").write_text(f"{most}\n")
        found = free_memory.free_memory()
        assert found == free if free is not None else found is not None and found > 100000
