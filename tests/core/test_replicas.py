"""Layouts out of groups, group info and words."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.core.replicas import Layout, data_parallel, from_group_info, from_groups, from_json, stand_alone
from ckptstore.core.stated import RestoreRanks, from_json_groups, from_restore_ranks, parse
from ckptstore.errors import UsageError

FOUR_PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("dp", data_parallel(8)),
        ("none", stand_alone()),
        ("0,4;1,5;2,6;3,7", Layout("stated", FOUR_PAIRS)),
        (" 7, 3; 5 ,1;6,2 ; 4,0", Layout("stated", FOUR_PAIRS)),
        ("3;0,04", Layout("stated", ((0, 4),))),
        ("1", Layout("stated")),
    ],
)
def test_what_a_user_states(text: str, layout: Layout) -> None:
    assert parse(text, 8) == layout


def test_ranks_are_whole_numbers() -> None:
    layout = parse("1,10;11,2", 12)
    assert layout.groups == ((1, 10), (2, 11))
    assert (0,) in layout.partition(12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no replicas are stated"),
        (" ", "no replicas are stated"),
        ("DP", "'DP' in the replica group 'DP' is no rank"),
        ("0,4;1,4", "rank 4 is named twice, the second time in the replica group 1,4"),
        ("0,4,0", "rank 0 is named twice, the second time in the replica group 0,4,0"),
        ("0,4;0,4", "rank 0 is named twice"),
        ("0,8", "rank 8 in the replica group 0,8, of 8 ranks"),
        ("0,999999999", "rank 999999999 in the replica group"),
        ("0,1000000000", "'1000000000' in the replica group"),
        ("0,4;", "a replica group is empty"),
        (";", "a replica group is empty"),
        ("0,4; ;1,5", "a replica group is empty"),
        ("0,,4", "'' in the replica group '0,,4' is no rank"),
        ("0 4", "'0 4' in the replica group"),
        ("0,-4", "'-4' in the replica group"),
        ("0,+4", r"'\+4' in the replica group"),
        ("0,4.0", "'4.0' in the replica group"),
        ("0,1_0", "'1_0' in the replica group"),
        ("0,٤", "'٤' in the replica group"),
        ("0,４", "'４' in the replica group"),
        ("\n0,4", r"'\\n0' in the replica group"),
        ("0,4\n", r"'4\\n' in the replica group"),
    ],
)
def test_what_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(text, 8)
    assert caught.value.hint


def test_groups_in_json() -> None:
    assert from_json_groups([[4, 0], [5, 1], [2]], 8) == Layout("stated", ((0, 4), (1, 5)))
    assert from_json_groups([], 8) == Layout("stated")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (None, "no list of lists"),
        ({"0": [4]}, "no list of lists"),
        ([0, 4], "no list of lists"),
        (["04"], "no list of lists"),
        ([["0", "4"]], "no whole number"),
        ([[True, 4]], "no whole number"),
        ([[0.0, 4]], "no whole number"),
        ([[0, -4]], "rank -4 in the replica group 0,-4"),
        ([[0, 4], []], "a replica group is empty"),
        ([[0, 4], [4, 1]], "rank 4 is named twice"),
    ],
)
def test_json_that_names_no_groups(groups: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_json_groups(groups, 8)


def test_a_long_group_is_shortened_in_messages() -> None:
    with pytest.raises(UsageError, match=r"group 0,1,2,3,4,5,6,7… \(1000 in all\), of 999 ranks"):
        from_groups([range(1000)], 999, "stated")


def test_group_info_of_some_ranks_is_enough() -> None:
    layout = from_group_info({"g0": (0, 4), "g1": (5, 1), "g5": (1, 5), "g3": (3,)}, 8)
    assert layout == Layout("group_info", ((0, 4), (1, 5)))
    assert from_json(layout.to_json()) == layout
    assert from_group_info({}, 8) == Layout("group_info")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"rank 0": (0, 4), "rank 4": (4, 5)}, "rank 0 says that the replicas are 0,4, rank 4 says 4,5"),
        ({"rank 4": (4, 5), "rank 0": (0, 4)}, "rank 0 says that the replicas are 0,4, rank 4 says 4,5"),
        ({"a": (0, 4), "b": (4,)}, "a says that the replicas are 0,4, b says 4"),
        ({"a": (0, 4), "b": (0, 4, 5)}, "a says that the replicas are 0,4, b says 0,4,5"),
        ({"a": (0, 1), "b": (10, 0)}, "a says that the replicas are 0,1, b says 10,0"),
        ({"a": (0, 8)}, "rank 8 in the replica group 0,8, of 8 ranks"),
        ({"a": (0, -1)}, "rank -1 in the replica group"),
        ({"a": (0, 0)}, "rank 0 is named twice"),
        ({"a": ()}, "a replica group is empty"),
    ],
)
def test_group_info_that_contradicts(said: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_group_info(said, 8)


@given(st.integers(1, 24), st.data())
def test_group_info_of_at_least_one_member_gives_the_groups_back(world_size: int, data: st.DataObject) -> None:
    marks = data.draw(st.lists(st.integers(0, 5), min_size=world_size, max_size=world_size))
    groups = {mark: tuple(rank for rank in range(world_size) if marks[rank] == mark) for mark in marks}
    writers = {mark: data.draw(st.sets(st.sampled_from(group), min_size=1)) for mark, group in groups.items()}
    said = {
        f"rank {rank}": tuple(data.draw(st.permutations(groups[mark])))
        for mark, ranks in writers.items()
        for rank in ranks
    }
    layout = from_group_info(dict(data.draw(st.permutations(list(said.items())))), world_size)
    assert sorted(layout.partition(world_size)) == sorted(groups.values())


def test_who_restores_from_whom() -> None:
    """The example of seed 003."""
    found = from_restore_ranks("0,1", '{"0,8": 0, "1,9": 1}', 10)
    assert found == RestoreRanks(Layout("restore_ranks_map", ((0, 8), (1, 9))), (0, 1, 2, 3, 4, 5, 6, 7, 0, 1))


def test_rank_1_is_not_found_in_11() -> None:
    found = from_restore_ranks("11, 1", '{"0, 11": 11, "1,10": 1}', 12)
    assert found is not None
    assert found.load_from == (11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 11)


@pytest.mark.parametrize("ranks", ["-1", " -1 ", "0,-1", "-1,0"])
def test_a_group_without_a_file_means_that_nothing_is_restored(ranks: str) -> None:
    assert from_restore_ranks(ranks, "", 2) is None


@pytest.mark.parametrize(
    ("ranks", "text", "message"),
    [
        ("", "{}", "a replica group is empty"),
        ("0;1", "{}", "'0;1' in the replica group"),
        ("-10", "{}", "'-10' in the replica group"),
        ("0", "{'0,8': 0}", "RESTORE_RANKS_MAP is no JSON"),
        ("0", "[" * 100_000, "RESTORE_RANKS_MAP is no JSON"),
        ("0", "[]", "RESTORE_RANKS_MAP is no JSON object"),
        ("0,1", '{"0,8": 1}', "the ranks 0,8 are to load from 1, RESTORE_RANKS names 0,1"),
        ("1", '{"0,8": 0}', "the ranks 0,8 are to load from 0, RESTORE_RANKS names 1"),
        ("0,1", '{"0,8": "0"}', "the ranks 0,8 are to load from '0'"),
        ("0,1", '{"0,1": true}', "the ranks 0,1 are to load from True"),
        ("0,1", '{"0,8": 0, "1,8": 1}', "rank 8 is named twice"),
        ("0,1", '{"0,12": 0}', "rank 12 in the replica group 0,12, of 10 ranks"),
        ("0,1", '{"": 0}', "a replica group is empty"),
    ],
)
def test_variables_that_contradict(ranks: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_restore_ranks(ranks, text, 10)


@given(st.integers(1, 24), st.randoms(use_true_random=False))
def test_groups_in_words_and_in_json_mean_the_same_in_any_order(world_size: int, chance: random.Random) -> None:
    ranks = list(range(world_size))
    chance.shuffle(ranks)
    cuts = sorted({0, world_size, *(chance.randrange(world_size) for _ in range(4))})
    groups = [ranks[a:b] for a, b in pairwise(cuts)]
    layout = parse(";".join(",".join(map(str, group)) for group in groups), world_size)
    assert layout == from_json_groups(json.loads(json.dumps(groups[::-1])), world_size)
    assert layout == from_json_groups(layout.to_json()["groups"], world_size)
    assert sorted(layout.partition(world_size)) == sorted(tuple(sorted(group)) for group in groups)
