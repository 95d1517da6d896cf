"""Decides which states of a run stay and which go, each with reasons, from the states, a policy and the time.

Only restorable states of the run's present history count for the rules and for the floor. Other states do not count,
and go once there is a newer restorable state. No state newer than the newest restorable one ever goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timezone
from enum import Enum
from typing import TYPE_CHECKING

from ckptstore.core.metrics import best_first
from ckptstore.errors import RefusedError, UsageError
from ckptstore.retention.policy import Policy, show_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from ckptstore.core.model import Kind

    StatesWithDetail = Iterator[tuple["StateFacts", str]]

Key = tuple[str, int]
"""A state of a run: its launch and its global_step."""

MASS_DELETE = 0.9
"""A plan that removes a larger share of the bytes is refused unless it is asked for."""


class Why(str, Enum):
    """Why a state stays or goes."""

    FLOOR = "floor"
    LAST = "last"
    EVERY = "every"
    WITHIN = "within"
    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    BEST = "best"
    KIND = "kind"
    PINNED = "pinned"
    TAGGED = "tagged"
    RESTORING = "restoring"
    INITIAL = "initial"
    PARENT = "parent"
    BRANCH_TIP = "branch_tip"
    WEIGHTS_ONLY = "weights_only"
    DOUBT = "doubt"
    IN_PROGRESS = "in_progress"
    NEWER = "newer"
    NO_RULE = "no_rule"
    NOT_RESTORABLE = "not_restorable"
    ABANDONED = "abandoned"

    __str__ = str.__str__


@dataclass(frozen=True)
class Because:
    """A reason to keep or to remove: the rule, and the details."""

    rule: Why
    detail: str


@dataclass(frozen=True, kw_only=True)
class StateFacts:
    """The facts about a state that retention needs: all files of one launch and one global_step."""

    launch: str
    launch_order: int
    global_step: int
    kinds: tuple[Kind, ...]
    created_at: datetime
    bytes: int  # of its files that are there
    files: int
    problem: str = ""  # why it cannot be restored; empty: it can
    doubt: str = ""  # an open question about it: then it stays
    branch: str = ""  # the newest launch of its abandoned branch; empty: it is of the run's lineage
    metrics: Mapping[str, float] = field(default_factory=dict)  # means over the ranks
    pinned: bool = False
    tags: tuple[str, ...] = ()
    held_by: tuple[str, ...] = ()  # launches that started from it, and whose leases last
    parent_of: tuple[str, ...] = ()  # launches that ever resumed from it
    needed_by: tuple[str, ...] = ()  # other runs that began from it and have no state of their own yet
    is_written: bool = False  # the newest launch still writes a file of it
    weights_only: bool = False
    by_replicas: bool = False  # restorable, and the files of some ranks serve others
    shift: int = 0  # how far its launch's steps are ahead of the first launch's: steps compare only within a shift

    @property
    def key(self) -> Key:
        """The key of the state, unique in the run."""
        return self.launch, self.global_step

    @property
    def age_order(self) -> tuple[int, int]:
        """Later launches are newer, and within a launch later steps. Steps alone mislead if the run went back."""
        return self.launch_order, self.global_step

    @property
    def restorable(self) -> bool:
        """Whether the disk proves that the state is complete."""
        return not self.problem and not self.weights_only

    @property
    def counts(self) -> bool:
        """Whether it counts for the rules and for the floor: restorable, and of the run's present history."""
        return self.restorable and not self.branch


@dataclass(frozen=True)
class Verdict:
    """A state, and all the reasons why it stays, or goes."""

    state: StateFacts
    reasons: tuple[Because, ...]


@dataclass(frozen=True)
class Decision:
    """Every state of the run on one of two lists, both newest first."""

    keep: tuple[Verdict, ...]
    remove: tuple[Verdict, ...]

    @property
    def must_stay(self) -> tuple[StateFacts, ...]:
        """The newest state that counts, and those that the floor keeps. If one of them is lost, nothing may go."""
        newest = [verdict.state for verdict in self.keep if verdict.state.counts][:1]
        of_floor = [verdict.state for verdict in self.keep if any(why.rule is Why.FLOOR for why in verdict.reasons)]
        return tuple({state.key: state for state in (*newest, *of_floor)}.values())

    @property
    def bytes_freed(self) -> int:
        """The size of the removed states in bytes."""
        return sum(verdict.state.bytes for verdict in self.remove)

    @property
    def bytes_kept(self) -> int:
        """The size of the kept states in bytes."""
        return sum(verdict.state.bytes for verdict in self.keep)


def decide(states: Iterable[StateFacts], policy: Policy, now: datetime) -> Decision:
    """Sort the states of a run into those that stay and those that go. The order of the states does not matter."""
    newest_first = sorted(states, key=lambda state: state.age_order, reverse=True)
    counted = [state for state in newest_first if state.counts]
    reasons: dict[Key, list[Because]] = {state.key: [] for state in newest_first}
    for rule, kept in _by_count(counted, policy):
        for state, detail in kept:
            reasons[state.key].append(Because(rule, detail))
    tips = {state.branch: state.key for state in reversed(newest_first) if state.branch and state.restorable}
    newest = counted[0] if counted else None
    for state in newest_first:
        is_tip = not policy.drop_branches and tips.get(state.branch) == state.key
        reasons[state.key] += _by_itself(state, policy, now, newest, is_tip=is_tip)
    # A launch that has made a state which stays does not need the one it started from any more.
    made = {state.launch for state in newest_first if state.restorable and reasons[state.key]}
    for state in newest_first:
        if held_by := [launch for launch in state.held_by if launch not in made]:
            reasons[state.key].append(Because(Why.RESTORING, _started(held_by)))
    keep = [Verdict(state, tuple(why)) for state in newest_first if (why := reasons[state.key])]
    remove = [
        Verdict(state, (_why_it_goes(state, newest),))
        for state in newest_first
        if not reasons[state.key] and newest is not None
    ]
    return Decision(tuple(keep), tuple(remove))


def check(decision: Decision, *, allow_mass_delete: bool = False) -> None:
    """Raise `RefusedError` for a decision that leaves nothing to restore, or removes nearly all without being asked."""
    if not decision.remove:
        return
    if not any(verdict.state.counts for verdict in decision.keep):
        raise RefusedError("this policy leaves no state to restore", "keep at least one, as with --keep-last 1")
    freed, kept = decision.bytes_freed, decision.bytes_kept
    if freed > MASS_DELETE * (freed + kept) and not allow_mass_delete:
        raise RefusedError(
            f"this plan removes {len(decision.remove)} of {len(decision.remove) + len(decision.keep)} states, "
            f"more than {MASS_DELETE:.0%} of the bytes",
            "check the plan, then give --allow-mass-delete",
        )


def check_policy(policy: Policy) -> None:
    """Raise `RefusedError` for a policy without a rule: it would keep the floor alone. `UsageError` for no policy."""
    if not isinstance(policy, Policy):
        raise UsageError(f"the policy is {policy!r}", "give a ckptstore.Policy, as Policy(keep_last=5)")
    if policy.is_empty and policy.keep_parents:
        raise RefusedError(
            "--keep-parents alone does not say how many states to keep",
            "add a rule that says so, as --keep-last 5",
        )
    if policy.is_empty:
        raise RefusedError("no rule says what to keep", "give one, as --keep-last 5 or Policy(keep_last=5)")


def check_metric(run: str, policy: Policy, measured: Collection[Mapping[str, float]]) -> None:
    """Raise `RefusedError` if no state has the metric of `keep_best`: a mistyped one would keep none.

    `measured` are the metrics of each of the states that may be kept by it.
    """
    if not policy.keep_best or not measured or any(policy.metric in each for each in measured):
        return
    known = sorted({name for each in measured for name in each})
    raise RefusedError(
        f"no state of run {run!r} has the metric {policy.metric!r}; known: {', '.join(known) or 'none'}",
        "name a metric that is registered with the saves",
    )


def _by_count(counted: Sequence[StateFacts], policy: Policy) -> Iterator[tuple[Why, StatesWithDetail]]:
    """The rules that count restorable states of the lineage, which come newest first."""
    yield Why.FLOOR, _first(counted, policy.floor, "newest", "restorable state")
    yield Why.LAST, _first(counted, policy.keep_last, "last", "state")
    if policy.keep_every:
        yield Why.EVERY, _every(counted, policy.keep_every)
    for why, number, name in (
        (Why.HOURLY, policy.keep_hourly, "%Y-%m-%d %H:00"),
        (Why.DAILY, policy.keep_daily, "%Y-%m-%d"),
        (Why.WEEKLY, policy.keep_weekly, "%G-W%V"),
    ):
        yield why, _newest_of_each(counted, number, name)
    if policy.keep_best:
        yield Why.BEST, _best(counted, policy)
    for kind, number in sorted(policy.keep_kind.items()):
        of_kind = [state for state in counted if kind in state.kinds]
        yield Why.KIND, _first(of_kind, number, "newest", f"{kind} state")


def _first(states: Sequence[StateFacts], number: int, which: str, noun: str) -> StatesWithDetail:
    detail = f"the {which} {noun}" if number == 1 else f"one of the {which} {number} {noun}s"
    return ((state, detail) for state in states[:number])


def _every(counted: Sequence[StateFacts], steps: int) -> StatesWithDetail:
    """The first state at or after each multiple of so many steps: saves need not fall on the multiples.

    A launch that counts differently, as with another batch size, has multiples of its own.
    """
    first = {(state.shift, state.global_step // steps): state for state in counted}  # the oldest comes last, and wins
    return ((state, f"the first from step {at * steps} on") for (_, at), state in first.items() if at)


def _newest_of_each(counted: Sequence[StateFacts], number: int, period: str) -> StatesWithDetail:
    newest: dict[str, StateFacts] = {}
    for state in counted if number else ():
        newest.setdefault(state.created_at.astimezone(timezone.utc).strftime(period), state)
    in_order = sorted(newest.items(), reverse=True)
    return ((state, f"the newest of {name}") for name, state in in_order[:number])


def _best(counted: Sequence[StateFacts], policy: Policy) -> StatesWithDetail:
    """The best by a metric; of equals the newer. States without it do not count."""
    measured = [(state, state.metrics[policy.metric]) for state in counted if policy.metric in state.metrics]
    word = "lowest" if policy.mode == "min" else "highest"
    return (
        (state, f"{policy.metric} {value:.6g} is one of the {word} {policy.keep_best}")
        for state, value in best_first(measured, policy.mode)[: policy.keep_best]
    )


def _by_itself(
    state: StateFacts, policy: Policy, now: datetime, newest: StateFacts | None, *, is_tip: bool
) -> Iterator[Because]:
    """The rules that look at one state, restorable or not, of the lineage or not."""
    if policy.keep_within is not None and state.restorable and now - state.created_at <= policy.keep_within:
        yield Because(Why.WITHIN, f"saved within {show_duration(policy.keep_within)}")
    for holds, rule, detail in (
        (state.pinned, Why.PINNED, "pinned"),
        (state.tags, Why.TAGGED, f"tagged {', '.join(state.tags)}"),
        (state.needed_by, Why.INITIAL, needed_by(state.needed_by)),
        (policy.keep_parents and state.parent_of, Why.PARENT, f"launch {', '.join(state.parent_of)} resumed from it"),
        (is_tip, Why.BRANCH_TIP, f"the newest of the abandoned branch of launch {state.branch}"),
        (state.weights_only, Why.WEIGHTS_ONLY, "holds weights only: gc keeps all of these"),
        (state.doubt, Why.DOUBT, state.doubt),
        (state.is_written, Why.IN_PROGRESS, "a file of it is being written"),
        (
            newest is None or state.age_order > newest.age_order,
            Why.NEWER,
            "of an abandoned branch; it stays until the run has a newer state"
            if state.branch
            else f"it stays until a newer state can be restored; {state.problem}",
        ),
    ):
        if holds:
            yield Because(rule, detail)


def _started(launches: Sequence[str]) -> str:
    """Says that launches started from a state within the time of a lease, and have no state that stays."""
    if len(launches) == 1:
        return f"launch {launches[0]} started from it, and no restorable state of that launch stays"
    return f"launches {', '.join(launches)} started from it, and no restorable state of these launches stays"


def needed_by(runs: Sequence[str]) -> str:
    """Says that other runs would begin from a state again if they were started now."""
    if len(runs) == 1:
        return f"run {runs[0]} began from it and has no state of its own yet"
    return f"runs {', '.join(runs)} began from it and have no state of their own yet"


def _why_it_goes(state: StateFacts, newest: StateFacts) -> Because:
    if state.problem:
        other = f"step {newest.global_step} of {newest.launch}"
        detail = f"no rule keeps it; it cannot be restored ({other} can); {state.problem}"
        return Because(Why.NOT_RESTORABLE, detail)
    if state.branch:
        return Because(Why.ABANDONED, "abandoned when the run went back to an older state; no rule keeps it")
    return Because(Why.NO_RULE, "no rule keeps it")
