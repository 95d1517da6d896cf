"""Runs programs one at a time with simulated disks, clocks and randomness.

Each call to the outside may fail, or be the last one of its process. A program is a process with tasks (its threads).
Each task is a greenlet. The machine switches to another task only when a task waits, ends, or has a fault that stops it
at a call. So each run of a history gives the same result.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
import os
import queue
import random
import signal
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PosixPath
from types import SimpleNamespace, TracebackType
from typing import Any, NoReturn

import sqlalchemy as sa
from greenlet import getcurrent, greenlet

from ckptstore import outside
from tests.world.sql import REAL, Catalogs, Connection, template
from tests.world.system import Node, Process, System

BEGIN_NS = 1_780_000_000_000_000_000
"""The time at which the machines were started, in nanoseconds since 1970."""

CALL_NS = 20_000
"""The time that a call to the outside takes, in nanoseconds."""

ERRORS = ("EIO", "ENOSPC", "EACCES", "ESTALE", "EINTR")
CHANGES = frozenset(("chmod", "commit", "link", "mkdir", "rename", "rmdir", "symlink", "unlink", "utime", "write"))
"""The calls that change something. A kill at another call has the same effect as a kill at the next of these."""
SQL_ERRORS = ("disk I/O error", "database or disk is full", "database is locked", "unable to open database file")
_BLIND = ("EIO", "ESTALE", "EACCES", "EINTR")
_MOST_WAKES = 12  # how often threads run during one sleep, at most
MOST_CALLS = 200_000
"""The most calls of one action. An action with more calls is in an endless loop."""


class StuckError(AssertionError):
    """Nothing can go on: all tasks wait for each other, or one never ends."""


@dataclass
class Fault:
    """A fault at one call of an action.

    `where` names the calls that count: "any", "file" (calls to a file system), "sql", or "change" (see `CHANGES`). The
    fault is at call number `at` of these, counted from 0.

    `what` is "kill", "error" or "stop". With "kill_after" and "error_after" the call has its effect first. An error has
    the name of an errno, or a message of SQLite, in `error`. At "stop", another action runs before the call: `beside`
    has a method of the world and its arguments.
    """

    at: int
    what: str
    error: str = ""
    where: str = "any"
    beside: tuple[str, dict[str, Any]] | None = None

    def blinds(self) -> bool:
        """Whether the action cannot look at a file, or looks at files that change at the same time."""
        return self.error in _BLIND or self.what == "stop"

    def concerns(self, name: str, kind: str) -> bool:
        return self.where in ("any", kind) or (self.where == "change" and name in CHANGES)

    def __str__(self) -> str:
        return f"{self.what}{f' {self.error}' if self.error else ''} at {self.where} call {self.at}"


class Program(Process):
    """A process on a node, with its tasks, its handlers for the exit, and its connections to catalogs."""

    def __init__(self, node: Node, pid: int, name: str, uid: int = 0) -> None:
        super().__init__(node, pid, uid)
        self.name = name
        self.tasks: list[Task] = []
        self.at_exit: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.connections: list[Connection] = []
        self.fault: Fault | None = None
        self.calls = 0
        self.sql_calls = 0
        self.changes = 0

    def place(self, where: str) -> int:
        """The number of calls that this action has made, of those that `where` names."""
        if where == "change":
            return self.changes
        return {"any": self.calls, "sql": self.sql_calls, "file": self.calls - self.sql_calls}[where]


class Task:
    """One thread of a program."""

    def __init__(self, machine: Machine, program: Program, work: Callable[[], object], name: str) -> None:
        self.program = program
        self.name = name
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = False
        self.until: Callable[[], bool] | None = None
        self.deadline: int | None = None
        self.at_stop: Callable[[], None] | None = None
        self._work = work
        self.greenlet = greenlet(self._run, machine.hub)

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 — the caller of `Machine.run` reads it from the task
            self.error = error
        self.is_over = True

    def is_ready(self, now_ns: int) -> bool:
        if self.is_over or not self.program.alive:
            return False
        if self.until is None:
            return True
        return self.until() or (self.deadline is not None and now_ns >= self.deadline)


ACTIVE: Machine | None = None


class Machine:
    """All nodes, their programs, and time."""

    def __init__(self, seed: int) -> None:
        self.hub = getcurrent()
        self.now_ns = BEGIN_NS + 10**12
        self.chance = random.Random(seed)
        self.current: Task | None = None
        self.programs: list[Program] = []
        self.drawn: Counter[str] = Counter()
        self.logged: list[str] = []
        self.went_on = 0
        """How often a stopped action ran on because the action beside it waited for it."""
        self.catalogs = Catalogs(self)
        self._pids = itertools.count(1000)
        self.traced: Callable[[str], object] | None = None
        self.system = System(self.program, lambda: self.now_ns, self.call, self.after, real_prefixes=(REAL,))

    # For the simulated outside.

    def program(self) -> Program:
        assert self.current is not None, "a call to the outside that no program makes"
        return self.current.program

    def time_ns(self) -> int:
        return self.now_ns + self.program().node.clock_offset_ns

    def call(self, name: str, args: object = None) -> None:
        """The hook before a call."""
        task = self.current
        if task is None:
            return
        program = task.program
        if not program.alive:
            self._vanish()
        self.now_ns += CALL_NS
        program.calls += 1
        if program.calls > MOST_CALLS:
            raise StuckError(f"{task.name} makes call {MOST_CALLS}")
        kind = "file"
        if args == "sql":
            kind = "sql"
            program.sql_calls += 1
        if self.traced is not None:
            told = args if isinstance(args, tuple) else (args,)
            self.traced(f"{task.name}: {name} {[each for each in told if isinstance(each, (str, int))]}")
        program.changes += name in CHANGES
        fault = program.fault
        if fault is None or not fault.concerns(name, kind) or program.place(fault.where) - 1 != fault.at:
            return
        if fault.what in ("error", "kill", "stop"):
            program.fault = None
            self._let(task, fault, kind, name, args)

    def after(self, name: str, args: object = None) -> None:
        """The hook after a call has had its effect."""
        task = self.current
        if task is None or (fault := task.program.fault) is None or not fault.what.endswith("_after"):
            return
        kind = "sql" if args == "sql" else "file"
        if fault.concerns(name, kind) and task.program.place(fault.where) - 1 >= fault.at:
            task.program.fault = None
            self._let(task, fault, kind, name, args)

    def _let(self, task: Task, fault: Fault, kind: str, name: str, args: object) -> None:
        self.drawn[f"{fault.what} {kind}"] += 1
        if fault.what.startswith("kill"):
            self.kill(task.program)
            self._vanish()
        elif fault.what == "stop":
            if task.at_stop is not None:
                self._switch_to_hub("stop")
        elif kind == "sql":
            text = fault.error if fault.error in SQL_ERRORS else SQL_ERRORS[0]
            raise sqlite3.OperationalError(text)
        elif fault.error == "ENOSPC" and name not in (*CHANGES, "open"):
            return  # reading never raises ENOSPC
        elif fault.error not in SQL_ERRORS and name not in ("close", "getpid"):
            number = getattr(errno, fault.error)
            paths = [each for each in args if isinstance(each, str)] if isinstance(args, tuple) else []
            raise OSError(number, os.strerror(number), *paths[:1])

    def _vanish(self) -> NoReturn:
        """Never return: the process is dead, so no `except` or `finally` of it may run."""
        while True:
            self._switch_to_hub("dead")

    def _switch_to_hub(self, why: str) -> None:
        self.hub.switch(why)

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Let other tasks run until a condition holds, or for so many seconds. Return whether the condition holds."""
        task = self.current
        assert task is not None
        if not until():
            task.until = until
            task.deadline = None if seconds is None else self.now_ns + max(1, math.ceil(seconds * 1e9))
            self._switch_to_hub("wait")
            task.until = None
        return until()

    # For the world.

    def boot(self, node: Node, name: str, uid: int = 0) -> Program:
        program = Program(node, next(self._pids), name, uid)
        self.programs.append(program)
        return program

    def kill(self, program: Program) -> None:
        """SIGKILL: the program runs no further; its locks are released, its files and connections are closed."""
        program.alive = False
        for connection in program.connections:
            connection.close()
        program.connections.clear()
        program.end()

    def end(self, program: Program) -> None:
        """End the program as after its main function: its exit handlers run, and wait for the threads."""
        if program.alive:
            self.run(program, lambda: _leave(program), f"{program.name} ends")
        if program.alive:
            self.kill(program)

    def run(
        self,
        program: Program,
        work: Callable[[], object],
        name: str,
        fault: Fault | None = None,
        at_stop: Callable[[], None] | None = None,
    ) -> Task:
        """Run `work` in a program until it returns or the program is dead. The task has its result or exception."""
        task = Task(self, program, work, name)
        task.at_stop = at_stop
        program.fault, program.calls, program.sql_calls, program.changes = fault, 0, 0, 0
        before = self.current
        self._until_over(task)
        self.current = before
        program.fault = None
        return task

    def _until_over(self, task: Task) -> None:
        while not task.is_over and task.program.alive:
            ready = next((each for each in self._tasks(task) if each.is_ready(self.now_ns)), None)
            if ready is None:
                self._pass_time(task)
            else:
                self.went_on += ready in self._stopped
                self._step(ready)
        for each in list(task.program.tasks) if task.program.alive else ():
            while each.is_ready(self.now_ns):  # the program's threads run until they wait
                self._step(each)

    def _step(self, task: Task) -> None:
        self.current = task
        why = task.greenlet.switch()
        self.current = None
        if why == "stop" and task.at_stop is not None:
            at_stop, task.at_stop = task.at_stop, None
            self._stopped.append(task)
            try:
                at_stop()
            finally:
                self._stopped.remove(task)

    _stopped: list[Task] = []  # noqa: RUF012 — one machine at a time

    def _tasks(self, first: Task) -> Iterator[Task]:
        yield first
        yield from first.program.tasks
        if first.until is not None:  # it waits: the task that was stopped for it may run
            yield from reversed(self._stopped)
            for program in self.programs:
                if program is not first.program and program.alive:
                    yield from program.tasks

    def _pass_time(self, task: Task) -> None:
        waiting = [each.deadline for each in self._tasks(task) if not each.is_over and each.deadline is not None]
        if not waiting:
            raise StuckError(f"{task.name} waits for ever")
        self.now_ns = max(self.now_ns, min(waiting))

    def sleep(self, seconds: float) -> None:
        """Let time pass. Threads of living programs run when they are due."""
        end = self.now_ns + int(seconds * 1e9)
        for _ in range(_MOST_WAKES):
            due = [
                (each.deadline, number, each)
                for number, each in enumerate(
                    each for program in self.programs if program.alive for each in program.tasks
                )
                if not each.is_over and each.deadline is not None and each.deadline <= end
            ]
            if not due:
                break
            when, _, task = min(due)
            self.now_ns = max(self.now_ns, when)
            while task.is_ready(self.now_ns):
                self._step(task)
        self.now_ns = max(self.now_ns, end)


def _leave(program: Program) -> None:
    while program.at_exit:
        work, args = program.at_exit.pop()
        work(*args)


def _machine() -> Machine:
    assert ACTIVE is not None
    return ACTIVE


# In place of Python's threads.


class Lock:
    """As `threading.Lock`, and as `RLock` if `again` is set."""

    again = False

    def __init__(self) -> None:
        self._held = 0
        self._by: Task | None = None

    def _is_free(self) -> bool:
        return not self._held or (self._by is not None and not self._by.program.alive)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        task = _machine().current
        if self.again and self._held and self._by is task:
            self._held += 1
            return True
        if not self._is_free() and blocking:
            _machine().wait(self._is_free, None if timeout < 0 else timeout)
        if not self._is_free():
            return False
        self._held, self._by = 1, task
        return True

    def release(self) -> None:
        self._held -= 1

    def locked(self) -> bool:
        return not self._is_free()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    again = True


class Event:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return _machine().wait(self.is_set, timeout)


class Condition:
    """As `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._told = 0

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def notify_all(self) -> None:
        self._told += 1

    notify = notify_all

    def wait(self, timeout: float | None = None) -> bool:
        told = self._told
        return self._without_lock(lambda: self._told > told, timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        return self._without_lock(predicate, timeout)

    def _without_lock(self, until: Callable[[], bool], timeout: float | None) -> bool:
        self._lock.release()
        try:
            return _machine().wait(until, timeout)
        finally:
            self._lock.acquire()


class Thread:
    """As `threading.Thread`."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str = "thread",
        args: Iterable[Any] = (),
        daemon: bool | None = None,  # noqa: FBT001
    ) -> None:
        self._target, self.name, self._args, self.daemon = target, name, tuple(args), daemon
        self._task: Task | None = None

    def start(self) -> None:
        machine = _machine()
        program = machine.program()
        self._task = Task(machine, program, lambda: self._target(*self._args), self.name)
        program.tasks.append(self._task)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_over

    def join(self, timeout: float | None = None) -> None:
        _machine().wait(lambda: not self.is_alive(), timeout)


class SimpleQueue:
    """As `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: list[Any] = []

    def put(self, item: object) -> None:
        self._items.append(item)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002
        if not self._items and block:
            _machine().wait(lambda: bool(self._items), timeout)
        if not self._items:
            raise queue.Empty
        return self._items.pop(0)


class Executor:
    """As a `ThreadPoolExecutor` whose threads are quick: `submit` does the work at once."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def submit(self, work: Callable[..., Any], *args: Any, **options: Any) -> outside.Future[Any]:
        future: outside.Future[Any] = outside.Future()
        try:
            future.set_result(work(*args, **options))
        except Exception as error:  # noqa: BLE001 — as an executor does
            future.set_exception(error)
        return future

    def map(self, work: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return iter([work(*each) for each in zip(*items, strict=False)])

    def shutdown(self, *_: object, **__: object) -> None: ...


@dataclass
class _AtExit:
    def register(self, work: Callable[..., object], *args: Any) -> None:
        if ACTIVE is not None and ACTIVE.current is not None:
            ACTIVE.program().at_exit.append((work, args))

    def unregister(self, work: Callable[..., object]) -> None:
        if ACTIVE is not None and ACTIVE.current is not None:
            program = ACTIVE.program()
            program.at_exit = [each for each in program.at_exit if each[0] != work]


class _Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if ACTIVE is not None:
            ACTIVE.logged.append(record.getMessage())


def _stand_ins(machine: Machine) -> dict[str, Any]:
    """The simulated replacement of each name of `ckptstore.outside`."""
    system = machine.system

    class SimulatedPath(PosixPath):
        """A path on simulated disks."""

        __slots__ = ()

        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            return system.stat(str(self), follow_symlinks=follow_symlinks)

        def open(self, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
            return system.open_file(str(self), mode, buffering, *args, **options)

        def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002
            try:
                system.mkdir(str(self), mode)
            except FileNotFoundError:
                if not parents or self.parent == self:
                    raise
                self.parent.mkdir(parents=True, exist_ok=True)
                self.mkdir(mode, exist_ok=exist_ok)
            except OSError:
                if not exist_ok or not self.is_dir():
                    raise

        def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002
            try:
                system.unlink(str(self))
            except FileNotFoundError:
                if not missing_ok:
                    raise

        def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
            system.chmod(str(self), mode)

        def rename(self, target: Any) -> Any:
            system.rename(str(self), str(target))
            return self.__class__(target)

        def replace(self, target: Any) -> Any:
            return self.rename(target)

        def iterdir(self) -> Iterator[Any]:
            return (self / name for name in system.listdir(str(self)))

        def glob(self, pattern: str) -> Iterator[Any]:
            with suppress(FileNotFoundError, NotADirectoryError):
                yield from (each for each in self.iterdir() if each.match(pattern))

        def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:  # noqa: FBT001, FBT002
            system.close(system.open(str(self), os.O_CREAT | os.O_WRONLY, mode))

        def absolute(self) -> Any:
            return self if self.is_absolute() else self.__class__(system.getcwd()) / self

    system.os.environ = {}
    system.os.register_at_fork = lambda **_: None
    system.os.cpu_count = lambda: 4
    threading = SimpleNamespace(
        Thread=Thread,
        Lock=Lock,
        RLock=RLock,
        Event=Event,
        Condition=Condition,
        current_thread=lambda: machine.current,
        main_thread=lambda: machine.current,
        get_ident=lambda: id(machine.current),
    )
    clock = SimpleNamespace(
        time=lambda: machine.time_ns() / 1e9,
        time_ns=machine.time_ns,
        monotonic=lambda: (machine.now_ns - BEGIN_NS) / 1e9,
        perf_counter=lambda: (machine.now_ns - BEGIN_NS) / 1e9,
        sleep=lambda seconds: machine.wait(lambda: False, seconds),
    )
    return {
        "os": system.os,
        "Path": SimulatedPath,
        "open_file": system.open_file,
        "time": clock,
        "utc_now": lambda: datetime.fromtimestamp(machine.time_ns() / 1e9, timezone.utc),
        "CHANCE": machine.chance,
        "token_hex": lambda count: machine.chance.randbytes(count).hex(),
        "threading": threading,
        "ThreadPoolExecutor": Executor,
        "queue": SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty),
        "atexit": _AtExit(),
        "fcntl": system.fcntl,
        "socket": SimpleNamespace(gethostname=lambda: machine.program().node.hostname),
        "shutil": system.shutil,
        "tempfile": system.tempfile,
        "signal": SimpleNamespace(**{**vars(signal), "signal": lambda *_: None, "getsignal": lambda _: None}),
    }


_places: dict[str, list[tuple[dict[str, Any], str, Any]]] = {}


def _import_all() -> None:
    """Import all modules except those that need MindSpore: a module imported later would use the real outside."""
    root = Path(outside.__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        if ".mind" not in name and not name.endswith("__main__"):
            __import__(name.removesuffix(".__init__"))


def _find_places() -> None:
    _import_all()
    for name in outside.__all__:
        real = getattr(outside, name)
        _places[name] = [
            (vars(module), each, real)
            for module in list(sys.modules.values())
            if getattr(module, "__name__", "").startswith("ckptstore")
            for each, value in list(vars(module).items())
            if value is real
        ]


_log = _Log()
_create_engine = sa.create_engine


@contextmanager
def simulated(seed: int) -> Iterator[Machine]:
    """Run all of ckptstore on a simulated machine, until the end of the block."""
    global ACTIVE  # noqa: PLW0603 — the connections of SQLite and the stand-ins ask for it
    others = [each.name for each in threading.enumerate() if each.name.startswith("ckptstore")]
    assert not others, f"threads of the real package would run in the simulated one: {others}"
    if not _places:
        _find_places()
    template()
    machine = Machine(seed)
    changed = [
        (place, each, real, stand_in)
        for name, stand_in in _stand_ins(machine).items()
        for place, each, real in _places[name]
    ]
    logger = logging.getLogger("ckptstore")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(_log)
    logger.propagate = False
    for place, each, _, stand_in in changed:
        place[each] = stand_in
    ACTIVE = machine
    sa.create_engine = machine.catalogs.engine  # type: ignore[assignment]
    Machine._stopped = []
    try:
        yield machine
    finally:
        for program in machine.programs:
            if program.alive:
                machine.kill(program)
        machine.catalogs.close()
        ACTIVE = None
        sa.create_engine = _create_engine
        for place, each, real, _ in changed:
            place[each] = real
        logger.removeHandler(_log)
        logger.setLevel(level)
        logger.propagate = propagates
