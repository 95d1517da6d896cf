"""A file that a scan had found was written over by another start, and counted with those of the first one."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(69) as machine:
        world = World(machine, size=2)
        happens(world)


def happens(world: World) -> None:
    world.bare(steps=1, ranks=0)
    world.scan_bare()
    world.bare(steps=1, ranks=1)
    world.scan_bare()
    world.finish()
