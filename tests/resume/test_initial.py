"""The state of another run that a launch begins from, with real files on disk."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import reads
from ckptstore.catalog.engine import open_database
from ckptstore.core.events import LaunchStarted
from ckptstore.core.hints import Call
from ckptstore.core.model import Content, FileState, Initial
from ckptstore.errors import NothingRestorableError, RefusedError, UnknownRunError
from ckptstore.resume import start
from ckptstore.resume.resolver import Query
from ckptstore.resume.start import Decided
from ckptstore.retention.policy import Policy
from ckptstore.training.rank_launch import RankLaunch
from ckptstore.training.start import begin as begin_launch
from ckptstore.training.start import decide
from tests.jobs import Job, begun
from tests.projecting import put, put_files

_numbers = count(1)
NEWEST = Policy(keep_last=1, floor=1)


def parent(catalog: Catalog, tmp_path: Path, *steps: int, world_size: int = 1, layout: str | None = None) -> Job:
    return begun(catalog, tmp_path / "parent", *steps, world_size=world_size, layout=layout, run="parent")[0]


def begin(
    catalog: Catalog, initial: str | None = "parent", *, ranks: int = 1, **asked: Any
) -> tuple[RankLaunch, Decided]:
    """A launch of the run, of which rank 0 asks where it starts."""
    layout = "data_parallel" if ranks > 1 else None
    launch = catalog.join("child", rank=0, world_size=ranks, layout=layout, launch_id=f"C{next(_numbers)}")
    return launch, launch.decide_start(catalog.database, Query(initial=initial, **asked))


def kept(catalog: Catalog) -> dict[int, str]:
    """The steps of the parent that its gc keeps, each with the first reason."""
    plan = catalog.plan_gc("parent", NEWEST)
    return {each.state.global_step: each.reasons[0].detail for each in plan.decision.keep}


def test_its_gc_keeps_the_state_until_the_run_has_a_whole_one(catalog: Catalog, tmp_path: Path) -> None:
    """On both databases."""
    parent(catalog, tmp_path, 5, 10)
    began = "run child began from it and has no state of its own yet"
    child = Job(catalog, tmp_path / "child", 2, "data_parallel", run="child")
    first, settled = begin(catalog, "parent@5", ranks=2)
    assert settled.plan is None
    assert [each.source.rank for each in settled.initial.ranks] == [0, 0]
    assert kept(catalog) == {10: "the newest restorable state", 5: began}
    weights = first.register(child.write(first, 3), global_step=3)
    put_files(catalog, [replace(weights, content=Content.WEIGHTS, mtime_ns=(weights.mtime_ns or 0) + 1)])
    assert kept(catalog)[5] == began, "weights alone are no state"
    again, settled = begin(catalog, "parent@5", ranks=2)
    assert settled.initial is not None
    again.register(child.write(again, 4, name="whole.ckpt"), global_step=4)
    assert 5 not in kept(catalog)
    begin(catalog, "parent@5", ranks=2, fresh=True)
    assert kept(catalog)[5] == began, "it starts over: what it has is given up"


def test_half_a_state_is_none(catalog: Catalog, tmp_path: Path) -> None:
    parent(catalog, tmp_path, 5, 10)
    ranks = [catalog.join("child", rank=rank, world_size=2, launch_id="C1") for rank in range(2)]
    child = Job(catalog, tmp_path / "child", run="child")
    ranks[0].decide_start(catalog.database, Query(initial="parent@5"))
    for rank, is_needed in ((0, True), (1, False)):
        ranks[rank].register(child.write(ranks[rank], 3, name="net-1_3.ckpt"), global_step=3)
        assert (5 in kept(catalog)) is is_needed


def test_the_answer_is_the_same_for_every_rank_that_asks(sqlite_url: str, tmp_path: Path) -> None:
    catalog = connect(sqlite_url)
    job = parent(catalog, tmp_path, 5, world_size=2, layout="data_parallel")
    ranks = [
        catalog.join("child", rank=rank, world_size=3, layout="data_parallel", launch_id="C1") for rank in range(3)
    ]
    told = [ranks[0].decide_start(catalog.database, Query(initial="parent"))]
    job.save(job.begin(), 15)
    told += [each.decide_start(catalog.database, Query(initial="parent")) for each in ranks[1:]]
    assert told[0].initial == told[1].initial == told[2].initial
    assert [each.source.rank for each in told[0].initial.ranks] == [0, 1, 0]
    assert {each.facts.initial for each in ranks} == {Initial("parent", "L1", 5, "parent")}


@pytest.mark.parametrize(
    ("layout", "content", "told"),
    [
        (None, Content.FULL, "saved by 2 ranks: its layout is stand_alone"),
        ("data_parallel", Content.SHARE, "saved by 2 ranks: each of its files is a share of it"),
    ],
)
def test_what_is_in_pieces_is_refused(
    sqlite_url: str, tmp_path: Path, layout: str | None, content: Content, told: str
) -> None:
    catalog = connect(sqlite_url)
    job = Job(catalog, tmp_path / "parent", 2, layout, run="parent")
    files = job.save(job.begin(), 5)
    put_files(catalog, [replace(file, content=content, mtime_ns=(file.mtime_ns or 0) + 1) for file in files])
    with pytest.raises(NothingRestorableError, match=f"no file is known to hold all of step 5 of run 'parent', {told}"):
        begin(catalog, ranks=2)


def test_a_launch_without_it_is_refused_until_the_run_begins_anew(sqlite_url: str, tmp_path: Path) -> None:
    catalog = connect(sqlite_url)
    parent(catalog, tmp_path, 5)
    begin(catalog, "parent@5")
    with pytest.raises(NothingRestorableError, match="began from step 5 of run parent") as refused:
        begin(catalog, None)
    assert str(Call("resume", initial="parent@5")) in refused.value.hint
    assert begin(catalog, None, fresh=True)[1].initial is None
    assert kept(catalog) == {5: "the newest restorable state"}
    assert begin(catalog, None)[1].initial is None


def test_a_state_that_is_removed_while_it_is_chosen(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = connect(sqlite_url)
    parent(catalog, tmp_path, 5, 10)
    choose, removed = start.choose_initial, []

    def then_lost(*asked: Any) -> Any:
        found = choose(*asked)
        if found and not removed:
            removed.append(found.global_step)
            put_files(catalog, [each.source.amended(state=FileState.MISSING) for each in found.ranks])
            Path(found.ranks[0].source.path).unlink()
        return found

    monkeypatch.setattr(start, "choose_initial", then_lost)
    _, settled = begin(catalog)
    assert (removed, settled.initial.global_step) == ([10], 5)


def test_the_state_of_a_user_who_is_not_trusted(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = connect(sqlite_url)
    job = parent(catalog, tmp_path, 5)
    put(catalog, [LaunchStarted(replace(job.start(resume=False)[0].facts, id="L1", owner=12345))])
    with catalog.database.write() as connection:
        connection.exec_driver_sql("UPDATE launches SET owner = 12345")
    with pytest.raises(RefusedError, match="saved by user 12345 .*; to begin from it set CKPTSTORE_TRUST=12345"):
        begin(catalog)
    monkeypatch.setenv("CKPTSTORE_TRUST", "12345")
    assert begin(catalog)[1].initial is not None


def test_a_run_that_was_forgotten_is_named(sqlite_url: str, tmp_path: Path) -> None:
    catalog = connect(sqlite_url)
    parent(catalog, tmp_path, 5)
    begin(catalog)
    catalog.forget("parent")
    told = "cannot be loaded now: run 'parent' was forgotten; ckptstore forget parent --undo brings it back"
    with pytest.raises(NothingRestorableError, match=told):
        begin(catalog)


def test_a_run_that_was_renamed_is_still_the_one(sqlite_url: str, tmp_path: Path) -> None:
    catalog = connect(sqlite_url)
    parent(catalog, tmp_path, 5)
    begin(catalog, "parent@5")
    catalog.rename("parent", "base")
    catalog.rename("child", "tuned")
    _, settled = begin(catalog, "parent@5")
    assert settled.initial is not None
    assert catalog.saves("base")[0].began == ("tuned",)
    with catalog.database.read() as connection:
        launches = reads.launches_of(connection, reads.run_id(connection, "tuned") or 0)
    assert {each.initial for each in launches} == {Initial("parent", "L1", 5, "parent@5")}


@pytest.mark.of_files
def test_a_start_without_the_catalog_says_where_it_looked_for_the_other_run(tmp_path: Path) -> None:
    away = open_database("/nowhere/catalog.db")
    launch = begin_launch(away, "child", rank=0, world_size=1, launch_id="C1", layout=None, directories=[tmp_path])
    with pytest.raises(UnknownRunError, match=r"^no run 'parent' in the journals that were found"):
        decide(launch, [tmp_path], Query(initial="parent"))
