"""What a start reads follows what is new and what is on the disk, not what ever was: bytes are counted, not time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog
from ckptstore.catalog import reads as module
from ckptstore.catalog.engine import Database, open_database
from ckptstore.core.events import FileRecorded, LaunchStarted, to_line
from ckptstore.core.model import Kind, Source
from ckptstore.disk.name_claims import FOLDER
from ckptstore.evidence.writers import wrote
from ckptstore.journal import jsonl, summaries
from ckptstore.journal.jsonl import JournalWriter
from ckptstore.journal.sync import found_below
from ckptstore.resume.reconcile import reconcile
from ckptstore.retention.policy import Policy
from ckptstore.training import rank_launch, start
from ckptstore.training.rank_launch import RankLaunch
from ckptstore.training.recorder_thread import RecorderThread
from ckptstore.training.save_places import SavePlaces
from ckptstore.training.start import Progress, begin, decide
from tests.jobs import Job, begun
from tests.listings import listings

pytestmark = pytest.mark.of_files

PAST = 2_560


class Reads:
    """Bytes of journals that were read."""

    bytes = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    reads = Reads()
    read, read_whole = jsonl.read, jsonl.read_whole

    def noted(path: str, *asked: Any) -> Any:
        reads.bytes += Path(path).stat().st_size - (asked[0] if asked else 0)
        return read(path, *asked)

    def noted_whole(path: str) -> Any:
        found = read_whole(path)
        reads.bytes += len(found[0])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(jsonl, "read", noted)
        patched.setattr(jsonl, "read_whole", noted_whole)
        yield reads


def fill(catalog: Catalog, directory: Path, run: str, *, take_up: bool = True) -> None:
    """A launch that recorded so many files, all of which but the last were deleted since."""
    job, (launch,) = begun(catalog, directory, world_size=1, run=run)
    (last,) = job.save([launch], 10)
    now = datetime.now(timezone.utc)
    told = [
        to_line(
            FileRecorded(replace(last, global_step=1 + each % 9, path=f"{job.folder(0)}/{run}-{each}.ckpt")),
            str(job.folder(0)),
        )
        for each in range(PAST)
    ]
    writer = JournalWriter(str(job.folder(0)), "rank_0", "another")
    writer.append(told, {launch.key: LaunchStarted(replace(launch.facts, created_at=now))})
    if take_up:
        catalog.sync(directory)


def first_steps(database: Database, directory: Path, launch_id: str) -> RankLaunch:
    """What a launch does before its first step, but for loading."""
    launch = begin(database, "run", rank=0, world_size=1, launch_id=launch_id, layout=None, directories=[directory])
    launch.set_steps_per_epoch(10)
    progress = Progress(start=decide(launch, [directory]))
    recorder = RecorderThread(launch)
    places = SavePlaces(launch, progress, recorder)
    places.add(str(directory / "rank_0"), kind=Kind.PERIODIC, prefix=launch_id, names_before=None)
    assert launch.recorder.behind or recorder.flush(60)
    return launch


def summarised(directory: Path) -> None:
    for folder in directory.rglob(FOLDER):
        summaries.make(str(folder.parent), "")


@pytest.mark.parametrize("whose", ["run", "other"])
@pytest.mark.parametrize("is_over", [False, True])
def test_a_start_beside_a_long_past_reads_none_of_it(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, *, is_over: bool
) -> None:
    """Its own, or that of others in its directory; whether its writer has ended or not."""
    monkeypatch.setattr(summaries, "make", lambda *_: None)  # in the background
    (tmp_path / "empty/rank_0").mkdir(parents=True)
    with counted(monkeypatch) as alone:
        first_steps(catalog.database, tmp_path / "empty", "E")
    fill(catalog, tmp_path / "full", whose)
    if is_over:
        summarised(tmp_path / "full")
    with counted(monkeypatch) as beside:
        launch = first_steps(catalog.database, tmp_path / "full", "N")
    assert launch.facts.parent_step == (10 if whose == "run" else None)
    assert beside.bytes <= 1.1 * alone.bytes


def test_what_a_start_asks_of_the_catalog(catalog: Catalog, tmp_path: Path) -> None:
    """Before the first step, on the thread that trains."""
    fill(catalog, tmp_path, "run")
    first_steps(catalog.database, tmp_path, "N")
    asked: list[str] = []
    own = threading.get_ident()

    def note(_connection: object, _cursor: object, text: str, *_: object) -> None:
        asked.extend([text] if threading.get_ident() == own else [])

    sa.event.listen(catalog.database._engine, "before_cursor_execute", note)
    first_steps(catalog.database, tmp_path, "O")
    transactions = [text for text in asked if text.startswith("BEGIN")]
    assert len(transactions) <= 21
    assert len(asked) <= 92


@pytest.mark.parametrize("whose", ["run", "other"])
def test_where_a_rank_saves_is_listed_once(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """For states that were overlooked, for leftovers, and for the names that were there before."""
    home = tmp_path / "rank_0"
    fill(catalog, tmp_path, whose)
    (home / "net-1_9.tmp").touch()
    launch = begin(catalog.database, "run", rank=0, world_size=1, launch_id="N", layout=None, directories=[tmp_path])
    launch.set_steps_per_epoch(10)
    progress = Progress(start=decide(launch, [tmp_path]))
    recorder = RecorderThread(launch)
    with listings(monkeypatch) as counts:
        SavePlaces(launch, progress, recorder).add(str(home), kind=Kind.PERIODIC, prefix="net_1", names_before=sorted)
        assert recorder.flush(60)
    assert counts[str(home)] == 1


def test_without_a_catalog_a_start_reads_what_is_on_the_disk(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(catalog, tmp_path / "full", "run")
    summarised(tmp_path / "full")
    away = open_database("postgresql://nobody@127.0.0.1:1/nowhere")
    with counted(monkeypatch) as beside:
        launch = first_steps(away, tmp_path / "full", "N")
    assert launch.facts.parent_step == 10
    past = sum(Path(path).stat().st_size for path in found_below([str(tmp_path)])[0])
    assert past > 500_000
    assert beside.bytes < past / 20


def sources_read(monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """The sources that are read from the catalog from now on."""
    read: list[Source] = []
    made = module._sources

    def noted(found: sa.Result[Any]) -> list[Source]:
        read.extend(some := made(found))
        return some

    monkeypatch.setattr(module, "_sources", noted)
    return read


def test_a_gc_that_is_executed_reads_each_directory_once_and_not_for_each_launch(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 512 ranks and 100 launches three seconds passed before it moved a file, after each save."""
    job = Job(catalog, tmp_path)
    for step in range(10, 60, 10):
        job.save(job.begin(), step)
    plan = catalog.plan_gc("run", Policy(keep_last=2))
    read = sources_read(monkeypatch)
    assert catalog.execute(plan).files
    assert read == []
    with catalog.database.read() as connection:
        homes = [each.directory for each in module.announced_by(connection, 1)]
    assert sorted(homes) == [str(job.folder(rank)) for rank in (0, 1)]


def test_reconciling_reads_where_the_recent_launches_save_and_not_all(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 launches with 512 ranks it read 102,400 rows at each start, and in each rank whose training failed."""
    job = Job(catalog, tmp_path)
    for step in range(10, 60, 10):
        ranks = job.begin()
        job.save(ranks, step)
    job.write(ranks[0], 51)
    read = sources_read(monkeypatch)
    of_a_run = reconcile(catalog.database, 1)
    assert [each.launch for each in read if each.launch != "L5"] == ["L4", "L3", "L2", "L1"]  # of one directory
    job.write(ranks[0], 52)
    read.clear()
    assert len(ranks[0].adopt().adopted) == len(of_a_run.adopted) == 1
    assert len([each for each in read if each.launch != "L5"]) == 4


def test_a_name_is_compared_with_those_launches_that_use_its_prefix(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each name was compared with each launch that ever saved there: 0.6 s for 150 and 10,000."""
    directory, names = str(tmp_path), []
    for each in range(30):
        launch = begin(
            catalog.database, "run", rank=0, world_size=1, launch_id=f"L{each}", layout=None, directories=[directory]
        )
        kind = Kind.TTP if each == 7 else Kind.PERIODIC
        launch.add_source(directory, kind=kind, prefix=f"p{each}", breakpoint_prefix="net", names_before=[])
        names += [f"p{each}-1_{step}.ckpt" for step in range(1, 11)]
    compared: list[str] = []

    def noted(source: Source, name: str) -> bool:
        compared.append(name)
        return wrote(source, name)

    monkeypatch.setattr(start, "wrote", noted)
    found = start.without_record(catalog.database, directory, [*names, "ttp.ckpt", "p7-1_1.ckpt", "q-1_1.ckpt"])
    assert {Path(path).name for path in found} >= {"q-1_1.ckpt", "p7-1_1.ckpt"}
    assert not {Path(path).name for path in found} & {f"p{each}-1_1.ckpt" for each in range(30) if each != 7}
    assert len(compared) <= 3 * len(names)


def test_a_save_makes_no_path_of_each_file_that_is_there(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 10,000 saves each further one took 0.08 s of the interpreter, now 0.01 s."""
    job, (launch,) = begun(catalog, tmp_path, 10, 20, 30, world_size=1)
    made: list[str] = []

    def noted(path: str) -> Path:
        made.append(path)
        return Path(path)

    monkeypatch.setattr(rank_launch, "Path", noted)
    launch.live_files.notice_vanished(job.folder(0))
    assert made == []
    lost = launch.live_files.paths()[1]
    Path(lost).unlink()
    launch.live_files.notice_vanished(job.folder(0))
    assert launch.live_files.at(lost) is None
