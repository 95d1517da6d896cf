"""Layouts out of groups, group info and words."""

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.core.replicas import (
    Layout,
    data_parallel,
    from_group_info,
    from_groups,
    from_json,
    from_json_groups,
    from_name,
    parse_layout,
    show,
    stand_alone,
)
from ckptstore.errors import UsageError

FOUR_PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("layout", "shown"),
    [
        (stand_alone(), {"source": "stand_alone", "groups": []}),
        (data_parallel(3), {"source": "data_parallel", "groups": [[0, 1, 2]]}),
        (Layout("stated", ((0, 2), (1, 3))), {"source": "stated", "groups": [[0, 2], [1, 3]]}),
    ],
)
def test_layouts_survive_json(layout: Layout, shown: dict[str, object]) -> None:
    assert layout.to_json() == shown
    assert from_json(shown) == layout


def test_layouts_by_name() -> None:
    assert from_name("data_parallel", 2) == data_parallel(2) == Layout("data_parallel", ((0, 1),), any_world_size=True)
    assert from_name(None, 2) == from_name("stand_alone", 2) == stand_alone()
    with pytest.raises(UsageError, match="unknown layout"):
        from_name("semi", 2)


def test_coverage_by_layout_alone() -> None:
    assert data_parallel(3).covers([2], 3)
    assert not data_parallel(3).covers([], 3)
    assert not stand_alone().covers([0], 2)
    assert Layout("stated", ((0, 1),)).covers([1, 2], 3)


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
    assert parse_layout(text, 8) == layout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no replicas are stated"),
        (" ", "no replicas are stated"),
        ("DP", "'DP' in the replica group 'DP' is no rank"),
        ("0,4;1,4", "rank 4 is named twice, the second time in the replica group 1,4"),
        ("0,4,0", "rank 0 is named twice, the second time in the replica group 0,4,0"),
        ("0,4;0,4", "rank 0 is named twice"),
        ("0,8", "the replica group 0,8 names rank 8, but there are 8 ranks"),
        ("0,999999999", "names rank 999999999, but"),
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
        parse_layout(text, 8)
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
        ([[0, -4]], "the replica group 0,-4 names rank -4"),
        ([[0, 4], []], "a replica group is empty"),
        ([[0, 4], [4, 1]], "rank 4 is named twice"),
    ],
)
def test_json_that_names_no_groups(groups: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_json_groups(groups, 8)


def test_a_long_group_is_shortened_in_messages() -> None:
    assert show(range(8)) == "0,1,2,3,4,5,6,7"
    with pytest.raises(UsageError, match=r"group 0,1,2,3,4,5,6,7… \(1000 in all\) names rank 999"):
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
        ({"a": (0, 8)}, "the replica group 0,8 names rank 8, but there are 8 ranks"),
        ({"a": (0, -1)}, "the replica group -1,0 names rank -1"),
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


@given(st.integers(1, 24), st.randoms(use_true_random=False))
def test_groups_in_words_and_in_json_mean_the_same_in_any_order(world_size: int, chance: random.Random) -> None:
    ranks = list(range(world_size))
    chance.shuffle(ranks)
    cuts = sorted({0, world_size, *(chance.randrange(world_size) for _ in range(4))})
    groups = [ranks[a:b] for a, b in pairwise(cuts)]
    layout = parse_layout(";".join(",".join(map(str, group)) for group in groups), world_size)
    assert layout == from_json_groups(json.loads(json.dumps(groups[::-1])), world_size)
    assert layout == from_json_groups(layout.to_json()["groups"], world_size)
    assert sorted(layout.partition(world_size)) == sorted(tuple(sorted(group)) for group in groups)


@pytest.mark.parametrize(
    ("layout", "copies", "hosts", "writers"),
    [
        (data_parallel(4), 1, [5, 5, 6, 6], {0}),
        (data_parallel(4), 2, [5, 5, 6, 6], {0, 2}),  # on two hosts
        (data_parallel(4), 2, [5, 5, 5, 5], {0, 1}),
        (data_parallel(4), 3, [5, 5, 6, 6], {0, 1, 2}),
        (data_parallel(2), 9, [5, 6], {0, 1}),
        (stand_alone(), 1, [5, 5], {0, 1}),  # nobody stands in for another
        (Layout("stated", ((0, 4), (1, 5))), 1, [1, 1, 1, 2, 2, 2], {0, 1, 2, 3}),
    ],
)
def test_the_ranks_that_save(layout: Layout, copies: int, hosts: list[int], writers: set[int]) -> None:
    chosen = layout.writers(copies, hosts)
    assert chosen == writers
    assert layout.covers(chosen, len(hosts))
