"""Worked cases of a whole resolution, lineage and replicas together, each with its answer."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from ckptstore.core.model import Checkpoint, Kind, Launch, Observed, Resolution, Rule
from ckptstore.core.replicas import Layout, data_parallel, stand_alone
from ckptstore.core.strategy_layout import from_strategies
from tests.resume.builders import file, launch
from tests.resume.simulated_jobs import Job, resolve
from tests.spreads import spread

PAIRS = Layout("stated", ((0, 4), (1, 5), (2, 6), (3, 7)))
STAGES = from_strategies([spread("a", (4,), stage=0), spread("b", (4,), stage=1)], 8)
DEALT = from_strategies([spread("w"), spread("adam_m.w", step=1, size=-1)], 8)
HALF_DEALT = from_strategies([spread("w"), spread("adam_m.w", step=4, size=-1)], 8)

Files = tuple[Checkpoint, ...]
Reasons = list[tuple[Rule, int | None]]


def saved(
    of: Launch, step: int, ranks: Iterable[int] | None = None, kind: Kind = Kind.PERIODIC, size: int = 100
) -> Files:
    return tuple(file(of, rank, step, kind, size) for rank in (range(of.world_size) if ranks is None else ranks))


def by_stage(of: Launch, step: int, ranks: Iterable[int] = range(8)) -> Files:
    """Two pipeline stages of four ranks, the second with four times as many parameters."""
    return tuple(file(of, rank, step, size=100 if rank < 4 else 400) for rank in ranks)


def written_at(moment: int, files: Files) -> Files:
    return tuple(replace(each, mtime_ns=moment) for each in files)


def only(layout: Layout | None, world_size: int = 8) -> Launch:
    return launch("L1", 1, world_size, layout or stand_alone())


def went_on(order: int, parent: tuple[str, int] | None, world_size: int = 2) -> Launch:
    return launch(f"L{order}", order, world_size, stand_alone(), parent)


@dataclass(frozen=True)
class Case:
    """`gone` are the (step, rank) whose files are lost; the answer: launch, step and the rank each rank loads from."""

    what: str
    launches: tuple[Launch, ...]
    files: Files
    answer: tuple[str, int, list[int]] | None
    rejected: tuple[tuple[int, Reasons], ...] = ()
    gone: tuple[tuple[int, int], ...] = ()
    rewritten: tuple[tuple[int, int], ...] = ()

    def resolve(self) -> Resolution:
        disk = {each.path: Observed(each.size) for each in self.files}
        for each in self.files:
            if (each.global_step, each.rank) in self.gone:
                del disk[each.path]
            elif (each.global_step, each.rank) in self.rewritten:
                disk[each.path] = Observed(each.size, "of another step", mtime_ns=-1)
        return resolve(Job(self.launches, self.files, disk))


def exits(of: Launch, *sizes: tuple[int, ...]) -> Files:
    """Of each rank the files of as many OnRequestExit callbacks as it has sizes."""
    return tuple(
        replace(file(of, rank, 15, Kind.GRACEFUL_EXIT, size), path=f"/exits/rank_{rank}/{place}_train.ckpt")
        for rank, each in enumerate(sizes)
        for place, size in enumerate(each)
    )


P, N, S, D, H = only(PAIRS), only(None), only(STAGES), only(DEALT), only(HALF_DEALT)
TWO = only(None, 2)
BOTH = only(data_parallel(2), 2)
FOUR = only(data_parallel(4), 4)
TWELVE = only(Layout("stated", ((1, 10), (2, 11))), 12)
NO_ONE_STAGE = only(Layout("stated", ((10, 11),)), 12)
A, B = went_on(1, None), went_on(2, ("L1", 500))
EVERY = list(range(8))

CASES = [
    Case("one of each pair", (P,), saved(P, 15, (0, 5, 2, 3)), ("L1", 15, [0, 5, 2, 3, 0, 5, 2, 3])),
    Case(
        "one of each pair, of two kinds",
        (P,),
        saved(P, 15, (0, 2, 3)) + saved(P, 15, (5,), Kind.TTP, 90),
        ("L1", 15, [0, 5, 2, 3, 0, 5, 2, 3]),
    ),
    Case(
        "a whole group lost",
        (P,),
        saved(P, 10) + saved(P, 15),
        ("L1", 10, EVERY),
        rejected=((15, [(Rule.MISSING_FILE, 1), (Rule.MISSING_FILE, 5)]),),
        gone=((15, 1), (15, 5), (15, 0)),
    ),
    Case("two stages, one of each", (S,), by_stage(S, 15, (2, 7)), ("L1", 15, [2, 2, 2, 2, 7, 7, 7, 7])),
    Case(
        "two stages, and all of one lost",
        (S,),
        by_stage(S, 10) + by_stage(S, 15),
        ("L1", 10, EVERY),
        rejected=((15, [(Rule.MISSING_FILE, rank) for rank in (4, 5, 6, 7)]),),
        gone=((15, 4), (15, 5), (15, 6), (15, 7)),
    ),
    Case("different sizes in different stages", (S,), by_stage(S, 15), ("L1", 15, EVERY)),
    Case("different sizes, nobody is a replica", (N,), by_stage(N, 15), ("L1", 15, EVERY)),
    Case(
        "different sizes within a group, and one of it lost",
        (S,),
        (*by_stage(S, 10), replace(by_stage(S, 15)[1], size=120), *by_stage(S, 15, (0, 2, 3, 4, 5, 6, 7))),
        ("L1", 10, EVERY),
        rejected=((15, [(Rule.MISSING_FILE, 0), (Rule.REPLICA_SIZE_MISMATCH, 0)]),),
        gone=((15, 0),),
    ),
    Case(
        "the optimizer's state is dealt out to all: no replicas",
        (D,),
        saved(D, 10) + saved(D, 15),
        ("L1", 10, EVERY),
        rejected=((15, [(Rule.MISSING_FILE, 3)]),),
        gone=((15, 3),),
    ),
    Case("dealt out to two: each other rank", (H,), saved(H, 15, (2, 5)), ("L1", 15, [2, 5, 2, 5, 2, 5, 2, 5])),
    Case(
        "periodic of one rank, dying gasp of the other",
        (TWO,),
        saved(TWO, 15, (0,)) + saved(TWO, 15, (1,), Kind.DYING_GASP, 140),
        ("L1", 15, [0, 1]),
    ),
    Case(
        "a dying gasp of one rank at a later step, no replicas",
        (TWO,),
        saved(TWO, 15) + saved(TWO, 17, (1,), Kind.DYING_GASP),
        ("L1", 15, [0, 1]),
        rejected=((17, [(Rule.MISSING_RANK, 0)]),),
    ),
    Case(
        "the same in data parallel",
        (BOTH,),
        saved(BOTH, 15) + saved(BOTH, 17, (1,), Kind.DYING_GASP),
        ("L1", 17, [1, 1]),
    ),
    Case(
        "two graceful exits on each rank, of different sizes",
        (FOUR,),
        exits(FOUR, (9_000, 20_000), (9_000, 20_000), (9_000, 20_000)),
        ("L1", 15, [0, 1, 2, 0]),
    ),
    Case(
        "graceful exits with the appended entries and without",
        (FOUR,),
        exits(FOUR, (2_000,), (1_800,), (2_000,)),
        ("L1", 15, [0, 1, 2, 0]),
    ),
    Case(
        "graceful exits that are each near the first rank's size, and far from each other",
        (FOUR,),
        exits(FOUR, (2_000,), (1_000,), (3_000,)),
        None,
        rejected=((15, [(Rule.REPLICA_SIZE_MISMATCH, 3)]),),
    ),
    Case(
        "two launches' files of one step are no state",
        (A, B),
        saved(A, 500) + saved(A, 600, (0,)) + saved(B, 600, (1,)),
        ("L1", 500, [0, 1]),
        rejected=((600, [(Rule.MISSING_RANK, 0)]),),
    ),
    Case(
        "a stale launch with a higher step", (A, B), saved(A, 500) + saved(A, 1000) + saved(B, 600), ("L2", 600, [0, 1])
    ),
    Case(
        "a stale launch with a higher step, and the new one's only save lost",
        (A, B),
        saved(A, 400) + saved(A, 500) + saved(A, 1000) + saved(B, 600),
        ("L1", 500, [0, 1]),
        rejected=((600, [(Rule.MISSING_FILE, 1)]),),
        gone=((600, 1),),
    ),
    Case(
        "equal sizes at different steps",
        (TWO,),
        saved(TWO, 10) + saved(TWO, 15, (0,)) + saved(TWO, 20, (1,)),
        ("L1", 10, [0, 1]),
        rejected=((20, [(Rule.MISSING_RANK, 0)]), (15, [(Rule.MISSING_RANK, 1)])),
    ),
    Case(
        "a file of another step and the same size under the recorded name",
        (TWO,),
        saved(TWO, 10) + saved(TWO, 15),
        ("L1", 10, [0, 1]),
        rejected=((15, [(Rule.DIGEST_MISMATCH, 1)]),),
        rewritten=((15, 1),),
    ),
    Case(
        "rank 1 is replaced by 10, and 2 by 11",
        (TWELVE,),
        saved(TWELVE, 15, (0, *range(3, 12))),
        ("L1", 15, [0, 10, 11, *range(3, 12)]),
    ),
    Case(
        "rank 1 is replaced neither by 10 nor by 11",
        (NO_ONE_STAGE,),
        saved(NO_ONE_STAGE, 15, (0, *range(2, 12))),
        None,
        rejected=((15, [(Rule.MISSING_RANK, 1)]),),
    ),
    Case(
        "newest by time is oldest by step, and as text",
        (TWO,),
        written_at(30, saved(TWO, 9)) + written_at(20, saved(TWO, 10)) + written_at(10, saved(TWO, 100)),
        ("L1", 100, [0, 1]),
    ),
    Case(
        "newest by time is an untrained network",
        (TWO,),
        written_at(10, saved(TWO, 5)) + written_at(20, saved(TWO, 0, kind=Kind.DYING_GASP)),
        ("L1", 5, [0, 1]),
    ),
]


def test_the_strategies_say_what_the_cases_take_for_granted() -> None:
    assert STAGES.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert DEALT.groups == ()
    assert HALF_DEALT.groups == ((0, 2, 4, 6), (1, 3, 5, 7))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_the_answer(case: Case) -> None:
    found = case.resolve()
    plan = found.plan
    answer = plan and (plan.launch.id, plan.global_step, [each.source.rank for each in plan.ranks])
    assert answer == case.answer
    rejected = [
        (each.global_step, [(reason.rule, reason.rank) for reason in each.reasons]) for each in found.rejections
    ]
    assert tuple(rejected) == case.rejected
