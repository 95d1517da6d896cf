"""Where the next save would not fit, what may go goes: the oldest trash, then the oldest states but the floor."""

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Content, Kind
from ckptstore.retention.free_space import Disk, free_space
from ckptstore.retention.policy import Policy
from ckptstore.training.retention_thread import RetentionThread
from tests import ckpt_bytes
from tests.jobs import Job, begun
from tests.small_disks import read_only, small_disk

pytestmark = pytest.mark.of_files

KEEP_3 = Policy(keep_last=3)
WEIGHTS = 75_000
SIZE = 300_138


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "size=4m") as home:
        yield home


def large(path: Path) -> Path:
    """A file that takes room."""
    path.chmod(0o600)
    path.write_bytes(path.read_bytes() + ckpt_bytes.value("large", "Float32", (WEIGHTS,), bytes(4 * WEIGHTS)))
    return path


def saved(catalog: Catalog, directory: Path, *steps: int) -> Job:
    job, (rank,) = begun(catalog, directory, world_size=1)
    for step in steps:
        rank.register(large(job.write(rank, step)), global_step=step)
    return job


def steps(catalog: Catalog) -> list[int]:
    return sorted({save.tally.global_step for save in catalog.saves("run") if save.restorable})


def fill_to(home: Path, saves: float) -> None:
    """Leave room for so many saves, beside the spare megabyte."""
    found = os.statvfs(home)
    left = found.f_bavail * found.f_frsize - (1 << 20) - int(saves * SIZE)
    (home / f"filler-{saves}").write_bytes(bytes(max(0, left)))


def after_two_gcs(catalog: Catalog, home: Path) -> None:
    """States of five steps, of which two gcs have moved one each to the trash; the next save does not fit."""
    job = saved(catalog, home, 10, 20, 30, 40)
    catalog.execute(catalog.plan_gc("run", KEEP_3))
    (rank,) = job.begin()
    rank.register(large(job.write(rank, 50)), global_step=50)
    catalog.execute(catalog.plan_gc("run", KEEP_3))
    fill_to(home, 0.5)


def test_nothing_goes_where_the_next_save_fits(catalog: Catalog, disk: Path) -> None:
    saved(catalog, disk, 10, 20, 30, 40)
    catalog.execute(catalog.plan_gc("run", KEEP_3))
    fill_to(disk, 1.5)
    assert free_space(catalog.database, "run", KEEP_3) == []
    assert steps(catalog) == [20, 30, 40]
    assert catalog.undo("run").files == 1


def test_files_on_the_disks_of_other_nodes_need_no_room_here(catalog: Catalog, disk: Path) -> None:
    """All nodes have a directory of that path. Before, the trash went though the next save would have fitted."""
    job, ranks = begun(catalog, disk)
    for rank in ranks:
        path = large(job.write(rank, 10))
        rank.register(path, global_step=10)
    path.unlink()
    fill_to(disk, 1.5)
    assert free_space(catalog.database, "run", KEEP_3) == []


def test_the_oldest_trash_goes_first(catalog: Catalog, disk: Path) -> None:
    """Before, two thirds of a full disk were trash, and every restart died the same way."""
    after_two_gcs(catalog, disk)
    (freed,) = free_space(catalog.database, "run", KEEP_3)
    assert (freed.trash, freed.states, freed.is_enough) == (SIZE, (), True)
    assert steps(catalog) == [30, 40, 50]
    assert catalog.undo("run").files == 1, "the newer gc is there still"
    assert 20 in steps(catalog)


def test_no_state_goes_while_there_is_trash__before_it_went_for_a_save_that_came_meanwhile(
    catalog: Catalog, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training waits for room: it writes as soon as the trash that was deleted has made it."""
    after_two_gcs(catalog, disk)
    looks: list[bool] = []

    def is_short(full: Disk) -> bool:
        looks.append(full.free < full.needed)
        if not looks[-1]:
            (disk / f"saved-{len(looks)}").write_bytes(bytes(SIZE))
        return looks[-1]

    monkeypatch.setattr(Disk, "is_short", property(is_short))
    (freed,) = free_space(catalog.database, "run", KEEP_3)
    assert (freed.trash, freed.states, freed.is_enough) == (SIZE, (), True)
    assert looks == [True, True, False]
    assert steps(catalog) == [30, 40, 50]


def test_a_disk_that_is_away_does_not_have_what_is_below_it_looked_at(disk: Path) -> None:
    """What is below a mount point may be small, and the trash would go for it."""
    full = Disk(str(disk), disk.stat().st_dev, 1 << 40)
    assert full.is_short
    assert not replace(full, device=disk.parent.stat().st_dev).is_short


def test_nothing_goes_where_nothing_can_be_written(catalog: Catalog, disk: Path) -> None:
    """Before, all states but the floor were said to be deleted, and one did not count, though each file was there."""
    saved(catalog, disk, 10, 20, 30, 40, 50)
    fill_to(disk, 0.5)
    read_only(disk)
    assert free_space(catalog.database, "run", Policy(keep_last=5)) == []
    assert steps(catalog) == [10, 20, 30, 40, 50]


def test_the_trash_of_another_disk_stays(catalog: Catalog, tmp_path: Path) -> None:
    with small_disk(tmp_path / "data" / "rank_0", "size=4m") as home:
        job, ranks = begun(catalog, tmp_path / "data")
        for step in (10, 20, 30, 40):
            for rank in ranks:
                rank.register(large(job.write(rank, step)), global_step=step)
        catalog.execute(catalog.plan_gc("run", KEEP_3))
        fill_to(home, 0.5)
        (freed,) = free_space(catalog.database, "run", KEEP_3)
        assert (freed.trash, freed.is_enough) == (SIZE, True)
        assert catalog.undo("run").files == 1


def test_then_the_oldest_states_and_never_the_floor(catalog: Catalog, disk: Path) -> None:
    saved(catalog, disk, 10, 20, 30, 40, 50)
    catalog.pin("run", 10)
    fill_to(disk, 0.5)
    (freed,) = free_space(catalog.database, "run", Policy(keep_last=5))
    assert (freed.trash, freed.states, freed.is_enough) == (0, (20,), True)
    assert steps(catalog) == [10, 30, 40, 50]
    fill_to(disk, 0.1)  # what is told of it takes a few blocks
    (freed,) = free_space(catalog.database, "run", Policy(keep_last=5, grace=timedelta(hours=1)))
    assert (freed.states, freed.is_enough) == ((30,), True)
    (disk / "more").write_bytes(bytes(2 * SIZE))
    (freed,) = free_space(catalog.database, "run", Policy(keep_last=5))
    assert (freed.states, freed.is_enough) == ((), False)
    assert steps(catalog) == [10, 40, 50]
    (freed,) = free_space(catalog.database, "run", Policy(keep_last=5, floor=0))
    assert freed.states == (40,), "one stays whatever is said"


def test_ranks_that_do_not_save_are_not_waited_for(catalog: Catalog, disk: Path) -> None:
    """Before, gc and room for the next save waited for files of all ranks, where only the first of replicas saves."""
    job = Job(catalog, disk, layout="data_parallel")
    rank, other = job.start()
    job.announce(rank)
    weights = {"kind": Kind.PERIODIC, "prefix": "net", "content": Content.WEIGHTS}
    other.add_source(str(job.folder(1)), breakpoint_prefix="net", names_before=(), **weights)
    for step in (10, 20, 30):
        rank.register(large(job.write(rank, step)), global_step=step)
    thread = RetentionThread(rank, Policy(keep_last=2))
    thread.file_registered(rank.register(large(job.write(rank, 40)), global_step=40))
    thread.finish(10)
    assert steps(catalog) == [30, 40]
    fill_to(disk, 0.5)
    (freed,) = free_space(catalog.database, "run", KEEP_3)
    assert (freed.trash, freed.is_enough) == (2 * SIZE, True)
