"""Histories of plain MindSpore: whatever is left of them, a scan is right or takes nothing."""

import random
from dataclasses import replace

import pytest

from ckptstore.evidence.reconstruct import Stated, reconstruct
from ckptstore.evidence.unregistered import Trusted
from tests.scan.judged import judge, share
from tests.scan.plain_histories import KINDS, draw, with_some
from tests.scan.plain_mindspore import Job, Saver, Script, Start, numbered
from tests.scan.report import HISTORIES, ordinary, table, tallies

FEW = 600
PLAIN = [name for name, kind in KINDS.items() if not kind.is_hidden]


def test_no_answer_is_wrong_and_ordinary_launches_are_understood() -> None:
    found = tallies(FEW)
    assert [told for each in found for told in each.failed] == []
    assert share(ordinary(found).judged) >= 0.95
    assert len(list(table(found))) == len(KINDS) + 3
    assert HISTORIES >= 20_000


@pytest.mark.parametrize("name", PLAIN)
def test_the_length_that_the_user_states_misleads_nothing(name: str) -> None:
    """The length of the dataset; what MindSpore calls an epoch is another where data sinks."""
    for seed in range(20):
        history = draw(KINDS[name], seed)
        stated = Stated(steps_per_epoch=history.script.steps_per_epoch)
        assert judge(history, reconstruct(history.found, stated=stated)).wrong == (), seed


def test_a_length_that_the_user_states_places_no_less() -> None:
    kinds = [kind for kind in KINDS.values() if kind.is_ordinary]
    for seed in range(20):
        for history in (draw(kind, seed) for kind in kinds):
            alone = reconstruct(history.found, world_size=history.script.ranks)
            stated = Stated(steps_per_epoch=history.script.steps_per_epoch)
            told = reconstruct(history.found, world_size=history.script.ranks, stated=stated)
            assert {one.path for one in told.uncertain} <= {one.path for one in alone.uncertain}
            doubts = {one.doubt for launch in told.launches for one in launch.files}
            assert not any("steps an epoch" in doubt for doubt in doubts), (seed, doubts)


@pytest.mark.parametrize("name", PLAIN)
def test_the_steps_that_the_user_states_are_taken(name: str) -> None:
    for seed in range(20):
        history = with_some(draw(KINDS[name], seed), seed)
        steps = {path: history.truth[path].state.step for path in (file.path for file in history.found)}
        made = reconstruct(history.found, world_size=history.script.ranks, stated=Stated(steps=steps))
        placed = {one.file.path: one.global_step for launch in made.launches for one in launch.files}
        assert placed == steps, seed
        assert judge(history, made).wrong == (), seed


@pytest.mark.parametrize("name", ["relaunched with `initial_epoch=0`", "the rest of an epoch left out", "TTP"])
def test_a_counter_that_is_trusted_is_right_where_each_step_is_an_update(name: str) -> None:
    stated = Stated(trusted=frozenset({Trusted.COUNTER}))
    for seed in range(100):
        history = with_some(draw(KINDS[name], seed), seed)
        made = reconstruct(history.found, world_size=history.script.ranks, stated=stated)
        assert judge(history, made).wrong == (), seed


def steps(job: Job, launch: int) -> dict[str, int]:
    return {path.rpartition("/")[2]: one.state.step for path, one in job.truth().items() if one.launch == launch}


def job_of(length: int, period: int = 1, **said: object) -> Job:
    script = Script(length, 1, (Saver("l", period),), **said)  # type: ignore[arg-type]
    return Job(script, random.Random(1))  # noqa: S311 — a test


def test_the_simulator_names_files_as_mindspore_does() -> None:
    """Seen in real runs of 10 steps an epoch (domain §3 and §4), and of `sink_size=3` on a CPU."""
    job = job_of(10)
    job.launch(Start(17))
    job.launch(Start(13))
    assert (steps(job, 2)["l_1-3_9.ckpt"], steps(job, 2)["l_1-3_3.ckpt"]) == (26, 30)
    job.launch(Start(3, way="zero"))
    assert steps(job, 3) == {"l_2-1_1.ckpt": 31, "l_2-1_2.ckpt": 32, "l_2-1_3.ckpt": 33}
    job.launch(Start(1, way="again"))
    assert steps(job, 4) == {"l_3-1_1.ckpt": 34}
    raised = job_of(10, 5)
    raised.launch(Start(17, end="raise in the next"))
    assert steps(raised, 1)["l-2_8_breakpoint.ckpt"] == 17
    sunk = job_of(6, sink="cpu", sink_size=3)
    sunk.launch(Start(6))
    assert steps(sunk, 1) == {"l-1_1.ckpt": 4, "l-1_2.ckpt": 5, "l-1_3.ckpt": 6}


def test_the_simulator_numbers_files_as_mindspore_does() -> None:
    names = ["net-1_5.ckpt", "net_1-2_5.ckpt", "net_4-2_6_breakpoint.ckpt", "network-1_5.ckpt", "net-graph.meta"]
    assert numbered(names, "net", breakpoints=False) == "net_2"
    assert numbered(names, "net", breakpoints=True) == "net_5"
    assert numbered(names, "ne", breakpoints=False) == "ne"
    assert numbered(names, "other", breakpoints=False) == "other"


@pytest.mark.parametrize("name", KINDS)
def test_the_order_of_files_changes_nothing(name: str) -> None:
    for seed in range(20):
        found = draw(KINDS[name], seed).found
        assert reconstruct(found) == reconstruct(found[::-1]), seed


def test_every_kind_is_drawn_with_something_to_go_on_from() -> None:
    for name, kind in KINDS.items():
        whole = [draw(kind, seed).newest is not None for seed in range(50)]
        assert sum(whole) > 25, name


LAGGING = ["loss scale, no update skipped", "loss scale, updates skipped", "gathered gradients"]


@pytest.mark.parametrize("is_told", [False, True], ids=["length open", "length told"])
@pytest.mark.parametrize("name", LAGGING)
@pytest.mark.parametrize("histories", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_files_without_a_number_need_not_be_of_the_first_launch(name: str, histories: int, *, is_told: bool) -> None:
    """Where somebody tidied up before a restart, MindSpore begins to number anew; and updates may be skipped."""
    kind = replace(KINDS[name], tidied=(0.5, 1.0), ways=("exact", "zero", "anew"), ends=("kill", "ttp", "exit"))
    for seed in range(histories):
        history = draw(kind, seed)
        stated = Stated(steps_per_epoch=history.script.steps_per_epoch if is_told else None)
        for left in (history, with_some(history, seed)):
            assert judge(left, reconstruct(left.found, stated=stated)).wrong == (), seed
