"""The picture of ranks and steps, and ranks as people write them."""

from dataclasses import replace

import pytest

from ckptstore.core.model import Observed, Rejection, RestorePlan
from ckptstore.core.picture import WIDTH, picture
from ckptstore.core.replicas import data_parallel, from_groups
from ckptstore.core.text import ranges
from ckptstore.resume.resolver import NOT_LINEAGE, judge
from tests.resume.builders import as_recorded, damaged, file, launch, state, whole_state


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((), ""), ((4,), "4"), ((3, 4, 5), "3-5"), ((9, 1, 0, 3, 4, 11, 10), "0-1, 3-4, 9-11"), ((1, 10, 11), "1, 10-11")],
)
def test_ranges(ranks: tuple[int, ...], text: str) -> None:
    assert ranges(ranks) == text


def test_every_rank_has_a_sign_and_the_chosen_state_says_so() -> None:
    of = launch(world_size=6, layout=from_groups([(0, 1), (2, 3)], 6, "stated"))
    newer = state(of, file(of, 0), file(of, 2, size=None), damaged(file(of, 4)))
    rejected = judge(newer, as_recorded(newer))
    older = whole_state(of, 5)
    chosen = judge(older, as_recorded(older))
    assert picture([rejected, chosen]) == [
        (
            "one sign for each of ranks 0 to 5: # its own file, + a replica's, "
            "~ being written, q quarantined, ? none recorded"
        ),
        "step 15  #+~?q?",
        "step  5  ###### chosen",
    ]


def test_a_wide_job_has_several_ranks_in_a_column_and_shows_the_worst() -> None:
    of = launch(world_size=1024)
    whole = whole_state(of, 15)
    seen = as_recorded(whole)
    seen[whole.files[500].path] = Observed(None)
    seen[whole.files[501].path] = Observed(1)
    legend, row = picture([judge(whole, seen)])
    assert legend == "one sign for each 16 of ranks 0 to 1023, that of the worst: # its own file, - gone, x damaged"
    assert row == "step 15  " + "#" * 31 + "x" + "#" * 32
    assert len(row.split()[-1]) == WIDTH


def test_states_of_which_no_rank_is_told_are_left_out() -> None:
    given_up = Rejection(launch="L1", global_step=9, kinds=(), reasons=(NOT_LINEAGE,))
    assert picture([given_up]) == []
    of = launch(world_size=2, layout=data_parallel(2))
    older = state(of, file(of, 1))
    plan = judge(older, as_recorded(older))
    assert isinstance(plan, RestorePlan)
    assert picture([given_up, plan]) == [
        ("one sign for each of ranks 0 to 1: # its own file, + a replica's"),
        "step 15  +# chosen",
    ]


def test_a_file_that_only_a_tier_has_is_not_called_its_own() -> None:
    plan = judge(whole_state(launch(world_size=2), 5), as_recorded(whole_state(launch(world_size=2), 5)))
    assert isinstance(plan, RestorePlan)
    assert picture([replace(plan, copies={plan.ranks[1].source.id: ()})]) == [
        "one sign for each of ranks 0 to 1: # its own file, t from a tier",
        "step 5  #t chosen",
    ]
