"""A file without a digest was copied out of the trash without its times: undo cannot tell, and purge deletes it."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(600290) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.start(kill_rank=0, place=1, plain=True)
    world.fault = Fault(at=4, what="kill", error="", where="change", beside=None)
    world.save()
    world.start()
    world.save()
    world.save()
    world.gc()
    world.wait()
    world.lose_catalog()
    world.start()
    world.save()
    world.gc()
    world.take_out(which=17, times=False)
    world.finish()
