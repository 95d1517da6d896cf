"""Saves and restores state that no checkpoint of MindSpore has: that of callbacks, of the process, and of a rank.

It is stored as JSON in the companion of each save (`training/companions.py`). After a restart the callbacks and the
random numbers continue where they were at the save.
"""

from __future__ import annotations

import base64
import gc
import inspect
import json
import logging
import random
import re
import traceback
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Any, TypeAlias

import mindspore
import numpy as np
from mindspore import amp
from mindspore.experimental.optim import lr_scheduler
from mindspore.train import Callback, EarlyStopping, ReduceLROnPlateau

from ckptstore.core.text import count, some
from ckptstore.mindspore.data import an_epoch_of, randomness
from ckptstore.mindspore.hook_code import (
    EPOCH_BEGINS,
    EPOCH_ENDS,
    HOOKS,
    STEP_BEGINS,
    STEP_ENDS,
    sets_parameters,
    values_used,
)
from ckptstore.mindspore.state import OF_BATCH_NORM, RATE, named, outside_of
from ckptstore.mindspore.step_count import from_where_it_was_raised
from ckptstore.training.companions import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from ckptstore.core.model import Checkpoint, RestorePlan
    from ckptstore.mindspore.session import Session
    from ckptstore.mindspore.state import NetworkState
    from ckptstore.training.rank_launch import RankLaunch

log = logging.getLogger("ckptstore")

_MOST_AVERAGES = 16 << 20
_ALIKE = (EarlyStopping, ReduceLROnPlateau)
"""Callbacks with the same state on every rank: they sum up their values over the ranks, and all stop together."""
_SCHEDULERS = (lr_scheduler.LRScheduler, lr_scheduler.SequentialLR, lr_scheduler.ReduceLROnPlateau)
_STEPPED = (*_SCHEDULERS, amp.DynamicLossScaler)
_OF_ONE_RANK = {
    "averages": "its moving averages of BatchNorm",
    "random": "its random numbers",
    "device": "those of its device",
}
_ARRAY, _SCALAR, _TENSOR, _TUPLE = "__array__", "__scalar__", "__tensor__", "__tuple__"
_DTYPE = re.compile(r"[<>|][biufc][0-9]+")
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_OTHER_DATA = (*_GENERATORS, set, frozenset, bytes, bytearray, deque, complex)
"""Data that is not stored, though a script may expect it. Other objects, as a network or a log, are no data."""
_VALUES = (*_OTHER_DATA, dict, list, tuple, np.ndarray, mindspore.Tensor)
"""Classes whose objects are values themselves: what they hold is in none of their attributes, if they have any."""

RandomState: TypeAlias = "tuple[Any, Any]"


class Remembered:
    """The extra state that a rank finds beside the state that its launch starts from.

    `lost` are the records of ranks' own files of that state for which others' files stand in. State that differs by
    rank comes from this rank's own companion, even if its checkpoint is gone. Callbacks have the same state on all.
    """

    def __init__(self, plan: RestorePlan, lost: Iterable[Checkpoint], launch: RankLaunch) -> None:
        self._rank = launch.rank
        self.source = next(each.source for each in plan.ranks if each.rank == launch.rank)
        self._lacks_own = self.source.rank != launch.rank and plan.launch.world_size == launch.world_size
        found = _read(self.source)
        own = found if self.source.rank == launch.rank else {}
        for file in lost:
            if self._lacks_own and file.rank == launch.rank:
                own = own or _read(file)
        shared = own or found
        self._own = own
        self.loop = shared.get("loop")  # the state of a loop, as JSON text
        self.lacks_random = "random" in found and found.get("draws", True) and "random" not in own
        self._rates, self.callbacks = _part(shared, "rates"), _part(shared, "callbacks")
        self._alike, self.stopped = _part(shared, "alike"), _part(shared, "stopped")
        self.heard_all = bool(shared.get("heard_all", True))
        self.random, self.device = own.get("random"), own.get("device")

    def of_all(self) -> Any:
        """The values that all ranks must share, as JSON: if one rank stops alone, the others wait for ever."""
        return plain([self._rates, self._alike, self.stopped, self.heard_all])

    def agree(self, of_rank_0: Any) -> None:
        """Take rank 0's values of `of_all`."""
        self._rates, self._alike, self.stopped, self.heard_all = loaded(json.dumps(of_rank_0))
        self.callbacks |= self._alike

    def put(self, network: Any) -> None:
        """Set values that the file lacks: rates that are not in it or were set later, and this rank's averages."""
        outside = outside_of(network)
        if unknown := sorted(outside.keys() - self._rates.keys()):
            log.warning(
                "no saved state was found beside %s for %s: training goes on with those of the script",
                self.source.path,
                some(unknown),
            )
        parameters = {**named(network), **outside}
        lacking = {name for name in parameters if name.endswith(OF_BATCH_NORM)} if self._lacks_own else set()
        averages = _part(self._own, "averages") if self._lacks_own else {}
        for name, value in {**self._rates, **averages}.items():
            there = parameters.get(name)
            if there is not None and tuple(there.shape) == getattr(value, "shape", None):
                mindspore.ops.assign(there, mindspore.Tensor(value, there.dtype))
                lacking.discard(name)
        if lacking:
            log.warning(
                "rank %d uses %s of rank %d, because it loads that rank's file, and its own values were not kept",
                self._rank,
                count(len(lacking), "moving average", "moving averages"),
                self.source.rank,
            )

    def stopper(self, callbacks: Mapping[str, Any]) -> str:
        """The callback that had stopped training, and would stop it again; empty if none."""
        return next((name for name, waited in self.stopped.items() if _is_enough(callbacks.get(name), waited)), "")

    def bring_back(self, callbacks: Mapping[str, Any], setters: Iterable[str], *, with_random: bool) -> None:
        """Restore the state of callbacks and random generators.

        `setters` are the names of callbacks that set parameters at an epoch's end.
        """
        lacking = [name for name in callbacks if name not in self.callbacks]
        if lacking:
            log.warning(
                "no saved state was found beside %s for %s: they start from their initial state",
                self.source.path,
                ", ".join(lacking),
            )
        elif not self.heard_all and (hear := dict.fromkeys([*callbacks, *setters])):
            log.warning(
                "the process ended before %s handled the end of the step or epoch: this start does not call it for "
                "that end",
                ", ".join(hear),
            )
        for name in callbacks.keys() & self.callbacks.keys():
            try:
                set_state_of(callbacks[name], _attributes(_part(self.callbacks, name), callbacks[name]))
            except Exception as error:  # noqa: BLE001, PERF203 — the user's: whatever it raises, training goes on
                log.warning("%s does not take its state, and starts over: %s", name, error)
        self.warn_of_random()
        set_device_state(self.device)
        if with_random and self.random is not None:
            set_random_state(self.random)

    def warn_of_random(self) -> None:
        """Log a warning if random numbers start over, because this rank loads another rank's file."""
        if self.lacks_random:
            log.warning(
                "rank %d has the file of rank %d: its own random numbers start over", self._rank, self.source.rank
            )


class Keeper:
    """Stores with each save of a training the state that its file lacks. `keeps` are objects that the user named."""

    def __init__(self, session: Session, keeps: Sequence[Any]) -> None:
        self._session = session
        self._progress, self._complaints = session.progress, session.complaints
        self._keeps = tuple(keeps)
        self._kept: dict[str, Any] = {}
        self._setters: list[str] = []
        self._an_epoch = 1
        self._files: list[str] = []
        self._step = self._heard_epoch = -1
        self._at_stop: tuple[int, dict[str, Any], dict[str, Any]] = (-1, {}, {})
        self._random_after: tuple[int, Any] = (-1, None)
        self._begun_epoch = -1
        self._is_unheard = False
        self._params: Any = None

    def callbacks(self, listed: Sequence[Any], registrar: Any) -> dict[str, Any]:
        """The objects whose state is kept, by name: those of the user, and callbacks before the registrar."""
        places = [place for place, each in enumerate(listed) if each is registrar]
        before = listed[: places[0]] if places else listed
        chosen = [*self._keeps, *(each for each in before if _has_state(each) and not _is_in(self._keeps, each))]
        found: dict[str, Any] = {}
        for each in chosen:
            name = type(each).__name__
            same = sum(type(other).__name__ == name for other in found.values())
            found[f"{name}_{same + 1}" if same else name] = each
        return found

    def begin(self, params: Any, network: NetworkState, registrar: Any, remembered: Remembered | None) -> None:
        """Note the beginning of training. The callbacks before the registrar have handled it already."""
        self._params, self._network = None, network
        listed = list(params.list_callback)
        self._kept = self.callbacks(listed, registrar)
        self._warn(listed)
        self._setters = [type(each).__name__ for each in listed if sets_parameters(each, EPOCH_ENDS)]
        rates = {name: item for name, item in network.parameters.items() if RATE in name and item.size == 1}
        self._rates = {**rates, **network.outside}
        self._rates_before = self._rates_now()
        self._averages = averages_of(self._session)
        self._an_epoch, self._last_epoch = an_epoch_of(params), 0
        self._dataset_draws = randomness(params.train_dataset).threads > 0
        self._random_first, self._has_drawn = random_state(), False
        self._files, self._step, self._at_stop = [], -1, (-1, {}, {})
        self._random_after, self._begun_epoch, self._is_unheard = (-1, None), -1, False
        self._heard_epoch = self._progress.global_step  # up to here the callbacks have handled all ends
        self._remembered = remembered
        self._params = params
        if self.ends_epoch(self._progress.global_step):
            self.bring_back()

    def begin_epoch(self) -> None:
        """An epoch begins."""
        if self._params is None:
            return
        self._last_epoch = self._last_epoch or self._params.cur_epoch_num - 1 + self._params.epoch_num
        self._begun_epoch = self._progress.global_step
        if self._remembered is not None:
            self._put_back_rates()
        self.bring_back()

    def _put_back_rates(self) -> None:
        """Undo rates that callbacks set at the begin of the resumed epoch: it had begun before the restart."""
        now = self._rates_now()
        for name, rate in self._rates_before.items():
            if now[name] != rate:
                log.warning(
                    "%s was set to %.7g at the begin of epoch %d, which had begun before this start: it stays %.7g",
                    name,
                    now[name].item(),
                    self._params.cur_epoch_num,
                    rate.item(),
                )
                there = self._rates[name]
                mindspore.ops.assign(there, mindspore.Tensor(rate, there.dtype))

    def _rates_now(self) -> dict[str, Any]:
        return {name: np.array(item.asnumpy()) for name, item in self._rates.items()}

    def bring_back(self) -> None:
        """Restore the callbacks' state, once.

        After a resume in mid-epoch MindSpore calls the hook for the epoch's begin a second time: that must not count.
        """
        remembered, self._remembered = self._remembered, None
        if remembered is not None:
            remembered.bring_back(self._kept, self._setters, with_random=not self._dataset_draws)
            self._has_drawn = remembered.random is not None

    def end_step(self) -> None:
        """Note the random state after a step, if numbers are drawn: draws of the next step must not change it."""
        if self._params is None or self._dataset_draws:
            return
        if not self.ends_epoch(self._progress.global_step):
            self._note_random(looks=self._random_after[0] < 0)  # the first step tells whether each one draws

    def _note_random(self, *, looks: bool) -> None:
        now = random_state() if self._has_drawn or looks else None
        self._has_drawn = self._has_drawn or (now is not None and not is_same(now, self._random_first))
        self._random_after = self._progress.global_step, now if self._has_drawn else None

    def doubt(self, raised: TracebackType | None, *, begun: bool, done: bool) -> str:
        """Why the kept state, or a rate, may not be that after the last step; empty if it is.

        `begun`: the next step has begun. `done`: the exception came while callbacks handled the end of the last step.
        """
        if self._params is None:
            return ""
        doubt = self._doubt_of_its_end(raised, done=done)
        self._is_unheard = bool(doubt)
        if doubt or done:
            return doubt
        now = self._progress.global_step
        of_step = begun or _is_in_hook(raised, STEP_BEGINS)
        of_epoch = self._begun_epoch == now or _is_in_hook(raised, EPOCH_BEGINS)
        hooks = [*(STEP_BEGINS if of_step else ()), *(EPOCH_BEGINS if of_epoch else ())]
        hears = [each for each in self._kept.values() if _has_own(each, hooks)]
        hears += [each for each in self._params.list_callback if sets_parameters(each, hooks)]
        if hears:
            return f"{_names(hears)} may have handled the begin of the next step"
        step, after = self._random_after
        if hooks and step == now and after is None and not self._dataset_draws:
            drawn = not is_same(random_state(), self._random_first)
            return "the first random numbers were drawn after it, or shortly before" if drawn else ""
        return ""

    def _doubt_of_its_end(self, raised: TracebackType | None, *, done: bool) -> str:
        listed, now = self._params.list_callback, self._progress.global_step
        unheard = from_where_it_was_raised(raised, listed) or listed
        early = [each for each in self._kept.values() if _has_own(each, STEP_ENDS) and _is_in(unheard, each)]
        if done and early:
            return f"{_names(early)} may not have handled its end"
        if not self.ends_epoch(now) or self._heard_epoch == now:
            return ""
        left = unheard if _is_in_hook(raised, ["on_train_epoch_end"]) else listed
        early = [each for each in left if sets_parameters(each, EPOCH_ENDS)]
        return f"{_names(early)} may not have handled the end of its epoch" if early else ""

    def stop(self) -> None:
        """Note the state at a stop in mid-epoch: MindSpore still calls the hook for the epoch's end after that."""
        step = self._progress.global_step
        if self._params is not None and not self.ends_epoch(step):
            self._at_stop = step, self._state(), self._rates_now()

    def end_epoch(self) -> None:
        """Store the callbacks' state again with saves of an epoch's last step: the hooks for its end have run now."""
        step = self._progress.global_step
        if self._params is not None and self.ends_epoch(step):
            self._heard_epoch = step
            if not self._dataset_draws:
                self._note_random(looks=True)
            for path in self._files if self._step == step else ():
                self.saved(path)

    def saved(self, path: str) -> None:
        """Note that the state after the last step was saved to a file."""
        if state := self._state_for(path):
            step = self._progress.global_step
            self._session.recorder.keep_beside(path, step, lambda: dict(plain(state)))

    def content(self, path: str) -> Callable[[], dict[str, Any]]:
        """The extra state to store beside the next file, which has the state after the last step. For any thread."""
        state = self._state_for(path)
        return lambda: dict(plain(state))

    def of_this_rank(self) -> list[str]:
        """The state that only this rank has, in words."""
        state = self._state() if self._params is not None and self._network.is_readable else {}
        return [words for name, words in _OF_ONE_RANK.items() if name in state]

    def _state_for(self, path: str) -> dict[str, Any]:
        step = self._progress.global_step
        if self._params is None or self._progress.start is None or not self._network.is_readable:
            return {}
        rates = self._rates_now()
        if self._step != step:
            self._files, self._step, self._rates_before = [], step, rates
        if path not in self._files:
            self._files.append(path)
        state, right = self._at_stop[1:] if self._at_stop[0] == step else (self._state(), rates)
        return state if right == rates == self._rates_before else {**state, "rates": right}  # the file has other rates

    def _warn(self, listed: Sequence[Any]) -> None:
        late = [each for each in listed if _has_state(each) and not _is_in(self._kept.values(), each)]
        for name in sorted({type(each).__name__ for each in late}):
            self._complaints.warn(
                f"{name} comes after the registrar in the callbacks, and starts over after a restart: put the "
                "registrar last"
            )
        for name in sorted({type(each).__name__ for each in listed if _borrows_scheduler(each, self._keeps)}):
            self._complaints.warn(
                f"{name} uses a scheduler of learning rates that is not one of its attributes, so the scheduler starts "
                "over after a restart: make it an attribute of the callback"
            )
        if any(isinstance(each, EarlyStopping) and each.restore_best_weights for each in self._kept.values()):
            self._complaints.warn(
                "EarlyStopping(restore_best_weights=True) keeps the best weights in memory only: after a restart "
                "it knows only the best weights since the restart"
            )

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch, as MindSpore counts it, ends with a step."""
        return step % self._an_epoch == 0

    @property
    def awaits_epoch_end(self) -> bool:
        """Whether the last step ended an epoch, and the kept callbacks have not handled that end yet."""
        step = self._progress.global_step
        return bool(self._kept) and self.ends_epoch(step) and self._heard_epoch != step

    def _state(self) -> dict[str, Any]:
        """The present state to keep; empty if there is none."""
        state: dict[str, Any] = {}
        if self._kept or self._setters or self._network.outside:
            told = dict(self._states())
            alike = {name for name, each in self._kept.items() if isinstance(each, _ALIKE)}
            state["callbacks"] = {name: each for name, each in told.items() if name not in alike}
            state["alike"] = {name: each for name, each in told.items() if name in alike}
            state["rates"] = self._rates_now()
            state["stopped"] = self._stopped()
        if self._averages:
            state["averages"] = values_of(self._network, self._averages)
        if not self._dataset_draws:
            now = random_state()
            self._has_drawn = self._has_drawn or not is_same(now, self._random_first)
            if self._has_drawn:
                step, after = self._random_after
                state["random"] = after if after is not None and step == self._progress.global_step else now
        if (device := device_state()) is not None:
            state["device"] = device
        step = self._progress.global_step
        heard_all = not self._is_unheard and (self._heard_epoch == step or not self.ends_epoch(step))
        return state and state | {"heard_all": heard_all}

    def _states(self) -> Iterator[tuple[str, Any]]:
        for name, each in self._kept.items():
            whole = _is_in(self._keeps, each)
            try:
                state = _state_of(each, whole=whole)
                yield name, plain(state)
                if whole and (left := data_left_out(each, state)):
                    self._complaints.warn(f"{name} is kept without {left}")
            except Exception as error:  # noqa: BLE001 — the user's: whatever it raises, training goes on
                self._complaints.warn(f"the state of {name} is not kept, and starts over after a restart: {error}")

    def _stopped(self) -> dict[str, int]:
        """The callback that has just ended training before its last epoch, and how long it had waited."""
        if self._heard_epoch != self._progress.global_step or self._params.cur_epoch_num >= self._last_epoch:
            return {}
        early = {name: each for name, each in self._kept.items() if isinstance(each, EarlyStopping)}
        return {name: each.wait for name, each in early.items() if each.stopped_epoch == self._params.cur_epoch_num}


def averages_of(session: Session) -> list[str]:
    """The names of the moving averages that differ by rank, and are stored beside its files."""
    if session.launch.world_size == 1 or not session.launch.facts.layout.any_world_size:
        return []
    network = session.network
    found = [name for name in network.names if name.endswith(OF_BATCH_NORM)]
    size = sum(network.parameters[name].nbytes for name in found)
    if size > _MOST_AVERAGES:
        session.complaints.warn(
            f"the moving averages of this rank ({size >> 20} MB) are too large for a companion: if it must load "
            "another rank's file, it gets that rank's averages"
        )
        return []
    return found


def values_of(network: NetworkState, names: Iterable[str]) -> dict[str, Any]:
    """The values of parameters as they are now, by name."""
    return {name: np.array(network.parameters[name].asnumpy()) for name in names}


def _read(file: Checkpoint) -> dict[str, Any]:
    found = read(file)
    if found.problem:
        log.warning("%s: it is not used", found.problem)
    try:
        return dict(loaded(found.content or "{}"))
    except (ValueError, TypeError) as error:
        log.warning("the companion of %s is not used: %s", file.path, error)
        return {}


def _part(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = content.get(name)
    return dict(part) if isinstance(part, dict) else {}


def _attributes(state: dict[str, Any], callback: Any) -> dict[str, Any]:
    """The attributes to set, without those that would replace methods: another user may have written the file."""
    if hasattr(callback, "load_state_dict"):
        return state
    of_class = {name: inspect.getattr_static(type(callback), name, None) for name in state}
    return {
        name: value
        for name, value in state.items()
        if not callable(of_class[name]) and not hasattr(of_class[name], "__get__")  # a default value is data
    }


def _is_enough(callback: Any, waited: Any) -> bool:
    return isinstance(callback, EarlyStopping) and isinstance(waited, int) and waited >= callback.patience


def _has_own(callback: Any, hooks: Sequence[str]) -> bool:
    """Whether a callback does something in one of these hooks; any other object might."""
    if not isinstance(callback, Callback):
        return bool(hooks)
    return any(getattr(type(callback), each) is not getattr(Callback, each) for each in hooks)


def _is_in_hook(raised: TracebackType | None, hooks: Iterable[str]) -> bool:
    return any(frame.f_code.co_name in hooks for frame, _ in traceback.walk_tb(raised))


def _names(callbacks: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(type(each).__name__ for each in callbacks))


def _is_in(some: Iterable[Any], one: Any) -> bool:
    return any(each is one for each in some)


def _has_state(callback: Any) -> bool:
    is_told = hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")
    return is_told or isinstance(callback, _ALIKE) or bool(_schedulers(callback))


def _schedulers(callback: Any) -> dict[str, Any]:
    """The attributes of a callback that are MindSpore's schedulers of learning rates, or lists with such."""

    def has_any(value: Any) -> bool:
        return any(isinstance(each, _SCHEDULERS) for each in (value if isinstance(value, (list, tuple)) else [value]))

    return {name: value for name, value in vars(callback).items() if has_any(value)}


def counters_left_out(others: Iterable[Any], optimizers: Iterable[Any]) -> list[str]:
    """The classes of objects that step with these optimizers, or scale the loss, and that `others` lack.

    All objects of the process are looked at, since the script alone refers to them. A loss scale does not show its
    optimizer. Classes are compared by id: `issubclass` would hash them, and not all have a hash.
    """
    sought = set(map(id, _STEPPED))
    stepped = [each for each in gc.get_objects() if not sought.isdisjoint(map(id, type(each).__mro__))]
    saved = [part for each in others for part in _with_parts(each)]
    left = [each for each in stepped if not _is_in(saved, each)]
    parts = [part for each in left for part in list(_with_parts(each))[1:]]
    return sorted(
        type(each).__name__
        for each in left
        if not _is_in(parts, each) and (not hasattr(each, "optimizer") or _is_in(optimizers, each.optimizer))
    )


def _with_parts(known: Any) -> Iterator[Any]:
    """An object, and the schedulers and loss scales among its attributes."""
    yield known
    for value in getattr(known, "__dict__", {}).values():
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, _STEPPED):
                yield from _with_parts(each)


def _borrows_scheduler(callback: Any, keeps: Sequence[Any]) -> bool:
    """Whether a hook of a callback uses a scheduler that is a variable of the script: no companion has its state."""
    if hasattr(callback, "state_dict"):
        return False
    own = [*keeps, *_schedulers(callback).values()]
    return any(isinstance(used, _SCHEDULERS) and not _is_in(own, used) for used in values_used(callback, HOOKS))


def _state_of(callback: Any, *, whole: bool) -> dict[str, Any]:
    """The state of a callback: all that can be kept of one that the user named (`whole`)."""
    if hasattr(callback, "state_dict"):
        return state_of(callback)
    if isinstance(callback, EarlyStopping):
        return {name: getattr(callback, name) for name in ("best", "wait", "stopped_epoch")}
    if isinstance(callback, ReduceLROnPlateau):
        return {name: getattr(callback, name) for name in ("best", "wait", "cooldown_counter")}
    return state_of(callback) if whole else {name: _opened(value) for name, value in _schedulers(callback).items()}


def loaded(told: str) -> Any:
    """The value that `plain` and then `json.dumps` made a text of."""
    return json.loads(told, object_hook=_array)


def random_state() -> RandomState:
    """The states of Python's `random` and NumPy's global generator in this process."""
    return random.getstate(), np.random.get_state()


def is_same(one: RandomState, other: RandomState) -> bool:
    """Whether two random states are equal, so no number was drawn between them."""
    mine, others = one[1], other[1]
    if isinstance(mine, dict) or isinstance(others, dict):  # another generator than NumPy's first one
        return one[0] == other[0] and repr(mine) == repr(others)
    return one[0] == other[0] and mine[2:] == others[2:] and np.array_equal(mine[1], others[1])


def set_random_state(told: Any) -> None:
    """Restore a stored state of the random generators."""
    pythons, numpys = told
    try:
        random.setstate(pythons)
        np.random.set_state(numpys)
    except ValueError as error:
        log.warning("random numbers start over, as the script has another generator than the saved state: %s", error)


def device_state() -> Any:
    """The state of MindSpore's own generator, by `mindspore.get_rng_state`; None if it has none, as on CPU."""
    state = mindspore.get_rng_state().asnumpy()
    return state if state.any() else None


def set_device_state(told: Any) -> None:
    """Restore a stored state of MindSpore's generator (None: there was none)."""
    if told is not None:
        mindspore.set_rng_state(mindspore.Tensor(told))


def plain(value: Any) -> Any:
    """A number, text, None, array or tensor, or a list or dict of such, as JSON. Raises `TypeError` for others."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, dict):
        if other := [name for name in value if not isinstance(name, str)]:
            raise TypeError(f"the name {other[0]!r} is not text")
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        told = [plain(each) for each in value]
        return {_TUPLE: told} if isinstance(value, tuple) else told
    array = value.asnumpy() if hasattr(value, "asnumpy") else value
    if isinstance(array, (np.ndarray, np.generic)) and array.dtype.kind in "biufc":
        name = _TENSOR if isinstance(value, mindspore.Tensor) else _SCALAR if isinstance(array, np.generic) else _ARRAY
        array = np.asarray(array)
        return {name: [array.dtype.str, array.shape, base64.b64encode(array.tobytes()).decode()]}
    raise TypeError(f"it holds {type(value).__name__}")


def _array(found: dict[str, Any]) -> Any:
    name = next(iter(found), "")
    if len(found) != 1 or name not in {_ARRAY, _SCALAR, _TENSOR, _TUPLE}:
        return found
    if name == _TUPLE:
        return tuple(found[name])
    dtype, shape, data = found[name]
    if not _DTYPE.fullmatch(dtype):  # NumPy would read it as Python code
        raise ValueError(f"{dtype!r} is no type of numbers")
    array = np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
    if name == _SCALAR:
        return array[()]
    return mindspore.Tensor(array) if name == _TENSOR else array


def state_of(known: Any) -> dict[str, Any]:
    """The `state_dict` of an object; without one, its numbers, text, arrays and parameters.

    Includes those of schedulers in it, and of objects in a list, as the schedulers of `SequentialLR`.
    """
    if hasattr(known, "state_dict"):
        return dict(known.state_dict())
    found = {name: _opened(value) for name, value in vars(known).items()}
    return {name: value for name, value in found.items() if not why_not(value)}


def _opened(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and all(map(_is_opened, value)):
        return [_parts(each) for each in value]
    return _parts(value) if isinstance(value, _SCHEDULERS) else value


def _parts(value: Any) -> dict[str, Any]:
    """The attributes of a nested object that can be kept. A scheduler's rates are left out: the optimizer has them."""
    found = dict(vars(value))
    if isinstance(value, _SCHEDULERS):
        found.pop("_last_lr", None)
        found = {name: _opened(own) for name, own in found.items()}
    return {name: own for name, own in found.items() if not why_not(own)}


def _is_opened(value: Any) -> bool:
    return hasattr(value, "__dict__") and not callable(value) and not isinstance(value, mindspore.Tensor)


def why_no_state(known: Any) -> str:
    """Why nothing of an object can be kept; empty if something can."""
    if hasattr(known, "state_dict") or (hasattr(known, "__dict__") and not isinstance(known, _VALUES)):
        return ""
    return f"a {type(known).__name__} has no state_dict"


def data_left_out(known: Any, state: Mapping[str, Any]) -> str:
    """The attributes of an object with data that its `state_of` lacks, and what to do about it; empty if none."""
    if hasattr(known, "state_dict") or isinstance(known, _SCHEDULERS):
        return ""
    if not (names := [name for name, value in vars(known).items() if name not in state and _is_other_data(value)]):
        return ""
    return (
        f"{', '.join(names)}: only numbers, text, arrays, and lists and dicts of these by text are stored; to keep the "
        "rest, give the object state_dict and load_state_dict"
    )


def _is_other_data(value: Any) -> bool:
    if isinstance(value, dict):
        return not all(isinstance(name, str) for name in value) or any(map(_is_other_data, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_is_other_data, value))
    return isinstance(value, _OTHER_DATA) or (
        isinstance(value, (np.ndarray, mindspore.Tensor)) and bool(why_not(value))
    )


def networks_left_out(known: Any, saved: Iterable[Any]) -> list[str]:
    """The attributes of an object with networks whose parameters are not `saved`: `state_of` has no networks."""
    ids = set(map(id, saved))

    def is_lacking(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(map(is_lacking, value))
        return isinstance(value, mindspore.nn.Cell) and any(id(each) not in ids for each in value.get_parameters())

    own = {} if hasattr(known, "state_dict") else vars(known)
    return [name for name, value in own.items() if is_lacking(value)]


def set_state_of(known: Any, state: dict[str, Any]) -> None:
    """Restore a state of `state_of` into an object; its parameters stay the same objects."""
    cell, own = mindspore.nn.Cell, type(known)
    if isinstance(known, cell) and (own.state_dict, own.load_state_dict) == (cell.state_dict, cell.load_state_dict):
        # When strict, MindSpore takes the parameters of a ParameterTuple for unexpected ones: their names have dots.
        known.load_state_dict(state, strict=state.keys() != known.state_dict().keys())
        return
    if hasattr(known, "load_state_dict"):
        known.load_state_dict(state)
        return
    for name, value in {name: _put(getattr(known, name, None), value) for name, value in state.items()}.items():
        setattr(known, name, value)


def _put(there: Any, value: Any) -> Any:
    """The value to set in place of another one: of the class of that one, as `namedtuple` and `defaultdict`."""
    if isinstance(there, (list, tuple)) and isinstance(value, (list, tuple)) and len(there) == len(value):
        parts = [_put(*pair) for pair in zip(there, value, strict=True)]
        is_named = hasattr(there, "__match_args__")  # a namedtuple takes its parts one by one
        return type(there)(*parts) if is_named else type(there)(parts)
    if isinstance(there, dict) and isinstance(value, dict):
        entries = {name: _put(there.get(name), each) for name, each in value.items()}
        put = there if hasattr(there, "__dict__") else copy(there)  # a class of the script may not bear a copy
        put.clear()
        put.update(entries)
        return put
    if isinstance(value, dict) and _is_opened(there):
        set_state_of(there, value)
        return there
    if not isinstance(there, mindspore.Tensor):
        return value
    tensor = mindspore.Tensor(value, there.dtype)
    if not isinstance(there, mindspore.Parameter):
        return tensor
    mindspore.ops.assign(there, tensor)
    return there


def why_not(value: Any) -> str:
    """Why a value cannot be kept; empty if it can."""
    try:
        plain(value)
    except TypeError as error:
        return str(error)
    return ""
