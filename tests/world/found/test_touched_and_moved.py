"""A file was touched, removed by gc, and its tree moved: what undo brought back did not count again."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(200506) as machine:
        world = World(machine, size=2, disks="one", nodes=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.touch()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.move_tree()
    world.finish()
