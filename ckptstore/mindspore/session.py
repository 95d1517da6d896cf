"""One training of a launch, as the registrar and a loop drive it: how a save of it is recorded, and how it ends."""

from __future__ import annotations

import logging
import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ckptstore.core.events import TrainingEnded
from ckptstore.core.hints import Call
from ckptstore.core.iterations import MODEL, parse_part
from ckptstore.core.limits import text
from ckptstore.core.model import Content, Kind, epoch_and_step
from ckptstore.core.naming import companion_of
from ckptstore.errors import RefusedError, reason_of
from ckptstore.mindspore.communication import strategy_file
from ckptstore.mindspore.data import steps_of
from ckptstore.mindspore.random_layers import seed_again, seed_step
from ckptstore.mindspore.state import NetworkState
from ckptstore.outside import Path, os, time, utc_now
from ckptstore.resume.register import describe
from ckptstore.training.complaints import Complaints
from ckptstore.training.recorder_thread import FLUSH_SECONDS, RecorderThread
from ckptstore.training.retention_thread import RetentionThread
from ckptstore.training.save_places import SavePlaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckptstore.core.model import Checkpoint
    from ckptstore.disk.files import FileFacts
    from ckptstore.mindspore.data import Steps
    from ckptstore.retention.policy import Policy
    from ckptstore.training.copies_to_tiers import CopiesToTiers
    from ckptstore.training.rank_launch import RankLaunch
    from ckptstore.training.start import Progress

log = logging.getLogger("ckptstore")

_FOLDER = "kept"
"""Below the directory of the files, with a directory for each launch: links to the newest good states."""

_KEPT = 2
"""How many good states are linked: another rank may have found the newest one to be bad."""


class Session:
    """One training, from `begin` to `close`.

    A driver counts the steps in `progress`, hands over each file with `saved`, and records the end with
    `record_ending`. With `reset_exit_flag` a flag of OnRequestExit is put back that was set before the launch, or that
    ended the training before (`Progress.flag_may_be_stale`); one that is set between two trainings is heeded.
    `check_restored` gets MindSpore's callback parameters, and may refuse. It is given for a framework that restores by
    itself and continues MindSpore's step count. Without it (`sets_count`) ckptstore continues that count.
    """

    params: Any  # MindSpore's callback parameters, if it runs the training
    network: NetworkState
    steps: Steps
    problem = ""  # what the driver knows to be wrong with the state

    def __init__(
        self,
        launch: RankLaunch,
        progress: Progress,
        *,
        durable: bool = False,
        retention: Policy | None = None,
        copies: CopiesToTiers | None = None,
        reset_exit_flag: bool = True,
        check_restored: Callable[[Any], None] | None = None,
    ) -> None:
        self.launch = launch
        self.progress = progress
        self.recorder = RecorderThread(launch, durable=durable, on_recorded=self._recorded)
        self.places = SavePlaces(launch, progress, self.recorder)
        self.complaints = Complaints()
        self.metrics: Callable[[], Mapping[str, float]] = dict  # the user's metrics for a save
        self.keep_beside: Callable[[str], None] = lambda _: None  # writes the companion of a saved file
        self.reset_exit_flag = reset_exit_flag
        self.sets_count = check_restored is None
        self.check_restored = check_restored or (lambda _: None)  # ckptstore restored the state itself
        self._is_uneven = False
        self._good = GoodStates(launch.name, progress)
        self._policy = retention
        self._retention = RetentionThread(launch, retention) if retention is not None and launch.rank == 0 else None
        self._copies = copies

    @property
    def is_resumed(self) -> bool:
        """Whether `resume` decided where this launch starts."""
        return self.progress.start is not None

    def _recorded(self, file: Checkpoint) -> None:
        """Pass on a recorded file. This is the recorder's thread: retention and copying work on their own threads."""
        if self._retention is not None:
            self._retention.file_registered(file)
        if self._copies is not None:
            self._copies.file_registered(file)

    def take(self, network: Any, dataset: Any) -> None:
        """Take the train network, or `TrainState`, and the dataset of the training."""
        self.problem = ""
        self.network = NetworkState(network, self.complaints)
        self.recorder.state_names = frozenset(self.network.names)
        self.steps = steps_of(dataset, self.launch.world_size)

    def begin(self) -> None:
        """Training begins."""
        self.recorder.begin()
        self.progress.recorder = self.recorder
        self.launch.signs.begin()

    def begin_retention(self) -> None:
        """Begin retention: the directories are known, and training is not refused."""
        if self._retention is not None:
            self._retention.begin()

    def check_limit(self, newest: int | None, minutes: int | None) -> None:
        """Warn if MindSpore deletes files that a rule of retention keeps.

        It leaves a callback its `newest` files, or of those of the last `minutes` the first and the newest one.
        """
        setting = f"keep_checkpoint_per_n_minutes={minutes}" if minutes else f"keep_checkpoint_max={newest}"
        left = 1 if minutes else newest
        rule = self._policy.beyond(left) if self._policy is not None and left and self.launch.rank == 0 else ""
        if rule:
            self.complaints.warn(
                f"{setting} of a ModelCheckpoint deletes files that {rule} of the retention keeps: "
                "give keep_checkpoint_max a high number, as 1_000_000, and gc alone deletes"
            )

    def check_forgotten(self, *, begins_anew: bool) -> None:
        """Raise `RefusedError` if the first training begins at step 0 without being asked to, though the run has saved.

        A script may have restored by itself: the optimizer's counter shows that, or the driver (not `begins_anew`).
        """
        launch, progress = self.launch, self.progress
        if progress.start is not None or progress.has_trained or not launch.saved_before:
            return
        if begins_anew and not self.network.optimizer_step():
            raise RefusedError(
                f"run {launch.name!r} has saved up to step {launch.saved_before}, and training would begin at step 0",
                f"call {Call('launch.resume', 'model', 'dataset')} before model.train; to start over on purpose: "
                f"{Call('launch.begin_fresh')}",
            )

    def check_epoch(self, steps: int, *, began_after: int = 0) -> None:
        """At the end of an epoch, warn once if the epochs so far did not have so many steps each.

        `began_after` is the step after which the first of them began.
        """
        if not self._is_uneven and (self.progress.global_step - began_after) % steps:
            self._is_uneven = True
            self.complaints.warn(
                f"an epoch ended after step {self.progress.global_step}, but the dataset reports {steps} batches per "
                "epoch: after a restart, training goes on with another batch"
            )

    def seed_step(self, networks: Iterable[Any]) -> None:
        """Let random layers draw the same numbers as without a restart in the step that begins, if asked for."""
        if self.progress.seed is not None:
            seed_step(networks, self.progress.seed, self.launch.rank, self.progress.global_step + 1)

    def record_steps_per_epoch(self) -> None:
        """Record the sizes of the dataset, if the script did not call `resume`, which records them."""
        launch, steps = self.launch, self.steps
        if launch.facts.steps_per_epoch is None and steps.an_epoch:
            self.recorder.call(
                lambda: launch.set_steps_per_epoch(steps.an_epoch, batch_size=steps.batch_size, shards=steps.shards)
            )

    def describe(
        self,
        path: str,
        *,
        kind: Kind,
        content: Content = Content.FULL,
        global_step: int | None = None,
        written: FileFacts | None = None,
    ) -> Checkpoint:
        """The record of a file that holds the state after `global_step` steps (None: those done so far).

        `written` describes the file if it is known to be complete: any other file at the path is not it.
        """
        step = self.progress.global_step if global_step is None else global_step
        epoch, step_in_epoch = epoch_and_step(step, self.steps.an_epoch)
        self.network.warn_of_numbers()
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

    def counts(self, epoch: int | None) -> dict[str, int]:
        """The counts to append to a file, with MindSpore's names. A parameter of such a name keeps its own value."""
        counted = {"epoch_num": epoch or 0, "step_num": self.progress.global_step}
        return {name: value for name, value in counted.items() if name not in self.network.parameters}

    def saved(self, file: Checkpoint, *, asynchronous: bool = False, is_state: bool = True) -> None:
        """Record a file that was saved; `is_state`: a periodic one with the whole state, or a share of it."""
        for good in self._good.saved(file) if is_state else ():  # first: later jobs may miss their files
            self.recorder.call(partial(_keep_companion, good.path))
            self.recorder.submit(good, asynchronous=asynchronous)
        self.recorder.submit(file, asynchronous=asynchronous)

    def quarantine(self) -> str:
        """The fault of the present state; empty if there is none."""
        return self.problem or self.network.problem()

    def _measures(self) -> dict[str, float]:
        loss = self.network.loss()
        measured: dict[str, float] = {} if loss is None else {"loss": loss}
        try:
            measured |= {text(name): float(value) for name, value in self.metrics().items()}
        except Exception as error:  # noqa: BLE001 — the user's function: whatever it raises, the save counts
            self.complaints.warn(f"metrics= failed, saves are registered without: {type(error).__name__}: {error}")
        unusable = sorted(name for name, value in measured.items() if not math.isfinite(value))
        if set(unusable) - {"loss"}:
            self.complaints.warn(f"metrics that are not finite are not stored: {', '.join(unusable)}")
        return {name: value for name, value in measured.items() if math.isfinite(value)}

    def record_ending(
        self, error: str | None, *, half_done: bool = False, is_counted: bool = False, at_exit: bool = False
    ) -> None:
        """Record the step that training ended at, and the exception's name if one ended it.

        `half_done`: it came in the middle of an update, so files that MindSpore saves now hold a part of that update;
        `is_counted`: the step was counted already. `at_exit`: record on this thread, since the interpreter ends; then
        `CatalogUnavailableError` may be raised.
        """
        under_way = half_done and not is_counted
        launch, step, now = self.launch, self.progress.global_step + under_way, utc_now()
        quarantine = "an exception came in the middle of its update" if half_done else self.quarantine()
        counter = self.network.optimizer_step()
        ended = TrainingEnded(launch.run, launch.id, launch.rank, step, counter, error, quarantine, now)
        self.progress.ending = ended if error is not None else None
        if at_exit:
            launch.recorder.record([ended])
        else:
            self.recorder.call(lambda: launch.recorder.record([ended]))

    def record_breakpoint(self) -> None:
        """Record the breakpoint of the previous training, before the end of this one replaces that one's."""
        ending, self.progress.ending = self.progress.ending, None
        if ending is not None:
            self.recorder.call(lambda: self.launch.record_left(ending, self.recorder.state_names))

    def close(self) -> None:
        """End the training: wait, for so long at most, for records and removals, and close everything."""
        began_at = time.monotonic()
        self.recorder.call(self.places.look_for_unwatched)
        self.progress.recorder = None
        self.recorder.finish()
        if self._retention is not None:
            self._retention.finish(max(0.0, FLUSH_SECONDS - (time.monotonic() - began_at)))
        if self._copies is not None:
            self._copies.finish(max(0.0, FLUSH_SECONDS - (time.monotonic() - began_at)))
        self.launch.signs.end()
        self.recorder.rest()
        self.places.release()
        if self.progress.seed is not None:  # last: another release of MindSpore may lack what it needs
            seed_again(self.progress.seed)


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
    """The record of a file under another name, which is a hard link; None if that cannot be made."""
    path = Path(file.path)
    link = path.parent / _FOLDER / file.launch / path.name
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(path, link)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("%s is not kept from keep_checkpoint_max: %s", file.path, reason_of(error))
        return None
    return replace(file, path=str(link))


def _keep_companion(link: str) -> None:
    """Keep the companion of a kept file too, if it has one. On the recorder's thread, which writes and deletes it."""
    companion = Path(companion_of(link))
    with suppress(OSError):  # a start says that there is none
        os.link(companion.parents[2] / companion.name, companion)


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

    @property
    def has_companion(self) -> bool:
        """Whether the file has a companion. Files with weights only have none; of parts, only those of the model do."""
        if self.content is not Content.PART:
            return self.content is not Content.WEIGHTS
        part = parse_part(self.path.rpartition("/")[2])
        return part is not None and part.holds == MODEL


class Watch:
    """One callback that saves, as the registrar sees it. A kind of callback overrides what it needs."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def begin(self, training: Session) -> None:
        """Training begins: record where the callback saves, and warn of settings that cannot work."""

    def step_begin(self) -> None:
        """A step begins."""

    def poll(self) -> Saved | None:
        """The file that the callback saved since the last poll."""
        return None

    def poll_all(self) -> Iterable[Saved]:
        """As `poll`, for a callback that saves several files at once."""
        saved = self.poll()
        return () if saved is None else (saved,)

    def end(self, training: Session) -> None:
        """Training has ended, whether well or not. Callbacks earlier in the list have not handled that yet."""
