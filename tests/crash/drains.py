"""Pods of a job are drained at moments nobody chose; afterwards a restart goes on where the disk says that it can.

Four ranks, each in a pod of its own (pod.py), train in lockstep and save. One or two of the pods are drained, as the
kubelet does it: `ckptstore exit --from-env --wait` is run, then the rank gets SIGTERM, and SIGKILL when the grace is
over. Where a rank fails all others are killed. The next launch tells what was left behind. Meanwhile the catalog may be
away, a directory read-only for the command, or the request taken back.
"""

import ctypes
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from ckptstore.api import connect
from ckptstore.cli.leave import NOT_LEFT
from tests.command_line import COMMAND
from tests.crash import campaign
from tests.crash.campaign import is_whole, newest_of, step_of
from tests.crash.pod import LEFT
from tests.crash.table import Row
from tests.postgres_server import Server
from tests.starting import LIBRARY, warm_python

RANKS = 4
LONGER = 2.0
"""Seconds that the command may take beyond its timeout, and beyond what the machine needs to start it: as long as it
takes the same program, started at the same moment, to say of an empty catalog that there is no such run."""

_making = threading.Lock()
_RUNS = 10
_AT_A_TIME = 3
_POD = Path(__file__).with_name("pod.py")
_GIVE_UP = 120.0
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
_PART_OF_GRACE = 0.9
_WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
_WHERE = re.compile(r"a restart goes on after step (\d+)$")


@dataclass
class Outcome(campaign.Outcome):
    """What a campaign did and found. `newest` counts the drains after which a restart went on at the very last step.

    `codes` counts how the command ended, `failed` is what it said where that was neither 0 nor 8, and `late` are those
    that took longer than they may.
    """

    drains: int = 0
    newest: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether nothing was found."""
        return super().is_right and not self.late

    def add(self, other: "Outcome") -> None:
        """Count those of another campaign too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True, kw_only=True)
class Drain:
    """What happens to a launch. Times are in seconds, from the moment that the first pod is drained."""

    every: int
    step_seconds: float
    save_seconds: tuple[float, ...]
    aside: bool
    steps_before: int
    begins: float
    pods: tuple[tuple[int, float], ...]
    grace: float
    trouble: str
    trouble_from: float
    trouble_until: float
    read_only: int | None
    cancelled: float | None


def drawn(chance: random.Random, troubles: tuple[str, ...], longest: float) -> Drain:
    """A drain by chance; nothing in it takes much longer than `longest` seconds."""
    grace = chance.choice([chance.uniform(0.05, 0.2), chance.uniform(0.2, 0.5), chance.uniform(0.5, 1)]) * longest
    step_seconds = chance.choice([0.01, chance.uniform(0.01, 0.3), chance.uniform(0.2, 0.2 * longest)])
    slow = chance.choice([0.0, 0.0, chance.uniform(0, 0.1), chance.uniform(0, 0.3)]) * longest
    trouble_from = chance.choice([0.0, chance.uniform(0, 0.7 * grace)])
    first = chance.randrange(RANKS)
    pods = [(first, 0.0)]
    if chance.random() < 0.4:
        pods.append(((first + chance.randrange(1, RANKS)) % RANKS, chance.choice([0.0, chance.uniform(0, grace)])))
    return Drain(
        every=chance.randint(1, 6),
        step_seconds=step_seconds,
        save_seconds=tuple(slow * chance.uniform(0.2, 1) for _ in range(RANKS)),
        aside=chance.random() < 0.5,
        steps_before=min(chance.randint(0, 12), int(0.3 * longest / step_seconds)),
        begins=chance.uniform(0, step_seconds + slow),
        pods=tuple(pods),
        grace=grace,
        trouble=chance.choice(troubles) if chance.random() < 0.4 else "",
        trouble_from=trouble_from,
        trouble_until=trouble_from + chance.choice([chance.uniform(0.2, grace), _GIVE_UP]),
        read_only=chance.randrange(RANKS) if chance.random() < 0.15 and can_give_up_rights() else None,
        cancelled=chance.uniform(0, grace) if chance.random() < 0.1 else None,
    )


class Meeting:
    """Where the ranks of a launch add up, after each step, how many of them were asked to leave."""

    def __init__(self, address: Path) -> None:
        self.address = str(address)
        self.step = 0
        self.left_at: int | None = None
        self.met = threading.Condition()
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._listener, *self._connections):
            each.close()

    def _work(self) -> None:
        with suppress(OSError):  # they were killed, or all is over
            while len(self._connections) < RANKS:
                self._connections.append(self._listener.accept()[0])
            ranks = [each.makefile("r") for each in self._connections]
            while self.left_at is None and all(said := [rank.readline() for rank in ranks]):
                steps, asked = zip(*(map(int, line.split()) for line in said), strict=True)
                assert len(set(steps)) == 1
                with self.met:
                    self.step += 1
                    self.left_at = steps[0] if any(asked) else None
                    self.met.notify_all()
                for each in self._connections:
                    each.sendall(f"{sum(asked)}\n".encode())


class Pod:
    """One rank of a launch, with directories of its own."""

    def __init__(self, home: Path, asked: dict[str, Any], failed: Callable[[], None]) -> None:
        self.home = home
        home.mkdir(parents=True)
        self.environment = os.environ | {
            "TMPDIR": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "CKPTSTORE_URL": asked["url"],
        }
        self.registered: list[str] = []
        self.plan: dict[str, Any] | None = None
        self.has_plan = threading.Event()
        self._failed = failed
        with (home / "errors").open("w") as errors:
            self._process = subprocess.Popen(
                [*warm_python(*LIBRARY), str(_POD), json.dumps(asked)],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int:
        return self._process.wait()

    @property
    def errors(self) -> str:
        return (self.home / "errors").read_text()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def has_ended(self) -> bool:
        """Wait until it has; whether it did."""
        self._thread.join(_GIVE_UP)
        return not self._thread.is_alive()

    def _read(self) -> None:
        for line in self._process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "PLAN":
                self.plan = json.loads(rest)
                self.has_plan.set()
            elif word == "HAS" and rest.endswith(".ckpt"):
                self.registered.append(rest)
        self._process.stdout.close()
        if self._process.wait() != LEFT:
            self._failed()
        self.has_plan.set()


@dataclass(frozen=True)
class Said:
    """How the command of a pod ended, what it said last and when, in seconds, and how long it might have taken."""

    rank: int
    code: int
    last: str
    took: float
    longest: float

    @property
    def step(self) -> int | None:
        """After which step a restart goes on, as it said."""
        found = _WHERE.search(self.last)
        return int(found[1]) if found else None

    def is_wrong(self, step: int) -> bool:
        """Whether a restart after that step is not what it said: with code 0 the step, else that it is not older."""
        return self.step is not None and (self.step > step or (self.code == 0 and self.step != step))


class Job:
    """The launches of a run in a directory, and what comes over them."""

    def __init__(
        self, url: str, home: Path, troubles: dict[str, Callable[[], Callable[[], None]]], layout: str | None
    ) -> None:
        self.url, self.home, self.directory = url, home, home / "ckpt"
        self.layout = layout
        self.newest = "0 None"
        self.outcome = Outcome()
        self._troubles = troubles
        self._said: list[Said] = []
        self._left_at: int | None = None

    def run(self, drains: list[Drain], within: float) -> None:
        """Drain one launch after another, and see where the next one starts."""
        began = time.monotonic()
        connect(self.url)
        returned: set[str] = set()
        for number, drain in enumerate([*drains, None]):
            with self._launch(f"L{number:05}", drain) as (pods, meeting):
                self._judge(pods, f"L{number:05}")
                if drain is None or time.monotonic() - began > within:
                    break
                self._drain(pods, meeting, drain)
                self.outcome.drains += 1
            returned |= {path for pod in pods for path in pod.registered}
            self._left_at = meeting.left_at
            self.newest = newest_of(
                self.directory, f"L{number:05}", self.newest, RANKS, are_replicas=self.layout is not None
            )
        self.outcome.registered = len(returned)
        self.outcome.cut = sum(not is_whole(path) for path in self.directory.glob("rank_*/*.ckpt"))
        campaign.look(self.url, self.directory, returned, self.newest, self.outcome)
        self.outcome.seconds = round(time.monotonic() - began, 1)

    @contextmanager
    def _launch(self, launch: str, drain: Drain | None) -> Iterator[tuple[list[Pod], Meeting]]:
        home = self.home / launch
        home.mkdir()
        asked = {
            "url": self.url,
            "directory": str(self.directory),
            "launch": launch,
            "world_size": RANKS,
            "layout": self.layout,
            "socket": str(home / "meeting"),
            "every": drain.every if drain else 1,
            "step_seconds": drain.step_seconds if drain else 1,
            "aside": drain is None or drain.aside,
        }
        pods: list[Pod] = []

        def kill() -> None:
            for pod in pods:
                pod.signal(signal.SIGKILL)

        with closing(Meeting(home / "meeting")) as meeting:
            for rank in range(RANKS):
                slow = drain.save_seconds[rank] if drain else 0
                pods.append(Pod(home / f"pod-{rank}", {**asked, "rank": rank, "save_seconds": slow}, kill))
            try:
                yield pods, meeting
            finally:
                kill()
                hang = [rank for rank, pod in enumerate(pods) if not pod.has_ended()]
                self.outcome.wrong += [f"rank {rank} of {launch} hangs" for rank in hang]
                for rank, pod in enumerate(pods):
                    if "Traceback" in pod.errors:
                        self.outcome.wrong.append(f"rank {rank} of {launch}: {pod.errors}")

    def _drain(self, pods: list[Pod], meeting: Meeting, drain: Drain) -> None:
        with meeting.met:
            meeting.met.wait_for(lambda: meeting.step >= drain.steps_before, _GIVE_UP)
        time.sleep(drain.begins)  # moments are what this is about
        at = time.monotonic()
        over = threading.Event()
        with ThreadPoolExecutor() as pool, self._read_only(drain) as rights:
            hooks = [
                pool.submit(self._evict, pods, rank, at + after, drain.grace, rights) for rank, after in drain.pods
            ]
            others = [pool.submit(self._disturb, drain, at, over)] if drain.trouble else []
            others += [pool.submit(self._cancel, pods[0], at + drain.cancelled)] if drain.cancelled is not None else []
            for pod in pods:
                pod.has_ended()
            self._said = [hook.result() for hook in hooks]
            over.set()
            for other in others:
                other.result()
        for said in self._said:
            self.outcome.codes[str(said.code)] += 1
            if said.code not in (0, NOT_LEFT):
                self.outcome.failed.append(f"{said} in {drain}")
            if said.took > said.longest:
                self.outcome.late.append(f"{said} in {drain}")

    def _evict(self, pods: list[Pod], rank: int, at: float, grace: float, rights: list[str]) -> Said:
        """What the kubelet does with a pod, and what becomes of a job that loses one."""
        time.sleep(max(0.0, at - time.monotonic()))
        pod = pods[rank]

        def end() -> None:
            if pod.lives:
                for each in pods:
                    each.signal(signal.SIGKILL)

        timer = threading.Timer(grace, end)
        timer.start()
        program = [*rights, str(COMMAND)] if rights else [*warm_python(*LIBRARY), str(COMMAND)]
        empty = pod.home / "empty"
        empty.mkdir()
        nobody = {**pod.environment, "TMPDIR": str(empty), "CKPTSTORE_URL": str(empty / "catalog.db")}
        asked = {**pod.environment, "CKPTSTORE_GRACE_SECONDS": f"{grace:.3f}"}
        with ThreadPoolExecutor(1) as pool:
            alike = pool.submit(_timed, [*program, "exit", "run"], nobody)
            done, took = _timed([*program, "exit", "--from-env", "--wait", "--reason", "drained"], asked)
            pod.signal(signal.SIGTERM)
            by_machine = alike.result()[1]
        pod.has_ended()
        timer.cancel()
        last = (done.stderr if done.returncode not in (0, NOT_LEFT) else done.stdout).strip().rpartition("\n")[2]
        longest = _PART_OF_GRACE * grace + LONGER + by_machine
        return Said(rank, done.returncode, last, round(took, 2), round(longest, 2))

    def _disturb(self, drain: Drain, at: float, over: threading.Event) -> None:
        """Have the catalog away for a while; not longer than the launch lasts, and the commands."""
        over.wait(max(0.0, at + drain.trouble_from - time.monotonic()))
        end = self._troubles[drain.trouble]()
        over.wait(max(0.0, at + drain.trouble_until - time.monotonic()))
        end()

    @contextmanager
    def _read_only(self, drain: Drain) -> Iterator[list[str]]:
        """Nobody may write beside the journals of one rank, but those who may do all; what to put before others."""
        folder = self.directory / f"rank_{drain.read_only}" / ".ckptstore"
        if drain.read_only is None or not folder.is_dir():
            yield []
            return
        folder.chmod(0o555)
        try:
            yield _WITHOUT_RIGHTS
        finally:
            folder.chmod(0o755)

    def _cancel(self, pod: Pod, at: float) -> None:
        """Somebody takes the request back."""
        time.sleep(max(0.0, at - time.monotonic()))
        command = [*warm_python(*LIBRARY), str(COMMAND), "exit", "run", "--cancel"]
        done = subprocess.run(command, env=pod.environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 4):
            self.outcome.wrong.append(f"--cancel ended with {done.returncode}: {done.stderr}")

    def _judge(self, pods: list[Pod], launch: str) -> None:
        """Whether a launch starts where the disk says, and where the commands said that it would."""
        for pod in pods:
            pod.has_plan.wait(_GIVE_UP)
        plan = pods[0].plan
        wrong: list[str] = []
        if plan is None or any(pod.plan != plan for pod in pods):
            self.outcome.wrong_plans.append(f"the ranks of {launch} were given {[pod.plan for pod in pods]}")
            return
        if f"{plan['step']} {plan['launch']}" != self.newest:
            wrong.append(f"starts at {plan['step']} of {plan['launch']}, not {self.newest}")
        ranks = [rank for rank, _, _ in plan["files"]]
        if ranks != list(range(RANKS if plan["launch"] else 0)):
            wrong.append(f"has files for ranks {ranks}")
        for rank, source, name in plan["files"]:
            path = Path(name)
            is_its = path.parent.name == f"rank_{source}" and path.name.startswith(f"net_{plan['launch']}-")
            if (
                step_of(path) != plan["step"]
                or not is_whole(path)
                or not is_its
                or (rank != source and not self.layout)
            ):
                wrong.append(f"gives rank {rank} {path}")
        wrong += [
            f"starts at {plan['step']}, and was said: {said}" for said in self._said if said.is_wrong(plan["step"])
        ]
        self.outcome.newest += bool(self._said) and plan["step"] == self._left_at
        self.outcome.wrong_plans += [f"{launch} {each}" for each in wrong]


def _timed(command: list[str], environment: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], float]:
    """How a command ended, and after how many seconds, from its start as a process to its end."""
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=_GIVE_UP)
    return done, time.monotonic() - began


@cache
def can_give_up_rights() -> bool:
    """Whether a directory can be made read-only for the command alone: the ranks are root's, who may do all."""
    if os.geteuid():
        return False
    return subprocess.run([*_WITHOUT_RIGHTS, "true"], capture_output=True, check=False).returncode == 0


def exchange(one: Path, other: Path) -> None:
    """Let two paths have each other's place at once: in between, somebody would make a new catalog."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), f"{one} and {other} were not exchanged")


def of_sqlite(file: Path) -> dict[str, Callable[[], Callable[[], None]]]:
    """How the catalog goes away, each with what brings it back."""

    def replaced() -> Callable[[], None]:
        away = file.with_suffix(".away")
        away.mkdir()
        exchange(file, away)

        def back() -> None:
            exchange(file, away)
            away.rmdir()

        return back

    def locked() -> Callable[[], None]:
        connection = sqlite3.connect(file, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN EXCLUSIVE")
        return connection.close

    return {"replaced": replaced, "locked": locked}


def of_server(server: Server) -> dict[str, Callable[[], Callable[[], None]]]:
    """How the catalog goes away, each with what brings it back."""

    def stopped() -> Callable[[], None]:
        server.stop()
        return server.start

    def paused() -> Callable[[], None]:
        server.pause()
        return server.go_on

    return {"stopped": stopped, "paused": paused}


def drained(
    database: str, home: Path, *, drains: int, seed: int, layout: str | None, longest: float, within: float
) -> Outcome:
    """A run, one launch of which after another is drained, with a catalog of its own, "sqlite" or "postgresql"."""
    chance = random.Random(seed)  # noqa: S311 — moments, not secrets
    with ExitStack() as stack:
        if database == "sqlite":
            url = str(home / "catalog.db")
            troubles = of_sqlite(home / "catalog.db")
        else:
            home.chmod(0o755)
            with _making:
                server = stack.enter_context(closing(Server(home / "server")))
            url, troubles = server.new_database(), of_server(server)
        job = Job(url, home, troubles, layout)
        job.run([drawn(chance, tuple(troubles), longest) for _ in range(drains)], within)
    return job.outcome


def run(database: str, *, drains: int, within: float) -> tuple[Row, Outcome]:
    """So many drains, of several runs, with replicas and without; what was found in all, and its row of the table."""
    began = time.monotonic()

    def one(seed: int) -> Outcome:
        with tempfile.TemporaryDirectory() as home:
            layout = "data_parallel" if seed % 2 else None
            each = drains // _RUNS
            return drained(database, Path(home), drains=each, seed=seed, layout=layout, longest=6.0, within=within)

    warm_python(*LIBRARY)
    total = Outcome()
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for found in pool.map(one, range(_RUNS)):
            total.add(found)
    total.seconds = round(time.monotonic() - began, 1)
    name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[database]
    row = Row(
        what=f"drain of one or two of {RANKS} pods, {name}: {total.newest} went on at the very step they left at",
        times=total.drains,
        lost=len(total.lost),
        wrong_plans=len(total.wrong_plans),
        seconds=round(total.seconds),
    )
    return row, total
