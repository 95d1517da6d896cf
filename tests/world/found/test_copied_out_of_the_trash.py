"""Files copied out of the trash counted as those of a later launch with their prefix: a step that it never saved."""

from tests.world.machine import simulated
from tests.world.world import RUN, World


def test_history() -> None:
    with simulated(3174) as machine:
        world = World(machine, size=2)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.start()
    world.save()
    world.save()
    world.gc()
    world.start(fresh=True)  # its files have the prefix that those in the trash had
    world.save(steps=5)
    world.take_out(which=0)
    world.take_out(which=1)
    world.start()
    saved = world._operate("files", lambda opened: opened.files(RUN))
    assert ("L2", 1) not in {(file.launch, file.global_step) for file in saved.result}
    world.finish()
