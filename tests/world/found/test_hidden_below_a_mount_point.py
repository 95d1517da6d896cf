"""A launch saved below a mount point; then the disk was mounted, and the catalog lost: nothing tells of it."""

from tests.world.machine import Fault, simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(600189) as machine:
        world = World(machine, size=2, replicas=True, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.unmount(which=3, gone=False)
    world.start()
    world.fault = Fault(at=0, what="kill_after", error="", where="change", beside=None)
    world.save()
    world.mount()
    world.lose_catalog()
    world.start(kill_rank=1, plain=True)
    world.finish()
