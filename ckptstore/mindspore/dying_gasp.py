"""`save_on_exception`: the registrar saves before MindSpore does, and with the exact step."""

from __future__ import annotations

import logging
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import mindspore

from ckptstore.core.model import Content, Kind, epoch_and_step
from ckptstore.core.naming import is_numbered, parse_name
from ckptstore.disk.files import facts, names_in, real_directory
from ckptstore.mindspore import compat
from ckptstore.mindspore.watches import PeriodicWatch, breakpoints_among
from ckptstore.outside import Path, time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.mindspore.session import Session, Watch

log = logging.getLogger("ckptstore")

_UNNAMED = "net"
"""The prefix of the file if that of the ModelCheckpoint is a function."""


class DyingGasp:
    """Saves the train network when any exception ends training, as its ModelCheckpoint would.

    Unlike MindSpore's `exception_save` it also does so if `callbacks` is given by position, and it uses the format of
    the callback. It saves nothing within `interval` seconds of the last such save in the directory: a job that fails
    again and again must not fill the disk.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._callback: Any = None
        self._saved_step = 0

    def begin(self, session: Session, watches: Iterable[Watch]) -> None:
        """Choose the ModelCheckpoint whose directory, prefix and format the file will have."""
        callbacks = (watch.callback for watch in watches if isinstance(watch, PeriodicWatch))
        usable = (each for each in callbacks if isinstance(compat.DIRECTORY.get(each, None), str))
        self._callback = next(usable, None)
        self._saved_step = session.progress.global_step
        if self._callback is None:
            log.warning("save_on_exception needs a ModelCheckpoint with a directory: nothing is saved at an exception")
        elif not isinstance(compat.EXCEPTION_PREFIX.of(self._callback), str):  # then its watch announces none
            directory = str(compat.DIRECTORY.of(self._callback))
            session.places.add(directory, kind=Kind.DYING_GASP, prefix=_UNNAMED, names_before=breakpoints_among)

    def note_saved(self, step: int) -> None:
        """Note that another callback has saved the complete state after a step."""
        self._saved_step = step

    def save(self, session: Session, doubt: str) -> None:
        """Save, unless no step was done since the start or the last save, or the last save here is too recent.

        `doubt` is the reason why the extra state may be of another step: then nothing is saved.
        The record is in the journal before the file is begun: so the file is found whatever happens next.
        """
        step = session.progress.global_step
        if self._callback is None or step == self._saved_step:
            return
        if doubt:
            log.warning("step %d is not saved at this exception: %s", step, doubt)
            return
        directory = real_directory(str(compat.DIRECTORY.of(self._callback)))
        age = self._age_of_newest(directory)
        if age is not None and 0 <= age < self._interval:
            log.warning(
                "nothing is saved at this exception: the last such save was %.0f s ago, less than exception_interval",
                age,
            )
            return
        config = compat.CONFIG.of(self._callback)
        path = str(Path(directory) / self._free_name(directory, step, session.steps.an_epoch, config.format))
        begun = session.describe(path, kind=Kind.DYING_GASP, content=Content.FULL)
        session.launch.recorder.note(begun)
        session.recorder.call(lambda: session.launch.record_files([begun]))
        appended = {**compat.APPEND_DICT.of(self._callback), **session.counts(begun.epoch)}
        mindspore.save_checkpoint(
            session.params.train_network,
            path,
            integrated_save=False,  # merging would wait for the other ranks, which may not be in an exception
            append_dict=appended,
            enc_key=config.enc_key,
            enc_mode=config.enc_mode,
            crc_check=config.crc_check,
            format=config.format,
        )
        whole = session.describe(path, kind=Kind.DYING_GASP, content=Content.FULL, written=facts(path))
        session.recorder.submit(whole, asynchronous=False)
        session.keep_beside(path)

    def _age_of_newest(self, directory: str) -> float | None:
        times = []
        for name in breakpoints_among(names_in(directory)):
            parsed = parse_name(name)
            found = facts(str(Path(directory) / name))
            if parsed is not None and found is not None and is_numbered(parsed.prefix, self._prefix):
                times.append(found.mtime_ns)
        return time.time() - max(times) / 1e9 if times else None

    def _free_name(self, directory: str, step: int, steps_per_epoch: int | None, file_format: str) -> str:
        """An unused name for a breakpoint, in MindSpore's form, with the step that was done."""
        taken = names_in(directory)
        epoch, step_in_epoch = epoch_and_step(step, steps_per_epoch)
        prefixes = chain([self._prefix], (f"{self._prefix}_{repeat}" for repeat in count(1)))
        names = (f"{prefix}-{epoch}_{step_in_epoch}_breakpoint.{file_format}" for prefix in prefixes)
        return next(name for name in names if name not in taken)

    @property
    def _prefix(self) -> str:
        prefix = compat.EXCEPTION_PREFIX.of(self._callback)
        return prefix if isinstance(prefix, str) else _UNNAMED
