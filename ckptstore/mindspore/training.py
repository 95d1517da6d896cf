"""The training that is under way, as watches and registrar share it: what it is, and how a save of it is described."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptstore.core.events import TrainingEnded
from ckptstore.core.hints import Call
from ckptstore.core.limits import text
from ckptstore.core.model import Content, Kind, epoch_and_step
from ckptstore.errors import RefusedError
from ckptstore.mindspore.communication import strategy_file
from ckptstore.mindspore.companions import Keeper
from ckptstore.mindspore.data import check_start, steps_of
from ckptstore.mindspore.exact_data import begin_anew
from ckptstore.mindspore.network import NetworkState
from ckptstore.mindspore.random_layers import seed_step
from ckptstore.outside import utc_now
from ckptstore.resume.register import describe
from ckptstore.training.complaints import Complaints
from ckptstore.training.good_states import GoodStates
from ckptstore.training.recorder_thread import RecorderThread
from ckptstore.training.save_places import SavePlaces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckptstore.core.model import Checkpoint
    from ckptstore.disk.files import FileFacts
    from ckptstore.mindspore.data import Steps
    from ckptstore.training.launch import RankLaunch
    from ckptstore.training.start import Progress

    Metrics = Callable[[Any], Mapping[str, float]]

log = logging.getLogger("ckptstore")

_LOSS = "loss"


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


class Watch:
    """One callback that saves, as the registrar sees it. A kind of callback overrides what it needs."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def begin(self, training: Training) -> None:
        """Training begins: record where the callback saves, and warn of what cannot work."""

    def step_begin(self) -> None:
        """A step begins."""

    def poll(self) -> Saved | None:
        """What the callback saved since the last poll."""
        return None

    def end(self, training: Training) -> None:
        """Training has ended, whether well or not; callbacks earlier in the list have still to hear of it."""


class Training:
    """The training of a launch that MindSpore runs now, and the recorder of what it saves.

    `params` are MindSpore's callback parameters, `steps` those of its dataset. `is_wrong` tells that MindSpore found a
    wrong result and ended training, `is_loaded_over` that another state was loaded before its first step.
    `metrics` is asked at every save for what the user wants to keep with it.
    """

    params: Any
    steps: Steps
    network: NetworkState

    def __init__(
        self,
        launch: RankLaunch,
        progress: Progress,
        *,
        metrics: Metrics | None,
        reset_exit_flag: bool,
        durable: bool,
        keeps: Sequence[Any],
    ) -> None:
        self.launch = launch
        self.progress = progress
        self.reset_exit_flag = reset_exit_flag
        self.recorder = RecorderThread(launch, durable=durable)
        self.places = SavePlaces(launch, progress, self.recorder)
        self.complaints = Complaints()
        self.keeper = Keeper(launch, progress, self.recorder, self.complaints, keeps)
        self.good = GoodStates(launch.name, progress)
        self.is_wrong = self.is_loaded_over = False
        self._metrics = metrics
        self._is_first = False

    @property
    def is_resumed(self) -> bool:
        """Whether `resume` decided where this launch starts."""
        return self.progress.start is not None

    def begin(self, params: Any) -> None:
        """Take up the training that MindSpore begins with these callback parameters.

        Raises `RefusedError` where it would not go on where `resume` said.
        """
        self.params = params
        self.is_wrong = self.is_loaded_over = False
        self.recorder.begin()
        self.launch.signs.begin()
        self.network = NetworkState(params.train_network, self.complaints)
        self.recorder.state_names = frozenset(self.network.names)
        self.steps = steps_of(params.train_dataset, self.launch.world_size)
        start = self.progress.start
        self._is_first = start is not None and not start.fresh and not self.progress.has_trained
        if start is not None and self._is_first:
            check_start(params, start.global_step, self.launch.earlier_start)

    def check_forgotten(self, steps_given: int) -> None:
        """Raise `RefusedError` where the first training begins at step 0, and nobody said so, though the run has saved.

        A script may have restored by itself: then the optimizer, the dataset or `append_info` (`steps_given`) tell.
        """
        launch, progress = self.launch, self.progress
        if progress.start is not None or progress.has_trained or not launch.saved_before:
            return
        if not (steps_given or self.params.train_dataset.get_init_step() or self.network.optimizer_step()):
            raise RefusedError(
                f"run {launch.name!r} has saved up to step {launch.saved_before}, and training would begin at step 0",
                f"call {Call('launch.resume', 'model', 'dataset')} before model.train; to begin anew on purpose: "
                f"{Call('launch.begin_fresh')}",
            )

    def end(self, *, is_wrong: bool) -> None:
        """Training has ended; the dataset begins anew with the next one.

        `resume` said where the first training starts, and no other. MindSpore keeps that, and would begin there in each
        later training too (`dataset/engine/iterators.py`).
        """
        self.is_wrong = is_wrong
        if self._is_first:
            begin_anew(self.params.train_dataset)

    def seed_step(self) -> None:
        """Have random layers draw in the step that begins what they would have drawn in it if nothing had happened."""
        if self.progress.seed is not None:
            seed_step([self.params.train_network], self.progress.seed, self.launch.rank, self.progress.global_step + 1)

    def record_steps_per_epoch(self) -> None:
        """Record what `resume` would have recorded of the dataset, where the script did not call it."""
        steps = self.steps
        if self.launch.facts.steps_per_epoch is None and steps.an_epoch:
            self.recorder.call(
                lambda: self.launch.set_steps_per_epoch(
                    steps.an_epoch, batch_size=steps.batch_size, shards=steps.shards
                )
            )

    def record_ending(self, error: str | None, *, half_done: bool = False) -> None:
        """Record the step that training ended at, and the exception's name if one ended it.

        `half_done`: it came in the middle of an update, and what MindSpore saves now holds a part of that.
        """
        launch, step, now = self.launch, self.progress.global_step + half_done, utc_now()
        quarantine = "an exception came in the middle of its update" if half_done else self.quarantine()
        counter = self.network.optimizer_step()
        ended = TrainingEnded(launch.run, launch.id, launch.rank, step, counter, error, quarantine, now)
        self.progress.ending = ended if error is not None else None
        self.recorder.call(lambda: launch.recorder.record([ended]))

    def record_breakpoint(self) -> None:
        """Record the breakpoint of the training before while it is known how that ended: this one ends otherwise."""
        ending, self.progress.ending = self.progress.ending, None
        if ending is not None:
            self.recorder.call(lambda: self.launch.record_left(ending, self.recorder.state_names))

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
        step = self.progress.global_step if global_step is None else global_step
        epoch, step_in_epoch = epoch_and_step(step, self.steps.an_epoch)
        return describe(
            self.launch.facts,
            rank=self.launch.rank,
            path=path,
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            kind=kind,
            global_step=step,
            optimizer_step=self.network.optimizer_step(),
            strategy_file=strategy_file(),
            content=content,
            metrics=self._measures(),
            quarantine=self.quarantine(),
            mtime_ns=written.mtime_ns if written is not None else None,
        )

    def quarantine(self) -> str:
        """What is wrong with the state as it is now; empty if nothing is."""
        if self.is_loaded_over:
            return "another state was loaded over the one that training was to start from"
        return "MindSpore found a wrong result (TREError)" if self.is_wrong else self.network.problem()

    def _measures(self) -> dict[str, float]:
        loss = self.network.loss()
        measured: dict[str, float] = {} if loss is None else {_LOSS: loss}
        if self._metrics is not None:
            try:
                measured |= {text(name): float(value) for name, value in self._metrics(self.params).items()}
            except Exception as error:  # noqa: BLE001 — the user's function: whatever it raises, the save counts
                failure = f"{type(error).__name__}: {error}"
                self.complaints.warn(f"metrics= failed, saves are registered without: {failure}")
        unusable = sorted(name for name, value in measured.items() if not math.isfinite(value))
        if set(unusable) - {_LOSS}:
            self.complaints.warn(f"metrics that are not finite are not stored: {', '.join(unusable)}")
        return {name: value for name, value in measured.items() if math.isfinite(value)}
