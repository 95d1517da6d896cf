"""A pinned step was in the trash when its tree was moved and the catalog lost: purge deleted it."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(612530) as machine:
        world = World(machine, size=4, replicas=False, disks="one", nodes=1, late=False, keeps=2, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save(steps=1, kill_rank=0, ranks=1)
    world.save()
    world.gc()
    world.take_out(which=11, times=False)
    world.move_tree()
    world.lose_catalog()
    world.pin(step=11)
    world.purge(now=True)
    world.finish()
