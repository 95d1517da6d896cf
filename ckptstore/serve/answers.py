"""A cache of answers of the catalog. A thread makes each answer once, for all requests of the next moment."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, TypeVar

from ckptstore.core.hints import Command
from ckptstore.errors import CatalogBusyError
from ckptstore.outside import ThreadPoolExecutor, time

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

KEPT_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
_THREADS, _THREADS_OF_DISKS = 4, 8
_OF_DISKS = ("findings", "gc", "history", "metrics", "resolution", "state")
"""The questions that look at disks, which may hang for hours: others must not wait for a thread of theirs."""
_TIMES_AS_LONG, _OUTDATED = 10, 3


class Answers:
    """A cache of answers: requests with the same question share one query, so many readers load the catalog like one.

    An answer is valid for a second, or for ten times as long as it took to make; an error for a second. Then it is made
    anew; until the new one is there, requests get the old one, up to three times that age. A question that is not
    answered within 5 s raises `CatalogBusyError`; its query goes on, and no second query for the same question is
    started.
    """

    def __init__(self, *, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._of_catalog = ThreadPoolExecutor(_THREADS, thread_name_prefix="ckptstore-serve")
        self._of_disks = ThreadPoolExecutor(_THREADS_OF_DISKS, thread_name_prefix="ckptstore-disks")
        self._made: dict[Hashable, _Answer] = {}

    async def get(
        self, question: Hashable, work: Callable[[], T], *, patience: float | None = None, valid: bool = False
    ) -> T:
        """Return or raise the result of `work`, or the cached answer to `question` if there is one.

        `valid`: wait for the new answer if the cached one is no longer valid.
        """
        seconds = self._patience if patience is None else patience
        found = self._current(question, work)
        answer: T = await ((valid and found.next) or found).within(seconds)
        if found.is_outdated:  # it became outdated while this request waited for it
            answer = await self._current(question, work).within(seconds)
        return answer

    def outdate(self, about: str, since: Hashable) -> None:
        """Drop the answers about a run that were begun before the current answer to the question `since`."""
        known = self._made.get(since)
        for question, answer in self._made.items():
            is_about_it = isinstance(question, tuple) and question[1] == about
            for each in (answer, answer.next):
                if is_about_it and each is not None and known is not None and each.begun_at < known.begun_at:
                    each.is_outdated = True

    def _current(self, question: Hashable, work: Callable[[], Any]) -> _Answer:
        name = question[0] if isinstance(question, tuple) else question
        threads = self._of_disks if name in _OF_DISKS else self._of_catalog
        found = self._made.get(question)
        if found is not None and found.next is not None and (found.next.is_done or found.age > _OUTDATED):
            found = self._made[question] = found.next
        if found is None or found.age > _OUTDATED:
            self._made = {each: answer for each, answer in self._made.items() if answer.age <= _OUTDATED}
            found = self._made[question] = _Answer(threads, work)
        elif found.age > 1 and found.next is None:
            found.next = _Answer(threads, work)
        return found

    def forget(self) -> None:
        """Drop every answer. To be called after a change."""
        self._made.clear()

    def close(self) -> None:
        """Let each thread end after its current query."""
        for threads in (self._of_catalog, self._of_disks):
            threads.shutdown(wait=False, cancel_futures=True)


class _Answer:
    def __init__(self, threads: ThreadPoolExecutor, work: Callable[[], Any]) -> None:
        self.next: _Answer | None = None  # the newer answer that is being made to replace this one
        self.is_outdated = False
        self.begun_at = time.monotonic()
        self._done_at: float | None = None
        self._has_failed = False
        self._future = asyncio.get_running_loop().run_in_executor(threads, work)
        self._future.add_done_callback(self._note)

    @property
    def is_done(self) -> bool:
        """Whether the answer is complete."""
        return self._done_at is not None

    @property
    def age(self) -> float:
        """The age of the answer, divided by the time for which it is valid; 0 while it is being made."""
        if self._done_at is None:
            return 0
        if self.is_outdated:
            return math.inf
        took = 0.0 if self._has_failed else self._done_at - self.begun_at
        counts_for = max(KEPT_SECONDS, _TIMES_AS_LONG * took)
        return (time.monotonic() - self._done_at) / counts_for

    async def within(self, seconds: float) -> Any:
        """Return the answer, or raise its error. Raises `CatalogBusyError` if there is no answer within `seconds`."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._future), seconds)
        except asyncio.TimeoutError:
            raise CatalogBusyError(
                f"the catalog or a disk did not answer within {seconds:g} s",
                f"try again; {Command('doctor')} says more",
            ) from None

    def _note(self, future: asyncio.Future[Any]) -> None:
        self._done_at = time.monotonic()
        if not future.cancelled():
            # This also marks it as seen: `within` raises it, and asyncio must not log it.
            self._has_failed = future.exception() is not None
