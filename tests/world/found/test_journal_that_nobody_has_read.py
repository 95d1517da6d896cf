"""The catalog was lost and a journal of the newest launch could not be read: a start went on from an older state."""

import pytest

from tests.world.machine import simulated
from tests.world.world import World


@pytest.mark.parametrize("which", [0, 1], ids=["of rank 0", "of rank 1"])
@pytest.mark.parametrize("launches", [1, 2])
def test_history(launches: int, which: int) -> None:
    with simulated(16069) as machine:
        world = World(machine, size=2)
        happens(world, launches, which)


def happens(world: World, launches: int, which: int) -> None:
    for _ in range(launches):
        world.start()
        world.save()
    world.spoil(which=which)
    world.lose_catalog()
    world.start()
    world.finish()
