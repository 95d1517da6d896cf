"""A launch saved below the mount point; the breakpoint of the one before, on the disk, counted as its own."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(641309) as machine:
        world = World(machine, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.fault = Fault(at=289, what="stop", error="", where="any", beside=("gc", {"keep_last": 3, "floor": 3}))
    world.start()
    world.fail()
    world.fault = Fault(at=3, what="stop", error="", where="change", beside=("unmount", {"which": 1, "gone": False}))
    world.start(kill_rank=3, fresh=True)
    world.save()
    world.fail()
    world.fault = Fault(at=7, what="stop", error="", where="any", beside=("scan", {}))
    world.start()
    world.finish()
