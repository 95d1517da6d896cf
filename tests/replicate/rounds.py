"""Rounds of an agent over a catalog, and what they leave."""

from datetime import timedelta
from pathlib import Path

from ckptstore.api import Catalog
from ckptstore.catalog import copies
from ckptstore.core.copies import CopyState
from ckptstore.core.model import Checkpoint
from ckptstore.replicate.replicator import Done, Replicator

AT_ONCE = timedelta(0)


def one_round(catalog: Catalog, **asked: object) -> Done:
    return Replicator(catalog.database).round(settled_for=AT_ONCE, **asked)  # type: ignore[arg-type]


def states(catalog: Catalog, files: list[Checkpoint]) -> list[list[CopyState]]:
    with catalog.database.read() as connection:
        found = copies.copies_of(connection, [file.id for file in files])
    return [[each.state for each in found.get(file.id, ())] for file in files]


def files_below(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def copies_below(path: Path) -> list[str]:
    return [each for each in files_below(path) if "/journals/" not in each]
