"""What a gc had not come to, since it was interrupted or refused."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.errors import UsageError
from ckptstore.retention import execute
from ckptstore.retention.in_trash import undo
from tests.contents import contents
from tests.jobs import Job, begun, newest
from tests.retention.builders import gc, interrupt, names, saved
from tests.trash_calls import MOVES, failing_after

STEPS = (10, 20, 30, 40, 50)


def there(job: Job) -> set[int]:
    """The steps of which every rank's file is at its place."""
    every = names(job.directory)
    return {step for step in STEPS if {f"rank_{rank}/net-{step // 10}_10.ckpt" for rank in (0, 1)} <= every}


def test_the_graph_of_a_graceful_exit_goes_with_its_file_all_the_same(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "data")
    for launch in ranks:
        path = job.write(launch, 15, name="net_train-step_15.ckpt")
        path.with_suffix(".mindir").write_bytes(b"graph")
        launch.register(path, kind="graceful_exit", global_step=15)
    job.save(ranks, 20, 30)
    for after in range(4):
        interrupt(catalog, after)
        done = gc(catalog)
        assert (done.files, {name[-9:] for name in names(job.directory)}) == (4, {"2_10.ckpt", "3_10.ckpt"})
        assert undo(catalog.database, "run").files == 4


@pytest.mark.parametrize("is_link", [False, True])
def test_undo_gives_back_what_never_moved(catalog: Catalog, tmp_path: Path, *, is_link: bool) -> None:
    """The trash cannot be used, before and after: every file is at its place all the time."""
    job = saved(catalog, tmp_path, *STEPS)
    for rank in (0, 1):
        trash = job.folder(rank) / ".ckptstore" / "trash"
        if is_link:
            trash.symlink_to(tmp_path)
        else:
            trash.write_bytes(b"in the way")
    assert len(gc(catalog).troubles) == 6
    assert catalog.resolve("run", step=30).plan is None
    back = undo(catalog.database, "run")
    assert (back.files, back.gone, back.troubles) == (6, 0, ())
    assert there(job) == set(STEPS)
    assert catalog.resolve("run", step=30).plan is not None
    assert catalog.pin("run", 30)
    with pytest.raises(UsageError, match="nothing of run 'run' is in the trash"):
        undo(catalog.database, "run")


def test_what_is_refused_is_tried_once_a_gc(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many portions come after it."""
    monkeypatch.setattr(execute, "PORTION", 2)
    job = saved(catalog, tmp_path, *STEPS)
    home = job.folder(0) / ".ckptstore" / "trash"
    home.write_bytes(b"in the way")
    for _ in range(2):
        assert len(gc(catalog).troubles) == 3
    home.unlink()
    assert gc(catalog).files == 3
    assert [undo(catalog.database, "run").files for _ in range(2)] == [3, 3]
    assert there(job) == set(STEPS)


def test_a_purge_that_was_interrupted_is_judged_anew(catalog: Catalog, tmp_path: Path) -> None:
    """Before, the next gc deleted the rest, though all other states had been lost since."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    gc(catalog)
    with failing_after(1, MOVES, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        catalog.purge("run", now=True)
    for path in job.directory.rglob("rank_*/*.ckpt"):
        path.unlink()
    done = gc(catalog)
    assert (done.files, done.purged_files, done.troubles) == (0, 0, ())
    assert [row["settled"] for row in contents(catalog)["trash"] if row["wanted"] == "trash"] == [True] * 3
    assert catalog.undo("run").files == 3
    assert newest(catalog) == 20
