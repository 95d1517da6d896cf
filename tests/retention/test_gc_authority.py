"""What gc removes is asked of the disk: whose a file is, what it is, and where. A record may be anybody's word."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType

import alembic.command  # noqa: F401 — who is not root may not import it
import pytest

from ckptstore.api import Catalog, connect
from ckptstore.core.model import Kind
from ckptstore.errors import RefusedError
from ckptstore.journal import jsonl
from ckptstore.journal.sync import found_below
from ckptstore.retention import authority
from ckptstore.retention.authority import ROOTS, Authority
from ckptstore.retention.execute import execute
from ckptstore.retention.in_trash import purge, undo
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.command_line import ckptstore
from tests.jobs import Job, begun
from tests.retention.builders import LAST_2, doubts, gc, names, removed, saved
from tests.retention.gc_world import do_apart, give

pytestmark = [
    pytest.mark.of_files,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users"),
]
ANN, BOB = 61001, 61002
SWAPS = 1000


@contextmanager
def as_user(user: int) -> Iterator[None]:
    """What happens here is done by a user who is not root."""
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user may write to."""
    path = Path(tempfile.mkdtemp(prefix="ckptstore-shared-", dir="/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def trained_by_ann(shared: Path, *steps: int) -> Job:
    """A job of a user who is not root, with a journal that is theirs."""
    with as_user(ANN):
        (shared / "ckpt").mkdir()
        return begun(connect(str(shared / "c.db")), shared / "ckpt", *steps, world_size=1)[0]


def why_nothing_goes(catalog: Catalog) -> str:
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == []
    return next(iter(doubts(plan).values()))


def test_a_line_that_leads_through_a_link_and_a_policy_beside_it(tmp_path: Path) -> None:
    """Seen before: the file was deleted. The directory handed over was opened with O_NOFOLLOW: its last part only."""
    url, home = str(tmp_path / "c.db"), tmp_path / "home"
    thesis = ckpt_bytes.write(home / "sub" / "thesis.ckpt", 1, 1)
    job = saved(connect(str(tmp_path / "other.db")), tmp_path, 10, 20, 30)
    (job.folder(0) / "link").symlink_to(home)
    (journal,) = jsonl.journals_in(str(job.folder(0)))
    status = thesis.stat()
    line = next(entry for entry in jsonl.read(journal).entries if entry["t"] == "file")
    line |= {"path": "link/sub/thesis.ckpt", "global_step": 1, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    rules = {"t": "policy", "run": "run", "rules": {"keep_last": 1, "floor": 1}, "at": line["at"]}
    with Path(journal).open("ab") as file:
        file.write(jsonl.encode(line) + jsonl.encode(rules))
    assert ckptstore("--db", url, "scan", str(job.directory)).code == 0
    assert ckptstore("--db", url, "gc", "--all", "--apply", "--now", "--allow-mass-delete").code == 0
    assert thesis.exists()
    assert names(job.directory) == {f"rank_{rank}/net-3_10.ckpt" for rank in (0, 1)}, "what is the run's goes"


@pytest.mark.parametrize("owner", [0, BOB])
@pytest.mark.parametrize("name", ["thesis.tar", "net-1_5.ckpt"])
def test_what_a_trainer_registers_of_others(shared: Path, owner: int, name: str) -> None:
    """The operator could remove it, and the trainer could not: neither the record nor their journal counts."""
    url = str(shared / "c.db")
    job = trained_by_ann(shared)
    others = ckpt_bytes.write(shared / "home" / name, 5, 5) if name.endswith("ckpt") else shared / "home" / name
    if not others.exists():
        others.parent.mkdir()
        others.write_bytes(b"\nyears of work")
    give(others.parent, owner)
    others.parent.chmod(0o777)
    with as_user(ANN):
        (launch,) = job.begin()
        launch.register(others, global_step=5, optimizer_step=5)
        job.save([launch], 10, 20, 30)
    catalog = connect(url)
    assert any(str(others) in doubt for doubt in gone_or_kept(catalog))
    assert others.exists()
    assert catalog.resolve("run").plan.global_step == 30


def gone_or_kept(catalog: Catalog) -> list[str]:
    """Carries a gc out; why what stays for a doubt does."""
    plan = plan_gc(catalog.database, "run", LAST_2)
    execute(catalog.database, plan, at_once=True, allow_mass_delete=True)
    return [*doubts(plan).values()]


def test_an_operator_collects_for_users_who_journal(shared: Path) -> None:
    url = str(shared / "c.db")
    job = trained_by_ann(shared, 10, 20, 30, 40)
    catalog = connect(url)
    assert gc(catalog).removed == (("L1", 10), ("L1", 20))
    assert undo(catalog.database, "run").files == 2
    gc(catalog)
    assert purge(catalog.database, "run", at_once=True).files == 2
    assert names(job.directory) == {"rank_0/net-3_10.ckpt", "rank_0/net-4_10.ckpt"}


def test_an_operator_collects_below_the_directory_that_was_announced(shared: Path) -> None:
    """A directory for each save: the journal is in the one above them."""
    url, home = str(shared / "c.db"), shared / "ckpt"
    with as_user(ANN):
        home.mkdir()
        launch = connect(url).join("run", rank=0, world_size=1, launch_id="L1")
        launch.set_steps_per_epoch(10)
        launch.resolve()
        launch.add_source(str(home), kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
        for step in (10, 20, 30, 40):
            path = ckpt_bytes.write(home / f"at_{step}" / "net.ckpt", step, step)
            launch.register(path, global_step=step, optimizer_step=step)
    assert not (home / "at_10" / ".ckptstore").exists()
    assert gc(connect(url)).removed == (("L1", 10), ("L1", 20))
    assert names(home) == {"at_30/net.ckpt", "at_40/net.ckpt"}


def test_a_journal_of_somebody_else_tells_nothing(shared: Path) -> None:
    url = str(shared / "c.db")
    job = trained_by_ann(shared, 10, 20, 30, 40)
    for journal in found_below([str(shared / "ckpt")])[0]:
        os.chown(journal, 0, 0)
    assert f"belongs to user {ANN}, and no journal of that user" in why_nothing_goes(connect(url))
    with as_user(ANN):
        assert len(gc(connect(url)).removed) == 2, "it is their own"
    assert len(names(job.directory)) == 2


@pytest.mark.parametrize("several", [False, True])
def test_what_only_its_owner_may_remove_is_said_to_be_so(shared: Path, *, several: bool) -> None:
    """Seen before: of a recorded .npz it was said that no journal of its owner records it."""
    job = trained_by_ann(shared)
    with as_user(ANN):
        (launch,) = job.begin()
        for step in (10, 20, 30):
            path = shared / "ckpt" / (f"net-{step}" if several else f"net-{step}.npz")
            if several:
                path.mkdir(mode=0o755)
            (path / "part" if several else path).write_bytes(b"weights")
            launch.register(path, global_step=step)
    why = why_nothing_goes(connect(str(shared / "c.db")))
    assert why.endswith(f"belongs to user {ANN}: of other users' files, gc removes only ckpt and safetensors")


def test_a_hard_link_to_anothers_checkpoint(shared: Path) -> None:
    url = str(shared / "c.db")
    theirs = ckpt_bytes.write(shared / "bob" / "net-1_5.ckpt", 5, 5)
    give(shared / "bob", BOB)
    job = trained_by_ann(shared)
    job.folder(0).mkdir(exist_ok=True)
    os.link(theirs, job.folder(0) / "net-1_5.ckpt")
    os.chown(job.folder(0), ANN, ANN)
    with as_user(ANN):
        (launch,) = job.begin()
        launch.register(job.folder(0) / "net-1_5.ckpt", global_step=5, optimizer_step=5)
        job.save([launch], 10, 20, 30)
    assert any(f"to user {BOB}" in doubt for doubt in gone_or_kept(connect(url)))
    assert (job.folder(0) / "net-1_5.ckpt").exists()


def test_roots_that_the_operator_names(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    gc(catalog)
    monkeypatch.setenv(ROOTS, os.pathsep.join([str(tmp_path / "da"), str(tmp_path / "other")]))
    assert f"{ROOTS})" in undo(catalog.database, "run").troubles[0].reason
    assert f"{ROOTS})" in purge(catalog.database, "run", at_once=True).troubles[0].reason
    assert len(names(job.directory)) == 4
    monkeypatch.setenv(ROOTS, str(tmp_path))
    assert undo(catalog.database, "run").files == 4
    monkeypatch.setenv(ROOTS, str(tmp_path / "other"))
    assert f"{ROOTS})" in why_nothing_goes(catalog)
    monkeypatch.setenv(ROOTS, str(job.directory))
    assert gc(catalog).files == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="makes directories of another user")
def test_of_another_user_s_directories_those_of_the_run_alone_are_touched(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path / "ckpt", 10)
    (tmp_path / "other").mkdir()
    for directory in (job.folder(0), tmp_path / "other"):
        os.chown(directory, BOB, BOB)
    authority = Authority(catalog.database, "run", 1)
    assert authority.beyond(str(job.folder(0))) == ""
    assert authority.beyond(f"{tmp_path}/other") == f"{tmp_path}/other is not a directory of run 'run'"


@pytest.mark.parametrize("content", [b"\nnotes\n", b"PK\3\4", b"\0" * 20, b"\n\x08\n\x01\x00", b"#!/bin/sh"])
def test_what_does_not_begin_as_a_checkpoint_stays(catalog: Catalog, tmp_path: Path, content: bytes) -> None:
    """Of the right size and time: a line of a journal can say any."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    path = job.folder(0) / "net-1_10.ckpt"
    status = path.stat()
    path.write_bytes(content.ljust(status.st_size, b"\0"))
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert gc(catalog).removed == (("L1", 20),)
    assert path.exists()
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert "does not start like a ckpt file" in doubts(plan)["L1", 10]


def test_another_file_of_the_same_size_and_time(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    plan = plan_gc(catalog.database, "run", LAST_2)
    path = job.folder(1) / "net-2_10.ckpt"
    status = path.stat()
    content = path.read_bytes()
    (tmp_path / "new").write_bytes(content)
    (tmp_path / "new").rename(path)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    done = execute(catalog.database, plan, allow_mass_delete=True)
    assert done.removed == (("L1", 10),)
    assert "is another file" in done.skipped[0].reason
    assert path.read_bytes() == content


@pytest.mark.parametrize("part", ["data", "above"])
def test_a_directory_that_became_a_link_since_the_plan(catalog: Catalog, tmp_path: Path, part: str) -> None:
    job = saved(catalog, tmp_path / "above", 10, 20, 30, 40)
    plan = plan_gc(catalog.database, "run", LAST_2)
    before = names(job.directory)
    directory = tmp_path / "above" if part == "above" else job.directory
    directory.rename(tmp_path / "now")
    directory.symlink_to(tmp_path / "now")
    done = execute(catalog.database, plan, allow_mass_delete=True)
    assert done.removed == ()
    assert {skipped.reason for skipped in done.skipped} == {f"{directory} is a link: no link is followed"}
    assert names(job.directory) == before


def test_a_name_with_a_line_break(catalog: Catalog, tmp_path: Path) -> None:
    """It goes, and comes back, as any other."""
    job, ranks = begun(catalog, tmp_path / "data")
    odd = [ckpt_bytes.write(job.folder(launch.rank) / "net\n..\n-1_10.ckpt", 10, 10) for launch in ranks]
    for launch, path in zip(ranks, odd, strict=True):
        launch.register(path, global_step=10, optimizer_step=10)
    job.save(ranks, 20, 30, 40)
    assert gc(catalog).troubles == ()
    assert not any(path.exists() for path in odd)
    assert undo(catalog.database, "run").troubles == ()
    assert all(path.exists() for path in odd)


def test_a_bind_mount_inside_a_run(catalog: Catalog, tmp_path: Path, mounted: Callable[[Path, Path], None]) -> None:
    """No link, and another directory all the same: what lies there is of somebody whose journal tells nothing of it."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    theirs = tmp_path / "theirs"
    shutil.copytree(job.folder(1), theirs, ignore=shutil.ignore_patterns(".ckptstore"))
    give(theirs, BOB)
    before = names(theirs)
    plan = plan_gc(catalog.database, "run", LAST_2)
    mounted(theirs, job.folder(1))
    done = execute(catalog.database, plan, at_once=True, allow_mass_delete=True)
    assert done.removed == ()
    assert names(theirs) == before


@pytest.fixture
def mounted() -> Iterator[Callable[[Path, Path], None]]:
    """Mounts a directory over another one, until the test has ended; skips where nobody may."""
    made: list[Path] = []

    def mount(source: Path, over: Path) -> None:
        if subprocess.run(["mount", "--bind", source, over], capture_output=True, check=False).returncode:
            pytest.skip("nobody may mount here")
        made.append(over)

    yield mount
    for path in made:
        subprocess.run(["umount", path], check=True)


def swap(directory: Path, victim: Path, begun: Event, ended: Event) -> None:
    """A directory is a link to another one half of the time."""
    aside = directory.with_name("aside")
    begun.set()
    swaps = 0
    while swaps < SWAPS or not ended.is_set():
        directory.rename(aside)
        directory.symlink_to(victim)
        directory.unlink()
        aside.rename(directory)
        swaps += 1


def test_a_process_that_swaps_directories_while_gc_runs(catalog: Catalog, tmp_path: Path) -> None:
    """The victim's files have the names, sizes and times of those that are to go."""
    job = saved(catalog, tmp_path, *range(10, 410, 10))
    victim = tmp_path / "victim"
    shutil.copytree(job.folder(0), victim, ignore=shutil.ignore_patterns(".ckptstore"))
    before = names(victim)
    begun, ended = multiprocessing.Event(), multiprocessing.Event()
    swapping = multiprocessing.Process(target=swap, args=(job.folder(0), victim, begun, ended))
    swapping.start()
    try:
        begun.wait()
        for place in range(12):
            plan = plan_gc(catalog.database, "run", Policy(keep_last=3 + place % 5))
            with suppress(RefusedError):  # a state of the floor was away when it was looked at
                execute(catalog.database, plan, at_once=place % 2 == 0, allow_mass_delete=True)
    finally:
        ended.set()
        swapping.join()
    assert names(victim) == before
    assert catalog.resolve("run").plan.global_step == 400
    gc(catalog, Policy(keep_last=3))
    assert len(names(job.folder(0))) == 3


def collect_as(user: int, url: str) -> None:
    connect(url).database.disconnect()  # who is not root may not import all that it needs
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    catalog = connect(url)
    execute(catalog.database, plan_gc(catalog.database, "run", LAST_2), at_once=True, allow_mass_delete=True)


@pytest.mark.parametrize(("user", "left"), [(BOB, [10, 20, 30, 40]), (ANN, [30, 40])])
def test_a_process_of_another_user_collects(shared: Path, user: int, left: list[int]) -> None:
    """One that can never be root again: what Ann's journal tells of may go, and only she may write there."""
    url = str(shared / "c.db")
    job = trained_by_ann(shared, 10, 20, 30, 40)
    for path in shared.glob("c.db*"):
        path.chmod(0o666)
    do_apart(collect_as, user, url)
    assert sorted(int(path.name.split("-")[1].split("_")[0]) * 10 for path in job.folder(0).glob("*.ckpt")) == left


def test_the_files_of_another_user_are_not_each_compared_with_all_lines_of_their_journals(
    shared: Path, tmp_path: Path
) -> None:
    """An operator's gc of a job of 10,000 files compared them with 20,000 lines each."""

    def cost(steps: int) -> int:
        home = shared / str(steps)
        home.mkdir(mode=0o777)
        home.chmod(0o777)
        connect(str(tmp_path / f"{steps}.db"))  # imports what a user who is not root cannot
        catalog = trained_by_ann(home, *range(1, steps + 1)).catalog
        counted = 0

        def count(frame: FrameType, event: str, _: object) -> None:
            nonlocal counted
            counted += event == "call" and frame.f_code.co_filename == authority.__file__

        sys.setprofile(count)
        try:
            plan = plan_gc(catalog.database, "run", LAST_2)
        finally:
            sys.setprofile(None)
        assert len(removed(plan)) == steps - 2
        return counted

    assert cost(40) <= 5 * cost(10)
