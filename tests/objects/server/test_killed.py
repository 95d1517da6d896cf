"""Processes that copy are killed at drawn points: what a restore would take is whole, and nothing is lost."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptstore.api import connect
from ckptstore.catalog import copies
from ckptstore.core.copy_keys import key_of
from ckptstore.core.model import Checkpoint
from ckptstore.objects.asked import ask
from ckptstore.objects.settings import settings
from ckptstore.objects.store import Store
from ckptstore.tiers import facts
from tests import ckpt_bytes
from tests.objects.server.faults import Faults
from tests.objects.server.swift import BUCKET
from tests.starting import WARM

PART = 256 << 10
SMALL = f"""
from ckptstore.objects import s3, store

s3.PIECE = store.PIECE = {PART}
"""
"""What makes parts small: a megabyte is cut in as many ways as a hundred."""
RANK = """
import sys
from datetime import timedelta
from ckptstore.api import connect
from ckptstore.replicate import copy_thread
from ckptstore.tiers import facts

copy_thread.SETTLED = timedelta(0)
database = connect(sys.argv[1]).database
(tier,) = facts.declared(database)
copying = copy_thread.CopyThread(database, [tier])
for file in facts.lacking(database, "run", tier):
    copying.file_registered(file)
copying.finish(60)
"""
AGENT = """
import sys
from datetime import timedelta
from ckptstore.api import connect
from ckptstore.replicate.replicator import Replicator

Replicator(connect(sys.argv[1]).database).round("run", settled_for=timedelta(0))
"""
OVERHEAD = 64 << 10
"""Bytes of requests beside those of files, a file and a start."""


class Campaign:
    """A run that saves, processes that copy what it saved, and a draw of when each is killed."""

    def __init__(self, directory: Path, faults: Faults, store: Store, seed: int, python: list[str]) -> None:
        self.directory, self.faults, self.store, self.python = directory, faults, store, python
        for name, program in (("rank.py", RANK), ("agent.py", AGENT)):
            (directory / name).write_text(SMALL + program)
        self.random = random.Random(seed)  # noqa: S311
        self.catalog = connect(str(directory / "catalog.db"))
        self.tier = facts.tier_of("s3", store.name)
        facts.add(self.catalog.database, self.tier)
        self.launch = self.catalog.join("run", rank=0, world_size=1, launch_id="L1")
        self.launch.resolve()
        self.files: dict[str, Checkpoint] = {}
        self.whole: set[str] = set()
        self.kills = self.step = self.resent = 0
        self.faults.sent = 0

    def save(self) -> None:
        """Some files that are sent at once, and some in parts."""
        self.step += 1
        size = self.random.choice((1000, PART // 8, PART + 1, 2 * PART, 3 * PART + 7, 8 * PART))
        path = self.directory / "ckpt" / f"net-1_{self.step}.ckpt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(ckpt_bytes.value("weight", "UInt8", (size,), self.random.randbytes(size)))
        file = self.launch.register(str(path), global_step=self.step)
        self.files[key_of(file)] = file

    def lacking(self) -> list[Checkpoint]:
        return facts.lacking(self.catalog.database, "run", self.tier)

    def kill_one(self) -> None:
        while len(self.lacking()) < 4:
            self.save()
        wanted = sum(file.size or 0 for file in self.lacking())
        at = self.faults.sent + self.random.uniform(0, wanted * 1.02)
        process = self.start()
        while process.poll() is None and self.faults.sent < at:
            time.sleep(0.001)
        if process.poll() is None:
            process.kill()
            self.kills += 1
        assert process.wait() in (0, -signal.SIGKILL)

    def start(self) -> subprocess.Popen[bytes]:
        program = self.directory / self.random.choice(("rank.py", "agent.py"))
        env = {**os.environ, "AWS_ENDPOINT_URL": self.faults.endpoint}
        return subprocess.Popen([*self.python, str(program), str(self.directory / "catalog.db")], env=env)

    def check(self) -> None:
        """Every object that is seen has the bytes that its name says, and every copy that counts is one of them."""
        for seen in self.store.list():
            if seen.key not in self.whole and "/journals/" not in seen.key:
                file = self.files[seen.key]
                assert (seen.size, self.store.digest_of(seen.key, seen.size)) == (file.size, file.digest)
                self.whole.add(seen.key)
        with self.catalog.database.read() as connection:
            known = copies.copies_of(connection, [file.id for file in self.files.values()])
        ready = {copy.key for some in known.values() for copy in some if copy.state.value == "ready"}
        assert ready <= self.whole

    def end(self) -> None:
        while self.lacking():
            assert self.start().wait() == 0
        self.check()
        assert self.whole == set(self.files)


@pytest.fixture(scope="module")
def python() -> Iterator[list[str]]:
    """What runs a script in a fork of a process that has imported all it needs."""
    with tempfile.TemporaryDirectory() as home:
        address = f"{home}/warm"
        modules = ["obstore", "obstore.store", "ckptstore.replicate.copy_thread", "sqlalchemy.dialects.sqlite"]
        serve = [sys.executable, str(WARM), "serve", address, *modules]
        server = subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert server.stdout.readline() == b"ready\n"
        yield [sys.executable, "-S", "-E", str(WARM), "run", address]
        server.communicate()


def campaign(drawn: Campaign, kills: int) -> None:
    directory, faults, store = drawn.directory, drawn.faults, drawn.store
    starts = 0
    while drawn.kills < kills:
        drawn.kill_one()
        drawn.check()
        starts += 1
    drawn.end()
    total = sum(file.size or 0 for file in drawn.files.values())
    largest = max(file.size or 0 for file in drawn.files.values())
    twice = faults.sent - total
    print(
        f"\n{drawn.kills} kills of {starts} processes, {len(drawn.files)} files, {total >> 20} MiB: sent "
        f"{faults.sent >> 20} MiB, {100 * twice / total:.0f} % twice, {twice / drawn.kills / (1 << 20):.1f} MiB a kill"
    )
    assert 0 <= twice <= drawn.kills * largest + (len(drawn.files) + 2 * starts) * OVERHEAD
    left = ask(settings(), BUCKET, "GET", query={"uploads": ""}).body
    assert not [key for key in drawn.files if key.encode() in left]
    fetched = directory / "fetched"
    for key, file in drawn.files.items():
        store.get(key, str(fetched / Path(file.path).name), file.size or 0, file.digest or "")
    again = connect(str(directory / "again.db"))
    again.scan(directory / "ckpt")
    assert facts.lacking(again.database, "run", drawn.tier) == []


@pytest.mark.parametrize("kills", [8, pytest.param(500, marks=pytest.mark.long)])
def test_killed_at_drawn_points(store: Store, faults: Faults, tmp_path: Path, python: list[str], kills: int) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"\nSEED={seed}")
    campaign(Campaign(tmp_path, faults, store, seed, python), kills)
