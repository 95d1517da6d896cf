"""The main case of a tier: nodes lose their disks, and training goes on from copies."""

from tests.world.machine import simulated
from tests.world.tier import TierWorld


def test_training_goes_on_from_copies_when_each_disk_was_replaced() -> None:
    with simulated(1) as machine:
        world = TierWorld(machine, size=2, disks="each", nodes=2)
        world.declare()
        world.start()
        for _ in range(3):
            world.save()
        world.replicate()
        assert len(world.ready) == 6
        world.replace_disk(0)
        world.replace_disk(1)
        world.start()
        assert world.truth.launches[-1].parent == (0, 3)
        assert len(world.trainers) == 2
        world.check()
        world.finish()
