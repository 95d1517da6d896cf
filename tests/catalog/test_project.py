"""Events make the same rows in any order, portions and repetition; nothing else writes facts."""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import permutations
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptstore.catalog
from ckptstore.api import Catalog
from ckptstore.catalog import reads
from ckptstore.catalog.engine import in_memory
from ckptstore.catalog.project import project
from ckptstore.catalog.tables import metadata
from ckptstore.core.copies import Beside, CopyState, Tier
from ckptstore.core.copy_keys import key_of
from ckptstore.core.events import (
    CopyRecorded,
    Event,
    FileRecorded,
    FilesRemoved,
    FileUnplaced,
    GcEnded,
    LaunchStarted,
    LayoutFileKept,
    LoadOutcome,
    PolicySet,
    RemovedFile,
    RunForgotten,
    RunRenamed,
    SourceAdded,
    StepPinned,
    StepTagged,
    TierDeclared,
    TrainingEnded,
    from_line,
    from_lines,
    generation,
    to_line,
    version_of_file,
)
from ckptstore.core.model import (
    Checkpoint,
    FileState,
    Grade,
    Initial,
    Kind,
    Launch,
    LoadResult,
    Location,
    PassedOver,
    Rule,
    Source,
    Timing,
    Unplaced,
)
from ckptstore.core.replicas import data_parallel, stand_alone
from tests.contents import WORK, contents

FACTS = [name for name in metadata.tables if name not in WORK]
START = datetime(2026, 1, 1, tzinfo=timezone.utc)

moments = st.integers(0, 6).map(lambda hours: START + timedelta(hours=hours))
steps = st.sampled_from([5, 10])
of_launch = st.sampled_from(["L1", "L2"])
run = st.sampled_from(["run", "twin"])
ranks = st.integers(0, 1)
gcs = st.sampled_from(["gc1", "gc2"])
directories = st.sampled_from(["/run/a", "/run/b"])


def test_facts_are_written_in_one_module_only() -> None:
    tables = "|".join(FACTS)
    spelled = (
        rf"\b({tables})\.(insert|update|delete)\(",
        rf"\b(insert|insert_if_new|update|delete)\(([\w.]+,\s*)?({tables})\b",
    )
    writes = re.compile("|".join(spelled))
    catalog = Path(ckptstore.catalog.__file__).parent  # the only importer of SQLAlchemy: a contract of the layers
    assert [path.name for path in catalog.rglob("*.py") if writes.search(path.read_text())] == ["project.py"]


@st.composite
def launches(draw: st.DrawFn) -> Launch:
    """One of two launches, with what may be known of it by then."""
    number = draw(st.integers(1, 2))
    return Launch(
        id=f"L{number}",
        run=draw(run),
        order=0,
        world_size=2,
        layout=draw(st.sampled_from([stand_alone(), data_parallel(2)])),
        steps_per_epoch=draw(st.sampled_from([None, 10, 20])),
        created_at=START + timedelta(minutes=3 - number + draw(st.integers(0, 1))),
    )


@st.composite
def started(draw: st.DrawFn) -> LaunchStarted:
    launch = draw(launches())
    data_at = draw(moments) if launch.steps_per_epoch else None
    if launch.id == "L1" or not draw(st.booleans()):
        return LaunchStarted(launch, data_at=data_at)
    if draw(st.booleans()):
        initial = Initial(draw(st.sampled_from(["run", "nobody told of it"])), "L1", draw(steps), "run@best")
        file = Checkpoint(
            run=initial.run,
            launch="L1",
            kind=Kind.PERIODIC,
            global_step=initial.global_step,
            rank=0,
            path="/run/z.ckpt",
        )
        return LaunchStarted(
            replace(launch, decided=True, initial=initial), draw(moments), plan=((0, file), (1, file)), data_at=data_at
        )
    origin = replace(draw(launches()), id="L1", run=launch.run)
    step = draw(steps)
    decided = replace(launch, decided=True, parent="L1", parent_step=step, start_step=step)
    file = Checkpoint(run=launch.run, launch="L1", kind=Kind.PERIODIC, global_step=step, rank=0, path="/run/a/x.ckpt")
    plan = ((0, file), (1, file)) if draw(st.booleans()) else ()
    passed = (PassedOver("L1", 10, Rule.SIZE_MISMATCH, "it was cut"),) if draw(st.booleans()) else ()
    return LaunchStarted(decided, draw(moments), origin, plan, data_at, passed)


@st.composite
def files(draw: st.DrawFn) -> Checkpoint:
    """A record: as its rank wrote it, or amended by a look at the disk; paths are used again at other steps."""
    file = Checkpoint(
        run=draw(run),
        launch=draw(of_launch),
        kind=Kind.PERIODIC,
        global_step=draw(steps),
        rank=draw(ranks),
        path=f"{draw(directories)}/{draw(st.sampled_from(['x', 'y']))}.ckpt",
        size=draw(st.sampled_from([100, 200])),
        mtime_ns=draw(st.integers(1, 3)) * 10**9,
        optimizer_step=draw(st.sampled_from([None, 5])),
        state=draw(st.sampled_from([FileState.COMPLETE, FileState.IN_PROGRESS])),
        created_at=draw(moments),
        timing=draw(st.sampled_from([None, None, Timing(0.5), Timing(0.1, 2.5, 0.25)])),
        **draw(st.sampled_from([{}, {"grade": Grade.PROVEN}, {"grade": Grade.CONSISTENT, "doubt": "of 10 or more"}])),
    )
    later = st.sampled_from([FileState.MISSING, FileState.DAMAGED, FileState.COMPLETE])
    for state in draw(st.lists(later, max_size=2)):
        surer = {"grade": Grade.PROVEN, "doubt": ""} if file.grade and draw(st.booleans()) else {}
        file = file.amended(**surer, state=state, quarantine=draw(st.sampled_from(["", "its loss was nan"])))
    return file


@st.composite
def removals(draw: st.DrawFn) -> FilesRemoved:
    of = draw(st.lists(files(), min_size=1, max_size=2, unique_by=lambda file: file.path))
    of = [file for file in of if file.run == of[0].run]
    directory = of[0].path.rpartition("/")[0]
    removed = tuple(
        RemovedFile(file.path.rpartition("/")[2], 100, 10**9, file.id, generation(version_of_file(file)))
        for file in of
        if file.path.startswith(f"{directory}/")
    )
    wanted, settled, at = draw(st.sampled_from(Location)), draw(st.booleans()), draw(moments)
    read_at = draw(st.sampled_from([directory, "/run/a", "/run/b"]))  # the directory may have had another path
    return FilesRemoved(of[0].run, draw(gcs), read_at, wanted, settled, at, removed)


def sources(place: int) -> SourceAdded:
    """Where a rank saves: the later it is told, the more names there are."""
    names = frozenset(f"net-{number}.ckpt" for number in range(place))
    of_run = "run" if place % 3 else "twin"
    source = Source(of_run, f"L{place % 2 + 1}", 0, "/run/a", Kind.PERIODIC, "net", "net", names, "host", None)
    return SourceAdded(source, START + timedelta(hours=place))


@st.composite
def unplaced(draw: st.DrawFn) -> FileUnplaced:
    remedies = st.sampled_from(["", "--step FILE=STEP", "--trust name --steps-per-epoch E", "--trust counter"])
    size, guess = draw(st.sampled_from([100, 200])), draw(st.none() | steps)
    path = f"{draw(directories)}/x.ckpt"
    file = Unplaced(path, size, 10**9, guess, "nothing tells its step", draw(remedies))
    return FileUnplaced(draw(run), file, draw(moments))


tiers = st.sampled_from(
    [Tier("s3", "s3://bucket/prefix", 2), Tier("s3", "s3://bucket/prefix", 1), Tier("nfs", "file:///nfs", 1)]
)


@st.composite
def copied(draw: st.DrawFn) -> CopyRecorded:
    file = replace(draw(files()), digest=draw(st.sampled_from(["a1", "b2"])))
    state, beside = (
        draw(st.sampled_from(CopyState)),
        draw(st.sampled_from([(), (Beside("x.json", key_of(file, "x.json", "c3"), 7, "c3"),)])),
    )
    detail = START.isoformat() if state is CopyState.TRASHED else ""
    event = CopyRecorded.of(file, draw(tiers), state, draw(moments), beside=beside, detail=detail)
    return replace(event, trusted=draw(st.booleans()))


nothing = st.none()
events = st.one_of(
    started(),
    files().map(FileRecorded),
    removals(),
    unplaced(),
    st.integers(0, 5).map(sources),
    st.builds(TrainingEnded, run, of_launch, ranks, steps, nothing, nothing | st.just("OSError"), st.just(""), moments),
    st.builds(LoadOutcome, run, of_launch, ranks, st.sampled_from(LoadResult), moments, nothing, st.just("cut")),
    st.builds(StepPinned, run, steps, st.booleans(), moments),
    st.builds(StepTagged, run, st.sampled_from(["best", "last"]), nothing | steps, moments),
    st.builds(PolicySet, run, st.sampled_from([None, {"keep_last": 1}, {"keep_last": 2}]), moments),
    st.builds(RunRenamed, run, st.sampled_from(["thesis", "paper"]), moments),
    st.builds(RunForgotten, run, st.booleans(), moments),
    st.builds(TierDeclared, run, tiers, st.booleans(), moments),
    copied(),
    st.builds(GcEnded, run, gcs, st.just(START), moments, st.booleans(), moments),
)
LAUNCH = Launch(id="L1", run="run", order=0, world_size=2, layout=stand_alone(), created_at=START)
KNOWN = [LaunchStarted(replace(LAUNCH, id=name, run=run)) for name in ("L1", "L2") for run in ("run", "twin")]


def test_every_type_of_event_is_drawn() -> None:
    drawn: set[type] = set()

    @settings(max_examples=400, database=None, derandomize=True)
    @given(events)
    def draw(event: Event) -> None:
        drawn.add(type(event))

    draw()
    assert drawn == set(get_args(Event)) - {LayoutFileKept}, "layout files have tests of their own"


def rows(portions: list[list[Event]]) -> dict[str, list[dict[str, Any]]]:
    """The rows that events make, taken up one portion after the other; what has no launch yet waits for the next."""
    catalog = Catalog(in_memory())
    left: list[Event] = []
    for portion in portions:
        with catalog.database.write() as connection:
            done = project(connection, [*left, *portion])
        left = done.left_out
    assert left == []
    return contents(catalog, but=WORK)


@settings(max_examples=40)
@given(st.lists(events, max_size=14), st.data())
def test_any_order_portions_and_repetition_of_events_make_the_same_rows(
    history: list[Event], data: st.DataObject
) -> None:
    history = [*KNOWN, *history]
    again = data.draw(st.permutations([*history, *data.draw(st.lists(st.sampled_from(history), max_size=4))]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(again)), max_size=3)))
    portions = [again[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(again)], strict=True)]
    assert rows(portions) == rows([history])


@settings(max_examples=100)
@given(events)
def test_an_event_is_what_its_line_says(event: Event) -> None:
    directory = event.directory if isinstance(event, FilesRemoved) else "/run/a"
    if isinstance(event, (FileRecorded, FileUnplaced, CopyRecorded)):
        directory = event.file.path.rpartition("/")[0]
    assert from_line(to_line(event, directory), directory) == event


def test_a_launch_begins_from_its_own_run_or_from_another() -> None:
    launch = replace(LAUNCH, id="L2", decided=True, initial=Initial("base", "L9", 5, "base@best"))
    line = to_line(LaunchStarted(launch, START), "/run/a")
    assert from_line(line, "/run/a") == LaunchStarted(launch, START)
    of_own = to_line(LaunchStarted(replace(LAUNCH, id="L2", parent="L1", parent_step=5), START, LAUNCH), "/run/a")
    for wrong in (
        {**of_own["start"], "initial": line["start"]["initial"]},
        {**line["start"], "initial": ["base", "L9"]},
    ):
        with pytest.raises(ValueError, match=r"."):
            from_line({**line, "start": wrong}, "/run/a")


def test_a_launch_is_of_one_run() -> None:
    """Two runs may call a launch 777: what is told of the one is not told of the other, which may not be known."""
    file = Checkpoint(run="third", launch="L1", kind=Kind.PERIODIC, global_step=9, rank=0, path="/x", created_at=START)
    with in_memory().write() as connection:
        done = project(connection, [*KNOWN, FileRecorded(file)])
        assert [event.file for event in done.left_out if isinstance(event, FileRecorded)] == [file]
        project(connection, [LaunchStarted(replace(LAUNCH, run="third")), FileRecorded(file)])
        known = [reads.files_of(connection, reads.run_id(connection, run) or 0) for run in ("run", "twin", "third")]
    assert known == [[], [], [file]]


def test_a_type_that_this_program_does_not_know_is_counted() -> None:
    line = to_line(KNOWN[0], "/run/a")
    assert from_lines([line, {**line, "t": "of the future"}], "/run/a") == ([KNOWN[0]], 1)


FILE = Checkpoint(
    run="run",
    launch="L1",
    kind=Kind.PERIODIC,
    global_step=5,
    rank=0,
    path="/run/a/x.ckpt",
    size=100,
    mtime_ns=10**9,
    created_at=START,
)
SOURCE = Source("run", "L1", 0, "/run/a", Kind.PERIODIC, "net", "net", frozenset(), "host", None)
TIER = Tier("s3", "s3://bucket/prefix", 2)


def in_the_trash(file: Checkpoint) -> FilesRemoved:
    removed = RemovedFile("x.ckpt", 100, 10**9, file.id, generation(version_of_file(file)))
    return FilesRemoved("run", "gc1", "/run/a", Location.TRASH, settled=True, at=START, files=(removed,))


def test_a_removal_counts_for_the_record_at_the_path_where_its_journal_is_read() -> None:
    """A directory at two paths: the journal names the record of the other one, in whatever order they come."""
    here, there = FILE, replace(FILE, path="/mount/a/x.ckpt")
    removed = replace(in_the_trash(there), directory="/run/a")
    events: list[Event] = [FileRecorded(here), FileRecorded(there), removed]
    for order in permutations(events):
        of_both = rows([KNOWN, *([event] for event in order)])
        states = {row["path"]: row["state"] for row in of_both["checkpoints"]}
        assert states == {here.path: "trashed", there.path: "complete"}
        assert [row["checkpoint_id"] for row in of_both["trash"]] == [here.id]


ONE_OF_EACH: list[tuple[Event, str]] = [
    (LaunchStarted(replace(LAUNCH, id="L3"), START), "launches resolutions"),
    (SourceAdded(SOURCE, START), "sources"),
    (FileRecorded(FILE), "saves checkpoints"),
    (FileUnplaced("run", Unplaced("/run/a/y.ckpt", 100, 10**9, 5, "nothing tells its step", ""), START), "unplaced"),
    (TrainingEnded("run", "L1", 0, 5, None, None, "", START), "endings"),
    (LoadOutcome("run", "L1", 0, LoadResult.SAVED, START), "outcomes"),
    (LayoutFileKept("run", "L1", 0, "/run/s.ckpt", "0" * 64, "strategy", b""), "strategies launch_strategies"),
    (StepPinned("run", 5, pinned=True, at=START), "pins"),
    (StepTagged("run", "best", 5, START), "tags"),
    (PolicySet("run", {"keep_last": 1}, START), "policies"),
    (RunRenamed("run", "thesis", START), "renamed"),
    (RunForgotten("run", forgotten=True, at=START), "forgotten"),
    (in_the_trash(FILE), "trash"),
    (GcEnded("run", "gc1", START, START, ended=True, at=START), "collections"),
    (TierDeclared("run", Tier("s3", "s3://bucket/prefix", 2), declared=True, at=START), "tiers"),
    (
        CopyRecorded.of(replace(FILE, digest="a1"), Tier("nfs", "file:///nfs", 1), CopyState.READY, START),
        "tiers copies",
    ),
]


@pytest.mark.parametrize(("event", "tables"), ONE_OF_EACH, ids=[type(event).__name__ for event, _ in ONE_OF_EACH])
def test_an_event_of_each_type_makes_rows(event: Event, tables: str) -> None:
    before, after = rows([KNOWN]), rows([[*KNOWN, event]])
    assert {name for name in after if after[name] != before[name]} == set(tables.split())


def test_no_type_of_event_was_forgotten_there() -> None:
    assert {type(event) for event, _ in ONE_OF_EACH} == set(get_args(Event))


def known_files(told: Iterable[Event]) -> dict[str, Checkpoint]:
    """The file of each launch that has one, by events that were taken up one by one."""
    with in_memory().write() as connection:
        for event in told:
            project(connection, [*KNOWN, event])
        return {file.launch: file for file in reads.files_of(connection, reads.run_id(connection, "run") or 0)}


def known_source(told: Iterable[SourceAdded]) -> Source:
    with in_memory().write() as connection:
        for event in told:
            project(connection, [*KNOWN, event])
        (known,) = reads.sources_in(connection, ["/run/a"])
    return known


def test_what_tells_of_another_file_of_its_path_gives_the_first_one_back() -> None:
    """Two catalogs may say at one moment that the same gc has a path, each of the record that it knew."""
    one, other = FILE, replace(FILE, launch="L2")
    told = [in_the_trash(one), in_the_trash(other)]
    history: list[Event] = [*KNOWN, FileRecorded(one), FileRecorded(other)]
    assert rows([history, told[:1], told[1:]]) == rows([history, told[1:], told[:1]])


def test_two_directories_that_were_at_one_path_have_a_file_each() -> None:
    """A disk is away, a launch saves below its mount point, and the disk is back: its file was not overwritten."""
    files = [
        replace(FILE, launch=launch, created_at=START + timedelta(hours=hour), directory_id=f"{hour:016}")
        for hour, launch in enumerate(("L1", "L2"))
    ]
    known = known_files(map(FileRecorded, files))
    assert [file.state for file in known.values()] == [FileState.COMPLETE, FileState.COMPLETE]


def test_what_its_rank_registered_counts_before_what_a_scan_saw() -> None:
    """A scan may see a file before its rank registers it, and have no digest: a copy or a damage would not be told."""
    seen = replace(FILE, grade=Grade.PROVEN)
    registered = replace(FILE, digest="0" * 64, created_at=START + timedelta(seconds=1))
    for told in ([seen, registered], [registered, seen]):
        known = known_files(map(FileRecorded, told))["L1"]
        assert (known.digest, known.grade) == (registered.digest, None)


def test_a_file_is_back_at_its_path_only_if_it_was_seen_after_the_later_one_was_gone() -> None:
    later = replace(FILE, launch="L2", created_at=START + timedelta(seconds=1))
    gone = later.amended(state=FileState.MISSING)
    for revision, state in ((gone.newness, FileState.MISSING), (gone.newness + 1, FileState.COMPLETE)):
        told = [FILE, later, gone, replace(FILE, revision=revision)]
        assert known_files(map(FileRecorded, told))["L1"].state is state


def test_a_launch_id_that_is_used_again_after_a_clock_was_set_back_hides_no_file() -> None:
    """Its first process wrote the breakpoint that the second one found."""
    first = SourceAdded(SOURCE, START)
    found = replace(SOURCE, names_before=frozenset({"net-1_1_breakpoint.ckpt"}))
    again = SourceAdded(found, START - timedelta(minutes=5))
    for told in ([first, again], [again, first]):
        assert known_source(told).names_before == frozenset()


def test_of_two_sources_with_the_same_names_before_the_earlier_one_counts() -> None:
    first = SourceAdded(SOURCE, START)
    again = SourceAdded(replace(SOURCE, host="again"), START + timedelta(minutes=5))
    for told in ([first, again], [again, first]):
        assert known_source(told).host == "host"


def test_a_file_in_the_trash_has_left_its_path_to_another_one_whatever_the_clock_says() -> None:
    """Its name is used again after a clock was set back: the new file counted as overwritten by that in the trash."""
    old, new = FileRecorded(FILE), FileRecorded(replace(FILE, launch="L2", created_at=START - timedelta(minutes=5)))
    gone = in_the_trash(FILE)
    for told in ([old, gone, new], [new, old, gone]):
        known = known_files(told)
        assert (known["L1"].state, known["L2"].state) == (FileState.TRASHED, FileState.COMPLETE)


def test_a_file_that_was_announced_before_a_scan_saw_it_is_its_rank_s() -> None:
    seen = replace(FILE, launch="L2", created_at=START + timedelta(seconds=1), grade=Grade.CONSISTENT)
    for told in ([FILE, seen], [seen, FILE]):
        known = known_files(map(FileRecorded, told))
        assert (known["L1"].state, known["L2"].state) == (FileState.COMPLETE, FileState.MOVED)
