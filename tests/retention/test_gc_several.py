"""Checkpoints of several files go, come back and are purged as one: all of their files, or none."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Kind
from ckptstore.retention.execute import execute
from ckptstore.retention.in_trash import purge, undo
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.training.rank_launch import RankLaunch
from tests.foreign_bytes import pytorch, shards, stamped, tensorflow, written
from tests.jobs import begun
from tests.retention.builders import LAST_2, gc, names, removed, tree
from tests.retention.foreign_lines import every_wanted, removal
from tests.retention.foreign_lines import write as journal
from tests.retention.gc_world import NOBODY
from tests.trash_calls import MOVES, at, failing_after


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with nothing else in it: the catalog is in the one above."""
    path = tmp_path / "data"
    path.mkdir()
    return path


every_format = pytest.mark.parametrize("make", [tensorflow, shards])
Make = Callable[[Path], Path]


def four(catalog: Catalog, directory: Path, make: Make) -> RankLaunch:
    """Steps 10 to 40, and files beside them whose names begin alike."""
    launch = catalog.join("run")
    for step in (10, 20, 30, 40):
        launch.register(make(directory / f"at-{step}"), global_step=step)
    tensorflow(directory / "at-10.ckpt")
    shards(directory / "at-100")
    written(directory / "at-10.indexes", b"mine")
    return launch


def of(tree: dict[str, bytes], *steps: int) -> set[str]:
    starts = tuple(f"at-{step}{end}" for step in steps for end in ("/", ".data-", ".index"))
    return {name for name in tree if name.startswith(starts) and not name.endswith("indexes")}


@every_format
@pytest.mark.parametrize("at_once", [False, True])
def test_all_of_them_go(catalog: Catalog, home: Path, make: Make, *, at_once: bool) -> None:
    four(catalog, home, make)
    before = tree(home)
    going = of(before, 10, 20)
    size = sum(len(before[name]) for name in going)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert [step for _, step in removed(plan)] == [20, 10]
    assert (plan.bytes_freed, len(going)) == (size, 6)
    done = execute(catalog.database, plan, at_once=at_once, allow_mass_delete=True)
    assert (done.files, done.bytes, done.troubles) == (2, size, ())
    assert names(home) == before.keys() - going
    if at_once:
        assert not [path for path in home.rglob(".ckptstore/trash/*/*") if path.is_file()]
        return
    back = undo(catalog.database, "run")
    assert (back.files, back.bytes, back.troubles) == (2, size, ())
    assert tree(home) == before
    assert catalog.resolve("run", step=10).plan is not None
    gc(catalog)
    gone = purge(catalog.database, "run", at_once=True)
    assert (gone.files, gone.bytes, gone.troubles) == (2, size, ())
    assert set(tree(home)) == before.keys() - going
    assert not [path for path in home.rglob(".ckptstore/trash/*/*") if path.is_file()]


def spoil(path: Path, how: str) -> str:
    """Make a directory, or a prefix, one that gc leaves; and why it does."""
    member = path / "zero" / "mp_rank_00_model_states.pt" if path.is_dir() else path.with_name(f"{path.name}.index")
    match how:
        case "hard link":
            (path.parent / "mine").hardlink_to(member)
            return "has another hard link"
        case "link":
            there = member.rename(path.parent / "mine")
            member.symlink_to(there)
            return "is a link, or no file|is a link: no link is followed|not a regular file"
        case "another user's":
            os.chown(member, NOBODY, NOBODY)
            return "belongs to user nobody, and no journal of that user beside it records it"
        case "another user's directory":
            os.chown(member.parent, NOBODY, NOBODY)
            return "belongs to user nobody, and no journal of that user beside it records it"
        case "written by others":
            member.parent.chmod(0o775)
            return "zero must be writable to its owner, and to no one else"
    (path / "zero").chmod(0o555)
    return "zero must be writable to its owner, and to no one else"


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (tensorflow, "hard link"),
        (tensorflow, "link"),
        (tensorflow, "another user's"),
        (shards, "hard link"),
        (shards, "link"),
        (shards, "another user's"),
        (shards, "another user's directory"),
        (shards, "written by others"),
        (shards, "read only"),
    ],
)
@pytest.mark.parametrize("planned", [False, True])
def test_what_is_not_the_users_alone_stays(
    catalog: Catalog, home: Path, make: Make, how: str, *, planned: bool
) -> None:
    if "another" in how and os.geteuid() != 0:
        pytest.skip("makes files of other users")
    four(catalog, home, make)
    plan = plan_gc(catalog.database, "run", LAST_2)
    reason = spoil(home / "at-10", how)
    before = names(home)
    if not planned:
        plan = plan_gc(catalog.database, "run", LAST_2)
        assert [step for _, step in removed(plan)] == [20]
    done = execute(catalog.database, plan, allow_mass_delete=True)
    assert [step for _, step in done.removed] == [20]
    kept = [verdict.state.doubt for verdict in plan.decision.keep if verdict.state.global_step == 10]
    (told,) = [skipped.reason for skipped in done.skipped] if planned else kept
    assert not {name for name in before if name.startswith("at-10")} - names(home)
    assert re.search(reason, told)
    assert "\n" not in told
    assert str(home / "at-10") in told


@every_format
def test_others_of_the_same_names_sizes_and_times_stay(catalog: Catalog, home: Path, make: Make) -> None:
    four(catalog, home, make)
    plan = plan_gc(catalog.database, "run", LAST_2)
    for name in of(tree(home), 10):
        content = (home / name).read_bytes()
        (home / name).rename(home / "aside")
        stamped(written(home / name, content), 1)
    done = execute(catalog.database, plan, allow_mass_delete=True)
    assert [step for _, step in done.removed] == [20]
    assert [skipped.reason for skipped in done.skipped] == [f"{home}/at-10 is another file since the plan was made"]
    assert len(of(tree(home), 10)) == 3


@every_format
@pytest.mark.parametrize("at_once", [False, True])
def test_a_member_that_is_swapped_before_the_move_goes_back(
    catalog: Catalog, home: Path, make: Make, *, at_once: bool
) -> None:
    """Of the same size and time, between the last look and the first move."""
    four(catalog, home, make)
    member = home / max(of(tree(home), 10))

    def swap() -> None:
        content = member.read_bytes()
        member.rename(home / "aside")
        stamped(written(member, content), 1)

    before = of(tree(home), 10)
    with at(1, ("rename",), swap):
        done = gc(catalog, at_once=at_once)
    assert (done.files, done.troubles) == (1, ())
    assert of(tree(home), 10) == before
    assert (home / "aside").exists()
    assert {file.state.value for file in catalog.show("run", 10)} == {"complete"}


@pytest.mark.parametrize(("make", "other"), [(shards, False), (shards, True), (tensorflow, True)])
def test_what_another_record_has_in_it_stays(catalog: Catalog, home: Path, make: Make, *, other: bool) -> None:
    """And so does what is one of several files of another state: without it that one is damaged."""
    launch = four(catalog, home, make)
    member = str(home / max(of(tree(home), 10)))
    if other:
        launch = catalog.join("other")
    launch.add_source(str(home), kind=Kind.PERIODIC, prefix="x", breakpoint_prefix="", names_before=())
    launch.register(member, global_step=15)
    plan = plan_gc(catalog.database, "run", Policy(keep_last=2))
    assert [step for _, step in removed(plan)] == [20]
    doubts = {verdict.state.global_step: verdict.state.doubt for verdict in plan.decision.keep}
    assert doubts[10].startswith(f"{home}/at-10 has {member} in it, of step 15 of launch ")
    if not other:
        assert doubts[15].startswith(f"{member} is one of several files, {home}/at-10, of step 10 of launch ")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users")
@every_wanted
@pytest.mark.parametrize("where", ["gc1/x", "gc1/.ckptstore"])
def test_a_directory_that_was_put_into_the_trash(
    catalog: Catalog, home: Path, wanted: str, where: str, *, settled: bool
) -> None:
    """As if a purge had begun to delete it, too: a file in it is of somebody who said nothing of the run."""
    four(catalog, home, shards)
    theirs = home / ".ckptstore" / "trash" / where
    shards(theirs)
    os.chown(theirs / "zero" / "mp_rank_00_model_states.pt", NOBODY, NOBODY)
    at = "2026-01-01T00:00:00+00:00"
    ended = {"t": "gc", "run": "run", "collection": "gc1", "began": at, "purge_after": at, "ended": True, "at": at}
    size = sum(path.stat().st_size for path in theirs.rglob("*") if path.is_file())
    journal(home, 0, ended, removal("run", wanted, ("x", size, 10**9, "", ""), settled=settled))
    catalog.sync(home)
    gc(catalog)
    undo(catalog.database, "run")
    purge(catalog.database, "run", at_once=True)
    gc(catalog, at_once=True)
    assert len([path for path in theirs.rglob("*") if path.is_file()]) == 3
    assert not (home / "x").exists()


def test_a_file_of_pytorch_goes_as_any_other(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run")
    paths = [pytorch(tmp_path / f"{step}.pth.tar", at=step) for step in (10, 20, 30)]
    for path in paths:
        launch.register(path, global_step=int(path.name.split(".")[0]))
    assert gc(catalog).removed == ((launch.id, 10),)
    assert [path.exists() for path in paths] == [False, True, True]
    catalog.undo("run")
    assert paths[0].exists()


def test_what_mindspore_cannot_load_does_not_count_for_what_it_can(catalog: Catalog, tmp_path: Path) -> None:
    """Before, the newest two were of PyTorch, and every state of MindSpore went."""
    job, ranks = begun(catalog, tmp_path / "data", 10, 20, 30)
    for step in (40, 50, 60):
        for rank in ranks:
            rank.register(pytorch(job.folder(rank.rank) / f"{step}.pth"), global_step=step)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == [("L1", 10)]
    kept = {verdict.state.global_step: verdict.state for verdict in plan.decision.keep}
    assert [step for step, state in kept.items() if state.counts] == [30, 20]
    assert "MindSpore cannot load it" in kept[60].doubt


@every_format
def test_what_a_purge_has_begun_to_delete_does_not_count_as_in_the_trash(
    catalog: Catalog, home: Path, make: Make
) -> None:
    """Before, the catalog went on saying so until undo did not find it."""
    four(catalog, home, make)
    gc(catalog)
    with failing_after(2, MOVES, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        purge(catalog.database, "run", at_once=True)
    assert gc(catalog).troubles == ()
    assert [file.state.value for file in catalog.files("run")] == ["complete", "complete", "trashed", "missing"]
    back = undo(catalog.database, "run")
    assert (back.files, back.gone, back.troubles) == (1, 0, ())
