"""A launch that starts without a catalog starts where it would have with one, and all its ranks alike."""

import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog.engine import Database, open_database
from ckptstore.core.model import Kind
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.run_directories import remember
from ckptstore.errors import NothingRestorableError, RefusedError, UsageError
from ckptstore.journal import jsonl
from ckptstore.journal.recorder import shared
from ckptstore.resume.resolver import Query
from ckptstore.training.start import Start, begin, decide, start_from_json
from tests import ckpt_bytes
from tests.cli.advice import follow
from tests.jobs import Job, begun
from tests.journal.builders import make_unreadable

NOBODY_LISTENS = "postgresql://nobody@127.0.0.1:1/nowhere"


def decided(
    database: Database, directory: Path, world_size: int, steps: dict[str, int], layout: str | None, **asked: Any
) -> Start:
    """What rank 0 of a new launch decides, by the catalog or, where it cannot be used, by the journals below."""
    launch = begin(
        database, "run", rank=0, world_size=world_size, launch_id="N", layout=layout, directories=[directory]
    )
    launch.set_steps_per_epoch(**steps)
    start = decide(launch, [directory], Query(**asked))
    received = start_from_json(json.loads(json.dumps(start.to_json())))
    assert received == start
    assert received.by_journals == (database.name == open_database(NOBODY_LISTENS).name)
    return start


def shown(start: Start) -> dict[str, Any]:
    """All of a start but its moments, and by what it was decided."""
    sent = start.to_json()
    assert sent["launch"].pop("created_at")
    assert sent.pop("at")
    del sent["by_journals"]
    return sent


def a_job(catalog: Catalog, directory: Path) -> None:
    """Steps 5, 10 and 15 of two ranks; step 15 could not be loaded by the second launch."""
    job = Job(catalog, directory, layout="data_parallel")
    ranks = job.start(resume=False)
    for launch in ranks:
        launch.set_steps_per_epoch(10, batch_size=8, shards=2)
        launch.resolve()
        job.announce(launch)
    job.save(ranks, 5, 10, 15)
    for launch in job.start():
        plan = launch.resolve()
        job.announce(launch)
        launch.load_failed(plan.ranks[launch.rank].source, "Input/output error")


@pytest.mark.parametrize(
    ("asked", "steps", "starts"),
    [
        ({}, {"steps": 10, "batch_size": 8, "shards": 2}, (10, 10)),
        ({"step": 5}, {"steps": 10, "batch_size": 8, "shards": 2}, (5, 5)),
        ({"lineage": "L1"}, {"steps": 20, "batch_size": 8, "shards": 1}, (10, 20)),
        ({"step": 5, "lineage": "L1"}, {"steps": 20, "batch_size": 4, "shards": 2}, (5, 10)),
    ],
)
def test_journals_decide_as_the_catalog_does(
    catalog: Catalog, tmp_path: Path, asked: dict[str, Any], steps: dict[str, int], starts: tuple[int, int]
) -> None:
    world_size = steps["shards"]
    a_job(catalog, tmp_path / "ckpt")
    away = open_database(NOBODY_LISTENS)
    without = decided(away, tmp_path / "ckpt", world_size, steps, "data_parallel", **asked)
    by_catalog = decided(catalog.database, tmp_path / "ckpt", world_size, steps, "data_parallel", **asked)
    assert (without.plan.global_step, without.launch.start_step) == starts
    assert without.launch.branched == bool(asked)
    assert shown(without) == shown(by_catalog)


def test_what_cannot_be_restored_stops_a_start_without_a_catalog_too(catalog: Catalog, tmp_path: Path) -> None:
    a_job(catalog, tmp_path / "ckpt")
    away = open_database(NOBODY_LISTENS)
    same = {"steps": 10, "batch_size": 8, "shards": 2}
    with pytest.raises(NothingRestorableError, match="there is no such save"):
        decided(away, tmp_path / "ckpt", 2, same, "data_parallel", step=7)
    odd = {"steps": 3, "batch_size": 7, "shards": 2}
    with pytest.raises(UsageError, match="step 5 of launch L1 has no matching position in this dataset"):
        decided(away, tmp_path / "ckpt", 2, odd, "data_parallel", step=5, lineage="L1")


@pytest.mark.parametrize("behind", [0, 300], ids=["", "by a clock that is behind"])
@pytest.mark.parametrize("launches", [1, 2])
def test_a_journal_that_no_catalog_has_read_stops_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launches: int, behind: int
) -> None:
    """The catalog was lost, and the disk does not give the newest journal of rank 1: a newer state may be in it."""
    job = Job(connect(tmp_path / "lost.db"), tmp_path / "ckpt", world_size=2)
    for number in range(launches):
        job.save(job.begin(), 5 + 5 * number)
    hidden = max(jsonl.journals_in(str(job.folder(1))), key=lambda path: Path(path).stat().st_mtime_ns)
    written = Path(hidden).stat().st_mtime - behind
    os.utime(hidden, (written, written))
    same = {"steps": 10, "batch_size": 8, "shards": 2}
    make_unreadable(hidden, monkeypatch)
    with pytest.raises(RefusedError, match=f"{hidden}, which may tell of a newer state, cannot be read") as error:
        decided(connect(tmp_path / "new.db").database, tmp_path / "ckpt", 2, same, None)
    assert ("resume(step=5)" if launches == 2 else "resume(fresh=True)") in error.value.hint
    monkeypatch.undo()
    assert decided(connect(tmp_path / "new.db").database, tmp_path / "ckpt", 2, same, None).plan is not None


@pytest.mark.parametrize(("ago", "is_refused"), [(500, True), (700, False)])
def test_a_journal_that_is_older_than_the_state_stops_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ago: int, *, is_refused: bool
) -> None:
    """It is of a launch that no other journal tells of. Clocks of two machines may differ by ten minutes."""
    job, _ = begun(connect(tmp_path / "lost.db"), tmp_path / "ckpt", 5)
    saved = (job.folder(1) / "net-1_5.ckpt").stat().st_mtime
    hidden = job.folder(1) / FOLDER / "rank_1-before-0.jsonl"
    hidden.write_bytes(b"a line")
    os.utime(hidden, (saved - ago, saved - ago))
    make_unreadable(str(hidden), monkeypatch)
    same = {"steps": 10, "batch_size": 8, "shards": 2}
    with pytest.raises(RefusedError, match="may tell of a newer state") if is_refused else nullcontext():
        assert decided(connect(tmp_path / "new.db").database, tmp_path / "ckpt", 2, same, None).plan.global_step == 5


def test_a_journal_whose_launch_no_other_tells_stops_a_start(tmp_path: Path) -> None:
    """The catalog was lost, the disk of rank 0 is away, and one byte of rank 1's journal is damaged."""
    job, _ = begun(connect(tmp_path / "lost.db"), tmp_path / "ckpt", 5)
    job.folder(0).rename(tmp_path / "away")
    (path,) = jsonl.journals_in(str(job.folder(1)))
    journal = Path(path)
    whole = journal.read_bytes()
    assert whole.startswith(b'{"v":1,"t":"launch"')
    journal.write_bytes(whole[:1] + b"!" + whole[2:])
    same = {"steps": 10, "batch_size": 8, "shards": 2}
    with pytest.raises(RefusedError, match=f"{journal}, which may tell of a newer state, cannot be read: it has lines"):
        decided(connect(tmp_path / "new.db").database, tmp_path / "ckpt", 2, same, None)
    (tmp_path / "away").rename(job.folder(0))
    assert decided(connect(tmp_path / "new.db").database, tmp_path / "ckpt", 2, same, None).plan is not None


ONE = {"steps": 10, "batch_size": 8, "shards": 1}
"""The data of a single rank."""


def test_a_catalog_that_goes_away_after_the_join_does_not_make_a_run_begin_anew(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that never saw the run: the catalog told that it had states, and no journal tells where."""
    catalog = connect(sqlite_url)
    begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    launch = begin(catalog.database, "run", rank=0, world_size=1, launch_id="N", layout=None)
    launch.set_steps_per_epoch(**ONE)
    launch.let_go()
    for path in tmp_path.glob("catalog.db*"):
        path.unlink()
    (tmp_path / "catalog.db").mkdir()
    with pytest.raises(
        RefusedError,
        match="'run' has saved up to step 10, but no journal of it was found, and the catalog cannot be used",
    ):
        decide(launch)
    assert decide(launch, [tmp_path / "ckpt"]).global_step == 10


def test_a_journal_that_tells_of_an_adopted_file_stops_a_start_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second launch went on from a breakpoint that it had adopted; then the catalog was lost."""
    job, (launch,) = begun(connect(tmp_path / "lost.db"), tmp_path / "ckpt", 10, world_size=1)
    job.write(launch, 15, name="net-2_5_breakpoint.ckpt")
    assert job.begin()[0].facts.parent_step == 15
    (hidden,) = (path for path in jsonl.journals_in(str(job.folder(0))) if jsonl.SHARED in path)
    make_unreadable(hidden, monkeypatch)
    anew = connect(tmp_path / "new.db").database
    with pytest.raises(RefusedError, match=f"{hidden}, which may tell of a newer state, cannot be read"):
        decided(anew, tmp_path / "ckpt", 1, ONE, None)
    monkeypatch.undo()
    assert decided(anew, tmp_path / "ckpt", 1, ONE, None).plan.global_step == 15


def test_what_a_join_logged_of_the_catalog_its_launch_does_not_log_again(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    joined, of_launch = shared(catalog.database), shared(catalog.database)
    joined.complain("the catalog cannot be used")
    of_launch.inherit(joined)
    of_launch.complain("the catalog cannot be used")
    assert caplog.messages == ["the catalog cannot be used"]


def old_files(directory: Path, *steps: int) -> list[Path]:
    """What a ModelCheckpoint left that no registrar watched."""
    names = [f"net-{(step - 1) // 10 + 1}_{(step - 1) % 10 + 1}.ckpt" for step in steps]
    return [ckpt_bytes.write(directory / name, step) for name, step in zip(names, steps, strict=True)]


def scan_without_journal(catalog: Catalog, directory: Path) -> None:
    """Scan as one who may not write there, or before somebody took the journal away: only the catalog knows."""
    catalog.scan(directory, run="run", world_size=1, steps_per_epoch=10)
    for path in directory.rglob("*.jsonl"):
        path.unlink()


def test_a_run_that_was_scanned_does_not_start_afresh_without_the_catalog(catalog: Catalog, tmp_path: Path) -> None:
    """No journal tells of its files: whether the run goes on from them only the catalog knows."""
    home = tmp_path / "ckpt" / "rank_0"
    old_files(home, 10, 20, 30)
    scan_without_journal(catalog, tmp_path / "ckpt")
    away = open_database(NOBODY_LISTENS)
    with pytest.raises(RefusedError, match=r"rank_0/net-1_10.ckpt is in no journal, .* start when the catalog is back"):
        decided(away, tmp_path / "ckpt", 1, ONE, None)
    with pytest.raises(RefusedError, match="net-1_10.ckpt is in no journal"):
        decided(away, home, 1, ONE, None)
    by_catalog = decided(catalog.database, tmp_path / "ckpt", 1, ONE, None)
    assert by_catalog.plan.global_step == 30


def test_a_run_that_was_scanned_does_not_start_afresh_when_its_catalog_is_lost(tmp_path: Path) -> None:
    url = str(tmp_path / "catalog.db")
    old_files(tmp_path / "ckpt", 10, 20, 30)
    scan_without_journal(connect(url), tmp_path / "ckpt")
    for path in tmp_path.glob("catalog.db*"):
        path.unlink()
    anew = connect(url)
    for _ in range(2):  # and the next start is no other
        with pytest.raises(RefusedError, match=r"is unreachable or lost.* ckptstore scan .*/ckpt --run run") as refused:
            decided(anew.database, tmp_path / "elsewhere", 1, ONE, None)
    assert follow(url, str(refused.value)).code == 0
    found = decided(anew.database, tmp_path / "elsewhere", 1, ONE, None)
    assert found.plan.global_step == 30


def test_a_lost_catalog_and_a_disk_that_is_away_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training began at step 0 without a word."""
    first = connect(tmp_path / "first.db")
    home = tmp_path / "mount" / "ckpt"
    begun(first, home, 5, world_size=1)
    home.rename(tmp_path / "away")
    home.mkdir()
    with pytest.raises(NothingRestorableError, match="is it mounted"):
        decided(first.database, home, 1, ONE, None)
    assert not caplog.records
    for path in tmp_path.glob("first.db*"):
        path.unlink()
    for database in (connect(tmp_path / "first.db").database, connect(tmp_path / "second.db").database):
        decided(database, home, 1, ONE, None)
    (told,) = caplog.messages
    assert told.startswith(f"run run saved to {home} before, and no save of it is known now")


def test_a_run_that_was_deleted_before_its_first_save_is_no_reason_to_warn(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun(catalog, tmp_path / "ckpt", world_size=1)
    remember(catalog.database.name, ["run"], str(tmp_path / "ckpt"))
    shutil.rmtree(tmp_path / "ckpt")
    assert decided(catalog.database, tmp_path / "ckpt", 1, ONE, None).plan is None
    assert "no save of it is known" not in caplog.text


def test_two_projects_with_the_same_url_from_their_own_directories_share_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sqlite:///catalog.db` in both: the second one went on from the first one's states before."""
    for name in ("first", "second"):
        project = tmp_path / name
        project.mkdir()
        monkeypatch.chdir(project)
        catalog = connect("sqlite:///catalog.db")
        assert decided(catalog.database, project / "ckpt", 1, ONE, None).plan is None
        begun(catalog, project / "ckpt", 5, world_size=1)


def test_what_others_left_is_no_reason_to_stop(catalog: Catalog, tmp_path: Path) -> None:
    """Files that journals tell of as another run's; and with the catalog all that it does not know of, as ever."""
    other = catalog.join("other", launch_id="O")
    for step, path in zip((10, 20), old_files(tmp_path / "ckpt", 10, 20), strict=True):
        other.register(path, global_step=step)
    away = open_database(NOBODY_LISTENS)
    assert decided(away, tmp_path / "ckpt", 1, ONE, None).plan is None
    old_files(tmp_path / "old", 10)
    assert decided(catalog.database, tmp_path / "old", 1, ONE, None).plan is None


def test_a_launch_that_went_on_from_a_scanned_state_is_not_followed_by_a_fresh_start(
    catalog: Catalog, tmp_path: Path
) -> None:
    """It died before it had saved: its journal tells where it started, and nothing of those files."""
    home = tmp_path / "ckpt" / "rank_0"
    old_files(home, 10, 20, 30)
    scan_without_journal(catalog, tmp_path / "ckpt")
    launch = catalog.join("run", launch_id="L1")
    launch.set_steps_per_epoch(10)
    assert launch.resolve() is not None
    launch.add_source(str(home), kind=Kind.PERIODIC, prefix="net_1", breakpoint_prefix="net", names_before=())
    away = open_database(NOBODY_LISTENS)
    with pytest.raises(NothingRestorableError, match="launch L1 went on after step 30 of launch scan-") as refused:
        decided(away, tmp_path / "ckpt", 1, ONE, None)
    anew = str(tmp_path / "anew.db")
    assert follow(anew, str(refused.value), DIRECTORY=str(tmp_path / "ckpt")).code == 0
    assert decided(open_database(anew), tmp_path / "ckpt", 1, ONE, None).plan.global_step == 30
