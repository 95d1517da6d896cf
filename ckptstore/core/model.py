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
    Prefix,
    Ranks,
    Remedy,
    Seconds,
    Text,
    Whole,
    Word,
)
from ckptstore.core.ids import derived_id
from ckptstore.core.limits import HIGHEST, HIGHEST_INTEGER
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
    MOVED = "moved"  # it has another record, with its new path or step
    DAMAGED = "damaged"
    TRASHED = "trashed"  # given up by retention: on its way to the trash, in it, or being deleted

    __str__ = str.__str__

    @property
    def is_there(self) -> bool:
        """Whether a file is at its path, whole or not."""
        return self in (FileState.IN_PROGRESS, FileState.COMPLETE, FileState.DAMAGED)

    @property
    def is_gone(self) -> bool:
        """Whether no file is at its path, and none in the trash."""
        return self in (FileState.MISSING, FileState.MOVED)


class Content(str, Enum):
    """What a file holds."""

    FULL = "full"  # the whole training state, the optimizer's too
    WEIGHTS = "weights"  # weights only
    SHARE = "share"  # written by `remove_redundancy`: only the shares of all ranks are a state (mindspore.md §8)
    PART = "part"  # a part of a MindFormers 2.0 save: only MindFormers can join them

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
    """The outcome of a launch's plan on a rank."""

    FAILED = "failed"  # its file could not be loaded
    SAVED = "saved"  # it was loaded, and the launch has saved since

    __str__ = str.__str__


LaunchKey = NewType("LaunchKey", str)
"""Identifies a launch among all runs. It is made of the run and the launch's id, which is unique only in its run."""


@lru_cache
def launch_key(run: str, launch: str) -> LaunchKey:
    """The key of a launch of a run."""
    return LaunchKey(derived_id(run, launch))


class Timing(NamedTuple):
    """What a save cost, in seconds (None: not measured)."""

    pause: Seconds  # how long training paused, without the wait for the save before it
    written: Seconds | None = None  # from the beginning of the pause until the file was on the disk
    step: Seconds | None = None  # one step of training, with everything between two steps


class Initial(NamedTuple):
    """The state of another run that a launch starts from, while its own run has none; its `run` is a first name."""

    run: Name
    launch: Name
    global_step: Whole  # of that launch
    reference: Text  # as the user gave it: it may name another state by now

    @property
    def launch_key(self) -> LaunchKey:
        """The key of the launch that saved it."""
        return launch_key(self.run, self.launch)


BRANCH = "branch-"
"""The beginning of the ids of launches that record a user's decision and train nothing."""

SCANNED = "scan-"
"""The beginning of the ids of launches that a scan found."""

IMPORTED = "import-"
"""The beginning of the ids of launches that were imported: they trained elsewhere."""


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
    size: Whole | None = None  # bytes; None while the file is being written, like digest and mtime_ns
    digest: Word | None = None  # BLAKE3 in hexadecimal
    mtime_ns: Nanoseconds | None = None  # since 1970
    format: str = "ckpt"
    content: Content = Content.FULL
    strategy_file: str | None = None
    metrics: Mapping[Text, Finite] = field(default_factory=dict)
    state: FileState = FileState.COMPLETE
    problem: Rule | None = None  # the rule that a damaged file broke
    quarantine: Text = ""  # the fault of a state whose files are whole
    created_at: Moment | None = None
    revision: Nanoseconds | None = None  # set by `amended`, so that this record is the newer one
    grade: Grade | None = None  # how sure the step of a scanned file is; None: it was registered
    doubt: Text = ""  # the open question about a scanned file
    timing: Timing | None = None  # what the save cost; None: not measured
    directory_id: DirectoryId = ""  # the identity of its directory (`disk.presence`); empty: not known

    @property
    def newness(self) -> int:
        """The number that orders a file's records: its time in nanoseconds, or the revision by a look at the disk."""
        if self.revision is not None:
            return self.revision
        return -HIGHEST if self.mtime_ns is None else self.mtime_ns

    def amended(self, **changes: Any) -> Checkpoint:
        """The record after a look at the disk: newer than this record, older than a record of a file written later."""
        return replace(self, **changes, revision=min(self.newness + 1, HIGHEST))

    @property
    def save_id(self) -> str:
        """The id of the save that this file is part of: each rank derives the same id."""
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
    prefix: Prefix
    breakpoint_prefix: Text
    names_before: frozenset[Text]  # breakpoints, graceful exits and TTP directories from before the launch
    host: Text | None = None  # that the rank ran on
    content: Content | None = None  # what its periodic files hold; None: the whole state
    directory_id: DirectoryId = ""  # the identity of the directory; empty: it has none

    @property
    def launch_key(self) -> LaunchKey:
        """The key of its launch."""
        return launch_key(self.run, self.launch)

    @property
    def is_nested(self) -> bool:
        """Whether each save has a directory of its own below this one: of TTP, and of iterations."""
        return self.kind is Kind.TTP or self.content is Content.PART


class Announced(NamedTuple):
    """A directory that ranks save to, its identity (empty: not known), and the host they ran on (None: not known)."""

    directory: str
    directory_id: str
    host: str | None


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
        None  # parts that the data is dealt into, sample by sample in turn; None: not dealt so, or not known
    )
    decided: bool = False  # it has asked where to start
    parent: str | None = None  # the launch that it resumed from; None: it started fresh
    parent_step: int | None = None  # the step of that launch
    branched: bool = False  # the user chose that start: later states of the history are abandoned
    foreign: bool = False  # it has parts only, which tell nothing of the history of other launches
    start_step: int | None = None  # the step of this launch that parent_step corresponds to
    initial: Initial | None = None  # the state of another run that it started from; None: none
    created_at: Moment | None = None
    owner: int | None = field(default=None, compare=False)  # a user's number; None: the user who records it
    has_copies: bool = field(default=False, compare=False)  # tiers have some of its files

    @property
    def key(self) -> LaunchKey:
        """Identifies the launch among those of all runs."""
        return launch_key(self.run, self.id)

    @property
    def any_file_serves(self) -> bool:
        """Whether each of its files with a whole state serves every rank, of any number of ranks."""
        return self.layout.any_world_size or self.world_size == 1

    def undecided(self) -> Launch:
        """The launch without where it started."""
        return replace(
            self, decided=False, parent=None, parent_step=None, start_step=None, branched=False, initial=None
        )


@dataclass(frozen=True, kw_only=True)
class State:
    """All files of one launch and one global_step, of any kind: a candidate for a restore.

    `failed` has the reason why a launch could not load a file, `copies` those that a rank may fetch, both by the id of
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
    """The state of another run that the newest launch of a run began from; undecided launches do not count.

    None: it resumed from a state of its own run, or started fresh.
    """
    newest = max((each for each in launches if each.decided), key=lambda each: each.order, default=None)
    return newest.initial if newest else None


class Observed(NamedTuple):
    """What the disk shows of one path."""

    size: int | None  # bytes; None: it is not there
    digest: str | None = None  # if it was read
    unreadable: str = ""  # why it could not be looked at
    mtime_ns: int | None = None  # since 1970
    has_directory: bool = True  # its directory exists, and is not empty


class View(NamedTuple):
    """What a rank finds on its host, by path. In each state it looks only until it finds a file that serves it."""

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
    remedy: Remedy  # the option of `ckptstore scan` that would tell them; empty: none


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

    `copies` are the copies of the files that may have to be fetched, by the file's id, nearest tier first.
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
        """The nearest copy of a file that may have to be fetched; None: the file is where it was recorded."""
        return next(iter(self.copies.get(file.id, ())), None) if self.copies else None

    @property
    def bytes_to_fetch(self) -> int:
        """Bytes that must be fetched before all ranks can load the state, each file once."""
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
    def sources(self) -> list[Checkpoint]:
        """The files of the plan, each once."""
        return list({each.source.id: each.source for each in self.ranks}.values())

    @cached_property
    def in_shares(self) -> bool:
        """Whether each rank's file is only its share of the state."""
        return any(assignment.source.content is Content.SHARE for assignment in self.ranks)

    @property
    def in_parts(self) -> bool:
        """Whether the state is the directory of an iteration: a rank's file is its part of the model alone."""
        return any(assignment.source.content is Content.PART for assignment in self.ranks)

    def parts_among(self, saved: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
        """The parts of its iteration among the files of its step: a moved one has records of its old place too."""
        home = self.ranks[0].source.path.rpartition("/")[0]
        return tuple(file for file in saved if file.content is Content.PART and file.path.rpartition("/")[0] == home)

    def files_for(self, rank: int, layout: Layout) -> tuple[Checkpoint, ...]:
        """The files that a rank reads: its own in the plan; of a data-parallel state in shares, those of all ranks.

        With `remove_redundancy`, MindSpore spreads the parameters of a data-parallel state over all ranks
        (`train/callback/_checkpoint.py`). The launch that saved knows whether it was data parallel; if a scan found it,
        the launch that loads does (`layout`). With any other layout each rank reads its own share, and MindSpore sends
        the other shares over the network.
        """
        own = next(assignment.source for assignment in self.ranks if assignment.rank == rank)
        if not (self.in_shares and (self.launch.layout.any_world_size or layout.any_world_size)):
            return (own,)
        return (own, *(assignment.source for assignment in self.ranks if assignment.rank != rank))

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each metric over the files that are loaded."""
        return mean_metrics(source.metrics for source in self.sources)

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
    """A modification time, in nanoseconds since 1970, as a datetime. Limited: file systems have years beyond 9999."""
    return datetime.fromtimestamp(max(-HIGHEST, min(mtime_ns, HIGHEST)) / 1e9, timezone.utc)


def epoch_and_step(global_step: int, steps_per_epoch: int | None) -> tuple[int | None, int | None]:
    """Epoch and step in it, both from 1, of the last of `global_step` steps; (0, 0) before the first.

    Both are None if they are not known, or higher than a catalog can hold: the step is then no count of steps.
    """
    if steps_per_epoch is None:
        return None, None
    if global_step == 0:
        return 0, 0
    done = global_step - 1
    epoch, step_in_epoch = done // steps_per_epoch + 1, done % steps_per_epoch + 1
    return (None, None) if max(epoch, step_in_epoch) > HIGHEST_INTEGER else (epoch, step_in_epoch)


_STEPS_SHOWN = 6


@dataclass(frozen=True)
class Resolution(Tabular):
    """The answer to "where does this run go on?"."""

    run: str
    plan: RestorePlan | None
    rejections: tuple[Rejection, ...] = ()  # of every newer candidate
    unplaced: tuple[Unplaced, ...] = ()  # files whose step a scan could not tell, maybe newer than the plan's state
    step: int | None = None  # that was asked for; None: any
    steps: tuple[int, ...] = ()  # that the run has saves of, if it has none of the requested step
    best: Best | None = None  # the metric that the state must be best at; None: the newest state was asked for
    without_fetching: RestorePlan | None = None  # if files of the plan must be fetched: the plan that needs no copy

    def to_dicts(self) -> list[dict[str, Any]]:
        """The file of each rank; empty where there is no plan."""
        return self.plan.to_dicts() if self.plan else []

    @property
    def why_none(self) -> str:
        """The message that the requested state cannot be restored; empty if there is a plan."""
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
