"""`runs` is what an operator looks at first: what each run is doing, where it can go on, what its files take."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog import leases, tables
from ckptstore.disk.owner import this_process
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.command_line import COMMAND, ckptstore, on_a_terminal
from tests.jobs import Job, begun, set_ending


def row_of(catalog: Catalog) -> tuple[str, int]:
    (row,) = catalog.runs()
    return row.status, row.launches_last_day


def give_sign(job: Job, key: str, process: str, ago: timedelta) -> None:
    """A sign of life of a launch, given so long ago."""
    with job.catalog.database.write() as connection:
        leases.give_sign(connection, key, process, datetime.now(timezone.utc) - ago)  # type: ignore[arg-type]


def test_what_a_run_is_doing(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "data")
    assert row_of(catalog) == ("never saved", 1)
    give_sign(job, ranks[0].key, this_process(), timedelta(0))
    assert row_of(catalog) == ("training", 1)
    job.save(ranks, 10)
    assert row_of(catalog) == ("training", 1)
    elsewhere = "node-7|123|456|00000000@another"
    give_sign(job, ranks[0].key, elsewhere, timedelta(minutes=12))
    assert row_of(catalog)[0].startswith("silent for ")
    gone = subprocess.run(
        [sys.executable, "-c", "from ckptstore.disk.owner import this_process; print(this_process())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    give_sign(job, ranks[0].key, gone, timedelta(seconds=1))
    assert row_of(catalog) == ("killed", 1)
    set_ending(ranks[0], 12, 12, "RuntimeError")
    with catalog.database.write() as connection:
        leases.end_signs(connection, ranks[0].key)
    assert row_of(catalog) == ("ended: RuntimeError", 1)
    second = job.begin()
    assert row_of(catalog)[0].startswith("joined ")
    job.save(second, 20)
    for launch in second:
        set_ending(launch, 20, 20, None)
    assert row_of(catalog) == ("finished", 2)
    for _ in range(3):
        set_ending(job.begin()[0], 20, 20, "RuntimeError")
    assert row_of(catalog) == ("restart loop: 3 launches saved nothing", 5)


@pytest.fixture
def url(catalog: Catalog, database_url: str, tmp_path: Path) -> str:
    begun(catalog, tmp_path / "data", 10, 20, 30)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=1, floor=1)))
    catalog.tag("run", 30, "best")
    return database_url


@pytest.mark.parametrize(("hours", "launches"), [(23, 1), (25, 0)])
def test_the_launches_of_the_last_24_hours_are_counted(
    catalog: Catalog, tmp_path: Path, hours: int, launches: int
) -> None:
    begun(catalog, tmp_path / "data")
    with catalog.database.write() as connection:
        connection.execute(
            tables.launches.update().values(created_at=datetime.now(timezone.utc) - timedelta(hours=hours))
        )
    assert row_of(catalog) == ("never saved", launches)


def test_watch_ends_with_its_reader(url: str) -> None:
    """`runs --watch | grep -m1 finished` waits for a run to finish, and never ended."""
    command = [COMMAND, "--db", url, "runs", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.stdout.close()
        try:
            assert watching.wait(60) == 0
        finally:
            watching.kill()


def test_watch_shows_it_until_somebody_has_seen_enough(url: str) -> None:
    command = [COMMAND, "--db", url, "runs", "--watch"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background of a shell ignores it
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heard) as watching:  # noqa: PLW1509
        assert watching.stdout is not None
        assert [watching.stdout.readline().split()[0] for _ in range(4)] == ["run", "run"] * 2
        watching.send_signal(signal.SIGINT)
    assert watching.returncode == 0


def test_doctor_is_strict_where_it_is_asked_to_be(url: str, catalog: Catalog, tmp_path: Path) -> None:
    _, ranks = begun(catalog, tmp_path / "ended", 10, run="ended")
    for launch in ranks:
        set_ending(launch, 10, 10, "RuntimeError")
    assert ckptstore("--db", url, "doctor", "ended").code == 0
    assert ckptstore("--db", url, "doctor", "ended", "--strict").code == 1


def test_a_process_that_is_gone_is_known_to_doctor(url: str, catalog: Catalog) -> None:
    program = """
import sys
from dataclasses import replace
from datetime import datetime, timezone
from ckptstore.api import connect
from ckptstore.catalog import leases
from ckptstore.core.model import launch_key
from ckptstore.disk.owner import this_process
with connect(sys.argv[1]).database.write() as connection:
    leases.give_sign(connection, launch_key("run", "L1"), this_process(), datetime.now(timezone.utc))
"""
    subprocess.run([sys.executable, "-c", program, url], check=True)
    told = ckptstore("--db", url, "doctor", "run").out
    assert "L1 was killed: process" in told
    assert "is gone, heard of " in told


def test_list_by_time_and_number(url: str) -> None:
    def steps(*asked: str) -> list[int]:
        return [row["global_step"] for row in ckptstore("--db", url, "list", *asked, "--json").json]

    assert steps("--since", "2d") == [30]
    assert len(ckptstore("--db", url, "list", "--files", "--limit", "3", "--json").json) == 3
    assert ckptstore("--db", url, "list", "run", "--kind", "ttp", "--files").out == "no such files\n"


def test_times_are_those_of_this_machine_on_a_terminal(
    url: str, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    saved = max(file.created_at for file in catalog.files("run") if file.created_at)
    hour = {"utc": f"{saved:%Y-%m-%d %H:}", "local": f"{saved + timedelta(hours=8):%Y-%m-%d %H:}"}
    assert hour["local"] in on_a_terminal("--db", url, "list")
    assert hour["utc"] in on_a_terminal("--db", url, "list", "--utc")
    assert hour["utc"] in ckptstore("--db", url, "list", TZ="Asia/Shanghai").out
    assert hour["local"] in ckptstore("--db", url, "list", "--local", TZ="Asia/Shanghai").out
    assert hour["utc"].replace(" ", "T") in ckptstore("--db", url, "list", "--local", "--json").out
    other = tmp_path / "of PyTorch" / "model_best.pth.tar"
    other.parent.mkdir()
    other.write_bytes(b"x")
    ckpt_bytes.write(other.parent / "net-1_1.ckpt", 1)
    os.utime(other, (saved.timestamp(), saved.timestamp()))
    for zone, shown in hour.items():
        scanned = ckptstore("--db", url, "scan", str(other.parent), "--dry-run", f"--{zone}", TZ="Asia/Shanghai")
        assert f"(of no rank, 1 B, {shown}" in scanned.out, scanned


def test_what_is_bad_has_a_colour(url: str, catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "bad", run="bad")
    job.save(ranks[:1], 40)
    shown = on_a_terminal("--db", url, "list", "bad")
    assert "\x1b[33m" in shown
    assert "\x1b" not in ckptstore("--db", url, "list", "bad").out
    assert "\x1b[33m" not in on_a_terminal("--db", url, "list", "run")


def test_what_is_wrong_and_the_losses(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    """Before, a quarantined save looked as any other that cannot be restored."""
    job, (rank,) = begun(catalog, tmp_path / "ckpt", world_size=1)
    rank.register(job.write(rank, 5), global_step=5, metrics={"loss": 0.25})
    bad = rank.register(job.write(rank, 10), global_step=10)
    rank.record_files([replace(bad, quarantine="the loss of its last step was nan")])
    for command in (["list", "run"], ["show", "run", "10"]):
        text = ckptstore("--db", database_url, *command)
        assert "quarantined: step 10 of " in text.out
        assert "the loss of its last step was nan" in text.out
    assert [row.split()[-1] for row in ckptstore("--db", database_url, "list", "run").out.splitlines()[2:4]] == [
        "-",
        "0.25",
    ]
    rows = ckptstore("--db", database_url, "list", "run", "--json").json
    told = [(row["quarantine"], row["metrics"]) for row in rows]
    assert told == [("the loss of its last step was nan", {}), (None, {"loss": 0.25})]
