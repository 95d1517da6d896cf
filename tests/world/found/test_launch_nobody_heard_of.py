"""The second launch began without a catalog, in a directory that it could not write to: its file is the first one's."""

import pytest

from tests.world.machine import simulated
from tests.world.truth import ViolationError
from tests.world.world import World


@pytest.mark.xfail(raises=ViolationError, strict=True, reason="nothing tells of the second launch")
def test_history() -> None:
    with simulated(40044) as machine:
        world = World(machine, size=2)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.start()
    world.protect()
    world.catalog_away()
    world.start()
    world.relieve()
    world.save()
    world.finish()
