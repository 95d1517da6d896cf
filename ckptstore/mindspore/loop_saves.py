"""What a functional loop saves: copied at once, written aside on a thread of its own, then registered."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import replace
from itertools import chain, count
from statistics import median
from typing import TYPE_CHECKING, Any

from ckptstore.core.events import TrainingEnded
from ckptstore.core.interval import Cost
from ckptstore.core.model import Content, Kind, Timing
from ckptstore.disk.files import names_in, real_directory
from ckptstore.errors import CkptstoreError
from ckptstore.mindspore.communication import strategy_file
from ckptstore.mindspore.network import NetworkState
from ckptstore.outside import Future, Path, ThreadPoolExecutor, time, utc_now
from ckptstore.resume.register import describe, measured
from ckptstore.training.complaints import Complaints
from ckptstore.training.recorder_thread import FLUSH_SECONDS, RecorderThread
from ckptstore.training.retention_thread import RetentionThread
from ckptstore.training.save_places import SavePlaces

if TYPE_CHECKING:
    from ckptstore.core.model import Checkpoint
    from ckptstore.mindspore.state import Copy, TrainState
    from ckptstore.outside import os
    from ckptstore.retention.policy import Policy
    from ckptstore.training.launch import RankLaunch
    from ckptstore.training.start import Progress

log = logging.getLogger("ckptstore")


_MEASURED = 5
"""How many of the last saves tell what one costs: the first one is slower, and now and then another."""


class LoopSaves:
    """Saves the state of one rank; at most one save is under way, and the next one waits for it.

    `saved_step` is the step of the newest one that was begun, or that training started from, `cost` what the last few
    of this rank cost (None: none is on the disk yet).
    """

    def __init__(
        self,
        launch: RankLaunch,
        progress: Progress,
        state: TrainState,
        *,
        directory: str | os.PathLike[str],
        prefix: str,
        form: str,
        retention: Policy | None,
    ) -> None:
        self._launch, self._state, self._form = launch, state, form
        root = real_directory(directory)
        self.directory = root if launch.world_size == 1 else f"{root}/rank_{launch.rank}"
        self._prefix = prefix
        self.complaints = Complaints()
        self.network = NetworkState(state, self.complaints)
        self.recorder = RecorderThread(launch)
        self.recorder.state_names = frozenset(state.named)
        self._places = SavePlaces(launch, progress, self.recorder)
        self._retention = RetentionThread(launch, retention) if retention is not None and launch.rank == 0 else None
        if self._retention is not None:
            self.recorder.on_recorded = self._retention.file_registered
        self._writer = ThreadPoolExecutor(1, "ckptstore-save")
        self._under_way: Future[None] | None = None
        self.saved_step = progress.global_step
        self._since: tuple[int, float] | None = None
        self._costs: deque[Cost] = deque(maxlen=_MEASURED)
        self.cost: Cost | None = None

    def begin(self) -> None:
        """Training begins. Raises `RefusedError` where newer states of the run are there that the start did not see."""
        names = names_in(self.directory)
        prefixes = chain([self._prefix], (f"{self._prefix}_{repeat}" for repeat in count(1)))
        self._prefix = next(each for each in prefixes if not any(name.startswith(f"{each}-") for name in names))
        self.recorder.begin()
        self._launch.signs.begin()
        self._places.add(
            self.directory, kind=Kind.PERIODIC, prefix=self._prefix, names_before=lambda _: (), content=Content.FULL
        )
        if self._retention is not None:
            self._retention.begin()

    def save(self, kind: Kind, step: int, place: tuple[int, int], kept: str, *, at_exit: bool = False) -> None:
        """Copy the state after a step, and have it written and registered; `place` is its epoch and step in that.

        `at_exit`: here and now, since the interpreter ends, and starts no thread any more.
        """
        took = self._step_took(step)
        self.wait()
        try:
            file = self._described(kind, step, place)
        except CkptstoreError as error:
            log.error("step %d is not saved: %s; training goes on", step, error)  # noqa: TRY400
            return
        began = time.monotonic()
        values = self._state.copied()
        timing = Timing(time.monotonic() - began, step=took)
        self.saved_step = step
        if at_exit:
            self._write(file, values, kept, began=began, timing=timing, at_exit=True)
        else:
            self._under_way = self._writer.submit(self._write, file, values, kept, began=began, timing=timing)
        self.time_from(step)

    def time_from(self, step: int) -> None:
        """From now on see how long steps take; this one was just done."""
        self._since = step, time.monotonic()

    def _step_took(self, step: int) -> float | None:
        """Seconds a step, since the save before this one or the first step, in which it was compiled."""
        if self._since is None or step <= self._since[0]:
            return None
        return (time.monotonic() - self._since[1]) / (step - self._since[0])

    def wait(self) -> None:
        """Wait for the save that is under way."""
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def end(self, step: int, error: str | None) -> None:
        """Training has ended after a step: have all in the catalog, and leave nothing open."""
        self.wait()
        self.recorder.call(lambda: self.record_ending(step, error))
        self.recorder.finish()
        if self._retention is not None:
            self._retention.finish(FLUSH_SECONDS)
        self._launch.signs.end()
        self.recorder.rest()
        self._places.release()

    def record_ending(self, step: int, error: str | None) -> None:
        """Record the step that training ended at, and the exception's name if one ended it."""
        launch, now = self._launch, utc_now()
        launch.recorder.record([TrainingEnded(launch.run, launch.id, launch.rank, step, None, error, "", now)])

    def _described(self, kind: Kind, step: int, place: tuple[int, int]) -> Checkpoint:
        epoch, step_in_epoch = place
        loss, quarantine = self.network.loss(), self.network.problem()
        if quarantine:
            self.complaints.warn(
                f"step {step} of run {self._launch.name} is quarantined: {quarantine}. What is saved while that is so "
                "is registered, and no start takes it"
            )
        return describe(
            self._launch.facts,
            rank=self._launch.rank,
            path=f"{self.directory}/{self._prefix}-{epoch}_{step_in_epoch}.{self._form}",
            kind=kind,
            global_step=step,
            optimizer_step=self.network.optimizer_step(),
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            strategy_file=strategy_file(),
            metrics={"loss": loss} if loss is not None and math.isfinite(loss) else {},
            quarantine=quarantine,
        )

    def _write(
        self, file: Checkpoint, values: Copy, kept: str, *, began: float, timing: Timing, at_exit: bool = False
    ) -> None:
        try:
            digests: list[str | None] = []
            path = self._launch.aside(self.directory).save(
                Path(file.path).name, lambda path: digests.append(values.write(path, kept))
            )
            written = time.monotonic() - began
            whole = replace(file, path=path, digest=digests[0], timing=Timing(timing.pause, written, timing.step))
            self._costs.append(Cost(timing.pause, written))
            self.cost = Cost(*map(median, zip(*self._costs, strict=True)))
            if not at_exit:
                self.recorder.submit(whole, asynchronous=False)
            else:
                names = self.recorder.state_names
                if (found := measured(whole, prove_step=True, expected=names, digest=whole.digest)) is not None:
                    self._launch.record([found])
        except (OSError, CkptstoreError) as error:
            why: Any = error.strerror or error if isinstance(error, OSError) else error
            log.error("step %d is not saved to %s: %s; training goes on", file.global_step, self.directory, why)  # noqa: TRY400
        except Exception:
            log.exception("step %d is not saved; training goes on", file.global_step)
