"""An undo was recorded before its moves were on the disk: after a loss of power no undo brought the files back."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(77005) as machine:
        world = World(machine, size=2, replicas=False, disks="each", nodes=1, late=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.forget()
    world.save(steps=2, kill_rank=2)
    world.save()
    world.start()
    world.flip()
    world.purge()
    world.save(steps=2, kill_rank=3)
    world.save()
    world.save()
    world.save()
    world.save(steps=2, kill_rank=0)
    world.save()
    world.save()
    world.policy()
    world.fault = Fault(at=4, what="stop", error="", where="any", beside=("gc", {"keep_last": 1, "floor": 2}))
    world.undo()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save()
    world.fault = Fault(at=0, what="stop", error="", where="any", beside=("pin", {"step": 2, "undo": True}))
    world.save()
    world.fault = Fault(at=2, what="error_after", error="EACCES", where="file", beside=None)
    world.pin()
    world.power_loss()
    world.finish()
