"""What saves leave behind, what belongs to a checkpoint, and what is not what it was recorded as."""

import os
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Content, Kind
from ckptstore.formats.safetensors import head_of
from ckptstore.resume.register import describe, measured
from ckptstore.retention.debris import Target, has_checkpoint_beside
from ckptstore.retention.decide import Why
from ckptstore.retention.execute import execute
from ckptstore.retention.in_trash import undo
from ckptstore.retention.plan import plan_gc
from ckptstore.training import companions
from tests.jobs import begun
from tests.retention.builders import LAST_2, gc, names, removed, saved, tree
from tests.retention.gc_world import LONG_AGO, build

pytestmark = pytest.mark.of_files


def left(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left behind")
    os.utime(path, (LONG_AGO, LONG_AGO))


@pytest.mark.parametrize("is_lost", [False, True])
def test_companions_and_directories_go_with_their_files(
    catalog: Catalog, other: Catalog, tmp_path: Path, *, is_lost: bool
) -> None:
    """A graceful exit's `.mindir`, 0400 files, a directory of TTP; and all of it comes back, by a new catalog too."""
    job = build(catalog, tmp_path / "data")
    before = tree(job.directory)
    done = gc(catalog)
    assert done.troubles == ()
    assert not (job.directory / "ttp" / "ttp_saved_checkpoints-step_50").exists()
    assert (job.directory / "ttp").exists()
    assert not any(path.suffix == ".mindir" and ".ckptstore" not in path.parts for path in job.directory.rglob("*"))
    assert names(job.directory) == {f"rank_{rank}/net_1-{end}.ckpt" for rank in (0, 1) for end in ("7_10", "8_10")}
    if is_lost:
        other.scan(job.directory)
    undone = undo((other if is_lost else catalog).database, "run")
    assert (undone.files, undone.troubles, undone.gone) == (done.files, (), 0)
    assert tree(job.directory) == before
    modes = {path.stat().st_mode & 0o777 for path in job.directory.rglob("*.ckpt")}
    assert modes == {0o400}


def test_a_companion_stays_beside_a_checkpoint_of_the_other_format(catalog: Catalog, tmp_path: Path) -> None:
    """After a return to an older state with another `format`, a name without its ending is used again."""
    job, _ = begun(catalog, tmp_path / "data", 10, 20, 30, world_size=1)
    (second,) = job.begin()
    path = job.write(second, 40, name="net-1_10.safetensors")
    path.write_bytes(head_of([("global_step", "Int32", (1,), 4)], {"format": "ms"}) + (40).to_bytes(4, "little"))
    file = second.register(path, global_step=40, optimizer_step=40)
    companions.write(file, {"callbacks": {}}, durable=False)
    assert gc(catalog).troubles == ()
    assert not (job.folder(0) / "net-1_10.ckpt").exists()
    assert companions.read(file).content, "it is of the state that stays"


def test_a_ttp_directory_that_cannot_complete(catalog: Catalog, tmp_path: Path) -> None:
    job, first = begun(catalog, tmp_path / "data")
    for launch in first:
        launch.add_source(str(job.directory / "ttp"), kind=Kind.TTP, prefix="", breakpoint_prefix="", names_before=())
    job.save(first, 10)
    home = job.directory / "ttp"
    half = home / "ttp_saved_checkpoints-step_15_tmp"
    path = job.write(first[0], 15)
    (half / "rank_0").mkdir(parents=True)
    path = path.rename(half / "rank_0" / "ttp_rank_0-2_5.ckpt")
    first[0].register(path, kind="ttp", global_step=15)
    left(half / "rank_1" / "ttp_rank_1-2_5.tmp")
    left(home / "ttp_saved_checkpoints-step_17" / "notes.txt")
    assert removed(plan_gc(catalog.database, "run", LAST_2)) == [], "its launch may still complete it"
    job.save(job.begin(), 20)
    dead = str(half / "rank_1" / "ttp_rank_1-2_5.tmp")
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == [("L1", 15)]
    assert plan.decision.remove[0].reasons[0].rule is Why.NOT_RESTORABLE
    assert {each.path: each.reason for each in plan.debris} == {dead: "left over from an unfinished save"}
    execute(catalog.database, plan)
    assert [path.name for path in home.iterdir() if path.name != ".ckptstore"] == ["ttp_saved_checkpoints-step_17"]


def test_weights_only_are_not_retentions(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30)
    launch = catalog.join("run", rank=0, world_size=2, launch_id="L8")
    path = job.write(launch, 5, name="weights-1_5.ckpt")
    for step, where in ((5, path), (10, job.write(launch, 10, name="weights-1_10.ckpt"))):
        file = describe(launch.facts, rank=0, path=where, kind="periodic", global_step=step, content=Content.WEIGHTS)
        whole = measured(file)
        launch.record_files([whole])
    gc(catalog)
    assert path.exists()
    assert (job.folder(0) / "weights-1_10.ckpt").exists()


@pytest.mark.parametrize("quarantine", ["the loss of its last step was nan", ""])
def test_a_bad_state_does_not_count(catalog: Catalog, tmp_path: Path, quarantine: str) -> None:
    job = saved(catalog, tmp_path, 10, 20)
    ranks = job.start()
    for each in ranks:
        job.announce(each)
        path = job.write(each, 30)
        file = measured(
            describe(each.facts, rank=each.rank, path=path, kind="periodic", global_step=30, quarantine=quarantine)
        )
        each.record_files([file])
    why = plan_gc(catalog.database, "run", LAST_2).decision.keep[0].reasons[0].detail
    assert ("it stays until a newer state can be restored; the first of 2 faults is quarantined: " in why) == bool(
        quarantine
    )
    job.save(ranks, 40)
    assert removed(plan_gc(catalog.database, "run", LAST_2)) == (
        [("L2", 30), ("L1", 10)] if quarantine else [("L1", 20), ("L1", 10)]
    )


def test_a_thousand_saves_cost_as_many_statements_as_ten(catalog: Catalog, tmp_path: Path) -> None:
    import sqlalchemy as sa

    counts = []
    job = saved(catalog, tmp_path, 10, 20, 30)
    statements: list[str] = []
    sa.event.listen(catalog.database._engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    ranks = job.start()
    for steps in ((40,), range(50, 250, 10)):
        job.save(ranks, *steps)
        statements.clear()
        plan_gc(catalog.database, "run", LAST_2)
        counts.append(len(statements))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("name", "beside", "found"),
    [
        ("net-1_5.companion", "net-1_5.ckpt", True),
        ("net-1_5.companion", "net-1_5.safetensors", True),
        ("net-1_5.companion", "net-1_6.ckpt", False),
        ("net-1_5.companion", "net-1_5", False),
        ("net-graph.meta", "net-1_5.ckpt", True),
        ("net-graph.meta", "other-1_5.ckpt", False),
        ("net-1_5.tmp", "net-1_5.ckpt", False),
    ],
)
def test_what_belongs_to_a_checkpoint_beside_it(tmp_path: Path, name: str, beside: str, *, found: bool) -> None:
    """Its removal may have failed."""
    left(tmp_path / beside)
    assert has_checkpoint_beside(Target(str(tmp_path), name, 1, 1)) is found
