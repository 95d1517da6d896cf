"""Where a state stands in the data when steps change: a table of what is refused, and dealing out real samples."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.core.model import Launch
from ckptstore.resume.position import NoPosition, first_step, other_data, shift
from tests.resume.builders import launch


def paced(world: int, steps: int | None, batch: int | None = 8, shards: int | None = -1) -> Launch:
    """A launch of so many ranks; its data is dealt out to all of them, unless another number of shards is given."""
    return replace(
        launch(world_size=world), steps_per_epoch=steps, batch_size=batch, shards=world if shards == -1 else shards
    )


@pytest.mark.parametrize(
    ("step", "saved", "now", "expected"),
    [
        (17, paced(2, 10), paced(2, 10), 17),
        (7, paced(2, 5), paced(1, 10), 14),
        (14, paced(1, 10), paced(2, 5), 7),
        (12, paced(8, 10), paced(4, 20), 24),
        (4, paced(1, 10), paced(1, 20, batch=4), 8),
        (4, paced(1, 10, shards=None), paced(1, 20, batch=4, shards=None), 8),  # as many ranks: the same shards
        (6, paced(2, 10, batch=8), paced(4, 10, batch=4), 6),
        (15, paced(2, 10, shards=1), paced(4, 10, shards=1), 15),  # every rank reads everything
        (20, paced(2, 10, shards=None), paced(4, 5, shards=None), 10),  # whole epochs are whole epochs
        (20, paced(2, 10, batch=None), paced(2, 5, batch=None), 10),
        (20, paced(2, 10), paced(3, 6), 12),  # 160 samples, 144 and a rest that is left out
        (17, paced(2, None), paced(2, 10), 17),  # nothing says that anything changed
        (17, paced(2, 10), paced(3, None), 17),  # nothing is asked of the data
        (17, paced(2, 10, batch=None), paced(2, 10), 17),
        (3, paced(1, 3, batch=3), paced(1, 6, batch=1), 6),  # 7 samples may be 3 steps of 3, the last one partial
        (6, paced(1, 6, batch=1), paced(1, 3, batch=3), 3),
    ],
)
def test_a_place(step: int, saved: Launch, now: Launch, expected: int) -> None:
    assert first_step(step, saved, now) == expected


@pytest.mark.parametrize(
    ("step", "saved", "now", "why"),
    [
        (17, paced(1, 10), paced(2, 5), "the 56 samples already trained in that epoch do not divide into steps of 16"),
        (1, paced(1, 10), paced(2, 5), "the 8 samples"),
        (13, paced(2, 10), paced(3, 6), "an epoch had 160 samples, now it has 144, and the rest of a started epoch"),
        (3, paced(2, 10), paced(3, 6), "rest of a started epoch"),
        (
            11,
            paced(1, 10),
            paced(1, 20),
            "an epoch had 10 steps, now it has 20; an epoch had 80 samples, now it has 160",
        ),
        (17, paced(2, 10, shards=None), paced(4, 5, shards=None), "is not known for both"),
        (17, paced(2, 10, shards=None), paced(4, 10, shards=None), "is not known for both"),
        (17, paced(2, 10, batch=None), paced(2, 20), "is not known for both"),
        (17, paced(2, 10, shards=2), paced(2, 5, batch=16, shards=None), "is not known for both"),
        (17, paced(2, None), paced(1, 10), "saved by 2 ranks, and its number of steps per epoch is not known"),
        (
            1,
            paced(1, 3, batch=10),
            paced(1, 3, batch=11),
            "rest of a started epoch",
        ),  # as many steps are not the same steps
        (3, paced(2, 10), paced(4, 10, batch=5), "it is not the same data"),
        (2, paced(1, 3, batch=3), paced(1, 2, batch=2), "it is not the same data"),  # 7 samples at least, 5 at most
        (1, paced(1, 2, batch=2), paced(1, 3, batch=3), "it is not the same data"),
        (
            3,
            paced(2, 10, None, None),
            paced(4, 10, None, None),
            "2 ranks took 10 steps an epoch, now 4 ranks take",
        ),
        (3, paced(2, 10, None, None), paced(1, 10, None, None), "now 1 rank takes 10; the number of samples"),
    ],
)
def test_no_place(step: int, saved: Launch, now: Launch, why: str) -> None:
    found = first_step(step, saved, now)
    assert isinstance(found, NoPosition)
    assert why in found.reason


@pytest.mark.parametrize("now", [paced(1, 12), paced(1, 8), paced(2, 10)], ids=["grew", "less", "not dealt out"])
def test_at_the_end_of_an_epoch_there_is_a_way_on_with_other_data(now: Launch) -> None:
    saved = paced(1, 10)
    assert first_step(20, saved, now) == 2 * (now.steps_per_epoch or 0)
    assert "it is not the same data" in other_data(saved, now)
    assert other_data(saved, paced(1, 5, batch=16)) == other_data(saved, saved) == ""


def test_as_many_steps_of_more_samples_may_be_of_the_same_data() -> None:
    """13 to 15 samples are 3 steps of 4, the rest left out, and 3 steps of 6, the last one partial."""
    four, six = paced(1, 3, batch=4), paced(1, 3, batch=6)
    assert other_data(four, six) == other_data(six, four) == ""


def dealt(samples: int, world: int, batch: int, *, drop: bool) -> list[set[int]]:
    """What every step of an epoch takes on all ranks: each gets every nth sample, at the end some once more."""
    share = ceil(samples / world)
    taken = [[(place * world + rank) % samples for place in range(share)] for rank in range(world)]
    steps = share // batch if drop else ceil(share / batch)
    return [{one for rank in taken for one in rank[step * batch : (step + 1) * batch]} for step in range(steps)]


@given(
    samples=st.integers(1, 60),
    worlds=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    batches=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    leftover=st.sampled_from(["dropped", "kept"]),
    data=st.data(),
)
def test_the_samples_before_it_are_the_ones_that_were_consumed(
    samples: int, worlds: tuple[int, int], batches: tuple[int, int], leftover: str, data: st.DataObject
) -> None:
    before, after = (dealt(samples, *each, drop=leftover == "dropped") for each in zip(worlds, batches, strict=True))
    if not before or not after:
        return
    step = data.draw(st.integers(1, 3 * len(before)))
    saved, now = (
        paced(world, len(steps), batch) for world, steps, batch in zip(worlds, (before, after), batches, strict=True)
    )
    found = first_step(step, saved, now)
    epochs, rest = divmod(step, len(before))
    if isinstance(found, NoPosition):
        assert rest
        return
    assert found // len(after) == epochs
    done = set[int]().union(*before[:rest])
    assert set[int]().union(*after[: found % len(after)]) == done


def test_the_optimizer_counts_on_through_every_change() -> None:
    """Two ranks to step 8, one rank from there as 16 to 20, two again from 10: 12 updates at step 10 of the last."""
    first = launch("L1", 1)
    second = replace(launch("L2", 2, parent=("L1", 8)), start_step=16)
    third = replace(launch("L3", 3, parent=("L2", 20)), start_step=10)
    known = {each.id: each for each in (first, second, third)}
    assert [shift(each, known) for each in (first, second, third)] == [0, 8, -2]
    assert shift(launch("L4", 4, parent=("L3", 12)), known) == -2  # of as many steps an epoch
    assert shift(replace(third, parent="gone"), known) == -10
    assert shift(replace(third, parent="L3"), known) == -10  # never in a circle
