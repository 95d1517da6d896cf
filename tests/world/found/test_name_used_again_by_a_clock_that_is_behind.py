"""A clock was set back, and a name used again of which the former file is in the trash."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(621568) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.fault = Fault(at=3, what="error", error="ENOSPC", where="any", beside=None)
    world.start()
    world.save()
    world.start()
    world.save(steps=1, kill_rank=2, ranks=1)
    world.start()
    world.save()
    world.clock(node=1, seconds=-290)
    world.fault = Fault(at=27, what="kill", error="", where="change", beside=None)
    world.gc()
    world.start(kill_rank=3, step=6)
    world.save()
    world.finish()
