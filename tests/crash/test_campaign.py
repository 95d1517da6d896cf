"""A short campaign of SIGKILLs on both databases; `make torture` has the long one."""

import subprocess
from pathlib import Path

from ckptstore.api import connect
from tests import ckpt_bytes
from tests.crash import report
from tests.crash.campaign import Outcome, campaign, look
from tests.starting import LIBRARY, warm_python

KILLS = 4  # on each of the two


def test_killed_processes_leave_nothing_wrong(database_url: str, tmp_path: Path) -> None:
    outcome = campaign(database_url, tmp_path / "ckpt", kills=KILLS, seed=7)
    assert (outcome.lost, outcome.wrong_plans, outcome.wrong) == ([], [], [])
    assert outcome.kills == KILLS
    assert outcome.registered >= outcome.awaited > KILLS


def test_the_campaign_sees_what_is_wrong(sqlite_url: str, tmp_path: Path) -> None:
    """A check that cannot fail proves nothing."""
    catalog = connect(sqlite_url)
    for rank in (0, 1):
        launch = catalog.join("run", rank=rank, world_size=2, launch_id="L1")
        for step in (1, 2):
            path = ckpt_bytes.write(tmp_path / "ckpt" / f"rank_{rank}" / f"net_L1-1_{step}.ckpt", step, step)
            launch.register(path, global_step=step)

    def seen(newest: str, *returned: str) -> Outcome:
        outcome = Outcome()
        look(sqlite_url, tmp_path / "ckpt", set(returned), newest, outcome)
        return outcome

    assert seen("2 L1", str(path)).is_right
    assert seen("2 L1", "/never/registered.ckpt").lost == [
        "register returned for /never/registered.ckpt, the catalog lacks it"
    ]
    assert seen("1 L1").wrong_plans == ["the plan is 2 L1, not 1 L1"]
    unknown = ckpt_bytes.write(path.with_name("net_L1-1_3.ckpt"), 3, 3)
    assert seen("2 L1").lost == [f"{unknown} is whole, and not in the catalog"]
    unknown.unlink()
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(bytes(reversed(whole)))
    assert f"{path} is not as recorded" in seen("1 L1").wrong
    path.write_bytes(whole)
    (journal,) = (tmp_path / "ckpt" / "rank_1" / ".ckptstore").glob("*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))
    assert f"{path} is in the catalog, in no journal" in seen("2 L1").lost


def test_the_page_has_the_figures_that_were_found() -> None:
    page = report.PAGE.read_text()
    assert f"{report.BEGIN}{report.shown()}{report.END}" in page
    found = [row for rows in report.results().values() for row in rows]
    assert found
    assert {(row.lost, row.wrong_plans) for row in found} <= {(0, 0), (0, None)}


def test_many_processes_register_at_once(sqlite_url: str, tmp_path: Path) -> None:
    """None loses anything, and none hears that the database is locked."""
    ranks = 24
    connect(sqlite_url)
    script = tmp_path / "at_once.py"
    script.write_text(AT_ONCE)
    for rank in range(ranks):
        for step in STEPS:
            ckpt_bytes.write(tmp_path / "ckpt" / f"rank_{rank}" / f"net-{step}_1.ckpt", step)
    python = warm_python(*LIBRARY)
    jobs = [
        subprocess.Popen(
            [*python, str(script), sqlite_url, str(tmp_path / "ckpt"), str(rank), str(ranks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    for job in jobs:
        assert job.stdout.readline() == "READY\n"
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    said = [job.communicate()[0] for job in jobs]
    assert said == [""] * ranks
    assert {job.returncode for job in jobs} == {0}
    files = connect(sqlite_url).files("run")
    expected = {(rank, step) for rank in range(ranks) for step in STEPS}
    assert {(file.rank, file.global_step) for file in files} == expected


STEPS = (5, 10, 15)
AT_ONCE = f"""
import sys
from pathlib import Path
import ckptstore
url, directory, rank, ranks = sys.argv[1:]
catalog = ckptstore.connect(url)
print("READY", flush=True)
sys.stdin.readline()
launch = catalog.join("run", rank=int(rank), world_size=int(ranks), launch_id="L1")
for step in {STEPS}:
    launch.register(Path(directory) / f"rank_{{rank}}" / f"net-{{step}}_1.ckpt", global_step=step)
"""
