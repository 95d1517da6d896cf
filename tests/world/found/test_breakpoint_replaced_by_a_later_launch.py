"""A launch replaced a breakpoint that the launch before had left under the same name."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(643252) as machine:
        world = World(machine, size=4, replicas=True, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.slow(which=1)
    world.fail()
    world.fault = Fault(at=20, what="kill_after", error="", where="change", beside=None)
    world.start(kill_rank=2)
    world.cut()
    world.cut(which=20)
    world.relieve()
    world.start()
    world.fail()
    world.finish()
