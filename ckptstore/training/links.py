"""Tells MLflow and Weights & Biases which states a launch has saved, for their pages: references, no bytes."""

from __future__ import annotations

import logging
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckptstore.core.model import FileState
from ckptstore.disk.waiting import start_thread
from ckptstore.errors import UsageError
from ckptstore.outside import atexit, queue, threading, time
from ckptstore.training.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptstore.core.model import Checkpoint

    Tell = Callable[[str, int, Checkpoint], object]

log = logging.getLogger("ckptstore")

_SECONDS_AT_EXIT = 5.0
_STATE = "ckptstore.newest_state"
_STEP = "ckptstore.step"
_UNNAMEABLE = re.compile(r"[^\w./ -]")
"""The characters that MLflow does not allow in the name of a metric."""


class Links:
    """Reports each recorded state to trackers, on a thread of its own: a slow server delays nothing."""

    def __init__(self, owner: str, *trackers: str) -> None:
        """`owner` is RUN/LAUNCH. Raises `UsageError` for a tracker that is not installed, or has no active run."""
        self._owner = owner
        self._tells = [_active(name) for name in trackers]
        self._states: queue.SimpleQueue[Checkpoint | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._complaints = Complaints()

    def add(self, file: Checkpoint) -> None:
        """A file was recorded, or got metrics."""
        if file.state is not FileState.COMPLETE or file.quarantine:
            return
        if self._thread is None:
            self._thread = start_thread(self._work, "ckptstore-links")
            atexit.register(self._finish)
        self._states.put(file)

    def _finish(self) -> None:
        self._states.put(None)
        if self._thread is not None:
            self._thread.join(_SECONDS_AT_EXIT)
            if self._thread.is_alive():
                log.warning("the last states are not linked: the tracker does not answer. The catalog has them")

    def _work(self) -> None:
        newest = 0  # a file may get metrics when a newer state is saved
        while (file := self._states.get()) is not None:
            newest = max(newest, file.global_step)
            for tell in self._tells:
                self._tell(tell, newest, file)

    def _tell(self, tell: Tell, newest: int, file: Checkpoint) -> None:
        try:
            tell(f"{self._owner}@{newest}", newest, file)
        except Exception as error:  # noqa: BLE001 — whatever a tracker raises, training goes on
            self._complaints.warn(f"states are not linked ({type(error).__name__}: {error}); training goes on")


def _active(tracker: str) -> Tell:
    """The function that reports to the active run of a tracker."""
    if tracker not in _TRACKERS:
        raise UsageError(f"there is no tracker {tracker!r}", f"use one of: {', '.join(_TRACKERS)}")
    try:
        module = import_module(tracker)
    except ImportError as error:
        raise UsageError(f"{tracker} cannot be imported ({error})", f"install it, or leave {tracker!r} out") from None
    tell = _TRACKERS[tracker](module)
    if tell is None:
        begin = {"mlflow": "mlflow.start_run()", "wandb": "wandb.init()"}[tracker]
        raise UsageError(f"{tracker} has no active run", f"call {begin} before")
    return tell


def _mlflow(mlflow: Any) -> Tell | None:
    """Report to MLflow. Its active run belongs to one thread: its id is read here, on the script's thread."""
    active = mlflow.active_run()
    if active is None:
        return None
    client, run_id = mlflow.MlflowClient(), active.info.run_id

    def tell(reference: str, newest: int, file: Checkpoint) -> None:
        now = int(time.time() * 1000)
        values = {f"ckptstore.{_UNNAMEABLE.sub('_', name)}": value for name, value in file.metrics.items()}
        entity = mlflow.entities
        client.log_batch(
            run_id,
            metrics=[entity.Metric(name, value, now, file.global_step) for name, value in values.items()],
            tags=[entity.RunTag(_STATE, reference), entity.RunTag(_STEP, str(newest))],
        )

    return tell


def _wandb(wandb: Any) -> Tell | None:
    """Report to the summary only: steps of ckptstore in the history would come between those of the script."""
    active = wandb.run
    if active is None:
        return None

    def tell(reference: str, newest: int, file: Checkpoint) -> None:
        if file.global_step == newest:
            values = {f"ckptstore.{name}": value for name, value in file.metrics.items()}
            active.summary.update({_STATE: reference, _STEP: newest, **values})

    return tell


_TRACKERS: dict[str, Callable[[Any], Tell | None]] = {"mlflow": _mlflow, "wandb": _wandb}
