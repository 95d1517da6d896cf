"""Has something happen between the calls by which a directory changes as files move into the trash and out of it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from ckptstore.disk import trash

MOVES = ("rename", "unlink")
CHANGES = ("mkdir", "rename", "link", "unlink", "rmdir")


class _Calls:
    """`os`, with something done before or after each of these calls."""

    def __init__(self, names: tuple[str, ...], act: Callable[[], object], *, after: bool) -> None:
        self._names = names
        self._act = act
        self._after = after

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._watched(real) if name in self._names else real

    def _watched(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            if not self._after:
                self._act()
            real(*args, **options)
            if self._after:
                self._act()

        return call


@contextmanager
def before_each(names: tuple[str, ...], act: Callable[[], object]) -> Iterator[None]:
    """Act before each of these calls; what it raises ends the call."""
    with mock.patch.object(trash, "os", _Calls(names, act, after=False)):
        yield


@contextmanager
def at(number: int, names: tuple[str, ...], act: Callable[[], object], *, after: bool = False) -> Iterator[None]:
    """Act before, or after, one of these calls: that of this number, from 1."""
    count = 0

    def once() -> None:
        nonlocal count
        count += 1
        if count == number:
            act()

    with mock.patch.object(trash, "os", _Calls(names, once, after=after)):
        yield


@contextmanager
def failing_after(calls: int, names: tuple[str, ...], error: BaseException) -> Iterator[None]:
    """So many of these calls are done; each further one raises an error."""
    left = calls

    def fail() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise error

    with before_each(names, fail):
        yield
