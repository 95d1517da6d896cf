"""The words of the glossary (docs/architecture.md) as values: launch, kind, checkpoint, state, restore plan."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from functools import cached_property, lru_cache
from math import gcd, isqrt
from typing import TYPE_CHECKING, Any, NamedTuple, NewType

from ckptstore.core.limits import HIGHEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.core.replicas import Layout


class Kind(str, Enum):
    """Why a checkpoint was written."""

    PERIODIC = "periodic"
    GRACEFUL_EXIT = "graceful_exit"
    DYING_GASP = "dying_gasp"
    TTP = "ttp"

    __str__ = str.__str__


class FileState(str, Enum):
    """What the catalog last knew of a file; one that was `moved` is recorded under its new path, or step, too.

    One that is `trashed` was given up by retention: it is on its way to the trash, in it, or being deleted.
    """

    IN_PROGRESS = "in_progress"
    COMPLETE = "complete"
    MISSING = "missing"
    MOVED = "moved"
    DAMAGED = "damaged"
    TRASHED = "trashed"

    __str__ = str.__str__


class Content(str, Enum):
    """What a file holds: the whole training state, the optimizer's too; weights only; or only some of the state.

    Shares are what `remove_redundancy` writes: only all of them together are the state (mindspore.md §8). Parts are the
    files of MindFormers 2.0, which MindFormers alone can put together.
    """

    FULL = "full"
    WEIGHTS = "weights"
    SHARE = "share"
    PART = "part"

    __str__ = str.__str__


class Grade(str, Enum):
    """How sure the step of a file is that no registrar saw (docs/scanning.md).

    Proven: two witnesses say the same. Consistent: every way to read the names and counters of its launch gives this
    step, and something else is open. Assumed: one witness says it, or the user, and nothing contradicts that.
    """

    PROVEN = "proven"
    CONSISTENT = "consistent"
    ASSUMED = "assumed"

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
    """What came of a launch's plan on a rank: its file could not be loaded, or it was and the launch has saved."""

    FAILED = "failed"
    SAVED = "saved"

    __str__ = str.__str__


LaunchKey = NewType("LaunchKey", str)
"""What tells a launch from every other one: made of its run and its id, which is unique in the run alone."""


@lru_cache
def launch_key(run: str, launch: str) -> LaunchKey:
    """The key of a launch of a run."""
    return LaunchKey(derived_id(run, launch))


class Timing(NamedTuple):
    """What a save cost, in seconds (None: not measured).

    `pause`: how long the training thread stood still for it, without waiting for the save before it. `written`: from
    the beginning of that until the file was on the disk. `step`: one step of training, with all between two of them.
    """

    pause: float
    written: float | None = None
    step: float | None = None


BRANCH = "branch-"
"""How the ids of launches begin that stand for a decision of a person, and train nothing."""

SCANNED = "scan-"
"""How the ids of launches begin that a scan found."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One file of one rank.

    `global_step` counts batches consumed since the run began, `optimizer_step` updates applied (None: unknown).
    `epoch` and `step_in_epoch` start at 1, as MindSpore's do. `size` is in bytes, `mtime_ns` in nanoseconds since
    1970, `digest` is BLAKE3 in hexadecimal; each is None while the file is being written. `problem` says which rule
    a damaged file broke, `quarantine` what is wrong with a state whose files are whole (empty: nothing). `revision`
    is greater than that of the record that a look at the disk amended (None: the file is as it was recorded first).
    `grade` says how sure the step is where a scan found it (None: it was registered), `doubt` what is open then.
    `timing` is what the save cost (None: not measured). `directory_id` is the identity of its directory, as
    `disk.presence` has it (empty: not known).
    """

    run: str
    launch: str
    kind: Kind
    global_step: int
    rank: int
    path: str
    optimizer_step: int | None = None
    epoch: int | None = None
    step_in_epoch: int | None = None
    size: int | None = None
    digest: str | None = None
    mtime_ns: int | None = None
    format: str = "ckpt"
    content: Content = Content.FULL
    strategy_file: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    state: FileState = FileState.COMPLETE
    problem: Rule | None = None
    quarantine: str = ""
    created_at: datetime | None = None
    revision: int | None = None
    grade: Grade | None = None
    doubt: str = ""
    timing: Timing | None = None
    directory_id: str = ""

    @property
    def newness(self) -> int:
        """What its version is made of: when the file was written, in nanoseconds, or what a look at the disk set."""
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


def derived_id(*parts: object) -> str:
    """An id made of what it is about: 16 bytes in hexadecimal."""
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@lru_cache(maxsize=1024)  # all ranks ask for it
def _save_id(run: str, launch: str, kind: Kind, global_step: int) -> str:
    return derived_id(run, launch, kind, global_step)


class Location(str, Enum):
    """Where retention wants a file: at its own place, in the trash, or deleted."""

    HOME = "home"
    TRASH = "trash"
    GONE = "gone"

    __str__ = str.__str__


class Source(NamedTuple):
    """Where a rank of a launch saves what kind of file, and the names there that are not its own.

    `names_before` were there before the launch began: breakpoints, files of graceful exits, directories of TTP. `host`
    is the one that the rank ran on, `content` what its periodic files hold (None: not known), `directory_id` the
    identity of the directory (empty: it has none).
    """

    run: str
    launch: str
    rank: int
    directory: str
    kind: Kind
    prefix: str
    breakpoint_prefix: str
    names_before: frozenset[str]
    host: str | None = None
    content: Content | None = None
    directory_id: str = ""

    @property
    def launch_key(self) -> LaunchKey:
        """The key of its launch."""
        return launch_key(self.run, self.launch)


class Lengths(NamedTuple):
    """Numbers of steps that an epoch may have: from `low` to `high` (None: no end), those that divide `divides`.

    `divides` 0 is divided by every number.
    """

    low: int = 1
    high: int | None = None
    divides: int = 0

    def fits(self, steps: int) -> bool:
        """Whether an epoch may have so many steps."""
        return self.low <= steps <= (steps if self.high is None else self.high) and self.divides % steps == 0

    def dividing(self, number: int) -> Lengths:
        """Those of them that divide a number too."""
        return self._replace(divides=gcd(self.divides, number))

    def within(self, other: Lengths) -> Lengths:
        """Those that are among others too."""
        highs = [high for high in (self.high, other.high) if high is not None]
        return Lengths(max(self.low, other.low), min(highs, default=None), gcd(self.divides, other.divides))

    def some(self) -> tuple[int, ...]:
        """The lowest two of them, or all; those of a number whose divisors take too long to find are not known."""
        if not self.divides or self.divides > _MOST_TRIED**2:
            last = self.low + 1 if self.high is None else min(self.high, self.low + 1)
            return tuple(range(self.low, last + 1))
        return tuple(each for each in _divisors(self.divides) if self.fits(each))[:2]

    @property
    def only(self) -> int | None:
        """The one number that there is; None if there are more, or none."""
        some = self.some()
        return some[0] if len(some) == 1 else None

    def __str__(self) -> str:
        if self.only is not None:
            return str(self.only)
        if not self.divides or self.divides > _MOST_TRIED**2:
            return f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"
        found = [str(each) for each in _divisors(self.divides) if self.fits(each)]
        return ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")


_SHOWN = 4
_MOST_TRIED = 50_000


@lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number of up to `_MOST_TRIED` squared, sorted."""
    low = [each for each in range(1, isqrt(number) + 1) if number % each == 0]
    return tuple(sorted({*low, *(number // each for each in low)}))


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of all ranks of a run.

    `order` counts the launches of the run from 1. `decided` is False until the launch has asked where to start;
    then `parent` and `parent_step` name the state it resumed from (None: it started fresh), and `start_step` is where
    that stands in the launch's own steps. `branched` tells that this state was asked for: what came after it in the
    history is given up. `batch_size` is the samples that one rank takes a step, `shards` into how many parts the data
    is dealt, sample by sample in turn (None: not known, or not so). `foreign`: all it saved are parts, which say
    nothing of where the others' history went. `owner` is the number of the user whose it is (None: who tells of it).
    `lengths` are the steps an epoch with which the names of a launch that was scanned fit its counters, in the ways in
    which they can be read (empty: nothing tells).
    """

    id: str
    run: str
    order: int
    world_size: int
    layout: Layout
    steps_per_epoch: int | None = None
    batch_size: int | None = None
    shards: int | None = None
    decided: bool = False
    parent: str | None = None
    parent_step: int | None = None
    branched: bool = False
    foreign: bool = False
    start_step: int | None = None
    created_at: datetime | None = None
    owner: int | None = field(default=None, compare=False)
    lengths: tuple[Lengths, ...] = ()

    @property
    def key(self) -> LaunchKey:
        """What tells it from the launches of all runs."""
        return launch_key(self.run, self.id)

    def undecided(self) -> Launch:
        """The launch without where it started: that is for its own ranks to say."""
        return replace(self, decided=False, parent=None, parent_step=None, start_step=None, branched=False)


@dataclass(frozen=True, kw_only=True)
class State:
    """All files of one launch and one global_step, whatever their kind: a candidate for a restore.

    `failed` says what went wrong when a launch loaded it, by the id of the file; `hosts` tells on which host a rank
    ran, as far as that is known. `views` are those of the ranks that will load it, by rank, where one of them may not
    see what another one does (None: all see the same).
    """

    launch: Launch
    global_step: int
    files: tuple[Checkpoint, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    views: Mapping[int, View] | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of its files, each once, in the order of `Kind`."""
        present = {file.kind for file in self.files}
        return tuple(kind for kind in Kind if kind in present)


class Observed(NamedTuple):
    """What the disk shows of one path: its size in bytes (None: not there) and, if it was read, its digest.

    `unreadable` says why the path could not be looked at; `mtime_ns` is its modification time, in nanoseconds since
    1970. `has_directory`: its directory at least is there.
    """

    size: int | None
    digest: str | None = None
    unreadable: str = ""
    mtime_ns: int | None = None
    has_directory: bool = True


class View(NamedTuple):
    """What a rank sees on its host, by path, as far as it looked: to the first file of a state that serves it."""

    host: str
    seen: Mapping[str, Observed]


@dataclass(frozen=True)
class Reason:
    """Why: the rule that was broken, on which rank (None: not of one rank), the particulars, and what can be done."""

    rule: Rule
    rank: int | None
    detail: str


class PassedOver(NamedTuple):
    """A newer state that a launch did not start from, and why: the first rule that it breaks, and the particulars."""

    launch: str
    global_step: int
    rule: Rule
    detail: str


class Unplaced(NamedTuple):
    """A file that a scan found and could not place: size in bytes, `mtime_ns` in nanoseconds since 1970.

    `best_guess` is the likeliest step (None: no idea), `remedy` the option of `ckptstore scan` that would place it
    (empty: none).
    """

    path: str
    size: int
    mtime_ns: int
    best_guess: int | None
    reason: str
    remedy: str


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
    """A candidate that cannot be restored, and why.

    `was_whole` tells that every rank once had saved its part: something is lost, rather than never finished.
    `world_size` is that of its launch, `served` are the ranks that have a file to load all the same, and `remedies`
    what would make it restorable, a line each.
    """

    launch: str
    global_step: int
    kinds: tuple[Kind, ...]
    reasons: tuple[Reason, ...]
    was_whole: bool = False
    world_size: int = 1
    served: tuple[Assignment, ...] = ()
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RestorePlan:
    """For every rank the file it must load, all of one launch and one global_step."""

    launch: Launch
    global_step: int
    ranks: tuple[Assignment, ...]

    @property
    def grade(self) -> Grade | None:
        """How sure its step is, where a scan found its files: that of the least sure one; None where all registered."""
        grades = [each.source.grade for each in self.ranks if each.source.grade]
        return max(grades, key=list(Grade).index, default=None)

    @property
    def doubt(self) -> str:
        """What is open of its step; empty where nothing is."""
        return next((each.source.doubt for each in self.ranks if each.source.doubt), "")

    @property
    def in_shares(self) -> bool:
        """Whether each rank's file is only its share of the state."""
        return any(assignment.source.content is Content.SHARE for assignment in self.ranks)

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
    """A modification time, in nanoseconds since 1970, as a time of day."""
    return datetime.fromtimestamp(mtime_ns / 1e9, timezone.utc)


def epoch_and_step(global_step: int, steps_per_epoch: int | None) -> tuple[int | None, int | None]:
    """Epoch and step in it, both from 1, of the last of `global_step` steps; (0, 0) before the first."""
    if steps_per_epoch is None:
        return None, None
    if global_step == 0:
        return 0, 0
    done = global_step - 1
    return done // steps_per_epoch + 1, done % steps_per_epoch + 1


@dataclass(frozen=True)
class Resolution:
    """The answer to "where does this run go on?": a plan, or None, and every newer candidate's rejection.

    `unplaced` are files that a scan could not place, and that may be newer than the plan's state.
    """

    run: str
    plan: RestorePlan | None
    rejections: tuple[Rejection, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()

    @property
    def lost(self) -> bool:
        """Nothing is restorable, though some state once was whole: starting afresh would hide a loss."""
        return self.plan is None and any(rejection.was_whole for rejection in self.rejections)
