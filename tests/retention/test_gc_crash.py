"""gc, undo and purge killed between any two of their system calls, and at random: run again, they end where they would.

Each is a real process that ends by SIGKILL, before a call of `disk.trash` that changes a directory, and before and
after the end of a transaction of the catalog.
"""

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from ckptstore.catalog import removals
from ckptstore.catalog.project import project
from ckptstore.errors import UsageError
from ckptstore.retention.execute import execute
from ckptstore.retention.in_trash import purge, undo
from ckptstore.retention.plan import plan_gc
from tests.retention.gc_world import (
    POLICY,
    KilledError,
    PointsInProcess,
    World,
    build,
    build_several,
    die,
)
from tests.trash_calls import CHANGES, before_each


def gc(world: World, *, at_once: bool = False) -> None:
    database = world.catalog.database
    execute(database, plan_gc(database, "run", POLICY), at_once=at_once)


def gc_at_once(world: World) -> None:
    gc(world, at_once=True)


def bring_back(world: World) -> None:
    try:
        undo(world.catalog.database, "run")
    except UsageError:  # killed when all was done
        assert world.seen()["trash"] == []


def purge_all(world: World) -> None:
    purge(world.catalog.database, "run", at_once=True)


def purge_by_gc(world: World) -> None:
    """The trash of an earlier gc is past its grace: the next gc purges it, and moves more."""
    database = world.catalog.database
    execute(database, plan_gc(database, "run", POLICY))


ACTIONS = {
    "gc": gc,
    "gc --now": gc_at_once,
    "undo": bring_back,
    "purge --now": purge_all,
    "gc after the grace": purge_by_gc,
}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: a killed process loses nothing there that it would keep on a disk."""
    memory = Path("/dev/shm")  # noqa: S108 — only where it is
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


@pytest.fixture
def world(home: Path, request: pytest.FixtureRequest) -> World:
    """As it is before the action of the test."""
    made = World(home)
    job = build(made.catalog, made.data)
    action = request.node.callspec.params["action"]
    if action in ("undo", "purge --now"):
        gc(made)
    if action == "gc after the grace":
        database = made.catalog.database
        execute(database, plan_gc(database, "run", POLICY))
        with database.write() as connection:
            gcs = removals.collections_of(connection, 1)
            long_ago = [each.told("run", ended=True, purge_after=each.created_at - timedelta(hours=1)) for each in gcs]
            project(connection, long_ago)
        job.save(job.start(), 90)
    made.keep()
    return made


def check_nothing_is_lost(world: World) -> None:
    """In the middle: the newest two states are there, and a plan can be loaded."""
    newest = {save.tally.global_step for save in world.catalog.saves("run") if save.launch.order > 1}
    assert len(newest) >= 2
    for step in sorted(newest)[-2:]:
        for file in world.catalog.show("run", step):
            assert Path(file.path).stat().st_size == file.size
            assert file.state.value == "complete"
    plan = world.catalog.resolve("run").plan
    assert all(Path(assignment.source.path).exists() for assignment in plan.ranks)


@pytest.mark.parametrize(
    ("action", "apart"), [("gc", 4), *(pytest.param(each, 1, marks=pytest.mark.long) for each in ACTIONS)]
)
def test_killed_at_every_point(
    action: str, apart: int, world: World, record_property: Callable[[str, object], None]
) -> None:
    """`make test` does so at every fourth point of gc."""
    before = world.seen()
    ACTIONS[action](world)
    undisturbed = world.seen()
    assert undisturbed["files"] != before["files"]
    last = 0
    while True:
        world.restore()
        ended = die(partial(ACTIONS[action], world), last)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL, f"at point {last}"
        check_nothing_is_lost(world)
        ACTIONS[action](world)
        assert world.seen() == undisturbed, f"killed at point {last}"
        last += apart
    assert last > 20, "the points are counted"
    record_property("kills", last // apart)


@pytest.mark.parametrize("action", ["gc", "gc --now", "undo", "purge --now"])
@pytest.mark.parametrize("then", ["the same", "undo"])
def test_several_files_killed_between_any_two_system_calls(action: str, then: str, home: Path) -> None:
    """Run again it ends where it would; undo brings back what can be. Each checkpoint is all there, or not at all."""
    world = World(home)
    build_several(world.catalog, world.data)
    every = checkpoints_in(world)
    if action in ("undo", "purge --now"):
        gc(world)
    world.keep()
    ACTIONS[action](world)
    undisturbed = world.seen()
    for last in count():
        world.restore()
        points = PointsInProcess(last)
        with suppress(KilledError), before_each(CHANGES, points.pass_one):
            ACTIONS[action](world)
        if points.count <= last:
            break
        found = checkpoints_in(world)
        assert {name: every[name] for name in found} == found, "what is there is whole"
        assert set(found) >= {"at-30", "at-40"}
        if then == "the same":
            ACTIONS[action](world)
            if action == "gc --now":  # killed between the move and the deletion: it stays in the trash
                purge_all(world)
            assert world.seen() == undisturbed, f"killed at point {last}"
        else:
            with suppress(UsageError):  # nothing was in the trash yet, or nothing is left in it
                undo(world.catalog.database, "run")
            found = checkpoints_in(world)
            gone = set(every) - set(found)
            assert {name: every[name] for name in found} == found, f"killed at point {last}"
            assert gone == set() if action in ("gc", "undo") else gone <= {"at-10", "at-20"}
            left = [path for path in world.data.rglob(".ckptstore/trash/**/*") if path.is_file()]
            assert left == []
    assert last > 5


def checkpoints_in(world: World) -> dict[str, dict[str, bytes]]:
    """The checkpoints that are there, each with all that belongs to it, whole or not."""
    paths = {path.name.removesuffix(".index") for path in world.data.iterdir() if ".data-" not in path.name}
    return {
        name: {
            str(path.relative_to(world.data)): path.read_bytes()
            for path in (*world.data.glob(f"{name}.*"), *world.data.glob(f"{name}/**/*"))
            if path.is_file()
        }
        for name in paths - {".ckptstore"}
    }
