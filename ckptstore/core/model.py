"""The words of the glossary (docs/architecture.md) as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, NewType

from ckptstore.core.copies import Copy
from ckptstore.core.fields import (
    Count,
    DirectoryId,
    Finite,
    Index,
    Moment,
    Name,
    Nanoseconds,
    Ranks,
    Remedy,
    Seconds,
    Text,
    Whole,
    Word,
)
from ckptstore.core.ids import derived_id
from ckptstore.core.limits import HIGHEST
from ckptstore.core.metrics import mean_metrics
from ckptstore.core.replicas import Layout
from ckptstore.core.tabular import Tabular

if TYPE_CHECKING:
    from ckptstore.core.reference import Best


class Kind(str, Enum):
    """Why a checkpoint was written."""

    PERIODIC = "periodic"
    GRACEFUL_EXIT = "graceful_exit"
    DYING_GASP = "dying_gasp"
    TTP = "ttp"

    __str__ = str.__str__


class FileState(str, Enum):
    """What the catalog last knew of a file."""

    IN_PROGRESS = "in_progress"
    COMPLETE = "complete"
    MISSING = "missing"
    MOVED = "moved"  # recorded under its new path, or step, too
    DAMAGED = "damaged"
    TRASHED = "trashed"  # given up by retention: on its way to the trash, in it, or being deleted

    __str__ = str.__str__


class Content(str, Enum):
    """What a file holds."""

    FULL = "full"  # the whole training state, the optimizer's too
    WEIGHTS = "weights"  # weights only
    SHARE = "share"  # what `remove_redundancy` writes: only all of them together are the state (mindspore.md §8)
    PART = "part"  # of MindFormers 2.0, which alone can put them together

    __str__ = str.__str__


class Grade(str, Enum):
    """How sure the step of a scanned file is (docs/explanation/grades.md)."""

    PROVEN = "proven"  # two witnesses say the same
    CONSISTENT = "consistent"  # every way to read the names and counters of its launch gives this step
    ASSUMED = "assumed"  # one witness says it, or the user, and nothing contradicts that

    __str__ = str.__str__


class Rule(str, Enum):
    """Why a state, or a rank of it, cannot be restored."""

    MISSING_RANK = "missing_rank"
    MISSING_FILE = "missing_file"
    SIZE_MISMATCH = "size_mismatch"
    REPLICA_SIZE_MISMATCH = "replica_size_mismatch"
    DIGEST_MISMATCH = "digest_mismatch"
    WORLD_SIZE = "world_size"
    UNTRAINED = "untrained"
    IN_PROGRESS = "in_progress"
    QUARANTINED = "quarantined"
    NOT_LINEAGE = "not_lineage"
    WEIGHTS_ONLY = "weights_only"
    FOREIGN_FORMAT = "foreign_format"
    UNREADABLE = "unreadable"
    OTHER_EPOCHS = "other_epochs"

    __str__ = str.__str__


class LoadResult(str, Enum):
    """What came of a launch's plan on a rank."""

    FAILED = "failed"  # its file could not be loaded
    SAVED = "saved"  # it was loaded, and the launch has saved since

    __str__ = str.__str__


LaunchKey = NewType("LaunchKey", str)
"""Identifies a launch: made of its run and its id, which is unique in the run alone."""


@lru_cache
def launch_key(run: str, launch: str) -> LaunchKey:
    """The key of a launch of a run."""
    return LaunchKey(derived_id(run, launch))


class Timing(NamedTuple):
    """What a save cost, in seconds (None: not measured)."""

    pause: Seconds  # the training thread stood still, without waiting for the save before it
    written: Seconds | None = None  # from the beginning of the pause until the file was on the disk
    step: Seconds | None = None  # one step of training, with all between two of them


class Initial(NamedTuple):
    """The state of another run that a launch starts from, while its own run has none; its `run` is a first name."""

    run: Name
    launch: Name
    global_step: Whole  # of that launch
    reference: Text  # which the user asked for: it may name another state by now

    @property
    def launch_key(self) -> LaunchKey:
        """The key of the launch that saved it."""
        return launch_key(self.run, self.launch)


BRANCH = "branch-"
"""How the ids of launches begin that stand for a decision of a person, and train nothing."""

SCANNED = "scan-"
"""How the ids of launches begin that a scan found."""

IMPORTED = "import-"
"""How the ids of launches begin that an import took in: they were trained elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One file of one rank."""

    run: Name
    launch: Name
    kind: Kind
    global_step: Whole  # batches consumed since the run began
    rank: Index
    path: str
    optimizer_step: Whole | None = None  # updates applied; None: unknown
    epoch: Index | None = None  # from 1, as MindSpore's
    step_in_epoch: Index | None = None  # from 1
    size: Whole | None = None  # bytes; None while the file is being written, as digest and mtime_ns
    digest: Word | None = None  # BLAKE3 in hexadecimal
    mtime_ns: Nanoseconds | None = None  # since 1970
    format: str = "ckpt"
    content: Content = Content.FULL
    strategy_file: str | None = None
    metrics: Mapping[Text, Finite] = field(default_factory=dict)
    state: FileState = FileState.COMPLETE
    problem: Rule | None = None  # the rule that a damaged file broke
    quarantine: Text = ""  # what is wrong with a state whose files are whole
    created_at: Moment | None = None
    revision: Nanoseconds | None = None  # greater than that of the record that a look at the disk amended
    grade: Grade | None = None  # how sure the step of a scanned file is; None: it was registered
    doubt: Text = ""  # what is open about a scanned file
    timing: Timing | None = None  # what the save cost; None: not measured
    directory_id: DirectoryId = ""  # the identity of its directory (`disk.presence`); empty: not known

    @property
    def newness(self) -> int:
        """What its version is made of: the file's time, in nanoseconds, or the revision that a look at the disk set."""
        if self.revision is not None:
            return self.revision
        return -HIGHEST if self.mtime_ns is None else self.mtime_ns

    def amended(self, **changes: Any) -> Checkpoint:
        """The record after a look at the disk: newer than this one, older than that of a file written later."""
        return replace(self, **changes, revision=min(self.newness + 1, HIGHEST))

    @property
    def save_id(self) -> str:
        """The id of the save that this file is part of: the same for all its ranks, on all of them."""
        return _save_id(self.run, self.launch, self.kind, self.global_step)

    @property
    def launch_key(self) -> LaunchKey:
        """The key of its launch."""
        return launch_key(self.run, self.launch)

    @cached_property
    def id(self) -> str:
        """An id derived from what the record is about, so that writing it twice changes nothing."""
        return derived_id(self.run, self.launch, self.kind, self.global_step, self.rank, self.path)


@lru_cache(maxsize=1024)  # all ranks ask for it
def _save_id(run: str, launch: str, kind: Kind, global_step: int) -> str:
    return derived_id(run, launch, kind, global_step)


class Location(str, Enum):
    """Where retention wants a file: at its own place, in the trash, or deleted."""

    HOME = "home"
    TRASH = "trash"
    GONE = "gone"

    __str__ = str.__str__


@dataclass(frozen=True)
class Source:
    """Where a rank of a launch saves which kind of file."""

    run: Name
    launch: Name
    rank: Index
    directory: str
    kind: Kind
    prefix: Text
    breakpoint_prefix: Text
    names_before: frozenset[Text]  # breakpoints, graceful exits and TTP directories from before the launch
    host: Text | None = None  # that the rank ran on
    content: Content | None = None  # what its periodic files hold; None: not known
    directory_id: DirectoryId = ""  # the identity of the directory; empty: it has none

    @property
    def launch_key(self) -> LaunchKey:
        """The key of its launch."""
        return launch_key(self.run, self.launch)

    @property
    def is_nested(self) -> bool:
        """Whether each save has a directory of its own below this one: of TTP, and of iterations."""
        return self.kind is Kind.TTP or self.content is Content.PART


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of all ranks of a run."""

    id: Name
    run: Name
    order: int  # counts the launches of the run from 1
    world_size: Ranks
    layout: Layout
    steps_per_epoch: Count | None = None
    batch_size: Count | None = None  # samples that one rank takes a step
    shards: Count | None = (
        None  # parts that the data is dealt into, sample by sample in turn; None: not so, or not known
    )
    decided: bool = False  # it has asked where to start
    parent: str | None = None  # the launch that it resumed from; None: it started fresh
    parent_step: int | None = None  # the step of that launch
    branched: bool = False  # that state was asked for: what came after it in the history is given up
    foreign: bool = False  # all it saved are parts, which say nothing of where the others' history went
    start_step: int | None = None  # where parent_step stands in its own steps
    initial: Initial | None = None  # the state of another run that it started from; None: of none
    created_at: Moment | None = None
    owner: int | None = field(default=None, compare=False)  # the user whose it is; None: who tells of it
    has_copies: bool = field(default=False, compare=False)  # tiers have some of its files

    @property
    def key(self) -> LaunchKey:
        """Identifies it among the launches of all runs."""
        return launch_key(self.run, self.id)

    def undecided(self) -> Launch:
        """The launch without where it started."""
        return replace(
            self, decided=False, parent=None, parent_step=None, start_step=None, branched=False, initial=None
        )


@dataclass(frozen=True, kw_only=True)
class State:
    """All files of one launch and one global_step, whatever their kind: a candidate for a restore.

    `failed` says what went wrong when a launch loaded it, `copies` are those that a rank may fetch: each by the id of
    the file.
    """

    launch: Launch
    global_step: int
    files: tuple[Checkpoint, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, tuple[Copy, ...]] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of its files, each once, in the order of `Kind`."""
        present = {file.kind for file in self.files}
        return tuple(kind for kind in Kind if kind in present)


def initial_of(launches: Iterable[Launch]) -> Initial | None:
    """The state of another run that the newest launch of a run began from; launches that have not asked do not count.

    None: it went on from the run's own, or began with nothing.
    """
    newest = max((each for each in launches if each.decided), key=lambda each: each.order, default=None)
    return newest.initial if newest else None


class Observed(NamedTuple):
    """What the disk shows of one path."""

    size: int | None  # bytes; None: it is not there
    digest: str | None = None  # if it was read
    unreadable: str = ""  # why it could not be looked at
    mtime_ns: int | None = None  # since 1970
    has_directory: bool = True  # its directory at least is there, with anything in it


class View(NamedTuple):
    """What a rank sees on its host, by path, as far as it looked: to the first file of a state that serves it."""

    host: str
    seen: Mapping[str, Observed]


@dataclass(frozen=True)
class Reason:
    """Why a state is rejected."""

    rule: Rule  # that was broken
    rank: int | None  # None: not on one rank
    detail: str


class PassedOver(NamedTuple):
    """A newer state that a launch did not start from, and why: the first rule that it breaks, and the particulars."""

    launch: Name
    global_step: Whole
    rule: Rule
    detail: Text


@dataclass(frozen=True)
class Unplaced:
    """A file that a scan found and whose step or rank it could not tell."""

    path: str
    size: Whole  # bytes
    mtime_ns: Nanoseconds  # since 1970
    best_guess: Whole | None  # the likeliest step; None: no idea
    reason: Text
    remedy: Remedy  # the option of `ckptstore scan` that would tell; empty: none


@dataclass(frozen=True)
class Skipped:
    """A path that was not taken into the catalog, and why."""

    path: str
    reason: str


class Assignment(NamedTuple):
    """The file that a rank loads; `source.rank` differs from `rank` where a replica stands in."""

    rank: int
    source: Checkpoint


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A candidate that cannot be restored, and why."""

    launch: str
    global_step: int
    kinds: tuple[Kind, ...]
    reasons: tuple[Reason, ...]
    was_whole: bool = False  # every rank once had saved its part: something is lost, rather than never finished
    world_size: int = 1  # of its launch
    served: tuple[Assignment, ...] = ()  # the ranks that have a file to load all the same
    remedies: tuple[str, ...] = ()  # what would make it restorable, a line each


@dataclass(frozen=True, kw_only=True)
class RestorePlan(Tabular):
    """For every rank the file it must load, all of one launch and one global_step.

    `copies` are those of files that may have to be fetched, by the file's id, the nearest tier's first.
    """

    launch: Launch
    global_step: int
    ranks: tuple[Assignment, ...]
    copies: Mapping[str, tuple[Copy, ...]] = field(default_factory=dict, compare=False)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The file of each rank."""
        return [
            {
                "rank": rank,
                "source_rank": source.rank,
                "kind": source.kind,
                "path": source.path,
                "size": source.size,
                "strategy_file": source.strategy_file,
            }
            for rank, source in self.ranks
        ]

    def copy_of(self, file: Checkpoint) -> Copy | None:
        """The nearest copy of a file that may have to be fetched; None: it is where it was recorded."""
        return next(iter(self.copies.get(file.id, ())), None) if self.copies else None

    @property
    def bytes_to_fetch(self) -> int:
        """Bytes that must be fetched before all ranks can load it, each file once."""
        return sum(copies[0].all_bytes for copies in self.copies.values())

    @property
    def grade(self) -> Grade | None:
        """The grade of its least sure file; None if all were registered."""
        grades = [each.source.grade for each in self.ranks if each.source.grade]
        return max(grades, key=list(Grade).index, default=None)

    @property
    def doubt(self) -> str:
        """The open question about its step; empty if there is none."""
        return next((each.source.doubt for each in self.ranks if each.source.doubt), "")

    @property
    def in_shares(self) -> bool:
        """Whether each rank's file is only its share of the state."""
        return any(assignment.source.content is Content.SHARE for assignment in self.ranks)

    @property
    def in_parts(self) -> bool:
        """Whether the state is the directory of an iteration: a rank's file is its part of the model alone."""
        return any(assignment.source.content is Content.PART for assignment in self.ranks)

    def files_for(self, rank: int, layout: Layout) -> tuple[Checkpoint, ...]:
        """What a rank reads: the file that the plan gives it; of a data-parallel state in shares, everybody's.

        There MindSpore spreads the parameters over all ranks (`train/callback/_checkpoint.py`, `remove_redundancy`).
        The launch that saved says that it was data parallel; if a scan found it, the one that loads does (`layout`).
        With any other layout each rank reads its own share, and MindSpore sends the others' over the network.
        """
        own = next(assignment.source for assignment in self.ranks if assignment.rank == rank)
        if not (self.in_shares and (self.launch.layout.any_world_size or layout.any_world_size)):
            return (own,)
        return (own, *(assignment.source for assignment in self.ranks if assignment.rank != rank))

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each metric over the files that are loaded."""
        return mean_metrics(source.metrics for source in {each.source.id: each.source for each in self.ranks}.values())

    @property
    def epoch(self) -> int | None:
        """Epoch of the last step done, from 1; None where the steps of an epoch are not known."""
        return epoch_and_step(self.global_step, self.launch.steps_per_epoch)[0]

    @property
    def step_in_epoch(self) -> int | None:
        """Step in that epoch, from 1."""
        return epoch_and_step(self.global_step, self.launch.steps_per_epoch)[1]

    @property
    def initial_epoch(self) -> int | None:
        """What `Model.train(initial_epoch=…)` needs to go on after this state (mindspore.md §4)."""
        steps = self.launch.steps_per_epoch
        return None if steps is None else self.global_step // steps


def moment(mtime_ns: int) -> datetime:
    """A modification time, in nanoseconds since 1970, as a time of day; a file system may have years beyond 9999."""
    return datetime.fromtimestamp(max(-HIGHEST, min(mtime_ns, HIGHEST)) / 1e9, timezone.utc)


def epoch_and_step(global_step: int, steps_per_epoch: int | None) -> tuple[int | None, int | None]:
    """Epoch and step in it, both from 1, of the last of `global_step` steps; (0, 0) before the first."""
    if steps_per_epoch is None:
        return None, None
    if global_step == 0:
        return 0, 0
    done = global_step - 1
    return done // steps_per_epoch + 1, done % steps_per_epoch + 1


_STEPS_SHOWN = 6


@dataclass(frozen=True)
class Resolution(Tabular):
    """The answer to "where does this run go on?"."""

    run: str
    plan: RestorePlan | None
    rejections: tuple[Rejection, ...] = ()  # of every newer candidate
    unplaced: tuple[Unplaced, ...] = ()  # files whose step a scan could not tell, maybe newer than the plan's state
    step: int | None = None  # that was asked for; None: any
    steps: tuple[int, ...] = ()  # that the run has saves of, where it has none of the step that was asked for
    best: Best | None = None  # what the state was to be best at; None: the newest was asked for
    without_fetching: RestorePlan | None = None  # where files of the plan must be fetched: the one that needs no copy

    def to_dicts(self) -> list[dict[str, Any]]:
        """The file of each rank; empty where there is no plan."""
        return self.plan.to_dicts() if self.plan else []

    @property
    def why_none(self) -> str:
        """The message that the requested state cannot be restored; empty where there is a plan."""
        if self.plan is not None:
            return ""
        if self.best is not None:
            return f"no state of run {self.run} that has the metric {self.best.metric} can be restored"
        if self.step is None:
            return f"nothing of run {self.run} can be restored"
        if self.rejections:
            return f"step {self.step} of run {self.run} cannot be restored"
        many = len(self.steps) > _STEPS_SHOWN + 2
        shown = (*self.steps[:2], "…", *self.steps[-_STEPS_SHOWN:]) if many else self.steps
        those_there = f"; it has {', '.join(map(str, shown))}" if shown else ""
        return f"run {self.run} has no save of step {self.step}{those_there}"

    @property
    def lost(self) -> bool:
        """Nothing is restorable, though some state once was whole: starting afresh would hide a loss."""
        return self.plan is None and any(rejection.was_whole for rejection in self.rejections)
