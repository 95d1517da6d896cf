"""Files of another framework were saved below the mount point of a rank: a scan took the rank's files for gone."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(605124) as machine:
        world = World(machine, size=2, replicas=False, disks="each", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.fault = Fault(
        at=55, what="stop", error="", where="any", beside=("gc", {"keep_last": 6, "floor": 2, "now": True})
    )
    world.start()
    world.save()
    world.unmount()
    world.keep()
    world.scan()
    world.finish()
