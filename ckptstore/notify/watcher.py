"""Looks for facts at regular intervals, and reports each one to a receiver once."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ckptstore.catalog import notifications
from ckptstore.disk.waiting import start_thread
from ckptstore.errors import CkptstoreError
from ckptstore.notify.facts import KINDS, look
from ckptstore.outside import threading, time, token_hex, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.notify.facts import Notice
    from ckptstore.notify.receivers import Failure, Receiver

T = TypeVar("T")

log = logging.getLogger("ckptstore")

EVERY_SECONDS = 60.0
"""The time between two looks."""

PAUSES_SECONDS = (1.0, 4.0)
"""The pauses before the second and the third try, if the receiver does not answer."""

_LONGEST_PAUSE_SECONDS = 600.0
_HOLD = timedelta(minutes=5)  # longer than all tries take
_REFUSED_FOR = timedelta(hours=1)
_TOLD_AT_MOST_EVERY = timedelta(hours=1)
_END_SECONDS = 5.0


@dataclass(frozen=True)
class Outcome:
    """The result of one look: the notices that the receiver accepted, and the others with the reason."""

    told: Sequence[Notice]
    failed: Sequence[tuple[Notice, str]]


class Watcher:
    """Sends facts of some kinds to a receiver: `look` once, or from `begin` to `end` on a thread of its own.

    Several watchers may watch one catalog: only one of them sends each fact. A fact is sent twice only if a watcher
    dies after it sent the fact and before it recorded this. A receiver that does not answer is named once in the log.
    The next try comes after a pause, which grows to ten minutes.
    """

    def __init__(
        self,
        database: Database,
        receiver: Receiver,
        kinds: Collection[str] = KINDS,
        *,
        every: float = EVERY_SECONDS,
        pauses: Sequence[float] = PAUSES_SECONDS,
        on_told: Callable[[Notice], None] = lambda _: None,
    ) -> None:
        self._database, self._receiver, self._kinds = database, receiver, kinds
        self._every, self._pauses, self._on_told = every, pauses, on_told
        self._owner = token_hex(16)
        self._ended, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""
        self._pause = every
        self._not_before = 0.0

    def begin(self) -> None:
        """Start a thread that watches."""
        if self._thread is None:
            self._ended.clear()
            self._over.clear()
            self._thread = start_thread(self._watch_to_the_end, "ckptstore-watch")

    def wait(self) -> None:
        """Wait for the end of the thread; watch here if the system allows no more threads."""
        if self._thread is None:
            self.watch()
        else:
            self._over.wait()  # Python takes a thread for ended if a signal interrupts `join`

    def end(self) -> None:
        """Stop the thread after the current notice. Wait for it, 5 s at most."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)
            self._thread = None

    def watch(self) -> None:
        """Look at regular intervals, until `end`. If the catalog cannot be used, one warning says so."""
        is_away = False
        while not self._ended.is_set():
            try:
                if time.monotonic() >= self._not_before:
                    self.look()
                is_away = False
            except CkptstoreError as error:
                if not is_away:
                    log.warning("watch: %s; the next look tries again", error.message)
                is_away = True
            self._ended.wait(self._every)

    def _watch_to_the_end(self) -> None:
        try:
            self.watch()
        finally:
            self._over.set()

    def look(self, now: datetime | None = None) -> Outcome:
        """Send the facts that are true now and were not sent yet. Raises `CatalogUnavailableError`."""
        seen = look(self._database, self._kinds, now or utc_now())
        receiver = self._receiver.id
        over: set[str] = set()
        with self._database.read() as connection:
            for kind in self._kinds:
                over |= seen.over(kind, notifications.told(connection, receiver, kind))
            new = notifications.not_told(connection, receiver, [notice.id for notice in seen.notices])
        if over:
            self._database.in_write(
                lambda connection: notifications.end(connection, receiver, over, _TOLD_AT_MOST_EVERY)
            )
        told: list[Notice] = []
        failed: list[tuple[Notice, str]] = []
        for notice in seen.notices:
            if notice.id not in new or self._ended.is_set():
                continue
            if not self._record(notifications.hold, notice, kind=notice.kind, owner=self._owner, length=_HOLD):
                continue
            failure = self._send(notice)
            if failure is None:
                self._record(notifications.note_told, notice)
                told.append(notice)
                self._on_told(notice)
                continue
            failed.append((notice, failure.reason))
            length = timedelta(0) if failure.may_pass else _REFUSED_FOR
            self._record(notifications.put_off, notice, owner=self._owner, length=length)
            if failure.may_pass:
                break  # the other notices would fail in the same way
        return Outcome(told, failed)

    def _send(self, notice: Notice) -> Failure | None:
        body = json.dumps(as_dict(notice, self._database.name)).encode()
        failure = self._receiver.send(body)
        for pause in self._pauses:
            if failure is None or not failure.may_pass or self._ended.wait(pause):
                break
            failure = self._receiver.send(body)
        self._say(notice, failure)
        return failure

    def _say(self, notice: Notice, failure: Failure | None) -> None:
        """Log once that a receiver fails, and once that it works again."""
        if failure is None:
            if self._trouble:
                log.warning("watch: %s accepts notices again", self._receiver.name)
            self._trouble, self._pause, self._not_before = "", self._every, 0.0
            return
        if not self._trouble:
            what = f"{notice.kind} of run {notice.run!r}"
            log.warning("watch: %s did not take %s: %s; it is tried again", self._receiver.name, what, failure.reason)
        self._trouble = failure.reason
        if failure.may_pass:
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _record(self, change: Callable[..., T], notice: Notice, **more: Any) -> T:
        return self._database.in_write(partial(change, receiver=self._receiver.id, fact=notice.id, **more))


def as_dict(notice: Notice, catalog: str) -> dict[str, str]:
    """A notice as it is posted. `text` is for receivers that show one line, such as chat programs."""
    hint = f" -> {notice.hint}" if notice.hint else ""
    return {
        "id": notice.id,
        "kind": notice.kind,
        "run": notice.run,
        "status": notice.status.value,
        "detail": notice.detail,
        "hint": notice.hint,
        "text": f"run {notice.run}: {notice.kind}: {notice.detail}{hint}",
        "catalog": catalog,
    }
