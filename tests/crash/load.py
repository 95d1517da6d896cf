"""Ten thousand ranks save at once, in a few dozen processes; what that costs PostgreSQL.

Each rank registers as one does: into a journal of its own, then over a connection of its own for one transaction. Each
process has a few of its ranks at work at a time; who finds no room at the server tries again, as the registrar does. In
a wave every rank saves once. Clients and server share this machine: the times are not those of a cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg

from ckptstore.api import connect
from ckptstore.catalog.backoff import Backoff
from ckptstore.catalog.engine import Database, open_database
from ckptstore.errors import CatalogUnavailableError
from ckptstore.training.rank_launch import LONGEST_PAUSE_SECONDS, RankLaunch
from ckptstore.training.start import begin
from tests import ckpt_bytes
from tests.crash.rank import ANSWER_SECONDS
from tests.postgres_server import Server


@dataclass
class Wave:
    """One save of all ranks: how many records the catalog has of it, and in how many seconds it had them.

    `most` is how many connections were open at once, by looking fifty times a second.
    """

    recorded: int
    seconds: float
    most: int


@dataclass
class Outcome:
    """What a load did. `room` is how many connections the server allows, `idle` how many were open between waves."""

    ranks: int
    processes: int
    at_a_time: int
    room: int
    waves: list[Wave] = field(default_factory=list)
    idle: int = 0


@dataclass(frozen=True)
class Part:
    """What one process does: it stands for `count` ranks from `first` on."""

    url: str
    directory: str
    first: int
    count: int
    world_size: int
    at_a_time: int
    waves: int


class Ranks:
    """Those that one process stands for."""

    def __init__(self, part: Part) -> None:
        address = open_database(part.url).url
        facts = begin(Database(address), "run", rank=0, world_size=part.world_size, launch_id="L1", layout=None).facts
        every = [
            RankLaunch(Database(address, answer_within=ANSWER_SECONDS), facts, rank)
            for rank in range(part.first, part.first + part.count)
        ]
        self._folder = Path(part.directory)
        self._shares = [every[place :: part.at_a_time] for place in range(part.at_a_time)]

    def write(self, step: int) -> None:
        for share in self._shares:
            for launch in share:
                ckpt_bytes.write(self._path(launch, step), step, step)

    def register(self, step: int) -> None:
        """All of them, some at a time; back when the catalog has the last."""

        def work(share: list[RankLaunch]) -> None:
            for launch in share:
                launch.register(self._path(launch, step), global_step=step, optimizer_step=step)
            backoff = Backoff(LONGEST_PAUSE_SECONDS)
            while behind := [launch for launch in share if launch.recorder.is_late]:
                time.sleep(backoff.pause())
                for launch in behind:
                    with suppress(CatalogUnavailableError):
                        launch.recorder.catch_up()

        with ThreadPoolExecutor(len(self._shares)) as pool:
            list(pool.map(work, self._shares))

    def _path(self, launch: RankLaunch, step: int) -> Path:
        return self._folder / f"rank_{launch.rank}" / f"llama_7b-{step // 100 + 1}_{step % 100}.ckpt"


class Watch:
    """Counts the connections of a server while a block lasts."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most = 0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        with closing(psycopg.connect(self._server.url(), autocommit=True)) as connection:
            while not self._ended.wait(0.02):
                self.most = max(self.most, _open(connection))


def _open(connection: psycopg.Connection[tuple[int]]) -> int:
    found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ckptstore'").fetchone()
    return found[0] if found else 0


def load(home: Path, *, ranks: int, processes: int, at_a_time: int, waves: int, room: int = 100) -> Outcome:
    outcome = Outcome(ranks, processes, at_a_time, room)
    server = Server(home / "server", max_connections=room, superuser_reserved_connections=3)
    directory = home / "ckpt"
    server.run("CREATE ROLE trainer LOGIN")
    connect(server.new_database())
    server.run("GRANT ALL ON ALL TABLES IN SCHEMA public TO trainer", "ckptstore")
    server.run("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO trainer", "ckptstore")
    shares = [ranks // processes + (place < ranks % processes) for place in range(processes)]
    firsts = [sum(shares[:place]) for place in range(processes)]
    url = server.url("ckptstore", user="trainer")  # no superuser: those have room of their own
    parts = [
        Part(url, str(directory), first, count, ranks, at_a_time, waves)
        for first, count in zip(firsts, shares, strict=True)
    ]
    log = (home / "ranks.log").open("wb")
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.crash.load", json.dumps(asdict(part))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,  # each rank says once that the server had no room
            text=True,
        )
        for part in parts
    ]
    try:
        for number in range(1, waves + 1):
            _wait(workers, "READY")
            with Watch(server) as watch:
                began = time.monotonic()
                _tell(workers)
                _wait(workers, "DONE")
                seconds = time.monotonic() - began
            found = f"SELECT count(*) FROM checkpoints JOIN saves ON saves.id = save_id WHERE global_step = {number}"
            recorded = server.run(f"{found} AND state = 'complete'", "ckptstore")[0][0]
            outcome.waves.append(Wave(recorded, seconds, watch.most))
            ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ckptstore'"
            outcome.idle = max(outcome.idle, server.run(ours)[0][0])
            _tell(workers)
        for worker in workers:
            worker.wait()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
        log.close()
        server.close()
    return outcome


def _wait(workers: list[subprocess.Popen[str]], word: str) -> None:
    for worker in workers:
        assert worker.stdout.readline() == f"{word}\n"


def _tell(workers: list[subprocess.Popen[str]]) -> None:
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()


def work(part: Part) -> None:
    """For each wave: say READY, read a line, say DONE when all is recorded, read a line."""
    ranks = Ranks(part)
    for step in range(1, part.waves + 1):
        ranks.write(step)
        print("READY", flush=True)
        sys.stdin.readline()
        ranks.register(step)
        print("DONE", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    work(Part(**json.loads(sys.argv[1])))
