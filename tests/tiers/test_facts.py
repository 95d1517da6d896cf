"""Tiers and copies are facts: declared, journalled, and known again by a catalog that is made anew."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog import copies, reads
from ckptstore.catalog.project import project
from ckptstore.core.copies import Beside, CopyState, Tier
from ckptstore.core.copy_keys import key_of
from ckptstore.core.events import CopyRecorded, TierDeclared
from ckptstore.core.model import Checkpoint, FileState, Kind
from ckptstore.disk.trust import Trust
from ckptstore.errors import RefusedError, UsageError
from ckptstore.journal import summaries
from ckptstore.journal.accept import Acceptor
from ckptstore.journal.recorder import shared
from ckptstore.outside import utc_now
from ckptstore.tiers import facts
from tests import ckpt_bytes
from tests.jobs import begun

S3 = Tier("s3", "s3://bucket/prefix", 2)
COMPANION = Beside("net-1_5.ckptstore.json", "run/L1/5/c3-net-1_5.ckptstore.json", 7, "c3")


@pytest.mark.parametrize(
    ("url", "level", "tier"),
    [
        ("s3://bucket/prefix/", None, S3),
        ("/shared/there", None, Tier("s3", "file:///shared/there", 1)),
        ("file:///shared/there", 0, Tier("s3", "file:///shared/there", 0)),
        ("/shared/a:b", 1, Tier("s3", "file:///shared/a:b", 1)),
        ("file:///shared/else/..//there/", 1, Tier("s3", "file:///shared/there", 1)),
    ],
)
def test_a_url_is_written_in_one_way(url: str, level: int | None, tier: Tier) -> None:
    assert facts.tier_of("s3", url, level) == tier


@pytest.mark.parametrize("url", ["s3://bucket/../x", "s3://bucket/a/.", "s3://bucket/./a", "s3://bucket//a"])
def test_a_prefix_that_servers_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="s3 cannot be used"):
        facts.tier_of("s3", url)
    assert facts.tier_of("s3", "s3://bucket/a..b/.c").url == "s3://bucket/a..b/.c"


@pytest.mark.parametrize(
    "url",
    [
        *("s3://key:secret@bucket/prefix", "s3://", "file://host/a", "s3://bucket?key=secret"),
        *("s3:/bucket/a", "host:/a", "", "file://"),
    ],
)
def test_a_url_that_may_hold_a_password_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="s3 cannot be used") as refused:
        facts.tier_of("s3", url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(("name", "level"), [("", None), ("a/b", None), ("x" * 65, None), ("s3", -1), ("s3", 0)])
def test_what_is_no_tier_is_refused(name: str, level: int | None) -> None:
    with pytest.raises(UsageError):
        facts.tier_of(name, "s3://bucket/prefix", level)


def test_a_tier_is_declared_taken_back_and_declared_again(catalog: Catalog) -> None:
    catalog.runs()
    assert facts.add(catalog.database, S3)
    assert not facts.add(catalog.database, S3)
    assert facts.declared(catalog.database) == [S3]
    with pytest.raises(RefusedError, match="tier s3 is s3://bucket/prefix"):
        facts.add(catalog.database, facts.tier_of("s3", "s3://other"))
    with pytest.raises(RefusedError, match="tier s3 is s3://bucket/prefix"):
        facts.add(catalog.database, facts.tier_of("far", f"{S3.url}/"))
    assert facts.remove(catalog.database, "s3") == S3
    assert facts.declared(catalog.database) == []
    with pytest.raises(UsageError, match="no tier is named 's3': there is none"):
        facts.remove(catalog.database, "s3")
    assert facts.add(catalog.database, S3._replace(level=5))
    assert facts.declared(catalog.database) == [S3._replace(level=5)]


def test_what_is_said_of_a_tier_later_counts_though_its_clock_is_behind(catalog: Catalog) -> None:
    """The tier was declared on a node whose clock is ahead: to take it back must end the copying at once."""
    catalog.runs()
    with catalog.database.write() as connection:
        project(connection, [TierDeclared("", S3, declared=True, at=utc_now() + timedelta(minutes=5))])
    facts.remove(catalog.database, "s3")
    assert facts.declared(catalog.database) == []
    assert facts.add(catalog.database, S3)
    assert facts.declared(catalog.database) == [S3]


def test_what_is_said_of_a_copy_later_counts_though_its_clock_is_behind(catalog: Catalog, tmp_path: Path) -> None:
    """Else each start takes a copy that an earlier one found to be gone, and is refused."""
    begun(catalog, tmp_path / "ckpt", 5)
    (file,) = [each for each in catalog.show("run", 5) if each.rank == 0]
    with catalog.database.write() as connection:
        project(connection, [CopyRecorded.of(file, S3, CopyState.READY, utc_now() + timedelta(minutes=5))])
    for state in (CopyState.FAILED, CopyState.READY):
        facts.record_copy(shared(catalog.database), file, S3, state)
        with catalog.database.read() as connection:
            assert [each.state for each in copies.copies_of(connection, [file.id])[file.id]] == [state]


def test_a_copy_is_recorded_and_known_again(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path / "ckpt", 5)
    first, second = sorted(catalog.show("run", 5), key=lambda file: file.rank)
    facts.record_copy(shared(catalog.database), first, S3, CopyState.PENDING)
    facts.record_copy(shared(catalog.database), first, S3, CopyState.READY, beside=[COMPANION])
    facts.record_copy(shared(catalog.database), second, S3, CopyState.FAILED, detail="no room")
    for each in (catalog, other):
        each.scan(tmp_path / "ckpt")
        with each.database.read() as connection:
            (known,) = copies.ready_copies(connection, [first])[first.id]
            every = copies.copies_of(connection, [first.id, second.id])
        assert (known.tier, known.key, known.beside, known.size) == (S3, key_of(first), (COMPANION,), first.size)
        assert known.is_of(first.digest)
        assert not known.is_of("other")
        assert known.all_bytes == (first.size or 0) + 7
        assert [each.detail for each in every[second.id]] == ["no room"]
        assert facts.declared(each.database) == [S3]
    (row,) = facts.listed(catalog.database)
    assert (row.ready, row.size, row.pending, row.failed) == (1, first.size, 0, 1)


def test_a_copy_that_replicas_share_is_counted_once(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path / "ckpt", 5)
    files = catalog.show("run", 5)
    assert (len(files), len({key_of(file) for file in files})) == (2, 1)
    for file in files:
        facts.record_copy(shared(catalog.database), file, S3, CopyState.READY)
    for run in (None, "run"):
        (row,) = facts.listed(catalog.database, run)
        assert (row.ready, row.size) == (1, files[0].size)


def test_a_file_of_which_a_tier_has_no_copy(catalog: Catalog, tmp_path: Path) -> None:
    _, ranks = begun(catalog, tmp_path / "ckpt", 5, 10)
    database = catalog.database

    def lacking(**asked: object) -> list[tuple[int, int]]:
        return [(file.global_step, file.rank) for file in facts.lacking(database, "run", S3, **asked)]  # type: ignore[arg-type]

    assert lacking() == [(10, 0), (10, 1), (5, 0), (5, 1)]
    assert lacking(most=1) == [(10, 0)]
    by = {(file.global_step, file.rank): file for file in catalog.files("run")}
    facts.record_copy(shared(database), by[10, 0], S3, CopyState.READY)
    facts.record_copy(shared(database), by[5, 0], S3, CopyState.GONE)  # retention removed it
    facts.record_copy(shared(database), by[5, 1], S3, CopyState.FAILED)
    assert lacking() == [(10, 1), (5, 1)]
    ranks[1].recorder.mark([by[10, 1]], FileState.MISSING)
    assert lacking() == [(5, 1)]
    assert facts.lacking(database, "no such run", S3) == []


def test_a_file_that_was_written_again_has_no_copy(catalog: Catalog, tmp_path: Path) -> None:
    _, ranks = begun(catalog, tmp_path / "ckpt", 5)
    (file,) = [each for each in catalog.show("run", 5) if each.rank == 0]
    facts.record_copy(shared(catalog.database), file, S3, CopyState.READY)
    Path(file.path).unlink()
    ckpt_bytes.write(Path(file.path), 5, 7)
    ranks[0].register(file.path, global_step=5)
    with catalog.database.read() as connection:
        (file,) = reads.files_by_id(connection, [file.id]).values()
        assert not copies.ready_copies(connection, [file])
    assert {each.rank for each in facts.lacking(catalog.database, "run", S3)} == {0, 1}


def test_another_users_journal_declares_no_tier(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path / "ckpt", 5)
    file = catalog.show("run", 5)[0]
    told = CopyRecorded.of(file, S3, CopyState.READY, utc_now())
    with catalog.database.write() as connection:
        acceptor = Acceptor(connection, Trust(), set(), [])
        assert acceptor._why_not(TierDeclared("run", S3, declared=True, at=utc_now()), "/run", 12345)
        project(connection, [replace(told, trusted=False)])
        assert [each.declared for each in copies.tiers_of(connection)] == [False]
        assert file.id in copies.ready_copies(connection, [file])
        project(connection, [told])
        assert [each.declared for each in copies.tiers_of(connection)] == [True]


def test_a_summary_keeps_the_record_of_a_file_that_a_tier_has(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """A start reads summaries only: what is gone from the disk, and in a tier, must be in them."""
    _, ranks = begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    old, new = sorted(catalog.files("run"), key=lambda file: file.global_step)
    facts.record_copy(shared(catalog.database), old, S3, CopyState.READY)
    facts.record_copy(shared(catalog.database), new, S3, CopyState.READY)
    facts.record_copy(shared(catalog.database), new, S3, CopyState.GONE)
    for file in (old, new):
        Path(file.path).unlink()
    ranks[0].recorder.mark([old, new], FileState.MISSING)
    summaries.make(str(Path(old.path).parent), "another launch")
    (summary,) = summaries.of(map(str, (Path(old.path).parent / ".ckptstore").glob("shared*.jsonl")))
    told = [(line["t"], line.get("state")) for line in summary.contents.entries if line["t"] in ("file", "copy")]
    assert ("copy", "ready") in told


def test_names_in_keys_are_plain() -> None:
    file = Checkpoint(
        run="my run/ü~",
        launch="..",
        kind=Kind.PERIODIC,
        global_step=5,
        rank=0,
        path="/a/net-1 5.ckpt",
        digest="ab" * 32,
    )
    assert key_of(file) == f"my~20run~2F~C3~BC~7E/~2E~2E/5/{'ab' * 16}-net-1~205.ckpt"


def test_a_directory_tier_contains_what_is_below_it() -> None:
    tier = facts.tier_of("local", "/nvme/a", 0)
    assert tier.contains("/nvme/a/x.ckpt")
    assert not tier.contains("/nvme/ab/x.ckpt")
    assert not S3.contains("/nvme/a/x.ckpt")
