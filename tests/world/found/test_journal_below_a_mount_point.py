"""The record of a file is in a locked catalog, and in a journal below a mount point: a start knows of neither."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(16013) as machine:
        world = World(machine, size=2, disks="each")
        happens(world)


def happens(world: World) -> None:
    world.unmount(which=1)
    world.start()
    world.save()
    world.mount()
    world.lock_catalog()
    world.start()
    world.finish()
