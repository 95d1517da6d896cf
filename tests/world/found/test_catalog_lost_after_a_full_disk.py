"""A launch began while its disk was full: its records were in the catalog alone until it saved, and that was lost."""

import pytest

from tests.world.machine import simulated
from tests.world.world import World


@pytest.mark.parametrize("told", [True, False])
def test_history(told: bool) -> None:  # noqa: FBT001
    with simulated(510311) as machine:
        world = World(machine, size=2)
        happens(world, told)


def happens(world: World, told: bool) -> None:  # noqa: FBT001
    world.start()
    world.fill()
    world.start()
    world.relieve()
    world.fail(told=told)
    world.lose_catalog()
    world.finish()
