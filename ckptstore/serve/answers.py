"""Answers of the catalog for many who ask: each is made once, by a thread, and kept for a second."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from ckptstore.errors import CatalogBusyError
from ckptstore.outside import ThreadPoolExecutor, time

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

KEPT_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
_THREADS = 8


class Answers:
    """Whoever asks for the same while it is being made, or within a second after, gets the same answer.

    So many readers are one to the catalog. A question that is not answered within 5 s raises `CatalogBusyError`; the
    thread that asks goes on, and no other asks the same meanwhile.
    """

    def __init__(self, *, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ckptstore-serve")
        self._made: dict[Hashable, _Answer] = {}

    async def get(self, question: Hashable, work: Callable[[], T]) -> T:
        """What `work` returns, or raises; it is not asked where the answer to `question` is there."""
        found = self._made.get(question)
        if found is None or found.is_old():
            self._forget_old()
            found = self._made[question] = _Answer(self._threads, work)
        answer: T = await found.within(self._patience)
        return answer

    def close(self) -> None:
        """Let the threads end when they have finished what they do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _forget_old(self) -> None:
        self._made = {question: answer for question, answer in self._made.items() if not answer.is_old()}


class _Answer:
    def __init__(self, threads: ThreadPoolExecutor, work: Callable[[], Any]) -> None:
        self._future = asyncio.get_running_loop().run_in_executor(threads, work)
        self._future.add_done_callback(self._note)
        self._done_at: float | None = None

    def is_old(self) -> bool:
        return self._done_at is not None and time.monotonic() - self._done_at > KEPT_SECONDS

    async def within(self, seconds: float) -> Any:
        try:
            return await asyncio.wait_for(asyncio.shield(self._future), seconds)
        except asyncio.TimeoutError:
            raise CatalogBusyError(
                f"the catalog did not answer within {seconds:g} s", "try again; ckptstore doctor says more"
            ) from None

    def _note(self, future: asyncio.Future[Any]) -> None:
        self._done_at = time.monotonic()
        if not future.cancelled():
            future.exception()  # it is told to who asked
