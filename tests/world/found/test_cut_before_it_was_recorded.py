"""A file was cut before its rank recorded it: its size is another one than its replicas', so none stood in."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(18086) as machine:
        world = World(machine, size=2, replicas=True)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.fault = Fault(at=2, what="stop", beside=("cut", {"which": 1}))
    world.save()
    world.start()
