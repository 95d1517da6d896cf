"""The callback that registers what other callbacks save, with the exact step."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore.train import Callback

from ckptstore.core.model import Content, Kind
from ckptstore.errors import RefusedError, UsageError
from ckptstore.mindspore.graceful_exit import disarm
from ckptstore.mindspore.recorder import FLUSH_SECONDS
from ckptstore.mindspore.termination import Termination
from ckptstore.mindspore.training import Training
from ckptstore.mindspore.ttp import TtpWatch
from ckptstore.mindspore.under_way import UnderWay, by_counter
from ckptstore.mindspore.watches import PeriodicWatch, watches_for
from ckptstore.ops.lease import RENEWED_EVERY
from ckptstore.storage.files import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptstore.mindspore.dying_gasp import DyingGasp
    from ckptstore.mindspore.keeper import Keeper
    from ckptstore.mindspore.launch import TrainingLaunch
    from ckptstore.mindspore.training import Metrics, Saved, Watch

log = logging.getLogger("ckptstore")


def _never_stops_training(hook: Callable[..., None]) -> Callable[..., None]:
    """Whatever goes wrong in a hook is logged, once a hook, and training goes on (invariant 6).

    Only before its first step may it be refused: nothing was done yet, and to go on would hide what was saved before.
    """

    @wraps(hook)
    def wrapper(self: Registrar, *args: Any) -> None:
        with self.surviving(hook.__name__, refuses=hook.__name__ == "on_train_begin"):
            hook(self, *args)

    return wrapper


class Registrar(Callback):
    """Registers the files of the callbacks that save. Made by `TrainingLaunch.registrar`; best the last of them.

    It counts the completed steps itself, from the step the launch resumed at: MindSpore's own count starts again
    at every launch, and file names with it (domain §3). It also lets MindSpore's count go on from there, so that
    steps in logs, names and `append_info` tell the truth in a resumed run too.
    """

    def __init__(
        self,
        launch: TrainingLaunch,
        callbacks: tuple[Any, ...],
        *,
        metrics: Metrics | None,
        reset_exit_flag: bool,
        dying_gasp: DyingGasp | None,
        durable: bool,
        keeper: Keeper | None,
    ) -> None:
        super().__init__()
        self.failed: set[str] = set()
        self._launch = launch
        self._training = Training(launch, metrics=metrics, reset_exit_flag=reset_exit_flag, durable=durable)
        self._termination = Termination(self._training.recorder.close)
        self._dying_gasp = dying_gasp
        self._keeper = keeper
        self._lease_renewed_at = time.monotonic()
        if keeper is not None:
            self._training.recorder.on_recorded = keeper.heard_of
        self._watches: list[Watch] = list(watches_for(callbacks))
        self._find_watches = not callbacks
        self._outputs_before: Any = None
        self._is_training = self._in_step = False
        self._counted_at: tuple[int, int | None] = (0, None)
        self._base: tuple[int, int] = (0, 0)
        self._first_step_to_come = True
        self._in_first_epoch = True
        self._is_repair = False
        self._depth = 0
        self._layout_is_due = True
        self._sink_steps = 1
        self._used_paths: set[str] = set()
        self._saved_step: int | None = None
        disarm()

    @property
    def restores(self) -> bool:
        """Whether the launch restored, or decided to start afresh: nothing may be loaded over that."""
        return self._training.is_resumed

    @contextmanager
    def surviving(self, what: str, *, refuses: bool = False) -> Iterator[None]:
        """Log what goes wrong inside, once, and go on; `refuses` lets a `RefusedError` through."""
        try:
            yield
        except Exception as error:
            if refuses and isinstance(error, RefusedError):
                raise
            if what not in self.failed:
                log.exception("ckptstore failed in %s; training goes on, saves may be missing", what)
            self.failed.add(what)

    @_never_stops_training
    def on_train_begin(self, run_context: Any) -> None:
        """Find what to watch and where it saves, and let MindSpore's step count go on."""
        self._is_training = True
        params = run_context.original_args()
        training = self._training
        training.begin(params)
        self._in_first_epoch = self._first_step_to_come = True
        self._sink_steps = 1
        training.record_left()
        self._launch.note_layout_files()
        self._layout_is_due = True
        self._find_what_saves(params)
        self._is_repair = self._launch.failed and any(isinstance(watch, TtpWatch) for watch in self._watches)
        self._launch.trained, self._launch.failed = True, False
        steps = training.steps
        if self._launch.facts.steps_per_epoch is None and steps is not None and steps.an_epoch:
            training.recorder.call(
                lambda: self._launch.set_steps_per_epoch(
                    steps.an_epoch, batch_size=steps.batch_size, shards=steps.shards
                )
            )
        if not self._launch.global_step:
            self._launch.global_step = max((watch.steps_given() for watch in self._periodic()), default=0)
        self._counted_at = (self._launch.global_step, training.optimizer_step())
        if not self._is_repair:
            self._continue_count(params)
        for watch in self._watches:
            with self.surviving(f"watching {type(watch.callback).__name__}", refuses=True):
                watch.begin(training)
        if self._dying_gasp is not None:
            self._dying_gasp.begin(training, self._watches)
        self._termination.arm(data_sink=bool(params.get("dataset_sink_mode")))

    def _find_what_saves(self, params: Any) -> None:
        """All callbacks of the list, or those given; one that saves and was not given is named."""
        listed = list(watches_for(params.list_callback))
        if self._find_watches:
            self._watches = listed
        given = {id(watch.callback) for watch in self._watches}
        for name in sorted({type(watch.callback).__name__ for watch in listed if id(watch.callback) not in given}):
            log.warning("%s is in the callbacks but was not given to the registrar: its files are not registered", name)
        if not self._watches:
            log.warning("there is no ModelCheckpoint among the callbacks: ckptstore has nothing to register")

    @_never_stops_training
    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Check, once, that training starts in the epoch that it must start in."""
        if not self._in_first_epoch:
            return
        self._in_first_epoch = False
        params = run_context.original_args()
        steps = int(params.batch_num)  # of what MindSpore calls an epoch: sink_size, where one is given
        start = self._launch.start
        done = self._launch.global_step
        epochs_before = params.cur_epoch_num - 1
        if self._is_repair:
            self._launch.global_step = self._training.goes_on(epochs_before * steps)
            self._continue_count(params)
        elif start is not None and not start.fresh and epochs_before != done // steps:
            log.warning(
                "training starts in epoch %d, but step %d is in epoch %d: pass initial_epoch=%s",
                params.cur_epoch_num,
                done + 1,
                done // steps + 1,
                "start.initial_epoch" if steps == self._training.steps_per_epoch else done // steps,
            )
        elif done // steps < epochs_before:
            self._launch.global_step = epochs_before * steps
            self._counted_at = (self._launch.global_step, self._counted_at[1])
            self._continue_count(params)
        if epochs_before:
            for watch in self._periodic():
                watch.count_epochs_once()

    @_never_stops_training
    def on_train_step_begin(self, run_context: Any) -> None:
        """Note what the step starts from."""
        self._poll()
        for watch in self._watches:
            watch.step_begin()
        params = run_context.original_args()
        if params.get("dataset_sink_mode") and mindspore.get_context("mode") == mindspore.GRAPH_MODE:
            self._sink_steps = int(params.dataset_helper.sink_size())  # known only now, in the first epoch
        if self._first_step_to_come:
            self._first_step_to_come = False
            self._base = (self._launch.global_step, params.cur_step_num - self._sink_steps)
        self._outputs_before = params.get("net_outputs")
        self._in_step = True

    @_never_stops_training
    def on_train_step_end(self, run_context: Any) -> None:
        """Count the step, and register what was saved after it."""
        self._step_is_done(run_context.original_args())
        if self._layout_is_due:  # the step was compiled: what MindSpore writes of the layout is there
            self._layout_is_due = False
            self._training.recorder.call(self._launch.keep_layout_files)
        self._poll()
        self._renew_lease()

    def _renew_lease(self) -> None:
        """While steps are made, the state that the launch started from is not given up as that of a dead one."""
        if self._launch.rank == 0 and time.monotonic() - self._lease_renewed_at > RENEWED_EVERY.total_seconds():
            self._lease_renewed_at = time.monotonic()
            self._training.recorder.call(self._launch.renew_lease)

    def _step_is_done(self, params: Any) -> None:
        """MindSpore's count has gone on by the steps of this call: taking its difference counts none of them twice."""
        step, at = self._base
        self._launch.global_step = step + params.cur_step_num - at
        self._in_step = False
        self._outputs_before = None
        self._training.outputs = params.get("net_outputs")

    @_never_stops_training
    def on_train_epoch_end(self, run_context: Any) -> None:  # noqa: ARG002
        """Register what was saved at the end of the epoch."""
        self._poll()

    @_never_stops_training
    def on_train_end(self, run_context: Any) -> None:  # noqa: ARG002
        """Register what was saved at the end of training."""
        self._poll()

    def __enter__(self) -> Registrar:
        """Called once for training, again for each evaluation inside `Model.fit`, and for evaluations after it."""
        self._depth += 1
        return self

    @_never_stops_training
    def __exit__(self, *error: Any) -> None:
        """See how training ended, and have everything in the catalog before the process may be gone."""
        self._depth -= 1
        if not self._is_training or self._depth > 0:  # an evaluation of its own ends nothing, however it ends
            return
        self._is_training = False
        training = self._training
        with self.surviving("the start of the next training"):
            training.ended(error[1] if error else None)
        kind = error[0] if error else None
        name = kind.__name__ if isinstance(kind, type) else None
        self._launch.failed = name is not None
        if name is not None:
            self._launch.adopt_at_exit()
        with self.surviving("the state of the device"):
            training.read_state(with_deadline=name is not None)
        found = UnderWay.UNKNOWN
        with self.surviving("the step under way"):
            found = self._step_under_way(error[2]) if name is not None else UnderWay.NOT_DONE
            if found is UnderWay.DONE:
                self._step_is_done(training.params)
        self._in_step = False
        with self.surviving("looking for the last saves"):
            self._poll()
        for watch in self._watches:
            with self.surviving(f"the end of {type(watch.callback).__name__}"):
                watch.end(training)
        with self.surviving("the end of training"):
            if found in (UnderWay.DONE, UnderWay.NOT_DONE) and training.is_readable:
                self._end(name)
            else:
                log.warning("how far training had come is not certain: nothing is saved at this exception")
                if found is UnderWay.HALF_DONE:
                    training.note_half_done(name)
        begin = time.monotonic()
        if not training.recorder.flush():
            training.recorder.say_what_is_left()
        if self._keeper is not None:
            self._keeper.finish(max(0.0, FLUSH_SECONDS - (time.monotonic() - begin)))
        training.recorder.rest()
        training.release()
        self._termination.disarm()

    def _end(self, error: str | None) -> None:
        """Note the step that training ended at, and save it if an exception ended it and that was asked for."""
        training = self._training
        training.note_ending(error)
        if error is not None and self._dying_gasp is not None and self._launch.global_step != self._saved_step:
            with self.surviving("save_on_exception"):
                self._dying_gasp.save(training)

    def _step_under_way(self, raised: Any) -> UnderWay:
        """Whether the step under way was finished when an exception came: then its update is in the weights.

        A callback earlier in the list that raises in step_end keeps us from hearing of the step's end. But the
        network's outputs are new then; and where they are not yet, the optimizer may have counted one update more than
        steps were counted: reading its counter waits for the device, so it is not read at every step. That does not
        tell either where it has no counter, or leaves out updates.
        """
        if not self._in_step:
            return UnderWay.NOT_DONE
        if self._training.params.get("net_outputs") is not self._outputs_before:
            return UnderWay.DONE
        step, updates = self._counted_at
        now = self._training.optimizer_step()
        if updates is None or now is None:
            return UnderWay.UNKNOWN
        more = (now - updates) - (self._launch.global_step - step)
        return by_counter(more, counts_all=updates == step - self._launch.step_shift, raised=raised)

    def _poll(self) -> None:
        """Hand over what was saved since the last look. Files saved now hold the state after `global_step` steps."""
        for watch in self._watches:
            saved = watch.poll()
            if saved is not None:
                self._hand_over(saved)

    def _hand_over(self, saved: Saved) -> None:
        training = self._training
        has_counter = training.has_counter() and saved.path.endswith((".ckpt", ".safetensors"))
        if saved.asynchronous and saved.path in self._used_paths and not has_counter:
            log.warning("%s is written again and again, and nothing in it tells its step: not registered", saved.path)
            return
        self._used_paths.add(saved.path)
        unfinished = saved.asynchronous or saved.written_again
        written = None if unfinished else facts(saved.path)
        try:
            file = training.describe(saved.path, kind=saved.kind, content=saved.content, written=written)
        except UsageError as error:  # what the other callbacks saved counts all the same
            log.error("%a is not registered: %s", saved.path, error)  # noqa: TRY400
            return
        if saved.written_again:
            training.recorder.call(lambda: self._launch.record([file]))
            return
        if file.optimizer_step is not None:
            self._counted_at = (file.global_step, file.optimizer_step)
        training.recorder.submit(file, asynchronous=saved.asynchronous)
        if saved.content is Content.FULL and saved.kind is Kind.PERIODIC and not saved.asynchronous:
            self._saved_step = self._launch.global_step

    def _periodic(self) -> list[PeriodicWatch]:
        return [watch for watch in self._watches if isinstance(watch, PeriodicWatch)]

    def _continue_count(self, params: Any) -> None:
        """MindSpore counts from 0 at every launch; set to the true step, names and logs stay true (domain §4)."""
        params.cur_step_num = self._launch.global_step
        for watch in self._periodic():
            watch.continue_count(self._launch.global_step)
