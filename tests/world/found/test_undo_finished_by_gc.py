"""A gc ended an undo that was refused; files that a rank had missed stayed recorded as gone, though they were back."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(10139) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.save()
    world.start()
    world.as_stranger(name="undo", arguments={})
    world.save()
    world.gc()
    world.finish()
