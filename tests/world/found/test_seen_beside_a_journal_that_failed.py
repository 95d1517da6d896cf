"""A scan saw a file before its rank's record, which a journal that could not be read just then has."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(620186) as machine:
        world = World(machine, size=1, replicas=False, disks="one", nodes=1, late=True, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save()
    world.fault = Fault(at=7, what="error", error="ESTALE", where="change", beside=None)
    world.save()
    world.save()
    world.save()
    world.save()
    world.save(steps=1, kill_rank=3, behind=True)
    world.gc()
    world.plan(keep_last=1, floor=1, catalog=1)
    world.save()
    world.execute()
    world.delete(which=1)
    world.save()
    world.start()
    world.save()
    world.spoil()
    world.lose_catalog()
    world.delete(which=2)
    world.fault = Fault(at=18, what="error_after", error="EIO", where="file", beside=None)
    world.scan()
    world.finish()
