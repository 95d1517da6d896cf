"""Two starts from scratch under names that MindSpore does not number: no plan has files of both."""

import shutil
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from tests.scan.builders import save


def starts_of(catalog: Catalog, first: int) -> set[int]:
    """Which of two starts wrote the files of the plan: they began at these seconds, and saved one step a second."""
    return {int(Path(item.source.path).stat().st_mtime >= first) for item in catalog.resolve("job").plan.ranks}


@pytest.mark.parametrize("is_known", [False, True], ids=["scanned once", "scanned after the first start too"])
@pytest.mark.parametrize("ended", [3, 5], ids=["the first start got as far", "the first start got farther"])
def test_a_second_start_that_was_killed_while_the_ranks_saved(
    catalog: Catalog, root: Path, ended: int, *, is_known: bool
) -> None:
    """`ModelCheckpoint(directory=callable)` never takes another name; only rank 0 saved step 3 again."""
    for rank in (0, 1):
        save(root, *range(1, ended + 1), rank=rank, at=1000)
    if is_known:
        catalog.scan(root, world_size=2)
    save(root, 1, 2, 3, rank=0, at=2000)
    save(root, 1, 2, rank=1, at=2000)
    done = catalog.scan(root, world_size=2)
    apart = {each.path: (each.best_guess, each.reason) for each in done.uncertain}
    reason = "ranks wrote their files of this step at different times: they may be of two launches"
    assert apart == {str(root / f"rank_{rank}" / "net-1_3.ckpt"): (3, reason) for rank in (0, 1)}
    assert len(starts_of(catalog, 2000)) == 1


def test_a_third_start_that_did_not_get_as_far(catalog: Catalog, root: Path) -> None:
    """Of step 3, rank 0 has the file of the first start, and rank 1 that of the second: a plan had both.

    The time to the saves of the third start is no time between two saves.
    """
    for rank, ended, at in ((0, 3, 1000), (1, 3, 1000), (0, 2, 2000), (1, 3, 2000), (0, 2, 9000), (1, 2, 9000)):
        save(root, *range(1, ended + 1), rank=rank, at=at)
    done = catalog.scan(root, world_size=2)
    assert {each.path for each in done.uncertain} == {str(root / f"rank_{rank}" / "net-1_3.ckpt") for rank in (0, 1)}
    assert catalog.resolve("job").plan.global_step == 2


def test_a_step_that_one_rank_wrote_again_is_not_of_the_launch_it_was_recorded_in(catalog: Catalog, root: Path) -> None:
    """Its save of step 2 is still that of the first start, as are the names, and rank 0 has lost its own."""
    for rank in (0, 1):
        save(root, 1, 2, rank=rank, at=1000)
    catalog.scan(root, world_size=2)
    (root / "rank_0" / "net-1_2.ckpt").unlink()
    save(root, 1, rank=1, at=2000)
    catalog.scan(root, world_size=2)
    assert catalog.resolve("job").plan is None


@pytest.mark.parametrize("steps", [(1, 2, 3), (3,)], ids=["several saves", "one save"])
def test_ranks_that_save_far_apart(catalog: Catalog, root: Path, steps: tuple[int, ...]) -> None:
    """Four ranks, saves ten minutes apart, 0 to 60 s late. Of one save each, the user says that it was one start."""
    for rank in range(4):
        for step in steps:
            save(root, step, rank=rank, at=600 * step + 20 * rank)
    if len(steps) == 1:
        assert "if no rank missed a launch: --trust numbers" in str(
            catalog.scan(root, world_size=4, dry_run=True).warnings
        )
    done = catalog.scan(root, world_size=4, trust=["numbers"] if len(steps) == 1 else [])
    assert done.uncertain == ()
    assert catalog.resolve("job").plan.global_step == 3


@pytest.mark.parametrize("apart", [20, 1000])
def test_two_starts_that_were_equally_fast(catalog: Catalog, other: Catalog, root: Path, apart: int) -> None:
    """Each rank has the files of another start. A copy of one rank after another looks the same: the user says so."""
    for rank in (0, 1):
        save(root, 1, 2, 3, rank=rank, at=1000 + rank * apart)
    done = catalog.scan(root, world_size=2)
    assert not done.adopted
    assert [each.best_guess for each in done.uncertain] == [1, 2, 3] * 2
    assert {each.remedy for each in done.uncertain} == {"--trust numbers"}
    other.sync(root)
    assert list(other.unplaced("job")) == list(catalog.unplaced("job"))
    assert other.unplaced("job")
    assert all("of two launches, or copied one rank after another" in each.reason for each in done.uncertain)
    assert catalog.scan(root, world_size=2, trust=["numbers"]).uncertain == ()
    assert catalog.resolve("job").plan.global_step == 3


@pytest.mark.parametrize(
    ("lacking", "left", "taken"),
    [([("a", 1)], [("a", 0)], 3), ([("a", 1), ("b", 0)], [("a", 0), ("b", 1)], 2)],
    ids=["one has saved the step whole", "neither has"],
)
def test_two_trainings_at_once_with_a_prefix_each(
    catalog: Catalog, root: Path, lacking: list[tuple[str, int]], left: list[tuple[str, int]], taken: int
) -> None:
    """They save side by side, and both are killed in a save. One training with two callbacks looks the same."""
    for prefix in ("a", "b"):
        for rank in (0, 1):
            steps = (1, 2) if (prefix, rank) in lacking else (1, 2, 3)
            save(root, *steps, rank=rank, prefix=prefix, at=1000)
    done = catalog.scan(root, world_size=2)
    paths = [str(root / f"rank_{rank}" / f"{prefix}-1_3.ckpt") for prefix, rank in left]
    assert [each.path for each in done.uncertain] == paths
    assert {(each.best_guess, each.reason) for each in done.uncertain} == {
        (3, "some ranks have a file of this step under another prefix only: they may be of two trainings")
    }
    plan = catalog.resolve("job").plan
    assert plan.global_step == taken
    assert len({Path(item.source.path).name for item in plan.ranks}) == 1
    stated = dict.fromkeys(paths, 3)
    assert catalog.scan(root, world_size=2, steps=stated).uncertain == ()


def test_what_one_rank_alone_saves_is_no_other_training(catalog: Catalog, root: Path) -> None:
    for rank in (0, 1):
        save(root, 1, 2, 3, rank=rank, at=1000)
    save(root, 3, prefix="best", at=1000)
    assert catalog.scan(root, world_size=2).uncertain == ()


def test_a_copy_of_which_some_files_are_left(catalog: Catalog, root: Path) -> None:
    """A copy with its times is of the same save: what is left of it puts no state in doubt."""
    for rank in (0, 1):
        save(root, 1, 2, 3, rank=rank, at=1000)
    shutil.copytree(root, root / "copy")
    (root / "copy/rank_1/net-1_3.ckpt").unlink()
    assert catalog.scan(root, run="job", world_size=2).uncertain == ()
    assert catalog.resolve("job").plan.global_step == 3
