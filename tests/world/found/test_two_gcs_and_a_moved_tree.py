"""After two gcs and a move of the tree every undo brings back the last gc again, and none the one before."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(7477) as machine:
        world = World(machine, size=2)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.start()
    world.save()
    world.save()
    world.fault = Fault(at=2, what="kill", error="", where="change", beside=None)
    world.save()
    world.gc()
    world.move_tree()
    world.finish()
