"""A rank saved on into an empty mount point, and gc took an older state whose files there nobody had heard of."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(500314) as machine:
        world = World(machine, size=2, replicas=False, disks="each", nodes=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.catalog_away()
    world.fault = Fault(at=3, what="stop", beside=("purge", {}))
    world.save()
    world.relieve()
    world.fault = Fault(at=24, what="stop", beside=("unmount", {"which": 1, "gone": False}))
    world.scan()
    world.save()
    world.gc()
    world.finish()
