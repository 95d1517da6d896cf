"""Copying a file to object storage and fetching it, compared with obstore alone on the same bytes, in turns.

    .venv-objects/bin/python -m bench.transfers [--quick]     after `make test-objects`, which sets up this environment

The server is OpenStack Swift on this machine. Each transfer runs in its own process, so that its memory can be
measured. Both send parts of 8 MiB and fetch ranges of 8 MiB, 4 at a time, and both sync the fetched file. ckptstore
also computes digests, and compares them with the file's or the store's. The exit code is 1 if a budget is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import obstore
from blake3 import blake3
from obstore.store import S3Store

from bench.measure import CKPTSTORE, Budget, Row, say
from ckptstore.objects.asked import ask
from ckptstore.objects.settings import settings
from ckptstore.objects.store import PIECE
from ckptstore.objects.tiers import open_tier
from tests.objects.server.swift import BUCKET, KEY, SECRET, Swift

ALONE = "obstore alone"
SIZE, QUICK_SIZE = 256 << 20, 64 << 20
TURNS, QUICK_TURNS = 7, 3
LEAST = 0.9
MOST_MEMORY = 300 << 20
PARALLEL = 4


def alone_put(path: Path, key: str) -> None:
    """Send a file as a plain script does."""
    obstore.put(_client(), key, path, chunk_size=PIECE, max_concurrency=PARALLEL)


def alone_get(path: Path, key: str, size: int) -> None:
    """Fetch a file as a plain script does, as fast as possible."""
    client = _client()
    with path.open("wb") as file, ThreadPoolExecutor(PARALLEL) as pool:
        file.truncate(size)

        def fetch(start: int) -> None:
            piece = obstore.get_range(client, key, start=start, length=min(PIECE, size - start))
            os.pwrite(file.fileno(), memoryview(piece), start)

        list(pool.map(fetch, range(0, size, PIECE)))
        os.fsync(file.fileno())


def one(what: str, who: str, path: Path, key: str, *expected: str) -> None:
    """Run one transfer; print its seconds, and the peak memory of this process."""
    size, digest = int(expected[0]), expected[1]
    store = open_tier(f"s3://{BUCKET}")
    store.head("nothing")  # connect and import before the clock starts
    _client()
    began = time.perf_counter()
    if who == ALONE:
        alone_put(path, key) if what == "put" else alone_get(path, key, size)
    elif what == "put":
        store.put(str(path), key, size, digest)
    else:
        store.get(key, str(path), size, digest)
    taken = time.perf_counter() - began
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps([taken, int(status["VmHWM"].split()[0]) << 10]))


def measured(directory: Path, size: int, turns: int) -> tuple[list[Row], list[Budget]]:
    """Run all transfers, in turns."""
    source = directory / "net.ckpt"
    with source.open("wb") as file:
        for _ in range(size // PIECE):
            file.write(os.urandom(PIECE))
    digest = blake3(source.read_bytes()).hexdigest()
    seconds: dict[tuple[str, str], list[float]] = {}
    memory: dict[tuple[str, str], list[float]] = {}
    for turn in range(turns):
        for who in (ALONE, CKPTSTORE) if turn % 2 else (CKPTSTORE, ALONE):
            key = f"bench/{turn}-{'a' if who == ALONE else 'c'}"
            for what, path in (("put", source), ("get", directory / f"fetched-{turn}-{who == ALONE}")):
                command = [
                    sys.executable,
                    "-m",
                    "bench.transfers",
                    "--one",
                    what,
                    who,
                    str(path),
                    key,
                    str(size),
                    digest,
                ]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
                taken, most = json.loads(done.stdout)
                seconds.setdefault((what, who), []).append(taken)
                memory.setdefault((what, who), []).append(most)
                if what == "get":
                    path.unlink()
    rows, budgets = [], []
    for what, name in (("put", "copy up"), ("get", "fetch")):
        both = (ALONE, CKPTSTORE)
        row = Row("transfers", name, size, {who: seconds[what, who] for who in both})
        rows += [row, Row("transfers", f"{name}: memory", size, {who: memory[what, who] for who in both}, unit="B")]
        budgets.append(Budget(f"{name}, against {ALONE}", row.ratio(ALONE, CKPTSTORE).median, LEAST, at_least=True))
        budgets.append(
            Budget(f"{name}: MiB of memory", max(memory[what, CKPTSTORE]) / (1 << 20), MOST_MEMORY >> 20, " MiB")
        )
    return rows, budgets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="64 MiB, three turns")
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        what, who, path, key, size, digest = asked.one
        one(what, who, Path(path), key, size, digest)
        return 0
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "swift").mkdir()
        server = Swift(Path(home) / "swift")
        try:
            server.start()
            os.environ |= {
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_ENDPOINT_URL": server.endpoint,
                "AWS_REGION": "us-east-1",
            }
            ask(settings(), BUCKET, "PUT")
            size, turns = (QUICK_SIZE, QUICK_TURNS) if asked.quick else (SIZE, TURNS)
            rows, budgets = measured(Path(home), size, turns)
        finally:
            server.kill()
    for each in (*rows, *budgets):
        say(str(each))
    return 0 if all(each.kept for each in budgets) else 1


def _client() -> object:
    own = settings()
    return S3Store(
        BUCKET,
        endpoint=own.endpoint,
        region=own.region,
        access_key_id=own.key,
        secret_access_key=own.secret,
        client_options={"allow_http": True, "timeout": timedelta(seconds=60)},
    )


if __name__ == "__main__":
    sys.exit(main())
