"""The clients of `bench.serve`. They do as little work of their own as possible.

python -m bench.serve_readers HOME PORT RUNS RANKS SAVES
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

CLIENTS, FOLLOWERS = 50, 5
EVERY_SECONDS = 10.0
SCRAPED_EVERY_SECONDS = 5.0


class Readers:
    """The clients. Each requests random pages of all runs."""

    def __init__(self, port: int, runs: int, saves: int) -> None:
        self._port, self._runs, self._saves = port, runs, saves
        self._chance = random.Random(7)  # noqa: S311 — the choice of pages is no secret
        self.seconds: dict[str, list[float]] = {}
        self.news = 0
        self.refused: list[str] = []

    def _drawn(self) -> tuple[str, str]:
        run = f"/runs/run-{self._chance.randint(1, self._runs):04}"
        pages = {
            "runs": "/",
            "run": run,
            "save": f"{run}/saves/{10 * self._chance.randint(1, self._saves)}",
            "launches": f"{run}/launches",
            "retention": f"{run}/retention?keep_last=5",
            "doctor": "/doctor",
        }
        return self._chance.choice(list(pages.items()))

    async def _get(self, kind: str, path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        begin = time.perf_counter()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        status = await reader.readline()
        if b" 200 " in status:
            self.seconds.setdefault(kind, []).append(time.perf_counter() - begin)
        else:
            self.refused.append(f"{path}: {status.decode().strip()}")
        await reader.read()
        writer.close()

    async def _read(self, until: float) -> None:
        await asyncio.sleep(self._chance.random() * EVERY_SECONDS)
        while time.monotonic() < until:
            began = time.monotonic()
            await self._get(*self._drawn())
            await asyncio.sleep(max(0.0, began + EVERY_SECONDS - time.monotonic()))

    async def _scrape(self, until: float) -> None:
        while time.monotonic() < until:
            await self._get("metrics", "/metrics")
            await asyncio.sleep(SCRAPED_EVERY_SECONDS)

    async def _follow(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        try:
            while line := await reader.readline():
                self.news += line.startswith(b"event:")
        finally:
            writer.close()

    async def all(self, seconds: float) -> None:
        """Run all clients for so many seconds."""
        until = time.monotonic() + seconds
        following = [asyncio.create_task(self._follow()) for _ in range(FOLLOWERS)]
        await asyncio.gather(*(self._read(until) for _ in range(CLIENTS)), self._scrape(until))
        for each in following:
            each.cancel()
        await asyncio.gather(*following, return_exceptions=True)


def main() -> None:
    """At each request, read for the requested time, and answer with the seconds to each first byte."""
    port, runs, _, saves = map(int, sys.argv[2:])
    for line in sys.stdin:
        readers = Readers(port, runs, saves)
        asyncio.run(readers.all(json.loads(line)["seconds"]))
        print(json.dumps({"seconds": readers.seconds, "news": readers.news, "refused": readers.refused}), flush=True)


if __name__ == "__main__":
    main()
