"""What a journal could not take, since its disk was full or failed, is in it as soon as it can be written again."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog import directories
from ckptstore.disk.name_claims import FOLDER
from ckptstore.journal.jsonl import JournalWriter, journals_in
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.contents import WORK, contents
from tests.jobs import Job, begun


@contextmanager
def full(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC) -> Iterator[None]:
    """No journal can be written meanwhile."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(JournalWriter, "append", refuse)
        yield


def next_sign_of_life(job: Job, ranks: Sequence[Any]) -> None:
    ranks[0].signs.begin()
    ranks[0].signs.end()


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(lambda job, ranks: job.save(list(ranks), 20), id="the next save"),
        pytest.param(lambda job, _: job.start(), id="the next start"),
        pytest.param(lambda job, _: job.catalog.sync("run"), id="a sync"),
        pytest.param(lambda _, ranks: ranks[0].adopt(), id="its end"),
        next_sign_of_life,
    ],
)
def test_what_one_full_disk_kept_out_of_a_journal(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: Any
) -> None:
    """Before, the line was lost: another catalog passed the newest state over, and its gc removed one of the floor."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, 10)
    with full(monkeypatch):
        job.save(ranks[:1], 15)
    job.save(ranks[1:], 15)
    after(job, ranks)
    assert contents(catalog)["unwritten"] == []
    newest = catalog.resolve("run").plan
    other.scan(tmp_path / "ckpt")
    assert other.resolve("run").plan == newest
    assert newest.global_step in (15, 20)
    catalog.sync(tmp_path / "ckpt")
    assert contents(other, but=WORK) == contents(catalog, but=WORK)
    kept = [verdict.state.global_step for verdict in other.plan_gc("run", Policy(keep_last=2)).decision.keep]
    assert 15 in kept


@pytest.mark.parametrize(
    "say", [lambda job: job.begin(), lambda job: job.catalog.pin("run", 5)], ids=["where a launch starts", "a pin"]
)
def test_what_was_said_while_the_disk_was_full_is_told_later(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[[Job], object]
) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10)
    with full(monkeypatch):
        say(job)
    catalog.sync("run")
    other.scan(tmp_path / "ckpt")
    assert other.resolve("run") == catalog.resolve("run")
    assert contents(other, but=WORK) == contents(catalog, but=WORK)


def test_nothing_is_written_where_the_directory_is_not_there(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty mount point with a journal in it would pass for a directory whose files were deleted."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 5)
    with full(monkeypatch):
        job.save(ranks, 10)
    (tmp_path / "ckpt").rename(tmp_path / "away")
    job.folder(0).mkdir(parents=True)
    catalog.sync("run")
    assert not (job.folder(0) / FOLDER).exists()
    shutil.rmtree(tmp_path / "ckpt")
    (tmp_path / "away").rename(tmp_path / "ckpt")
    catalog.sync("run")
    assert contents(catalog)["unwritten"] == []


@pytest.mark.parametrize("of_all", [False, True], ids=["a directory for each rank", "one directory"])
def test_a_rank_writes_what_its_own_journal_missed_and_no_other_rank_s(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, of_all: bool
) -> None:
    """A disk that is full is so for all ranks, and each wrote the lines of all when it had room again."""
    job = Job(catalog, tmp_path / "ckpt")
    if of_all:
        monkeypatch.setattr(job, "folder", lambda _: tmp_path / "ckpt")
    ranks = job.begin()
    with full(monkeypatch):
        for launch in ranks:
            launch.register(job.write(launch, 10, name=f"{launch.rank}.ckpt"), global_step=10)
    job.save(ranks[:1], 15)
    assert {row["line"].get("rank", 1) for row in contents(catalog)["unwritten"]} == {1}


def test_directories_that_are_gone_are_sought_together_and_only_for_their_own_run(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was sought among the paths of all files, at each start of any run."""
    job, ranks = begun(catalog, tmp_path / "lost", 5, world_size=3)
    begun(catalog, tmp_path / "ckpt", 5, run="another")
    with full(monkeypatch):
        job.save(ranks, 10)
    shutil.rmtree(tmp_path / "lost")
    sought: list[set[str]] = []
    seek = directories.of_identities
    monkeypatch.setattr(directories, "of_identities", lambda *asked: sought.append(asked[1]) or seek(*asked))
    catalog.sync("another")
    assert sought == []
    catalog.sync("run")
    assert len(sought) == 1


def test_what_one_journal_missed_is_written_once_that_one_takes_lines_again(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record in another directory was the only occasion, though the disk of this one was still full then."""
    job, (launch,) = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    append = JournalWriter.append

    def only_elsewhere(writer: JournalWriter, *told: Any) -> Any:
        if writer._directory == str(job.folder(0)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return append(writer, *told)

    elsewhere = ckpt_bytes.write(tmp_path / "elsewhere/net-1_7.ckpt", 7, 7)
    with monkeypatch.context() as full_here:
        full_here.setattr(JournalWriter, "append", only_elsewhere)
        job.save([launch], 6)
        launch.register(elsewhere, global_step=7)
    assert contents(catalog)["unwritten"]
    job.save([launch], 8)
    assert contents(catalog)["unwritten"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a directory of another user")
def test_root_writes_what_a_journal_in_another_user_s_directory_missed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 5)
    with full(monkeypatch):
        job.save(ranks, 10)
    for rank in (0, 1):
        os.chown(job.folder(rank), 1001, 1001)
    catalog.sync("run")
    assert contents(catalog)["unwritten"] == []


def test_what_the_disk_has_no_room_for_is_written_later_and_sought_nowhere_else(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line fits into the last block of a journal, and no new journal does. It counted as written then."""
    job, (launch,) = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    sought: list[object] = []
    monkeypatch.setattr(directories, "of_identities", lambda *asked: sought.append(asked) or {})
    with full(monkeypatch):
        job.save([launch], 10)
        next_sign_of_life(job, [launch])
    with monkeypatch.context() as full_disk:
        full_disk.setattr(JournalWriter, "_begun", lambda *_: os.open(tmp_path / "no directory" / "here", os.O_RDONLY))
        job.save([launch], 15)
    assert contents(catalog)["unwritten"]
    next_sign_of_life(job, [launch])
    assert contents(catalog)["unwritten"] == sought == []


def test_each_try_on_a_full_disk_leaves_no_empty_journal(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk has room for names: each rank left one empty file at each sign of life, and every start lists all."""
    job, (launch,) = begun(catalog, tmp_path / "ckpt", 5, world_size=1)

    def has_no_room(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = journals_in(str(job.folder(0)))
    with monkeypatch.context() as full_disk:
        full_disk.setattr(JournalWriter, "_write", has_no_room)
        job.save([launch], 10)
        next_sign_of_life(job, [launch])
        catalog.sync("run")
        assert contents(catalog)["unwritten"]
        assert journals_in(str(job.folder(0))) == before
    next_sign_of_life(job, [launch])
    assert contents(catalog)["unwritten"] == []
