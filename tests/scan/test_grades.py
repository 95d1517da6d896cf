"""How sure a step is, what makes it surer, and what becomes of files that get none: none is passed over in silence."""

import os
import struct
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.core.events import FileUnplaced, from_line, to_line
from ckptstore.core.model import Grade, Rule, Unplaced, moment
from ckptstore.errors import NothingRestorableError, RefusedError, UsageError
from ckptstore.evidence.unregistered import Trusted
from ckptstore.resume.remedies import how_to_place
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes, hints
from tests.command_line import ckptstore
from tests.contents import WORK, contents
from tests.formats.layouts import write_spreads
from tests.jobs import Job
from tests.spreads import spread

LEFT_OUT = 7


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What keep_checkpoint_max=3 leaves of a job that was killed in epoch 3 of 10 steps: nothing proves that length."""
    return save(tmp_path / "job", 24, 26, 28)


def save(root: Path, *steps: int, prefix: str = "net", lags: bool = False) -> Path:
    """Files of rank 0, 10 steps an epoch, a second a step."""
    for step in steps:
        name = f"{prefix}-{(step - 1) // 10 + 1}_{(step - 1) % 10 + 1}.ckpt"
        path = ckpt_bytes.write(root / "rank_0" / name, step)
        if lags:
            path.write_bytes(ckpt_bytes.value("scale_sense", "Float32", (1,), b"1234") + path.read_bytes())
        os.utime(path, ns=(step * 10**9, step * 10**9))
    return root


def leave(path: Path, counter: int, *, at: int) -> Path:
    """What OnRequestExit saves at SIGTERM: nothing is appended, and its name tells no step (mindspore.md §3)."""
    path.write_bytes(ckpt_bytes.value("global_step", "Int32", (1,), struct.pack("<i", counter)))
    os.utime(path, ns=(at * 10**9, at * 10**9))
    return path


def graded(catalog: Catalog) -> dict[int, tuple[Grade | None, str]]:
    return {file.global_step: (file.grade, file.doubt) for file in catalog.files("job")}


def start(catalog: Catalog, root: Path) -> int | None:
    """Where a job of one rank and 10 steps an epoch starts."""
    (launch,) = Job(catalog, root, world_size=1, run="job").start()
    return launch.facts.parent_step


def test_a_step_that_every_reading_gives_is_taken_and_the_start_proves_it(catalog: Catalog, tree: Path) -> None:
    done = catalog.scan(tree, world_size=1)
    assert [(file.global_step, file.grade) for file in done.adopted] == [
        (step, Grade.CONSISTENT) for step in (24, 26, 28)
    ]
    assert {file.doubt for file in done.adopted} == {"the steps per epoch are unknown until your script starts"}
    found = catalog.resolve("job")
    assert (found.plan.global_step, found.plan.grade, found.plan.doubt) == (
        28,
        Grade.CONSISTENT,
        "the steps per epoch are unknown until your script starts",
    )
    assert start(catalog, tree) == 28
    assert graded(catalog) == dict.fromkeys((24, 26, 28), (Grade.PROVEN, ""))
    assert catalog.resolve("job").plan.initial_epoch == 2  # the length is known now


def test_a_state_that_does_not_fit_the_dataset_is_passed_over_with_that_reason(
    catalog: Catalog, tmp_path: Path
) -> None:
    root = save(tmp_path / "job", 34, 36)
    for path in (root / "rank_0").glob("*.ckpt"):
        path.rename(path.with_name(path.name.replace("-4_", "-3_")))  # as with 12 to 16 steps an epoch
    catalog.scan(root, world_size=1)
    with pytest.raises(
        NothingRestorableError,
        match=r"counter is 36, and the dataset has 10 steps an epoch, so the name of .*net-3_6.ckpt is of another",
    ):
        start(catalog, root)
    (launch,) = Job(catalog, root, world_size=1, run="job").start(resume=False)
    launch.set_steps_per_epoch(10)
    launch.resolve(step=36)  # asked for by name it is taken
    assert launch.facts.parent_step == 36


def test_gc_removes_nothing_that_is_sure_for_what_no_start_has_confirmed(catalog: Catalog, tmp_path: Path) -> None:
    root = save(tmp_path / "job", 2, 4)
    catalog.scan(root, world_size=1, steps_per_epoch=10)
    save(root, 24, 26, 28, prefix="net_1")
    catalog.scan(root, world_size=1)
    assert {step: grade for step, (grade, _) in graded(catalog).items()} == {
        **dict.fromkeys((2, 4), Grade.PROVEN),
        **dict.fromkeys((24, 26, 28), Grade.CONSISTENT),
    }
    keep = Policy(keep_last=1)
    assert catalog.plan_gc("job", keep).decision.remove == ()
    assert start(catalog, root) == 28
    assert {each.state.global_step for each in catalog.plan_gc("job", keep).decision.remove} == {2, 4, 24}


def test_the_length_of_an_epoch_proves_what_was_open(catalog: Catalog, tree: Path) -> None:
    catalog.scan(tree, world_size=1)
    again = catalog.scan(tree, world_size=1, steps_per_epoch=10)
    assert (again.adopted, len(again.regraded)) == ((), 3)
    assert graded(catalog) == dict.fromkeys((24, 26, 28), (Grade.PROVEN, ""))
    assert (catalog.scan(tree, world_size=1).regraded, set(graded(catalog).values())) == ((), {(Grade.PROVEN, "")})


def test_what_gets_no_place_is_known_and_stops_a_start_until_it_has_one(
    catalog: Catalog, database_url: str, tree: Path
) -> None:
    catalog.scan(tree, world_size=1)
    left = leave(tree / "rank_0" / "net_train.ckpt", 29, at=29)
    scan = ("--db", database_url, "scan", str(tree), "--run", "job")
    assert ckptstore(*scan).code == LEFT_OUT
    found = catalog.resolve("job")
    assert [(each.path, each.best_guess) for each in found.unplaced] == [(str(left), 29)]
    shown = ckptstore("--db", database_url, "resolve", "job", "--explain").out
    command = f"ckptstore scan {tree} --run job --trust counter"
    assert f"to place it: {command}" in shown
    listed = ckptstore("--db", database_url, "list", "job").out
    assert f"1 file has no certain step or rank, such as {left}; see: ckptstore resolve job --explain" in listed
    assert (
        f"unplaced      1 newer file has no certain step or rank: {left}"
        in ckptstore("--db", database_url, "doctor").out
    )
    with pytest.raises(RefusedError, match="would start from step 28") as refused:
        start(catalog, tree)
    assert command in str(refused.value)
    assert "resume(step=28)" in str(refused.value)
    assert ckptstore("--db", database_url, *command.split()[1:]).code == 0
    assert catalog.resolve("job").unplaced == ()
    assert graded(catalog)[29] == (Grade.ASSUMED, "the optimizer's counter alone says so")
    assert start(catalog, tree) == 29


def test_a_start_beside_what_has_no_place_may_be_told_its_step(catalog: Catalog, tree: Path) -> None:
    catalog.scan(tree, world_size=1)
    leave(tree / "rank_0" / "net_train.ckpt", 29, at=29)
    catalog.scan(tree, world_size=1)
    with pytest.raises(RefusedError, match=r"resume\(step=28\)"):
        start(catalog, tree)
    (launch,) = Job(catalog, tree, world_size=1, run="job").start(resume=False)
    launch.resolve(step=28)
    assert launch.facts.parent_step == 28


def test_what_a_journal_says_would_place_a_file_is_words_on_a_command_line() -> None:
    hostile = Unplaced("/a b/c.ckpt", 1, 1, 3, "why", "--trust counter; touch /x && --step FILE=STEP $(y)")
    command = how_to_place("my run", hostile)
    assert str(command) == (
        "ckptstore scan '/a b' --run 'my run' --trust 'counter;' touch /x '&&' --step '/a b/c.ckpt=3' '$(y)'"
    )
    hints.MADE.remove(command)  # no command takes these words


@pytest.mark.parametrize("remedy", [each.remedy for each in Trusted])
def test_a_journal_proposes_each_witness_that_a_scan_names(remedy: str) -> None:
    """Else its line counts as damaged, and another catalog passes the newer file over without a word."""
    event = FileUnplaced("run", Unplaced("/run/a.ckpt", 1, 1, None, "why", remedy), moment(0))
    assert from_line(to_line(event, "/run"), "/run") == event


@pytest.mark.parametrize("told", ["--trust mallory", "--run other", "--trust counter; rm -rf /", "--step FILE=STEPx"])
def test_a_journal_proposes_no_other_options(told: str) -> None:
    file = Unplaced("/run/a.ckpt", 1, 1, None, "why", "--trust name --steps-per-epoch 28")
    event = FileUnplaced("run", file, moment(0))
    line = to_line(event, "/run")
    assert from_line(line, "/run") == event
    with pytest.raises(ValueError, match="remedy"):
        from_line({**line, "remedy": told}, "/run")


def test_a_file_that_is_gone_or_older_than_the_plan_stops_nothing(catalog: Catalog, tree: Path) -> None:
    leave(tree / "rank_0" / "net_train.ckpt", 2, at=2)
    catalog.scan(tree, world_size=1)
    assert catalog.resolve("job").unplaced == ()
    later = leave(tree / "rank_0" / "other_train.ckpt", 99, at=99)
    catalog.scan(tree, world_size=1)
    assert len(catalog.resolve("job").unplaced) == 1
    later.unlink()
    assert catalog.resolve("job").unplaced == ()
    assert start(catalog, tree) == 28


def test_a_tree_of_which_nothing_is_placed_stops_a_fresh_start(catalog: Catalog, tmp_path: Path) -> None:
    root = save(tmp_path / "job", 24, 26, lags=True)
    done = catalog.scan(root, world_size=1)
    assert (done.adopted, len(done.uncertain)) == ((), 2)
    with pytest.raises(RefusedError, match=r"would start from the beginning.*--trust name --steps-per-epoch 10 places"):
        start(catalog, root)
    placed = catalog.scan(root, world_size=1, trust=["name"], steps_per_epoch=10)
    assert [file.global_step for file in placed.adopted] == [24, 26]
    assert start(catalog, root) == 26


def test_the_user_says_of_which_step_a_file_is(catalog: Catalog, tree: Path) -> None:
    left = leave(tree / "rank_0" / "net_train.ckpt", 29, at=29)
    catalog.scan(tree, world_size=1)
    with pytest.raises(UsageError, match="there is no checkpoint nowhere.ckpt below"):
        catalog.scan(tree, world_size=1, steps={"nowhere.ckpt": 3})
    catalog.scan(tree, world_size=1, steps={"rank_0/net_train.ckpt": 29})
    assert catalog.resolve("job").plan.global_step == 29
    catalog.scan(tree, world_size=1, steps={left: 30})  # it was not: the last word counts
    plan = catalog.resolve("job").plan
    assert (plan.global_step, plan.grade, plan.doubt) == (30, Grade.ASSUMED, "its step was stated")
    catalog.scan(tree, world_size=1, steps={left: 27})
    assert catalog.resolve("job").plan.global_step == 27  # it was written last: the run went on from there
    assert catalog.scan(tree, world_size=1).adopted == ()
    assert catalog.resolve("job", step=30).plan is None
    assert [file.path for file in catalog.show("job", 27)] == [str(left)]


@pytest.mark.parametrize("told", ["net_train.ckpt", "net_train.ckpt=x", "=3", "net_train.ckpt=-1"])
def test_a_step_that_is_none_is_refused(sqlite_url: str, tree: Path, told: str) -> None:
    refused = ckptstore("--db", sqlite_url, "scan", str(tree), "--step", told)
    assert (refused.code, "rank_0/net-3_9.ckpt=65" in refused.err) == (2, True)


def test_replicas_that_are_stated_are_those_of_the_scanned_launches(catalog: Catalog, tree: Path) -> None:
    catalog.scan(tree, world_size=2)
    assert catalog.resolve("job").rejections[0].reasons[0].rule is Rule.MISSING_RANK
    catalog.scan(tree, world_size=2, replicas="dp")
    plan = catalog.resolve("job").plan
    assert [(each.rank, each.source.rank) for each in plan.ranks] == [(0, 0), (1, 0)]
    with pytest.raises(UsageError):
        catalog.scan(tree, world_size=2, replicas="0,7;1")
    other = write_spreads(tree.parent / "other.ckpt", 0, [spread("conv.weight", grid=(2,))])
    with pytest.raises(UsageError, match="names no parameter of"):
        catalog.scan(tree, world_size=2, replicas=str(other))
    own = write_spreads(tree.parent / "own.ckpt", 0, [spread("weight", grid=(2,))])
    assert catalog.scan(tree, world_size=2, replicas=str(own)).adopted == ()


def test_a_catalog_made_anew_has_grades_and_what_was_left_out(catalog: Catalog, other: Catalog, tree: Path) -> None:
    leave(tree / "rank_0" / "net_train.ckpt", 29, at=29)
    catalog.scan(tree, world_size=1)
    other.scan(tree)
    assert contents(other, but=WORK) == contents(catalog, but=WORK)
    catalog.scan(tree, trust=["counter"])
    start(catalog, tree)
    catalog.scan(tree, steps={"rank_0/net_train.ckpt": 30})
    other.scan(tree)
    assert contents(other, but=WORK) == contents(catalog, but=WORK)


FAR = "9" * 20


@pytest.mark.parametrize(
    ("name", "number", "steps"),
    [
        (f"x_train-step_{FAR}.ckpt", None, []),
        (f"net-1_{FAR}.ckpt", None, []),
        (f"net-{FAR}_1.ckpt", None, []),
        (f"global_step{FAR}/a.pt", None, []),
        ("net-1_20261130194047.ckpt", None, [20261130194047]),  # a date, as some scripts write it
        ("x_train.ckpt", -7, []),
        ("net-1_5.ckpt", -7, [5]),
    ],
)
def test_a_number_that_no_catalog_holds_is_no_step(
    catalog: Catalog, tmp_path: Path, name: str, number: int | None, steps: list[int]
) -> None:
    path = tmp_path / "job" / "rank_0" / name
    path.parent.mkdir(parents=True)
    content = ckpt_bytes.value("weight", "Float32", (1,), b"1234")
    if number is not None:
        content += ckpt_bytes.value("global_step", "Int32", (1,), struct.pack("<i", number))
        content += ckpt_bytes.value("step_num", "Int64", (), struct.pack("<q", number))
    path.write_bytes(content)
    done = catalog.scan(tmp_path / "job", steps_per_epoch=7, trust=["name", "info", "counter"])
    assert [file.global_step for file in done.adopted] == steps
    anew = connect(f"sqlite:///{tmp_path / 'anew.db'}")
    assert not anew.scan(tmp_path / "job").adopted, "the journal has it"
    assert [file.global_step for file in anew.files("job")] == steps
