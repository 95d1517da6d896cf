"""Copies were fetched below an empty mount point, and a scan took it for the directory: all on the disk was gone."""

from tests.world.machine import Fault, simulated
from tests.world.tier import TierWorld


def test_history() -> None:
    with simulated(675874) as machine:
        world = TierWorld(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: TierWorld) -> None:
    world.declare()
    world.start()
    world.save()
    world.fault = Fault(at=37, what="kill", error="", where="change", beside=None)
    world.start()
    world.save()
    world.replicate()
    world.unmount()
    world.fault = Fault(at=103, what="kill", error="", where="any", beside=None)
    world.start(kill_rank=3)
    world.scan()
    world.finish()
