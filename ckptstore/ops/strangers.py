"""Checkpoints that nobody recorded, and that lie where nothing says of which run they are: they are told, not taken.

A run goes on from its newest state. Files of another experiment, taken in as a launch of it, would be that state, and
those that it saved itself would be given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import reads, replay
from ckptstore.core.naming import above_ttp
from ckptstore.ops.adoption import SCANNED
from ckptstore.storage.journal import directory_of
from ckptstore.storage.places import root_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckptstore.catalog.engine import Database


def strangers(
    database: Database, run: str, paths: Iterable[str], recorded: Mapping[str, str], told: Iterable[str]
) -> dict[str, str]:
    """Which of these paths may not be taken in for a run that nobody named; and why.

    `recorded` says of which run the files are that the catalog has there, `told` the runs whose journals lie there.
    Into a run that is trained with ckptstore goes only what is in directories that it saves to, and nothing into any
    run that is among the files of another one.
    """
    runs_in: dict[str, set[str]] = {}
    for path, name in recorded.items():
        runs_in.setdefault(_home(path), set()).add(name)
    is_trained = False
    with database.read() as connection:
        for name in {run, *told, *recorded.values()}:
            run_id = reads.run_id(connection, name)
            if run_id is None:
                continue
            saving = {source.directory for source in reads.sources_of(connection, run_id)}
            for directory in saving | set(map(directory_of, replay.journals_of(connection, run_id))):
                runs_in.setdefault(root_of(directory), set()).add(name)
            if name == run:
                is_trained = any(not each.id.startswith(SCANNED) for each in reads.launches_of(connection, run_id))
    reasons = {}
    for path in paths:
        there = runs_in.get(_home(path), set())
        if there and run not in there:
            reasons[path] = f"it lies among files of run {min(there)!r}: {_hint(path)}"
        elif not there and is_trained:
            reasons[path] = f"it is in no directory that run {run!r} saves to: {_hint(path)}"
    return reasons


def _hint(path: str) -> str:
    return f"scan {_home(path)} and say with --run of which run it is"


def _home(path: str) -> str:
    """The directory that has a file of each rank in it, or their directories."""
    return root_of(above_ttp(path) or path.rpartition("/")[0] or "/")
