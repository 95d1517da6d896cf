"""The callback that registers what other callbacks save, with the exact step."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore.train import Callback, ModelCheckpoint

from ckptstore.core.model import Content, Kind, epoch_and_step
from ckptstore.core.naming import parse_name
from ckptstore.mindspore.communication import strategy_file
from ckptstore.mindspore.recorder import Recorder
from ckptstore.mindspore.resume import state_names
from ckptstore.ops.register import describe
from ckptstore.storage.files import facts, names_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptstore.mindspore.launch import TrainingLaunch

log = logging.getLogger("ckptstore")


class _Watch:
    """A ModelCheckpoint that is watched, what it saved last, and whether its files hold the whole state."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        self.seen = self.latest()
        self.content = Content.FULL

    def latest(self) -> tuple[str, int]:
        """Path and trigger of its last save: a callable prefix may give one name twice."""
        callback = self.callback
        return callback.latest_ckpt_file_name, getattr(callback, "_last_triggered_step", 0)


def _never_stops_training(hook: Callable[..., None]) -> Callable[..., None]:
    """Whatever goes wrong in a hook is logged, once a hook, and training goes on (invariant 6)."""

    @wraps(hook)
    def wrapper(self: Registrar, *args: Any) -> None:
        try:
            hook(self, *args)
        except Exception:
            if hook.__name__ not in self.failed:
                log.exception("ckptstore failed in %s; training goes on, saves may be missing", hook.__name__)
            self.failed.add(hook.__name__)

    return wrapper


class Registrar(Callback):
    """Registers the files of ModelCheckpoints. Made by `TrainingLaunch.registrar`; best the last of the callbacks.

    It counts the completed steps itself, from the step the launch resumed at: MindSpore's own count starts again
    at every launch, and file names with it (domain §3). It also lets MindSpore's count go on from there, so that
    steps in logs, names and `append_info` tell the truth in a resumed run too.
    """

    def __init__(self, launch: TrainingLaunch, callbacks: tuple[Any, ...]) -> None:
        super().__init__()
        self.failed: set[str] = set()
        self._launch = launch
        self._given = callbacks
        self._watches: list[_Watch] = []
        self._recorder = Recorder(launch)
        self._params: Any = None
        self._optimizer_counter: Any = None
        self._outputs_before: Any = None
        self._in_step = False
        self._counted_at: tuple[int, int | None] = (0, None)
        self._in_first_epoch = True
        self._depth = 0
        self._sink_steps = 1
        self._announced: set[tuple[str, str]] = set()
        self._used_paths: set[str] = set()
        self._steps_per_epoch: int | None = None

    @_never_stops_training
    def on_train_begin(self, run_context: Any) -> None:
        """Find what to watch and where it saves, and let MindSpore's step count go on."""
        params = run_context.original_args()
        self._params = params
        self._in_first_epoch = True
        if self._launch.trained:  # a breakpoint of the training before must not be taken for one of this
            self._recorder.call(self._launch.adopt)
        self._launch.trained = True
        counters = (item for item in params.train_network.get_parameters() if item.name == "global_step")
        self._optimizer_counter = next(counters, None)
        self._counted_at = (self._launch.global_step, self._optimizer_step())
        self._steps_per_epoch = steps = int(params.train_dataset.get_dataset_size())
        if self._launch.facts.steps_per_epoch is None:
            self._recorder.call(lambda: self._launch.set_steps_per_epoch(steps))
        self._watches = [_Watch(callback) for callback in self._given or _checkpoint_callbacks(params)]
        if not self._watches:
            log.warning("there is no ModelCheckpoint among the callbacks: ckptstore has nothing to register")
        self._continue_count(params)
        state = state_names(params.train_network)
        for watch in self._watches:
            saved = watch.callback._config.saved_network
            if watch.callback._config.remove_redundancy:
                watch.content = Content.SHARE
                log.warning("remove_redundancy is on: ckptstore cannot restore a run from such files yet")
            elif saved is not None and state - {item.name for item in saved.get_parameters()}:
                watch.content = Content.WEIGHTS
                log.warning("saved_network leaves out the optimizer: a run cannot be restored from such files")
            self._announce_source(watch.callback)

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
        if start is not None and not start.fresh and epochs_before != done // steps:
            log.warning(
                "training starts in epoch %d, but step %d is in epoch %d: pass initial_epoch=%s",
                params.cur_epoch_num,
                done + 1,
                done // steps + 1,
                "start.initial_epoch" if steps == self._steps_per_epoch else done // steps,
            )
        elif done == 0 and epochs_before:
            self._launch.global_step = epochs_before * steps
            self._continue_count(params)

    @_never_stops_training
    def on_train_step_begin(self, run_context: Any) -> None:
        """Note what the step starts from."""
        self._poll()
        params = run_context.original_args()
        if params.get("dataset_sink_mode") and mindspore.get_context("mode") == mindspore.GRAPH_MODE:
            self._sink_steps = int(params.dataset_helper.sink_size())  # known only now, in the first epoch
        self._outputs_before = params.get("net_outputs")
        self._in_step = True

    @_never_stops_training
    def on_train_step_end(self, run_context: Any) -> None:  # noqa: ARG002
        """Count the step, and register what was saved after it."""
        self._launch.global_step += self._sink_steps
        self._in_step = False
        self._outputs_before = None
        self._poll()

    @_never_stops_training
    def on_train_epoch_end(self, run_context: Any) -> None:  # noqa: ARG002
        """Register what was saved at the end of the epoch."""
        self._poll()

    @_never_stops_training
    def on_train_end(self, run_context: Any) -> None:  # noqa: ARG002
        """Register what was saved at the end of training."""
        self._poll()

    def __enter__(self) -> Registrar:
        """Called once for training, and again for each evaluation inside `Model.fit`."""
        self._depth += 1
        return self

    @_never_stops_training
    def __exit__(self, *error: object) -> None:
        """See how training ended, and have everything in the catalog before the process may be gone."""
        self._depth -= 1
        if self._params is None or self._depth > 0:
            return
        kind = error[0] if error else None
        if kind is not None and self._step_was_done():
            self._launch.global_step += self._sink_steps
        self._in_step = False
        self._poll()
        step, optimizer_step = self._launch.global_step, self._optimizer_step()
        name = kind.__name__ if isinstance(kind, type) else None
        self._recorder.call(lambda: self._launch.set_ending(step, optimizer_step, name))
        if not self._recorder.flush():
            log.error("the catalog did not take every record in time; the next start looks for them on disk")
        if name is not None:
            self._launch.adopt_at_exit()

    def _step_was_done(self) -> bool:
        """Whether the step under way was finished when an exception came: then its update is in the weights.

        A callback earlier in the list that raises in step_end keeps us from hearing of the step's end. But the
        network's outputs are new then; and where they are not yet, the optimizer may have applied more updates than
        steps were counted: reading its counter waits for the device, so it is not read at every step.
        """
        if not self._in_step:
            return False
        if self._params.get("net_outputs") is not self._outputs_before:
            return True
        step, updates = self._counted_at
        now = self._optimizer_step()
        return updates is not None and now is not None and now - updates > self._launch.global_step - step

    def _poll(self) -> None:
        """Hand over what was saved since the last look. Files saved now hold the state after `global_step` steps."""
        for watch in self._watches:
            latest = watch.latest()
            if latest == watch.seen or not latest[0]:
                continue
            watch.seen = latest
            self._announce_source(watch.callback)
            asynchronous = bool(watch.callback._config.async_save)
            if asynchronous and latest[0] in self._used_paths and not self._has_counter(latest[0]):
                log.warning(
                    "%s is written again and again, and nothing in it tells its step: not registered", latest[0]
                )
                continue
            self._used_paths.add(latest[0])
            epoch, step_in_epoch = epoch_and_step(self._launch.global_step, self._steps_per_epoch)
            file = describe(
                self._launch.facts,
                rank=self._launch.rank,
                path=latest[0],
                epoch=epoch,
                step_in_epoch=step_in_epoch,
                kind=Kind.PERIODIC,
                global_step=self._launch.global_step,
                optimizer_step=self._optimizer_step(),
                strategy_file=strategy_file(),
                content=watch.content,
            )
            if not asynchronous:
                written = facts(file.path)
                file = replace(file, mtime_ns=written.mtime_ns if written else None)
            self._recorder.submit(file, asynchronous=asynchronous)

    def _has_counter(self, path: str) -> bool:
        return self._optimizer_counter is not None and path.endswith(".ckpt")

    def _optimizer_step(self) -> int | None:
        """Updates applied; None if the optimizer has no counter, or a fault of the device made it unreadable."""
        counter = self._optimizer_counter
        try:
            return None if counter is None else int(counter.asnumpy().reshape(-1)[0])
        except RuntimeError as error:
            log.warning("the optimizer's counter cannot be read any more: %s", str(error).splitlines()[0])
            return None

    def _continue_count(self, params: Any) -> None:
        """MindSpore counts from 0 at every launch; set to the true step, names and logs stay true (domain §4)."""
        params.cur_step_num = self._launch.global_step
        for watch in self._watches:
            every = watch.callback._config.save_checkpoint_steps
            if every and hasattr(watch.callback, "_last_triggered_step"):
                # Else it would save at the first resumed step, and every N from there instead of at multiples of N.
                watch.callback._last_triggered_step = self._launch.global_step // every * every
                watch.seen = watch.latest()

    def _announce_source(self, callback: Any) -> None:
        """Record where a callback saves; one with a callable directory does not know before it saves."""
        directory = getattr(callback, "_directory", None)
        prefix, base = callback._prefix, callback._exception_prefix
        if directory is None or not isinstance(prefix, str) or not isinstance(base, str):
            return
        if (directory, prefix) in self._announced:
            return
        self._announced.add((directory, prefix))
        directory = str(Path(directory).absolute())
        breakpoints = [
            name for name in names_in(directory) if (parsed := parse_name(name)) is not None and parsed.is_breakpoint
        ]
        self._recorder.call(
            lambda: self._launch.add_source(directory, prefix=prefix, breakpoint_prefix=base, breakpoints=breakpoints)
        )


def _checkpoint_callbacks(params: Any) -> list[Any]:
    return [callback for callback in params.list_callback if isinstance(callback, ModelCheckpoint)]
