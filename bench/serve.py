"""`ckptstore serve` on a large catalog: the time of a page while many clients read and many ranks register.

    python -m bench.serve [--quick]

The catalog has 1,000 runs with a million files, in PostgreSQL. SQL statements fill it, and every file exists, but is
small. 50 clients read pages of random runs, each a page every ten seconds. Five more clients follow the events, and one
scrapes the metrics. At the same time, each of 100 ranks of another run registers a file every five seconds.

The time of a page is measured to its first byte. The time of a record is measured in turns: with the server and its
readers, and without them. For the turns without, SIGSTOP stops the server, and no client reads.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.measure import CKPTSTORE, Budget, Found, Row, say
from bench.resolve import postgres, url
from bench.task import run_alone
from bench.worker import OWN, Worker
from ckptstore import connect
from ckptstore.core.model import launch_key
from ckptstore.core.replicas import stand_alone

TASK = "serve"
COMMAND = OWN.with_name("ckptstore")
RANKS, QUICK_RANKS = 100, 10
TURNS, SECONDS = 3, 25
QUICK_TURNS, QUICK_SECONDS = 1, 4
FIRST_BYTE_SECONDS = 0.3
TIMES_WITHOUT = 1.2
MEMORY_MB = 200.0
MTIME_NS = 1_700_000_000_000_000_000
"""The time of the first file. Each file has its own time, because gc uses times to find other paths of a file."""
KINDS = ("runs", "run", "save", "launches", "retention", "doctor", "metrics")


@dataclass(frozen=True)
class Size:
    """The number of runs, and the ranks and saves of each run."""

    runs: int = 1000
    ranks: int = 8
    saves: int = 125

    @property
    def files(self) -> int:
        """The number of files of all runs."""
        return self.runs * self.ranks * self.saves


QUICK = Size(runs=20, saves=5)

FILL = """
INSERT INTO runs (id, name) SELECT r, 'run-' || lpad(r::text, 4, '0') FROM generate_series(1, {runs}) r;
INSERT INTO launches (id, run_id, name, launch_order, world_size, layout, created_at, owner)
SELECT key, r, 'L1', 0, {ranks}, '{layout}', now() - interval '1 hour', {owner}
FROM unnest(ARRAY[{keys}]) WITH ORDINALITY AS of_runs (key, r);
INSERT INTO resolutions (launch_id, branched, plan, passed, created_at)
SELECT id, false, '[]', '[]', created_at FROM launches;
INSERT INTO sources (launch_id, rank, directory, kind, prefix, breakpoint_prefix, names_before, host, created_at)
SELECT id, k, '{root}/' || run_id || '/rank_' || k, 'periodic', 'net', 'net', '[]', 'host-0', created_at
FROM launches, generate_series(0, {ranks} - 1) k;
INSERT INTO saves (id, launch_id, kind, global_step, created_at)
SELECT md5('save' || run_id || '-' || s), id, 'periodic', s * 10, now() - make_interval(secs => ({saves} - s) * 20)
FROM launches, generate_series(1, {saves}) s;
INSERT INTO checkpoints (id, save_id, rank, path, size, mtime_ns, format, content, metrics, state, reported, created_at,
                         epoch, step_in_epoch, pause, written_after, version)
SELECT md5(s.id || '-' || k), s.id, k, '{root}/' || run_id || '/rank_' || k || '/net-1_' || s.global_step || '.ckpt',
       4, {mtime} + 1000 * (run_id::bigint * 1000000 + s.global_step * 100 + k), 'ckpt', 'full',
       CASE WHEN k = 0 THEN '{{"loss": 0.5}}'::json ELSE '{{}}'::json END, 'complete',
       'complete', s.created_at, 1, s.global_step, 0.2, 1.5, '0001'
FROM saves s JOIN launches ON launches.id = launch_id, generate_series(0, {ranks} - 1) k;
"""


def fill(work: Path, address: str, size: Size) -> None:
    """Fill the catalog with SQL statements, and make every file in it."""
    say(f"filling a catalog of {size.runs:,} runs with {size.files:,} files")
    connect(address).runs()  # makes the tables
    root = work / "ckpt"
    statements = FILL.format(
        **vars(size),
        keys=", ".join(f"'{launch_key(f'run-{run:04}', 'L1')}'" for run in range(1, size.runs + 1)),
        root=root,
        owner=os.getuid(),
        mtime=MTIME_NS,
        layout=json.dumps(stand_alone().to_json()),
    )
    with psycopg.connect(host=str(work / "pg"), user="postgres", dbname=TASK, autocommit=True) as connection:
        indexes = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'checkpoints' AND indexname LIKE 'ix_%'"
        ).fetchall()
        for name, _ in indexes:  # to build the indexes once, at the end, takes a third of the time
            connection.execute(f"DROP INDEX {name}")
        connection.execute(statements)
        for _, definition in indexes:
            connection.execute(definition)
        connection.execute("SELECT setval(pg_get_serial_sequence('runs', 'id'), (SELECT max(id) FROM runs))")
        connection.execute("VACUUM ANALYZE")
    for run in range(1, size.runs + 1):
        for rank in range(size.ranks):
            directory = f"{root}/{run}/rank_{rank}"
            os.makedirs(directory)
            for save in range(1, size.saves + 1):
                path = f"{directory}/net-1_{save * 10}.ckpt"
                with open(path, "xb", buffering=0) as file:
                    file.write(b"%4d" % rank)
                written = MTIME_NS + 1000 * (run * 1_000_000 + save * 1000 + rank)
                os.utime(path, ns=(written, written))


@contextmanager
def server(address: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `ckptstore serve` on the catalog; its process and port."""
    command = [str(COMMAND), "--db", address, "serve", "--port", "0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ shows", process.stdout.readline())
        assert found is not None
        try:
            yield process, int(found[1])
        finally:
            process.kill()


def highest_memory(process: int) -> float:
    """The peak memory of a process, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def ninetieth(values: Sequence[float]) -> float:
    """The 90th percentile."""
    return sorted(values)[len(values) * 9 // 10]


def measure(work: Path, found: Found, *, quick: bool) -> None:
    """Measure records without the server and with it, in turns, and pages in the turns with it."""
    size = QUICK if quick else Size()
    address = url("PostgreSQL", work, TASK)
    fill(work, address, size)
    ranks, seconds = (QUICK_RANKS, QUICK_SECONDS) if quick else (RANKS, SECONDS)
    pages: dict[str, list[float]] = {kind: [] for kind in KINDS}
    without, beside = list[float](), list[float]()
    news, refused = 0, list[str]()
    with (
        Worker(OWN, "bench.serve_ranks", work / "ranks", address, str(ranks)) as registering,
        server(address) as (process, port),
        Worker(OWN, "bench.serve_readers", work / "readers", str(port), *map(str, vars(size).values())) as readers,
    ):
        readers.ask(seconds=seconds / 2)  # warm up: the first requests fill caches
        registering.ask(seconds=seconds / 2)
        for _ in range(QUICK_TURNS if quick else TURNS):
            process.send_signal(signal.SIGSTOP)
            without += registering.ask(seconds=seconds)["seconds"]
            process.send_signal(signal.SIGCONT)
            readers.begin(seconds=seconds)
            beside += registering.ask(seconds=seconds)["seconds"]
            looked = readers.end()
            news += looked["news"]
            refused += looked["refused"]
            for kind, taken in looked["seconds"].items():
                pages[kind] += taken
        memory = highest_memory(process.pid)
    what = f"{size.runs:,} runs, {size.files:,} files"
    for kind, taken in pages.items():
        row = found.add(Row(TASK, f"{kind}: first byte, {what}", len(taken), {CKPTSTORE: taken}))
        if not quick:
            found.check(Budget(f"{kind}: first byte, {what}", row.spread(CKPTSTORE).median, FIRST_BYTE_SECONDS, "s"))
        say(f"    nine of ten within {ninetieth(taken):.3f} s")
    taken = {CKPTSTORE: beside, "without a server": without}
    row = found.add(Row(TASK, f"one record of {ranks} ranks while 50 clients read", len(beside), taken))
    ratio = row.spread(CKPTSTORE).median / row.spread("without a server").median
    if not quick:
        found.check(Budget("one record while 50 clients read / without a server", ratio, TIMES_WITHOUT))
    say(f"    nine of ten within {ninetieth(beside):.4f} s, without {ninetieth(without):.4f} s; {news} events told")
    say("\n".join(f"    {each}" for each in refused))
    if not quick:
        found.check(Budget("requests refused", len(refused), 0, ""))
    found.check(Budget("memory of the server", memory, MEMORY_MB, "MB"))


def run(work: Path, *, quick: bool) -> Found:
    """Measure all on PostgreSQL."""
    found = Found()
    with postgres(work):
        measure(work, found, quick=quick)
    return found


if __name__ == "__main__":
    run_alone(run)
