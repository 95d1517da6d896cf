"""Keeps the newest good states of a training whose states go bad, where MindSpore does not delete them."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from ckptstore.core.model import Checkpoint
    from ckptstore.training.start import Progress

log = logging.getLogger("ckptstore")

FOLDER = "kept"
"""Below the directory of the files, with a directory for each launch: links to the newest good states."""

_KEPT = 2
"""States: the other ranks may have found a state to be bad that this rank did not."""


class GoodStates:
    """The newest good files of a rank, in the order in which they were saved.

    `keep_checkpoint_max` goes on deleting the oldest files while bad ones are saved (mindspore.md §9).
    """

    def __init__(self, run: str, progress: Progress) -> None:
        self._run, self._progress = run, progress
        self._good: deque[Checkpoint] = deque(maxlen=_KEPT)
        self._is_bad = False

    def saved(self, file: Checkpoint) -> list[Checkpoint]:
        """Handle a saved file. At the first bad one log it, and return the paths under which the good ones are kept."""
        if not file.quarantine:
            self._good.append(file)
            self._is_bad = False
            return []
        if self._is_bad:
            return []
        self._is_bad = True
        kept = [link for good in self._good if (link := _kept(good)) is not None]
        log.error(
            "step %d of run %s is quarantined: %s. Saves from now on are registered, and no start takes the "
            "bad ones. %s: stop the job, look at learning rate, loss scale and data, and start it again",
            file.global_step,
            self._run,
            file.quarantine,
            self._what_is_left(kept),
        )
        self._good.clear()
        return kept

    def _what_is_left(self, kept: list[Checkpoint]) -> str:
        if kept:
            return f"The last good state is step {kept[-1].global_step}, which is kept as {kept[-1].path}"
        if self._good:
            step = self._good[-1].global_step
            return f"Step {step} was good, and its file is gone: keep_checkpoint_max must be 2 or more"
        start = self._progress.start
        return f"The last good state is step {start.global_step if start is not None else 0}"


def _kept(file: Checkpoint) -> Checkpoint | None:
    """The record of a file under another name, which is a hard link; None where that cannot be made."""
    path = Path(file.path)
    link = path.parent / FOLDER / file.launch / path.name
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(path, link)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s is not kept from keep_checkpoint_max: %s", file.path, error.strerror or error)
        return None
    return replace(file, path=str(link))
