"""A clock was set back, and a launch id used again: its breakpoint is still its own."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(601044) as machine:
        world = World(machine, size=2, replicas=True, disks="each", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.start()
    world.clock(node=0, seconds=-290)
    world.fail()
    world.start(kill_rank=2, place=1, again=1)
    world.finish()
