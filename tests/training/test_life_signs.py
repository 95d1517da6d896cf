"""A second start of a job sees whether the first one is alive, and neither gives up what the other saves."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog import leases, reads
from ckptstore.catalog.engine import clock
from ckptstore.core.model import launch_key
from ckptstore.disk import owner
from ckptstore.disk.owner import this_process
from ckptstore.errors import RefusedError
from ckptstore.resume.liveness import SILENT
from ckptstore.training import life_signs
from ckptstore.training.life_signs import Silence
from ckptstore.training.rank_launch import RankLaunch
from ckptstore.training.start import begin

HERE = this_process()
SILENT_SECONDS = SILENT.total_seconds()
ELSEWHERE = "node-7|42|1|abcd@another"
DEAD = HERE.replace(f"|{os.getpid()}|", f"|{os.getpid()}|another start")


class Clock:
    """Time goes on when somebody sleeps; `at` tells what happens then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    time = Clock()
    monkeypatch.setattr(life_signs, "time", time)
    return time


def begun(catalog: Catalog) -> RankLaunch:
    return catalog.join("run", rank=0, world_size=1, launch_id="L1")


def give(catalog: Catalog, process: str, *, age: float = 0) -> None:
    with catalog.database.write() as connection:
        leases.give_sign(connection, launch_key("run", "L1"), process, clock(connection) - timedelta(seconds=age))


def waited(catalog: Catalog, time: Clock) -> float:
    """Until the launch may begin; in portions that ranks can wait for."""
    silence, since = Silence(catalog.database, "run"), time.now
    while True:
        before = time.now
        if silence.is_there():
            return time.now - since
        assert time.now - before <= 15


@pytest.mark.parametrize(
    ("process", "age"),
    [(None, 0), (HERE, 0), (ELSEWHERE, SILENT_SECONDS + 5), (DEAD, 0)],
    ids=["none was given", "of this process", "of a host that was lost", "of a process that was killed here"],
)
def test_a_start_that_waits_for_nobody(catalog: Catalog, time: Clock, process: str | None, age: float) -> None:
    assert waited(catalog, time) == 0, "a run that is new"
    begun(catalog)
    if process is not None:
        give(catalog, process, age=age)
    assert waited(catalog, time) == 0


def test_a_host_that_was_just_lost_delays_a_start_by_a_minute(catalog: Catalog, time: Clock) -> None:
    begun(catalog)
    give(catalog, ELSEWHERE, age=10)
    assert SILENT_SECONDS <= waited(catalog, time) <= SILENT_SECONDS + 1


def test_a_launch_that_gives_one_more_sign(catalog: Catalog, time: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Before, the second start gave up the saves of the first one while that was training."""
    begun(catalog)
    give(catalog, ELSEWHERE, age=10)
    time.at = lambda: time.now > 12 and give(catalog, ELSEWHERE)
    with pytest.raises(RefusedError, match="launch L1 of run 'run' is alive: process 42 on node-7 gave a sign") as told:
        waited(catalog, time)
    assert "join(take_over=True) or CKPTSTORE_TAKE_OVER=1" in told.value.hint
    assert "may be alive: process 42 on node-7 gave a sign of life 10 s ago" in caplog.text
    assert time.now < SILENT_SECONDS


def test_of_starts_in_one_moment_one_goes_on(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each saw nobody, and both trained."""
    monkeypatch.setattr(life_signs, "this_process", lambda: f"node-{threading.get_ident()}|42|1|abcd@another")
    monkeypatch.setattr(life_signs, "is_this_process", lambda _: False)
    together = threading.Barrier(4)

    def start(number: int) -> str:
        silence = Silence(catalog.database, "run")
        assert silence.is_there()
        together.wait()
        try:
            begin(
                catalog.database,
                "run",
                rank=0,
                world_size=1,
                launch_id=f"L{number}",
                layout=None,
                claim=silence.claim,
            )
        except RefusedError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(start, range(4)))
    (first,) = (f"L{number}" for number, error in enumerate(told) if not error)
    assert sum(f"launch {first} of run 'run' is alive" in error for error in told) == 3
    with catalog.database.read() as connection:
        launches = reads.launches_of(connection, reads.run_id(connection, "run") or 0)
    assert [launch.id for launch in launches] == [first], "who is refused leaves no launch"


def test_a_sign_that_was_waited_for_in_vain_stops_no_start(catalog: Catalog, time: Clock) -> None:
    """The clock was set back since it was given: by its time it is new."""
    begun(catalog)
    give(catalog, ELSEWHERE, age=-3600)
    silence = Silence(catalog.database, "run")
    while not silence.is_there():
        pass
    assert time.now > SILENT_SECONDS
    begin(catalog.database, "run", rank=0, world_size=1, launch_id="L2", layout=None, claim=silence.claim)


def test_a_launch_that_ends_while_it_is_waited_for(catalog: Catalog, time: Clock) -> None:
    launch = begun(catalog)
    give(catalog, ELSEWHERE)

    def end() -> None:
        with catalog.database.write() as connection:
            leases.end_signs(connection, launch.key)

    time.at = end
    assert waited(catalog, time) == 0.5


def test_a_process_that_is_there_and_silent(catalog: Catalog, time: Clock) -> None:
    """As one that compiles, or hangs: it may go on at any time."""
    begun(catalog)
    host, _, _, last = HERE.split("|")
    parent = os.getppid()
    give(catalog, "|".join((host, str(parent), owner._began(parent), last)), age=500)
    with pytest.raises(RefusedError, match=f"is alive: process {parent} on "):
        waited(catalog, time)


def test_a_launch_gives_signs_until_it_ends(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_signs, "EVERY_SECONDS", 0.001)
    launch = begun(catalog)
    given = threading.Semaphore(0)
    give_sign = leases.give_sign

    def counted(*args: object) -> None:
        give_sign(*args)  # type: ignore[arg-type]
        given.release()

    monkeypatch.setattr(leases, "give_sign", counted)
    for _ in range(2):  # it may train again
        launch.signs.begin()
        for _ in range(3):
            assert given.acquire(timeout=30)
        launch.signs.end()
        with catalog.database.read() as connection:
            assert leases.last_sign(connection, reads.run_id(connection, "run") or 0) is None
    catalog.join("run", rank=1, world_size=2, launch_id="L2").signs.begin()
    with catalog.database.read() as connection:
        assert leases.last_sign(connection, reads.run_id(connection, "run") or 0) is None, "rank 0 does it for all"
