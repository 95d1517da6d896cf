"""The disk is the truth: whatever becomes of the catalog, the journals and files tell it all again."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from ckptstore.catalog.engine import Database
from ckptstore.core.copies import Beside, CopyState
from ckptstore.core.events import FileRecorded, LaunchStarted, to_line
from ckptstore.core.model import FileState, Kind, Rule
from ckptstore.disk.name_claims import FOLDER
from ckptstore.errors import CatalogUnavailableError, UnknownRunError, UsageError
from ckptstore.journal import jsonl
from ckptstore.journal.recorder import Recorder, shared
from ckptstore.journal.sync import found_below
from ckptstore.resume import exits
from ckptstore.retention import stored_policy
from ckptstore.retention.policy import Policy
from ckptstore.tiers import facts
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes
from tests.contents import contents
from tests.empty_catalogs import copy_empty_catalog
from tests.formats.layouts import write_spreads
from tests.jobs import Job, begun, known_of, newest, set_ending, started
from tests.journal.builders import cut_off, plan_of, states
from tests.spreads import spread


def begin_again(
    job: Job, lineage: str, *, step: int, steps: int, batch_size: int, shards: int | None = None
) -> list[RankLaunch]:
    """A launch that goes back to a step of an older one, with a batch size and steps an epoch of its own."""
    ranks = job.start(resume=False)
    for launch in ranks:
        launch.set_steps_per_epoch(steps, batch_size=batch_size, shards=shards)
        launch.resolve(step=step, lineage=lineage)
        job.announce(launch)
    return ranks


def a_long_story(job: Job) -> None:
    """Launches, an exit that is renamed, a breakpoint that is adopted, files that vanish and are damaged.

    And: pins, tags and a policy, what a step takes of the data, launches that go back or on with other steps, files
    that cannot be loaded, strategy files, and a branch that an operator decided.
    """
    first = job.begin()
    job.save(first, 5, 10, 15)
    first[0].recorder.mark([job.catalog.show("run", 5)[0]], FileState.MISSING)
    Path(job.catalog.show("run", 5)[0].path).unlink()
    left = first[1].register(
        ckpt_bytes.write(job.folder(1) / "net_train.ckpt", 17, 17), kind="graceful_exit", global_step=17
    )
    exits.keep(first[1].recorder, left, exits.kept_path(left.path, 17))
    first[1].register(ckpt_bytes.write(job.folder(1) / "of-no-known-name", 18, 18), global_step=18)
    set_ending(first[1], 17, 17, "RuntimeError", quarantine="")
    job.write(first[1], 17, name="net-2_7_breakpoint.ckpt")
    job.catalog.pin("run", 10)
    job.catalog.pin("run", 15)
    job.catalog.unpin("run", 15)
    for name in ("best", "passing", "moving"):
        job.catalog.tag("run", 10, name)
    job.catalog.untag("run", "passing")
    job.catalog.untag("run", "moving")
    job.catalog.tag("run", 15, "moving")
    stored_policy.store(job.catalog.database, "run", Policy(keep_last=1))
    stored_policy.clear(job.catalog.database, "run")
    job.catalog.rename("run", "first thoughts")
    job.catalog.rename("run", "run")
    job.catalog.forget("run")
    job.catalog.forget("run", undo=True)
    stored_policy.store(job.catalog.database, "run", Policy(keep_last=2, keep_within=timedelta(days=7)))
    second = job.begin()
    files = job.save(second, 20)
    tier = facts.tier_of("s3", "s3://bucket/prefix")
    for file, state in ((files[0], CopyState.READY), (files[1], CopyState.FAILED)):
        facts.record_copy(
            shared(job.catalog.database), file, tier, state, beside=[Beside("x.json", "run/k/x.json", 7, "c3")]
        )
    facts.remove(job.catalog.database, "s3")
    facts.add(job.catalog.database, tier)
    second[0].register(files[0].path, global_step=20, optimizer_step=20, metrics={"loss": 0.25})
    second[1].mark_damaged(files[1], Rule.DIGEST_MISMATCH)
    third = job.begin()
    job.save(third, 20)
    for launch in third:
        set_ending(launch, 22, 21, None, quarantine="the loss of its last step was nan")
    back = begin_again(job, "L1", step=5, steps=10, batch_size=8)
    back[1].load_failed(plan_of(back[1]).ranks[1].source, "Input/output error")
    back[0].load_failed(None, "No such file or directory")
    half = begin_again(job, "L1", step=10, steps=20, batch_size=4, shards=2)
    assert (half[0].facts.parent_step, half[0].facts.start_step) == (10, 20)
    job.save(half[:1], 22)
    hybrid = [job.catalog.join("run", rank=rank, world_size=4, launch_id="L6") for rank in (0, 1)]
    job.announce(hybrid[0])
    written = write_spreads(job.directory / "strategy.ckpt", 0, [spread(grid=(2, 2), tensor_map=(0, -1))])
    assert hybrid[0].keep_layout_file(str(written))
    hybrid[0].facts = known_of(hybrid[0])
    assert hybrid[0].facts.layout.groups
    job.save(hybrid[:1], 3)
    plan = job.catalog.resolve("run", step=15, lineage="L1").plan
    job.catalog.branch(plan)


def test_a_catalog_made_anew_has_all_that_the_old_one_had(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path / "ckpt", layout="data_parallel")
    a_long_story(job)
    every = "".join(Path(path).read_text() for path in found_below([str(tmp_path)])[0])
    assert not any(word in every for word in ("sqlite", "postgres", "catalog.db")), "no URL, which may have a password"
    before = catalog.resolve("run")
    assert {file.state for file in catalog.files("run")} == {
        FileState.COMPLETE,
        FileState.MISSING,
        FileState.MOVED,
        FileState.DAMAGED,
    }
    scanned = other.scan(tmp_path / "ckpt")
    assert scanned.run == "run"
    assert scanned.adopted == ()
    assert contents(other) == contents(catalog)
    assert other.resolve("run") == before
    assert other.scan(tmp_path / "ckpt").run == "run"
    assert contents(other) == contents(catalog)


def test_two_who_adopt_one_file_at_once(
    database_url: str, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looked at it first is last to have it in the journal, and in the catalog."""
    catalog = connect(database_url)
    job, (launch,) = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    job.write(launch, 10)
    record = Recorder.record
    adopted = []

    def after_another(recorder: Recorder, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(Recorder, "record", record)
        adopted.append(newest(connect(database_url)))
        record(recorder, *args, **kwargs)

    monkeypatch.setattr(Recorder, "record", after_another)
    adopted.append(newest(catalog))
    assert adopted == [10, 10]
    other.scan(tmp_path / "ckpt")
    assert contents(other) == contents(catalog)


def test_what_the_catalog_did_not_take_is_there_at_the_next_look(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, ranks = begun(catalog, tmp_path, 5)
    with monkeypatch.context() as outage:
        cut_off(ranks[0], outage)
        job.save(ranks, 10)
        job.save(ranks, 15)
        assert caplog.text.count("no such server") == 2  # once a rank
    assert {file.global_step for file in catalog.files("run")} == {5}
    plan = catalog.resolve("run").plan
    assert plan.global_step == 15
    assert len(catalog.files("run")) == 6
    job.save(ranks, 20)  # the ranks have not heard that it is back: journals only
    assert catalog.resolve("run").plan.global_step == 20
    for launch in ranks:
        launch.recorder.catch_up()
    job.save(ranks, 25)
    assert {file.global_step for file in catalog.files("run")} == {5, 10, 15, 20, 25}


def test_nothing_is_kept_where_neither_journal_nor_catalog_can_be_written(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, (launch, *_) = started(catalog, tmp_path)
    path = job.write(launch, 5)
    (path.parent / FOLDER).write_text("in the way")
    cut_off(launch, monkeypatch)
    with pytest.raises(CatalogUnavailableError, match="no such server"):
        launch.register(path, global_step=5)


class Disk:
    """What an SQLite catalog has on the disk for certain: all up to the last commit that waited for it."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        assert database.file is not None
        self.database = database
        self.parts = [Path(f"{database.file}{end}") for end in ("", "-wal", "-shm")]
        self.levels: list[int] = []
        write = Database.write

        @contextmanager
        def noted(database: Database, **asked: Any) -> Iterator[sa.Connection]:
            with write(database, **asked) as connection:
                yield connection
                self.levels.append(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
            if self.levels[-1] == 2:
                self.keep()

        monkeypatch.setattr(Database, "write", noted)

    def keep(self) -> None:
        self.kept = {part: part.read_bytes() for part in self.parts[:2] if part.exists()}

    def lose_power(self) -> None:
        self.database.disconnect()
        for part in self.parts:
            part.unlink(missing_ok=True)
        for part, content in self.kept.items():
            part.write_bytes(content)


@pytest.mark.parametrize("saves", [0, 1, 3])
def test_a_power_failure_takes_from_the_catalog_what_the_journals_keep(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    """A record that is in a journal is on the disk; the catalog does not wait for it a second time."""
    job = Job(connect(sqlite_url), tmp_path, world_size=1)
    disk = Disk(job.catalog.database, monkeypatch)
    (launch,) = job.begin()
    for step in range(1, saves + 1):
        launch.register(job.write(launch, step), global_step=step, metrics={"loss": 0.5})
        assert disk.levels[-1] == 1
    disk.lose_power()
    assert job.catalog.files("run") == []
    (launch,) = job.start()
    assert launch.facts.parent_step == (saves or None)
    assert [file.metrics for file in job.catalog.files("run")] == [{"loss": 0.5}] * saves


def test_what_is_in_no_journal_is_waited_for(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(connect(sqlite_url), tmp_path, world_size=1)
    disk = Disk(job.catalog.database, monkeypatch)
    (launch,) = job.begin()
    shutil.rmtree(job.folder(0) / FOLDER)
    (job.folder(0) / FOLDER).touch()  # a file: the journal cannot be written
    job.save([launch], 3)
    assert disk.levels[-1] == 2


def test_who_adopts_a_file_journals_its_launch_beside_it(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """The journal of the rank that saved it may be lost."""
    job, (launch,) = begun(catalog, tmp_path, 5, world_size=1)
    job.write(launch, 10)
    for journal in jsonl.journals_in(str(job.folder(0))):
        Path(journal).unlink()
    assert newest(catalog) == 10
    other.sync(tmp_path)
    assert [(file.launch, file.global_step) for file in other.files("run")] == [("L1", 10)]


def test_a_file_in_the_place_of_a_directory_that_a_journal_tells_of(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    job, (launch,) = begun(catalog, tmp_path, world_size=1)
    path = ckpt_bytes.write(job.folder(0) / "below" / "net-1_5.ckpt", 5, 5)
    launch.register(path, global_step=5)
    shutil.rmtree(path.parent)
    path.parent.touch()
    other.sync(tmp_path)
    assert [file.state for file in other.files("run")] == [FileState.COMPLETE], "its directory may be away"


def test_a_path_with_dots_is_that_of_the_file(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is said, in the journal and in the catalog it is one; what it leads through is of no concern."""
    job = Job(catalog, tmp_path / "ckpt", world_size=1)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (launch,) = job.start(resume=False)
    launch.add_source("../ckpt/./rank_0", kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
    with monkeypatch.context() as outage:
        cut_off(launch, outage)
        for step in (5, 10):
            said = Path("../ckpt") / job.write(launch, step).relative_to(tmp_path / "ckpt")
            assert launch.register(said, global_step=step, strategy_file="../s.ckpt").path == str(said.resolve())
    launch.recorder.catch_up()
    assert catalog.sync("../ckpt").records == 0
    assert other.scan("../here/../ckpt", run="run").adopted == ()
    for each in (catalog, other):
        assert {file.path: file.strategy_file for file in each.files("run")} == {
            str(path): str(tmp_path / "s.ckpt") for path in job.folder(0).glob("*.ckpt")
        }
        assert states(each) == {5: {FileState.COMPLETE}, 10: {FileState.COMPLETE}}
        assert len(contents(each)["journals"]) == 1
    (tmp_path / "here").rmdir()
    monkeypatch.chdir(tmp_path)
    assert catalog.resolve("run").plan.global_step == 10


def test_a_gap_is_noticed_by_a_process_that_did_not_make_it(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has a record that the catalog lacks, and its writer is dead."""
    job, (launch,) = begun(catalog, tmp_path, 5, world_size=1)
    (again,) = job.start(resume=False)
    with monkeypatch.context() as outage:
        cut_off(launch, outage)
        job.save([launch], 10)
    assert len(catalog.files("run")) == 1
    job.save([again], 15)
    assert catalog.resolve("run").plan.global_step == 15
    assert {file.global_step for file in catalog.files("run")} == {5, 10, 15}


@pytest.mark.of_files
def test_a_copied_tree_is_read_where_it_is(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, layout="data_parallel")
    again = job.begin()
    assert {launch.facts.parent_step for launch in again} == {5}
    job.save(again[:1], 10)  # rank 1 of that launch has not saved: it may ask again where to start
    shutil.copytree(tmp_path / "ckpt", tmp_path / "copy")
    shutil.rmtree(tmp_path / "ckpt")
    assert other.scan(tmp_path / "copy").run == "run"
    plan = other.resolve("run").plan
    assert [Path(each.source.path).parent for each in plan.ranks] == [tmp_path / "copy" / "rank_0"] * 2
    assert {file.path.startswith(str(tmp_path / "copy")) for file in other.files("run")} == {True}
    joined = other.join("run", rank=1, world_size=2, launch_id="L2")
    settled = joined.resolve()
    assert [each.source.path for each in settled.ranks] == [
        str(tmp_path / "copy" / f"rank_{rank}" / "net-1_5.ckpt") for rank in (0, 1)
    ]


@pytest.mark.of_files
def test_spoiled_journals_say_what_is_whole_in_them(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    (path,) = found_below([str(tmp_path)])[0]
    with Path(path).open("ab") as file:
        file.write(b'\n\x00\xff{"t":"file"}\nnot ours\n' + jsonl.encode({"t": "file"}) + b'{"v":1,"t":"file","la')
    job.save(ranks, 10)
    shutil.copy(path, Path(path).with_name("rank_0-0123abcd.jsonl"))
    job.save(ranks, 15)
    Path(path).with_name("notes.jsonl").write_text("of somebody else\n")
    scanned = other.scan(tmp_path / "ckpt")
    assert scanned.synced.journals == 2
    assert scanned.synced.spoiled == 2 * 4
    assert contents(other, but=("journals",)) == contents(catalog, but=("journals",))


def test_a_journal_cannot_tell_of_more_ranks_than_a_launch_may_have(catalog: Catalog, tmp_path: Path) -> None:
    """Seen in a catalog that a mistyped world size had reached: whatever read it needed all memory."""
    job, (launch,) = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    (path,) = found_below([str(tmp_path)])[0]
    known = catalog.runs()
    entry = to_line(LaunchStarted(replace(launch.facts, id="L9")), str(job.folder(0)))
    with Path(path).open("ab") as file:
        file.write(jsonl.encode({**entry, "world_size": 2**31 - 1}))
    assert catalog.sync(tmp_path).spoiled == 1
    assert catalog.runs() == known


def test_a_journal_cannot_speak_of_files_elsewhere(catalog: Catalog, tmp_path: Path) -> None:
    job, (launch,) = begun(catalog, tmp_path / "ckpt", world_size=1)
    (whole,) = job.save([launch], 5)
    told = [to_line(FileRecorded(replace(whole, global_step=10)), "/elsewhere")]
    told += [to_line(FileRecorded(replace(whole, global_step=15, path=str(tmp_path / "x.ckpt"))), str(job.folder(0)))]
    (path,) = found_below([str(tmp_path)])[0]
    with Path(path).open("ab") as file:
        file.writelines(jsonl.encode(entry) for entry in told)
    assert catalog.sync(tmp_path).spoiled == 2
    assert [file.global_step for file in catalog.files("run")] == [5]


def test_launches_of_an_outage_come_in_their_order(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """While the catalog was away a launch was numbered by the journals, which lack one that never saved."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    job.start(resume=False)  # never saves
    other.scan(tmp_path / "ckpt")
    away = Job(other, tmp_path / "ckpt", world_size=1)
    away.launches = 2
    job.launches = 3
    (offline,) = away.begin()
    assert offline.facts.order == 2
    away.save([offline], 10)
    (online,) = job.start(resume=False)
    assert online.facts.order == 4  # a launch that joins takes up what was before
    catalog.sync(tmp_path)
    with catalog.database.read() as connection:
        from ckptstore.catalog import reads

        run = reads.run_id(connection, "run")
        assert run is not None
        assert [launch.id for launch in reads.launches_of(connection, run)] == ["L1", "L2", "L3", "L4"]


def test_pins_come_back(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", world_size=1)
    for step in (5, 10, 15):
        job.save(ranks, step)
        catalog.pin("run", step)
    catalog.unpin("run", 10)
    other.scan(tmp_path / "ckpt")
    assert contents(other)["pins"] == contents(catalog)["pins"]
    assert sorted(row["global_step"] for row in contents(other)["pins"] if row["pinned"]) == [5, 15]


def test_a_pin_and_a_tag_that_are_set_again_outlive_what_a_journal_alone_says(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """Each was taken away beside the catalog: one made anew read that last, though the user was told that it is set."""
    begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    catalog.pin("run", 5)
    catalog.tag("run", 10, "good")
    other.scan(tmp_path / "ckpt")
    other.unpin("run", 5)
    other.untag("run", "good")
    assert (catalog.pin("run", 5), catalog.tag("run", 10, "good")) == (False, False)
    anew = connect(copy_empty_catalog(tmp_path / "anew.db"))
    anew.scan(tmp_path / "ckpt")
    assert {save.tally.global_step for save in anew.saves("run") if save.pinned or save.tags} == {5, 10}


def test_a_name_and_a_policy_that_are_set_again_outlive_what_a_journal_alone_says(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """As of a command that was killed before its line reached the catalog: then the catalog had nothing to change."""
    begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    other.scan(tmp_path / "ckpt")
    other.rename("run", "new")
    stored_policy.store(other.database, "new", Policy(keep_last=3))
    other.forget("new")
    assert catalog.forget("run", undo=True) is False
    assert catalog.rename("run", "run") is False
    stored_policy.clear(catalog.database, "run")
    anew = connect(copy_empty_catalog(tmp_path / "anew.db"))
    anew.scan(tmp_path / "ckpt")
    assert [row.run for row in anew.runs()] == ["run"]
    assert stored_policy.show(anew.database, "run") is None


def test_what_cannot_be_synced(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(UnknownRunError, match="no run 'nobody'"):
        catalog.sync("nobody")
    with pytest.raises(UsageError, match="is not a directory"):
        catalog.sync(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is not a directory"):
        catalog.sync("no/where")
    with pytest.raises(UsageError, match="is not a directory"):
        catalog.sync(os.fsdecode(b"no/\xff"))
    assert catalog.sync().journals == 0


@pytest.mark.of_files
def test_what_is_the_name_of_a_run_is_the_run(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    launch = catalog.join("team/llama", launch_id="L1")
    launch.set_steps_per_epoch(10)
    launch.register(ckpt_bytes.write(tmp_path / "team/llama/net-1_5.ckpt", 5), global_step=5)
    assert catalog.sync("team/llama").journals == 1
    other.join("team/llama", launch_id="L1")
    assert other.sync("team/llama").journals == 0  # it knows the run, and of no directory of it
    assert other.sync("./team/llama").records > 0


def test_a_resolve_looks_at_each_journal_once_and_reads_none(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = begun(catalog, tmp_path, 5, 10, 15, world_size=8)
    looked: list[str] = []
    read: list[str] = []
    look, read_journal = jsonl.sizes_in, jsonl.read
    monkeypatch.setattr(jsonl, "sizes_in", lambda folder: looked.append(folder) or look(folder))
    monkeypatch.setattr(jsonl, "read", lambda path, begin=0: read.append(path) or read_journal(path, begin))
    assert catalog.resolve("run").plan is not None
    assert sorted(looked) == [str(job.folder(rank) / FOLDER) for rank in range(8)]
    assert read == []


@pytest.mark.of_files
def test_a_sync_runs_no_statement_for_each_rank(catalog: Catalog, tmp_path: Path) -> None:
    def statements(world_size: int) -> list[int]:
        tree, reader = tmp_path / str(world_size), connect(str(tmp_path / f"{world_size}.db"))
        job, ranks = begun(catalog, tree, 5, 6, 7, world_size=world_size, run=str(world_size))
        catalog.execute(catalog.plan_gc(job.run, Policy(keep_last=1, floor=1)))  # each directory tells of its end
        asked: list[str] = []
        sa.event.listen(reader.database._engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
        reader.sync(tree)
        first = len(asked)
        job.save(ranks, 10)
        reader.sync(tree)
        return [first, len(asked) - first]

    assert statements(6) == statements(2)


def test_at_once_is_finished_by_the_next_start(catalog: Catalog, tmp_path: Path) -> None:
    """What the training thread noted without waiting for anyone is in progress, until somebody looks."""
    job, (launch,) = begun(catalog, tmp_path, world_size=1)
    (whole,) = job.save([launch], 5)
    path = job.write(launch, 10)
    later = replace(whole, global_step=10, optimizer_step=10, path=str(path), epoch=1, step_in_epoch=10)
    assert launch.recorder.note(later)
    assert {file.global_step for file in catalog.files("run")} == {5}
    plan = catalog.resolve("run").plan
    assert plan.global_step == 10
    assert plan.ranks[0].source.digest is not None


@pytest.mark.of_files
def test_ttp_directories_have_no_journals(catalog: Catalog, tmp_path: Path) -> None:
    _, (launch,) = started(catalog, tmp_path / "ckpt", world_size=1)
    launch.add_source(str(tmp_path / "ckpt"), kind=Kind.TTP, prefix="", breakpoint_prefix="", names_before=[])
    tmp = tmp_path / "ckpt" / "ttp_saved_checkpoints-step_7_tmp"
    path = ckpt_bytes.write(tmp / "rank_0" / "ttp_rank_0-1_7.ckpt", 7, 7)
    launch.register(path, kind="ttp", global_step=7)
    tmp.rename(tmp_path / "ckpt" / "ttp_saved_checkpoints-step_7")
    launch.moved(str(tmp), str(tmp_path / "ckpt" / "ttp_saved_checkpoints-step_7"))
    assert {Path(each).parents[1] for each in found_below([str(tmp_path)])[0]} == {tmp_path / "ckpt"}
    assert {file.state for file in catalog.files("run")} == {FileState.COMPLETE, FileState.MOVED}


def test_a_lease_is_not_waited_for(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that renews it has records to journal."""
    job, _ = begun(catalog, tmp_path, 5, world_size=1)
    (launch,) = job.begin()
    cut_off(launch, monkeypatch)
    launch.renew_lease()
    job.save([launch], 10)
    assert launch.recorder.is_late
    launch.renew_lease()


def test_many_records_at_once_leave_what_is_in_the_trash_as_it_is(catalog: Catalog, tmp_path: Path) -> None:
    _, (launch,) = begun(catalog, tmp_path, 5, 10, world_size=1)
    files = catalog.files("run")
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=1, floor=1)))
    launch.record_files([replace(file, global_step=file.global_step + 100, created_at=None) for file in files])
    assert {file.global_step: file.state for file in catalog.files("run")} == {
        5: FileState.TRASHED,
        10: FileState.MISSING,
        105: FileState.COMPLETE,
        110: FileState.COMPLETE,
    }


@pytest.mark.of_files
def test_a_directory_for_each_save_does_not_take_all_open_files(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run", launch_id="L1")
    for step in range(1, 21):
        launch.register(ckpt_bytes.write(tmp_path / f"step_{step}" / "net.ckpt", step, step), global_step=step)
    assert not [each.path for each in psutil.Process().open_files() if each.path.endswith(".jsonl")]
    paths = [str(tmp_path / f"step_{step}") for step in range(20, 0, -1)]
    assert [file.path.rpartition("/")[0] for file in catalog.files("run")] == paths
    segments = [path for each in paths for path in jsonl.journals_in(each)]
    assert [len(jsonl.read(path).entries) for path in segments] == [2] * 20
    launch.register(ckpt_bytes.write(tmp_path / "step_1" / "again.ckpt", 21, 21), global_step=21)
    assert len(jsonl.read(segments[-1]).entries) == 3


def test_a_child_of_a_fork_has_no_connection_of_its_parents(tmp_path: Path) -> None:
    """SQLite would take the parent's locks for the child's: what it wrote was lost when the parent closed the file."""
    program = """
import os, sys
import ckptstore
catalog = ckptstore.connect(sys.argv[1])
catalog.join("run", launch_id="L1")
child = os.fork()
if not child:
    has_one = any("catalog.db" in os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd"))
    os._exit(1 if has_one or not ckptstore.connect(sys.argv[1]).runs() else 0)
assert os.waitpid(child, 0)[1] == 0
assert [run.run for run in catalog.runs()] == ["run"]
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "catalog.db")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
