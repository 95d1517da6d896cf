"""gc, undo and purge killed between any two of their system calls, and at random: run again, they end where they would.

Each is a real process that ends by SIGKILL, before a call of `disk.trash` that changes a directory, and before and
after the end of a transaction of the catalog.
"""

import signal
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from ckptstore.catalog import removals
from ckptstore.catalog.project import project
from ckptstore.errors import UsageError
from ckptstore.retention.execute import execute
from ckptstore.retention.in_trash import purge, undo
from ckptstore.retention.plan import plan_gc
from tests.retention.gc_world import POLICY, World, build, die


def gc(world: World, *, at_once: bool = False) -> None:
    database = world.catalog.database
    execute(database, plan_gc(database, "run", POLICY), at_once=at_once)


def bring_back(world: World) -> None:
    try:
        undo(world.catalog.database, "run")
    except UsageError:  # killed when all was done
        assert world.seen()["trash"] == []


def purge_all(world: World) -> None:
    purge(world.catalog.database, "run", at_once=True)


ACTIONS = {
    "gc": gc,
    "gc --now": partial(gc, at_once=True),
    "undo": bring_back,
    "purge --now": purge_all,
    "gc after the grace": gc,  # the trash of an earlier one is due: this one purges it, and moves more
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
    if action in ("undo", "purge --now", "gc after the grace"):
        gc(made)
    if action == "gc after the grace":
        with made.catalog.database.write() as connection:
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
    ("action", "apart"), [("gc", 12), *(pytest.param(each, 1, marks=pytest.mark.long) for each in ACTIONS)]
)
def test_killed_at_every_point(
    action: str, apart: int, world: World, record_property: Callable[[str, object], None]
) -> None:
    """`make test` does so at every twelfth point of gc."""
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
