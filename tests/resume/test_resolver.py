"""The resolver: tables of named cases. What they leave out is held against an oracle in test_resolver_property.py."""

import shlex
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any

import pytest

from ckptstore.core.copies import Copy, CopyState, Tier
from ckptstore.core.model import (
    Checkpoint,
    Content,
    Grade,
    Kind,
    Launch,
    Observed,
    Rejection,
    RestorePlan,
    Rule,
    State,
    View,
)
from ckptstore.core.naming import companion_of
from ckptstore.core.replicas import Layout, data_parallel
from ckptstore.errors import UsageError
from ckptstore.resume.resolver import NEWEST, Loads, Query, judge, resolve
from tests.resume.builders import as_recorded, file, launch, state, whole_state

ONE, TWO, BOTH = launch(world_size=1), launch(), launch(layout=data_parallel(2))
THREE, ALIKE = launch(world_size=3), launch(world_size=3, layout=data_parallel(3))
SCAN = replace(BOTH, foreign=True)
PAIRS = launch(world_size=8, layout=Layout("stated", ((0, 4), (1, 5), (2, 6), (3, 7))))
NAN = {"quarantine": "the loss was nan"}
SHARE = {"content": Content.SHARE}
COPIED = replace(TWO, has_copies=True)
FETCHING = Query(fetches=True)


def saved(of: Launch, *ranks: int, step: int = 15, **more: Any) -> State:
    """A file of each of these ranks; none: of every rank."""
    chosen = ranks or range(of.world_size)
    return state(of, *(replace(file(of, rank, step), **more) for rank in chosen), step=step)


def also(one: State, *files: Checkpoint, **more: Any) -> State:
    return replace(one, files=(*one.files, *(replace(each, **more) for each in files)))


def planned(of: State, seen: dict[str, Observed] | None = None, **how: Any) -> RestorePlan:
    verdict = judge(of, as_recorded(of) if seen is None else seen, Query(**how))
    assert isinstance(verdict, RestorePlan), verdict
    return verdict


def rejected(of: State, seen: dict[str, Observed] | None = None, **how: Any) -> Rejection:
    verdict = judge(of, as_recorded(of) if seen is None else seen, Query(**how))
    assert isinstance(verdict, Rejection), verdict
    return verdict


def sources(plan: RestorePlan | None) -> list[int]:
    return [assignment.source.rank for assignment in plan.ranks]


def rules(rejection: Rejection) -> list[tuple[Rule, int | None]]:
    return [(reason.rule, reason.rank) for reason in rejection.reasons]


def test_what_a_query_asks_for() -> None:
    assert not NEWEST.goes_back
    assert not NEWEST.read_bytes
    assert all(query.goes_back for query in (Query(step=0), Query(lineage="L1"), Query(fresh=True)))
    assert NEWEST.checked() == NEWEST
    assert Query(step=5, world_size=2, lineage="L1").checked() == Query(step=5, world_size=2, lineage="L1")
    assert Query(every_lineage=True).checked().every_lineage
    for query in (Query(lineage="L1", every_lineage=True), Query(fresh=True, step=5), Query(fresh=True, lineage="L1")):
        with pytest.raises(UsageError):
            query.checked()
    for query in (Query(step=-1), Query(world_size=0)):
        with pytest.raises(UsageError, match="not a whole number"):
            query.checked()


GASP = file(BOTH, 1, kind=Kind.DYING_GASP)
OTHER_SIZES = state(ALIKE, file(ALIKE, 0, size=3_000), file(ALIKE, 1, size=491_000))


@pytest.mark.parametrize(
    ("of", "how", "expected"),
    [
        (saved(THREE), {}, [0, 1, 2]),
        (saved(ALIKE, 2), {}, [2, 2, 2]),
        (replace(OTHER_SIZES, launch=BOTH), {}, [0, 1]),  # each serves itself, and nobody else
        (saved(THREE, **SHARE), {}, [0, 1, 2]),
        (also(saved(BOTH, 0, **SHARE), GASP), {}, [1, 1]),  # a replica's whole file serves where a share is lost
        (also(saved(BOTH, **SHARE), GASP), {}, [1, 1]),  # and is taken first
        (also(saved(TWO, **SHARE), GASP), {}, [0, 1]),  # without a replica the shares are
        (also(saved(BOTH, 0), replace(file(BOTH, 1), **NAN)), {"take_quarantined": True}, [0, 1]),
        (saved(BOTH), {"world_size": 4}, [0, 1, 0, 0]),
        (saved(BOTH, 1), {"world_size": 3}, [1, 1, 1]),
        (also(saved(BOTH, 0, **SHARE), GASP), {"world_size": 3}, [1, 1, 1]),
        (saved(BOTH), {"world_size": 1}, [0]),
        (saved(BOTH), {"world_size": 2, "takes_whole": False}, [0, 1]),
        (saved(ONE), {"world_size": 3}, [0, 0, 0]),
        (saved(THREE), {"world_size": 3}, [0, 1, 2]),
    ],
)
def test_who_loads_from_whom(of: State, how: dict[str, Any], expected: list[int]) -> None:
    plan = planned(of, **how)
    assert sources(plan) == expected
    assert [assignment.rank for assignment in plan.ranks] == list(range(len(expected)))
    assert plan.in_shares == (plan.ranks[0].source.content is Content.SHARE)
    assert (plan.epoch, plan.step_in_epoch, plan.initial_epoch) == (2, 5, 1)


def test_what_a_rank_reads_of_shares() -> None:
    """All of them if ranks spread the parameters over each other, as in data parallel; else its own."""
    alone, alike = THREE.layout, ALIKE.layout
    spread, cut, whole = (
        planned(saved(launch, **how)) for launch, how in ((ALIKE, SHARE), (THREE, SHARE), (ALIKE, {}))
    )
    for plan, layout, expected in (
        (spread, alone, [1, 0, 2]),
        (cut, alone, [1]),
        (cut, alike, [1, 0, 2]),
        (whole, alike, [1]),
    ):
        assert [file.rank for file in plan.files_for(1, layout)] == expected


NO_WHOLE_FILE = "no other file holds it (remove_redundancy)"
PARTS = "it is in files of MindFormers 2.0, as /ckpt/L1/rank_0/periodic-15.ckpt: MindFormers has to load it"
NOT_THERE = "of which those of 1 of 2 are not there: MindFormers has to load it"
ASKED = "2 ranks saved it, 4 are to load it, and "


@pytest.mark.parametrize(
    ("of", "how", "expected", "was_whole", "detail"),
    [
        (saved(THREE, 0, 2), {}, [(Rule.MISSING_RANK, 1)], False, "no file of rank 1 was recorded"),
        (
            saved(PAIRS, 0, 2, 3, 6, 7),
            {},
            [(Rule.MISSING_RANK, 1), (Rule.MISSING_RANK, 5)],
            False,
            "replica group 1,5, was",
        ),
        (saved(TWO, step=0), {}, [(Rule.UNTRAINED, None)], False, "the network is untrained"),
        (saved(ONE, content=Content.WEIGHTS), {}, [(Rule.WEIGHTS_ONLY, 0)], False, "holds weights"),
        (also(saved(TWO, 0), file(TWO, 1, size=None)), {}, [(Rule.IN_PROGRESS, 1)], False, "was never finished"),
        (OTHER_SIZES, {}, [(Rule.REPLICA_SIZE_MISMATCH, 2)], True, "so none replaces it: rank 0 has 3000 bytes, rank"),
        (saved(THREE, 0, 2, **SHARE), {}, [(Rule.MISSING_RANK, 1)], False, NO_WHOLE_FILE),
        (
            also(saved(TWO, 0, **SHARE), GASP),
            {},
            [(Rule.MISSING_RANK, 0), (Rule.MISSING_RANK, 1)],
            False,
            "no file of rank 0 was recorded",
        ),
        (also(saved(BOTH, 0), file(BOTH, 1), **NAN), {}, [(Rule.QUARANTINED, 1)], True, ": the loss was nan"),
        (saved(SCAN, content=Content.PART), {"take_quarantined": True}, [(Rule.FOREIGN_FORMAT, None)], True, PARTS),
        (saved(SCAN, 1, content=Content.PART), {}, [(Rule.FOREIGN_FORMAT, None)], False, NOT_THERE),
        (saved(TWO), {"world_size": 4}, [(Rule.WORLD_SIZE, None)], True, f"{ASKED}no file serves every rank (layout:"),
        (also(saved(TWO, **SHARE), GASP), {"world_size": 4}, [(Rule.WORLD_SIZE, None)], True, f"{ASKED}no file serves"),
        (saved(TWO, **SHARE), {"world_size": 4}, [(Rule.WORLD_SIZE, None)], True, f"{ASKED}each file is a share"),
        (
            saved(BOTH),
            {"world_size": 4, "takes_whole": False},
            [(Rule.WORLD_SIZE, None)],
            True,
            f"{ASKED}the new ranks do not hold the whole state",
        ),
        (
            saved(ONE),
            {"world_size": 2, "takes_whole": False},
            [(Rule.WORLD_SIZE, None)],
            True,
            "1 rank saved it, 2 are to load it, and the new ranks do not hold the whole state",
        ),
        (saved(ONE, step=1, **NAN), {}, [(Rule.QUARANTINED, 0)], True, "the loss"),
        (saved(BOTH, **NAN), {"world_size": 4}, [(Rule.QUARANTINED, 0), (Rule.QUARANTINED, 1)], True, "the loss"),
    ],
)
def test_what_is_rejected(
    of: State, how: dict[str, Any], expected: list[tuple[Rule, int | None]], detail: str, *, was_whole: bool
) -> None:
    found = rejected(of, **how)
    assert (rules(found), found.was_whole) == (expected, was_whole)
    assert detail in found.reasons[0].detail
    assert (found.launch, found.global_step, found.world_size) == ("L1", of.global_step, of.launch.world_size)


@pytest.mark.parametrize(
    ("seen", "rule"),
    [
        (Observed(None), Rule.MISSING_FILE),
        (Observed(99), Rule.SIZE_MISMATCH),
        (Observed(100, digest="other"), Rule.DIGEST_MISMATCH),
        (Observed(None, unreadable="Permission denied"), Rule.UNREADABLE),
    ],
)
@pytest.mark.parametrize("content", [Content.FULL, Content.SHARE])
def test_what_the_disk_shows_rejects(seen: Observed, rule: Rule, content: Content) -> None:
    of = saved(TWO, content=content)
    found = rejected(of, as_recorded(of) | {of.files[1].path: seen})
    assert (rules(found), found.was_whole) == ([(rule, 1)], True)
    assert [each.rank for each in found.served] == [0]
    assert rules(rejected(of, {})) == [(Rule.MISSING_FILE, 0), (Rule.MISSING_FILE, 1)]


def test_only_what_a_rank_lacks_is_a_reason() -> None:
    """Rank 0 has another share; of the whole files and the shares those that serve more ranks are told."""
    again = replace(file(THREE, 0), path="/again", **SHARE)
    shares = also(saved(THREE, 0, 1, **SHARE), again)
    found = rejected(shares, {path: seen for path, seen in as_recorded(shares).items() if path != "/again"})
    assert rules(found) == [(Rule.MISSING_RANK, 2)]
    found = rejected(also(shares, file(THREE, 2)))
    assert rules(found) == [(Rule.MISSING_RANK, 0), (Rule.MISSING_RANK, 1), (Rule.MISSING_RANK, 2)]
    assert [each.rank for each in found.served] == [0, 1]


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
    partial = saved(of, 4, 1, 2)
    asked: list[str] = []

    def where(asked_of: Launch) -> dict[int, str]:
        asked.append(asked_of.id)
        return hosts

    found = resolve("run", [partial], as_recorded, hosts=where)
    assert sources(found.plan) == expected
    assert asked == ["L1"]
    assert resolve("run", [whole_state(of, 15)], as_recorded, hosts=where).plan is not None
    assert asked == ["L1"]  # where every rank has its own, nobody is asked
    assert resolve("run", [saved(PAIRS, 0, 1, 2, 3)], as_recorded, hosts=where).plan is not None
    assert asked == ["L1", "L1"]  # however many replica groups have a rank without a file


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_of_several_whole_files_of_a_rank_the_choice_is_always_the_same(ranks: tuple[int, ...]) -> None:
    """The kind that comes first, of one kind the first path."""
    of = launch(world_size=3, layout=data_parallel(3))
    best = replace(file(of, ranks[-1], kind=Kind.PERIODIC), path="/b")
    others = [replace(best, path="/c"), replace(best, kind=Kind.GRACEFUL_EXIT, path="/a")]
    alone = [file(of, rank) for rank in ranks[:-1]]
    for files in ([best, *others, *alone], [*alone, *others, best], [others[0], best, *alone, others[1]]):
        plan = planned(state(of, *files))
        assert next(each.source for each in plan.ranks if each.source.rank == ranks[-1]) is best


@pytest.mark.parametrize("directory", ["ttp_saved_checkpoints-step_15_tmp", "tft_saved_checkpoints-step_15_tmp"])
def test_a_directory_that_was_never_renamed_counts_only_where_it_covers_every_rank(directory: str) -> None:
    files = [replace(file(PAIRS, rank, kind=Kind.TTP), path=f"/t/{directory}/rank_{rank}/x") for rank in (0, 5, 2, 3)]
    assert sources(planned(state(PAIRS, *files))) == [0, 5, 2, 3, 0, 5, 2, 3]
    found = rejected(state(PAIRS, *files[:3]))
    assert rules(found) == [(Rule.MISSING_RANK, 3), (Rule.MISSING_RANK, 7)]
    assert f"{directory} is of an unfinished TTP save, and its files do not cover" in found.reasons[0].detail
    assert "never renamed" not in rejected(saved(PAIRS, 0, 1, 2)).reasons[0].detail


def test_a_wide_job_is_explained_in_a_line_a_rank() -> None:
    found = rejected(state(launch(world_size=64, layout=data_parallel(64))))
    detail = "no file of rank 0, nor one of its replica group 0,1,2,3,4,5,6,7… (64 in all), was recorded"
    assert (found.reasons[0].detail, len(found.reasons)) == (detail, 64)


def test_the_first_whole_candidate_wins_and_the_disk_is_asked_no_further() -> None:
    newest, middle, oldest = (whole_state(TWO, step) for step in (20, 15, 10))
    asked: list[int] = []

    def look(candidate: State) -> dict[str, Observed]:
        asked.append(candidate.global_step)
        return {} if candidate is newest else as_recorded(candidate)

    found = resolve("run", [newest, middle, oldest], look)
    assert found.plan.global_step == 15
    assert [rejection.global_step for rejection in found.rejections] == [20]
    assert asked == [20, 15]
    assert not found.lost


def test_what_was_whole_and_is_gone_is_lost_what_was_never_whole_is_not() -> None:
    assert resolve("run", [whole_state(TWO, 15)], lambda _: {}).lost
    never = resolve("run", [saved(TWO, 0)], as_recorded)
    assert never.plan is None
    assert not never.lost
    assert resolve("run", [saved(TWO, **NAN)], as_recorded).lost


def views(of: State, *seen: set[int], hosts: str = "abcdefghij") -> dict[int, View]:
    """Rank by rank, which ranks' files it sees on its host."""
    there = as_recorded(of)
    return {
        rank: View(hosts[rank], {each.path: there[each.path] for each in of.files if each.rank in of_ranks})
        for rank, of_ranks in enumerate(seen)
    }


@pytest.mark.parametrize(
    ("of", "seen", "how", "expected"),
    [
        (saved(TWO), [{0}, {1}], {}, [0, 1]),
        (saved(BOTH), [{0}, {1}], {}, [0, 1]),
        (saved(BOTH), [{0}, {0}], {}, [0, 0]),  # the file of its replica was copied to its host
        (saved(BOTH), [{0, 1}, {0, 1}], {}, [0, 1]),  # its own is taken first
        (saved(BOTH), [{1}, {1}, {0}], {"world_size": 3}, [1, 1, 0]),
        (replace(OTHER_SIZES, launch=BOTH), [{0}, {1}], {}, [0, 1]),
        (saved(TWO, **SHARE), [{0}, {1}], {}, [0, 1]),
        (saved(BOTH, **SHARE), [{0, 1}, {0, 1}], {}, [0, 1]),  # data parallel: a rank reads the shares of all
        (also(saved(BOTH, 0, **SHARE), GASP), [{0, 1}, {1}], {}, [1, 1]),
    ],
)
def test_a_rank_gets_what_its_own_host_has(
    of: State, seen: list[set[int]], how: dict[str, Any], expected: list[int]
) -> None:
    assert sources(planned(of, {}, views=views(of, *seen), **how)) == expected


def test_what_a_host_lacks_is_named_with_who_has_it() -> None:
    of = saved(BOTH)
    verdict = rejected(of, {}, views=views(of, {0}, set()))
    assert rules(verdict) == [(Rule.MISSING_FILE, 1)]
    path = of.files[0].path
    told, copy = verdict.reasons[0].detail.split("; on b: ")
    assert told == f"rank 1 on b lacks {path}, which a has"
    *_, source, target = shlex.split(copy)
    assert target == f"{Path(path).parent}/"
    copied = PurePath(path), PurePath(companion_of(path)), PurePath(path).with_name("net-1_100.ckpt")
    assert [each.match(source.removeprefix("a:")) for each in copied] == [True, True, False]
    assert [each.rank for each in verdict.served] == [0]


@pytest.mark.parametrize("name", ["step-10-of-{}", "net[1]-of-{}.ckpt"])
def test_a_file_without_an_ending_or_like_a_pattern_is_copied_alone(name: str) -> None:
    of = saved(BOTH)
    of = replace(of, files=tuple(replace(each, path=f"/ckpt/{name.format(each.rank)}") for each in of.files))
    verdict = rejected(of, {}, views=views(of, {0}, set()))
    path = of.files[0].path
    *_, source, target = shlex.split(verdict.reasons[0].detail)
    assert (source, target) == (f"a:{path}", path)


@pytest.mark.parametrize(
    ("of", "seen", "detail"),
    [
        (saved(TWO), [{0}, {0}], "rank 1 on b does not see {1}"),  # no replica: nobody else's serves
        (replace(OTHER_SIZES, launch=BOTH), [{0}, {0}], "rank 1 on b does not see {1}"),
        (saved(TWO), [{0}], "rank 1 did not say in time what it sees on its host"),
        (saved(TWO, 0), [{0}, {0}], "rank 1 on b does not see a file that serves it"),
        (
            saved(BOTH, **SHARE),
            [{0, 1}, {1}],
            "rank 1 on b lacks {0}, which a has; on b: rsync",
        ),
    ],
)
def test_what_no_host_may_give_it(of: State, seen: list[set[int]], detail: str) -> None:
    verdict = rejected(of, {}, views=views(of, *seen))
    assert verdict.reasons[0].rank == 1
    assert verdict.reasons[0].detail.startswith(detail.format(*(each.path for each in of.files)))


def test_a_file_that_is_not_as_recorded_is_not_seen() -> None:
    of = saved(TWO)
    told = views(of, {0}, {1})
    cut = View("b", {path: Observed(1) for path in told[1].seen})
    found = rejected(of, {}, views={**told, 1: cut})
    assert rules(found) == [(Rule.SIZE_MISMATCH, 1)]
    assert found.reasons[0].detail == f"{of.files[1].path} has 1 bytes, {of.files[1].size} were recorded"
    assert found.remedies


def test_not_every_rank_is_explained() -> None:
    of = saved(launch(world_size=10))
    verdict = rejected(of, {}, views=views(of, *[set()] * 10))
    assert [reason.rank for reason in verdict.reasons] == list(range(8))


def test_of_another_number_of_ranks_what_their_hosts_show_counts() -> None:
    """Every file was called gone, since this host had none of them."""
    of = saved(TWO)
    assert rules(rejected(of, {}, views=views(of, {0}, {1}, set()), world_size=3)) == [(Rule.WORLD_SIZE, None)]


def test_other_ranks_never_get_some_of_the_shares() -> None:
    """Ranks on other hosts that saw three shares of four, and not the whole file, were given those shares."""
    four = launch(world_size=4, layout=data_parallel(4))
    of = also(saved(four, 0, 1, 2, **SHARE), file(four, 3, kind=Kind.DYING_GASP))
    found = rejected(of, {}, world_size=2, views=views(of, {0, 1, 2}, {0, 1, 2}))
    assert rules(found) == [(Rule.MISSING_FILE, 0), (Rule.MISSING_FILE, 1)]


def test_what_mindspore_cannot_load_is_for_others_only() -> None:
    whole = saved(BOTH)
    of_pytorch = replace(whole, files=(whole.files[0], replace(whole.files[1], format="pytorch")))
    assert sources(planned(of_pytorch)) == [0, 1]
    found = rejected(of_pytorch, loads=Loads.MINDSPORE)
    assert rules(found) == [(Rule.FOREIGN_FORMAT, None)]
    assert found.reasons[0].detail == f"MindSpore cannot load {whole.files[1].path}: its format is pytorch"
    assert sources(planned(whole, loads=Loads.MINDSPORE)) == [0, 1]


def test_why_a_state_is_of_no_use_at_all_comes_before_what_is_wrong_with_it() -> None:
    """Who cannot load the format is not told first that the loss was nan, which they could overrule."""
    bad = saved(BOTH, path="/ckpt/net-3_3.ckpt", grade=Grade.CONSISTENT, format="pytorch", **NAN)
    quarantined = [(Rule.QUARANTINED, 0), (Rule.QUARANTINED, 1)]
    assert rules(rejected(bad, steps_per_epoch=8)) == [(Rule.OTHER_EPOCHS, None), *quarantined]
    found = rejected(bad, loads=Loads.MINDSPORE)
    assert rules(found) == [(Rule.FOREIGN_FORMAT, None), *quarantined]
    assert found.remedies[0].startswith("to pass its files to a program that can load them: ")


ITERATION = "/ckpt/iteration_00000015"
OF_RANK_0 = ("net-model-0000000-0000002.safetensors", "net-opt-0000000-0000002.safetensors")
OF_RANK_1 = ("net-model-0000001-0000002.safetensors", "net-opt-0000001-0000002.safetensors")
NOTES = ("common.json", "metadata.json")
ALL = (*OF_RANK_0, *OF_RANK_1, *NOTES)


OF_ONE = ("net-model-0000000-0000001.safetensors", "net-opt-0000000-0000001.safetensors", NOTES[0])


def iteration(*names: str, **more: Any) -> State:
    """The directory of an iteration of two ranks with these files."""
    files = [
        replace(file(TWO, int(name in OF_RANK_1)), path=f"{ITERATION}/{name}", content=Content.PART, **more)
        for name in names
    ]
    return state(TWO, *files)


def test_an_iteration_of_mindformers_is_whole_with_every_part_and_both_notes() -> None:
    of = iteration(*ALL)
    for loads in (Loads.ALL, Loads.MINDFORMERS):
        plan = planned(of, loads=loads)
        assert [each.source.path.rpartition("/")[2] for each in plan.ranks] == [OF_RANK_0[0], OF_RANK_1[0]]
        assert plan.in_parts
    seen = as_recorded(of)
    two = {
        rank: View(f"host-{rank}", {each.path: seen[each.path] for each in of.files if each.rank == rank})
        for rank in (0, 1)
    }
    assert planned(of, {}, views=two).in_parts
    assert rules(rejected(of, {}, views={0: two[0]})) == [(Rule.MISSING_FILE, 1)] * 2


@pytest.mark.parametrize(
    ("of", "how", "expected"),
    [
        (iteration(*ALL[:3], *NOTES), {}, [(Rule.MISSING_RANK, 1)]),
        (iteration(*OF_RANK_0, *NOTES), {}, [(Rule.MISSING_RANK, 1)] * 2),
        (iteration(*ALL[:5]), {}, [(Rule.MISSING_RANK, 0)]),
        (iteration(*ALL), {"world_size": 1}, [(Rule.WORLD_SIZE, None)]),
        (iteration(*ALL), {"loads": Loads.MINDSPORE}, [(Rule.FOREIGN_FORMAT, None)]),
        (iteration(*ALL, **NAN), {}, [(Rule.QUARANTINED, rank) for rank in (0, 0, 0, 0, 1, 1)]),
        (iteration(*NOTES), {}, [(Rule.MISSING_RANK, None)] * 2),
        (iteration(OF_RANK_0[0], OF_RANK_1[0], *NOTES), {}, [(Rule.MISSING_RANK, None)]),
        (saved(TWO), {"loads": Loads.MINDFORMERS}, [(Rule.FOREIGN_FORMAT, None)]),
    ],
)
def test_an_iteration_that_is_not_whole_or_for_others(of: State, how: dict[str, Any], expected: Any) -> None:
    assert sorted(rules(rejected(of, **how)), key=str) == sorted(expected, key=str)


def test_a_part_of_an_iteration_that_is_gone_is_named_and_nothing_stands_in() -> None:
    of = iteration(*ALL)
    for place, rank in ((3, 1), (4, 0)):
        lost = as_recorded(of) | {of.files[place].path: Observed(None)}
        found = rejected(of, lost)
        assert rules(found) == [(Rule.MISSING_FILE, rank)]
        assert found.was_whole
        assert of.files[place].path in found.remedies[0]


def test_every_part_of_an_iteration_that_is_gone_is_to_be_brought_back() -> None:
    """No part replaces another. What was never recorded has no remedy."""
    of = iteration(*ALL)
    lost = [of.files[place].path for place in (1, 3)]
    found = rejected(of, as_recorded(of) | dict.fromkeys(lost, Observed(None)))
    assert found.remedies == (f"for ranks 0,1: bring back all of the originals {lost[0]}, {lost[1]} from a backup",)
    assert rejected(iteration(*ALL[:3], *NOTES)).remedies == ()


def test_an_iteration_of_one_rank_has_no_metadata() -> None:
    of = replace(iteration(*OF_ONE), launch=ONE)
    assert sources(planned(of)) == [0]
    detail = "saved by 1 rank, to be loaded by 2: an iteration is loaded by as many ranks"
    assert rejected(of, world_size=2).reasons[0].detail == detail
    assert rejected(iteration(*ALL), world_size=1).reasons[0].detail.startswith("saved by 2 ranks, to be loaded by 1: ")


def test_a_rank_without_a_part_of_its_own_gets_the_first_part_of_an_iteration() -> None:
    plan = planned(replace(iteration(*ALL), launch=THREE))
    assert [each.source.path.rpartition("/")[2] for each in plan.ranks] == [OF_RANK_0[0], OF_RANK_1[0], OF_RANK_0[0]]


def test_epochs_of_other_data_reject_where_as_many_ranks_go_on() -> None:
    """Step 15 is named after epoch 3."""
    named = {"path": "/ckpt/net-3_3.ckpt", "grade": Grade.CONSISTENT}
    of = saved(BOTH, **named)
    assert rules(rejected(of, steps_per_epoch=8)) == [(Rule.OTHER_EPOCHS, None)]
    assert planned(of, steps_per_epoch=7)
    assert planned(of, steps_per_epoch=8, step=15)
    assert planned(of, steps_per_epoch=8, world_size=1)
    assert planned(saved(BOTH, path="/ckpt/net-3_3.ckpt"), steps_per_epoch=8)
    bad = rejected(also(saved(BOTH, 0, **named), file(BOTH, 1), **NAN), steps_per_epoch=8)
    assert rules(bad) == [(Rule.OTHER_EPOCHS, None), (Rule.QUARANTINED, 1)]


def copy_of(one: Checkpoint) -> tuple[Copy, ...]:
    tier = Tier("s3", "s3://bucket/ckpt", 1)
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return (Copy(tier=tier, key="a", state=CopyState.READY, size=one.size, digest=one.digest, at=at),)


def test_what_is_lacking_is_fetched_from_a_tier_and_nothing_else() -> None:
    newer, older = saved(COPIED, step=20), saved(COPIED, step=15)
    lost, kept = newer.files
    copies = {each.id: copy_of(each) for each in newer.files}
    seen = as_recorded(newer, older)
    del seen[lost.path]
    asked: list[int] = []

    def copies_of(one: State) -> dict[str, tuple[Copy, ...]]:
        asked.append(one.global_step)
        return copies

    def chosen(*candidates: State, query: Query = FETCHING) -> RestorePlan | None:
        asked.clear()
        return resolve("run", candidates, lambda _: seen, query, copies=copies_of).plan

    plan = chosen(newer, older)
    assert (plan.global_step, sources(plan), set(plan.copies), asked) == (20, [0, 1], {lost.id}, [20])
    assert chosen(newer, older, query=NEWEST).global_step == 15
    assert asked == []
    assert chosen(replace(newer, launch=TWO), older).global_step == 15
    assert chosen(older, newer).copies == {}
    assert asked == []
    del seen[kept.path], copies[kept.id]
    assert chosen(newer, older).global_step == 15
    found = resolve("run", [newer], lambda _: seen, FETCHING, copies=copies_of)
    assert rules(found.rejections[0]) == [(Rule.MISSING_FILE, 1)]
    assert found.rejections[0].reasons[0].detail.endswith(", and no tier has it")


def in_a_tier(one: State, *places: int) -> State:
    """The state with copies of its files at these places."""
    return replace(one, copies={one.files[place].id: copy_of(one.files[place]) for place in places})


def fetched(plan: RestorePlan) -> set[str]:
    return {each.source.path for each in plan.ranks if each.source.id in plan.copies}


def test_an_older_state_that_needs_no_fetching_is_named_to_who_compares() -> None:
    newer, older = saved(COPIED, step=20), saved(COPIED, step=15)
    copies = {each.id: copy_of(each) for each in newer.files}
    seen = as_recorded(older)

    def found(*candidates: State, compares: bool) -> tuple[int, int | None]:
        said = resolve("run", candidates, lambda _: seen, FETCHING, copies=lambda _: copies, compares=compares)
        at_home = said.without_fetching
        return said.plan.global_step, at_home and at_home.global_step

    assert found(newer, older, compares=True) == (20, 15)
    assert found(older, newer, compares=True) == (15, None)
    assert resolve("run", [newer, older], lambda _: seen, FETCHING, copies=lambda _: copies).without_fetching is None
    seen |= as_recorded(newer)
    assert found(newer, older, compares=True) == (20, None)


def test_a_replica_stands_in_with_a_file_that_is_fetched() -> None:
    of = in_a_tier(saved(BOTH, 0), 0)
    plan = planned(of, {})
    assert (sources(plan), fetched(plan)) == ([0, 0], {of.files[0].path})


def test_nothing_is_fetched_for_a_rank_that_has_a_file_at_home() -> None:
    """Not even the file that would be preferred if both were there."""
    first, second = (replace(file(ONE, 0), path=path) for path in ("/a", "/b"))
    for files in ((first, second), (second, first)):
        of = state(ONE, *files)
        plan = planned(in_a_tier(of, 0, 1), {"/b": Observed(100)})
        assert (plan.ranks[0].source.path, dict(plan.copies)) == ("/b", {})
        assert planned(of).ranks[0].source.path == "/a"


def test_what_the_host_of_a_rank_lacks_is_fetched_from_a_tier() -> None:
    of = in_a_tier(saved(TWO), 0, 1)
    plan = planned(of, {}, views=views(of, {0}, set()))
    assert (sources(plan), fetched(plan)) == ([0, 1], {of.files[1].path})
    assert planned(of, {}, views=views(of, {0}, {1})).copies == {}
    failed = replace(of, failed={of.files[1].id: "it is cut"})
    assert rules(rejected(failed, {}, views=views(of, {0}, set()))) == [(Rule.MISSING_FILE, 1)]
    weights = replace(of.files[1], content=Content.WEIGHTS)
    alone = in_a_tier(state(TWO, of.files[0], weights), 0, 1)
    assert rules(rejected(alone, {}, views=views(alone, {0}, set()))) == [(Rule.MISSING_FILE, 1)]
