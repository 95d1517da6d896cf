"""After a move gc took a later file of the same path: undo looked at its record, and came to no gc before that."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(200908) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.gc(keep_last=3, floor=2)
    world.save()
    world.save()
    world.gc()
    world.move_tree()
    world.fault = Fault(at=4, what="stop", error="", where="any", beside=("unmount", {"which": 1, "gone": False}))
    world.start(kill_rank=2, plain=True)
    world.start(kill_rank=0, fresh=True)
    world.save()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.finish()
