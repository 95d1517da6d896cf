"""Compares the copies in a tier with their records, and marks bad ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ckptstore.catalog import copies, reads
from ckptstore.catalog.runs import find_run, run_names
from ckptstore.core.copies import CopyState
from ckptstore.core.model import Skipped
from ckptstore.disk.waiting import for_each
from ckptstore.errors import DamageError
from ckptstore.journal.recorder import shared
from ckptstore.journal.sync import sync_run
from ckptstore.objects.errors import MissingError, StoreError, UnreachableError
from ckptstore.objects.tiers import open_tier
from ckptstore.tiers.facts import fault_of, record_copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptstore.catalog.engine import Database
    from ckptstore.core.copies import Copy, Tier
    from ckptstore.core.model import Checkpoint
    from ckptstore.objects.store import Store


@dataclass(frozen=True)
class CopiesVerified:
    """The findings: how many copies were checked, and their bytes; the damaged ones, which are cut, changed or missing.

    `troubles` are copies that could not be checked. `whole` are copies recorded as failed that proved to be whole.
    `failed_before` counts the other copies that were recorded as failed before: they are not among the checked ones.
    """

    tier: str
    checked: int
    bytes: int
    damaged: tuple[Skipped, ...]
    troubles: tuple[Skipped, ...]
    whole: tuple[str, ...]
    failed_before: int


def verify(database: Database, run: str | None, tier: Tier, *, digest: bool = False) -> CopiesVerified:
    """Check the copies of a run, or of all runs, in a tier: their sizes, and with `digest` every byte.

    A ready copy that is damaged or missing is recorded as failed, and no start takes it. Of a failed copy every byte is
    read. It is recorded as ready again if it is whole: for example, if another server was asked before. Nothing is
    deleted. A tier that gives no answer is not asked for the other copies. Raises `UnknownRunError`.
    """
    runs = [find_run(database, name) for name in run_names(database, run)]
    for run_id in runs:
        sync_run(database, run_id)  # another catalog may have removed copies, and told that in the journals
    held = [each for run_id in runs for each in _held(database, run_id, tier)]
    store, recorder = open_tier(tier.url), shared(database)
    looks = for_each(partial(_look, store, digest, []), [copy for _, copy in held], waits=True)
    looked_at, damaged, troubles, whole = [], [], [], []
    failed_before = 0
    for (file, copy), error in zip(held, looks, strict=True):
        has_failed = copy.state is CopyState.FAILED
        if has_failed and isinstance(error, DamageError | MissingError):
            failed_before += 1
            continue
        if error is not None and not isinstance(error, DamageError | MissingError):
            troubles.append(Skipped(copy.key, error.message))
            continue
        looked_at.append(copy)
        if error is not None:
            record_copy(recorder, file, tier, CopyState.FAILED, beside=copy.beside, detail=error.message)
            damaged.append(Skipped(copy.key, error.message))
        elif has_failed:
            record_copy(recorder, file, tier, CopyState.READY, beside=copy.beside)
            whole.append(copy.key)
    every = sum(copy.all_bytes for copy in looked_at)
    found = tuple(damaged), tuple(troubles), tuple(whole)
    return CopiesVerified(tier.name, len(looked_at), every, *found, failed_before)


def _held(database: Database, run_id: int, tier: Tier) -> Iterator[tuple[Checkpoint, Copy]]:
    """The ready and the failed copies of a run in a tier. Copies of earlier versions of a file are left out."""
    with database.read() as connection:
        files = {file.id: file for file in reads.files_of(connection, run_id)}
        known = copies.copies_of(connection, list(files))
    states = (CopyState.READY, CopyState.FAILED)
    for file, some in known.items():
        for copy in some:
            is_of_file = copy.digest is not None and copy.digest == files[file].digest
            if copy.tier.id == tier.id and copy.state in states and is_of_file:
                yield files[file], copy


def _look(
    store: Store,
    digest: bool,  # noqa: FBT001 — `for_each` gives the last one
    silent: list[UnreachableError],
    copy: Copy,
) -> StoreError | None:
    """The fault of a copy, or of the files beside it; None if there is none. `silent` gets a store's silence."""
    if silent:
        return silent[0]
    error = fault_of(copy, store, reads_bytes=digest or copy.state is CopyState.FAILED)
    if isinstance(error, UnreachableError) and _is_silent(store):
        silent.append(error)
    return error


def _is_silent(store: Store) -> bool:
    """Whether a store does not answer about any key. One object that cannot be read, as on a bad disk, is no sign."""
    try:
        store.head("none")
    except StoreError as error:
        return isinstance(error, UnreachableError)
    return False
