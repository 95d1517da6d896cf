"""For training scripts: join a launch, resume from the newest complete state, register saves.

    launch = ckptstore.mindspore.join("my-run")
    start = launch.resume(model, dataset)
    model.train(10, dataset, callbacks=[launch.saver("ckpt", every=100)], initial_epoch=start.initial_epoch)

The only package of ckptstore that imports MindSpore.
"""

from __future__ import annotations

from ckptstore.mindspore.evaluation import load
from ckptstore.mindspore.launch import TrainingLaunch, join
from ckptstore.mindspore.loop import Loop
from ckptstore.mindspore.registrar import Registrar
from ckptstore.mindspore.saver import Saver
from ckptstore.mindspore.state import TrainState
from ckptstore.training.start import Start

__all__ = ["Loop", "Registrar", "Saver", "Start", "TrainState", "TrainingLaunch", "join", "load"]
