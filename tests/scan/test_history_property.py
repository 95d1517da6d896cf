"""Histories whose truth is known: what is called proven is true, and no state is of two launches."""

from collections import defaultdict
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from ckptstore.scan.history import Reconstruction, reconstruct
from tests.scan.simulated_trees import Job, Saver, Start

ENDS = ["kill", "finish", "raise after", "raise before", "exit", "exit by signal", "kept exit", "ttp"]


@st.composite
def starts(draw: st.DrawFn, ranks: int, *, lagging: bool, ends: list[str]) -> Start:
    length = draw(st.integers(1, 14))
    return Start(
        length=length,
        back=draw(st.sampled_from([0, 0, 0, 1, 2])),
        fresh=draw(st.integers(0, 5)) == 0,
        truthful=draw(st.booleans()),
        end=draw(st.sampled_from(ends)),
        skips=draw(st.frozensets(st.integers(1, length), max_size=4)) if lagging else frozenset(),
        late=draw(st.frozensets(st.integers(0, ranks - 1), max_size=ranks - 1)),
        savers=draw(st.sampled_from([None, None, (0,), (1,)])),
        cascade=draw(st.booleans()),
    )


@st.composite
def jobs(draw: st.DrawFn, *, lagging: bool, ends: list[str] = ENDS) -> tuple[Job, list[Start]]:
    ranks = draw(st.integers(1, 3))
    families = draw(st.sampled_from([["net"], ["net"], ["net", "other"]]))
    savers = [Saver(name, draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 3, 100]))) for name in families]
    job = Job(draw(st.integers(2, 8)), ranks, savers, lagging=lagging, step_num=draw(st.booleans()))
    return job, draw(st.lists(starts(ranks, lagging=lagging, ends=ends), min_size=1, max_size=4))


def check(history: Reconstruction, truth: Mapping[str, tuple[int, int, int]]) -> None:
    states: dict[tuple[str, int], set[int]] = defaultdict(set)
    for launch in history.launches:
        for proven in launch.files:
            of, rank, step = truth[proven.file.path]
            assert proven.global_step == step, proven
            assert proven.rank == rank
            states[launch.key, step].add(of)
    assert all(len(launches) == 1 for launches in states.values()), states
    seen = [proven.file.path for launch in history.launches for proven in launch.files]
    seen += [uncertain.path for uncertain in history.uncertain]
    assert len(seen) == len(set(seen))
    assert len({launch.key for launch in history.launches}) == len(history.launches)


def proven_steps(history: Reconstruction) -> dict[str, int]:
    return {proven.file.path: proven.global_step for launch in history.launches for proven in launch.files}


@given(st.data())
@settings(max_examples=250)
def test_what_is_proven_is_true(data: st.DataObject) -> None:
    lagging = data.draw(st.booleans())
    job, launches = data.draw(jobs(lagging=lagging))
    job.uncounted = data.draw(st.sampled_from([frozenset[int](), frozenset[int](), frozenset({0}), frozenset({1, 2})]))
    seed = data.draw(st.integers(0, 1000))
    how = data.draw(st.sampled_from(["kept", "alike", "shuffled", "by path"]))
    size = data.draw(st.sampled_from([None, job.world_size]))
    lost = data.draw(st.sampled_from([None, None, 0, job.world_size - 1]))
    cleaned = 0 if lagging else data.draw(st.integers(0, 3))
    before: dict[str, int] = {}
    for each in launches:
        job.launch(each)
        oldest = sorted((path for path in job.disk if "/out/" in path), key=lambda path: job.disk[path].mtime_ns)
        for path in oldest[: min(cleaned, len(oldest) - 1)]:
            del job.disk[path]
        cleaned = 0
        found = [file for file in job.copied(how, seed) if job.world_size == 1 or file.rank != lost]
        found = data.draw(st.permutations(found)) if len(found) < 10 else found[::2] + found[1::2]
        seen = range(job.world_size) if lost is not None else ()
        history = reconstruct(found, world_size=size, ranks_seen=seen)
        check(history, job.truth)
        assert history == reconstruct(found[::-1], world_size=size, ranks_seen=seen)
        after = proven_steps(history)
        again = {path for path in before if path in after and job.disk[path].path == path}
        overwritten = {path for path in again if "/exits/" in path or "/ttp/" in path}
        assert all(before[path] == after[path] for path in again - overwritten)
        before = after


tally: dict[str, int] = {"files": 0, "ordered": 0}


@given(jobs(lagging=False, ends=["kill", "finish", "raise after", "raise before", "exit", "kept exit", "ttp"]))
@settings(max_examples=300)
def test_a_benign_history_is_understood_wholly(made: tuple[Job, list[Start]]) -> None:
    """Times intact, every step an update, names present, and one whole epoch seen: nothing is uncertain."""
    job, launches = made
    job.launch(Start(length=2 * job.steps_per_epoch, end="ttp"))
    for each in launches:
        job.launch(each)
    history = reconstruct(job.copied("kept", 0), world_size=job.world_size)
    check(history, job.truth)
    assert [one.reason for one in history.uncertain] == []
    proven = proven_steps(history)
    assert set(proven) == set(job.disk)
    assert {launch.steps_per_epoch for launch in history.launches} == {job.steps_per_epoch}
    starts = [min(job.truth[one.file.path][0] for one in launch.files) for launch in history.launches]
    if not [one for one in history.warnings if "guess" in one]:
        assert starts == sorted(starts)
        tally["ordered"] += 1
    tally["files"] += len(proven)


def test_benign_histories_are_not_empty() -> None:
    assert tally["files"] > 1000
