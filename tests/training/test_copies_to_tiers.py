"""A job that declares tiers copies what it registers, and is stopped by nothing that they do."""

from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog import copies
from ckptstore.core.copies import CopyState
from ckptstore.errors import UsageError
from ckptstore.journal.recorder import shared
from ckptstore.retention.execute import execute
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.tiers import facts
from ckptstore.training.copies_to_tiers import CopiesToTiers, checked
from tests.jobs import begun
from tests.replicate.rounds import one_round

pytestmark = pytest.mark.of_files


def test_each_rank_copies_what_it_registers(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt")
    threads = [CopiesToTiers(launch, {"shared": str(tmp_path / "shared")}) for launch in ranks]
    for launch, thread, file in zip(ranks, threads, job.save(ranks, 5), strict=True):
        assert file.rank == launch.rank
        thread.file_registered(file)
    for thread in threads:
        thread.finish(30)
    for thread, file in zip(threads, job.save(ranks, 10), strict=True):  # another training in the same process
        thread.file_registered(file)
        thread.finish(30)
    assert [tier.name for tier in facts.declared(catalog.database)] == ["shared"]
    assert facts.lacking(catalog.database, "run", facts.named(catalog.database, "shared")) == []


def test_a_job_leaves_the_level_that_a_tier_was_declared_with(catalog: Catalog, tmp_path: Path) -> None:
    """Else nothing of a shared directory of level 1 would be copied to it any more."""
    job, ranks = begun(catalog, tmp_path / "ckpt", world_size=1)
    archive = facts.tier_of("archive", str(tmp_path / "archive"), 2)
    facts.add(catalog.database, archive)
    thread = CopiesToTiers(ranks[0], {"archive": str(tmp_path / "archive")})
    thread.file_registered(*job.save(ranks, 5))
    thread.finish(30)
    assert facts.declared(catalog.database) == [archive]
    assert facts.lacking(catalog.database, "run", archive) == []


def test_a_name_that_is_another_tier_is_said_and_stops_nothing(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", world_size=1)
    facts.add(catalog.database, facts.tier_of("shared", str(tmp_path / "another")))
    thread = CopiesToTiers(ranks[0], {"shared": str(tmp_path / "shared")})
    (file,) = job.save(ranks, 5)
    thread.file_registered(file)
    thread.finish(0)
    assert "tier shared is not declared" in caplog.text


def test_a_file_that_is_removed_before_it_is_copied_is_said_once__before_in_silence(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As by the gc of the training, or by keep_checkpoint_max, while a tier is slow or away."""
    job, ranks = begun(catalog, tmp_path / "ckpt", world_size=1)
    thread = CopiesToTiers(ranks[0], {"shared": str(tmp_path / "shared")})
    files = [*job.save(ranks, 5), *job.save(ranks, 10), *job.save(ranks, 15)]
    execute(catalog.database, plan_gc(catalog.database, "run", Policy(keep_last=1, floor=1)))
    for file in files:
        thread.file_registered(file)
    thread.finish(30)
    assert [message.partition(" was")[0] for message in caplog.messages] == [files[0].path]
    assert "removed before it was copied" in caplog.text


def test_a_file_that_another_process_copied_before_it_was_removed_is_not_said(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`replicate` may copy it while the job waits for a tier that rested. Then gc removes it from the disk."""
    _, ranks = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    shared_tier = facts.tier_of("shared", str(tmp_path / "shared"))
    facts.add(catalog.database, shared_tier)
    assert one_round(catalog).files == 1
    (file,) = catalog.files("run")
    Path(file.path).unlink()
    thread = CopiesToTiers(ranks[0], {"shared": str(tmp_path / "shared")})
    thread.file_registered(file)
    thread.finish(30)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("tiers", "rate"),
    [
        *((["s3"], None), ({"s3": None}, None), ({"s3": "s3://key:secret@bucket"}, None)),
        *(({"a/b": "/shared"}, None), ({"s3": "s3://b"}, 0)),
    ],
)
def test_what_makes_no_sense_is_refused(catalog: Catalog, tmp_path: Path, tiers: Any, rate: float | None) -> None:
    _, ranks = begun(catalog, tmp_path / "ckpt", world_size=1)
    with pytest.raises(UsageError):
        CopiesToTiers(ranks[0], tiers, rate)


def test_a_directory_may_be_given_as_a_path(tmp_path: Path) -> None:
    assert checked({"shared": tmp_path}) == checked({"shared": str(tmp_path)})


def test_a_tier_that_was_taken_back_is_not_read(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", world_size=1)
    tier = facts.tier_of("shared", str(tmp_path / "shared"))
    facts.add(catalog.database, tier)
    (file,) = job.save(ranks, 5)
    facts.record_copy(shared(catalog.database), file, tier, CopyState.READY)

    def is_read() -> bool:
        with catalog.database.read() as connection:
            return file.id in copies.ready_copies(connection, [file])

    assert is_read()
    facts.remove(catalog.database, "shared")
    assert not is_read()
    facts.add(catalog.database, tier)
    assert is_read()
