"""A file was copied out of the trash while its launch lived: `resolve` leaves to the living what they did not record.

A start, which the launch does not outlive, takes it.
"""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(4369) as machine:
        world = World(machine, size=2, replicas=True)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.save()
    world.gc()
    world.take_out()
    world.quarantine(back=2)
    world.resolve()
    world.finish()
