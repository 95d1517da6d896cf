"""What undo brought back stayed recorded as gone: a later file had been at its place, and was gone too."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(4194) as machine:
        world = World(machine, size=2, replicas=True, keeps=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.pin()
    world.start()
    world.save()
    world.save(steps=5, kill_rank=2, ranks=1)
    world.gc(keep_last=1, floor=1)
    world.flip()
    world.cut()
    world.start()
    world.save()
    world.save()
    world.save()
    world.finish()
