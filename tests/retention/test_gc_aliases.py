"""One file under two paths, as where a disk was mounted in a second place: gc must not take the one for another."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import FileState, Kind
from ckptstore.resume.register import describe, measured
from ckptstore.retention.execute import execute
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes
from tests.jobs import Job, begun
from tests.retention.builders import LAST_2, doubts, gc, names, removed, saved, tree
from tests.retention.gc_world import LONG_AGO

pytestmark = pytest.mark.of_files


def linked(job: Job, tmp_path: Path) -> Path:
    link = tmp_path / "link"
    link.symlink_to(job.directory)
    return link


def all_of(*ends: str) -> set[str]:
    return {f"rank_{rank}/net-{end}.ckpt" for rank in (0, 1) for end in ends}


def test_states_that_share_their_files_stay_and_count_once(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    link = linked(job, tmp_path)
    second = job.start()
    for step in (10, 20, 30, 40):
        record_through(second, link, step)
    before = tree(job.directory)
    for at_once in (False, True):
        assert gc(catalog, LAST_2, at_once=at_once).files == 0
    assert tree(job.directory) == before
    told = doubts(plan_gc(catalog.database, "run", LAST_2))
    assert told.keys() == {(launch, step) for launch in ("L1", "L2") for step in (10, 20, 30, 40)}
    rank = told["L1", 10].partition("/rank_")[2][0]  # of either, the one that comes first
    here, there = (f"{tmp_path}/{where}/rank_{rank}/net-1_10.ckpt" for where in ("data", "link"))
    assert told["L1", 10] == f"{here} is also {there}, of step 10 of launch L2: both stay, and count as one"
    assert told["L2", 10] == f"{there} is also {here}, of step 10 of launch L1: both stay"


def record_through(ranks: list[RankLaunch], link: Path, step: int) -> None:
    """As by a path that was no link yet, or is a second mount: what is registered through a link has its real path."""
    for launch in ranks:
        path = link / f"rank_{launch.rank}" / f"net-{step // 10}_10.ckpt"
        about = {"rank": launch.rank, "kind": "periodic", "global_step": step, "optimizer_step": step}
        file = measured(describe(launch.facts, path=path, **about))
        launch.record_files([file])


def test_the_floor_is_of_states_with_files_of_their_own(catalog: Catalog, tmp_path: Path) -> None:
    """Step 40 twice is one state: the floor is 40 and 30, not 40 and 40."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    link = linked(job, tmp_path)
    second = job.start()
    record_through(second, link, 40)
    gc(catalog, Policy(keep_last=1, floor=2))
    assert names(job.directory) == all_of("3_10", "4_10")
    assert catalog.resolve("run", step=30).plan is not None


def by_another_path(other: RankLaunch, file: Path, link: Path) -> Path:
    path = link / "rank_0" / file.name
    whole = measured(describe(other.facts, rank=0, path=path, kind="periodic", global_step=10))
    other.record_files([whole])
    return path


def under_way(other: RankLaunch, file: Path, link: Path) -> Path:
    """Its record has neither size nor time yet."""
    path = link / "rank_0" / file.name
    other.record_files([describe(other.facts, rank=0, path=path, kind="periodic", global_step=10)])
    return path


def by_a_link(other: RankLaunch, file: Path, link: Path) -> Path:
    """`best.ckpt` may be one: its file is that of another state."""
    best = link.with_name("best.ckpt")
    best.symlink_to(file)
    other.register(best, global_step=10)
    return best


@pytest.mark.parametrize("since_the_plan", [False, True])
@pytest.mark.parametrize("record", [by_another_path, under_way, by_a_link])
def test_what_another_run_has_too_stays(
    catalog: Catalog, tmp_path: Path, record: Callable[[RankLaunch, Path, Path], Path], *, since_the_plan: bool
) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    other, file = catalog.join("other", launch_id="other"), job.folder(0) / "net-1_10.ckpt"
    before = plan_gc(catalog.database, "run", LAST_2)
    there = record(other, file, linked(job, tmp_path))
    plan = before if since_the_plan else plan_gc(catalog.database, "run", LAST_2)
    done = execute(catalog.database, plan, at_once=since_the_plan)
    assert done.removed == (("L1", 20),)
    assert names(job.directory) == all_of("1_10", "3_10", "4_10")
    reasons = [each.reason for each in done.skipped] if since_the_plan else list(doubts(plan).values())
    assert reasons == [f"{file} is also {there}, of step 10 of launch other of run other: it stays"]


def test_what_another_run_has_by_the_same_path_stays(catalog: Catalog, tmp_path: Path) -> None:
    """A run that begins with a file of another one registers it as its own."""
    saved(catalog, tmp_path / "base", 10, 20, 30)
    catalog.pin("run", 30)
    files = [Path(file.path) for file in catalog.files("run") if file.global_step == 30]
    begun = Job(catalog, tmp_path / "begun", run="begun")
    begun.launches = 10
    launches = begun.start()
    for launch, path in zip(launches, files, strict=True):
        launch.register(path, global_step=5)
    begun.save(launches, 10, 20, 30)
    assert catalog.resolve("run").plan.global_step == 30
    plan = plan_gc(catalog.database, "begun", LAST_2)
    assert removed(plan) == [("L11", 10)]
    assert doubts(plan)["L11", 5].endswith("of step 30 of launch L1 of run run: it stays")
    execute(catalog.database, plan)
    assert all(path.exists() for path in files)
    assert [file.state for file in catalog.files("run") if file.global_step == 30] == [FileState.COMPLETE] * 2


def test_what_another_run_had_by_the_same_path_before_it_was_written_over_holds_nothing(
    catalog: Catalog, tmp_path: Path
) -> None:
    """An experiment that is begun again under another name, where the first one saved: by their digests they differ."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    again = Job(catalog, job.directory, run="again")
    again.launches = 10
    ranks = again.start()
    for step in (10, 20, 30, 40):
        for launch in ranks:
            path = ckpt_bytes.write(job.folder(launch.rank) / f"net-{step // 10}_10.ckpt", step, step + 1)
            launch.register(path, global_step=step)
    plan = plan_gc(catalog.database, "again", LAST_2)
    assert [step for _, step in removed(plan)] == [20, 10]


def test_what_is_in_a_directory_of_ttp_is_no_debris_under_another_path(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20)
    link = linked(job, tmp_path)

    def saves_ttp(launch: RankLaunch, where: Path) -> None:
        launch.add_source(str(where), kind=Kind.TTP, prefix="", breakpoint_prefix="", names_before=())

    saves_ttp(catalog.join("run", rank=0, world_size=2, launch_id="L1b"), link)
    saves_ttp(job.start()[0], job.directory)
    half = job.directory / "ttp_saved_checkpoints-step_30_tmp" / "rank_0" / "ttp_rank_0-2_5.tmp"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    os.utime(half, (LONG_AGO, LONG_AGO))
    assert plan_gc(catalog.database, "run", LAST_2).debris == ()
    saves_ttp(job.start()[0], tmp_path / "elsewhere")
    (found,) = plan_gc(catalog.database, "run", LAST_2).debris
    assert found.path == str(half), "once, by no link"


def test_files_of_a_directory_that_moved_are_not_called_unknown(catalog: Catalog, tmp_path: Path) -> None:
    """A link was left, and the run goes on at the new path: the catalog has older files at the old one only."""
    job, ranks = begun(catalog, tmp_path / "old", 10, 20)
    for launch in ranks:
        job.announce(launch)
    job.directory.rename(tmp_path / "new")
    job.directory.symlink_to(tmp_path / "new")
    job.directory = tmp_path / "new"
    job.save(job.begin(), 30)
    assert plan_gc(catalog.database, "run", LAST_2).unknown == ()


MOUNTED_TWICE = """
import shutil
import sys
from pathlib import Path
from ckptstore.api import connect
from tests.retention.builders import LAST_2, gc, names

catalog, tree = connect(sys.argv[1]), Path(sys.argv[2])
catalog.scan(tree / "one", run="run", world_size=1)
shutil.rmtree(tree / "one" / ".ckptstore")
assert len(catalog.scan(tree / "two", run="other", world_size=1).adopted) == 4
catalog.pin("other", 5)
print(*gc(catalog, LAST_2).removed)
print(*sorted(names(tree / "two")))
"""


SAVED_AT_BOTH = """
import sys
from pathlib import Path
from ckptstore.api import connect
from tests.retention.builders import LAST_2, gc

catalog, tree = connect(sys.argv[1]), Path(sys.argv[2])
for launch_id, where, steps in ("L1", "one", range(1, 7)), ("L2", "two", range(7, 9)):
    launch = catalog.join("run", launch_id=launch_id)
    launch.resolve()
    for step in steps:
        launch.save(lambda path: Path(path).write_bytes(b"x"), global_step=step, directory=tree / where)


def told() -> None:
    states = {(file.global_step, file.state.value) for file in catalog.files("run")}
    print(*(f"{step} {state}" for step, state in sorted(states)), sep=", ")
    print(*(damage.path for damage in catalog.verify("run").damaged))


gc(catalog, LAST_2)
told()
catalog.undo("run")
told()
gc(catalog, LAST_2)
catalog.purge("run", now=True)
told()
"""


def on_two_mounts(script: str, sqlite_url: str, tmp_path: Path) -> list[str]:
    """What a script prints where a file system is mounted at `one` and at `two`; skips if nothing can be mounted."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(exist_ok=True)
    two.mkdir()
    mount = f"mount --bind {one} {two}"
    apart = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*apart, mount], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    twice = tmp_path / "twice.py"
    twice.write_text(script)
    call = f"{mount} && {sys.executable} {twice} {sqlite_url} {tmp_path}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*apart, call], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_file_system_that_is_mounted_twice(sqlite_url: str, tmp_path: Path) -> None:
    """No link tells it: another run has each file under a second path."""
    for step in (5, 10, 15, 20):
        path = ckpt_bytes.write(tmp_path / "one" / path_name(step), step)
        os.utime(path, (step, step))
    told = on_two_mounts(MOUNTED_TWICE, sqlite_url, tmp_path)
    assert told == ["", " ".join(sorted(path_name(step) for step in (5, 10, 15, 20)))]


def test_a_run_that_saves_at_both_mounts(sqlite_url: str, tmp_path: Path) -> None:
    """What gc removed is removed at both paths, for `verify` too."""
    told = on_two_mounts(SAVED_AT_BOTH, sqlite_url, tmp_path)
    expected = [
        ", ".join(f"{step} {state if step < 7 else FileState.COMPLETE}" for step in range(1, 9))
        for state in (FileState.TRASHED, FileState.COMPLETE, FileState.MISSING)
    ]
    assert told[::2] == expected
    assert told[1::2] == ["", "", ""], "no file is damaged"


def path_name(step: int) -> str:
    return f"rank_0/net-{(step - 1) // 10 + 1}_{(step - 1) % 10 + 1}.ckpt"
