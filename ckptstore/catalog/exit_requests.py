"""Which launches were asked to save and leave, and what each has saved since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.engine import clock
from ckptstore.catalog.tables import FILES, checkpoints, exit_requests, saves
from ckptstore.catalog.upserts import put
from ckptstore.core.model import FileState, Kind

if TYPE_CHECKING:
    from ckptstore.core.model import LaunchKey


def ask(connection: sa.Connection, key: LaunchKey, reason: str) -> None:
    """Ask a launch to save and leave. Asking again changes the reason."""
    put(connection, exit_requests, {"launch_id": key, "asked_at": clock(connection), "reason": reason})


def take_back(connection: sa.Connection, key: LaunchKey) -> bool:
    """Withdraw the request; return whether there was one."""
    return connection.execute(exit_requests.delete().where(exit_requests.c.launch_id == key)).rowcount > 0


def reason(connection: sa.Connection, key: LaunchKey) -> str | None:
    """The reason why a launch was asked to leave (empty: none was given); None if it was not asked."""
    return connection.execute(_REASON, {"own_launch": key}).scalar()


_REASON = sa.select(exit_requests.c.reason).where(exit_requests.c.launch_id == sa.bindparam("own_launch"))


def exit_step(connection: sa.Connection, key: LaunchKey) -> int | None:
    """The step after which a launch has left on request; None until a rank has saved at it."""
    query = sa.select(sa.func.max(saves.c.global_step)).select_from(FILES)
    of_exit = (saves.c.launch_id == key) & (saves.c.kind == Kind.GRACEFUL_EXIT.value)
    return connection.execute(query.where(of_exit, checkpoints.c.state == FileState.COMPLETE.value)).scalar()


def saved_at(connection: sa.Connection, key: LaunchKey, step: int) -> set[int]:
    """The ranks of a launch that have a complete file of a step."""
    query = sa.select(checkpoints.c.rank).select_from(FILES)
    chosen = (saves.c.launch_id == key) & (saves.c.global_step == step)
    return set(connection.execute(query.where(chosen, checkpoints.c.state == FileState.COMPLETE.value)).scalars())
