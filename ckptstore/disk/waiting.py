"""Work on many files: by itself while it is quick, on many threads where it waits for a disk or a network.

And work that goes on while others go on with theirs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from ckptstore.outside import ThreadPoolExecutor, queue, threading, time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    """What `work` returns for each item, in their order; it may run on several threads at once.

    `waits` says that it is known to take long; `between` is called now and then, on the thread of the caller. What they
    raise is raised here.
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


def within(seconds: float, work: Callable[[], Result]) -> Result | None:
    """What `work` returns, on another thread; None where that takes longer, and is left to itself: a disk may hang."""
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


def start_thread(work: Callable[[], object], name: str) -> threading.Thread | None:
    """A thread that does this work; None, which is said, where the system allows no more threads just now."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("%s: its work waits", error)
        return None
    return thread
