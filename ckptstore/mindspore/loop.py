"""The functional loop: it yields the batches, counts the steps, and saves network and optimizer when a save is due."""

from __future__ import annotations

import dis
import inspect
import json
import logging
import sys
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from mindspore import nn

from ckptstore.core import validate
from ckptstore.core.model import Kind, epoch_and_step
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.mindspore import extra_state
from ckptstore.mindspore.data import batches_after, check_dataset, randomness, say_if_endless
from ckptstore.mindspore.schedule import check_every
from ckptstore.outside import atexit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ckptstore.mindspore.data import Exact
    from ckptstore.mindspore.extra_state import Remembered
    from ckptstore.mindspore.load_guard import LoadGuard
    from ckptstore.mindspore.schedule import Schedule
    from ckptstore.mindspore.session import Session
    from ckptstore.mindspore.state import TrainState
    from ckptstore.mindspore.state_writer import StateWriter
    from ckptstore.training.start import Start

log = logging.getLogger("ckptstore")


class Loop:
    """A training that the script steps through itself. Made by `TrainingLaunch.loop`.

        for batch in loop:
            loss = train_step(*batch)
            loop.step(loss=loss)

    It begins with the batch after the last one that the restored state had consumed, and ends after `epochs` epochs.
    `keep` holds the script's own numbers, text and small arrays, by name: they are saved with the state, and restored.
    A `break` after `step` saves the state with the `keep` of that moment. `start` tells where the loop goes on.
    """

    def __init__(
        self,
        session: Session,
        writer: StateWriter,
        state: TrainState,
        dataset: Any,
        start: Start,
        *,
        remembered: Remembered | None,
        guard: LoadGuard,
        epochs: int,
        exact_data: Exact,
        schedule: Schedule,
        others: Mapping[str, Any],
    ) -> None:
        self.start = start
        self.keep: dict[str, Any] = {}
        self._session, self._writer, self._state, self._dataset = session, writer, state, dataset
        self._launch, self._progress = session.launch, session.progress
        self._guard, self._others = guard, dict(others)
        self._an_epoch = self._launch.facts.steps_per_epoch or 1
        self._epochs = int(epochs)  # numpy's too, which MindSpore's iterators refuse
        self._last_step = self._epochs * self._an_epoch
        self._exact_data = exact_data
        self._schedule = schedule
        self._has_begun = self._in_body = self._in_step = self._is_over = False
        self._is_asked = False  # `save` asked for a save of this step
        self._metrics: Mapping[str, float] = {}
        session.metrics = lambda: self._metrics
        self._counted = (self.global_step, state.counters())
        self._remembered = remembered
        cells = [each for each in self._others.values() if isinstance(each, nn.Cell)]
        saved = [*state.named.values(), *chain.from_iterable(each.get_parameters() for each in cells)]
        for name, each in self._others.items():
            if left := extra_state.networks_left_out(each, saved):
                session.complaints.warn(
                    f"others[{name!r}] is saved without the parameters of {', '.join(left)}: give each of these "
                    "networks to others= too"
                )
        self._bring_back()
        self._random_first = extra_state.random_state()
        self._draws = False
        self._changes_after: set[bool] = set()  # `keep` changed after `step`, in bodies that end an epoch or not
        self._beside = self._kept()
        self._saved_keep = self._beside["keep"]

    @property
    def global_step(self) -> int:
        """Batches consumed since the run began."""
        return self._progress.global_step

    @property
    def epoch(self) -> int:
        """The epoch of the batch in the body, from 1; before the first batch, the epoch of that one."""
        return self._place(self._step_in_hand)[0]

    @property
    def step_in_epoch(self) -> int:
        """The number of that batch in its epoch, from 1."""
        return self._place(self._step_in_hand)[1]

    @property
    def ends_epoch(self) -> bool:
        """Whether that batch is the last one of its epoch: the place for an evaluation, after `step`."""
        return self.step_in_epoch == self._an_epoch

    @property
    def _step_in_hand(self) -> int:
        is_done = self._in_body and not self._in_step
        return min(self.global_step + (not is_done), self._last_step)

    @property
    def fresh(self) -> bool:
        """Whether there was nothing to restore."""
        return self.start.fresh

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left, as `Dataset.create_tuple_iterator` gives them."""
        if self._has_begun:
            raise UsageError("this loop was gone through before", "join again, and make another loop")
        self._has_begun = True
        if self.global_step >= self._last_step:
            self._draw_on()
            log.info(
                "run %s: all %d epochs were trained before: nothing left to train", self._launch.name, self._epochs
            )
            self._end(None)
            return
        self._warn_of_counters()
        try:
            self._begin()
            yield from self._batches()
            if self.global_step > self._writer.saved_step:
                self._save(Kind.PERIODIC, self._kept())
        except GeneratorExit:  # by `break` or by an exception in the body
            if not self._is_over:
                self._leave(None, by_break=_is_at_break(inspect.currentframe()))
            raise
        except BaseException as error:
            if not self._is_over:
                self._leave(error)
            raise
        self._end(None)
        self._over()
        self._schedule.obey()

    def step(self, *, loss: Any = None, metrics: Mapping[str, float] | None = None) -> None:
        """Count the finished step. If a save is due, the state is saved when the body of the loop ends.

        Call it in the body after all that trains. `loss` and `metrics`, finite numbers by name, are kept with the save
        of this step; a state whose loss is no number is quarantined. Raises `UsageError` if no batch was taken.
        """
        if not self._in_step:
            raise UsageError("loop.step was called, and no batch was taken", "call it once for each batch of the loop")
        self._in_step = False
        self._progress.global_step += 1
        self._session.network.outputs = loss
        self._metrics = metrics or {}
        if self.global_step == self.start.global_step + 1:
            self._draws = self._has_drawn()
            self._writer.time_from(self.global_step)
        self._beside = self._kept()

    def save(self) -> None:
        """Save this step too, though no save is due. The save is made when the body ends, and so has all its changes.

        All ranks must call it in the same step. Raises `UsageError` outside of the body.
        """
        if not self._in_body or self._is_over:
            raise UsageError("loop.save was called outside of the loop", "call it in the body of the for statement")
        self._is_asked = True

    def _begin(self) -> None:
        self._guard.begin()
        self._progress.has_trained = True
        self._session.begin()
        self._writer.begin(self._state)
        self._session.begin_retention()
        self._schedule.begin()
        atexit.register(self._at_exit)

    def _batches(self) -> Iterator[Any]:
        self._random_first = extra_state.random_state()
        batches = batches_after(self._dataset, self.global_step, self._epochs, self._exact_data)
        for _ in range(self.global_step // self._an_epoch, self._epochs):
            for batch in batches:
                if self.global_step == self.start.global_step:
                    self._guard.check(self._state.named, (), self.global_step)
                    self._draw_on()
                self._in_step = self._in_body = True
                self._is_asked = False
                self._session.seed_step(self._state.networks.values())
                yield batch
                if self._in_step:
                    raise UsageError(
                        f"the batch after step {self.global_step} was taken, and loop.step was not called",
                        "call loop.step() in the body, once for each batch, also for one that is passed over",
                    )
                self._in_body = False
                self._end_body()
            self._session.check_epoch(self._an_epoch)

    def _end_body(self) -> None:
        """The body has ended: save if a save is due or asked for, and leave if an exit is asked for."""
        step = self.global_step
        beside = self._kept()
        if beside != self._beside:
            self._changes_after.add(step % self._an_epoch == 0)
        self._beside = beside
        saves, leaves = self._schedule.after(step, self._writer.cost)
        if leaves and step < self._last_step:
            self._save(Kind.GRACEFUL_EXIT, beside)
            self._end(None)
            left = self._schedule.leave(step, is_saved=self._writer.has_saved(step))
            self._over()
            raise left
        if saves or self._is_asked:
            self._save(Kind.PERIODIC, beside)

    def _save(self, kind: Kind, kept: dict[str, Any], *, at_exit: bool = False) -> None:
        step = self.global_step
        self._draws = self._draws or self._has_drawn()
        self._warn_of_sums()
        self._counted = (step, self._state.counters())
        beside = self._companion(kept)
        self._writer.save(kind, self._place(step), lambda: beside, at_exit=at_exit)
        self._schedule.saved()

    def _warn_of_sums(self) -> None:
        """Warn once if half of the steps since the last save, or more, had no update: a script may sum up gradients.

        A loss scale passes over updates too, but fewer.
        """
        behind = {updates for updates in self._updates_since() if updates is not None}
        if behind and 2 * max(behind) <= self._counted[0] - self.global_step < 0 and not self._others:
            self._session.complaints.warn(
                "the optimizer did not update in each step: gradients that the script sums up in the meantime are not "
                "saved, and start over after a restart; hold them in parameters of an object, and give it to others="
            )

    def _warn_of_counters(self) -> None:
        """Warn of schedulers and loss scales that `others` lack."""
        for name in extra_state.counters_left_out(self._others.values(), list(self._state.optimizers.values())):
            self._session.complaints.warn(
                f"a {name} of the script is not saved with the state, and starts over after a restart; if this loop "
                "uses it, give it to others="
            )

    def _companion(self, kept: dict[str, Any]) -> dict[str, Any]:
        """The state that is saved beside the parameters."""
        self._saved_keep = kept["keep"]
        states = {name: extra_state.state_of(each) for name, each in self._others.items()}
        others = self._plain("others", states)
        for name, each in self._others.items():
            if left := extra_state.data_left_out(each, states[name]):
                self._session.complaints.warn(f"others[{name!r}] is saved without {left}")
        return {
            "loop": json.dumps({"keep": kept["keep"], "others": others}),
            "random": kept.get("random") or extra_state.plain(extra_state.random_state()),
            "device": extra_state.plain(extra_state.device_state()),
            "averages": extra_state.plain(
                extra_state.values_of(self._session.network, extra_state.averages_of(self._session))
            ),
            "draws": self._draws,
        }

    def _kept(self) -> dict[str, Any]:
        """The script's own state, and its random state if it draws numbers: reading that takes time."""
        random = {"random": extra_state.plain(extra_state.random_state())} if self._draws else {}
        return {"keep": self._plain("keep", self.keep), **random}

    def _plain(self, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values that can be stored, in plain form. Each of the others, and each lost class, is logged once."""
        found: dict[str, Any] = {}
        warn = self._session.complaints.warn
        for name, value in values.items():
            try:
                found |= extra_state.plain({name: value})
            except TypeError as error:
                warn(f"{what}[{name!r}] is not saved with the state: {error}")
                continue
            kind = next((each for each in (dict, list, tuple) if isinstance(value, each)), type(value))
            if type(value) is not kind:
                warn(f"{what}[{name!r}] is restored as a {kind.__name__}, without its class {type(value).__name__}")
        return found

    def _has_drawn(self) -> bool:
        return not extra_state.is_same(extra_state.random_state(), self._random_first)

    def _bring_back(self) -> None:
        remembered = self._remembered
        if remembered is None:
            return
        if remembered.loop is None:
            log.warning("nothing beside %s tells what a loop kept: it starts over", remembered.source.path)
            return
        found = extra_state.loaded(str(remembered.loop))
        self.keep.update(found["keep"])
        for name, known in self._others.items():
            if name in found["others"]:
                extra_state.set_state_of(known, found["others"][name])
            else:
                log.warning("the state has nothing of %s: it starts over", name)
        remembered.warn_of_random()

    def _draw_on(self) -> None:
        """Restore the random state once, at the first batch: a script draws its numbers before that at every start."""
        remembered, self._remembered = self._remembered, None
        if remembered is not None:
            extra_state.set_device_state(remembered.device)
            data = randomness(self._dataset)
            draws_again = bool(data.samplers or (self._exact_data and data.threads))
            has_drawn = self._has_drawn()  # the first batch is there: a dataset that draws has drawn
            if remembered.random is not None and not (draws_again and has_drawn):
                extra_state.set_random_state(remembered.random)
        self._random_first = extra_state.random_state()

    def _place(self, step: int) -> tuple[int, int]:
        epoch, step_in_epoch = epoch_and_step(step, self._an_epoch)
        return epoch or 0, step_in_epoch or 0

    def _leave(self, error: BaseException | None, *, by_break: bool = False, at_exit: bool = False) -> None:
        """As `_left`, but only log an error in it, as on a failed device: it must not hide the script's error."""
        try:
            self._left(error, by_break=by_break, at_exit=at_exit)
        except Exception:
            log.exception("ckptstore failed when the loop was left; a start goes on from the last save")
            self._over()

    def _left(self, error: BaseException | None, *, by_break: bool, at_exit: bool) -> None:
        """The loop was left before its end: save the state as it is now, if it is certain of which step it is."""
        step, saved = self.global_step, self._writer.saved_step
        self._session.network.check_device()
        kept = self._kept() if by_break or self._is_asked else self._beside
        if self._in_step:  # only `break` shows that the script has finished its changes to `keep`
            kept = {**self._beside, "keep": kept["keep"] if by_break else self._beside["keep"]}
        doubt = self._doubt(by_break=by_break)
        if not doubt and step > saved:
            self._save(Kind.PERIODIC if by_break else Kind.DYING_GASP, kept, at_exit=at_exit)
        elif not doubt and step and kept["keep"] != self._saved_keep:  # nothing else has changed
            if step > self.start.global_step:
                self._writer.save_beside(self._companion(kept))
            else:
                self._save(Kind.PERIODIC, kept)
        elif doubt and not self._is_idle(kept):
            log.warning("nothing is saved after step %d: %s", saved, doubt)
        self._end(type(error).__name__ if error is not None else None)
        self._over()
        if by_break:
            self._schedule.obey()
        elif error is None:
            atexit.register(self._at_exit)

    def _end(self, error: str | None) -> None:
        """Training has ended: finish all writes and records, and close the session."""
        self._writer.wait()
        self._session.record_ending(error)
        self._session.close()

    def _is_idle(self, kept: dict[str, Any]) -> bool:
        """Whether nothing was done since the last save, as far as known: a batch was taken, and no update had begun."""
        if not self._session.network.is_readable or self.global_step > self._writer.saved_step:
            return False
        return self._in_step and kept["keep"] == self._saved_keep and self._updates_since() <= {0, None}

    def _updates_since(self) -> set[int | None]:
        """How many updates each optimizer is ahead of the last finished step; None for one that does not count.

        An optimizer counts before it updates.
        """
        counted_at, before = self._counted
        steps = self.global_step - counted_at
        return {
            None if was is None or now is None else now - was - steps
            for was, now in zip(before, self._state.counters(), strict=True)
        }

    def _doubt(self, *, by_break: bool) -> str:
        """Why the network may not hold the state after the last finished step; empty if it does.

        After `step` a `break` is the script's own decision. An exception there may have come before further changes.
        """
        if not self._session.network.is_readable:
            return "the device does not answer"
        if not self._in_body:
            return ""
        if self._in_step:
            why = self._doubt_before_step()
            left = "`break` came" if by_break else "the loop was left"
            return why and (
                f"{left} before loop.step was called for step {self.global_step + 1}, and {why}; call loop.step right "
                "after the line that updates, and leave the loop after that"
            )
        return "" if by_break else self._doubt_after_step()

    def _doubt_before_step(self) -> str:
        """What may have changed though `step` was not called: averages of batch normalization change before updates."""
        of_norms, of_others = self._state.other_than_updated()
        ahead = self._updates_since()
        doubts = {
            "its update had begun": 1 in ahead,
            "an optimizer does not count its updates": None in ahead,
            "an optimizer does not update once in each step": ahead != {0},
            "averages of batch normalization may have changed": of_norms,
            "parameters outside all optimizers may have changed": of_others,
            f"{', '.join(self._others)} may have changed": bool(self._others),
            "random numbers may have been drawn": extra_state.device_state() is not None
            or (not self._draws and self._has_drawn()),
        }
        return next((why for why, applies in doubts.items() if applies), "")

    def _doubt_after_step(self) -> str:
        """What the body may not have changed yet when an exception came after `step`."""
        is_end = self.global_step % self._an_epoch == 0
        changes_keep = not self._is_asked and (is_end in self._changes_after or self._kept() != self._beside)
        at_end = " at the end of an epoch" if is_end else ""
        doubts = {
            "parameters outside all optimizers were set": self._state.other_than_updated()[1],
            "a learning rate was set": self._state.has_rates,
            f"{', '.join(self._others)} changed": bool(self._others),
            f"the script had finished its changes to loop.keep and its random numbers{at_end}; make them before "
            "loop.step, or call loop.save after them": changes_keep,
            "all random numbers were drawn; draw them before loop.step": not self._draws and self._has_drawn(),
        }
        why = next((why for why, applies in doubts.items() if applies), "")
        return why and f"the exception came after loop.step in step {self.global_step}, and maybe before {why}"

    def _at_exit(self) -> None:
        """Record the end when the interpreter exits: only then is it known whether an exception ended the loop."""
        error: BaseException | None = getattr(sys, "last_value", None)
        if not self._is_over:
            self._leave(error, at_exit=True)
        elif error is not None:
            try:
                self._session.record_ending(type(error).__name__, at_exit=True)
            except CkptstoreError as failure:
                log.warning("%s. It is not recorded how the training ended.", failure)

    def _over(self) -> None:
        self._is_over = True
        atexit.unregister(self._at_exit)
        self._schedule.end()


def check_loop(dataset: Any, epochs: object, every: object, others: object) -> None:
    """Raise `UsageError` for invalid arguments of a loop."""
    check_dataset(dataset, "loop")
    say_if_endless(dataset)
    named = dict(others) if isinstance(others, Mapping) else {}
    if not isinstance(others, Mapping) or not all(isinstance(name, str) for name in named):
        raise UsageError(f"others is {others!r}", 'give objects by name: others={"scheduler": scheduler}')
    for name, each in named.items():
        if problem := extra_state.why_no_state(each):
            raise UsageError(
                f"others[{name!r}] cannot be saved with the state: {problem}",
                "give an object with state_dict and load_state_dict, or put numbers, text and arrays into loop.keep",
            )
    validate.number("epochs", epochs, "say how many epochs the whole training has", lowest=1)
    check_every(every)


def _is_at_break(generator: FrameType | None) -> bool:
    """Whether a generator is being closed by a `break` or `return` in the `for` statement that iterates it.

    Python closes it after an exception in the body too, without showing which it was. But at `break` the script is at
    the instruction that drops the iterator, and that one raises nothing. Generators in between, as tqdm's, wait at
    their `yield`.
    """
    frame = generator.f_back if generator else None
    while frame is not None and _instruction(frame) == "YIELD_VALUE":
        frame = frame.f_back
    return frame is not None and _instruction(frame) in ("POP_TOP", "POP_ITER")


def _instruction(frame: FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]
