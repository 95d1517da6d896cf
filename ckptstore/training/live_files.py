"""What a rank has recorded in its launch, for as long as the files are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import writes
from ckptstore.core.model import FileState
from ckptstore.storage.files import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.model import Checkpoint
    from ckptstore.ops.ledger import Ledger


class Kept:
    """The last record of each path. The catalog need not be asked for them, which may be away."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._files: dict[str, Checkpoint] = {}

    def add(self, files: Iterable[Checkpoint]) -> None:
        """Hear of files that were recorded."""
        self._files.update((file.path, file) for file in files)

    def notice_vanished(self, directory: Path) -> None:
        """Record what is gone: MindSpore's keep_checkpoint_max deletes files by itself (domain §9)."""
        names = names_in(str(directory))
        whole = [file for file in self._all() if file.state is not FileState.IN_PROGRESS]
        here = [file for file in whole if Path(file.path).parent == directory]
        gone = [file for file in here if Path(file.path).name not in names]
        if gone:
            self._ledger.mark(gone, FileState.MISSING)
            for file in gone:
                del self._files[file.path]

    def quarantine_after(self, step: int, reason: str) -> None:
        """Record what is wrong with all states after a step. A file that is saved later has a record of its own."""
        wrong = [replace(file, quarantine=file.quarantine or reason) for file in self._all() if file.global_step > step]
        if wrong:
            self._ledger.record(wrong, put=writes.quarantine)
            self.add(wrong)

    def _all(self) -> list[Checkpoint]:
        return list(self._files.values())  # a script may register files of its own meanwhile, in another thread
