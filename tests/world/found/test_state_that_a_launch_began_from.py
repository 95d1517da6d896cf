"""A second catalog took the file that a launch began from for one of that launch: the launch before lost its state.

The disk listed late: neither the launch nor the scan saw what the launch before had recorded.
"""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(701535) as machine:
        world = World(machine, size=2, replicas=False, disks="each", nodes=2, late=True, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.wait(seconds=50000)
    world.start()
    world.slow(which=2)
    world.clock(node=1, seconds=-290)
    world.save()
    world.start()
    world.scan(catalog=1)
    launch = world.truth.launches[-1].name
    task = world._operate("files", lambda opened: opened.files("run"), 1)
    assert launch not in {file.launch for file in task.result}
    world.finish()
