"""A scan saw a file before its rank registered it; then a power loss turned the time of the file back."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(510849) as machine:
        world = World(machine, size=2, replicas=True, disks="each", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.save()
    world.fail(steps=1, rank=2, told=False, every=False)
    world.start()
    world.spoil(which=23)
    world.gc()
    world.save()
    world.branch()
    world.branch()
    world.fault = Fault(at=7, what="stop", error="", where="any", beside=("undo", {}))
    world.gc()
    world.wait(seconds=100000)
    world.keep(prefix=False)
    world.keep()
    world.start(kill_rank=2, plain=True)
    world.fault = Fault(at=19, what="stop", error="", where="any", beside=("purge", {}))
    world.save()
    world.fault = Fault(at=20, what="stop", error="", where="any", beside=("scan", {}))
    world.save(steps=2, kill_rank=1)
    world.power_loss()
    world.finish()
