"""Checks calls of `Model.train` and `Model.fit` before MindSpore begins, also if the script forgot the registrar."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any

import mindspore

from ckptstore.core.text import count
from ckptstore.errors import UsageError
from ckptstore.mindspore.data import at_their_start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from ckptstore.training.start import Start

    Around = Callable[[Mapping[str, Any]], AbstractContextManager[bool]]

_ARGUMENTS = {"epoch", "callbacks", "dataset_sink_mode", "sink_size", "initial_epoch"}

LOOP = (
    "if the script calls model.train(1, …) in a loop, write: for epoch in range(start.initial_epoch, EPOCHS): "
    "model.train(epoch + 1, dataset, callbacks=CALLBACKS, initial_epoch=epoch)"
)
"""A call for each epoch: MindSpore counts the epochs of the whole run."""


def watch_calls(model: Any, around: Around) -> None:
    """Make each call of this model's `train` or `fit` inside the context `around`, which gets the arguments by name.

    `around` yields whether there is anything to train. If not, the call returns at once. Its errors pass through.
    """
    for name in ("train", "fit"):
        setattr(model, name, _watched(getattr(type(model), name).__get__(model), around))


def watch_evaluations(model: Any, found: Callable[[Any], None]) -> None:
    """Call `found` with the result of each call of this model's `eval`, before the result is returned."""
    method = type(model).eval.__get__(model)

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with at_their_start((*args, *kwargs.values())):
            results = method(*args, **kwargs)
        found(results)
        return results

    model.eval = call


def _watched(method: Any, around: Around) -> Any:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        asked = inspect.signature(method).bind(*args, **kwargs)
        asked.apply_defaults()
        if _ARGUMENTS - asked.arguments.keys():  # a class derived from Model may take others
            return method(*args, **kwargs)
        with around(asked.arguments) as has_work:
            return method(*args, **kwargs) if has_work else None

    return call


def is_finished(start: Start, asked: Mapping[str, Any]) -> bool:
    """Whether all the epochs that a first training is asked for were trained before `start`.

    MindSpore raises `ValueError` for that (`Model.train`): a job that was killed between its last checkpoint and its
    end would die of it at every start. Raises `UsageError` if training would begin in another epoch than that of
    `start`, and if fewer epochs are asked for than were trained.
    """
    done = start.global_step
    an_epoch = start.launch.steps_per_epoch or 1
    sinks = asked["dataset_sink_mode"] and mindspore.get_context("device_target") != "CPU"
    if sinks and asked["sink_size"] > 0:
        an_epoch = int(asked["sink_size"])  # then MindSpore counts so many steps as an epoch
    epochs, first = int(asked["epoch"]), int(asked["initial_epoch"])
    if done == epochs * an_epoch:
        return True
    trained = f"{count(done, 'step was', 'steps were')} trained before"
    if done > epochs * an_epoch:
        raise UsageError(
            f"model.train asks for {count(epochs, 'epoch', 'epochs')} of {an_epoch} steps, but {trained}",
            f"ask for the epochs of the whole run, including those trained before; {LOOP}",
        )
    if first != done // an_epoch:
        is_own = an_epoch == start.launch.steps_per_epoch
        raise UsageError(
            f"training would begin in epoch {first + 1}, but {trained}, and the next step is in epoch "
            f"{done // an_epoch + 1}",
            f"pass initial_epoch={'start.initial_epoch' if is_own else done // an_epoch}; {LOOP}",
        )
    return False
