"""Leases for copying: of several processes that could copy a file to a tier, only the one with the lease does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.tables import copying
from ckptstore.catalog.upserts import insert_if_new

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ckptstore.core.copies import Tier
    from ckptstore.core.model import Checkpoint


def take(
    connection: sa.Connection,
    file: Checkpoint,
    tier: Tier,
    process: str,
    *,
    now: datetime,
    until: datetime,
    is_dead: Callable[[str], bool],
) -> bool:
    """Let a process copy a file to a tier until then; whether it may: no other one that may live does so now."""
    asked = {"own_file": file.id, "own_tier": tier.id}
    row = connection.execute(_LEASE, asked).one_or_none()
    if row is None:
        new = {"checkpoint_id": file.id, "tier_id": tier.id, "launch_id": file.launch_key}
        return insert_if_new(connection, copying, {**new, "process": process, "expires_at": until})
    if row.expires_at > now and not is_dead(row.process):
        return False
    return _put(connection, asked, row.process, process=process, expires_at=until)


def renew(connection: sa.Connection, file: Checkpoint, tier: Tier, process: str, *, until: datetime) -> bool:
    """Extend the lease until then; False if another process has taken the file over."""
    return _put(connection, {"own_file": file.id, "own_tier": tier.id}, process, expires_at=until)


def end(connection: sa.Connection, file: Checkpoint, tier: Tier, process: str) -> None:
    """It has ended, however it did."""
    connection.execute(_END, {"own_file": file.id, "own_tier": tier.id, "own_process": process})


def _put(connection: sa.Connection, asked: dict[str, str], holder: str, **values: object) -> bool:
    return connection.execute(_SET, {**asked, "own_process": holder, **values}).rowcount == 1


_OF = sa.and_(copying.c.checkpoint_id == sa.bindparam("own_file"), copying.c.tier_id == sa.bindparam("own_tier"))
_HELD = sa.and_(_OF, copying.c.process == sa.bindparam("own_process"))
_LEASE = sa.select(copying.c.process, copying.c.expires_at).where(_OF)
_SET, _END = copying.update().where(_HELD), copying.delete().where(_HELD)
