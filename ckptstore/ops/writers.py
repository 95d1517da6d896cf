"""Who writes which journals: a rank its own, who speaks for others shared ones."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.ops.ledger import Ledger
from ckptstore.ops.records import Began
from ckptstore.storage.journal import SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Launch


def for_rank(database: Database, rank: int, launch: str, began: Callable[[], Began]) -> Ledger:
    """What one rank of a launch writes; `began` tells what is known of the launch by now."""
    return Ledger(database, f"rank_{rank}", launch, lambda named: began() if named == launch else None)


def for_decision(database: Database, began: Began) -> Ledger:
    """What an operator decides of a launch that has no ranks. Close it when that is done."""
    return Ledger(database, SHARED, _this_process(), lambda named: began if named == began.launch.id else None)


def shared(database: Database) -> Ledger:
    """What a process writes that speaks for whatever ranks: adopted files, pins. Close it when that is done."""

    def began(launch: str) -> Began | None:
        with database.read() as connection:
            found = reads.launch(connection, launch)
        return None if found is None else Began(_undecided(found))

    return Ledger(database, SHARED, _this_process(), began)


def directory_to_tell(paths: Iterable[str]) -> str:
    """Where to journal what is said of these files: the first of their directories that can be written to, as it seems.

    A disk may be lost, or a tree moved, whose files are in the catalog still.
    """
    directories = sorted({path.rpartition("/")[0] for path in paths})
    return next((each for each in directories if os.access(each, os.W_OK)), directories[0])


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _undecided(launch: Launch) -> Launch:
    """Where it started is for its own ranks to say."""
    return replace(launch, decided=False, parent=None, parent_step=None, start_step=None, branched=False)
