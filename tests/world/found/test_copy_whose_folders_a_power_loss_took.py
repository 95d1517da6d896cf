"""A copy was recorded as ready, and the folders above it in the tier were not on the disk yet: a power loss took it."""

import pytest

from tests.world.machine import simulated
from tests.world.tier import TierWorld


@pytest.mark.parametrize("seed", range(4))
def test_history(seed: int) -> None:
    with simulated(seed) as machine:
        world = TierWorld(machine, size=1, replicas=False, disks="one", nodes=1)
        happens(world)


def happens(world: TierWorld) -> None:
    world.declare()
    world.start()
    world.save()
    world.replicate()
    world.power_loss()
    world.finish()
