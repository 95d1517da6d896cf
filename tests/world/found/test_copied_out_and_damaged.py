"""A damaged copy out of the trash got a digest of its own, and was restored as the state."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(500487) as machine:
        world = World(machine, size=2, replicas=True, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.save()
    world.start()
    world.flip()
    world.save()
    world.save()
    world.save()
    world.gc(keep_last=3, floor=2, hours=1, now=True)
    world.gc(keep_last=1, floor=1, hours=1)
    world.take_out()
    world.take_out(which=10, times=False)
    world.flip()
    world.start(kill_rank=3, step=1)
    world.finish()
