"""Summaries told of no state that was complete once, and a start began at step 0 for that."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(504901) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.power_loss()
    world.gc()
    world.neighbour()
    world.neighbour_saves()
    world.catalog_away()
    world.fault = Fault(at=21, what="kill_after", error="", where="change", beside=None)
    world.start()
    world.finish()
