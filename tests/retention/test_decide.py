"""Policies over histories as a table, with the whole answer kept in tests/golden; and what holds for any of them.

    python -m tests.retention.test_decide

writes the golden files anew; look at the difference.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptstore.core.metrics import mean_metrics
from ckptstore.core.model import Kind
from ckptstore.errors import RefusedError, UsageError
from ckptstore.retention.decide import (
    Because,
    Decision,
    StateFacts,
    Verdict,
    Why,
    check,
    check_metric,
    check_policy,
    decide,
)
from ckptstore.retention.policy import Policy, from_json, parse_duration, show_duration
from tests.retention.histories import CASES, NOW, POLICIES, facts

GOLDEN = Path(__file__).parents[1] / "golden" / "retention"


def shown(verdict: Verdict) -> dict[str, Any]:
    return {
        "state": f"{verdict.state.launch}:{verdict.state.global_step}",
        "reasons": [f"{because.rule}: {because.detail}" for because in verdict.reasons],
    }


def answers(history: Callable[[], list[StateFacts]]) -> str:
    """What becomes of each state by some policies; states with the same reasons share a line."""
    lines = []
    for name in CASES[history]:
        decision = decide(history(), POLICIES[name], NOW)
        lines += [f"{name}: {json.dumps(POLICIES[name].to_json())}", f"  frees {decision.bytes_freed} bytes"]
        try:
            check(decision)
        except RefusedError as error:
            lines.append(f"  refused: {error.message}")
        for word, verdicts in (("keep", decision.keep), ("remove", decision.remove)):
            for reasons, alike in groupby(map(shown, verdicts), key=lambda each: each["reasons"]):
                states = " ".join(each["state"] for each in alike)
                lines += [f"  {word} {states}", *(f"    {reason}" for reason in reasons)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("history", CASES)
def test_the_golden_table(history: Callable[[], list[StateFacts]]) -> None:
    assert answers(history) == (GOLDEN / f"{history.__name__}.txt").read_text()


def test_what_was_given_up_is_not_said_to_be_completing() -> None:
    lineage = [facts(10), facts(20)]
    given_up = [replace(facts(step), branch="L1") for step in (30, 40)]
    kept = decide([*lineage, *given_up], Policy(keep_last=2), NOW).keep
    reasons = {verdict.state.global_step: shown(verdict)["reasons"] for verdict in kept}
    assert reasons[30] == ["newer: of an abandoned branch; it stays until the run has a newer state"]
    assert reasons[40] == ["branch_tip: the newest of the abandoned branch of launch L1", *reasons[30]]


def test_what_other_runs_began_from_stays() -> None:
    states = [facts(10), replace(facts(20), needed_by=("ft",)), replace(facts(30), needed_by=("ft", "head")), facts(40)]
    kept = decide(states, Policy(keep_last=1, floor=1), NOW).keep
    assert [shown(verdict) for verdict in kept[1:]] == [
        {"state": "L1:30", "reasons": ["initial: runs ft, head began from it and have no state of their own yet"]},
        {"state": "L1:20", "reasons": ["initial: run ft began from it and has no state of its own yet"]},
    ]


kinds = st.sets(st.sampled_from(Kind), min_size=1, max_size=2).map(lambda some: tuple(sorted(some)))
names = st.lists(st.sampled_from(["a", "b"]), unique=True, max_size=2).map(tuple)


@st.composite
def states(draw: st.DrawFn) -> list[StateFacts]:
    keys = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60)), unique=True, max_size=25))
    rarely = st.sampled_from([False, False, False, True])
    return [
        replace(
            facts(step, launch=launch, hours=draw(st.floats(0, 300))),
            kinds=draw(kinds),
            bytes=draw(st.integers(0, 10**6)),
            problem="broken" if draw(rarely) else "",
            doubt="away" if draw(rarely) else "",
            branch=f"L{launch}" if draw(rarely) else "",
            metrics={"loss": draw(st.sampled_from([0.1, 0.5, 2.0]))} if draw(st.booleans()) else {},
            pinned=draw(rarely),
            tags=draw(names) if draw(rarely) else (),
            held_by=draw(names) if draw(rarely) else (),
            needed_by=draw(names) if draw(rarely) else (),
            parent_of=draw(names),
            is_written=draw(rarely),
            weights_only=draw(rarely),
            shift=draw(st.sampled_from([0, 0, -10])),
        )
        for launch, step in keys
    ]


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    few = st.sampled_from([0, 0, 0, 1, 2, 5])
    best = draw(few)
    return Policy(
        keep_last=draw(few),
        keep_every=draw(st.sampled_from([0, 0, 1, 7, 20])),
        keep_within=draw(st.none() | st.timedeltas(timedelta(minutes=1), timedelta(days=14))),
        keep_hourly=draw(few),
        keep_daily=draw(few),
        keep_weekly=draw(few),
        keep_best=best,
        metric="loss" if best else "",
        mode=draw(st.sampled_from(["min", "max"])) if best else "",
        keep_kind=draw(st.dictionaries(st.sampled_from(Kind), few, max_size=2)),
        keep_parents=draw(st.booleans()),
        drop_branches=draw(st.booleans()),
        floor=draw(st.integers(0, 4)),
        grace=draw(st.sampled_from([timedelta(hours=1), timedelta(hours=24)])),
    )


def kept(decision: Decision) -> list[StateFacts]:
    return [verdict.state for verdict in decision.keep]


@given(states(), policies(), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_what_holds_for_any_history_and_policy(history: list[StateFacts], policy: Policy, chance: Any) -> None:
    decision = decide(history, policy, NOW)
    removed = [verdict.state for verdict in decision.remove]

    both = [state.key for state in (*kept(decision), *removed)]
    assert sorted(both) == sorted(state.key for state in history), "every state is on one list, and on one only"
    assert all(verdict.reasons for verdict in (*decision.keep, *decision.remove))
    assert decision.bytes_freed + decision.bytes_kept == sum(state.bytes for state in history)

    counted = sorted(
        (state for state in history if state.restorable and not state.branch),
        key=lambda state: (state.launch_order, state.global_step),
    )
    floor = counted[-policy.floor :] if policy.floor else []
    assert all(state in kept(decision) for state in floor)
    newest = [state for state in kept(decision) if state.counts][:1]
    assert {state.key for state in decision.must_stay} == {state.key for state in (*floor, *newest)}
    for state in removed:
        assert not any((state.pinned, state.tags, state.held_by, state.needed_by, state.doubt, state.weights_only))
        assert counted, "nothing goes while nothing can be restored"
        assert state.age_order <= counted[-1].age_order, "nothing goes that is newer than all that can be restored"
    for count, why in ((policy.keep_last, Why.LAST), (policy.keep_daily, Why.DAILY), (policy.keep_best, Why.BEST)):
        assert sum(because.rule is why for verdict in decision.keep for because in verdict.reasons) <= count

    again = decide(kept(decision), policy, NOW)
    assert [verdict.state.key for verdict in again.remove] == [], "running twice removes nothing more"
    shuffled = list(history)
    chance.shuffle(shuffled)
    assert decide(shuffled, policy, NOW) == decision
    assert from_json(policy.to_json()).to_json() == policy.to_json()


@given(states(), policies(), st.data())
@settings(max_examples=100)
def test_a_broken_state_never_costs_one_that_is_whole(history: list[StateFacts], policy: Policy, data: Any) -> None:
    """Rules that count pass over it: the older whole ones move up (the case that breaks Orbax)."""
    counted = [state for state in history if state.restorable and not state.branch]
    if len(counted) < 2 or policy.keep_every or policy.keep_best:
        return
    broken = data.draw(st.sampled_from(counted))
    after = [replace(state, problem="cut") if state is broken else state for state in history]
    before_keys = {state.key for state in kept(decide(history, policy, NOW)) if state.restorable}
    after_keys = {state.key for state in kept(decide(after, policy, NOW))}
    assert before_keys - {broken.key} <= after_keys


def test_what_is_refused() -> None:
    with pytest.raises(RefusedError, match="no rule says what to keep"):
        check_policy(Policy())
    check_policy(Policy(keep_kind={Kind.TTP: 1, Kind.PERIODIC: 0}))
    check_policy(Policy(keep_last=1))
    assert json.dumps(Policy(keep_last=np.int64(5), keep_kind={Kind.TTP: np.int32(1)}).to_json())
    with pytest.raises(RefusedError, match="no rule says"):
        check_policy(Policy(keep_kind={Kind.TTP: 0}, floor=10))
    with pytest.raises(RefusedError, match="--keep-parents alone .*; add a rule that says so, as --keep-last 5"):
        check_policy(Policy(floor=10, keep_parents=True))
    for none in ("5", {"keep_last": 5}, 5):
        with pytest.raises(UsageError, match="the policy is .*; give a ckptstore.Policy"):
            check_policy(none)
    history = [facts(step) for step in range(1, 101)]
    with pytest.raises(RefusedError, match="leaves no state to restore"):
        check(decide(history[:50], Policy(keep_within=timedelta(hours=1), floor=0), NOW), allow_mass_delete=True)
    nine_of_ten = decide(history, Policy(keep_last=10), NOW)
    check(nine_of_ten)
    more = decide(history, Policy(keep_last=9), NOW)
    with pytest.raises(RefusedError, match="removes 91 of 100 states, more than 90% of the bytes"):
        check(more)
    check(more, allow_mass_delete=True)
    check(decide([], Policy(keep_last=9), NOW))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"keep_last": -1}, "keep-last is -1"),
        ({"floor": -1}, "floor is -1"),
        ({"keep_every": 2**63}, "keep-every is"),
        ({"keep_kind": {Kind.TTP: -1}}, "keep-kind of ttp is -1"),
        ({"keep_within": timedelta()}, "keep-within is"),
        ({"grace": timedelta(-1)}, "grace is"),
        ({"keep_within": "7d"}, "keep-within is '7d'.*timedelta"),
        ({"grace": 3600}, "grace is 3600.*timedelta"),
        ({"keep_best": 2}, "keep-best needs a metric.*--mode min"),
        ({"keep_best": 2, "metric": "loss", "mode": "least"}, "keep-best needs a metric"),
        ({"metric": "loss"}, "a metric and a mode need keep-best"),
        ({"keep_kind": {"dying-gasp": 2}}, "'dying-gasp' is no kind.*periodic, graceful_exit, dying_gasp, ttp"),
        ({"keep_kind": {Kind.TTP: 1, None: 2}}, "None is no kind"),
        ({"keep_kind": ["ttp"]}, r"keep-kind is \['ttp'\].*numbers by kind"),
        ({"keep_last": True}, "keep-last is True"),
        ({"keep_parents": "no"}, "keep-parents is 'no'.*True or False"),
        ({"keep_best": 2, "metric": 5, "mode": "min"}, "keep-best needs a metric"),
    ],
)
def test_policies_that_cannot_be_meant(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Policy(**rules)


def test_the_most_that_can_be_meant() -> None:
    century = parse_duration("36600d")
    policy = Policy(keep_last=2**63 - 1, keep_within=century)
    assert (policy.keep_last, policy.keep_within) == (2**63 - 1, timedelta(days=36600))
    assert (policy.grace, policy.floor, show_duration(timedelta(seconds=30))) == (timedelta(hours=24), 2, "1m")
    with pytest.raises(UsageError, match="grace is"):
        Policy(grace=century + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("rules", "newest", "rule"),
    [
        ({"keep_last": 5}, 5, ""),
        ({"keep_last": 6}, 5, "keep_last"),
        ({"keep_last": 2, "keep_daily": 7}, 999, "keep_daily"),
        ({"keep_within": timedelta(days=2)}, 5, "keep_within"),
        ({"keep_last": 2, "keep_every": 100}, 1000, ""),
        ({"keep_last": 1001, "keep_every": 100}, 1000, "keep_last"),
    ],
)
def test_a_rule_that_keeps_more_than_the_newest(rules: dict[str, Any], newest: int, rule: str) -> None:
    assert Policy(**rules).beyond(newest) == rule


def test_a_kind_may_be_given_by_its_name() -> None:
    """What is given can be changed by its owner afterwards, and is another's all the same."""
    given = {"dying_gasp": 2, "ttp": 0}
    policy = Policy(keep_kind=given)
    given.clear()
    assert policy == Policy(keep_kind={Kind.DYING_GASP: 2, Kind.TTP: 0})
    assert all(isinstance(kind, Kind) for kind in policy.keep_kind)
    assert from_json(policy.to_json()).to_json() == policy.to_json() == {"keep_kind": {"dying_gasp": 2}, "floor": 2}
    with pytest.raises(UsageError, match="'lucky' is no kind"):
        from_json({"keep_kind": {"lucky": 1}})


def test_a_policy_of_a_newer_program_is_not_half_understood() -> None:
    with pytest.raises(UsageError, match="has unknown rules: keep_lucky"):
        from_json({"keep_lucky": 7})


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("7d", timedelta(days=7)),
        ("1w2d", timedelta(days=9)),
        ("12h", timedelta(hours=12)),
        ("90m", timedelta(hours=1.5)),
    ],
)
def test_durations(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length
    assert parse_duration(show_duration(length)) == length


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-7d", "7y", "7d!", "٣d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0d", "99999999w"])
def test_a_duration_out_of_range(text: str) -> None:
    with pytest.raises(UsageError, match="not between 1 minute and 100 years"):
        parse_duration(text)


def test_a_metric_that_nothing_has() -> None:
    best = Policy(keep_best=3, metric="los", mode="min")
    with pytest.raises(RefusedError, match="no state of run 'r' has the metric 'los'; known: accuracy, loss"):
        check_metric("r", best, [{"loss": 1.0, "accuracy": 0.5}, {}])
    with pytest.raises(RefusedError, match="no state of run 'r' has the metric 'los'; known: none"):
        check_metric("r", best, [{}])
    check_metric("r", best, [{"loss": 1.0}, {"los": 2.0}])
    check_metric("r", best, [])
    check_metric("r", Policy(keep_last=1), [{}])


def test_metrics_are_means_over_the_ranks() -> None:
    assert mean_metrics([{"loss": 1.0}, {"loss": 3.0, "accuracy": 0.5}, {}]) == {"loss": 2.0, "accuracy": 0.5}


def test_a_state_is_held_until_the_launch_that_started_from_it_keeps_one_of_its_own() -> None:
    """The plan removed what its apply then held: of the launch no state stayed."""
    held = replace(facts(10), held_by=("L2",))
    own, newest = facts(20, launch=2), facts(30, launch=3)
    decision = decide([held, own, newest], Policy(keep_last=1, floor=1), NOW)
    assert [verdict.state.global_step for verdict in decision.keep] == [30, 10]
    assert decision.keep[1].reasons == (
        Because(Why.RESTORING, "launch L2 started from it, and no restorable state of that launch stays"),
    )
    decision = decide([held, own, newest], Policy(keep_last=2, floor=1), NOW)
    assert [verdict.state.global_step for verdict in decision.keep] == [30, 20]


def write() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for history in CASES:
        (GOLDEN / f"{history.__name__}.txt").write_text(answers(history))


if __name__ == "__main__":
    write()
