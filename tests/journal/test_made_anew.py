"""A catalog that is made anew equals the lost one, row by row, but for work under way."""

import shutil
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Kind
from ckptstore.retention import stored_policy
from ckptstore.retention.policy import Policy
from ckptstore.retention.worker import Worker
from tests.contents import WORK, contents
from tests.jobs import Job, begun


def test_what_gc_undo_purge_and_verify_did_is_known_again(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, 15, 20, 25, 30, layout="data_parallel")
    stored_policy.store(catalog.database, "run", Policy(keep_last=4))
    catalog.execute(catalog.plan_gc("run"))
    assert catalog.undo("run").files == 4
    catalog.pin("run", 5)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=3)))
    catalog.purge("run", now=True)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)))
    catalog.tag("run", 25, "best")
    damaged = Path(catalog.show("run", 30)[0].path)
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert catalog.verify("run", digest=True).damaged
    plan = catalog.resolve("run", step=25).plan
    catalog.branch(plan)
    job.save(job.begin(), 28)
    other.scan(tmp_path / "ckpt")
    assert contents(other, but=WORK) == contents(catalog, but=WORK)
    assert other.undo("run").files == 2


def test_a_directory_with_a_name_that_is_not_text_is_known_again(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """The line of its journal could not be read: the rebuilt catalog did not know that the rank saves there."""
    job = Job(catalog, tmp_path / "ckpt", 1)
    (launch,) = job.start()
    launch.add_source(
        str(job.folder(0)),
        kind=Kind.GRACEFUL_EXIT,
        prefix="net",
        breakpoint_prefix="net",
        names_before=["old.ckpt", "mod\udce8le.ckpt"],
    )
    job.save([launch], 5)
    assert other.scan(tmp_path / "ckpt").synced.spoiled == 0
    assert contents(other, but=WORK) == contents(catalog, but=WORK)


def test_the_end_of_an_interrupted_gc_is_known_again(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had moved all its files. The purge that ends it moves none, and so opens no journal for a file."""
    begun(catalog, tmp_path / "ckpt", 5, 10, 15)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as before_the_end, pytest.raises(KeyboardInterrupt):
        before_the_end.setattr(Worker, "end", interrupt)
        catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)))
    assert catalog.purge("run").waiting == 2
    other.scan(tmp_path / "ckpt")
    assert contents(other, but=WORK) == contents(catalog, but=WORK)


def test_the_policy_is_known_again_if_one_directory_has_a_backup(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """The journals beside the originals are read first: after them the run counted as one that the catalog knew."""
    begun(catalog, tmp_path / "a", 5, 10, world_size=1)
    later = Job(catalog, tmp_path / "b", 1)
    later.launches = 1
    later.save(later.begin(), 15)
    stored_policy.store(catalog.database, "run", Policy(keep_last=4))
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    assert other.scan(tmp_path).synced.refused == ()
    assert stored_policy.show(other.database, "run") == Policy(keep_last=4)
