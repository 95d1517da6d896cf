"""Ranks whose hosts share no disk: a rank gets a file only where it sees one (docs/how-to/node-local-disks.md)."""

import shlex
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog.visibility import told
from ckptstore.core.model import Content, Kind, RestorePlan
from ckptstore.disk import name_claims
from ckptstore.errors import NothingRestorableError
from ckptstore.resume import register
from ckptstore.resume.resolver import NEWEST, Query
from ckptstore.training import visibility
from ckptstore.training.rank_launch import RankLaunch
from tests.jobs import Job, begun
from tests.tiers.jobs import copied, declared


def chosen(ranks: list[RankLaunch], answer: Callable[[RankLaunch, Any], int] = visibility.answer) -> RestorePlan | None:
    """The plan of ranks, each of which answers what rank 0 asks."""

    def ask(question: Any) -> int:
        return sum(answer(rank, question) for rank in ranks)

    return ranks[0].decide_start(ranks[0].database, NEWEST, visibility.ask_ranks(ranks[0], NEWEST, ask)).plan


class Hosts:
    """Each host has the disk of so many ranks, and does not see those of the others."""

    def __init__(self, job: Job, monkeypatch: pytest.MonkeyPatch, ranks: int = 1) -> None:
        self.job, self.ranks, self.monkeypatch = job, ranks, monkeypatch
        self.asked: list[Any] = []

    def go_to(self, host: int | None) -> None:
        """From now on all is as a process on this host sees it (None: as one that sees all disks)."""
        for module in (name_claims, visibility):
            self.monkeypatch.setattr(module, "host_name", lambda: f"host-{host}")
        for rank in range(self.job.world_size):
            here, unseen = self.job.folder(rank), self.unseen(rank)
            if host in (None, rank // self.ranks):
                here, unseen = unseen, here
            if here.exists():
                shutil.rmtree(unseen, ignore_errors=True)
                here.rename(unseen)

    def unseen(self, rank: int) -> Path:
        """Where the directory of a rank is while another host looks."""
        return self.job.folder(rank).with_name(f"rank_{rank}.unseen")

    def start(self, beside: Callable[[], object] = lambda: None) -> RestorePlan | None:
        """All ranks of a new launch start; the plan that they get. `beside` is called wherever a rank looks."""
        ranks = self.job.start(resume=False)

        def answer(rank: RankLaunch, question: Any) -> int:
            self.asked.append(question)
            self.go_to(rank.rank // self.ranks)
            beside()
            said = visibility.answer(rank, question)
            self.go_to(0)
            return said

        self.go_to(0)
        try:
            return chosen(ranks, answer)
        finally:
            self.go_to(None)


def files_of(plan: RestorePlan | None) -> tuple[int, list[tuple[int, int]]]:
    return plan.global_step, [(rank, source.rank) for rank, source in plan.ranks]


@pytest.fixture(params=["data_parallel", None], ids=["replicas", "none"])
def hosts(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Hosts:
    job, _ = begun(catalog, tmp_path / "ckpt", 10, 20, layout=request.param)
    return Hosts(job, monkeypatch)


def test_each_rank_restores_from_its_own_disk(hosts: Hosts) -> None:
    assert files_of(hosts.start()) == (20, [(0, 0), (1, 1)])
    assert [list(question) for question in hosts.asked][-1] == ["states"]


def test_one_disk_for_all_is_asked_about_once(hosts: Hosts) -> None:
    asked: list[list[str]] = []
    ranks = hosts.job.start(resume=False)

    def answer(rank: RankLaunch, question: Any) -> int:
        asked.append(list(question))
        return visibility.answer(rank, question)

    assert files_of(chosen(ranks, answer)) == (20, [(0, 0), (1, 1)])
    assert asked == [["files", "all"]] * 2


def test_the_first_start_of_a_run_asks_nothing(catalog: Catalog, tmp_path: Path) -> None:
    ranks = Job(catalog, tmp_path / "ckpt").start(resume=False)
    asks = visibility.ask_ranks(ranks[0], NEWEST, lambda _: pytest.fail("asked"))
    assert ranks[0].decide_start(ranks[0].database, NEWEST, asks).plan is None


def test_a_file_that_one_host_lost_gives_the_older_state_or_the_named_copy(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    """Where ranks are replicas the file of rank 0 would do; where they are not none does."""
    job = hosts.job
    job.folder(1).joinpath("net-2_10.ckpt").unlink()
    assert files_of(hosts.start()) == (10, [(0, 0), (1, 1)])
    if job.layout is None:
        assert f"{job.folder(1)}/net-2_10.ckpt is gone" in caplog.text
        return
    path = job.folder(0) / "net-2_10.ckpt"
    copy = f"rsync -a --mkpath 'host-0:{path.parent}/net-2_10.*' {path.parent}/"
    assert f"rank 1 on host-1 lacks {path}, which host-0 has; on host-1: {copy}" in caplog.text
    assert shlex.split(copy)[-1] == f"{path.parent}/"


def test_a_copy_is_taken(catalog: Catalog, tmp_path: Path) -> None:
    """The host was replaced; the file of its replica was put where the message says."""
    job, _ = begun(catalog, tmp_path / "ckpt", 10, layout="data_parallel")
    shutil.rmtree(job.folder(1))
    own, copied = job.folder(0), tmp_path / "copied"
    shutil.copytree(own, copied)

    def answer(rank: RankLaunch, question: Any) -> int:
        if rank.rank == 0:
            return visibility.answer(rank, question)
        own.rename(tmp_path / "host-0")
        copied.rename(own)
        said = visibility.answer(rank, question)
        own.rename(copied)
        (tmp_path / "host-0").rename(own)
        return said

    assert files_of(chosen(job.start(resume=False), answer)) == (10, [(0, 0), (1, 0)])


def test_the_chosen_state_is_asked_about_however_many_newer_ones_lost_their_files(
    catalog: Catalog, tmp_path: Path
) -> None:
    """All ranks see it: that rank 0 asks about newer ones must not hide it."""
    steps = range(10, 120, 10)
    job, _ = begun(catalog, tmp_path / "ckpt", *steps)
    for step in steps[1:]:
        job.folder(1).joinpath(f"net-{step // 10}_10.ckpt").unlink()
    assert files_of(chosen(job.start(resume=False))) == (10, [(0, 0), (1, 1)])


def test_more_ranks_see_the_state_of_one_rank(catalog: Catalog, tmp_path: Path) -> None:
    """They are asked since the newer state, of as many ranks as now, lost its files."""
    job, _ = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    job.world_size, job.layout = 2, "data_parallel"
    job.save(job.begin(), 20)
    for rank in (0, 1):
        job.folder(rank).joinpath("net_1-2_10.ckpt").unlink()
    assert files_of(chosen(job.start(resume=False))) == (10, [(0, 0), (1, 0)])


def test_a_rank_looks_at_the_files_of_its_neighbours_and_at_the_one_to_copy(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of one node have numbers near to each other: here 0 and 1, 2 and 3, 4 and 5."""
    job, _ = begun(catalog, tmp_path / "ckpt", 10, world_size=6, layout="data_parallel")
    monkeypatch.setattr(visibility, "_OTHERS", 1)
    lowest, *_, last, lost = (job.folder(rank) / "net-1_10.ckpt" for rank in range(6))
    hosts = Hosts(job, monkeypatch, ranks=2)
    lost.unlink()
    assert files_of(hosts.start()) == (10, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 4)])
    last.unlink()
    with pytest.raises(NothingRestorableError, match=f"rank 4 on host-2 lacks {lowest}, which host-0 has"):
        hosts.start()

    def copy_to_host_2() -> None:
        if job.folder(4).exists():
            lowest.parent.mkdir(exist_ok=True)
            shutil.copy2(hosts.unseen(0) / lowest.name, lowest)

    assert files_of(hosts.start(copy_to_host_2)) == (10, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 0)])


def test_a_rank_whose_file_could_not_be_loaded_looks_at_those_of_its_replicas(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is as it was recorded: only the launch that failed told of it."""
    job, _ = begun(catalog, tmp_path / "ckpt", 10, 20, world_size=4, layout="data_parallel")
    *_, last = job.start()
    last.load_failed(next(file for file in catalog.show("run", 20) if file.rank == 3), "it holds another network")
    assert files_of(Hosts(job, monkeypatch, ranks=2).start()) == (20, [(0, 0), (1, 1), (2, 2), (3, 2)])


def test_a_rank_of_a_small_job_looks_at_the_files_of_all(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest ranks are the neighbours of rank 0: those above them were left out."""
    job, (first, *_) = begun(catalog, tmp_path / "ckpt", 10, world_size=6, layout="data_parallel")
    monkeypatch.setattr(visibility, "_OTHERS", 3)
    paths = [job.folder(rank) / "net-1_10.ckpt" for rank in range(6)]
    for path in paths[:-1]:
        path.unlink()
    assert visibility.answer(first, {"states": [(first.key, 10)]})
    with catalog.database.read() as connection:
        assert str(paths[-1]) in told(connection, first.key)[0].seen


def test_the_file_of_another_step_is_not_taken(hosts: Hosts) -> None:
    """It has the same size: the digest tells."""
    job = hosts.job
    newer, older = (job.folder(1) / f"net-{epoch}_10.ckpt" for epoch in (2, 1))
    assert newer.stat().st_size == older.stat().st_size
    shutil.copyfile(older, newer)
    assert files_of(hosts.start()) == (10, [(0, 0), (1, 1)])


def test_a_rank_whose_disk_hangs_is_named(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(visibility, "LOOK_SECONDS", 0.2)
    never = threading.Event()
    look = visibility._look

    def hangs(known: Any, failed: Any) -> Any:
        known = list(known)
        return look(known, failed) if known[0][0].rank == 0 else never.wait()

    monkeypatch.setattr(visibility, "_look", hangs)
    with pytest.raises(Exception, match="rank 1 did not say in time what it sees on its host"):
        hosts.start()
    never.set()
    assert "what this rank sees of its files was not known in 0.2 s" in caplog.text


@pytest.mark.parametrize(("who_sees_all", "step"), [("both", 20), ("rank 0", 10), ("none", 10)])
def test_shares_are_read_by_all_ranks(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who_sees_all: str, step: int
) -> None:
    """Data parallel with remove_redundancy: a rank that sees its own share only cannot restore."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10, layout="data_parallel")
    for rank in ranks:
        described = register.describe(
            rank.facts, rank=rank.rank, path=str(job.write(rank, 20)), kind=Kind.PERIODIC, global_step=20
        )
        share = register.measured(replace(described, content=Content.SHARE))
        assert share is not None
        rank.record_files([share])
    hosts = Hosts(job, monkeypatch)

    def answer(rank: RankLaunch, question: Any) -> int:
        hosts.go_to(rank.rank if who_sees_all == "rank 0" and rank.rank else None)
        said = visibility.answer(rank, question)
        hosts.go_to(None)
        return said

    plan = hosts.start() if who_sees_all == "none" else chosen(job.start(resume=False), answer)
    assert files_of(plan) == (step, [(0, 0), (1, 1)])


def test_a_damaged_file_on_one_disk_is_called_that(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 0 cannot know that all see the same: it asks, and what it says in the end is what it would have said."""
    job, _ = begun(catalog, tmp_path / "ckpt", 10, 20)
    path = job.folder(1) / "net-2_10.ckpt"
    path.write_bytes(b"cut")
    assert files_of(chosen(job.start(resume=False))) == (10, [(0, 0), (1, 1)])
    assert "do not see the same files" not in caplog.text
    assert f"step 20 of launch L1 was complete once: {path} has 3 bytes" in caplog.text


def test_a_replaced_node_fetches_what_only_a_tier_has_and_the_others_look_at_home(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nodes without a common disk are a case of it: each rank's file is at home, or in a tier."""
    tier = declared(hosts.job.catalog, tmp_path / "shared")
    lost = next(file for file in hosts.job.catalog.show("run", 20) if file.rank == 1)
    copied(hosts.job.catalog, tier, [lost])
    shutil.rmtree(hosts.job.folder(1))
    monkeypatch.setattr(sys.modules[__name__], "NEWEST", Query(fetches=True))
    plan = hosts.start()
    assert files_of(plan) == (20, [(0, 0), (1, 1)])
    assert list(plan.copies) == [lost.id]
