"""A gc of the nodes' disks held a state for its lost copy. So another went, and the tier was not asked for its copy."""

from tests.world.machine import simulated
from tests.world.tier import TierWorld


def test_history() -> None:
    with simulated(723192) as machine:
        world = TierWorld(machine, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=1, coarse=False)
        happens(world)


def happens(world: TierWorld) -> None:
    world.declare()
    world.start()
    world.save()
    world.start()
    world.save()
    world.start()
    world.save()
    world.save()
    world.replicate()
    world.lose_copy()
    world.lose_copy(which=20, cut=True)
    world.free_nodes(keep_last=1, floor=1)
    world.finish()
