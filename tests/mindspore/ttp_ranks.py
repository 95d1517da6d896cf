"""Ranks whose faults are handled as MindIO's controller does it, by MindSpore's own handlers."""

from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint
from mindspore.train.callback import _train_fault_tolerance as fault_tolerance

from ckptstore.api import Catalog
from ckptstore.mindspore.launch import TrainingLaunch
from tests.mindspore.trainings import create_dataset, create_model


class FaultError(RuntimeError):
    """Training ends here; a real controller would end the process."""


class Handled(Callback):
    """After step `step`, does what the controller does: calls some handlers, and ends training."""

    def __init__(self, tft_cb: Any, step: int, handlers: tuple[str, ...]) -> None:
        super().__init__()
        self.tft_cb, self.step, self.handlers = tft_cb, step, handlers

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num != self.step:
            return
        controller = self.tft_cb.tft
        for name in self.handlers:
            handler, context = controller.handlers[name]
            arguments = {
                "save": (self.step, None, controller.step_args, context),
                "rename": (self.step, context),
                "exit": (context,),
            }
            handler(*arguments[name])
        raise FaultError


class Rank:
    """One rank of a job whose ranks all train on the same data; here one after the other, in this process."""

    def __init__(self, catalog: Catalog, stand_in: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.catalog = catalog
        self.stand_in = stand_in
        self.monkeypatch = monkeypatch

    def train(
        self,
        rank: int,
        directory: Path,
        *,
        world_size: int = 1,
        launch: str = "L1",
        layout: str | None = None,
        step: int = 5,
        handlers: tuple[str, ...] = ("save",),
        epochs: int = 2,
        save_fn: bool = False,
        root: Path | None = None,
    ) -> tuple[Any, Model]:
        self.monkeypatch.setattr(fault_tolerance, "get_rank", lambda: rank)
        joined = self.catalog.join("run", rank=rank, world_size=world_size, launch_id=launch, layout=layout)
        training = TrainingLaunch(joined.database, joined.facts, rank)
        model, dataset = create_model(), create_dataset()
        start = training.resume(model, dataset)
        ckpt_cb = ModelCheckpoint("net", str(directory / "ckpt"), CheckpointConfig(save_checkpoint_steps=4))

        def save(params: Any, append_dict: dict[str, Any]) -> None:
            ckpt_cb._append_dict.update(append_dict)
            ckpt_cb._save_ckpt(params, force_to_save=True)

        how = {"ckpt_save_fn": save} if save_fn else {}
        tft_cb = self.stand_in.install()(str(root or directory / "ttp"), **how)
        callbacks = [ckpt_cb, tft_cb, Handled(tft_cb, step, handlers), training.registrar(ckpt_cb, tft_cb)]
        with suppress(FaultError):
            model.train(
                epochs, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch, dataset_sink_mode=False
            )
        return start, model
