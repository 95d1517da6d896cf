"""A tag set before anything had seen where a tree was moved to stayed in one catalog: gc of another took its files."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(28) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    for _ in range(3):
        world.save()
    world.gc()
    world.move_tree()
    world.tag(step=1, name=1)
    world.start()
    world.sync()
    world.save()
    world.fault = Fault(at=6, what="kill_after", where="change")
    world.save()
    world.gc(keep_last=1, floor=3, hours=100, catalog=1)
    world.finish()
