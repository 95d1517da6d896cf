"""A short campaign of SIGKILLs on both databases; `make torture` has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .campaign import campaign, differences

KILLS = 25  # on each of the two


def test_killed_processes_leave_nothing_wrong(database_url: str, tmp_path: Path) -> None:
    outcome = campaign(database_url, tmp_path / "ckpt", kills=KILLS, seed=7)
    assert outcome.wrong == []
    assert outcome.kills == KILLS
    assert outcome.registered > KILLS  # they were not all killed before they had done anything


def test_the_campaign_sees_what_is_wrong(sqlite_url: str, tmp_path: Path) -> None:
    """A check that cannot fail proves nothing."""
    campaign(sqlite_url, tmp_path / "ckpt", kills=2, seed=3, longest=1.5)
    lost = next((tmp_path / "ckpt").rglob("*.ckpt"))
    assert differences(sqlite_url, tmp_path / "ckpt", {"/never/registered.ckpt"})[0].endswith("the catalog lacks it")
    lost.write_bytes(lost.read_bytes()[:-1])
    assert any("is not as recorded" in each for each in differences(sqlite_url, tmp_path / "ckpt", set()))


@pytest.mark.parametrize("ranks", [64])
def test_many_processes_register_at_once(sqlite_url: str, tmp_path: Path, ranks: int) -> None:
    """None of 64 loses anything, and none hears that the database is locked."""
    import subprocess
    import sys

    from ckptstore.ops.connect import connect

    connect(sqlite_url)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE, sqlite_url, str(tmp_path / "ckpt"), str(rank), str(ranks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == "READY\n"
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("go\n")
        job.stdin.flush()
    said = [job.communicate()[0] for job in jobs]
    assert said == [""] * ranks
    assert {job.returncode for job in jobs} == {0}
    files = connect(sqlite_url).files("run")
    expected = {(rank, step) for rank in range(ranks) for step in (5, 10, 15)}
    assert {(file.rank, file.global_step) for file in files} == expected


AT_ONCE = """
import sys
from pathlib import Path
import ckptstore
from tests import ckpt_bytes
url, directory, rank, ranks = sys.argv[1:]
catalog = ckptstore.connect(url)
paths = {step: ckpt_bytes.write(Path(directory) / f"rank_{rank}" / f"net-{step}_1.ckpt", step) for step in (5, 10, 15)}
print("READY", flush=True)
sys.stdin.readline()
launch = catalog.join("run", rank=int(rank), world_size=int(ranks), launch_id="L1")
for step, path in paths.items():
    launch.register(path, global_step=step)
"""
