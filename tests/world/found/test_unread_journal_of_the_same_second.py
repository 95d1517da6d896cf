"""Times are whole seconds: a journal as old as the chosen state may record a newer one, and was taken for an older one.

The catalog was lost and the journal could not be read: the start went on from the older state.
"""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(64) as machine:
        world = World(machine, size=2, replicas=True, keeps=2, coarse=True)
        happens(world)


def happens(world: World) -> None:
    world.start()
    for _ in range(5):
        world.save()
    world.spoil(which=1)
    world.lose_catalog()
    world.delete(which=1)
    world.start()
    world.finish()
