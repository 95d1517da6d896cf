"""That a tier lacks a copy was recorded in the catalog alone if the file is gone: its directory was not known."""

from tests.world.machine import simulated
from tests.world.tier import TierWorld


def test_history() -> None:
    with simulated(106) as machine:
        world = TierWorld(machine, size=2, replicas=False, disks="one", nodes=1, keeps=1)
        happens(world)


def happens(world: TierWorld) -> None:
    world.start()
    world.declare()
    world.save()
    world.replicate()
    world.lose_copy()
    world.save()
    world.quarantine()
    world.finish()
