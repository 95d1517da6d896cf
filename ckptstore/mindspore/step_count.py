"""Counts and times the steps of a training. MindSpore's own count, in names too, begins at 0 in every launch."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING, Any

import mindspore

from ckptstore.core.model import Timing
from ckptstore.core.text import count
from ckptstore.mindspore.data import an_epoch_of
from ckptstore.mindspore.hook_code import sets_parameters
from ckptstore.mindspore.state import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from ckptstore.mindspore.session import Session
    from ckptstore.mindspore.watches import PeriodicWatch

log = logging.getLogger("ckptstore")

_SEEN = 16
"""A step with a save is compared with so many of the last steps without one; there must be `_FEWEST` of them."""
_FEWEST = 3


class InterruptedStep(Enum):
    """How much of the step is in the network: nothing, all of it, perhaps a part of its update, or it is not known."""

    NOT_DONE = "not done"
    DONE = "done"
    HALF_DONE = "half done"
    UNKNOWN = "unknown"


class StepCount:
    """Counts the completed steps of one training into its launch's progress.

    It also lets MindSpore's count go on from there, for the ModelCheckpoints given to `begin`. `goes_back` tells that
    MindSpore found a wrong result in the training before.
    """

    def __init__(self, session: Session, *, goes_back: bool = False) -> None:
        self._session = session
        self._progress = session.progress
        self._goes_back = goes_back
        self._is_repair = False
        self._periodic: Sequence[PeriodicWatch] = ()
        self._has_epoch = self._in_step = False
        self._base: tuple[int, int] | None = None
        self._sink_steps = 1
        self._outputs_before: Any = None
        self._counter_seen: tuple[int, int | None] = (0, None)

    def begin(self, periodic: Sequence[PeriodicWatch], *, is_repair: bool) -> None:
        """Start from where the launch stands; `is_repair`: MindSpore goes on in this process after a fault."""
        self._periodic, self._is_repair = periodic, is_repair
        if not self._progress.global_step:
            self._progress.global_step = self._given()
        self.note_counter(self._progress.global_step, self._session.network.optimizer_step())
        if not is_repair:
            self._continue_count()

    def _given(self) -> int:
        """The steps done before, by the script's `append_info`. After `resume` it does not count."""
        given = max((watch.steps_given() for watch in self._periodic), default=0)
        if given and self._session.is_resumed:
            self._session.complaints.warn(
                f"append_info says that {count(given, 'step was', 'steps were')} done before, but the run starts at "
                "step 0: they are not counted"
            )
            return 0
        return given

    def begin_epoch(self) -> None:
        """In the first epoch of a training read its number: it shows how far a script is that restored by itself."""
        if self._has_epoch:
            return
        self._has_epoch = True
        params, done = self._session.params, self._progress.global_step
        steps = an_epoch_of(params)
        epochs_before = params.cur_epoch_num - 1
        if self._is_repair:
            self._go_on_from(_repaired_step(params, epochs_before * steps))
        elif done // steps < epochs_before:
            self._progress.global_step = epochs_before * steps
            self._counter_seen = (self._progress.global_step, self._counter_seen[1])
            self._continue_count()
        if epochs_before or self._session.is_resumed:
            for watch in self._periodic:
                watch.count_epochs_once()

    def begin_step(self) -> None:
        """Note what the step starts from."""
        params = self._session.params
        self._outputs_before = params.get("net_outputs")
        self._in_step = True
        if params.get("dataset_sink_mode") and mindspore.get_context("mode") == mindspore.GRAPH_MODE:
            self._sink_steps = int(params.dataset_helper.sink_size())  # known only now, in the first epoch
        if self._base is None:
            self._base = (self._progress.global_step, params.cur_step_num - self._sink_steps)

    def end_step(self) -> None:
        """Count the steps of this call, by the difference of MindSpore's count: no step is counted twice."""
        self._progress.global_step = self._count()
        self._in_step = False
        self._outputs_before = None
        self._session.network.outputs = self._session.params.get("net_outputs")

    @property
    def has_begun_next(self) -> bool:
        """Whether the step after the last one that was counted has begun."""
        return self._in_step

    @property
    def in_network(self) -> int:
        """How many steps are in the network, with one whose end only callbacks earlier in the list have handled."""
        if self._in_step and self._session.params.get("net_outputs") is not self._outputs_before:
            return self._count()
        return self._progress.global_step

    def _count(self) -> int:
        step, at = self._base or (0, 0)
        return step + int(self._session.params.cur_step_num) - at

    def note_counter(self, step: int, updates: int | None) -> None:
        """Note that the optimizer had counted so many updates after a step."""
        self._counter_seen = (step, updates)

    def interrupted(self, raised: TracebackType | None) -> InterruptedStep:
        """Whether the step that an exception interrupted is done; not, if the exception came between two steps.

        A callback earlier in the list that raises in step_end hides the step's end from this count: then the network's
        outputs are new. It may have kept others from setting parameters, as LearningRateScheduler does. Otherwise the
        optimizer's counter may show it. Reading the counter waits for the device; at every step that would be too slow.
        """
        if not self._in_step:
            return InterruptedStep.NOT_DONE
        if self._session.params.get("net_outputs") is not self._outputs_before:
            listed = self._session.params.list_callback
            unheard = from_where_it_was_raised(raised, listed) or listed
            return InterruptedStep.HALF_DONE if any(map(sets_parameters, unheard)) else InterruptedStep.DONE
        step, updates = self._counter_seen
        now = self._session.network.optimizer_step()
        if updates is None or now is None:
            return InterruptedStep.UNKNOWN
        start, frames = self._progress.start, (frame for frame, _ in traceback.walk_tb(raised))
        return interrupted_step(
            (now - updates) - (self._progress.global_step - step),
            counts_all=updates == step - (start.offset if start is not None else 0),
            is_one_call=mindspore.get_context("mode") == mindspore.GRAPH_MODE,
            changes_others=bool(self._session.network.other_than_updated()),
            raised_in_optimizer=any(isinstance(frame.f_locals.get("self"), OPTIMIZERS) for frame in frames),
        )

    def _go_on_from(self, step: int) -> None:
        """Go on from the step to which MindSpore repaired a fault. After a wrong result quarantine the later saves."""
        if self._goes_back:
            reason = f"MindSpore found a wrong result (TREError) and went back from it to step {step}"
            log.warning("all that this launch saved after step %d is quarantined: %s", step, reason)
            self._session.recorder.quarantine_after(step, reason)
        self._progress.global_step = step
        self._continue_count()

    def _continue_count(self) -> None:
        """Set MindSpore's count to the true step: names and logs stay true."""
        if not self._session.sets_count:
            return
        self._session.params.cur_step_num = self._progress.global_step
        for watch in self._periodic:
            watch.continue_count(self._progress.global_step)


class StepTimes:
    """Measures the cost of saves by MindSpore's callbacks: how much longer a step with a save took than others.

    For one training. Moments are seconds of the monotonic clock, taken by the last callback in the list.

    A step begins when all callbacks have handled its begin, and ends when all have handled its end. So reading the
    dataset before it, and evaluations between epochs, are in the time from end to end only. With data sinking, the
    steps of one sink count as one.
    """

    def __init__(self) -> None:
        self._within: deque[float] = deque(maxlen=_SEEN)
        self._a_step: deque[float] = deque(maxlen=_SEEN)
        self._began: float | None = None
        self._ended: tuple[float, int] | None = None
        self._last: tuple[float, float] | None = None

    def begins(self, now: float) -> None:
        """A step begins."""
        self._began = now

    def ends(self, now: float, step: int) -> None:
        """The step has ended: `step` steps are done. The first one is not used, since it includes compilation."""
        if self._began is not None and self._ended is not None and step > self._ended[1]:
            self._last = now - self._began, (now - self._ended[0]) / (step - self._ended[1])
        self._began, self._ended = None, (now, step)

    def of_save(self) -> Timing | None:
        """The cost of the save in the step that has just ended; None if it is not known."""
        if self._last is None or len(self._within) < _FEWEST:
            return None
        return Timing(max(0.0, self._last[0] - median(self._within)), step=median(self._a_step))

    def done(self, *, saved: bool) -> None:
        """All saves of that step are known. A step without a save is kept for comparison."""
        if self._last is not None and not saved:
            self._within.append(self._last[0])
            self._a_step.append(self._last[1])
        self._last = None


def is_wrong_result(error: object) -> bool:
    """Whether MindSpore ended training because of a wrong result: a training result error.

    `_handle_tft` in its `train/model.py` recognises it by "TREError" in the text of a `RuntimeError`, and each rank
    loads an older state by its `ckpt_load_fn`, or its snapshot. All other errors (UCEError, HCCEError, ForceStopError,
    "ARF FINISH") are left to MindIO's controller: there hardware failed, and the earlier saves are good.
    """
    return isinstance(error, RuntimeError) and "TREError" in str(error)


def _repaired_step(params: Any, steps_of_epochs: int) -> int:
    """The step that MindSpore goes on after, having repaired a fault in the same process.

    It calls `_train` again: with `initial_step` counted in the epoch, or from the beginning if data sinks; a
    training result error leaves it in the callback parameters (`_handle_tft`, `_calc_cb_initial_step` in
    `train/model.py`).
    """
    from_the_beginning = int(params.get("initial_step") or 0)
    if from_the_beginning:
        return from_the_beginning
    given = int(params.cur_step_num)
    return given if params.get("dataset_sink_mode") else steps_of_epochs + given


def from_where_it_was_raised(raised: TracebackType | None, callbacks: Sequence[Any]) -> Sequence[Any]:
    """The callback that raised and those behind it; none, if it was no callback."""
    inside = {id(frame.f_locals.get("self")) for frame, _ in traceback.walk_tb(raised)}
    return callbacks[next((place for place, each in enumerate(callbacks) if id(each) in inside), len(callbacks)) :]


def interrupted_step(
    updates: int, *, counts_all: bool, is_one_call: bool, changes_others: bool, raised_in_optimizer: bool
) -> InterruptedStep:
    """How much of a step is done, by the optimizer's counter: it is `updates` ahead of the steps that were counted.

    - `counts_all`: the counter left out no step so far.
    - `is_one_call`: a step is one call of the device (GRAPH_MODE), so all of it is done or nothing. Otherwise an
      exception comes between two operators (PyNative): the optimizer may have counted the step, and changed only some
      of the parameters.
    - `changes_others`: there are parameters that no optimizer updates. Averages of batch normalization change before
      any update.
    """
    if updates == 1 and is_one_call:
        return InterruptedStep.DONE
    if not is_one_call and (updates == 1 or raised_in_optimizer):
        return InterruptedStep.HALF_DONE
    if updates == 0 and counts_all:
        return InterruptedStep.NOT_DONE if is_one_call or not changes_others else InterruptedStep.HALF_DONE
    return InterruptedStep.UNKNOWN
