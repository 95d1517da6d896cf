"""The resolver: worked cases as a table, then properties against an oracle written without it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptstore.core import resolver
from ckptstore.core.model import Content, Kind, Launch, Observed, Rejection, RestorePlan, Rule, State
from ckptstore.core.replicas import Layout, data_parallel

from .builders import as_recorded, damaged, file, launch, state, whole_state

FOUR_PAIRS = Layout("stated", ((0, 4), (1, 5), (2, 6), (3, 7)))


def sources(verdict: RestorePlan | Rejection) -> list[int]:
    assert isinstance(verdict, RestorePlan), verdict
    return [assignment.source.rank for assignment in verdict.ranks]


def rules(verdict: RestorePlan | Rejection) -> list[tuple[Rule, int | None]]:
    assert isinstance(verdict, Rejection), verdict
    return [(reason.rule, reason.rank) for reason in verdict.reasons]


def test_every_rank_loads_its_own_file() -> None:
    of = launch(world_size=3)
    whole = whole_state(of, 15)
    plan = resolver.judge(whole, as_recorded(whole))
    assert sources(plan) == [0, 1, 2]
    assert isinstance(plan, RestorePlan)
    assert (plan.epoch, plan.step_in_epoch, plan.initial_epoch) == (2, 5, 1)


def test_one_rank_of_each_pair_is_enough() -> None:
    """TTP saves one member of each replica group (domain §7): rank 1 is dead, 0, 5, 2, 3 saved."""
    of = launch(world_size=8, layout=FOUR_PAIRS)
    partial = state(of, *(file(of, rank, kind=Kind.TTP) for rank in (0, 5, 2, 3)))
    assert sources(resolver.judge(partial, as_recorded(partial))) == [0, 5, 2, 3, 0, 5, 2, 3]


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ({}, [1, 1, 2, 1, 4, 1]),
        ({0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}, [1, 1, 2, 2, 4, 4]),
        ({0: "b", 1: "a", 2: "b", 3: "c", 4: "b", 5: "d"}, [2, 1, 2, 1, 4, 1]),  # two as near: the lower rank
        ({0: "a", 3: "b"}, [1, 1, 2, 1, 4, 1]),
    ],
)
def test_the_nearest_replica_stands_in(hosts: dict[int, str], expected: list[int]) -> None:
    """Ranks 0, 3 and 5 have no file; each takes one of its own host, else that of the lowest rank."""
    of = launch(world_size=6, layout=data_parallel(6))
    partial = state(of, *(file(of, rank) for rank in (4, 1, 2)))
    asked: list[str] = []

    def where(saved: Launch) -> dict[int, str]:
        asked.append(saved.id)
        return hosts

    seen = as_recorded(partial)
    found = resolver.resolve("run", [partial], lambda _: seen, hosts=where)
    assert found.plan is not None
    assert sources(found.plan) == expected
    assert asked == ["L1"]
    whole = whole_state(of, 15)
    assert resolver.resolve("run", [whole], lambda _: as_recorded(whole), hosts=where).plan is not None
    assert asked == ["L1"]  # where every rank has its own, nobody is asked


def test_a_whole_group_lost() -> None:
    of = launch(world_size=8, layout=FOUR_PAIRS)
    partial = state(of, *(file(of, rank) for rank in (0, 2, 3, 4, 6, 7)))
    assert rules(resolver.judge(partial, as_recorded(partial))) == [(Rule.MISSING_RANK, 1), (Rule.MISSING_RANK, 5)]


def test_ranks_are_numbers_not_text() -> None:
    of = launch(world_size=12, layout=Layout("stated", ((1, 2),)))
    partial = state(of, *(file(of, rank) for rank in range(12) if rank != 1))
    assert sources(resolver.judge(partial, as_recorded(partial)))[1] == 2
    without_replica = launch(world_size=12)
    partial = state(without_replica, *(file(without_replica, rank) for rank in range(12) if rank != 1))
    assert rules(resolver.judge(partial, as_recorded(partial))) == [(Rule.MISSING_RANK, 1)]


def test_kinds_mix_within_one_launch_and_step() -> None:
    of = launch()
    mixed = state(of, file(of, 0), file(of, 1, kind=Kind.DYING_GASP))
    assert sources(resolver.judge(mixed, as_recorded(mixed))) == [0, 1]
    assert mixed.kinds == (Kind.PERIODIC, Kind.DYING_GASP)


def test_of_two_whole_files_of_a_rank_the_choice_is_always_the_same() -> None:
    of = launch(world_size=1)
    gasp, periodic = file(of, 0, kind=Kind.DYING_GASP), file(of, 0)
    for files in ((gasp, periodic), (periodic, gasp)):
        plan = resolver.judge(state(of, *files), as_recorded(state(of, *files)))
        assert isinstance(plan, RestorePlan)
        assert plan.ranks[0].source == periodic


def test_parts_of_another_tool_are_never_handed_out() -> None:
    of = replace(launch(layout=data_parallel(2)), foreign=True)
    whole = whole_state(of, 15)
    parts = replace(whole, files=tuple(replace(item, content=Content.PART) for item in whole.files))
    rejection = resolver.judge(parts, as_recorded(parts), take_quarantined=True)
    assert rules(rejection) == [(Rule.FOREIGN_FORMAT, None)]
    assert isinstance(rejection, Rejection)
    assert rejection.was_whole
    half = resolver.judge(replace(parts, files=parts.files[:1]), {})
    assert isinstance(half, Rejection)
    assert not half.was_whole
    assert "of which those of 1 of 2 are not there: MindFormers has to load it" in half.reasons[0].detail


def test_sizes_may_differ_between_pipeline_stages() -> None:
    of = launch(layout=Layout("stated"))
    healthy = state(of, file(of, 0, size=100), file(of, 1, size=900))
    assert sources(resolver.judge(healthy, as_recorded(healthy))) == [0, 1]


def test_replicas_of_other_sizes_serve_themselves_but_nobody_else() -> None:
    """remove_redundancy: each rank of a data-parallel group holds a share (domain §8)."""
    of = launch(world_size=2, layout=data_parallel(2))
    shares = state(of, file(of, 0, size=3_000), file(of, 1, size=491_000))
    assert sources(resolver.judge(shares, as_recorded(shares))) == [0, 1]
    of = launch(world_size=3, layout=data_parallel(3))
    shares = state(of, file(of, 0, size=3_000), file(of, 1, size=491_000))
    assert rules(resolver.judge(shares, as_recorded(shares))) == [(Rule.REPLICA_SIZE_MISMATCH, 2)]


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        (Observed(None), Rule.MISSING_FILE),
        (Observed(99), Rule.SIZE_MISMATCH),
        (Observed(100, digest="other"), Rule.DIGEST_MISMATCH),
        (Observed(None, unreadable="Permission denied"), Rule.UNREADABLE),
    ],
)
def test_what_the_disk_shows_rejects(seen: Observed, rule: Rule) -> None:
    of = launch()
    whole = whole_state(of, 15)
    verdict = resolver.judge(whole, as_recorded(whole) | {whole.files[1].path: seen})
    assert rules(verdict) == [(rule, 1)]
    assert isinstance(verdict, Rejection)
    assert whole.files[1].path in verdict.reasons[0].detail
    assert verdict.was_whole


def test_a_file_that_nobody_looked_at_is_missing() -> None:
    of = launch()
    whole = whole_state(of, 15)
    assert rules(resolver.judge(whole, {})) == [(Rule.MISSING_FILE, 0), (Rule.MISSING_FILE, 1)]


def test_a_digest_that_is_right_is_accepted() -> None:
    of = launch(world_size=1)
    whole = whole_state(of, 15)
    assert sources(resolver.judge(whole, {whole.files[0].path: Observed(100, whole.files[0].digest)})) == [0]


def test_a_file_being_written_is_not_restorable() -> None:
    of = launch()
    half = state(of, file(of, 0), file(of, 1, size=None))
    there = as_recorded(half) | {half.files[1].path: Observed(50)}
    for seen in (as_recorded(half), there):
        verdict = resolver.judge(half, seen)
        assert rules(verdict) == [(Rule.IN_PROGRESS, 1)]
        assert isinstance(verdict, Rejection)
        assert not verdict.was_whole


def test_weights_without_the_optimizer_are_not_restorable() -> None:
    of = launch(world_size=1)
    weights = state(of, replace(file(of, 0), content=Content.WEIGHTS))
    verdict = resolver.judge(weights, as_recorded(weights))
    assert rules(verdict) == [(Rule.WEIGHTS_ONLY, 0)]
    assert isinstance(verdict, Rejection)
    assert not verdict.was_whole


def shares(of: Launch, *ranks: int) -> State:
    return state(of, *(replace(file(of, rank, size=100 + rank), content=Content.SHARE) for rank in ranks))


def test_all_shares_together_are_a_state_and_none_stands_in_for_another() -> None:
    of = launch(world_size=3, layout=data_parallel(3))
    every = shares(of, 0, 1, 2)
    plan = resolver.judge(every, as_recorded(every))
    assert sources(plan) == [0, 1, 2]
    assert isinstance(plan, RestorePlan)
    assert plan.in_shares
    assert rules(resolver.judge(every, as_recorded(every), world_size=2)) == [(Rule.WORLD_SIZE, None)]
    seen = as_recorded(every)
    del seen[every.files[1].path]
    lost = resolver.judge(every, seen)
    assert rules(lost) == [(Rule.MISSING_FILE, 1)]
    assert isinstance(lost, Rejection)
    assert lost.was_whole
    two = shares(of, 0, 2)
    never = resolver.judge(two, as_recorded(two))
    assert rules(never) == [(Rule.MISSING_RANK, 1)]
    assert isinstance(never, Rejection)
    assert not never.was_whole
    assert "no other file holds it" in never.reasons[0].detail


def test_one_whole_file_of_a_replica_serves_where_a_share_is_lost() -> None:
    of = launch(world_size=2, layout=data_parallel(2))
    both = state(of, *shares(of, 0).files, file(of, 1, kind=Kind.DYING_GASP))
    plan = resolver.judge(both, as_recorded(both))
    assert sources(plan) == [1, 1]
    assert isinstance(plan, RestorePlan)
    assert not plan.in_shares
    nobody = state(launch(world_size=2), *both.files)
    assert rules(resolver.judge(nobody, as_recorded(nobody))) == [(Rule.MISSING_RANK, 0), (Rule.MISSING_RANK, 1)]


def test_what_was_wrong_on_one_rank_quarantines_the_state() -> None:
    """Gradients are averaged: a loss that is no number on one rank is in the weights of all."""
    of = launch(world_size=2, layout=data_parallel(2))
    bad = state(of, file(of, 0), replace(file(of, 1), quarantine="the loss was nan"))
    verdict = resolver.judge(bad, as_recorded(bad))
    assert rules(verdict) == [(Rule.QUARANTINED, 1)]
    assert isinstance(verdict, Rejection)
    assert "the loss was nan" in verdict.reasons[0].detail
    assert sources(resolver.judge(bad, as_recorded(bad), take_quarantined=True)) == [0, 1]


@pytest.mark.parametrize("directory", ["ttp_saved_checkpoints-step_15_tmp", "tft_saved_checkpoints-step_15_tmp"])
def test_a_directory_that_was_never_renamed_counts_only_where_it_covers_every_rank(directory: str) -> None:
    of = launch(world_size=8, layout=FOUR_PAIRS)
    saved = [replace(file(of, rank, kind=Kind.TTP), path=f"/t/{directory}/rank_{rank}/x") for rank in (0, 5, 2, 3)]
    whole = state(of, *saved)
    assert sources(resolver.judge(whole, as_recorded(whole))) == [0, 5, 2, 3, 0, 5, 2, 3]
    partial = state(of, *saved[:3])
    verdict = resolver.judge(partial, as_recorded(partial))
    assert rules(verdict) == [(Rule.MISSING_RANK, 3), (Rule.MISSING_RANK, 7)]
    assert isinstance(verdict, Rejection)
    assert f"{directory} was never renamed, and what is in it does not cover" in verdict.reasons[0].detail


def test_two_callbacks_on_each_rank_do_not_make_replicas_differ() -> None:
    of = launch(world_size=2, layout=data_parallel(2))
    large = [replace(file(of, rank, size=120), path=f"/ckpt/large-{rank}") for rank in (0, 1)]
    both = state(of, file(of, 0), file(of, 1), *large)
    seen = as_recorded(both)
    for path in (both.files[1].path, large[1].path):
        del seen[path]
    assert sources(resolver.judge(both, seen)) == [0, 0]


def test_a_file_known_to_be_damaged_is_not_restorable() -> None:
    of = launch(world_size=1)
    bad = state(of, damaged(file(of, 0)))
    assert rules(resolver.judge(bad, as_recorded(bad))) == [(Rule.QUARANTINED, 0)]
    bad = state(of, replace(damaged(file(of, 0)), problem=Rule.DIGEST_MISMATCH))
    assert rules(resolver.judge(bad, as_recorded(bad))) == [(Rule.DIGEST_MISMATCH, 0)]


def test_an_untrained_network_is_never_restored() -> None:
    of = launch()
    untrained = whole_state(of, 0)
    verdict = resolver.judge(untrained, as_recorded(untrained))
    assert rules(verdict) == [(Rule.UNTRAINED, None)]
    assert isinstance(verdict, Rejection)
    assert not verdict.was_whole


def test_another_world_size_is_refused_unless_every_file_serves_every_rank() -> None:
    of = launch(world_size=2)
    whole = whole_state(of, 15)
    assert rules(resolver.judge(whole, as_recorded(whole), world_size=4)) == [(Rule.WORLD_SIZE, None)]
    of = launch(world_size=2, layout=data_parallel(2))
    whole = whole_state(of, 15)
    assert sources(resolver.judge(whole, as_recorded(whole), world_size=4)) == [0, 1, 0, 0]
    assert sources(resolver.judge(whole, as_recorded(whole), world_size=1)) == [0]
    split = resolver.judge(whole, as_recorded(whole), world_size=4, takes_whole=False)
    assert rules(split) == [(Rule.WORLD_SIZE, None)]
    assert isinstance(split, Rejection)
    assert "the new ranks do not hold the whole state" in split.reasons[0].detail
    assert "mindspore.transform_checkpoints(" in split.remedies[0]
    of = launch(world_size=1)
    alone = whole_state(of, 15)
    assert sources(resolver.judge(alone, as_recorded(alone), world_size=3)) == [0, 0, 0]


def test_a_wide_job_is_explained_in_a_line_a_rank() -> None:
    of = launch(world_size=64, layout=data_parallel(64))
    verdict = resolver.judge(state(of), {})
    assert isinstance(verdict, Rejection)
    assert (
        verdict.reasons[0].detail == "no file of rank 0 nor of its replicas 0,1,2,3,4,5,6,7… (64 in all) was recorded"
    )


def test_the_first_whole_candidate_wins_and_the_disk_is_asked_no_further() -> None:
    of = launch()
    newest, middle, oldest = (whole_state(of, step) for step in (20, 15, 10))
    asked: list[int] = []

    def look(candidate: State) -> dict[str, Observed]:
        asked.append(candidate.global_step)
        return {} if candidate is newest else as_recorded(candidate)

    found = resolver.resolve("run", [newest, middle, oldest], look)
    assert found.plan is not None
    assert found.plan.global_step == 15
    assert [rejection.global_step for rejection in found.rejections] == [20]
    assert asked == [20, 15]
    assert not found.lost


def test_what_was_whole_and_is_gone_is_lost_what_was_never_whole_is_not() -> None:
    of = launch()
    gone = resolver.resolve("run", [whole_state(of, 15)], lambda _: {})
    assert gone.lost
    never = resolver.resolve("run", [state(of, file(of, 0))], as_recorded)
    assert never.plan is None
    assert not never.lost


# Properties over random jobs, against an oracle that shares no code with the resolver.


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[State], dict[str, Observed]]:
    """A job of up to 16 ranks with a random layout, several saves, and random damage; newest first."""
    world = draw(st.integers(1, 16))
    order = draw(st.permutations(range(world)))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, world - 1)))))
    groups = [tuple(sorted(order[a:b])) for a, b in zip([0, *cuts], [*cuts, world], strict=True) if b > a]
    of = launch(world_size=world, layout=Layout("stated", tuple(group for group in groups if len(group) > 1)))
    states, disk = [], {}
    for step in sorted(draw(st.sets(st.integers(0, 30), max_size=4)), reverse=True):
        files = []
        for rank in range(world):
            for kind in draw(st.sets(st.sampled_from([Kind.PERIODIC, Kind.TTP]), max_size=2)):
                item = file(of, rank, step, kind, size=draw(st.sampled_from([100, 100, 100, 200])))
                fate = draw(st.sampled_from(["well", "well", "well", "gone", "cut", "bits"]))
                if fate != "gone":
                    assert item.size is not None
                    size = item.size - (fate == "cut")
                    disk[item.path] = Observed(size, "wrong" if fate == "bits" else None)
                files.append(item)
        states.append(state(of, *files, step=step))
    return states, disk


def oracle(candidate: State, disk: dict[str, Observed]) -> dict[int, set[int]] | None:
    """For every rank the ranks whose file it may load, by the words of the design; None if some rank has none."""
    if candidate.global_step == 0:
        return None
    groups = {rank: {rank} for rank in range(candidate.launch.world_size)}
    for group in candidate.launch.layout.groups:
        for rank in group:
            groups[rank] = set(group)
    good = [
        item
        for item in candidate.files
        if item.path in disk and disk[item.path].size == item.size and disk[item.path].digest in (None, item.digest)
    ]
    chosen = {}
    for item in sorted(good, key=lambda item: (item.kind != Kind.PERIODIC, item.path), reverse=True):
        chosen[item.rank] = item
    allowed = {}
    for rank, group in groups.items():
        there = [chosen[other] for other in group if other in chosen]
        by_kind: dict[Kind, set[int | None]] = {}
        for item in candidate.files:
            if item.rank in group:
                by_kind.setdefault(item.kind, set()).add(item.size)
        equal = all(len(sizes) == 1 for sizes in by_kind.values())
        allowed[rank] = {rank} if rank in chosen else {item.rank for item in there} if equal else set()
        if not allowed[rank]:
            return None
    return allowed


@settings(max_examples=400, deadline=None)
@given(jobs())
def test_the_plan_is_the_newest_state_that_the_oracle_accepts(job: tuple[list[State], dict[str, Observed]]) -> None:
    states, disk = job
    found = resolver.resolve("run", states, lambda _: disk)
    expected = next((candidate for candidate in states if oracle(candidate, disk) is not None), None)
    assert (found.plan.global_step if found.plan else None) == (expected.global_step if expected else None)
    if found.plan is not None and expected is not None:
        allowed = oracle(expected, disk)
        assert allowed is not None
        assert [assignment.rank for assignment in found.plan.ranks] == list(range(expected.launch.world_size))
        for assignment in found.plan.ranks:
            assert assignment.source.rank in allowed[assignment.rank]
            assert disk[assignment.source.path].size == assignment.source.size
            assert assignment.source.global_step == found.plan.global_step
    for rejection in found.rejections:
        assert rejection.reasons


@settings(max_examples=200, deadline=None)
@given(jobs(), st.randoms(use_true_random=False))
def test_the_order_of_the_files_never_matters(
    job: tuple[list[State], dict[str, Observed]], chance: random.Random
) -> None:
    states, disk = job
    shuffled = [
        replace(candidate, files=tuple(chance.sample(candidate.files, len(candidate.files)))) for candidate in states
    ]
    assert resolver.resolve("run", states, lambda _: disk) == resolver.resolve("run", shuffled, lambda _: disk)


@settings(max_examples=200, deadline=None)
@given(jobs(), st.randoms(use_true_random=False))
def test_losing_a_file_never_yields_a_newer_state(
    job: tuple[list[State], dict[str, Observed]], chance: random.Random
) -> None:
    states, disk = job
    before = resolver.resolve("run", states, lambda _: disk).plan
    if disk:
        lost = chance.choice(sorted(disk))
        disk = {path: seen for path, seen in disk.items() if path != lost}
    after = resolver.resolve("run", states, lambda _: disk).plan
    assert (after.global_step if after else -1) <= (before.global_step if before else -1)


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_a_whole_newer_state_is_always_taken(job: tuple[list[State], dict[str, Observed]]) -> None:
    states, disk = job
    of = states[0].launch if states else launch()
    newer = whole_state(of, 99)
    found = resolver.resolve("run", [newer, *states], lambda _: disk | as_recorded(newer))
    assert found.plan is not None
    assert found.plan.global_step == 99


@pytest.mark.parametrize(("kind", "expected"), [(Kind.GRACEFUL_EXIT, [0, 1, 0]), (Kind.PERIODIC, None)])
def test_a_rank_that_was_asked_by_a_signal_saves_without_the_appended_entries(
    kind: Kind, expected: list[int] | None
) -> None:
    """OnRequestExit saves a second time then: a few bytes less than its replicas' files (domain §3)."""
    of = launch(world_size=3, layout=data_parallel(3))
    both = state(of, file(of, 0, kind=kind, size=900), file(of, 1, kind=kind, size=700))
    verdict = resolver.judge(both, as_recorded(both))
    if expected is None:
        assert rules(verdict) == [(Rule.REPLICA_SIZE_MISMATCH, 2)]
    else:
        assert sources(verdict) == expected
    far = state(of, file(of, 0, kind=kind, size=9000), file(of, 1, kind=kind, size=700))
    assert rules(resolver.judge(far, as_recorded(far))) == [(Rule.REPLICA_SIZE_MISMATCH, 2)]
