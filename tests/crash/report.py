"""Runs the campaigns, and writes what they did and found into docs/explanation/promises.md. `make torture` is this.

    python -m tests.crash.report [--only NAME …] [--within SECONDS]
    python -m tests.crash.report --only-write

A part that finds something wrong, or does not come to its end, changes no figure: it is said, and the exit code is 1.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from tests.crash import campaign, drains, load, outage
from tests.crash.table import Row, table

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "explanation" / "promises.md"
BEGIN, END = "<!-- make torture: begin -->\n", "<!-- make torture: end -->\n"
KILLS = 1000
PROCESSES, SAVES = 32, 12  # saves of each process in each outage: a minute of them
RANKS = 10_000
DRAINS, DRAINS_POSTGRESQL = 200, 100


class PartError(Exception):
    """What a part found wrong."""


def registering(database: str) -> Callable[[float], list[Row]]:
    """Ranks that save and register are killed."""

    def part(within: float) -> list[Row]:
        row, outcome = campaign.run(database, kills=KILLS, within=within)
        print(json.dumps(outcome.__dict__, indent=2))
        if not outcome.is_right:
            raise PartError("catalog, journals and disk do not agree")
        return [row]

    return part


def draining(database: str, times: int) -> Callable[[float], list[Row]]:
    """Pods are drained, as the kubelet does it."""

    def part(within: float) -> list[Row]:
        row, outcome = drains.run(database, drains=times, within=within)
        print(json.dumps(outcome.__dict__, indent=2))
        if not outcome.is_right or outcome.drains < times:
            raise PartError(f"{outcome.drains} of {times} drains, of which some are wrong or late")
        return [row]

    return part


def collecting(within: float) -> list[Row]:
    """gc, undo and purge are killed: tests/retention/test_gc_crash.py, which counts."""
    with tempfile.TemporaryDirectory() as home:
        report = Path(home) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "tests/retention/test_gc_crash.py"]
        command += ["-m", ""]  # the long ones too
        command += [f"--junit-xml={report}", "-o", "junit_family=xunit1"]
        began = time.monotonic()
        try:
            done = subprocess.run(command, cwd=ROOT, check=False, timeout=within)
        except subprocess.TimeoutExpired:
            raise PartError(f"it did not end in {within:g} s") from None
        seconds = round(time.monotonic() - began)
        if done.returncode:
            raise PartError("see above")
        found = ET.parse(report).iter("property")  # noqa: S314 — pytest wrote it a moment ago
        kills = sum(int(each.get("value", "0")) for each in found if each.get("name") == "kills")
    return [Row("SIGKILL of gc, undo and purge", times=kills, lost=0, wrong_plans=0, seconds=seconds)]


def outages(within: float) -> list[Row]:
    """PostgreSQL goes away in every way while many register."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        outcome = outage.campaign(Path(home), processes=PROCESSES, saves=SAVES, pause=1.0)
    print(json.dumps(asdict(outcome), indent=2))
    wrong = outcome.judge()
    if outcome.seconds > within:
        wrong.append(f"it took {outcome.seconds:.0f} s")
    if wrong:
        raise PartError("; ".join(wrong))
    what = f"save of {PROCESSES} processes while PostgreSQL is stopped, paused, crashed, cut off"
    return [Row(what, times=outcome.saves, lost=outcome.lost, wrong_plans=None, seconds=round(outcome.seconds))]


def waves(within: float) -> list[Row]:
    """As many ranks as the largest job has save at once."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        outcome = load.load(Path(home), ranks=RANKS, processes=8, at_a_time=16, waves=2)
    print(json.dumps(asdict(outcome), indent=2))
    recorded = [wave.recorded for wave in outcome.waves]
    seconds = sum(wave.seconds for wave in outcome.waves)
    if set(recorded) != {RANKS} or outcome.idle or seconds > within:
        raise PartError(f"recorded {recorded}, {outcome.idle} idle connections, {seconds:.0f} s")
    what = f"save of {RANKS:,} ranks at once, in waves, 100 connections of PostgreSQL"
    lost = RANKS * len(recorded) - sum(recorded)
    return [Row(what, times=sum(recorded), lost=lost, wrong_plans=None, seconds=round(seconds))]


PARTS: dict[str, Callable[[float], list[Row]]] = {
    "registering, SQLite": registering("sqlite"),
    "registering, PostgreSQL": registering("postgresql"),
    "drains": draining("sqlite", DRAINS),
    "drains, PostgreSQL": draining("postgresql", DRAINS_POSTGRESQL),
    "collecting": collecting,
    "outages": outages,
    "waves": waves,
}
"""Each takes as many seconds as it may last, and returns rows, or raises `PartError`."""


def results() -> dict[str, list[Row]]:
    """The rows of each part when it was run last."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {name: [Row(**row) for row in part["rows"]] for name, part in kept.items()}


def keep(name: str, rows: list[Row]) -> None:
    """Write the rows of a part down, and on what they were made."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    on = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    kept[name] = {"at": f"{datetime.now(timezone.utc):%Y-%m-%d}", "on": on, "rows": [asdict(row) for row in rows]}
    ordered = {each: kept[each] for each in PARTS if each in kept}
    RESULTS.write_text(f"{json.dumps(ordered, indent=2)}\n")


def write_page() -> None:
    """Put the table between its markers."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}{shown()}{END}{after}")


def shown() -> str:
    """The table, as it is on the page."""
    found = results()
    return f"{table([row for name in PARTS for row in found.get(name, [])])}\n"


def main() -> int:
    """Run what was asked for, one after another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--within", type=float, default=1800.0, metavar="SECONDS", help="that each may last")
    parser.add_argument("--only-write", action="store_true", help="run nothing: the page gets what was kept")
    asked = parser.parse_args()
    failed = []
    for name in [] if asked.only_write else asked.only:
        print(f"{name}:", flush=True)
        try:
            rows = PARTS[name](asked.within)
        except PartError as error:
            failed.append(f"{name} failed: {error}")
            continue
        keep(name, rows)
        print(table(rows), flush=True)
    write_page()
    print(*failed, sep="\n", end="\n" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        sys.exit(main())
