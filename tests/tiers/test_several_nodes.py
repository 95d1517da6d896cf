"""gc on nodes without a common disk: each node removes from its own disk what a tier has."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.copies import Tier
from ckptstore.outside import utc_now
from ckptstore.resume.resolve import resolve
from ckptstore.resume.resolver import Query
from ckptstore.retention import in_tier
from ckptstore.retention.in_trash import purge
from ckptstore.retention.plan import GcPlan, plan_gc
from ckptstore.retention.policy import Policy
from tests.jobs import Job
from tests.tiers.jobs import copied, declared

pytestmark = pytest.mark.of_files

STEPS = (5, 10, 15, 20)
KEEP = Policy(keep_last=1, floor=1)


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    job = Job(catalog, tmp_path / "ckpt")
    ranks = job.start()
    for launch in ranks:
        with node_of(job, launch.rank):
            job.announce(launch)
    job.save(ranks, *STEPS)
    return job


@pytest.fixture
def tier(catalog: Catalog, tmp_path: Path) -> Tier:
    return declared(catalog, tmp_path / "far", "far", 2)


@pytest.fixture
def local(catalog: Catalog, tmp_path: Path) -> Tier:
    return declared(catalog, tmp_path / "ckpt", "local", 0)


@contextmanager
def node_of(job: Job, rank: int) -> Iterator[None]:
    """A look from the node of one of the two ranks: it has its own name, and the other's directory is not there."""
    other = job.folder(1 - rank)
    hidden = other.with_name("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: f"node-{rank}")
        if other.exists():
            other.rename(hidden)
        yield
        if hidden.exists():
            hidden.rename(other)


def going(plan: GcPlan) -> list[int]:
    return [each.state.global_step for each in plan.decision.remove]


def names(job: Job, rank: int) -> list[str]:
    return sorted(path.name for path in job.folder(rank).glob("*.ckpt"))


def test_each_node_frees_its_disk_and_then_the_tier_can_be_freed(job: Job, tier: Tier, local: Tier) -> None:
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    for rank in (0, 1):
        with node_of(job, rank):
            assert plan_gc(database, "run", KEEP).removes_nothing, "no copy is in the way of a loss"
            plan = plan_gc(database, "run", KEEP, tier=local)
            assert (going(plan), plan.unseen) == ([15, 10, 5], ())
            done = job.catalog.execute(plan)
            assert (done.files, done.skipped, done.troubles) == (3, (), ())
            assert plan_gc(database, "run", KEEP, tier=local).removes_nothing
        assert names(job, rank) == ["net-2_10.ckpt"]
    with node_of(job, 0):
        assert resolve(database, "run", Query(step=10, fetches=True)).plan.global_step == 10
        assert in_tier.plan_tier(database, "run", tier, KEEP).decision.remove == ()
    for rank in (0, 1):
        with node_of(job, rank):
            done = job.catalog.purge("run", now=True)
            assert (done.files, done.troubles) == (3, ())
        assert not list(job.folder(rank).rglob("trash/*/net*"))
    with node_of(job, 0):
        plan = in_tier.plan_tier(database, "run", tier, KEEP)
        assert [each.state.global_step for each in plan.decision.remove] == [15, 10, 5]


def test_each_node_deletes_its_own_trash_when_the_grace_is_over(job: Job, tier: Tier, local: Tier) -> None:
    database = job.catalog.database
    copied(job.catalog, tier, job.catalog.files("run"))
    for rank in (0, 1):
        with node_of(job, rank):
            job.catalog.execute(plan_gc(database, "run", KEEP, tier=local))
    for rank in (0, 1):
        with node_of(job, rank):
            done = purge(database, "run", now=utc_now() + timedelta(days=2))
            assert (done.files, done.waiting, done.troubles) == (3, 3 - 3 * rank, ())
    assert [path.name for rank in (0, 1) for path in job.folder(rank).rglob("net*.ckpt")] == ["net-2_10.ckpt"] * 2


def test_a_state_stays_on_a_node_while_no_tier_has_the_file_of_another_node(job: Job, tier: Tier, local: Tier) -> None:
    files = job.catalog.files("run")
    late = next(file for file in files if (file.rank, file.global_step) == (1, 10))
    copied(job.catalog, tier, [file for file in files if file.id != late.id])
    job.catalog.pin("run", 5)
    with node_of(job, 0):
        plan = plan_gc(job.catalog.database, "run", KEEP, tier=local)
    assert going(plan) == [15]
    why = {each.state.global_step: each.reasons[0].detail for each in plan.decision.keep}
    assert (why[10], why[5]) == (f"no tier above local has {late.path} yet", "pinned")


def test_without_a_newer_state_in_a_tier_nothing_goes(job: Job, tier: Tier, local: Tier) -> None:
    """Nobody here sees whether the states that stay are whole."""
    copied(job.catalog, tier, [file for file in job.catalog.files("run") if file.global_step == 5])
    with node_of(job, 0):
        assert going(plan_gc(job.catalog.database, "run", KEEP, tier=local)) == []


def test_nodes_that_swapped_their_ranks_free_their_disks(catalog: Catalog, tmp_path: Path) -> None:
    """Each node has a directory at each path, and none of them is the one of the other node."""
    home = tmp_path / "ckpt"
    job, tier, local = Job(catalog, home), declared(catalog, tmp_path / "far", "far", 2), declared(catalog, home, "", 0)

    @contextmanager
    def on(node: str) -> Iterator[None]:
        disk = tmp_path / node
        disk.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("socket.gethostname", lambda: node)
            disk.rename(home)
            yield
            home.rename(disk)

    for nodes, steps in (("ab", (5, 10)), ("ba", (15, 20))):
        for launch, node in zip(job.start(resume=False), nodes, strict=True):
            with on(node):
                job.announce(launch)
                for step in steps:
                    copied(catalog, tier, job.save([launch], step))
    for node in "ab":
        with on(node):
            plan = plan_gc(catalog.database, "run", KEEP, tier=local)
            assert going(plan) == [15, 10, 5]
            assert (done := catalog.execute(plan)).files == 3, done
    for node in "ab":
        with on(node):
            purged = catalog.purge("run", now=True)
            assert (purged.files, purged.troubles) == (3, ())
    left = {str(path.relative_to(tmp_path)) for node in "ab" for path in (tmp_path / node).rglob("net*.ckpt")}
    assert left == {"a/rank_1/net_1-2_10.ckpt", "b/rank_0/net_1-2_10.ckpt"}
