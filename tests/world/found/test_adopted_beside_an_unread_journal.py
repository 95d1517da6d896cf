"""A start adopted a file beside a journal that it could not read, for the launch before the one that wrote it."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(509195) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.start()
    world.save()
    world.start()
    world.start()
    world.save(steps=1, kill_rank=1, ranks=1, behind=True)
    world.spoil(which=1)
    world.lose_catalog()
    world.start()
    world.finish()
