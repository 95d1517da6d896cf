"""Work on many files: on one thread while it is quick, on many if it waits for a disk or a network.

And work in portions, and on a thread of its own.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ckptstore.outside import ThreadPoolExecutor, os, queue, threading, time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

log = logging.getLogger("ckptstore")

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = 16
_TRIAL = 64  # items done here before their time is judged
_PORTION = 16  # items a task: handing over one alone costs more than most of them
_QUICK_SECONDS = 200e-6  # an item: what is in memory takes less, and threads would only wait for each other


def for_each(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    waits: bool = False,
    between: Callable[[], object] = lambda: None,
) -> list[Result]:
    """Call `work` with each item, perhaps on several threads; return the results in the order of the items.

    `waits`: the work is known to take long. `between` is called now and then, on the thread of the caller. Raises what
    these two raise.
    """
    results: list[Result] = []
    while not waits and len(results) < len(items):
        portion = items[len(results) : len(results) + _TRIAL]
        begin = time.perf_counter()
        results += [work(item) for item in portion]
        waits = time.perf_counter() - begin > _QUICK_SECONDS * len(portion)
        between()
    rest = [items[start : start + _PORTION] for start in range(len(results), len(items), _PORTION)]
    if rest:
        with ThreadPoolExecutor(_THREADS) as pool:
            for done in pool.map(lambda portion: [work(item) for item in portion], rest):
                results += done
                between()
    return results


def portions(items: Iterable[Item], most: int, weight: Callable[[Item], int]) -> Iterator[list[Item]]:
    """These items in lists, in their order: a list ends with the item by which its weight reaches `most`."""
    portion: list[Item] = []
    left = most
    for item in items:
        portion.append(item)
        left -= weight(item)
        if left <= 0:
            yield portion
            portion, left = [], most
    if portion:
        yield portion


def within(seconds: float, work: Callable[[], Result]) -> Result | None:
    """Call `work` on another thread; return its result, or None if it takes longer: it may wait for a hanging disk."""
    answers: queue.SimpleQueue[tuple[Result | None, Exception | None]] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put((work(), None))
        except Exception as error:  # noqa: BLE001 — raised again below
            answers.put((None, error))

    start_thread(answer, "ckptstore-look")
    try:
        found, failure = answers.get(timeout=seconds)
    except queue.Empty:
        return None
    if failure is not None:
        raise failure
    return found


ANSWER_SECONDS = 5.0
_looks: dict[str, tuple[float, threading.Event]] = {}
"""The looks at directories that have not ended: when each began, and what its end sets."""


def hanging(directories: Collection[str]) -> set[str]:
    """Those of these directories whose disks do not answer within 5 s. They are asked again when they have answered."""
    asked = {each: _looks.get(each) or _look(each) for each in directories}
    return {
        each
        for each, (begun, ended) in asked.items()
        if not ended.wait(max(0.0, begun + ANSWER_SECONDS - time.monotonic()))
    }


def _look(directory: str) -> tuple[float, threading.Event]:
    look = _looks[directory] = time.monotonic(), threading.Event()

    def ask() -> None:
        with suppress(OSError):
            os.stat(f"{directory.rstrip('/')}/.")
        _looks.pop(directory, None)
        look[1].set()

    if start_thread(ask, "ckptstore-look") is None:
        ask()
    return look


def start_thread(work: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a thread that does this work; log a warning and return None if the system allows no more threads."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("%s: its work waits", error)
        return None
    return thread
