"""The disk fails while a save looks for the directory's identity; a scan while that disk is away lost the file."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(10232) as machine:
        world = World(machine, size=2, late=True)
        happens(world)


def happens(world: World) -> None:
    world.start(place=1, plain=True)
    world.save()
    world.fault = Fault(at=27, what="error", error="ENOSPC")
    world.save()
    world.unmount()
    world.scan()
    world.finish()
