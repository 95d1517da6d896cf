"""Hooks ckptstore into a training of MindFormers. All names of MindFormers that it wraps or relies on are here.

The path of a start, in MindFormers 1.9 (`trainer/trainer.py`, `trainer/base_trainer.py`):

    Trainer.train                           the YAML's settings for resuming are put aside
    BaseTrainer._train_dataset_postprocess  the dataset is known: join, decide, point the configuration at the plan
    transform_and_load_checkpoint           MindFormers loads the plan's files
    CkptstoreRegistrar                      the callback is the registrar of that launch
    Model.train                             the network is compared with the plan's files, before the first step
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import TYPE_CHECKING, Any

from mindformers import Trainer
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindformers.trainer import base_trainer

import ckptstore.mindspore
from ckptstore.core.hints import Command
from ckptstore.disk.run_directories import root_of
from ckptstore.errors import RefusedError, UsageError
from ckptstore.mindformers.restore import Wish, check_restored, point_at
from ckptstore.outside import os
from ckptstore.resume.resolver import Loads

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptstore.mindspore import Registrar, TrainingLaunch

log = logging.getLogger("ckptstore")

NAME = "CkptstoreRegistrar"

_wish = Wish()  # of the training that is being started
_launch: TrainingLaunch | None = None


class CkptstoreRegistrar:
    """The callback of a YAML: the registrar of the launch of `run`. `durable` is as for `launch.registrar`."""

    def __new__(cls, *, run: str, durable: bool = False) -> Registrar:
        """Return the registrar. MindFormers calls it after its own CheckpointMonitor."""
        if _launch is None:
            raise UsageError(
                f"run {run!r} has no launch yet",
                f"name {NAME} in the callbacks of the YAML: MindFormers' Trainer makes it when the launch has begun",
            )
        return _launch.registrar(durable=durable)


def install() -> None:
    """Register the callback with MindFormers, and wrap the functions that start a training. Can be repeated."""
    if MindFormerRegister.is_exist(MindFormerModuleType.CALLBACK, NAME):
        return
    MindFormerRegister.register_cls(CkptstoreRegistrar, MindFormerModuleType.CALLBACK, alias=NAME)
    for name in ("train", "finetune"):
        setattr(Trainer, name, _with_wish(getattr(Trainer, name)))
    trainer = base_trainer.BaseTrainer
    trainer._train_dataset_postprocess = _with_start(trainer._train_dataset_postprocess)
    base_trainer.Model = _watched(base_trainer.Model)


def _with_wish(train: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(train)
    def call(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        global _wish, _launch  # noqa: PLW0603 — one training at a time, as in MindFormers
        _launch = None  # that of the training before this one
        entry = _entry(trainer.config)
        if entry is None:
            return train(trainer, *args, **kwargs)
        _check_keys(entry)
        if args or {name for name, value in kwargs.items() if value} & {"resume_from_checkpoint", "resume_training"}:
            raise UsageError(
                f"{train.__name__} is asked to resume, and {NAME} is in the callbacks",
                "leave out resume_from_checkpoint and resume_training: ckptstore finds the newest state",
            )
        _wish = Wish.taken_from(trainer.config)
        return train(trainer, *args, **kwargs)

    return call


def _with_start(postprocess: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(postprocess)
    def call(trainer: Any, dataset: Any, config: Any) -> Any:
        dataset = postprocess(trainer, dataset, config)
        entry = _entry(config)
        if entry is not None:
            _begin(entry["run"], dataset, config)
        return dataset

    return call


def _begin(run: str, dataset: Any, config: Any) -> None:
    global _launch  # noqa: PLW0603
    _launch = launch = ckptstore.mindspore.join(run)
    loads = Loads.MINDSPORE if config.get("use_legacy_format", True) else Loads.MINDFORMERS
    start = launch.decide(dataset, loads, check_restored=lambda params: check_restored(launch, config, params))
    if start.plan is None:
        if _wish.path:
            anew = f"to begin anew: leave out {_wish.setting}"
            tree = root_of(os.path.dirname(_wish.path)) if os.path.isfile(_wish.path) else _wish.path
            adopts = f"to adopt those files: {Command('scan', tree, '--run', run)}, and start again; {anew}"
            raise RefusedError(
                f"the YAML asks to resume from {_wish.path}, and run {run} has no state to go on from",
                adopts if loads is Loads.MINDSPORE else f"iterations that a scan finds are never restored; {anew}",
            )
        return
    if _wish.path:
        log.warning("%s: %s of the YAML is left out: ckptstore decides where to go on", _wish.setting, _wish.path)
    point_at(launch, start, start.plan, config)


def _watched(model: Any) -> Any:
    """Wrap MindFormers' `Model` to watch its calls. `train` returns at once if all epochs were trained before."""

    @wraps(model, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        made = model(*args, **kwargs)
        if _launch is not None:
            _launch.watch_calls(made)
        return made

    return make


def _check_keys(entry: Any) -> None:
    """Raise `UsageError` for a misspelt or missing key, before the run has a launch."""
    unknown = entry.keys() - {"type", "run", "durable"}
    if unknown or not entry.get("run"):
        wrong = f"the unknown key {', '.join(sorted(unknown))}" if unknown else "no run"
        raise UsageError(f"{NAME} in the YAML has {wrong}", "below it, write run: NAME, and durable: True if wanted")


def _entry(config: Any) -> Any:
    """The entry of the callback in the YAML; None if there is none."""
    return next((each for each in config.callbacks or () if each.get("type") == NAME), None)
