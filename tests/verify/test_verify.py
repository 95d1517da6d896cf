"""`verify`: what is damaged is found, whatever it is, marked, and taken back once it is whole again."""

from __future__ import annotations

import os
import random
import shutil
import struct
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from ckptstore.catalog import tables, verifications, writes
from ckptstore.core.model import FileState, Rule
from ckptstore.errors import CatalogUnavailableError, UnknownRunError, UsageError
from ckptstore.ops import to_verify, verifier
from ckptstore.ops.connect import Catalog, connect
from ckptstore.ops.examine import examine
from ckptstore.ops.register import describe, measured
from ckptstore.storage import files
from tests import ckpt_bytes

from .jobs import Job

if TYPE_CHECKING:
    from ckptstore.core.model import Checkpoint
    from ckptstore.ops.launch import RankLaunch

FLIPS = 1000
RANKS = 50


def saved(catalog: Catalog, directory: Path, *steps: int, world_size: int = 2) -> Job:
    return begun(catalog, directory, *steps, world_size=world_size)[0]


def begun(catalog: Catalog, directory: Path, *steps: int, world_size: int = 2) -> tuple[Job, list[RankLaunch]]:
    """A run whose launch goes on."""
    job = Job(catalog, directory, world_size=world_size)
    ranks = job.start()
    for launch in ranks:
        job.announce(launch)
    for step in steps or (5, 10, 15):
        job.save(ranks, step)
    return job, ranks


def flip(path: Path, place: int, *, keep_time: bool = True) -> None:
    """Flip a bit of a file in place, as a disk does that forgets: its time stays."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << place % 8
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def states(catalog: Catalog) -> dict[str, tuple[FileState, Rule | None]]:
    return {Path(file.path).name: (file.state, file.problem) for file in catalog.files("run")}


def test_nothing_is_wrong_with_what_is_whole(catalog: Catalog, tmp_path: Path) -> None:
    saved(catalog, tmp_path)
    size = len(ckpt_bytes.checkpoint(5))
    for digest in (False, True):
        done = catalog.verify("run", digest)
        assert (done.checked, done.bytes, done.own, done.damaged, done.troubles) == (6, 6 * size, 6, (), ())
        assert (done.unknown, done.skipped, done.whole_again, done.new_digests) == ((), (), (), 0)


def test_every_one_of_many_flipped_bits_is_found(sqlite_url: str, tmp_path: Path) -> None:
    """In random places: names, shapes, weights, the counter. Without digests those in the header are found."""
    catalog = connect(sqlite_url)
    job = Job(catalog, tmp_path / "ckpt", world_size=RANKS)
    for launch in job.start(resume=False):
        written = {step: job.write(launch, step) for step in range(1, FLIPS // RANKS + 2)}
        described = [
            describe(launch.facts, rank=launch.rank, path=path, kind="periodic", global_step=step, optimizer_step=step)
            for step, path in written.items()
        ]
        launch.record([file for each in described if (file := measured(each)) is not None])
    chance = random.Random(7)  # noqa: S311 — places, not secrets
    paths = sorted(job.directory.rglob("*.ckpt"))
    flipped = chance.sample(paths, FLIPS)
    size = paths[0].stat().st_size
    places = [place % size if place < size else chance.randrange(size) for place in range(FLIPS)]  # each at least once
    for path, place in zip(flipped, places, strict=True):
        flip(path, place)
    by_header = {damage.path for damage in catalog.verify("run").damaged}
    assert by_header <= set(map(str, flipped))
    assert len(by_header) > FLIPS // 4  # lengths, the end, the counter; not a letter of a name, nor a weight
    done = catalog.verify("run", digest=True)
    assert {damage.path for damage in done.damaged} == set(map(str, flipped))
    assert {damage.rule for damage in done.damaged} == {
        Rule.UNREADABLE,
        Rule.DIGEST_MISMATCH,
    }
    assert done.checked == len(paths)
    marked = {file.path for file in catalog.files("run") if file.state is FileState.DAMAGED}
    assert marked == set(map(str, flipped))


def test_what_is_found_is_marked_and_passed_over(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path)
    cut, flipped, gone = (job.folder(0) / name for name in ("net-2_5.ckpt", "net-1_10.ckpt", "net-1_5.ckpt"))
    os.truncate(cut, 50)
    flip(flipped, 40)
    gone.unlink()
    done = catalog.verify("run", digest=True)
    assert [(damage.path, damage.rule, damage.detail) for damage in done.damaged] == [
        (str(flipped), Rule.DIGEST_MISMATCH, "has other bytes than those recorded"),
        (str(gone), Rule.MISSING_FILE, "is gone"),
        (str(cut), Rule.SIZE_MISMATCH, "has 50 bytes, 106 were recorded"),
    ]
    by_path = {file.path: (file.state, file.problem) for file in catalog.files("run")}
    assert by_path[str(cut)] == (FileState.DAMAGED, Rule.SIZE_MISMATCH)
    assert by_path[str(flipped)] == (FileState.DAMAGED, Rule.DIGEST_MISMATCH)
    assert by_path[str(gone)] == (FileState.MISSING, None)
    resolution = catalog.resolve("run")
    assert resolution.plan is None
    rules = {each.global_step: each.reasons[0].rule for each in resolution.rejections}
    assert rules == {15: Rule.SIZE_MISMATCH, 10: Rule.DIGEST_MISMATCH, 5: Rule.MISSING_FILE}


def test_damage_is_told_until_it_is_repaired_and_what_is_gone_once(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path)
    flip(job.folder(0) / "net-1_10.ckpt", 40)
    (job.folder(1) / "net-1_5.ckpt").unlink()
    assert len(catalog.verify("run", digest=True).damaged) == 2
    assert [each.rule for each in catalog.verify("run").damaged] == [Rule.DIGEST_MISMATCH]


@pytest.mark.parametrize("keep_time", [True, False])
@pytest.mark.parametrize("digest", [True, False])
def test_what_is_brought_back_is_whole_again(catalog: Catalog, tmp_path: Path, keep_time: bool, digest: bool) -> None:  # noqa: FBT001
    """By its digest, also where it has another time; files that are marked are read whether or not digests are."""
    job = saved(catalog, tmp_path / "ckpt", 5, 10, 15)
    shutil.copytree(job.directory, tmp_path / "copy")
    damaged, gone = job.folder(0) / "net-2_5.ckpt", job.folder(1) / "net-1_10.ckpt"
    flip(damaged, 40)
    gone.unlink()
    assert len(catalog.verify("run", digest=True).damaged) == 2
    assert catalog.resolve("run").plan.global_step == 5  # type: ignore[union-attr]
    long_ago = time.time() - 7200
    for path in (damaged, gone):
        copy = shutil.copy2 if keep_time else shutil.copy
        copy(tmp_path / "copy" / path.relative_to(job.directory), path)
        if not keep_time:
            os.utime(path, (long_ago, long_ago))
    done = catalog.verify("run", digest=digest)
    assert done.damaged == ()
    back = {str(damaged)} if keep_time else {str(damaged), str(gone)}  # the other one reconciliation knows by its time
    assert set(done.whole_again) >= {str(damaged)}
    assert set(done.whole_again) <= back | {str(gone)}
    assert set(states(catalog).values()) == {(FileState.COMPLETE, None)}
    assert catalog.resolve("run").plan.global_step == 15  # type: ignore[union-attr]
    assert catalog.verify("run", digest=True).whole_again == ()


def test_a_catalog_made_anew_knows_of_the_damage(catalog: Catalog, tmp_path: Path) -> None:
    """By the journals; and of what is whole again once verify has looked."""
    job = saved(catalog, tmp_path / "ckpt")
    path = job.folder(0) / "net-2_5.ckpt"
    before = path.read_bytes()
    flip(path, 40)
    catalog.verify("run", digest=True)
    anew = connect(str(tmp_path / "anew.db"))
    anew.scan(job.directory, run="run")
    assert {file.path for file in anew.files("run") if file.state is FileState.DAMAGED} == {str(path)}
    status = path.stat()
    path.write_bytes(before)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert anew.verify("run").whole_again == (str(path),)
    third = connect(str(tmp_path / "third.db"))
    third.scan(job.directory, run="run")
    assert set(states(third).values()) == {(FileState.COMPLETE, None)}
    assert catalog.resolve("run").plan == third.resolve("run").plan
    flip(path, 40)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(third.verify("run", digest=True).damaged) == 1
    for each in (catalog, anew, connect(str(tmp_path / "fourth.db"))):
        each.scan(job.directory, run="run")
        assert {file.path for file in each.files("run") if file.state is FileState.DAMAGED} == {str(path)}


def test_what_was_written_again_with_the_same_bytes_is_whole_and_known_by_its_new_time(
    catalog: Catalog, tmp_path: Path
) -> None:
    job = saved(catalog, tmp_path, 5)
    path = job.folder(0) / "net-1_5.ckpt"
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert catalog.verify("run").damaged == ()
    assert {file.mtime_ns for file in catalog.files("run") if file.path == str(path)} == {1_700_000_000 * 10**9}


def test_a_file_of_another_step_under_the_same_name_is_damage(catalog: Catalog, tmp_path: Path) -> None:
    """Same size, another state: by the counter inside, also without digests and with the recorded time."""
    job = saved(catalog, tmp_path, 5)
    path = job.folder(0) / "net-1_5.ckpt"
    status = path.stat()
    ckpt_bytes.write(path, 6)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (damage,) = catalog.verify("run").damaged
    assert (damage.rule, damage.detail) == (Rule.DIGEST_MISMATCH, "holds the state after 6 updates, 5 were recorded")
    assert catalog.resolve("run").rejections[0].reasons[0].rule is Rule.DIGEST_MISMATCH


def test_a_counter_that_the_user_appended_is_not_compared(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run")
    path = tmp_path / "net-1_5.ckpt"
    content = ckpt_bytes.value("weight", "Float32", (), struct.pack("<f", 1))
    path.write_bytes(content + ckpt_bytes.value("global_step", "Int64", (), struct.pack("<q", 77)))
    launch.register(path, global_step=5, optimizer_step=5)
    assert catalog.verify("run", digest=True).damaged == ()


def test_bytes_that_were_registered_are_right_whatever_the_reader_makes_of_them(
    catalog: Catalog, tmp_path: Path
) -> None:
    launch = catalog.join("run")
    for name, content in (("a-1_5.ckpt", b"no format at all"), ("b-1_5.ckpt", b"\xd8\x5e\x3a\x7f encrypted")):
        (tmp_path / name).write_bytes(content)
        launch.register(tmp_path / name, global_step=5)
    for digest in (False, True):
        assert catalog.verify("run", digest).damaged == ()


def test_what_the_catalog_does_not_know_is_told_and_is_no_damage(catalog: Catalog, tmp_path: Path) -> None:
    """Unless it is young: then it may be being registered."""
    job = saved(catalog, tmp_path)
    strange = ckpt_bytes.write(job.folder(0) / "other-1_1.ckpt", 1)
    (job.folder(0) / "notes.txt").write_text("mine")
    assert catalog.verify("run").unknown == ()
    os.utime(strange, (1_700_000_000, 1_700_000_000))
    done = catalog.verify("run")
    assert [each.path for each in done.unknown] == [str(strange)]
    assert done.damaged == ()


def test_digests_that_nobody_took_are_taken_and_compared_from_then_on(catalog: Catalog, tmp_path: Path) -> None:
    tree = tmp_path / "job"
    for step in (3, 6, 9):
        ckpt_bytes.write(tree / f"net-{step}_1.ckpt", step)
    catalog.scan(tree, run="run", world_size=1)
    assert {file.digest for file in catalog.files("run")} == {None}
    assert catalog.verify("run").new_digests == 0
    done = catalog.verify("run", digest=True)
    assert (done.checked, done.new_digests, done.damaged) == (3, 3, ())
    assert {file.digest for file in catalog.files("run")} == {files.digest(str(path)) for path in tree.glob("*.ckpt")}
    assert not (tree / ".ckptstore").exists()  # nothing is written beside what was only scanned and is whole
    flip(tree / "net-6_1.ckpt", 40)
    done = catalog.verify("run", digest=True)
    assert ([Path(each.path).name for each in done.damaged], done.new_digests) == (["net-6_1.ckpt"], 0)


def test_a_scan_still_notices_what_was_written_again_after_its_digest_was_taken(
    catalog: Catalog, tmp_path: Path
) -> None:
    tree = tmp_path / "job"
    for step in (3, 6, 9):
        path = ckpt_bytes.write(tree / f"net-{step}_1.ckpt", step)
        os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))
    catalog.scan(tree, run="run", world_size=1)
    catalog.verify("run", digest=True)
    ckpt_bytes.write(path, 9, weight=2.0)
    os.utime(path, (1_700_000_100, 1_700_000_100))
    assert [file.path for file in catalog.scan(tree, run="run").adopted] == [str(path)]
    assert catalog.verify("run", digest=True).damaged == ()


def test_the_crc_in_a_file_is_compared_where_no_digest_is_known(catalog: Catalog, tmp_path: Path) -> None:
    import zlib

    tree = tmp_path / "job"
    for step in (3, 6, 9):
        path = ckpt_bytes.write(tree / f"net-{step}_1.ckpt", step)
        content = path.read_bytes()
        path.write_bytes(content + b"crc_num" + zlib.crc32(content).to_bytes(10, "big"))
    catalog.scan(tree, run="run", world_size=1)
    flip(path, 40)
    assert catalog.verify("run").damaged == ()
    (damage,) = catalog.verify("run", digest=True).damaged
    assert (damage.path, damage.rule) == (str(path), Rule.DIGEST_MISMATCH)
    assert "CRC32" in damage.detail


def test_an_error_of_the_disk_is_damage_and_what_cannot_be_looked_at_is_not(catalog: Catalog, tmp_path: Path) -> None:
    """Reading the first bytes of a process's memory is a real EIO; a link to itself a real ELOOP."""
    launch = catalog.join("run")
    whole = launch.register(ckpt_bytes.write(tmp_path / "net-1_5.ckpt", 5), global_step=5)
    bad, circle = tmp_path / "net-1_6.ckpt", tmp_path / "net-1_7.ckpt"
    bad.symlink_to("/proc/self/mem")
    circle.symlink_to(circle)
    records = [
        replace(whole, path=str(bad), global_step=6, size=0, mtime_ns=None),
        replace(whole, path=str(circle), global_step=7),
    ]
    with catalog.database.write() as connection:
        writes.adopt_checkpoints(connection, records, datetime.now(timezone.utc))
    done = catalog.verify("run", digest=True)
    assert [(each.path, each.rule) for each in done.damaged] == [(str(bad), Rule.UNREADABLE)]
    assert "Input/output error" in done.damaged[0].detail
    assert [(each.path, each.reason) for each in done.troubles] == [(str(circle), "Too many levels of symbolic links")]
    assert done.checked == 2
    assert states(catalog) == {
        "net-1_5.ckpt": (FileState.COMPLETE, None),
        "net-1_6.ckpt": (FileState.DAMAGED, Rule.UNREADABLE),
        "net-1_7.ckpt": (FileState.COMPLETE, None),
    }


def test_a_directory_that_is_not_mounted_is_no_damage(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path / "ckpt", 5, 10)
    job.folder(1).rename(tmp_path / "away")
    done = catalog.verify("run")
    assert done.damaged == ()
    assert {each.reason for each in done.troubles} == {"its directory is not there: it may not be mounted"}
    (tmp_path / "away").rename(job.folder(1))
    assert catalog.verify("run", digest=True).troubles == ()
    assert set(states(catalog).values()) == {(FileState.COMPLETE, None)}


def test_what_a_later_launch_writes_over_is_its_save_and_no_damage(catalog: Catalog, tmp_path: Path) -> None:
    """Registered or not yet: a name may be used again."""
    job = saved(catalog, tmp_path, 5, 10)
    second = job.start()
    from ckptstore.core.model import Kind

    for launch in second:
        folder = str(job.folder(launch.rank))
        launch.add_source(folder, kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
    path = ckpt_bytes.write(job.folder(0) / "net-1_5.ckpt", 5, weight=3.0)
    done = catalog.verify("run", digest=True)
    assert done.damaged == ()
    assert [each.path for each in done.skipped] == [str(path)]
    second[0].register(path, global_step=5, optimizer_step=5)
    done = catalog.verify("run", digest=True)
    assert (done.damaged, done.skipped, done.checked) == ((), (), 4)


def test_what_is_removed_or_registered_again_while_it_is_looked_at_stays_as_it_is(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ranks = begun(catalog, tmp_path, 5, 10)
    first, second = job.folder(0) / "net-1_5.ckpt", job.folder(0) / "net-1_10.ckpt"
    by_path = {file.path: file for file in catalog.files("run")}
    flip(first, 40)
    flip(second, 40, keep_time=False)
    looked = verifier.Verifier._marked

    def meanwhile(self: verifier.Verifier, run_id: int, seen: list[object]) -> object:
        ranks[0].register(second, global_step=10, optimizer_step=10)
        with catalog.database.write() as connection:
            writes.mark(connection, [by_path[str(first)].id], FileState.MISSING, at=datetime.now(timezone.utc))
        return looked(self, run_id, seen)  # type: ignore[arg-type]

    monkeypatch.setattr(verifier.Verifier, "_marked", meanwhile)
    done = catalog.verify("run", digest=True)
    assert (done.damaged, done.checked) == ((), 2)
    found = {file.path: file for file in catalog.files("run")}
    assert found[str(first)].state is FileState.MISSING
    assert (found[str(second)].state, found[str(second)].digest) == (FileState.COMPLETE, files.digest(str(second)))


def test_a_sample_has_the_newest_state_what_is_newer_and_what_is_damaged(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ranks = begun(catalog, tmp_path, *range(1, 41))
    flip(job.folder(1) / "net-1_1.ckpt", 40)
    catalog.verify("run", digest=True)
    ranks[0].register(job.write(ranks[0], 50), global_step=50)
    looked_at: list[str] = []

    def listen(file: Checkpoint, **how: Any) -> object:
        looked_at.append(file.path)
        return examine(file, **how)

    monkeypatch.setattr("ckptstore.ops.verifier.examine", listen)
    done = catalog.verify("run", sample=0.1)
    always = {str(job.folder(0) / "net-5_10.ckpt"), str(job.folder(1) / "net-1_1.ckpt")}
    always |= {str(job.folder(rank) / "net-4_10.ckpt") for rank in (0, 1)}
    assert always <= set(looked_at)
    assert done.checked == len(looked_at) == 4 + 8  # of the 77 others a tenth, rounded up
    first = set(looked_at)
    looked_at.clear()
    catalog.verify("run", sample=0.1)
    assert set(looked_at) != first  # one in 10^10 is as unlucky
    assert catalog.verify("run", sample=1).checked == 81
    for wrong in (0, -1, 1.5, float("nan")):
        with pytest.raises(UsageError, match="as 0.1 or 10%"):
            catalog.verify("run", sample=wrong)


def test_every_run_is_verified_where_none_is_named(catalog: Catalog, tmp_path: Path) -> None:
    assert catalog.verify().checked == 0
    saved(catalog, tmp_path / "one")
    launch = catalog.join("other")
    path = launch.register(ckpt_bytes.write(tmp_path / "two" / "net-1_5.ckpt", 5), global_step=5).path
    Path(path).unlink()
    done = catalog.verify()
    assert (done.runs, done.checked, [each.path for each in done.damaged]) == (("other", "run"), 7, [path])
    with pytest.raises(UnknownRunError, match="no run 'nobody'"):
        catalog.verify("nobody")


def test_a_catalog_that_fails_in_the_middle_keeps_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_verify, "MOST_FILES", 2)
    home = tmp_path / "home"
    home.mkdir()
    url = str(home / "catalog.db")
    saved(connect(url), tmp_path / "ckpt", *range(1, 11))
    finish = verifier.Verifier._finish

    def lose_the_catalog(self: verifier.Verifier, claimed: verifier._Claimed) -> int:
        left = finish(self, claimed)
        if self.own >= 6:
            home.rename(tmp_path / "away")
        return left

    with monkeypatch.context() as patch:
        patch.setattr(verifier.Verifier, "_finish", lose_the_catalog)
        with pytest.raises(CatalogUnavailableError, match="kept: the same command goes on from there") as raised:
            connect(url).verify("run", digest=True)
    assert f"there is no directory {home}" in str(raised.value)
    (tmp_path / "away").rename(home)
    done = connect(url).verify("run", digest=True)
    assert (done.checked, done.own, done.damaged) == (20, 14, ())


def age(catalog: Catalog, how_much: timedelta) -> None:
    """As if all that was done for the verifications of the catalog had been done so much earlier."""
    for table, names in (
        (tables.verifications, ("created_at", "ended_at")),
        (tables.verification_portions, ("done_at", "claimed_until")),
    ):
        with catalog.database.write() as connection:
            for row in connection.execute(sa.select(table)).all():
                chosen = sa.and_(*(column == getattr(row, column.name) for column in table.primary_key))
                earlier = {name: getattr(row, name) - how_much for name in names if getattr(row, name) is not None}
                if earlier:
                    connection.execute(table.update().where(chosen).values(earlier))


def interrupted(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, *, after: int) -> int:
    """A verification that is stopped, as by Ctrl-C; how many files it had looked at and recorded."""
    count = 0
    finish = verifier.Verifier._finish

    def stop(self: verifier.Verifier, claimed: verifier._Claimed) -> int:
        nonlocal count
        left = finish(self, claimed)
        count += len(claimed.looks)
        if count >= after:
            raise KeyboardInterrupt
        return left

    with monkeypatch.context() as patch:
        patch.setattr(verifier.Verifier, "_finish", stop)
        with pytest.raises(KeyboardInterrupt):
            catalog.verify("run", digest=True)
    return count


def test_an_interrupted_verification_goes_on_and_tells_all_that_was_found(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_verify, "MOST_FILES", 2)
    job = saved(catalog, tmp_path, *range(1, 11))
    newest, oldest = job.folder(0) / "net-1_10.ckpt", job.folder(0) / "net-1_1.ckpt"
    flip(newest, 40)
    flip(oldest, 40)
    before = interrupted(catalog, monkeypatch, after=6)
    done = catalog.verify("run", digest=True)
    assert (done.checked, done.own) == (20, 20 - before)
    assert {each.path for each in done.damaged} == {str(newest), str(oldest)}
    assert catalog.verify("run", digest=True).own == 20  # that one has ended


def test_an_old_verification_is_not_gone_on_with(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one of another kind."""
    monkeypatch.setattr(to_verify, "MOST_FILES", 2)
    saved(catalog, tmp_path, *range(1, 11))
    before = interrupted(catalog, monkeypatch, after=6)
    assert catalog.verify("run").own == 20
    age(catalog, timedelta(hours=20))
    assert catalog.verify("run", digest=True).own == 20 - before
    interrupted(catalog, monkeypatch, after=6)
    age(catalog, timedelta(hours=25))
    assert catalog.verify("run", digest=True).own == 20
    age(catalog, timedelta(days=3))
    catalog.verify("run", digest=True)
    with catalog.database.read() as connection:
        kept = sa.select(sa.func.count()).select_from(tables.verifications)
        assert connection.execute(kept).scalar() == 1  # the others are forgotten


def test_a_claim_of_another_host_lapses(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a live one it does not: it is waited for."""
    monkeypatch.setattr(to_verify, "MOST_FILES", 2)
    saved(catalog, tmp_path, *range(1, 11))
    task = to_verify.begin(catalog.database, "run", digest=True, sample=None)

    def claim() -> verifications.Portion | None:
        with catalog.database.write() as connection:
            now = verifications.clock(connection)
            until = now + verifier.LEASE
            return verifications.claim(
                connection, [task.verification.id], "elsewhere|1|1|1", now=now, until=until, is_dead=lambda _: False
            )

    portion = claim()
    assert portion is not None
    waited: list[float] = []

    def lapse(seconds: float) -> None:
        waited.append(seconds)
        with catalog.database.write() as connection:
            lapsed = verifications.clock(connection) - timedelta(seconds=1)
            connection.execute(tables.verification_portions.update().values(claimed_until=lapsed))

    monkeypatch.setattr("ckptstore.ops.verifier.time.sleep", lapse)
    done = catalog.verify("run", digest=True)
    assert (done.checked, done.own, len(waited)) == (20, 20, 1)
    with catalog.database.write() as connection:  # who lost it cannot record it any more
        assert not verifications.finish(connection, portion, "elsewhere|1|1|1", {}, verifications.clock(connection))
