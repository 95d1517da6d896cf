"""A save was announced and never written; the next launch took its name, and died before it registered the file."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(616480) as machine:
        world = World(machine, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.fault = Fault(at=0, what="kill", error="", where="any", beside=None)
    world.save(steps=1, kill_rank=1, behind=True)
    world.start()
    world.fault = Fault(at=34, what="kill_after", error="", where="any", beside=None)
    world.save()
    world.finish()
