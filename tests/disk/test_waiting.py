"""Work on many files: the same results, whoever does it."""

import threading
from itertools import count
from types import SimpleNamespace

import pytest

from ckptstore.disk import waiting


def slow_clock(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Each look at the clock finds it that much later."""
    ticks = count(0, seconds)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))


def threads(items: int, *, waits: bool = False) -> set[str]:
    names: set[str] = set()

    def work(item: int) -> int:
        names.add(threading.current_thread().name)
        return item * item

    assert waiting.for_each(work, range(items), waits=waits) == [item * item for item in range(items)]
    return names


def test_quick_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_clock(monkeypatch, 0)
    assert threads(1000) == {threading.current_thread().name}
    assert threads(0) == set()


def test_work_that_waits_is_handed_over_after_the_first_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_clock(monkeypatch, 1)
    here = threading.current_thread().name
    assert here in threads(1000)
    assert len(threads(1000)) > 1
    assert threads(64) == {here}
    assert here not in threads(1000, waits=True)


@pytest.mark.parametrize("seconds", [0, 1])
def test_the_caller_may_do_something_between(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    slow_clock(monkeypatch, seconds)
    names: list[str] = []
    waiting.for_each(abs, range(1000), between=lambda: names.append(threading.current_thread().name))
    assert set(names) == {threading.current_thread().name}
    assert len(names) >= 1000 // 64


def test_what_it_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_clock(monkeypatch, 1)
    with pytest.raises(ZeroDivisionError):
        waiting.for_each(lambda item: 1 / (500 - item), range(1000))
