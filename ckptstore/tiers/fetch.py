"""Fetches files of a restore plan that only tiers have, into ckptstore's own folder beside the journals."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.core.copies import CopyState
from ckptstore.core.ids import derived_id
from ckptstore.core.text import size
from ckptstore.disk.aside import clear_beside
from ckptstore.disk.files import observe, remove_own
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import directory_of, enter_announced
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, NothingRestorableError, reason_of
from ckptstore.journal.recorder import shared
from ckptstore.objects.errors import MissingError, NoRoomError, StoreError, WrongBytesError
from ckptstore.objects.tiers import open_tier
from ckptstore.outside import Path, os
from ckptstore.resume.resolver import fault
from ckptstore.tiers.facts import record_copy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.copies import Copy
    from ckptstore.core.model import Checkpoint, RestorePlan

log = logging.getLogger("ckptstore")

_FETCHED = "fetched"


class Fetched:
    """The files that were fetched to load one state: `.ckptstore/fetched/…` in the directories of its files.

    Nothing else is written to those directories: no fetched file can take the name of a user's file.
    """

    def __init__(self) -> None:
        self._paths: set[Path] = set()
        self._origins: dict[str, Checkpoint] = {}
        self._own_folder: str | None = None  # the name of the folder for this state; None: no start chose one

    def local(self, database: Database, plan: RestorePlan, files: Iterable[Checkpoint]) -> RestorePlan:
        """The plan with local paths for these files. A file that is not at its own path is fetched.

        It comes with its companion from the nearest tier that can give it, and is proved by its digest. A missing or
        damaged copy is recorded as failed. Raises `NothingRestorableError` for a file that no tier gives.
        """
        self._own_folder = _name_of_folder(plan.ranks[0].source)
        if not plan.copies:
            return plan
        copied = [file for file in files if file.id in plan.copies]
        seen = observe(copied, read_bytes=False)
        far = [file for file in copied if fault(file, seen[file.path], {}) is not None]
        fetched = {file.id: self._fetch(database, file, plan.copies[file.id]) for file in far}
        self._origins |= {fetched[file.id].path: file for file in far}
        ranks = tuple(each._replace(source=fetched.get(each.source.id, each.source)) for each in plan.ranks)
        return replace(plan, ranks=ranks)

    def origin(self, file: Checkpoint) -> Checkpoint | None:
        """The record of the file that was fetched to this path; None if no file was."""
        return self._origins.get(file.path)

    def remove(self, saved: Iterable[Checkpoint]) -> None:
        """Delete the fetched files: the launch has saved a state of its own. Other ranks may still use the folder.

        In the directories of the `saved` files, what earlier launches fetched of other states is deleted too.
        """
        for path in self._paths:
            with suppress(OSError):  # a replica has deleted it
                remove_own(str(path.parent), path.name)
        for folder in {path.parent for path in self._paths}:
            with suppress(OSError):
                os.rmdir(folder)
        self._paths.clear()
        if self._own_folder is not None:
            for home, run in {(Path(file.path).parent, derived_id(file.run, size=8)) for file in saved}:
                clear_beside(home / FOLDER / _FETCHED / self._own_folder, f"{run}-")

    def _fetch(self, database: Database, file: Checkpoint, copies: Sequence[Copy]) -> Checkpoint:
        folder = Path(file.path).parent / FOLDER / _FETCHED / _name_of_folder(file)  # one for each state of a run
        clear_beside(folder, f"{derived_id(file.run, size=8)}-")  # a run has one living launch at a time
        failures = []
        for copy in copies:
            log.info("fetching %s (%s) from tier %s", file.path, size(copy.all_bytes), copy.tier.name)
            try:
                found = _fetched(file, copy, folder)
            except StoreError as error:
                failures.append(f"{copy.tier.name}: {error.message}")
                if isinstance(error, (MissingError, WrongBytesError)):
                    _note_failure(database, file, copy, error)
            else:
                self._paths |= {Path(found.path), *(folder / each.name for each in copy.beside)}
                return found
        raise NothingRestorableError(
            f"{file.path} is not here, and no tier gives it ({'; '.join(failures)})",
            "see that the tiers can be reached and that there is room, then start again",
        )


def _fetched(file: Checkpoint, copy: Copy, folder: Path) -> Checkpoint:
    """Fetch a copy, its companion first, in place of files that were fetched before and damaged since.

    Raises `StoreError`.
    """
    directory, path = directory_of(file.path), folder / Path(file.path).name
    try:
        os.makedirs(directory, exist_ok=True)
        # Give it an identity: an empty mount point must not pass for the directory on the unmounted disk.
        os.close(enter_announced(directory))
        store = open_tier(copy.tier.url)
        for each in copy.beside:
            store.get(each.key, str(folder / each.name), each.size, each.digest, replaces=True)
        store.get(copy.key, str(path), copy.size or 0, copy.digest or "", replaces=True)
        return replace(file, path=str(path), mtime_ns=path.stat().st_mtime_ns)
    except OSError as error:
        raise NoRoomError(f"cannot write {directory}: {reason_of(error)}", "make room, or mend the disk") from None


def _name_of_folder(file: Checkpoint) -> str:
    return f"{derived_id(file.run, size=8)}-{derived_id(file.launch, size=8)}-{file.global_step}"


def _note_failure(database: Database, file: Checkpoint, copy: Copy, error: CkptstoreError) -> None:
    """Record that a copy is missing or damaged: the next start takes another copy."""
    try:
        record_copy(shared(database), file, copy.tier, CopyState.FAILED, beside=copy.beside, detail=error.message)
    except CatalogUnavailableError as unavailable:
        log.warning("%s. It is not recorded that %s lacks %s.", unavailable, copy.tier.name, copy.key)
