"""Records which receiver was notified of which fact, and which watcher holds it: several watchers notify only once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.engine import clock
from ckptstore.catalog.tables import notifications
from ckptstore.catalog.upserts import insert_if_new

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta


def not_told(connection: sa.Connection, receiver: str, facts: Collection[str]) -> set[str]:
    """The facts that the receiver was not notified of yet, and that no watcher holds at the moment."""
    if not facts:
        return set()
    asked = {"own_receiver": receiver, "own_facts": list(facts), "own_now": clock(connection)}
    return set(facts) - set(connection.execute(_TOLD, asked).scalars())


def hold(connection: sa.Connection, receiver: str, fact: str, *, kind: str, owner: str, length: timedelta) -> bool:
    """Reserve a fact for `owner` for this length of time; return whether `owner` may send it now."""
    now = clock(connection)
    row = {"receiver": receiver, "fact": fact, "kind": kind, "owner": owner, "held_until": now + length}
    if insert_if_new(connection, notifications, row):
        return True
    asked = {"own_receiver": receiver, "own_fact": fact, "own_owner": owner, "own_now": now}
    return connection.execute(_HOLD, {**asked, "owner": owner, "held_until": now + length}).rowcount > 0


def note_told(connection: sa.Connection, receiver: str, fact: str) -> None:
    """Record that the receiver accepted the fact."""
    connection.execute(_NOTE, {"own_receiver": receiver, "own_fact": fact, "told_at": clock(connection)})


def put_off(connection: sa.Connection, receiver: str, fact: str, owner: str, length: timedelta) -> None:
    """Record that a fact could not be sent: any watcher may try again after `length`."""
    asked = {"own_receiver": receiver, "own_fact": fact, "own_owner": owner}
    connection.execute(_PUT_OFF, {**asked, "held_until": clock(connection) + length})


def told(connection: sa.Connection, receiver: str, kind: str) -> set[str]:
    """The facts of a kind that the receiver accepted."""
    return set(connection.execute(_TOLD_OF_KIND, {"own_receiver": receiver, "own_kind": kind}).scalars())


def end(connection: sa.Connection, receiver: str, facts: Collection[str], length: timedelta) -> None:
    """Record that facts are no longer true: if one is true again, the receiver is notified again.

    But not earlier than `length` after it accepted the fact.
    """
    asked = {"own_receiver": receiver, "own_facts": list(facts)}
    for fact, at in connection.execute(_TOLD_AT, asked).all():
        ended = {"own_receiver": receiver, "own_fact": fact, "told_at": None, "held_until": at + length}
        connection.execute(_NOTE, ended)


_IS_OF_RECEIVER = notifications.c.receiver == sa.bindparam("own_receiver")
_IS_FACT = _IS_OF_RECEIVER & (notifications.c.fact == sa.bindparam("own_fact"))
_IS_TOLD = notifications.c.told_at.is_not(None)
_IS_HELD = notifications.c.held_until > sa.bindparam("own_now")
_IS_OWN = notifications.c.owner == sa.bindparam("own_owner")
_ARE_FACTS = any_of(notifications.c.fact, "own_facts")
_TOLD = sa.select(notifications.c.fact).where(_IS_OF_RECEIVER, _ARE_FACTS, sa.or_(_IS_TOLD, _IS_HELD))
_HOLD = notifications.update().where(_IS_FACT, sa.not_(_IS_TOLD), sa.or_(sa.not_(_IS_HELD), _IS_OWN))
_NOTE = notifications.update().where(_IS_FACT)
_PUT_OFF = notifications.update().where(_IS_FACT, _IS_OWN, sa.not_(_IS_TOLD))
_TOLD_OF_KIND = sa.select(notifications.c.fact).where(
    _IS_OF_RECEIVER, notifications.c.kind == sa.bindparam("own_kind"), _IS_TOLD
)
_TOLD_AT = sa.select(notifications.c.fact, notifications.c.told_at).where(_IS_OF_RECEIVER, _ARE_FACTS, _IS_TOLD)
