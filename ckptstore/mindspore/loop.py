"""The functional loop: it deals the batches, counts the steps, and saves network and optimizer when it is time."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from ckptstore.core.model import Kind, epoch_and_step
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.mindspore import extra_state
from ckptstore.mindspore.callback_state import averages_of, values_of
from ckptstore.mindspore.exact_data import batches_after, randomness
from ckptstore.mindspore.schedule import check_every
from ckptstore.outside import atexit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptstore.mindspore.callback_state import Remembered
    from ckptstore.mindspore.exact_data import Exact
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
    `keep` holds the script's own numbers, text and small arrays, by name: they are saved with the state, and brought
    back. `start` tells where it goes on.
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
        self._last_step = epochs * self._an_epoch
        self._epochs = epochs
        self._exact_data = exact_data
        self._schedule = schedule
        self._has_begun = self._in_body = self._in_step = self._is_over = False
        self._counted = (self.global_step, state.counters())
        self._remembered = remembered
        self._bring_back()
        self._random_first = extra_state.random_state()
        self._draws = self._changes_after = False
        self._beside = self._kept()

    @property
    def global_step(self) -> int:
        """Batches consumed since the run began."""
        return self._progress.global_step

    @property
    def epoch(self) -> int:
        """The epoch of the batch that the body has, from 1; before the first one, that of the one that comes next."""
        return self._place(self._step_in_hand)[0]

    @property
    def step_in_epoch(self) -> int:
        """Which batch of that epoch it is, from 1."""
        return self._place(self._step_in_hand)[1]

    @property
    def ends_epoch(self) -> bool:
        """Whether it is the last one of that epoch: the place for an evaluation, after `step`."""
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
            self._end_finished()
            return
        self._begin()
        try:
            yield from self._batches()
            if self.global_step > self._writer.saved_step:
                self._save(Kind.PERIODIC)
        except BaseException as error:
            if not self._is_over:  # `break`, or an exception in the body, end the generator: which of them is not told
                self._leave(None if isinstance(error, GeneratorExit) else error)
            raise
        self._end(None)
        self._over()

    def step(self, *, loss: Any = None) -> None:
        """The step is done: count it. When the body of the loop has ended, it is saved if it is time.

        All that trains comes before it in the body. `loss` is kept with the saves; a state whose loss is no number is
        quarantined. Raises `UsageError` where no batch was taken.
        """
        if not self._in_step:
            raise UsageError("loop.step was called, and no batch was taken", "call it once for each batch of the loop")
        self._in_step = False
        self._progress.global_step += 1
        self._session.network.outputs = loss
        if self.global_step == self.start.global_step + 1:
            self._draws = self._has_drawn()
            self._writer.time_from(self.global_step)
        self._beside = self._kept()

    def _begin(self) -> None:
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
                self._session.seed_step(self._state.networks.values())
                yield batch
                if self._in_step:
                    raise UsageError(
                        f"the batch after step {self.global_step} was taken, and loop.step was not called",
                        "call loop.step() in the body, once for each batch, also for one that is passed over",
                    )
                self._in_body = False
                self._end_body()
            if self.global_step % self._an_epoch:
                self._session.complaints.warn(
                    f"an epoch ended after step {self.global_step}, and the dataset says that each has "
                    f"{self._an_epoch} batches: after a restart training goes on with another batch"
                )

    def _end_body(self) -> None:
        """The script is done with a step: save what it left, and leave, if it is time."""
        step = self.global_step
        beside = self._kept()
        self._changes_after = self._changes_after or beside != self._beside
        self._beside = beside
        saves, leaves = self._schedule.after(step, self._writer.cost)
        if leaves and step < self._last_step:
            self._save(Kind.GRACEFUL_EXIT)
            self._end(None)
            left = self._schedule.leave(step)
            self._over()
            raise left
        if saves:
            self._save(Kind.PERIODIC)

    def _save(self, kind: Kind, *, at_exit: bool = False) -> None:
        step = self.global_step
        self._draws = self._draws or self._has_drawn()
        self._counted = (step, self._state.counters())
        kept = self._beside if kind is Kind.DYING_GASP else self._kept()
        others = self._plain("others", {name: extra_state.state_of(each) for name, each in self._others.items()})
        beside = {
            "loop": json.dumps({"keep": kept["keep"], "others": others}),
            "random": kept.get("random") or extra_state.plain(extra_state.random_state()),
            "device": extra_state.plain(extra_state.device_state()),
            "averages": extra_state.plain(values_of(self._session.network, averages_of(self._session))),
            "draws": self._draws,
        }
        self._writer.save(kind, self._place(step), beside, at_exit=at_exit)
        self._schedule.saved()

    def _kept(self) -> dict[str, Any]:
        """What the script keeps, and the random numbers of one that draws some: to look at those takes time."""
        random = {"random": extra_state.plain(extra_state.random_state())} if self._draws else {}
        return {"keep": self._plain("keep", self.keep), **random}

    def _plain(self, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """What cannot be kept is left out, and said once."""
        found = {}
        for name, value in values.items():
            if problem := extra_state.why_not(value):
                self._session.complaints.warn(f"{what}[{name!r}] is not saved with the state: {problem}")
            else:
                found[name] = extra_state.plain(value)
        return found

    def _has_drawn(self) -> bool:
        return not extra_state.is_same(extra_state.random_state(), self._random_first)

    def _bring_back(self) -> None:
        remembered = self._remembered
        if remembered is None:
            return
        if remembered.loop is None:
            log.warning("nothing beside %s tells what a loop kept: it begins anew", remembered.source.path)
            return
        found = extra_state.loaded(str(remembered.loop))
        self.keep.update(found["keep"])
        for name, known in self._others.items():
            if name in found["others"]:
                extra_state.set_state_of(known, found["others"][name])
            else:
                log.warning("the state has nothing of %s: it begins anew", name)
        if remembered.lacks_random and remembered.draws:
            log.warning(
                "rank %d has the file of rank %d: its own random numbers begin anew",
                self._launch.rank,
                remembered.source.rank,
            )

    def _draw_on(self) -> None:
        """Have the random numbers go on, once: what a script draws before its first batch it draws at every start."""
        remembered, self._remembered = self._remembered, None
        if remembered is not None:
            extra_state.set_device_state(remembered.device)
            data = randomness(self._dataset)
            draws_again = bool(data.samplers or (self._exact_data and data.threads))
            has_drawn = self._has_drawn()  # by now, its first batch is there, a dataset that draws has drawn
            if remembered.random is not None and not (draws_again and has_drawn):
                extra_state.set_random_state(remembered.random)
        self._random_first = extra_state.random_state()

    def _place(self, step: int) -> tuple[int, int]:
        epoch, step_in_epoch = epoch_and_step(step, self._an_epoch)
        return epoch or 0, step_in_epoch or 0

    def _leave(self, error: BaseException | None, *, at_exit: bool = False) -> None:
        """As `_left`; what goes wrong in it, as on a device that has failed, hides no error of the script."""
        try:
            self._left(error, at_exit=at_exit)
        except Exception:
            log.exception("ckptstore failed when the loop was left; a start goes on from the last save")
            self._over()

    def _left(self, error: BaseException | None, *, at_exit: bool = False) -> None:
        """The loop was left before its end: save the state as it is now, if it is certain of which step it is."""
        step, saved = self.global_step, self._writer.saved_step
        self._session.network.check_device()
        if not self._is_certain():
            log.warning("how far training had come is not certain: nothing is saved after step %d", saved)
        elif step > saved:
            self._save(Kind.DYING_GASP, at_exit=at_exit)
        self._end(type(error).__name__ if error is not None else None)
        self._over()
        if error is None:
            atexit.register(self._at_exit)

    def _end(self, error: str | None) -> None:
        """Training has ended: have all in the catalog, and leave nothing open."""
        self._writer.close()
        self._session.record_ending(error)
        self._session.close()

    def _is_certain(self) -> bool:
        """Whether the network holds the state after the last step that was done, as a save after it would have.

        Inside the body the optimizers' counters tell, which count before they update. What no optimizer updates may
        have changed before that, as moving averages of batch normalization do; and more may follow `loop.step`.
        """
        if not self._session.network.is_readable:
            return False
        if not self._in_body:
            return True
        of_norms, of_others = self._state.other_than_updated()
        if of_others or self._others or (self._in_step and of_norms) or (not self._draws and self._has_drawn()):
            return False
        if not self._in_step:
            return not (self._changes_after or self._state.has_rates)
        if extra_state.device_state() is not None:  # the step may have drawn before anything was updated
            return False
        counted_at, before = self._counted
        gone_on = [None if count is None else count + self.global_step - counted_at for count in before]
        return None not in gone_on and gone_on == list(self._state.counters())

    def _at_exit(self) -> None:
        """The interpreter ends: only now the exception that ended the loop is known, if one did."""
        error: BaseException | None = getattr(sys, "last_value", None)
        if not self._is_over:
            self._leave(error, at_exit=True)
        elif error is not None:
            try:
                self._session.record_ending(type(error).__name__, at_exit=True)
            except CkptstoreError as failure:
                log.warning("%s. It is not recorded how the training ended.", failure)

    def _end_finished(self) -> None:
        log.info("run %s: all %d epochs were trained before: nothing is left to train", self._launch.name, self._epochs)
        self._end(None)

    def _over(self) -> None:
        self._is_over = True
        atexit.unregister(self._at_exit)
        self._schedule.end()


def check_loop(dataset: Any, epochs: object, every: object) -> None:
    """Raise `UsageError` for what cannot be gone through."""
    if not hasattr(dataset, "create_tuple_iterator"):
        raise UsageError(
            f"loop needs the dataset that is trained with, not {type(dataset).__name__}",
            "give it network, optimizer and dataset, in this order",
        )
    if not isinstance(epochs, int) or epochs < 1:
        raise UsageError(f"epochs is {epochs!r}", "say how many epochs the whole training has, from 1")
    check_every(every)
