"""How a functional loop is left: what is saved then, with what `loop.keep` holds, and what is said if it is not."""

import inspect
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint

from ckptstore.api import Catalog
from ckptstore.catalog import reads
from ckptstore.errors import RefusedError, UsageError
from ckptstore.mindspore.loop import Loop, _is_at_break
from tests.mindspore.loops import Trained
from tests.mindspore.trainings import complaints, on_purpose

SELDOM = {"epochs": 4, "every": 100}

AT_END = (
    "nothing is saved after step 0: the exception came after loop.step in step 12, and maybe before the script "
    "had finished its changes to loop.keep and its random numbers at the end of an epoch; make them before loop.step, "
    "or call loop.save after them"
)


def before_step(left: str, step: int, why: str) -> str:
    return (
        f"nothing is saved after step 0: {left} before loop.step was called for step {step}, and {why}; call loop.step "
        "right after the line that updates, and leave the loop after that"
    )


def not_saved(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in complaints(caplog) if "nothing is saved" in each]


@pytest.fixture(autouse=True)
def _own_catalog(catalog: Catalog) -> None:
    """Every launch is in the catalog of the test."""


def saved(catalog: Catalog) -> list[tuple[int, str]]:
    return [(file.global_step, file.kind.value) for file in catalog.files("run")]


def keeps_at_epoch_ends(home: Path, last: int, leave: Callable[[Loop], object], **asked: Any) -> Loop:
    """Keeps something at the end of each epoch, after `loop.step`; leaves in step `last` before that."""
    trained = Trained()
    loop = trained.loop(home, **{**SELDOM, **asked})
    for batch in loop:
        loop.step(loss=trained.step(*batch))
        if loop.global_step == last and leave(loop):
            break
        if loop.ends_epoch:
            loop.keep["best"] = loop.global_step
    return loop


def test_a_break_saves_what_the_script_keeps_and_is_no_failure(tmp_path: Path, catalog: Catalog) -> None:
    def leave(loop: Loop) -> bool:
        loop.keep["why"] = "enough"
        return True

    loop = keeps_at_epoch_ends(tmp_path, 8, leave)
    assert saved(catalog) == [(8, "periodic")]
    with catalog.database.read() as connection:
        ends = reads.endings_of(connection, [loop.start.launch.key]).values()
    assert [each.error for each in ends] == [None]
    again = Trained().loop(tmp_path, **SELDOM)
    assert (again.global_step, again.keep) == (8, {"best": 6, "why": "enough"})


def test_a_loop_that_is_refused_as_it_begins_has_ended__before_no_end_was_recorded(
    tmp_path: Path, catalog: Catalog
) -> None:
    (tmp_path / "file").touch()
    loop = Trained().loop(tmp_path / "file")
    with pytest.raises(RefusedError, match="nothing can be saved to"):
        next(iter(loop))
    with catalog.database.read() as connection:
        ends = reads.endings_of(connection, [loop.start.launch.key]).values()
    assert [each.error for each in ends] == ["RefusedError"]


@pytest.mark.parametrize(("last", "kept"), [(8, [(8, "dying_gasp")]), (12, [])])
def test_an_exception_where_the_script_never_kept_anything_is_certain(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture, last: int, kept: list[tuple[int, str]]
) -> None:
    """In the middle of an epoch; at the end of one it may have come before what is kept there."""
    with pytest.raises(RuntimeError, match="on purpose"):
        keeps_at_epoch_ends(tmp_path, last, lambda _: on_purpose())
    assert saved(catalog) == kept
    assert not_saved(caplog) == ([] if kept else [AT_END])


@pytest.mark.parametrize("asks", [False, True])
def test_an_exception_behind_what_was_kept(tmp_path: Path, catalog: Catalog, *, asks: bool) -> None:
    """More may have been to keep, unless the script asked for the save."""

    def leave(loop: Loop) -> None:
        loop.keep["best"] = 0.25
        if asks:
            loop.save()
        on_purpose()

    with pytest.raises(RuntimeError, match="on purpose"):
        keeps_at_epoch_ends(tmp_path, 4, leave)
    assert saved(catalog) == ([(4, "dying_gasp")] if asks else [])
    assert Trained().loop(tmp_path, **SELDOM).keep == ({"best": 0.25} if asks else {})


def test_a_script_saves_when_it_likes(tmp_path: Path, catalog: Catalog) -> None:
    """The state has all of the body."""
    trained = Trained()
    loop = trained.loop(tmp_path, epochs=1, every=100)
    with pytest.raises(UsageError, match=r"loop\.save was called outside of the loop"):
        loop.save()
    for batch in loop:
        loop.step(loss=trained.step(*batch))
        if loop.global_step == 4:
            loop.save()
            loop.keep["best"] = 4
    with pytest.raises(UsageError, match=r"loop\.save was called outside of the loop"):
        loop.save()
    assert saved(catalog) == [(6, "periodic"), (4, "periodic")]
    assert Trained().loop(tmp_path, step=4, **SELDOM).keep == {"best": 4}


def test_early_stopping_as_the_guide_has_it(tmp_path: Path, catalog: Catalog) -> None:
    """Killed in the fourth epoch, it stops where it would have stopped; started again it trains nothing."""
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "early-stopping.md").read_text()
    code = guide.partition("```python\n")[2].partition("```")[0]
    done: list[int] = []
    errors = {6: 0.5, 12: 0.4, 18: 0.4, 24: 0.6, 30: 0.7}

    def start(*, dies: bool = False) -> Loop:
        trained = Trained()
        loop = trained.loop(tmp_path, epochs=9, every=100)

        def train_step(data: Any, label: Any) -> Any:
            done.append(loop.global_step + 1)
            if dies and loop.global_step == 20:
                raise SystemExit
            return trained.step(data, label)

        evaluate = lambda _: errors[loop.global_step]  # noqa: E731
        names = {**vars(trained), "loop": loop, "train_step": train_step, "evaluate": evaluate, "math": math}
        exec(code, names)  # noqa: S102 — the guide's own lines
        return loop

    with pytest.raises(SystemExit):
        start(dies=True)
    assert start().keep == {"best": 0.4, "waited": 3}
    assert start().global_step == 30
    assert done == [*range(1, 22), *range(21, 31)]
    assert saved(catalog)[0] == (30, "periodic")


@pytest.mark.parametrize("norm", [False, True])
def test_a_break_where_nothing_was_done_with_the_batch(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture, *, norm: bool
) -> None:
    """At the top of the body. With batch normalization nobody knows, and what was not saved before is named."""
    trained = Trained(norm=norm)
    loop = trained.loop(tmp_path, **SELDOM)
    for batch in loop:
        if loop.global_step == 7:
            break
        loop.step(loss=trained.step(*batch))
    assert saved(catalog) == ([] if norm else [(7, "periodic")])
    why = "averages of batch normalization may have changed"
    assert not_saved(caplog) == ([before_step("`break` came", 8, why)] if norm else [])


def test_a_key_that_is_set_right_before_a_break_at_the_top(tmp_path: Path, catalog: Catalog) -> None:
    """The state before it was saved, or restored; its parameters are still the same."""
    for first, names in ((0, ["why"]), (4, ["again", "why"])):
        trained = Trained()
        loop = trained.loop(tmp_path, **{**SELDOM, "every": 4})
        assert loop.global_step == first
        for batch in loop:
            if loop.global_step == 4:
                loop.keep["again" if first else "why"] = "enough"
                break
            loop.step(loss=trained.step(*batch))
        other = Trained().loop(tmp_path, **SELDOM)
        assert (other.global_step, sorted(other.keep)) == (4, names)
        assert other.start.launch.id != loop.start.launch.id
    assert saved(catalog) == [(4, "periodic"), (4, "periodic")]


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (None, "its update had begun"),
        (lambda of: mint.optim.SGD(of, lr=0.1, momentum=0.9), "an optimizer does not count its updates"),
    ],
)
@pytest.mark.parametrize("breaks", [False, True])
def test_left_before_a_step_was_told_of(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture, optimizer: Any, why: str, *, breaks: bool
) -> None:
    trained = Trained(optimizer)
    loop = trained.loop(tmp_path, **SELDOM)
    with suppress(RuntimeError):
        for batch in loop:
            loss = trained.step(*batch)
            if loop.global_step == 3:
                if breaks:
                    break
                on_purpose()
            loop.step(loss=loss)
    assert saved(catalog) == []
    assert not_saved(caplog) == [before_step("`break` came" if breaks else "the loop was left", 4, why)]


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({}, "parameters outside all optimizers were set"),
        ({"schedule": {}}, "schedule changed"),
        ({"draws": True}, "all random numbers were drawn; draw them before loop.step"),
    ],
)
@pytest.mark.parametrize("breaks", [False, True])
def test_what_may_come_after_a_step(
    tmp_path: Path, catalog: Catalog, caplog: pytest.LogCaptureFixture, others: Any, why: str, *, breaks: bool
) -> None:
    """An exception may have come before it; `break` says that the script is done."""
    trained = Trained()
    draws = others.pop("draws", False)
    if not others and not draws:
        trained.network.insert_param_to_cell("average", ms.Parameter(ms.Tensor(1.5), "average", requires_grad=False))
    named = {"others": {name: type("Schedule", (), {})() for name in others}} if others else {}
    loop = trained.loop(tmp_path, **SELDOM, **named)
    with suppress(RuntimeError):
        for batch in loop:
            loop.step(loss=trained.step(*batch))
            if loop.global_step == 3:
                if draws:
                    np.random.rand()
                if breaks:
                    break
                on_purpose()
    assert saved(catalog) == ([(3, "periodic")] if breaks else [])
    if not breaks:
        assert complaints(caplog)[-1].endswith(f"the exception came after loop.step in step 3, and maybe before {why}")


@pytest.mark.parametrize("in_thread", [next, lambda batches: batches.close()], ids=["goes on", "is closed"])
def test_a_loop_that_is_left_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_thread: Callable[[Any], object]
) -> None:
    """Only the main thread may set what a signal does: a SIGTERM that comes later ends the process as before."""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    trained = Trained()
    loop = trained.loop(tmp_path, epochs=1)
    batches = iter(loop)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            in_thread(batches)
        except BaseException as error:  # noqa: BLE001 — looked at below
            failures.append(error)

    for _ in range(6):
        batch = next(batches)
        loop.step(loss=trained.step(*batch))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    try:
        assert [each for each in failures if not isinstance(each, StopIteration)] == []
        killed: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "kill", lambda *told: killed.append(told))
        signal.raise_signal(signal.SIGTERM)
        assert killed == [(os.getpid(), signal.SIGTERM)]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Batches:
    """A generator that sees how it is left."""

    def __init__(self) -> None:
        self.was_at_break: bool | None = None

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(9)
        except GeneratorExit:
            self.was_at_break = _is_at_break(inspect.currentframe())
            raise


def shown(batches: Any) -> Iterator[int]:
    """As tqdm has it: a generator around another one."""
    try:
        for each in batches:
            yield each * 2
    finally:
        time.monotonic()


def breaks(around: Any, batches: Any) -> None:
    for _ in around(batches):
        with suppress(KeyError):
            break


def returns(around: Any, batches: Any) -> int:
    for each in around(batches):
        try:
            return int(bool(each))
        finally:
            time.monotonic()
    return 0


def raises(around: Any, batches: Any) -> None:
    for _ in around(batches):
        on_purpose()


def raises_and_goes_on(around: Any, batches: Any) -> None:
    try:
        for _ in around(batches):
            on_purpose()
    except RuntimeError:
        pass


def fails_in_a_loop_inside(around: Any, batches: Any) -> None:
    for _ in around(batches):
        for _ in map(on_purpose, "x"):
            pass


@pytest.mark.parametrize("around", [lambda each: each, enumerate, lambda each: zip(each, "ab", strict=False), shown])
@pytest.mark.parametrize("leave", [breaks, returns, raises, raises_and_goes_on, fails_in_a_loop_inside])
def test_break_is_told_from_an_exception(around: Callable[[Any], Any], leave: Callable[..., object]) -> None:
    batches = Batches()
    with suppress(RuntimeError, TypeError):
        leave(around, batches)
    assert batches.was_at_break is (leave in (breaks, returns))
