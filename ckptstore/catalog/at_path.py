"""What else the catalog has of a path, when a record of it is written: a path holds one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from ckptstore.catalog.given_up import IS_ANOTHER, OWN_STATE, of_another
from ckptstore.catalog.tables import checkpoints, launches, saves
from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.core.model import Checkpoint

_ID: sa.BindParameter[str] = sa.bindparam("own_id")
_LAUNCHES = launches.alias()
_IS_OF_OWN_RUN = sa.exists().where(
    saves.c.id == checkpoints.c.save_id,
    launches.c.id == saves.c.launch_id,
    launches.c.run_id == _LAUNCHES.c.run_id,
    _LAUNCHES.c.id == sa.bindparam("own_launch"),
)
_IS_OVERWRITTEN = (
    (checkpoints.c.id != _ID)
    & (checkpoints.c.state != FileState.MOVED.value)
    & (checkpoints.c.state != FileState.TRASHED.value)  # `not_in` is for one row at a time
    & _IS_OF_OWN_RUN
)
_AT_PATH = (
    checkpoints.update()
    .where(checkpoints.c.path == sa.bindparam("own_path"), _IS_OVERWRITTEN | IS_ANOTHER)
    .values(state=sa.case((checkpoints.c.id == _ID, OWN_STATE), else_=FileState.MISSING.value))
)


def settle(connection: sa.Connection, files: Sequence[Checkpoint]) -> None:
    """Mark what the run of each file has recorded of its path under another step: that is gone. In one statement.

    Not what other runs have: their file may be this one, and nobody else would know that they need it. To be called
    after the upsert of these records, see `given_up.set_if_another`.
    """
    told = [{"own_path": file.path, "own_launch": file.launch, **of_another(file)} for file in files]
    connection.execute(_AT_PATH, told)
