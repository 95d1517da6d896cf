"""What a tree shows, case by case: every way in which names and contents lie (mindspore.md §3), ranks, launches."""

from dataclasses import replace
from typing import Any

import pytest

from ckptstore.core.model import Grade, Kind
from ckptstore.evidence.launch_groups import Ranked
from ckptstore.evidence.reconstruct import Reconstruction, Stated, reconstruct
from ckptstore.evidence.unregistered import FoundFile, Trusted
from tests.evidence.builders import B, P, T, X, found
from tests.scan.plain_mindspore import SECOND


def lagging(*files: FoundFile) -> list[FoundFile]:
    return [replace(file, updates_every_step=False) for file in files]


def steps(history: Reconstruction) -> list[int]:
    return sorted(file.global_step for launch in history.launches for file in launch.files)


def guesses(history: Reconstruction) -> list[int | None]:
    return [one.best_guess for one in history.uncertain]


def regular(*, launch: int = 0, rank: int = 0, lag: int = 0, start: int = 0) -> list[FoundFile]:
    """A launch of 10 steps an epoch that began between epochs, saved every 5 steps."""
    return [
        found(P, (epoch, step), 10 * (epoch - 1) + step - lag, launch=launch, rank=rank, time=start + 10 * epoch + step)
        for epoch in (1, 2)
        for step in (5, 10)
    ]


EXIT = {"epoch_num": 3, "step_num": 26, "batch_num": 10}

# (name, files beside those of a first launch of 2 epochs, proven steps of these, guesses for the others)
WORKED: list[tuple[str, list[FoundFile], list[int], list[int | None]]] = [
    (
        "a resume from 17 as mindspore.md §3 saw it",
        [found(B, (2, 7), 17), found(P, (3, 9), 26, launch=1), found(P, (3, 3), 30, launch=1)],
        [17, 26, 30],
        [],
    ),
    ("a resume from a step of which nothing is there", [found(P, (3, 9), 26, launch=1)], [26], []),
    ("the same with truthful names", [found(P, (3, 6), 26, launch=1), found(P, (3, 10), 30, launch=1)], [26, 30], []),
    ("a resume between epochs", [found(P, (3, 5), 25, launch=1)], [25], []),
    ("epochs that count from 1 again", [found(P, (1, 5), 22, launch=1)], [22], []),
    ("step_num counted twice", [found(P, (3, 5), 25, launch=1, info={"step_num": 45})], [25], []),
    ("step_num in the epoch", [found(B, (2, 8), 18, info={"step_num": 8})], [18], []),
    ("a breakpoint whose update is not in it", [found(B, (2, 8), 17)], [17], []),
    ("a breakpoint at the start of an epoch", [found(B, (3, 1), 20)], [20], []),
    ("a breakpoint between epochs", [found(B, (3, 0), 20)], [20], []),
    ("a breakpoint of an epoch that began later", [found(B, (2, 0), 20)], [20], []),
    ("a breakpoint of another epoch", [found(B, (4, 8), 18)], [], [None]),
    ("an untrained breakpoint, bad dataset", [found(B, (1, 0), 0)], [0], []),
    ("an untrained breakpoint, failed compile", [found(B, (1, 1), 0)], [0], []),
    ("an exit by the flag", [found(X, None, 26, info=EXIT)], [26], []),
    ("an exit by the flag after a resume from 22", [found(X, None, 26, info=EXIT | {"step_num": 4})], [26], []),
    ("an exit by the flag of another epoch", [found(X, None, 36, info=EXIT)], [], [36]),
    ("an exit by a signal: nothing but the counter", [found(X, None, 26)], [], [26]),
    ("an exit by a signal, kept by ckptstore", [found(X, None, 26, named_step=26)], [26], []),
    ("an exit by a signal, kept under another step", [found(X, None, 26, named_step=24)], [], [26]),
    ("an exit whose name and count differ", [found(X, None, 26, named_step=25, info=EXIT)], [], [26]),
    (
        "an exit whose name and count differ, of no epoch",
        [found(X, None, 26, named_step=25, info={"step_num": 26})],
        [],
        [26],
    ),
    ("TTP", [found(T, (3, 6), 26, named_step=26, info=EXIT)], [26], []),
    (
        "TTP after a plain resume from 22",
        [found(B, (3, 2), 22), found(T, (3, 4), 26, named_step=4, info=EXIT | {"step_num": 4})],
        [22, 26],
        [],
    ),
    ("TTP of a step that nothing explains", [found(T, (3, 6), 26, named_step=27, info=EXIT)], [], [26]),
    ("no counter, and the name of a file that has one", [found(P, (1, 5), None, path="/x")], [5], []),
    ("no counter, and a name of its own", [found(P, (1, 7), None)], [], [7]),
    ("no counter, in a launch of its own", [found(P, (3, 5), None, launch=1)], [], [None]),
    ("no counter in a breakpoint", [found(B, (2, 8), None)], [], [None]),
    ("a step in the name alone", [found(P, None, None, named_step=26, launch=1)], [], [26]),
    ("a step in the name and the counter", [found(P, None, 26, named_step=26, launch=1)], [26], []),
]


@pytest.mark.parametrize(
    ("files", "proven", "guessed"), [case[1:] for case in WORKED], ids=[case[0] for case in WORKED]
)
def test_after_a_first_launch(files: list[FoundFile], proven: list[int], guessed: list[int | None]) -> None:
    history = reconstruct([*regular(), *files], world_size=1)
    assert steps(history) == sorted([5, 10, 15, 20, *proven])
    assert guesses(history) == guessed
    assert all(one.reason for one in history.uncertain)


# (name, file, steps an epoch of the dataset, whether it is placed with a proven step; None: not at all)
EPOCHS: list[tuple[str, FoundFile, int | None, bool | None]] = [
    ("of the first epoch", found(P, (1, 5), 5), None, True),
    ("a breakpoint in the first epoch", found(B, (1, 7), 6), None, True),
    ("a breakpoint before the first step", found(B, (1, 0), 0), None, True),
    ("a later epoch", found(P, (3, 5), 25), None, False),
    ("a later epoch, of the dataset", found(P, (3, 5), 25), 10, True),
    ("a later epoch, not of the dataset", found(P, (3, 5), 25), 14, None),
    ("a later epoch, of a shorter dataset", found(P, (3, 5), 25), 7, None),
    ("a count of epochs that began anew, in a first launch", found(P, (1, 5), 22), 10, None),
    ("names that the shortest epoch contradicts", found(P, (3, 9), 17), None, None),
    ("a breakpoint between epochs", found(B, (3, 0), 20), 10, True),
    ("a breakpoint of no such epoch", found(B, (2, 0), 20), 10, None),
    ("an exit of its own length", found(X, None, 25, info={"epoch_num": 3, "step_num": 25, "batch_num": 10}), 7, True),
    ("a length of 0", found(X, None, 25, info={"epoch_num": 3, "step_num": 25, "batch_num": 0}), None, True),
    ("fewer updates than steps of its epoch", found(P, (1, 10), 9), None, None),
]


@pytest.mark.parametrize(("file", "length", "proven"), [case[1:] for case in EPOCHS], ids=[case[0] for case in EPOCHS])
def test_a_name_is_of_the_epoch_that_the_counter_says(
    file: FoundFile, length: int | None, *, proven: bool | None
) -> None:
    history = reconstruct([file], world_size=1, stated=Stated(steps_per_epoch=length))
    assert [one.grade is Grade.PROVEN for each in history.launches for one in each.files] == (
        [] if proven is None else [proven]
    )


def test_names_that_count_faster_than_the_counter_show_that_updates_were_skipped() -> None:
    files = [found(P, (2, 3), 14, launch=1), found(P, (2, 7), 16, launch=1)]
    assert (steps(reconstruct(files, world_size=1)), steps(reconstruct(files[:1], world_size=1))) == ([], [14])


def kept(step: int, counter: int) -> FoundFile:
    info = {"epoch_num": (step - 1) // 10 + 1, "step_num": step, "batch_num": 10}
    return found(X, None, counter, named_step=step, info=info)


LAG: list[tuple[str, list[FoundFile], list[int]]] = [
    ("one lag, seen twice, in a first launch", [*regular(lag=3), kept(26, 22)], [5, 10, 15, 20, 26]),
    ("no lag at all, as it seems", regular(), [5, 10, 15, 20]),
    ("gathered gradients", [found(P, (1, 5), 1), found(P, (1, 10), 3)], [5, 10]),
    ("a plain resume that lags", [found(P, (2, 1), 11, launch=1)], [11]),
    ("a breakpoint: its name is of the step under way", [found(B, (2, 8), 15)], []),
]


@pytest.mark.parametrize(("files", "named"), [case[1:] for case in LAG], ids=[case[0] for case in LAG])
def test_where_updates_may_be_skipped_only_a_name_that_is_trusted_tells_a_step(
    files: list[FoundFile], named: list[int]
) -> None:
    """A launch that began as many steps inside an epoch as were skipped leaves names that agree with its counters."""
    for length in (None, 10):
        assert steps(reconstruct(lagging(*files), world_size=1, stated=Stated(steps_per_epoch=length))) == []
    trusting = Stated(steps_per_epoch=10, trusted=frozenset({Trusted.NAME}))
    made = reconstruct(lagging(*files), world_size=1, stated=trusting)
    assert steps(made) == named
    assert {file.grade for launch in made.launches for file in launch.files} <= {Grade.ASSUMED}


def test_one_file_that_may_lag_makes_every_counter_of_the_tree_doubtful() -> None:
    assert steps(reconstruct([*regular(), *lagging(found(P, (3, 5), 25))], world_size=1)) == []


def test_a_lag_that_the_content_does_not_announce_is_noticed() -> None:
    """A cell of the user's own may skip updates; then no counter of the tree is taken for the step."""
    one = [*regular(), kept(26, 26)]
    assert steps(reconstruct(one, world_size=1)) == [5, 10, 15, 20, 26]
    other = [found(P, (1, 10), 7, family="other"), found(P, (2, 10), 16, family="other")]
    assert steps(reconstruct([*one, *other], world_size=1)) == []


def keys(history: Reconstruction) -> list[tuple[str, set[int]]]:
    return [(launch.key, {file.rank for file in launch.files}) for launch in history.launches]


def test_equal_numbers_are_one_launch_without_times() -> None:
    files = [file for rank in (0, 1) for number in (0, 1) for file in regular(launch=number, rank=rank)]
    files = [replace(file, mtime_ns=0) for file in files]
    history = reconstruct(files, world_size=2)
    assert keys(history) == [("net_0/rank_0", {0, 1}), ("net_1/rank_0", {0, 1})]
    assert history.warnings == ()


def test_a_rank_that_missed_a_launch_is_not_put_into_another() -> None:
    """Rank 1 died before its first save: its first number is rank 0's second."""
    files = [found(P, (1, 5), 5, time=5), *regular(launch=1, start=100), *regular(rank=1, start=100)]
    assert keys(reconstruct(files)) == [("net_0/rank_0", {0}), ("net_0/rank_1", {0, 1})]
    copied = reconstruct([replace(file, mtime_ns=0) for file in files])
    assert keys(copied) == [("net_0/rank_0", {0}), ("net_0/rank_1", {1}), ("net_1/rank_0", {0})]
    assert "kept apart" in str(copied.warnings)
    assert "guess" in str(copied.warnings)


def test_ranks_that_missed_different_launches_have_equal_numbers() -> None:
    """Rank 1 died before its first save, and rank 0 missed the third launch. Its one save proves no launch of both."""
    files = [found(P, (1, 5), 5), *regular(launch=1), *regular(rank=1), *regular(rank=1, launch=1)]
    copied = reconstruct([replace(file, mtime_ns=0) for file in files])
    assert sorted(sorted(ranks) for _, ranks in keys(copied)) == [[0], [0], [1], [1]]


def test_files_that_are_nearer_than_half_the_time_between_two_saves_are_of_one() -> None:
    """Rank 1 missed the second launch: that the numbers are equal proves nothing."""
    files = [found(P, (1, step), step, rank=rank, time=2 * step + 4 * rank) for step in (5, 10) for rank in (0, 1)]
    second = found(P, (2, 5), 15, launch=1, time=30)
    assert keys(reconstruct([*files, second])) == [("net_0/rank_0", {0, 1}), ("net_1/rank_0", {0})]


def at_times(*told: tuple[int, int, int, int]) -> list[FoundFile]:
    """Files under names without numbers: rank, epoch, counter and time of each. An epoch has three steps."""
    return [found(P, (epoch, (counter - 1) % 3 + 1), counter, rank=rank, time=at) for rank, epoch, counter, at in told]


@pytest.mark.parametrize(
    ("files", "step"),
    [
        pytest.param(
            [(rank, 1, step, step * 5) for rank in (0, 1) for step in (1, 2, 3)] + [(0, 2, 4, 8001), (1, 2, 4, 8101)],
            4,
            id="two starts that went on were killed in the next save",
        ),
        pytest.param(
            [
                *((0, 1, 3, 1003), (1, 1, 3, 2003)),
                *((rank, 1, step, at) for rank in (0, 1) for step, at in ((1, 9001), (2, 17002))),
            ],
            3,
            id="a third start wrote over the steps before, and a fourth one went on from there",
        ),
        pytest.param(
            [(0, 1, 3, 1003), (1, 1, 3, 2003), *((r, 2, step, 9000 + step) for r in (0, 1) for step in (4, 5))],
            3,
            id="both ranks went on after the second start",
        ),
    ],
)
def test_a_pause_before_a_later_start_is_no_time_between_two_saves(
    files: list[tuple[int, int, int, int]], step: int
) -> None:
    """Of the step, rank 0 has the file of one start, and rank 1 that of the next one: a plan had both."""
    made = reconstruct(at_times(*files))
    placed = [one.rank for launch in made.launches for one in launch.files if one.global_step == step]
    assert placed == []
    assert [one.best_guess for one in made.uncertain] == [step, step]


def test_a_launch_does_not_go_on_where_one_of_its_ranks_has_another_number() -> None:
    files = [found(P, (1, 5), 5, rank=rank, time=5) for rank in (0, 1)]
    files += [found(P, (1, 10), 10, rank=rank, launch=rank, time=10) for rank in (0, 1)]
    assert keys(reconstruct(files)) == [("net_0/rank_0", {0, 1}), ("net_1/rank_1", {0, 1})]


BOTH_AT_5_AND_10 = [found(P, (1, step), step, rank=rank, time=100 * step) for step in (5, 10) for rank in (0, 1)]
COPIED_IN_TURN = [(0, 0, 5), (0, 0, 10), (0, 1, 5), (0, 1, 10), (1, 0, 5), (1, 0, 10)]  # rank, launch, step

# (name, files, whether the numbers are trusted, the (rank, step) of each launch's files)
STARTS: list[tuple[str, list[FoundFile], bool, list[str]]] = [
    (
        "two that failed at one step, soon after each other",
        [found(P, (1, step), step, time=2 * step) for step in (5, 10)]
        + [found(B, (2, 2), 12, launch=number, time=24 + 4 * number) for number in (0, 1)],
        True,
        ["0:5 0:10", "0:12", "0:12"],
    ),
    (
        "two that failed at one step, of which each rank has one breakpoint",
        [*BOTH_AT_5_AND_10, *(found(B, (2, 2), 12, rank=rank, time=1300 + 120 * rank) for rank in (0, 1))],
        False,
        ["0:5 1:5 0:10 1:10", "0:12", "1:12"],
    ),
    (
        "rank 1 missed the second; copied rank after rank, ten files a second",
        [
            replace(found(P, (1, step), step, launch=number, rank=rank), mtime_ns=SECOND + place * SECOND // 10)
            for place, (rank, number, step) in enumerate(COPIED_IN_TURN)
        ],
        False,
        ["0:5 0:10", "0:5 0:10", "1:5 1:10"],
    ),
    (
        "two that saved one step, of which each rank has one file",
        [
            *BOTH_AT_5_AND_10,
            *(found(P, (1, 100), 100, rank=rank, time=2000 + 300 * rank) for rank in (0, 1)),
            found(P, (1, 105), 105, launch=1, time=3000),
        ],
        False,
        ["0:5 1:5 0:10 1:10 0:100", "1:100 0:105"],
    ),
    (
        "rank 1 missed the second, and rank 0 lost what it saved in the third; each has epochs of its own",
        [
            *(found(P, (1, step), step, rank=rank, time=step) for step in (5, 10) for rank in (0, 1)),
            *(found(P, (1, step), 10 + step, launch=1, time=100 + step) for step in (5, 10, 15)),
            *(found(P, (1, step), 20 + step, launch=1, rank=1, time=200 + step) for step in (5, 10)),
        ],
        False,
        ["0:5 1:5 0:10 1:10", "0:15 0:20 0:25", "1:25 1:30"],
    ),
    (
        "the second goes on under the same name after an exit",
        [
            *(found(P, (1, step), step, time=step) for step in (5, 10)),
            found(X, None, 12, named_step=12, time=12),
            found(P, (2, 5), 15, time=50),
        ],
        False,
        ["0:5 0:10", "0:12", "0:15"],
    ),
]


@pytest.mark.parametrize(
    ("files", "trusted", "launches"), [case[1:] for case in STARTS], ids=[case[0] for case in STARTS]
)
def test_files_of_two_starts_are_of_two_launches(files: list[FoundFile], launches: list[str], *, trusted: bool) -> None:
    history = reconstruct(files, stated=Stated(trusted=frozenset({Trusted.NUMBERS} if trusted else ())))
    made = [" ".join(f"{file.rank}:{file.global_step}" for file in launch.files) for launch in history.launches]
    assert made == launches
    assert history.uncertain == ()


def test_one_save_of_each_rank_is_no_evidence_without_times() -> None:
    files = [found(P, (1, 5), 5, rank=rank) for rank in (0, 1)]
    assert len(reconstruct(files).launches) == 2


def test_copies_of_rank_after_rank_do_not_prove_an_order() -> None:
    files = [file for rank in (0, 1) for number in (0, 1) for file in regular(launch=number, rank=rank)]
    copied = [replace(file, mtime_ns=place * SECOND) for place, file in enumerate(files)]
    assert keys(reconstruct(copied)) == [("net_0/rank_0", {0, 1}), ("net_1/rank_0", {0, 1})]


@pytest.mark.parametrize(
    ("directory", "times", "apart"),
    [
        ("ttp_saved_checkpoints-step_26", (40, 44), False),
        ("ttp_saved_checkpoints-step_26", (40, 46), True),  # as long as between two saves: one is an older launch's
        ("ttp_saved_checkpoints-step_26_tmp", (40, 44), True),  # what was never renamed may hold an older file
    ],
)
def test_a_finished_ttp_directory_is_of_one_launch(directory: str, times: tuple[int, int], *, apart: bool) -> None:
    files = [
        found(T, (3, 6), 26, rank=rank, info=EXIT | {"cur_rank": rank}, time=time, path=f"/t/{directory}/rank_{rank}/x")
        for rank, time in enumerate(times)
    ]
    history = reconstruct([*regular(), *(replace(file, named_step=26) for file in files)])
    assert [ranks for key, ranks in keys(history) if "/t/" in key] == ([{0}, {1}] if apart else [{0, 1}])
    copied = reconstruct([replace(file, mtime_ns=0) for file in [*regular(), *files]])
    assert [ranks for key, ranks in keys(copied) if "/t/" in key] == [{0}, {1}]


@pytest.mark.parametrize(
    ("ranks", "more", "given", "size", "warning"),
    [
        ([0, 1], {}, None, 2, "the highest rank found is 1"),
        ([0, 1], {}, 4, 4, ""),
        ([0, 1], {"ranks_seen": [3]}, None, 4, "the highest rank found is 3"),
        ([0, 5], {}, 4, 4, "rank 5 was found, though --world-size says 4"),
        ([None], {}, None, 1, "no file or directory names a rank"),
    ],
)
def test_world_size(ranks: list[int | None], more: dict[str, Any], given: int | None, size: int, warning: str) -> None:
    history = reconstruct([found(P, (1, 5), 5, rank=rank) for rank in ranks], world_size=given, **more)
    assert history.world_size == size
    assert [one for one in history.warnings if "rank" in one and "--world-size" in one] == [
        one for one in history.warnings if warning and warning in one
    ]
    assert bool(warning) == any(warning and warning in one for one in history.warnings)


def test_a_rank_that_nobody_says() -> None:
    alone = reconstruct([found(P, (1, 5), 5, rank=None)])
    assert [file.rank for file in alone.launches[0].files] == [0]
    for more, seen in (([found(P, (1, 5), 5, rank=1)], []), ([], [0])):
        history = reconstruct([found(P, (1, 5), 5, rank=None), *more], ranks_seen=seen)
        assert [(one.best_guess, one.reason) for one in history.uncertain] == [
            (None, "nothing says which rank wrote it")
        ]


def test_a_job_that_is_said_to_have_one_rank_has_no_other() -> None:
    """A ModelCheckpoint of a job of one saves where no rank is named; TTP and graceful exits make `rank_0`."""
    history = reconstruct([found(P, (1, 5), 5, rank=None)], world_size=1, ranks_seen=[0])
    assert [file.rank for launch in history.launches for file in launch.files] == [0]
    assert history.uncertain == ()


def test_the_rank_that_the_content_says() -> None:
    inner = reconstruct([found(P, (1, 5), 5, rank=None, info={"cur_rank": 3})])
    assert (inner.world_size, inner.launches[0].files[0].rank) == (4, 3)
    differing = reconstruct([found(P, (1, 5), 5, rank=1, info={"cur_rank": 3})])
    assert differing.world_size == 4
    assert "rank 1, its content of rank 3" in differing.uncertain[0].reason


@pytest.mark.parametrize("kind", [P, T])
def test_the_work_for_a_file_does_not_grow_with_the_ranks(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    line = Ranked.line.fget
    monkeypatch.setattr(Ranked, "line", property(lambda ranked: (asked.append(ranked), line(ranked))[1]))
    works = []
    for ranks in (4, 64):
        path = "/out/ttp_saved_checkpoints-step_5/rank_{}/ttp_rank_{}-1_5.ckpt"
        files = [
            replace(found(kind, (1, 5), 5, rank=rank, path=path.format(rank, rank)), mtime_ns=rank)
            for rank in range(ranks)
        ]
        asked.clear()
        assert len(reconstruct(files).launches) == 1
        works.append(len(asked) / ranks)
    assert works[1] <= works[0] + 1


def test_nothing_found() -> None:
    assert reconstruct([], world_size=2) == Reconstruction((), (), 2, ())
