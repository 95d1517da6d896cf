"""What a transaction costs does not grow with what it has nothing to do with: counted in instructions of SQLite."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ckptstore.api import connect
from ckptstore.catalog import directories, gauges, journals, reads, tallies
from ckptstore.catalog.engine import Connection, Database, in_memory
from ckptstore.catalog.project import project
from ckptstore.catalog.tables import checkpoints
from ckptstore.core.copies import CopyState, Tier
from ckptstore.core.events import (
    CopyRecorded,
    FileRecorded,
    FilesRemoved,
    LaunchStarted,
    LoadOutcome,
    RemovedFile,
    SourceAdded,
    TierDeclared,
    TrainingEnded,
)
from ckptstore.core.model import Checkpoint, Content, FileState, Kind, Launch, LoadResult, Location, Source
from ckptstore.core.replicas import stand_alone
from ckptstore.replicate.replicator import Replicator
from ckptstore.resume.exits import set_aside
from ckptstore.resume.history import history
from ckptstore.scan.known_files import unwatched
from ckptstore.verify.verify import verify
from tests.conftest import new_postgres_database

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
HOUR_NS = 3600 * 10**9
EACH = 100  # instructions


class Count:
    """How often it was called."""

    total = 0

    def __call__(self, *_: object) -> int:
        self.total += 1
        return 0


@contextmanager
def counted(connection: Connection) -> Iterator[Count]:
    """What SQLite does in the block, in hundreds of instructions."""
    driver: Any = connection.connection.dbapi_connection
    count = Count()
    driver.set_progress_handler(count, EACH)
    yield count
    driver.set_progress_handler(None, 0)


@contextmanager
def before_statements(do: Callable[..., object]) -> Iterator[None]:
    sa.event.listen(sa.Engine, "before_cursor_execute", do)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", do)


def instructions_of(
    work: Callable[[Connection], object], events: list[Any], before: Callable[[Connection], object] = lambda _: None
) -> int:
    """What SQLite does, in hundreds of instructions, in a catalog with these events."""
    with in_memory().write() as connection:
        project(connection, events)
        before(connection)
        with counted(connection) as count:
            work(connection)
    return count.total


def launched(count: int, run: str = "run") -> list[Launch]:
    """Launches of two ranks, an hour apart."""
    layout = stand_alone()
    return [
        Launch(id=f"L{at}", run=run, order=at, world_size=2, layout=layout, created_at=START + timedelta(hours=at))
        for at in range(1, count + 1)
    ]


def saved(step: int, path: str = "", **known: Any) -> Checkpoint:
    """A file of the first of these launches."""
    told: dict[str, Any] = {"rank": 0, "size": 1, "created_at": START, "mtime_ns": step * HOUR_NS} | known
    return Checkpoint(run="run", launch="L1", kind=Kind.PERIODIC, global_step=step, path=path or f"/d/{step}", **told)


Cost = Callable[[Connection, list[Checkpoint]], object]


def removed(connection: Connection, files: list[Checkpoint]) -> None:
    gone = tuple(RemovedFile(str(file.global_step), 1, 0, file.id, "") for file in files)
    project(connection, [FilesRemoved("run", "gc", "/d", Location.GONE, settled=True, at=START, files=gone)])


def instructions(work: Cost, others: int) -> int:
    """What SQLite does, in hundreds, of the newest file where so many others are gone, and were written before."""
    files = list(map(saved, range(others + 1)))
    return instructions_of(
        lambda connection: work(connection, files[-1:]),
        [*map(LaunchStarted, launched(1)), *map(FileRecorded, files)],
        before=lambda connection: removed(connection, files[: others // 2]),
    )


def written_at_once(connection: Connection, files: list[Checkpoint]) -> None:
    """What else was written when a file was: gc looks for other paths of what goes, of whatever run."""
    moment = files[0].mtime_ns or 0
    assert len(list(directories.written_within(connection, moment, moment + 1))) == 1


@pytest.mark.parametrize("work", [removed, written_at_once])
def test_it_does_not_grow_with_what_others_did(work: Cost) -> None:
    """Of two indexes SQLite took that of the run for the quicker one, and read all that the run had lost."""
    assert instructions(work, 1000) <= instructions(work, 20) + 2


def saved_over(before: int) -> int:
    """What SQLite does, in hundreds of instructions, of a save to a path that was saved to so often before."""
    files = [saved(step, "/d/latest", created_at=START + timedelta(minutes=step)) for step in range(before + 1)]
    with in_memory().write() as connection:
        project(connection, list(map(LaunchStarted, launched(1))))
        for file in files[:-1]:
            project(connection, [FileRecorded(file)])
        with counted(connection) as count:
            project(connection, [FileRecorded(files[-1])])
        states = connection.execute(sa.select(checkpoints.c.state).order_by(checkpoints.c.created_at)).scalars().all()
    assert states == [FileState.MISSING.value] * before + [FileState.COMPLETE.value]
    return count.total


def test_a_save_over_the_last_one_does_not_compare_all_earlier_ones_with_each_other() -> None:
    """With 3,000 saves to `latest.pt`, each more took three seconds, in which no other rank could record anything."""
    assert saved_over(200) <= 3 * saved_over(100)


def originals(connection: Connection, _: list[Checkpoint]) -> None:
    """A backup is read: which of the files that it tells of are here, or were moved away by gc?"""
    connection.execute(checkpoints.update().values(state=FileState.MISSING.value))  # MindSpore deletes most
    ids = list(connection.execute(sa.select(checkpoints.c.id)).scalars())
    assert len(directories.there_or_removed(connection, ids)) == len(ids) // 2


def test_reading_a_backup_costs_no_look_at_the_whole_trash_for_each_file() -> None:
    """4,000 files of which half had been removed took 14 seconds."""
    assert instructions(originals, 800) <= 5 * instructions(originals, 200)


def looked_at_by_a_round(runs: int) -> int:
    """What SQLite does, in hundreds, when a tier has all files of so many runs, and an agent looks for others."""
    database, tier = in_memory(), Tier("far", "file:///far", 1)
    with database.write() as connection:
        project(connection, [TierDeclared("", tier, declared=True, at=START)])
        for run in map(str, range(runs)):
            files = [replace(saved(step, f"/d/{run}/{step}", digest="0" * 64), run=run) for step in range(20)]
            copied = [CopyRecorded.of(each, tier, CopyState.READY, START) for each in files]
            project(connection, [*map(LaunchStarted, launched(1, run)), *map(FileRecorded, files), *copied])
    count = Count()

    def watch(connection: Any, *_: object) -> None:
        connection.connection.dbapi_connection.set_progress_handler(count, EACH)

    with before_statements(watch):
        assert Replicator(database).round(settled_for=timedelta(0)).files == 0
    return count.total


def test_an_agent_does_not_read_all_copies_again_for_each_run() -> None:
    assert looked_at_by_a_round(80) <= 5 * looked_at_by_a_round(20)


def test_whether_a_run_has_damage_is_told_without_reading_all_other_runs() -> None:
    """Doctor asks that of each run: with 1,000 of them it read a million names."""

    def cost(others: int) -> int:
        events = [LaunchStarted(launch) for run in range(others) for launch in launched(1, f"run{run}")]
        return instructions_of(lambda connection: gauges.damaged_states(connection, 1), events)

    assert cost(400) <= cost(20) + 2


def test_no_start_reads_that_every_rank_of_every_launch_has_loaded_its_state() -> None:
    """With 1,000 launches of 10,000 ranks, each start, gc and doctor read ten million rows to find no failed load."""

    def cost(ranks: int) -> int:
        first, *others = launched(20)
        events: list[Any] = [LaunchStarted(first)]
        for launch in others:
            events.append(LaunchStarted(replace(launch, parent="L1", parent_step=5, decided=True), START, first))
            events += [LoadOutcome("run", launch.id, rank, LoadResult.SAVED, START) for rank in range(ranks)]
        return instructions_of(lambda connection: reads.failed_loads(connection, 1), events)

    assert cost(200) <= cost(10) + 2


def rows_of(work: Callable[[Database], object], events: list[Any]) -> int:
    """The rows that are read from a catalog with these events."""
    database = in_memory()
    with database.write() as connection:
        project(connection, events)
    read = 0

    def count(_: object, row: object) -> object:
        nonlocal read
        read += 1
        return row

    def watch(connection: Any, *_: object) -> None:
        connection.connection.dbapi_connection.row_factory = count

    with before_statements(watch):
        work(database)
    return read


def test_the_history_of_a_run_reads_no_row_for_each_rank_that_ever_ended() -> None:
    def cost(ranks: int) -> int:
        events: list[Any] = list(map(LaunchStarted, launched(20)))
        for launch in launched(20):
            events += [TrainingEnded("run", launch.id, rank, 5, None, "OSError", "", START) for rank in range(ranks)]
        return rows_of(lambda database: history(database, "run"), events)

    assert cost(40) == cost(2)


def announced(launches: int, ranks: int) -> list[Any]:
    """So many launches of one run, of which so many ranks say where they save."""
    events: list[Any] = list(map(LaunchStarted, launched(launches)))
    for launch in launched(launches):
        for rank in range(ranks):
            place = (f"/d/rank_{rank}", Kind.PERIODIC, "net", "net_breakpoint", frozenset[str]())
            events.append(SourceAdded(Source("run", launch.id, rank, *place), START))
    return events


def test_a_scan_asks_only_for_those_who_save_to_the_directories_of_its_files() -> None:
    """With 1,000 launches of 10,000 ranks it read ten million rows to judge one file."""
    asked = ["/d/rank_0/net-1_5.ckpt"]
    assert rows_of(lambda database: unwatched(database, 1, asked), announced(20, 30)) < 100


def test_an_exit_that_has_still_its_fixed_name_is_sought_among_those_of_its_launch() -> None:
    left = replace(saved(5, "/d/rank_0/exit.ckpt"), kind=Kind.GRACEFUL_EXIT)
    assert rows_of(lambda database: set_aside(database, 1), [*announced(20, 30), FileRecorded(left)]) < 100


def test_a_file_that_was_just_written_is_compared_only_with_those_who_save_beside_it(tmp_path: Path) -> None:
    """Verify read where each rank of each launch saves, again for each portion of its files."""
    (tmp_path / "net-1_5.ckpt").write_bytes(b"another")
    told = FileRecorded(saved(5, str(tmp_path / "net-1_5.ckpt")))
    place = (str(tmp_path), Kind.PERIODIC, "net", "net_breakpoint", frozenset[str]())
    beside = SourceAdded(Source("run", "L2", 0, *place), START)
    found: list[Any] = []
    work = lambda database: found.append(verify(database, "run"))  # noqa: E731
    assert rows_of(work, [*announced(20, 30), told, beside]) < 1000
    assert "a later launch has just written it" in str(found)


def test_taking_up_a_journal_does_not_read_the_rows_of_all_others() -> None:
    """Of 10,000 ranks there are as many segments at each launch: each was sought among all that ever were."""

    def cost(others: int) -> int:
        paths = [f"/d/rank_{at}/.ckptstore/rank_{at}-a-b.jsonl" for at in range(others)]

        def work(connection: Connection) -> None:
            journals.set_read_to(connection, {paths[0]: journals.ReadTo(5)}, {paths[0]: [1]})
            assert journals.read_to(connection, paths[:1]) == {paths[0]: journals.ReadTo(5)}
            assert journals.runs_told(connection, paths[:1]) == ["run"]

        def fill(connection: Connection) -> None:
            journals.set_read_to(connection, dict.fromkeys(paths, journals.ReadTo(1)), dict.fromkeys(paths, (1,)))

        return instructions_of(work, list(map(LaunchStarted, launched(1))), before=fill)

    assert cost(2000) <= cost(10) + 2


def test_those_who_save_to_a_directory_are_found_without_reading_all_others() -> None:
    def cost(ranks: int) -> int:
        def work(connection: Connection) -> None:
            assert len(reads.sources_in(connection, ["/d/rank_0"])) == 5
            assert len(reads.sources_of(connection, 1, ["/d/rank_0"])) == 5

        return instructions_of(work, announced(5, ranks))

    assert cost(200) <= cost(5) + 2


def test_a_launch_whose_first_state_is_whole_is_known_by_that_one(postgres: str) -> None:
    """Gc asks that of each run that began from a state, again for each portion of files. SQLite stops by itself."""
    (launch,) = launched(1)
    files = [saved(step, f"/d/{rank}/{step}", rank=rank) for step in range(1, 101) for rank in range(2)]
    with connect(new_postgres_database(postgres)).database.write() as connection:
        project(connection, [LaunchStarted(launch), *map(FileRecorded, files)])
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        look = (
            "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables"
            " WHERE schemaname = current_schema() AND relname = 'checkpoints'"
        )
        before = connection.exec_driver_sql(look).scalar_one()
        assert tallies.has_been_whole(connection, launch)
        assert connection.exec_driver_sql(look).scalar_one() - before < 20


@pytest.mark.parametrize("content", [Content.WEIGHTS, Content.FULL])
def test_whether_a_launch_was_ever_whole_takes_few_queries_if_it_never_was(content: Content) -> None:
    """One for each step took seconds with 3,000 steps, where all of them are counted in a twentieth of one."""
    (launch,) = launched(1)
    files = [saved(step, content=content) for step in range(1, 101)]
    asked = Count()
    with in_memory().write() as connection:
        project(connection, [LaunchStarted(launch), *map(FileRecorded, files)])
        with before_statements(asked):
            assert not tallies.has_been_whole(connection, launch)
    assert asked.total < 20
