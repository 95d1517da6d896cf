"""Records of files that retention has given up, when they are written again.

Such a file may be where it was still, and be registered again: late, twice, or from a journal. It goes all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ckptstore.catalog.tables import checkpoints, trash
from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.model import Checkpoint


def state_but_trashed(statement: Any) -> sa.ColumnElement[str]:
    """The state that an upsert writes: what retention has given up stays so, see `set_if_another`."""
    own, other = checkpoints.c.state, statement.excluded.state
    return sa.case((own == FileState.TRASHED.value, own), else_=other)


def set_if_another(connection: sa.Connection, files: Iterable[Checkpoint]) -> None:
    """Set the state of those whose record is of a file that retention has given up, and that are another file.

    To be called after the upsert of these records, which has waited for who gives them up: only a later statement sees
    what that one wrote.
    """
    connection.execute(_ANOTHER, [of_another(file) for file in files])


def of_another(file: Checkpoint) -> dict[str, Any]:
    """What `IS_ANOTHER` and `OWN_STATE` ask for of a file. One that is being written is not known to be another."""
    is_known = file.state is not FileState.IN_PROGRESS
    return {
        "own_id": file.id,
        "own_state": file.state.value,
        "own_size": file.size,
        "own_mtime_ns": file.mtime_ns if is_known else None,
    }


_MTIME_NS = sa.bindparam("own_mtime_ns", type_=sa.BigInteger)

OWN_STATE = sa.bindparam("own_state", type_=sa.String)
IS_ANOTHER = (
    (checkpoints.c.id == sa.bindparam("own_id"))
    & (checkpoints.c.state == FileState.TRASHED.value)
    & _MTIME_NS.is_not(None)
    & ~sa.exists().where(
        trash.c.checkpoint_id == checkpoints.c.id,
        trash.c.size == sa.bindparam("own_size"),
        trash.c.mtime_ns == _MTIME_NS,
    )
)
"""Whether a record is of a file that retention has given up, and what is recorded now is another one.

The file that was given up is told by what its row says of it, as by whoever moves it.
"""

_ANOTHER = checkpoints.update().where(IS_ANOTHER).values(state=OWN_STATE)
