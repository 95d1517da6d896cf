"""The second launch began without a catalog, in a directory that it could not write to: its file is the first one's."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(40044) as machine:
        world = World(machine, size=2)
        happens(world)
        assert world.checked["unheard"], "nothing tells of the second launch"


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
