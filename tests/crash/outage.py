"""PostgreSQL is stopped, restarted, paused, crashed and its connections are killed while many processes register.

Counted is what the catalog lacks in the end of what was handed over, without anybody starting or syncing anything; how
long the catalog took after each return; and how long the training thread was held up at a hand-over.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptstore.api import connect
from tests.postgres_server import Server

LONGEST_STEP = 0.050
LONGEST_RETURN = 30.0
GIVE_UP = 120.0


@dataclass
class Outcome:
    """What a campaign did and what it found. Times are in seconds.

    `delayed` counts the hand-overs that held the training thread up for more than 50 ms, `delayed_alike` how often as
    much computing without ckptstore was held up so, at the same moments: by the machine. `returns` says how long after
    each return of the server everything handed over before was in the catalog.
    """

    processes: int = 0
    seconds: float = 0.0
    saves: int = 0
    lost: int = 0
    delayed: int = 0
    delayed_alike: int = 0
    longest_hand_over: float = 0.0
    longest_alike: float = 0.0
    returns: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        """What is not as it must be."""
        late = [
            f"{name}: {took:.1f} s until all was there" for name, took in self.returns.items() if took > LONGEST_RETURN
        ]
        lost = [f"{self.lost} of {self.saves} saves are not in the catalog"] if self.lost else []
        more = self.delayed - self.delayed_alike
        delayed = [f"{more} steps more than by the machine alone took over 50 ms longer"] if more > 0 else []
        return [*self.wrong, *lost, *late, *delayed]


class Ranks:
    """The processes, and what they have saved so far."""

    def __init__(self, url: str, directory: Path, count: int, pause: float) -> None:
        self._directory = directory
        self.count = count
        command = [sys.executable, "-m", "tests.crash.rank", url, str(directory)]
        self._log = (directory.parent / "ranks.log").open("wb")
        self._processes = [
            subprocess.Popen(
                [*command, str(rank), str(count), str(pause)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
            for rank in range(count)
        ]
        for process in self._processes:
            assert process.stdout.readline() == "READY\n"
        self.tell("begin")

    def tell(self, word: str) -> None:
        for process in self._processes:
            process.stdin.write(f"{word}\n")
            process.stdin.flush()

    def saved(self) -> set[str]:
        return {str(path) for path in self._directory.glob("rank_*/*.ckpt")}

    def save_more(self, saves: int) -> None:
        """Wait until each has saved so many more."""
        before = {rank: self._count(rank) for rank in range(self.count)}
        while any(self._count(rank) < before[rank] + saves for rank in before):
            assert all(process.poll() is None for process in self._processes), "a process has ended"
            time.sleep(0.02)

    def report(self) -> list[dict[str, Any]]:
        """Have them save no more; what each did."""
        self.tell("enough")
        return [json.loads(process.stdout.readline()) for process in self._processes if process.stdout is not None]

    def end(self) -> list[int]:
        self.tell("end")
        return [process.wait() for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                stream.close()
        self._log.close()

    def _count(self, rank: int) -> int:
        return sum(1 for _ in self._directory.glob(f"rank_{rank}/*.ckpt"))


def campaign(home: Path, *, processes: int, saves: int, pause: float) -> Outcome:
    """`saves` is how many each process makes in each of the outages, `pause` the seconds between two of them."""
    server = Server(home / "server", max_connections=100)
    url = server.new_database()
    connect(url)
    outcome = Outcome(processes)
    began = time.monotonic()
    (home / "ckpt").mkdir()
    ranks = Ranks(url, home / "ckpt", processes, pause)
    try:
        ranks.save_more(1)

        def returned(name: str) -> None:
            outcome.returns[name] = _until_all_is_there(server, ranks.saved())

        def outage(name: str, begin: Callable[[], None], end: Callable[[], None]) -> None:
            begin()
            ranks.save_more(saves)
            end()
            returned(name)

        outage("stopped", server.stop, server.start)
        server.stop()
        server.start()
        returned("restarted")
        outage("paused", server.pause, server.go_on)
        for _ in range(4 * saves):
            server.kill_connections()
            time.sleep(pause / 4)  # the only place where time passes by itself: any moment will do
        returned("connections killed")
        server.stop("immediate")
        ranks.save_more(saves)
        outcome.seconds = time.monotonic() - began
        _add(outcome, ranks.report())
        server.start()  # nobody saves any more: what comes now comes by itself
        returned("crashed")
        outcome.lost = len(ranks.saved() - _recorded(server))
        ended = ranks.end()
        outcome.wrong += [f"process {rank} ended with {code}" for rank, code in enumerate(ended) if code]
        if outcome.saves != len(ranks.saved()):
            outcome.wrong.append("not every save that was counted is on disk")
    finally:
        ranks.close()
        server.close()
    said = (home / "ranks.log").read_text()
    outcome.wrong += [line for line in said.splitlines() if line.startswith("Traceback")]
    return outcome


def _until_all_is_there(server: Server, saved: set[str]) -> float:
    """How many seconds it takes until the catalog has these files; infinitely many if it does not come to that."""
    begin = time.monotonic()
    while saved - _recorded(server):
        if time.monotonic() > begin + GIVE_UP:
            return float("inf")
        time.sleep(0.1)
    return time.monotonic() - begin


def _recorded(server: Server) -> set[str]:
    return {row[0] for row in server.run("SELECT path FROM checkpoints WHERE state = 'complete'", "ckptstore")}


def _add(outcome: Outcome, reports: list[dict[str, Any]]) -> None:
    took = sorted(each for report in reports for each in report["took"])
    alike = sorted(each for report in reports for each in report["control"])
    outcome.saves = sum(report["saves"] for report in reports)
    outcome.delayed = sum(each > LONGEST_STEP for each in took)
    outcome.delayed_alike = sum(each > LONGEST_STEP for each in alike)
    outcome.longest_hand_over, outcome.longest_alike = took[-1], alike[-1]
