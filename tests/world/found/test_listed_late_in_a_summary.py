"""A file that the disk listed late was left out of a summary, and so of the catalog that read it."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(506403) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.catalog_away()
    world.start()
    world.slow()
    world.wait()
    world.save()
    world.save()
    world.fault = Fault(at=6, what="kill_after", error="", where="any", beside=None)
    world.save()
    world.start()
    world.save()
    world.finish()
