"""What is over has a summary: a start by it is the start by all, and it follows what is on the disk now."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog.engine import in_memory
from ckptstore.core.model import FileState
from ckptstore.disk.name_claims import FOLDER
from ckptstore.journal import jsonl, summaries, sync
from ckptstore.journal.sync import found_below
from ckptstore.retention.policy import Policy
from tests.contents import WORK, contents
from tests.jobs import Job, begun
from tests.journal.builders import states

pytestmark = pytest.mark.of_files


def summarise(directory: Path) -> None:
    for folder in directory.rglob(FOLDER):
        summaries.make(str(folder.parent), "")


def segments(directory: Path) -> dict[str, int]:
    return found_below([str(directory)])[0]


def read_by(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> list[str]:
    """The segments that were opened for it."""
    opened: list[str] = []
    read = jsonl.read

    def noted(path: str, *asked: Any) -> Any:
        opened.append(path)
        return read(path, *asked)

    with monkeypatch.context() as patched:
        patched.setattr(jsonl, "read", noted)
        work()
    return opened


def by_journals(directory: Path) -> Catalog:
    """A catalog that a start made of what it found."""
    anew = Catalog(in_memory())
    sync.take_up_found(anew.database, segments(directory))
    return anew


def a_story(job: Job, catalog: Catalog) -> None:
    """Saves of which gc removed some, MindSpore deleted one, one was saved again, and one was brought back."""
    first = job.begin()
    job.save(first, 5, 10, 15, 20, 25, 30)
    first[0].live_files.notice_vanished(job.folder(0))
    Path(catalog.show("run", 5)[0].path).unlink()
    first[0].live_files.notice_vanished(job.folder(0))
    catalog.pin("run", 10)
    catalog.tag("run", 30, "best")
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=3)))
    assert catalog.undo("run").files
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)))
    catalog.purge("run", now=True)
    second = job.begin()
    job.save(second, 35, 40)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=3)))


def test_a_start_by_summaries_is_that_by_all(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(catalog, tmp_path / "ckpt", layout="data_parallel")
    a_story(job, catalog)
    summarise(job.directory)
    assert read_by(monkeypatch, lambda: by_journals(job.directory)) == []
    anew = by_journals(job.directory)
    assert anew.resolve("run") == catalog.resolve("run")
    there, told = (
        {step: rest for step, found in states(each).items() if (rest := found - {FileState.MISSING})}
        for each in (catalog, anew)
    )
    assert told == there
    for name in ("pins", "tags", "policies", "renamed", "forgotten", "endings", "outcomes", "sources", "launches"):
        assert contents(anew)[name] == contents(catalog)[name], name
    assert anew.undo("run").files == 2
    for each in (anew, catalog):
        each.sync(job.directory)  # all of it
    other.scan(job.directory)
    assert contents(anew, but=WORK) == contents(other, but=WORK) == contents(catalog, but=WORK)


def _made(job: Job) -> list[summaries.Summary]:
    summarise(job.directory)
    return list(summaries.of(segments(job.directory)))


def _files(summary: summaries.Summary) -> list[int]:
    return [line["global_step"] for line in summary.contents.entries if line["t"] == "file"]


def test_files_that_somebody_said_are_gone_are_in_no_summary(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path, *range(1, 41), world_size=1)
    for path in job.folder(0).glob("net-[1-3]_*.ckpt"):
        path.unlink()
    ranks[0].live_files.notice_vanished(job.folder(0))
    for step in (35, 40):  # nobody said so: the newest is named as what a start passes over
        Path(catalog.show("run", step)[0].path).unlink()
    (summary,) = _made(job)
    assert _files(summary) == [1, 1, 31, 32, 33, 34, 36, 37, 38, 39, 40], "when it was recorded, and that it is gone"


@pytest.mark.parametrize("in_one_directory", [True, False])
@pytest.mark.parametrize("is_said", [True, False])
def test_a_summary_tells_that_a_state_was_complete_once(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_said: bool, in_one_directory: bool
) -> None:
    """The newest files of the ranks are of two steps, and all others are gone: no start begins at step 0 for that."""
    job = Job(catalog, tmp_path)
    if in_one_directory:
        monkeypatch.setattr(job, "folder", lambda _: tmp_path)
    ranks = job.begin()
    for rank, step in ((ranks[0], 5), (ranks[1], 5), (ranks[1], 10)):
        path = job.write(rank, step, name=f"of_{rank.rank}-{step // 5}_5.ckpt")
        rank.register(path, global_step=step)
        path.unlink()
    for rank in ranks if is_said else ():
        rank.live_files.notice_vanished(job.folder(rank.rank))
    _made(job)
    assert by_journals(job.directory).resolve("run") == catalog.resolve("run")


def test_files_that_gc_removed_are_in_no_summary_once_they_are_gone(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path, *range(1, 11), world_size=1)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)))
    (summary,) = _made(job)
    assert _files(summary) == list(range(1, 11))
    assert {line["t"] for line in summary.contents.entries} >= {"removal", "gc"}
    catalog.purge("run", now=True)
    (summary,) = _made(job)
    assert _files(summary) == [9, 10]
    assert "removal" not in {line["t"] for line in summary.contents.entries}


def test_a_file_in_the_trash_that_is_no_checkpoint_is_in_a_summary(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path, 5, world_size=1)
    half = job.folder(0) / "net-1_9.tmp"
    half.touch()
    os.utime(half, (1, 1))
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=1)))
    assert not half.exists()
    summarise(job.directory)
    assert by_journals(job.directory).undo("run").files == 1
    assert half.exists()


def torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def changed(path: Path) -> None:
    text = bytearray(path.read_bytes())
    text[-40] ^= 1
    path.write_bytes(text)


def of_another_user(path: Path) -> None:
    os.chown(path, 1001, 1001)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("harm", [torn, changed, of_another_user, a_pipe, Path.unlink])
def test_a_summary_that_is_none_costs_time_only(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None]
) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10)
    _made(job)
    for path in job.directory.rglob("summary-*.jsonl"):
        harm(path)
    assert sorted(read_by(monkeypatch, lambda: by_journals(job.directory))) == sorted(segments(job.directory))
    assert by_journals(job.directory).resolve("run") == catalog.resolve("run")
    job.start()


def test_an_unfinished_summary_is_written_over_no_other_file(catalog: Catalog, tmp_path: Path) -> None:
    """Whoever may write in the folder knows its name, and a launch of root overwrote the file that was linked there."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    os.link(victim, job.folder(0) / FOLDER / f"summary-{os.geteuid()}.new")
    assert len(_made(job)) == 1
    assert victim.read_text() == "mine"


def test_a_segment_that_has_grown_since_is_read(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, 10)
    _made(job)
    job.save(ranks[:1], 15)
    own = ranks[0].recorder._writers[str(job.folder(0))].path
    assert read_by(monkeypatch, lambda: by_journals(job.directory)) == [own]
    assert by_journals(job.directory).resolve("run") == catalog.resolve("run")
    assert {file.global_step for file in by_journals(job.directory).files("run")} == {5, 10, 15}


def test_the_launch_that_writes_now_is_in_no_summary(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path, 5, world_size=1)
    summaries.make(str(job.folder(0)), ranks[0].key)
    assert not list(tmp_path.rglob("summary-*"))
    (summary,) = _made(job)
    assert summary.covers == segments(job.directory)


def test_a_catalog_that_has_read_it_opens_nothing_again(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10)
    anew = by_journals(job.directory)
    _made(job)
    whole = by_journals(job.directory)
    with monkeypatch.context() as patched:
        patched.setattr(jsonl, "_opened", lambda path: pytest.fail(f"{path} was opened"))
        for each in (catalog, anew, whole):
            sync.take_up_found(each.database, segments(job.directory))
            assert each.resolve("run").plan.global_step == 10


def test_a_newer_programs_segment_has_no_summary(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path, 5, world_size=1)
    (path,) = segments(tmp_path)
    with Path(path).open("ab") as file:
        file.write(jsonl.encode({"t": "pin", "v": jsonl.VERSION + 1}))
    assert [summary.covers for summary in _made(job)] in ([], [{}])


def test_the_next_launch_makes_them_once_it_has_saved(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it goes on from what it summarised before: a past that is over is read once for it."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    before = segments(job.directory)
    second: list[Any] = []
    assert not set(before) & set(read_by(monkeypatch, lambda: second.extend(job.begin())))
    assert set(before) <= set(read_by(monkeypatch, lambda: job.save(second, 15)))
    assert not set(before) & set(read_by(monkeypatch, lambda: job.save(job.begin(), 20)))


def test_what_undo_brought_back_where_a_later_file_was_is_in_it(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path, 5, 10, world_size=1)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=1, floor=1)), allow_mass_delete=True)
    second = job.begin()
    path = job.write(second[0], 5, name="net-1_5.ckpt")  # the name of the one in the trash
    second[0].register(path, global_step=5)
    path.unlink()
    second[0].live_files.notice_vanished(job.folder(0))
    assert catalog.undo("run").files == 1
    summarise(job.directory)
    for each in (catalog, by_journals(job.directory)):
        known = {file.launch: file.state for file in each.files("run") if file.global_step == 5}
        assert known.pop(second[0].id) is FileState.MISSING
        assert list(known.values()) == [FileState.COMPLETE]
