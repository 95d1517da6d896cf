"""OnRequestExit: each exit's file gets a name of its own; nothing of an earlier exit stops or undoes a resumed run."""

from __future__ import annotations

import logging
from functools import wraps
from typing import TYPE_CHECKING, Any

from mindspore.train.callback import OnRequestExit

from ckptstore.core.model import Content, Kind
from ckptstore.disk.files import FileFacts, absolute, facts
from ckptstore.mindspore import compat
from ckptstore.mindspore.session import Saved, Watch
from ckptstore.outside import Path
from ckptstore.resume.exits import keep_unknown, kept_path
from ckptstore.training.exit_request import StaleFlag

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptstore.mindspore.session import Session
    from ckptstore.training.exit_request import ExitRequest

log = logging.getLogger("ckptstore")

_EXIT_PARAMETER = "graceful_exit"


class ExitWatch(Watch):
    """Watches an OnRequestExit: finds its saves, and gives its file a name of its own."""

    def __init__(self, callback: Any) -> None:
        super().__init__(callback)
        self._flag: StaleFlag | None = None
        self._request: ExitRequest | None = None
        self._config_file: str | None = getattr(callback, "remote_config_file", None)  # for an `end` without a `begin`
        self._was_seen = False
        self._before: FileFacts | None = None

    @property
    def path(self) -> str:
        """The file that it writes at every exit."""
        return absolute(f"{self.callback.train_name}.ckpt")

    def begin(self, session: Session) -> None:
        """Record where it saves. Ignore an old exit flag, warn if it cannot exit, rename the file of an old exit."""
        callback = self.callback
        self._was_seen = bool(callback.stop_train)  # then it saves no more
        flag_path = self._config_file = callback.remote_config_file  # first: without it no request is heeded
        if not self._is_deaf(session):
            self._request = session.launch.exit_request
            self._request.is_heeded()
        resets = session.reset_exit_flag and session.progress.flag_may_be_stale
        if flag_path is not None and resets and compat.CHECK_EXIT_FLAG.of(callback)():
            self._flag = StaleFlag(flag_path, callback.key)
            if session.launch.rank == 0:
                self._flag.put_back()
            callback.remote_config_file = None  # it does not look there until the file is written again
        if not callback.save_ckpt:
            return
        self._before = facts(self.path)
        directory = str(Path(self.path).parent)
        file_name = Path(callback.train_name).name.removesuffix("_train")
        if self._before is not None and session.is_resumed:
            self._put_aside(session)
        session.places.add(directory, kind=Kind.GRACEFUL_EXIT, prefix=file_name, names_before=sorted)

    def _put_aside(self, session: Session) -> None:
        """Rename the unregistered file of an earlier exit, to keep it from being loaded or overwritten."""
        start = session.progress.start
        plan = start.plan if start is not None else None
        if plan is not None and self.path in {assignment.source.path for assignment in plan.ranks}:
            return  # other ranks may still be loading it
        kept = keep_unknown(self.path)
        if kept is None:
            log.warning("%s is of an earlier exit and is not loaded; the next one overwrites it", self.path)
        else:
            self._before = None
            log.warning("%s is of an exit that the catalog does not know: not loaded, kept as %s", self.path, kept)

    def _is_deaf(self, session: Session) -> bool:
        """Whether it cannot exit on request. Warns if so."""
        if not self.callback.use_graceful:
            log.warning(
                "OnRequestExit is in the callbacks, but MS_ENABLE_GRACEFUL_EXIT=1 was not set when it was made: "
                "SIGTERM will be swallowed, and training will go on until it is killed"
            )
        elif all(item.name != _EXIT_PARAMETER for item in session.params.train_network.get_parameters()):
            log.warning(
                "the train network has no parameter %s: OnRequestExit cannot stop training; "
                "use ExitByRequest in your TrainOneStepCell",
                _EXIT_PARAMETER,
            )
        elif self.callback.stop_train:
            session.complaints.warn(
                "OnRequestExit has stopped a training before, and stops no other one: make a new one for each training"
            )
        else:
            return False
        return True

    def step_begin(self) -> None:
        """Let the callback read its flag again once that was rewritten, or the flag of a request to this launch."""
        if self._request is not None and (path := self._request.path()):
            self.callback.remote_config_file = path
        elif self._config_file and (self._flag is None or self._flag.was_written()):
            self.callback.remote_config_file = self._config_file
            self._flag = None

    def poll(self) -> Saved | None:
        """Its save, after the step in which it stopped training. After a signal it saves again when training ends."""
        if self._was_seen or not (self.callback.stop_train and self.callback.save_ckpt):
            return None
        self._was_seen = True
        return Saved(self.path, Kind.GRACEFUL_EXIT, Content.FULL, written_again=True)

    def end(self, session: Session) -> None:
        """Record its last save, under the final name."""
        self.callback.remote_config_file = self._config_file
        session.progress.has_left |= bool(self.callback.stop_train or self.callback.exit)
        if not self.callback.save_ckpt or not (self.callback.stop_train or self.callback.exit):
            return
        written = facts(self.path)
        if written is None or written == self._before:
            return
        file = session.describe(self.path, kind=Kind.GRACEFUL_EXIT, content=Content.FULL, written=written)
        if session.is_resumed:
            kept = kept_path(self.path, file.global_step)
            session.recorder.keep_exit(file, kept)
            session.keep_beside(kept)
        else:  # a script that restores by OnRequestExit itself needs the file under its own name
            session.recorder.submit(file, asynchronous=False)


def disarm() -> None:
    """From now on OnRequestExit loads nothing if a registrar that resumed is among the callbacks.

    It would load an older exit's file over the restored weights, in training and in the evaluations inside `fit`
    (MindSpore: `train/callback/_on_request_exit.py`). Its hook may run before those of ckptstore, depending on the
    order of callbacks: so the hooks of its class are replaced.
    """
    for name in ("on_train_begin", "on_eval_begin"):
        hook = getattr(OnRequestExit, name)
        if not hasattr(hook, "__wrapped__"):
            setattr(OnRequestExit, name, _loading_nothing(hook))


def _loading_nothing(hook: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @wraps(hook)
    def wrapper(self: Any, run_context: Any) -> None:
        callbacks = run_context.original_args().get("list_callback") or []
        restored = any(getattr(callback, "restores", False) for callback in callbacks)
        save_ckpt = self.save_ckpt
        self.save_ckpt = save_ckpt and not restored
        try:
            hook(self, run_context)
        finally:
            self.save_ckpt = save_ckpt

    return wrapper
