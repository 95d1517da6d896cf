"""Two runs save in one directory under one prefix, and a launch of one left its breakpoint before both had saved.

The breakpoint was taken for the other run's: as if that had ended. So its unregistered files were adopted, and a start
took them.
"""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(279) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.neighbour()
    world.fault = Fault(at=5, what="kill", error="", where="any", beside=None)
    world.fail()
    world.start()
    world.neighbour_saves(untold=True)
    world.finish()
