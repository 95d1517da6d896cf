"""The callback that saves: for `Model.train`, in place of a ModelCheckpoint and a registrar."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore.experimental import MapParameter

from ckptstore.core import validate
from ckptstore.core.limits import HIGHEST
from ckptstore.core.model import Kind, epoch_and_step
from ckptstore.core.text import of_ranks
from ckptstore.disk.files import real_directory
from ckptstore.errors import CkptstoreError, RefusedError, UsageError, reason_of
from ckptstore.mindspore import communication, compat
from ckptstore.mindspore.registrar import Registrar, never_stops_training
from ckptstore.mindspore.schedule import LEFT, check_every
from ckptstore.mindspore.state import UNCUT, Parameters
from ckptstore.mindspore.state_writer import StateWriter
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    from ckptstore.mindspore.schedule import Schedule
    from ckptstore.mindspore.step_count import InterruptedStep
    from ckptstore.outside import os
    from ckptstore.training.rhythm import Every

    AppendInfo = Sequence[str | Mapping[str, float]]

log = logging.getLogger("ckptstore")

EPOCH = "epoch"
_COUNTS = ("epoch_num", "step_num")
_ENOUGH = 2  # copies of a state, as a hint
_INSTEAD = "use ModelCheckpoint and give it to launch.registrar"


class Saver(Registrar):
    """Saves the train network when it is due, and registers that. Made by `TrainingLaunch.saver`; last in the list."""

    def __init__(
        self,
        *given: Any,
        every: Every | Literal["epoch"],
        schedule: Callable[[Every], Schedule],
        directory: str | os.PathLike[str],
        prefix: str,
        form: str,
        append_info: AppendInfo,
        buffers: int | None,
        copies: int | None,
        **registers: Any,
    ) -> None:
        super().__init__(*given, **registers)
        self._every, self._make_schedule = every, schedule
        self._writer = StateWriter(self._session, directory=directory, prefix=prefix, form=form, buffers=buffers)
        self._append_info = append_info
        self._copies = copies
        self._writes = True
        self._schedule: Schedule | None = None
        self._is_asked = self._is_to_leave = self._leaves = self._is_timed = False

    def save(self) -> None:
        """Save once all callbacks have handled the end of the step, or of the epoch. All ranks must call it."""
        if not self._is_training:
            raise UsageError("saver.save was called, and no training is under way", "call it in a callback")
        self._is_asked = True

    def _nothing_else_saves(self) -> None:
        """No warning: the saver needs no other callback that saves."""

    def _begin_saving(self) -> None:
        session = self._session
        self._check(session.params)
        super()._begin_saving()
        an_epoch = session.steps.an_epoch
        if self._every == EPOCH and not an_epoch:
            raise RefusedError("the dataset does not tell how many steps an epoch has", "give every= as steps or time")
        self._schedule = self._make_schedule(an_epoch or 1 if self._every == EPOCH else self._every)  # type: ignore[arg-type]
        self._choose_writers()
        try:
            self._writer.begin(Parameters(session.network.parameters), copies=self._writes)
        except CkptstoreError as error:  # only a refusal keeps training from going on without a save
            raise RefusedError(error.message, error.hint) from error
        except OSError as error:
            raise RefusedError(f"nothing can be saved to {self._writer.directory}: {reason_of(error)}") from error
        self._is_asked = self._is_to_leave = self._leaves = self._is_timed = False

    def _check(self, params: Any) -> None:
        """Raise `RefusedError` for parameters that cannot be saved, and if another registrar is in the callbacks."""
        mode = mindspore.get_auto_parallel_context("parallel_mode")
        if mode not in UNCUT:
            raise RefusedError(f"launch.saver saves whole parameters, and in {mode} each rank has parts", _INSTEAD)
        for name, item in self._session.network.parameters.items():
            if isinstance(item, MapParameter):
                raise RefusedError(f"launch.saver cannot save {name}, which is a MapParameter", _INSTEAD)
        if taken := sorted(self._numbers().keys() & self._session.network.parameters.keys()):
            raise RefusedError(
                f"append_info has a number named {taken[0]}, which is also the name of a parameter",
                "give the number another name",
            )
        others = [each for each in params.list_callback if isinstance(each, Registrar) and each is not self]
        if others:
            name = type(others[0]).__name__
            raise RefusedError(
                f"a Saver and another {name} are among the callbacks, and each would count the steps",
                f"leave out that {name}: one launch.saver registers what all callbacks save",
            )
        own = Path(self._writer.directory)
        for watch in self._periodic():
            there = compat.DIRECTORY.get(watch.callback, None)
            if isinstance(there, str) and own.is_relative_to(real_directory(there)):
                self._session.complaints.warn(
                    f"ModelCheckpoint saves to {there} too: leave it out, launch.saver saves the same state"
                )

    def _choose_writers(self) -> None:
        """Choose the ranks that save: `copies` of each replica group, so that a state has a file of each group."""
        launch, layout = self._session.launch, self._session.launch.facts.layout
        most = max(map(len, layout.groups), default=1)
        if self._copies is None:
            if launch.rank == 0 and most > _ENOUGH:
                log.info(
                    "run %s: %d ranks each write the same state; copies=%d would write %d of %d files, on different "
                    "hosts where there are any",
                    launch.name,
                    most,
                    _ENOUGH,
                    _ENOUGH,
                    most,
                )
            return
        writers = layout.writers(self._copies, communication.hosts())
        self._writes = launch.rank in writers
        if launch.rank == 0:
            why = "" if most > 1 else f": no rank is known to be another's replica (layout: {layout.source})"
            save = "saves" if len(writers) == 1 else "save"
            log.info("run %s: %s of %d %s%s", launch.name, of_ranks(writers), launch.world_size, save, why)

    def _heed_requests(self, params: Any) -> None:  # noqa: ARG002
        if self._schedule is not None:
            self._schedule.begin()

    def _save_or_poll(self) -> bool:
        has_saved = self._poll()
        if self._schedule is None:
            return has_saved
        step = self._session.progress.global_step
        if not self._is_timed:  # not before: the first step is compiled
            self._is_timed = True
            self._writer.time_from(step)
        is_due, self._is_to_leave = self._schedule.after(step, self._writer.cost)
        self._is_asked = self._is_asked or is_due
        if not self._keeper.ends_epoch(step):
            return self._save_what_is_due() or has_saved
        return has_saved

    @never_stops_training
    def on_train_epoch_end(self, run_context: Any) -> None:
        """Make the save that is due after the last step of the epoch: all callbacks have handled its end."""
        super().on_train_epoch_end(run_context)
        self._save_what_is_due()

    def _save_what_is_due(self) -> bool:
        is_asked, self._is_asked = self._is_asked, False
        if self._is_to_leave:
            self._save(Kind.GRACEFUL_EXIT)
            self._leaves = True
            raise SystemExit(LEFT)
        if is_asked:
            self._save(Kind.PERIODIC)
        return is_asked

    @never_stops_training
    def on_train_end(self, run_context: Any) -> None:
        """Save the last state, if it is not saved."""
        super().on_train_end(run_context)
        if self._session.progress.global_step > self._writer.saved_step:
            self._save(Kind.PERIODIC)

    def _save_at_exception(self, doubt: str) -> None:
        if self._schedule is None:  # training was refused
            return
        step, saved = self._session.progress.global_step, self._writer.saved_step
        if self._keeper.awaits_epoch_end:
            doubt = "the exception came before all callbacks had handled the end of its epoch"
        if doubt and step > saved:
            log.warning("step %d is not saved: %s. The next start goes on after step %d", step, doubt, saved)
        elif step > saved:
            self._save(Kind.DYING_GASP)

    def _save(self, kind: Kind) -> None:
        session = self._session
        step = session.progress.global_step
        if not self._writes and kind is not Kind.DYING_GASP:  # at an exception the writers may be gone
            self._writer.saved_step = step
            if own := self._keeper.of_this_rank():
                session.complaints.warn(
                    f"rank {session.launch.rank} does not save (copies={self._copies}): a restart does not bring back "
                    f"{' and '.join(own)}; leave out copies= for that"
                )
            return
        epoch, step_in_epoch = epoch_and_step(step, session.steps.an_epoch)
        place = epoch or 0, step_in_epoch or 0
        beside = self._keeper.content(self._writer.path(place))
        numbers = {**self._numbers(), **session.counts(epoch)}
        file = self._writer.save(kind, place, beside, numbers=numbers)
        if file is not None and self._schedule is not None:
            self._schedule.saved()
            if file.optimizer_step is not None:
                self._steps.note_counter(file.global_step, file.optimizer_step)

    def _numbers(self) -> dict[str, float]:
        """The user's numbers that go into each file."""
        given = [each for each in self._append_info if not isinstance(each, str)]
        return {name: value for each in given for name, value in each.items()}

    def _ended_by(self, raised: type[BaseException] | None) -> str | None:
        return None if self._leaves else super()._ended_by(raised)

    def _end(self, error: str | None, left: InterruptedStep, doubt: str) -> None:
        self._writer.wait()
        super()._end(error, left, doubt)
        self._writer.wait()

    def _close(self) -> None:
        self._writer.wait()
        super()._close()
        schedule, self._schedule = self._schedule, None  # the next training may be refused before it has one
        leaves, self._leaves = self._leaves, False
        if schedule is not None:
            if leaves:
                step = self._session.progress.global_step
                schedule.leave(step, is_saved=self._writer.has_saved(step) or not self._writes)
            schedule.end()
            if not self._session.progress.has_failed:  # else the exception ends it, and is shown
                schedule.obey()


def check_saver(every: object, append_info: AppendInfo, copies: object) -> None:
    """Raise `UsageError` for invalid arguments of a saver."""
    if copies is not None:
        validate.number("copies", copies, "give the number of ranks that save each part of the state", lowest=1)
    if every != EPOCH:
        check_every(every, 'give a number of steps, a datetime.timedelta, "epoch", or "auto"')
    if not isinstance(append_info, (list, tuple)):
        raise UsageError(f"append_info is {append_info!r}", 'give a list, as [{"batch_scale": 2}]')
    for each in append_info:
        numbers = each.items() if hasattr(each, "items") else ()
        is_storable = all(_is_storable(name, value) for name, value in numbers)
        if not (each in _COUNTS if isinstance(each, str) else hasattr(each, "items") and is_storable):
            raise UsageError(
                f"append_info has {each!r}", 'give "epoch_num", "step_num" and dicts of numbers, as {"batch_scale": 2}'
            )


def _is_storable(name: object, value: object) -> bool:
    """Whether a file can hold a number under a name: with any other one, no save could be written."""
    is_name = isinstance(name, str) and name != "" and name.isprintable()
    return is_name and (isinstance(value, float) or (isinstance(value, int) and abs(value) <= HIGHEST))
