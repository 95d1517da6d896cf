"""The copies that a plan has counted on: a state whose copies change before it goes stays, until the next plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog.copies import ready_copies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.catalog.engine import Connection
    from ckptstore.core.copies import Copy
    from ckptstore.core.model import Checkpoint
    from ckptstore.retention.decide import Key

CHANGED = "its copies in tiers have changed since the plan was made"


@dataclass(frozen=True)
class Copied:
    """The files of a state, and which tiers had a copy of each when the plan was made."""

    files: tuple[Checkpoint, ...]
    copies: frozenset[tuple[str, str]]  # a file and a tier, each by its id

    @classmethod
    def of(cls, files: tuple[Checkpoint, ...], ready: Mapping[str, tuple[Copy, ...]]) -> Copied:
        """Keep the ready copies of these files, given by the file's id."""
        return cls(files, frozenset((file.id, copy.tier.id) for file in files for copy in ready.get(file.id, ())))


def changed(connection: Connection, planned: Mapping[Key, Copied]) -> set[Key]:
    """The states of which a copy was made or lost since. Ask under the lock of the run, where copies are recorded."""
    now = ready_copies(connection, [file for each in planned.values() for file in each.files])
    return {key for key, each in planned.items() if each != Copied.of(each.files, now)}
