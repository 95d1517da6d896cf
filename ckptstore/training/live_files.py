"""The files that this rank registered in this launch and that still exist."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.core.model import FileState
from ckptstore.disk.files import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.model import Checkpoint
    from ckptstore.journal.recorder import Recorder


class LiveFiles:
    """The last record of each path, for whoever must not wait for the catalog."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._files: dict[str, Checkpoint] = {}

    def add(self, files: Iterable[Checkpoint]) -> None:
        """Add files that were recorded."""
        self._files.update((file.path, file) for file in files)

    def notice_vanished(self, directory: Path) -> None:
        """Record which files are gone: MindSpore's keep_checkpoint_max deletes them by itself."""
        names = names_in(str(directory))
        whole = [file for file in self._all() if file.state is not FileState.IN_PROGRESS]
        here = [file for file in whole if Path(file.path).parent == directory]
        gone = [file for file in here if Path(file.path).name not in names]
        if gone:
            self._recorder.mark(gone, FileState.MISSING)
            for file in gone:
                del self._files[file.path]

    def quarantine_after(self, step: int, reason: str) -> None:
        """Record what is wrong with all files after a step. One that is saved again later gets a new record."""
        wrong = [file.amended(quarantine=file.quarantine or reason) for file in self._all() if file.global_step > step]
        if wrong:
            self._recorder.record_files(wrong)
            self.add(wrong)

    def _all(self) -> list[Checkpoint]:
        return list(self._files.values())  # a script may register files of its own meanwhile, in another thread
