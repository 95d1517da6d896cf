"""What a registrar knows of the training that is under way, and how it describes a save."""

from __future__ import annotations

import logging
import math
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ckptstore.catalog.reads import Ending
from ckptstore.core.limits import text
from ckptstore.core.model import Content, Kind, epoch_and_step
from ckptstore.mindspore.communication import strategy_file
from ckptstore.mindspore.data import check_start, steps_of
from ckptstore.mindspore.recorder import Recorder
from ckptstore.mindspore.repair import is_wrong_result, repaired_step
from ckptstore.mindspore.resume import COUNTER, state_names
from ckptstore.ops.register import describe
from ckptstore.ops.start import remember_place
from ckptstore.storage import claims, exit_flags
from ckptstore.storage.files import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckptstore.core.model import Checkpoint
    from ckptstore.mindspore.data import Steps
    from ckptstore.mindspore.launch import TrainingLaunch
    from ckptstore.storage.exit_flags import Flag
    from ckptstore.storage.files import FileFacts

    Metrics = Callable[[Any], Mapping[str, float]]

log = logging.getLogger("ckptstore")

_LOSS = "loss"
_DEVICE_SECONDS = 5.0


@dataclass(frozen=True)
class Saved:
    """A file that a callback saved.

    `asynchronous`: a thread or process still saves it. `written_again`: the callback may save the same state over it
    when training ends; it is recorded as in progress until then.
    """

    path: str
    kind: Kind
    content: Content
    asynchronous: bool = False
    written_again: bool = False


class Watch(Protocol):
    """One callback that saves, as the registrar sees it."""

    callback: Any

    def begin(self, training: Training) -> None:
        """Training begins: say where the callback saves, and warn of what cannot work."""

    def step_begin(self) -> None:
        """A step begins."""

    def poll(self) -> Saved | None:
        """What the callback saved since the last look."""

    def end(self, training: Training) -> None:
        """Training has ended, whether well or not; callbacks earlier in the list have still to hear of it."""


class Training:
    """The training of a launch: its step, optimizer and loss, and the recorder of what it saves.

    `params` are MindSpore's callback parameters; `steps` and `state_names` are those of the dataset and the train
    network, `outputs` what that returned last: an evaluation inside `fit` puts its own into `params`.
    `is_readable` is False once the device did not answer. `metrics` is asked at every save for what the user wants to
    keep with it.
    """

    def __init__(
        self, launch: TrainingLaunch, *, metrics: Metrics | None, reset_exit_flag: bool, durable: bool
    ) -> None:
        self.launch = launch
        self.reset_exit_flag = reset_exit_flag
        self.recorder = Recorder(launch, durable=durable)
        self.params: Any = None
        self.steps: Steps | None = None
        self.state_names: set[str] = set()
        self.outputs: Any = None
        self.is_readable = True
        self._was_placed = False
        self._is_wrong = self._was_wrong = False
        self._metrics = metrics
        self._optimizer_counter: Any = None
        self._claimed: set[tuple[str, Kind, str]] = set()
        self._complained: set[str] = set()

    @property
    def steps_per_epoch(self) -> int | None:
        """How many batches the dataset has; None before training has begun."""
        return None if self.steps is None else self.steps.an_epoch

    @property
    def is_resumed(self) -> bool:
        """Whether `resume` decided where this launch starts."""
        return self.launch.start is not None

    def begin(self, params: Any) -> None:
        """Take up the training that MindSpore begins with these callback parameters."""
        self.params = params
        self.outputs = None
        self._is_wrong, self._was_wrong = False, self._is_wrong
        self.recorder.begin()
        self.state_names = state_names(params.train_network)
        self.recorder.state_names = frozenset(self.state_names)
        counters = (item for item in params.train_network.get_parameters() if item.name == COUNTER)
        self._optimizer_counter = next(counters, None)
        self.steps = steps_of(params.train_dataset, self.launch.world_size)
        start = self.launch.start
        self._was_placed = start is not None and not start.fresh and not self.launch.trained
        if start is not None and self._was_placed:
            check_start(params, start.global_step)

    def goes_on(self, steps_of_epochs: int) -> int:
        """The step that MindSpore goes on after, having repaired a fault; what it went back from may be quarantined."""
        step = repaired_step(self.params, steps_of_epochs)
        if self._was_wrong:
            reason = f"MindSpore found a wrong result (TREError) and went back from it to step {step}"
            log.warning("all that this launch saved after step %d is quarantined: %s", step, reason)
            self.recorder.quarantine_after(step, reason)
        return step

    def ended(self, error: object) -> None:
        """Note whether the state is wrong, by the exception if one ended training, and have the dataset begin anew.

        `resume` said where the first training starts, and no other. MindSpore keeps that, and would begin there in each
        later training too (`dataset/engine/iterators.py`).
        """
        self._is_wrong = is_wrong_result(error)
        if self._was_placed:
            self.params.train_dataset.set_init_step(0)

    def announce(
        self,
        directory: str,
        *,
        kind: Kind,
        prefix: str,
        breakpoint_prefix: str,
        names_before: Callable[[str], Iterable[str]],
        has_begun: bool = False,
        content: Content | None = None,
    ) -> None:
        """Record, once, where this rank saves what; and say so if another rank would write the same files.

        `names_before` gives the names in the directory that are not of this launch. Raises `RefusedError` where a fresh
        start overlooked what is there; where training `has_begun` that is only said, and stops nothing (invariant 6).
        """
        directory = absolute(directory)
        if (directory, kind, prefix) in self._claimed:
            return
        is_new = all(directory != claimed for claimed, _, _ in self._claimed)
        if is_new and has_begun:
            self.recorder.call(lambda: self.launch.report_place(directory))
        elif is_new:
            self.launch.check_place(directory)
        remember_place(self.launch.database, self.launch.run, directory)
        self._claimed.add((directory, kind, prefix))
        before = sorted(names_before(directory))
        self.recorder.call(
            lambda: self.launch.add_source(
                directory,
                kind=kind,
                prefix=prefix,
                breakpoint_prefix=breakpoint_prefix,
                names_before=before,
                content=content,
            )
        )
        if kind is Kind.TTP:  # every rank has a directory of its own in it
            return
        try:
            other = claims.claim(directory, f"{kind}-{prefix}", launch=self.launch.id, rank=self.launch.rank)
        except OSError as error:
            self.complain(f"cannot see who else saves in {directory}: {error.strerror or error}")
            return
        if other is not None:
            log.error(
                "ranks %d and %d (on %s) would both write %s/%s*: give each rank a directory of its own",
                self.launch.rank,
                other.rank,
                other.host,
                directory,
                prefix,
            )

    def note_exit_flag(self, directory: str, flag: Flag) -> None:
        """Note beside the files of graceful exits where this rank looks for a request: nobody else can know it."""
        try:
            exit_flags.note(directory, self.launch.rank, flag)
        except OSError as error:
            self.complain(f"`ckptstore doctor` will not know of {flag.path}: {error.strerror or error}")

    def note_ending(self, error: str | None) -> None:
        """Record where training ended, and the exception's name if one ended it."""
        self._note(self.launch.global_step, error, self.quarantine())

    def note_half_done(self, error: str | None) -> None:
        """Record that an exception came in the middle of an update: what MindSpore saves now holds a part of it."""
        self._note(self.launch.global_step + 1, error, "an exception came in the middle of its update")

    def _note(self, step: int, error: str | None, quarantine: str) -> None:
        launch, optimizer_step = self.launch, self.optimizer_step()
        if error is not None:
            launch.ending = Ending(launch.id, launch.rank, step, optimizer_step, quarantine)
        self.recorder.call(lambda: launch.set_ending(step, optimizer_step, error, quarantine=quarantine))

    def record_left(self) -> None:
        """Record the breakpoint of the training before while it is known how that ended: this one ends otherwise."""
        ending, self.launch.ending = self.launch.ending, None
        if ending is not None:
            self.recorder.call(lambda: self.launch.record_left(ending, self.recorder.state_names))

    def release(self) -> None:
        """Training has ended: others may write where this rank did."""
        for directory, kind, prefix in self._claimed:
            with suppress(OSError):  # the directory is gone, and the claim with it; or the next launch removes it
                claims.release(directory, f"{kind}-{prefix}", launch=self.launch.id, rank=self.launch.rank)

    def describe(
        self,
        path: str,
        *,
        kind: Kind,
        content: Content,
        global_step: int | None = None,
        written: FileFacts | None = None,
    ) -> Checkpoint:
        """The record of a file that holds the state after `global_step` steps (None: those done so far).

        `written` tells what is there, where it is known to be whole: nothing else at the path is that file.
        """
        step = self.launch.global_step if global_step is None else global_step
        epoch, step_in_epoch = epoch_and_step(step, self.steps_per_epoch)
        return describe(
            self.launch.facts,
            rank=self.launch.rank,
            path=path,
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            kind=kind,
            global_step=step,
            optimizer_step=self.optimizer_step(),
            strategy_file=strategy_file(),
            content=content,
            metrics=self._measures(),
            quarantine=self.quarantine(),
            mtime_ns=written.mtime_ns if written is not None else None,
        )

    def optimizer_step(self) -> int | None:
        """Updates applied; None if the optimizer has no counter, or a fault of the device made it unreadable."""
        counter = self._optimizer_counter
        if not self.is_readable:
            return None
        try:
            return None if counter is None else int(counter.asnumpy().reshape(-1)[0])
        except RuntimeError as error:
            self.complain(f"the optimizer's counter cannot be read any more: {str(error).splitlines()[0]}")
            return None

    def has_counter(self) -> bool:
        """Whether the files of this network tell how many updates are in them."""
        return self._optimizer_counter is not None

    def read_state(self, *, with_deadline: bool) -> None:
        """See, after an exception, whether the device still answers: a peer that died may have left it waiting.

        Whoever waits for it without end keeps the process from ending, and the job from being started again.
        """
        if not with_deadline:
            return
        reader = threading.Thread(target=lambda: (self.optimizer_step(), self.loss()), daemon=True)
        reader.start()
        reader.join(_DEVICE_SECONDS)
        self.is_readable = not reader.is_alive()
        if not self.is_readable:
            self.complain(f"the device did not answer in {_DEVICE_SECONDS:.0f} s: nothing is read from it any more")

    def loss(self) -> float | None:
        """The loss of the last step on this rank, as LossMonitor reads it; None if the network returns none.

        MindSpore: `train/callback/_loss_monitor.py`.
        """
        outputs = self.outputs
        first: Any = next(iter(outputs), None) if isinstance(outputs, (tuple, list)) else outputs
        if first is None or not self.is_readable:
            return None
        try:
            array = np.asarray(first.asnumpy() if hasattr(first, "asnumpy") else first, dtype=np.float64)
        except (RuntimeError, TypeError, ValueError):
            return None
        return float(array.mean()) if array.size else None

    def quarantine(self) -> str:
        """What is wrong with the state as it is now; empty if nothing is."""
        if self._is_wrong:
            return "MindSpore found a wrong result (TREError)"
        loss = self.loss()
        if loss is None or math.isfinite(loss) or self._was_skipped():
            return ""
        return f"the loss of its last step was {loss}"

    def _was_skipped(self) -> bool:
        """Whether the last update was left out since it overflowed: then the weights are those of the step before.

        Cells with a loss scale return (loss, overflow, scale) (MindSpore: `nn/wrap/loss_scale.py`).
        """
        outputs = self.outputs
        if not isinstance(outputs, (tuple, list)) or len(outputs) < 3:  # noqa: PLR2004
            return False
        overflow = outputs[1]
        return str(getattr(overflow, "dtype", "")) == "Bool" and bool(overflow.asnumpy().any())

    def _measures(self) -> dict[str, float]:
        loss = self.loss()
        measured: dict[str, float] = {} if loss is None else {_LOSS: loss}
        if self._metrics is not None:
            try:
                measured |= {text(name): float(value) for name, value in self._metrics(self.params).items()}
            except Exception as error:  # noqa: BLE001 — the user's function: whatever it raises, the save counts
                self.complain(f"metrics= failed, saves are registered without: {type(error).__name__}: {error}")
        unusable = sorted(name for name, value in measured.items() if not math.isfinite(value))
        if set(unusable) - {_LOSS}:
            self.complain(f"metrics that are not finite are not stored: {', '.join(unusable)}")
        return {name: value for name, value in measured.items() if math.isfinite(value)}

    def complain(self, message: str) -> None:
        """Say something once in the life of this registrar."""
        if message not in self._complained:
            self._complained.add(message)
            log.warning("%s", message)
