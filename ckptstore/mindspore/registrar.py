"""The callback that registers what other callbacks save, with the exact step.

The path of a save, which crosses from here to training/ once, at the line:

    ModelCheckpoint, OnRequestExit …    save a file
    watch.poll()                        says which file is new, and what it holds
    Session.describe()                  makes its record: step, epoch, loss, faults
    --------------------------------------------------------------------------- no MindSpore from here on
    RecorderThread.submit()             waits on its own thread for the whole file, reads size and digest
    RankLaunch.record_files()           writes the record to the journal, then to the catalog
"""

from __future__ import annotations

import errno
import logging
import math
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from numbers import Real
from typing import TYPE_CHECKING, Any

from mindspore.train import Callback

from ckptstore.core.hints import Call, Command
from ckptstore.core.limits import text
from ckptstore.core.model import Content, Kind
from ckptstore.disk.files import facts
from ckptstore.errors import RefusedError, UsageError
from ckptstore.mindspore.data import an_epoch_of, begin_anew, check_start
from ckptstore.mindspore.graceful_exit import disarm
from ckptstore.mindspore.hook_code import set_after_save
from ckptstore.mindspore.step_count import InterruptedStep, StepCount, StepTimes, is_wrong_result
from ckptstore.mindspore.ttp import TtpWatch
from ckptstore.mindspore.watches import PeriodicWatch, watches_for
from ckptstore.outside import time
from ckptstore.training.recorder_thread import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ckptstore.mindspore.dying_gasp import DyingGasp
    from ckptstore.mindspore.extra_state import Keeper, Remembered
    from ckptstore.mindspore.load_guard import LoadGuard
    from ckptstore.mindspore.session import Saved, Session, Watch
    from ckptstore.training.layout_files import LayoutFiles

log = logging.getLogger("ckptstore")

_LOOK_SECONDS = 60.0
"""The time between two searches for unwatched files beside the watched ones."""


def never_stops_training(hook: Callable[..., None]) -> Callable[..., None]:
    """Log errors of a hook, once for each hook, and let training go on.

    A refusal may stop training only before the first step: no work is lost yet, and going on would hide the earlier
    saves, or save with a wrong step.
    """

    @wraps(hook)
    def wrapper(self: Registrar, *args: Any) -> None:
        with self.surviving(hook.__name__, refuses=hook.__name__ in ("on_train_begin", "on_train_step_begin")):
            hook(self, *args)

    return wrapper


class Registrar(Callback):
    """Registers the files of the callbacks that save. Made by `TrainingLaunch.registrar`; put it last in the list.

    `failed` are the hooks that raised an error.
    """

    def __init__(
        self,
        session: Session,
        keeper: Keeper,
        callbacks: tuple[Any, ...],
        *,
        guard: LoadGuard,
        layout_files: LayoutFiles,
        dying_gasp: DyingGasp | None,
        remembered: Callable[[], Remembered | None],
    ) -> None:
        super().__init__()
        self.failed: set[str] = set()
        self._session = session
        self._keeper = keeper
        session.keep_beside = keeper.saved
        self._guard = guard
        self._layout_files = layout_files
        self._dying_gasp = dying_gasp
        self._remembered = remembered
        self._termination = Termination(session.recorder.close)
        self._watches: list[Watch] = list(watches_for(callbacks))
        self._finds_watches = not callbacks
        self._used_paths: set[str] = set()
        self._steps = StepCount(session)
        self._times = StepTimes()
        self._layout_is_due = False
        self._is_training = self._is_first = self._is_wrong = False
        self._depth = 0
        self._next_look = 0.0
        disarm()

    @property
    def restores(self) -> bool:
        """Whether the launch restored a state, or decided to start fresh: no callback may load another one."""
        return self._session.is_resumed

    def takes(self, callback: Any) -> bool:
        """Whether this registrar watches a callback, or will find it among those of the training."""
        return self._finds_watches or any(watch.callback is callback for watch in self._watches)

    def kept_of(self, callbacks: Sequence[Any]) -> dict[str, Any]:
        """The callbacks, by name, whose state is restored after a restart."""
        return self._keeper.callbacks(callbacks, self)

    @contextmanager
    def surviving(self, what: str, *, refuses: bool = False) -> Iterator[None]:
        """Log an error inside, once, and go on; `refuses` passes a `RefusedError` on."""
        try:
            yield
        except Exception as error:
            if refuses and isinstance(error, RefusedError):
                raise
            if what not in self.failed:
                log.exception("ckptstore failed in %s; training goes on, saves may be missing", what)
            self.failed.add(what)

    @never_stops_training
    def on_train_begin(self, run_context: Any) -> None:
        """Find the callbacks to watch and their directories, and continue MindSpore's step count."""
        self._is_training, self._depth = True, 1  # Ctrl-C in `__enter__` leaves a depth that nobody goes back from
        params = run_context.original_args()
        session, progress = self._session, self._session.progress
        self._steps, self._times = StepCount(session, goes_back=self._is_wrong), StepTimes()
        self._begin(params)
        session.record_breakpoint()
        self._layout_files.note()
        self._layout_is_due = True
        self._find_watches(params)
        given = max((watch.steps_given() for watch in self._periodic()), default=0)
        session.check_forgotten(begins_anew=not (given or params.train_dataset.get_init_step()))
        is_repair = progress.has_failed and any(isinstance(watch, TtpWatch) for watch in self._watches)
        if not is_repair and progress.evaluated is None:  # no other registrar has begun this training
            progress.began_after = progress.global_step if progress.has_trained else 0
        if progress.evaluated is None:
            progress.flag_may_be_stale = not progress.has_trained or progress.has_left
        progress.has_trained, progress.has_failed, progress.has_left = True, False, False
        progress.evaluated = self._evaluated
        session.record_steps_per_epoch()
        self._steps.begin(self._periodic(), is_repair=is_repair)
        self._begin_saving()
        session.begin_retention()
        with self.surviving("what callbacks keep"):
            self._keeper.begin(params, session.network, self, self._remembered())
        if not params.get("dataset_sink_mode"):
            self._forget_position()
        self._heed_requests(params)

    def _heed_requests(self, params: Any) -> None:
        self._termination.arm(data_sink=bool(params.get("dataset_sink_mode")))

    def _begin_saving(self) -> None:
        """Find out where each watched callback saves, at the beginning of training."""
        for watch in self._watches:
            with self.surviving(f"watching {type(watch.callback).__name__}", refuses=True):
                watch.begin(self._session)
        if self._dying_gasp is not None:
            self._dying_gasp.begin(self._session, self._watches)

    def _begin(self, params: Any) -> None:
        """Begin a session. Raises `RefusedError` if training would not continue at the step that `resume` returned."""
        session, start = self._session, self._session.progress.start
        session.params, self._is_wrong = params, False
        session.take(params.train_network, params.train_dataset)
        session.begin()
        self._is_first = start is not None and not start.fresh and not session.progress.has_trained
        if start is not None and self._is_first:
            check_start(params, start.global_step, session.launch.earlier_start)
            session.check_restored(params)

    def _find_watches(self, params: Any) -> None:
        listed = list(watches_for(params.list_callback))
        if self._finds_watches:
            self._watches = listed
        registrars = [self, *(each for each in params.list_callback if isinstance(each, Registrar))]
        left = [watch.callback for watch in listed if not any(each.takes(watch.callback) for each in registrars)]
        for name in sorted({type(callback).__name__ for callback in left}):
            log.warning("%s is in the callbacks but was not given to the registrar: its files are not registered", name)
        trained_with = {id(callback) for callback in params.list_callback}
        for watch in self._watches:
            if id(watch.callback) not in trained_with:
                name = type(watch.callback).__name__
                log.warning(
                    "%s was given to the registrar and is not in the callbacks of this training: it saves nothing", name
                )
        if not self._watches:
            self._nothing_else_saves()
        for name, called in set_after_save(params.list_callback).items():
            self._session.complaints.warn(
                f"{name} calls {called} at the end of a step, but ModelCheckpoint saves before that: if this sets "
                f"parameters, the files lack the new values; put {name} before ModelCheckpoint in the callbacks"
            )

    def _nothing_else_saves(self) -> None:
        log.warning(
            "there is no ModelCheckpoint among the callbacks: ckptstore has nothing to register; add one, or use %s",
            Call("launch.saver", '"checkpoints"', every=100),
        )

    @never_stops_training
    def on_train_epoch_begin(self, run_context: Any) -> None:  # noqa: ARG002
        """Note, once, the epoch in which training starts."""
        self._steps.begin_epoch()
        self._keeper.begin_epoch()

    @never_stops_training
    def on_train_step_begin(self, run_context: Any) -> None:  # noqa: ARG002
        """Note the state before the step; before the first step, check that no callback has loaded another state."""
        session = self._session
        try:
            with self.surviving("the search for another state", refuses=True):
                callbacks, step = session.params.list_callback, session.progress.global_step
                self._guard.check(session.network.parameters, callbacks, step)
        except RefusedError:
            session.problem = "another state was loaded over the one that training was to start from"
            raise
        self._steps.begin_step()  # first: if the rest fails, the step has begun all the same
        self._forget_position()
        self._poll()
        for watch in self._watches:
            watch.step_begin()
        session.seed_step([session.params.train_network])
        self._times.begins(time.monotonic())

    @never_stops_training
    def on_train_step_end(self, run_context: Any) -> None:
        """Count the step, and register its saves."""
        now = time.monotonic()
        self._steps.end_step()
        self._keeper.end_step()
        self._times.ends(now, self._session.progress.global_step)
        if self._layout_is_due:  # the step was compiled: MindSpore has written its layout files
            self._layout_is_due = False
            self._session.recorder.call(self._keep_layout_files)
        if run_context.get_stop_requested():
            with self.surviving("what callbacks keep"):
                self._keeper.stop()
        self._times.done(saved=self._save_or_poll())

    def _save_or_poll(self) -> bool:
        """Hand over the saves of a step that has ended; return whether there were any."""
        return self._poll()

    def _keep_layout_files(self) -> None:
        for path in self._layout_files.written():
            self._session.launch.keep_layout_file(path)

    @never_stops_training
    def on_train_epoch_end(self, run_context: Any) -> None:
        """Register the saves at the end of the epoch, and look for unwatched files once in a while."""
        self._poll()
        counts = self._session.is_resumed and self._session.sets_count
        if counts and not run_context.get_stop_requested():
            self._session.check_epoch(an_epoch_of(self._session.params), began_after=self._session.progress.began_after)
        self._evaluated(self._session.params.get("eval_results") or {})  # MindSpore removes them after this hook
        with self.surviving("what callbacks keep"):
            self._keeper.end_epoch()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._session.recorder.call(self._session.places.look_for_unwatched)

    def _evaluated(self, results: Mapping[str, Any]) -> None:
        """Record the metrics of an evaluation, by `Model.fit` or `model.eval`, with the state that was evaluated.

        "loss" is the training loss; that of the evaluation is `eval_loss`, as in `Model.fit`.
        """
        with self.surviving("what an evaluation found"):
            found = {name: float(value) for name, value in results.items() if isinstance(value, Real)}
            if (loss := found.pop("loss", None)) is not None:
                found.setdefault("eval_loss", loss)
            finite = {text(name): value for name, value in found.items() if math.isfinite(value)}
            if finite:
                self._session.recorder.measure(self._steps.in_network, finite)

    @never_stops_training
    def on_train_end(self, run_context: Any) -> None:  # noqa: ARG002
        """Register the saves at the end of training."""
        self._poll()

    def __enter__(self) -> Registrar:
        """Called once for training, again for each evaluation inside `Model.fit`, and for evaluations after it."""
        self._depth += 1
        if not self._is_training:
            with self.surviving("looking at the train network"):
                self._guard.begin()
        return self

    @never_stops_training
    def __exit__(self, *error: Any) -> None:
        """Note how training ended, and finish all records before the process may end."""
        self._depth -= 1
        if not self._is_training or self._depth > 0:  # the end of a separate evaluation
            return
        self._is_training = False
        session = self._session
        session.progress.evaluated = None
        kind, raised, trace = error or (None, None, None)
        name = self._ended_by(kind)
        with self.surviving("the start of the next training"):
            if self._is_first:  # it was refused, or failed before its first step: the next one is the first
                session.progress.has_trained = False
            self._is_wrong = is_wrong_result(raised)
            if self._is_wrong:
                session.problem = session.problem or "MindSpore found a wrong result (TREError)"
        session.progress.has_failed = name is not None and session.progress.has_trained
        left, doubt = InterruptedStep.NOT_DONE, ""
        if name is not None:
            session.launch.adopt_at_exit()
            if isinstance(raised, OSError) and raised.errno == errno.ENOSPC:
                gc = ("gc", session.launch.name, "--keep-last", 2)
                delete = Command(*gc, "--apply", "--now")
                log.warning("a disk is full: %s shows what may go, and %s deletes it", Command(*gc), delete)
            with self.surviving("the state of the device"):
                session.network.check_device()
            left = InterruptedStep.UNKNOWN
            with self.surviving("the interrupted step"):
                begun, found = self._steps.has_begun_next, self._steps.interrupted(trace)
                is_in_network = found is InterruptedStep.DONE or self._steps.in_network > session.progress.global_step
                if is_in_network:  # files that callbacks have saved are of this step, though others did not handle it
                    self._steps.end_step()
                doubt = self._keeper.doubt(trace, begun=begun, done=is_in_network)
                left = found
        self._poll("the last saves")
        for watch in self._watches:
            with self.surviving(f"the end of {type(watch.callback).__name__}"):
                watch.end(session)
        with self.surviving("the end of training"):
            self._end(name, left, doubt)
        self._close()

    def _close(self) -> None:
        self._session.close()
        self._termination.disarm()

    def _ended_by(self, raised: type[BaseException] | None) -> str | None:
        """The name of the exception that ended training; None if it ended normally."""
        return raised.__name__ if isinstance(raised, type) else None

    def _forget_position(self) -> None:
        """Let the dataset begin at its start again, for evaluations in this training, and for the next training.

        `resume` set the position where the first training starts. MindSpore keeps it, and would begin each later
        iterator there too (`dataset/engine/iterators.py`). When a step begins, training has its iterator; without a
        data sink it has that when training begins.
        """
        if self._is_first:
            self._is_first = False
            begin_anew(self._session.params.train_dataset)

    def _end(self, error: str | None, left: InterruptedStep, doubt: str) -> None:
        session = self._session
        if left in (InterruptedStep.DONE, InterruptedStep.NOT_DONE) and session.network.is_readable:
            session.record_ending(error)
            if error is not None:
                with self.surviving("save_on_exception"):
                    self._save_at_exception(doubt)
            return
        log.warning("how far training had come is not certain: nothing is saved at this exception")
        if left is InterruptedStep.HALF_DONE:
            session.record_ending(error, half_done=True, is_counted=not self._steps.has_begun_next)

    def _save_at_exception(self, doubt: str) -> None:
        """Save, unless the extra state beside the parameters is in doubt."""
        if self._dying_gasp is not None:
            self._dying_gasp.save(self._session, doubt)

    def _poll(self, which: str = "saves") -> bool:
        """Hand over the saves since the last call; return whether there were any."""
        has_saved = False
        for watch in self._watches:
            with self.surviving(f"looking for {which} of {type(watch.callback).__name__}"):
                for saved in watch.poll_all():
                    has_saved = True
                    self._hand_over(saved)
        return has_saved

    def _hand_over(self, saved: Saved) -> None:
        session = self._session
        has_counter = session.network.has_counter and saved.path.endswith((".ckpt", ".safetensors"))
        if saved.asynchronous and saved.path in self._used_paths and not has_counter:
            log.warning("%s is written again and again, and nothing in it tells its step: not registered", saved.path)
            return
        self._used_paths.add(saved.path)
        unfinished = saved.asynchronous or saved.written_again
        written = None if unfinished else facts(saved.path)
        try:
            file = session.describe(saved.path, kind=saved.kind, content=saved.content, written=written)
        except UsageError as error:  # files of the other callbacks are still registered
            log.error("%a is not registered: %s", saved.path, error)  # noqa: TRY400
            return
        if saved.written_again:
            session.recorder.call(lambda: session.launch.record_files([file]))
            return
        if saved.kind is Kind.PERIODIC and len(self._periodic()) == 1:  # several may have saved in this step
            file = replace(file, timing=self._times.of_save())
        if file.optimizer_step is not None:
            self._steps.note_counter(file.global_step, file.optimizer_step)
        if saved.has_companion:  # first: once the recorder has work, this waits for it
            with self.surviving("what callbacks keep"):
                self._keeper.saved(file.path)
        is_state = saved.kind is Kind.PERIODIC and saved.content is not Content.WEIGHTS
        session.saved(file, asynchronous=saved.asynchronous, is_state=is_state)
        is_whole = saved.content is Content.FULL and saved.kind is Kind.PERIODIC and not saved.asynchronous
        if is_whole and self._dying_gasp is not None:
            self._dying_gasp.note_saved(file.global_step)

    def _periodic(self) -> list[PeriodicWatch]:
        """The watches of ModelCheckpoints."""
        return [watch for watch in self._watches if isinstance(watch, PeriodicWatch)]
