"""Anything in any order: saves, damage, pins, launches, gcs, crashes, undo, purge.

A state of the floor never loses a file, a plan that was handed out never breaks, and nothing else is ever touched.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ckptstore.api import connect
from ckptstore.catalog.engine import Database
from ckptstore.core.model import Checkpoint
from ckptstore.errors import NothingRestorableError, RefusedError, UsageError
from ckptstore.retention.execute import execute
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.retention.purge import purge
from ckptstore.retention.undo import undo
from ckptstore.training.rank_launch import RankLaunch
from tests.foreign_bytes import shards, tensorflow
from tests.jobs import Job
from tests.retention.gc_world import die

RANKS = 2
Key = tuple[str, int]
Action = Callable[..., object]  # of a database and a run

policies = st.builds(
    Policy,
    keep_last=st.integers(0, 2),
    keep_every=st.sampled_from([7, 20]),
    keep_parents=st.booleans(),
    drop_branches=st.booleans(),
    floor=st.integers(1, 3),
)


@dataclass
class Saved:
    """A state as the test knows it: its files, and the bytes that each had when it was registered."""

    files: dict[str, bytes] = field(default_factory=dict)
    checkpoints: tuple[str, ...] = ()
    harmed: bool = False

    def is_whole(self) -> bool:
        """Whether every rank's file is there, as it was."""
        there = all(Path(path).exists() and Path(path).read_bytes() == was for path, was in self.files.items())
        return len(self.checkpoints) == RANKS and not self.harmed and there

    def in_part(self) -> list[str]:
        """The checkpoints of which some files are there, and others are not."""
        there = {path: [Path(each).exists() for each in self.files if is_of(each, path)] for path in self.checkpoints}
        return [path for path, some in there.items() if any(some) and not all(some)]


class JobOfSeveral(Job):
    """Each rank saves a directory or a prefix, by turns."""

    def write(self, launch: RankLaunch, step: int, *, name: str | None = None) -> Path:
        make = shards if (step + launch.rank) % 2 else tensorflow
        return make(self.folder(launch.rank) / (name or f"{launch.id}-at-{step}"), at=step)


def is_of(file: str, checkpoint: str) -> bool:
    """Whether a file is a checkpoint, or one of its several."""
    return file == checkpoint or file.startswith((f"{checkpoint}/", f"{checkpoint}.index", f"{checkpoint}.data-"))


def files_of(path: str) -> list[str]:
    return [str(each) for each in Path(path).parent.rglob("*") if each.is_file() and is_of(str(each), path)]


def act(url: str, action: Action) -> None:
    try:
        action(connect(url).database, "run")
    except (RefusedError, UsageError):  # nothing in the trash, or nothing to restore would be left
        return


def collect(database: Database, run: str, *, policy: Policy, at_once: bool) -> None:
    execute(database, plan_gc(database, run, policy), at_once=at_once, allow_mass_delete=True)


class Retention(RuleBasedStateMachine):
    """One run with two ranks, none of which is the other's replica."""

    job_type = Job

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")  # noqa: S108 — only where it is
        self.home = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.url = str(self.home / "catalog.db")
        self.states: dict[Key, Saved] = {}
        self.parents: dict[str, Key | None] = {}
        self.launches: list[str] = []
        self.held: dict[str, Key] = {}
        self.pinned: set[int] = set()
        self.step = 0

    @initialize()
    def begin(self) -> None:
        self.catalog = connect(self.url)
        self.job = self.job_type(self.catalog, self.home / "data")
        outside = self.home / "outside"
        outside.mkdir()
        (outside / "net-1_1.ckpt").write_bytes(b"somebody else's")
        self.ranks: list[RankLaunch] = []
        self.launch()
        inside = self.job.folder(0)
        inside.mkdir(parents=True, exist_ok=True)
        (inside / "notes.txt").write_bytes(b"mine")
        (inside / "other-1_1.ckpt").write_bytes(b"mine too")
        (inside / "link").symlink_to(outside)
        self.strangers = {path: path.read_bytes() for path in (*outside.iterdir(), *inside.iterdir()) if path.is_file()}

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    @rule()
    def launch(self) -> None:
        name = f"L{self.job.launches + 1}"
        try:
            self.ranks = self.job.start()
        except NothingRestorableError:
            self.job.launches -= 1
            self.job.start(resume=False)
            return
        facts = self.ranks[0].facts
        self.launches.append(name)
        self.parents[name] = None if facts.parent is None else (facts.parent, facts.parent_step or 0)
        parent = self.parents[name]
        if parent is not None:
            assert self.states[parent].is_whole()
            self.held[name] = parent
        for rank in self.ranks:
            self.job.announce(rank)
        self.step = facts.parent_step or 0

    @rule(more=st.integers(1, 9), ranks=st.sampled_from([(0, 1), (0, 1), (0, 1), (0,), (1,)]))
    @precondition(lambda self: self.ranks and self.ranks[0].facts.decided)
    def save(self, more: int, ranks: tuple[int, ...]) -> None:
        self.step += more
        saved: list[Checkpoint] = self.job.save([self.ranks[rank] for rank in ranks], self.step)
        launch = self.ranks[0].id
        paths = tuple(file.path for file in saved)
        files = {each: Path(each).read_bytes() for path in paths for each in files_of(path)}
        self.states[launch, self.step] = Saved(files, paths)
        if len(ranks) == RANKS:
            self.held.pop(launch, None)

    @rule(which=st.integers(0, 10**6), how=st.sampled_from(["cut", "gone", "other"]))
    @precondition(lambda self: self.states)
    def damage(self, which: int, how: str) -> None:
        key = sorted(self.states)[which % len(self.states)]
        state = self.states[key]
        path = Path(sorted(state.files)[which % len(state.files)])
        if not path.exists():
            return
        state.harmed = True
        content = path.read_bytes()
        path.unlink()
        if how != "gone":
            path.write_bytes(content[:-7] if how == "cut" else content[:-16] + bytes(16))
        self.held = {launch: held for launch, held in self.held.items() if held != key}

    @rule(which=st.integers(0, 10**6))
    @precondition(lambda self: self.states)
    def pin(self, which: int) -> None:
        key = sorted(self.states)[which % len(self.states)]
        if not any(Path(path).exists() for path in self.states[key].files):
            return
        self.catalog.pin("run", key[1])
        self.pinned.add(key[1])

    @rule(policy=policies, at_once=st.booleans(), killed_at=st.none() | st.integers(0, 30))
    def gc(self, policy: Policy, at_once: bool, killed_at: int | None) -> None:  # noqa: FBT001
        keep = [*self.floor(policy.floor), *(key for key in self.states if key[1] in self.pinned)]
        before = {path for key in keep for path in self.states[key].files if Path(path).exists()}

        self.do(partial(collect, policy=policy, at_once=at_once), killed_at)
        for path in before:
            assert Path(path).exists(), f"{path} is of the floor, or pinned"

    @rule(killed_at=st.none() | st.integers(0, 20))
    def bring_back(self, killed_at: int | None) -> None:
        self.do(undo, killed_at)

    @rule(killed_at=st.none() | st.integers(0, 20))
    def purge(self, killed_at: int | None) -> None:
        self.do(partial(purge, at_once=True), killed_at)

    @rule(policy=policies)
    def undo_undoes(self, policy: Policy) -> None:
        """What a gc moves away comes back, and nothing else does."""
        purge(self.catalog.database, "run", at_once=True)
        before = self.everything()
        plan = plan_gc(self.catalog.database, "run", policy)
        done = execute(self.catalog.database, plan, allow_mass_delete=True)
        if done.files:
            undo(self.catalog.database, "run")
        assert self.everything() == before

    def do(self, action: Action, killed_at: int | None) -> None:
        quietly = partial(act, self.url, action)
        if killed_at is None:
            quietly()
            for state in self.states.values():
                assert state.harmed or state.in_part() == [], "what was begun is ended: all or none"
        else:
            assert die(quietly, killed_at) in (0, -9)

    def everything(self) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in self.job.directory.rglob("*")
            if path.is_file() and ".ckptstore" not in path.parts
        }

    def floor(self, count: int) -> list[Key]:
        """The newest whole states of the history of the newest launch that has saved, by the test's own log."""
        found: list[Key] = []
        with_saves = [launch for launch in self.launches if any(key[0] == launch for key in self.states)]
        launch = with_saves[-1] if with_saves else None
        last: int | None = None
        while launch is not None:
            own = sorted((step for name, step in self.states if name == launch), reverse=True)
            found += [(launch, step) for step in own if last is None or step <= last]
            parent = self.parents[launch]
            launch, last = parent if parent is not None else (None, None)
        return [key for key in found if self.states[key].is_whole()][:count]

    @invariant()
    def a_plan_that_was_handed_out_holds(self) -> None:
        for launch, key in self.held.items():
            assert self.states[key].is_whole(), f"launch {launch} starts from it"

    @invariant()
    def nothing_else_is_touched(self) -> None:
        for path, content in getattr(self, "strangers", {}).items():
            assert path.read_bytes() == content
        if hasattr(self, "strangers"):
            assert (self.job.folder(0) / "link").is_symlink()


class RetentionOfSeveral(Retention):
    """The same with checkpoints of several files."""

    job_type = JobOfSeveral


Retention.TestCase.settings = settings(max_examples=8, stateful_step_count=25)
RetentionOfSeveral.TestCase.settings = settings(max_examples=4, stateful_step_count=25)
TestRetention = Retention.TestCase
TestRetentionOfSeveral = RetentionOfSeveral.TestCase
