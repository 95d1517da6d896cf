"""A disk was unmounted just after a start had fetched a file to it: an error of the disk reached the script."""

from tests.world.machine import Fault, simulated
from tests.world.tier import TierWorld


def test_history() -> None:
    with simulated(728406) as machine:
        world = TierWorld(machine, size=4, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: TierWorld) -> None:
    world.start()
    world.save()
    world.declare()
    world.replicate()
    world.delete()
    world.delete(which=19)
    world.start()
    world.cut()
    world.tier_away()
    world.start()
    world.mount()
    world.fault = Fault(at=19, what="stop", error="", where="change", beside=("unmount", {"which": 1, "gone": False}))
    world.start(kill_rank=1)
    world.finish()
