"""A file that a scan had found, and another start wrote over, counts with those of the first start after a scan."""

import pytest

from tests.world.machine import simulated
from tests.world.truth import ViolationError
from tests.world.world import World


@pytest.mark.xfail(raises=ViolationError, strict=True, reason="a scan takes no digest, and each rank has one save")
def test_history() -> None:
    with simulated(69) as machine:
        world = World(machine, size=2)
        world.is_strict = True
        happens(world)


def happens(world: World) -> None:
    world.bare(steps=1, ranks=0)
    world.scan_bare()
    world.bare(steps=1, ranks=1)
    world.scan_bare()
    world.finish()
