"""Leases for copying: of several processes that could copy an object to a tier, only the one with the lease does.

Files of several ranks with the same name and the same bytes share one object, and so its lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.tables import copying
from ckptstore.catalog.upserts import insert_if_new
from ckptstore.core.copy_keys import key_of
from ckptstore.core.ids import derived_id

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
    """Take the lease to copy a file to a tier, up to `until`; return whether `process` has it now.

    It has not if there is a lease that has not expired, and whose process may be alive.
    """
    asked = _object(file, tier)
    row = connection.execute(_LEASE, asked).one_or_none()
    if row is None:
        new = {"object_id": asked["own_object"], "tier_id": tier.id, "launch_id": file.launch_key}
        return insert_if_new(connection, copying, {**new, "process": process, "expires_at": until})
    if row.expires_at > now and not is_dead(row.process):
        return False
    return _put(connection, asked, row.process, process=process, expires_at=until)


def renew(connection: sa.Connection, file: Checkpoint, tier: Tier, process: str, *, until: datetime) -> bool:
    """Extend the lease up to `until`; False if another process has taken it over."""
    return _put(connection, _object(file, tier), process, expires_at=until)


def end(connection: sa.Connection, file: Checkpoint, tier: Tier, process: str) -> None:
    """End the lease: the process has copied the file, or given up."""
    connection.execute(_END, {**_object(file, tier), "own_process": process})


def _object(file: Checkpoint, tier: Tier) -> dict[str, str]:
    return {"own_object": derived_id(key_of(file)), "own_tier": tier.id}


def _put(connection: sa.Connection, asked: dict[str, str], holder: str, **values: object) -> bool:
    return connection.execute(_SET, {**asked, "own_process": holder, **values}).rowcount == 1


_OF = sa.and_(copying.c.object_id == sa.bindparam("own_object"), copying.c.tier_id == sa.bindparam("own_tier"))
_HELD = sa.and_(_OF, copying.c.process == sa.bindparam("own_process"))
_LEASE = sa.select(copying.c.process, copying.c.expires_at).where(_OF)
_SET, _END = copying.update().where(_HELD), copying.delete().where(_HELD)
