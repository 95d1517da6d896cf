"""An interrupted gc --now was to delete a file that stayed at its place, and lost its times in a power loss."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(632537) as machine:
        world = World(machine, size=4, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.gc(keep_last=3, floor=3, now=True, catalog=1)
    world.start()
    world.save()
    world.plan(keep_last=1, floor=2, catalog=1)
    world.pin(step=23)
    world.fault = Fault(at=23, what="error_after", error="ESTALE", where="change", beside=None)
    world.execute(now=True)
    world.start()
    world.save(steps=5, kill_rank=3)
    world.power_loss()
    world.gc()
    world.finish()
