"""A launch as a training script sees it."""

from __future__ import annotations

import atexit
import logging
import os
from typing import TYPE_CHECKING, Any

from ckptstore.core.model import epoch_and_step
from ckptstore.core.retention import check_policy
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.mindspore import communication
from ckptstore.mindspore.dying_gasp import DyingGasp
from ckptstore.mindspore.keeper import Keeper
from ckptstore.mindspore.registrar import Registrar
from ckptstore.mindspore.resume import Decryption, Start, load
from ckptstore.mindspore.watches import watches_for
from ckptstore.ops.connect import connect
from ckptstore.ops.join import new_launch_id
from ckptstore.ops.launch import RankLaunch

if TYPE_CHECKING:
    from ckptstore.core.model import RestorePlan
    from ckptstore.core.policy import Policy
    from ckptstore.mindspore.training import Metrics
    from ckptstore.ops.connect import Catalog

log = logging.getLogger("ckptstore")


class TrainingLaunch(RankLaunch):
    """What one rank does in a launch of a training script. Made by `ckptstore.mindspore.join`.

    `start` is what `resume` returned; None before. `global_step` counts the batches consumed so far, by whichever
    registrar sees them; `trained` tells that training has begun, `failed` that an exception ended the last one.
    """

    start: Start | None = None
    global_step: int = 0
    trained: bool = False
    failed: bool = False

    def resume(
        self,
        model: Any,
        dataset: Any,
        *,
        take_quarantined: bool = False,
        dec_key: bytes | None = None,
        dec_mode: str = "AES-GCM",
    ) -> Start:
        """Restore the newest whole state of the run into `model` and `dataset`, if there is one.

        Every parameter of the model's train network, the optimizer's too, comes from the file; the dataset goes on
        with the batch after the last one consumed. All ranks must call it, before `Model.train`, and get the same
        state. `take_quarantined` takes a state that was found to be bad too. `dec_key` and `dec_mode` are those of
        `mindspore.load_checkpoint`, for files saved with `enc_key`. Raises `NothingRestorableError` where states were
        lost, `UsageError` where the network or the number of steps in an epoch is not the one that was saved,
        `DamageError` for a file that is not what was recorded.
        """
        if self.trained:
            raise UsageError("training has begun in this launch", "join again to resume in the same process")
        steps = int(dataset.get_dataset_size())
        plan = self._agree(steps, take_quarantined=take_quarantined)
        if plan is None:
            self.start = Start(fresh=True)
            self._say(f"run {self.run}: no whole state was saved yet, training starts from the beginning")
            return self.start
        _check_position(plan, steps)
        appended = load(model.train_network, plan, self.rank, Decryption(dec_key, dec_mode), self.mark_damaged)
        dataset.set_init_step(plan.global_step)
        self.global_step = plan.global_step
        epoch, step_in_epoch = epoch_and_step(plan.global_step, steps)
        self.start = Start(
            fresh=False,
            global_step=plan.global_step,
            epoch=epoch or 0,
            step_in_epoch=step_in_epoch or 0,
            initial_epoch=plan.global_step // steps,
            append_info=appended,
            plan=plan,
        )
        self._say(
            f"run {self.run}: going on after step {plan.global_step} "
            f"(epoch {epoch}, step {step_in_epoch} of {steps}), saved by launch {plan.launch.id}"
        )
        return self.start

    def registrar(
        self,
        *callbacks: Any,
        save_on_exception: bool = False,
        exception_interval: float = 60.0,
        metrics: Metrics | None = None,
        reset_exit_flag: bool = True,
        retention: Policy | None = None,
    ) -> Registrar:
        """The callback that registers what these callbacks save (none given: all in the callback list).

        ModelCheckpoint, OnRequestExit, TrainFaultTolerance (TFTRegister) and the Elastic Agent's ExceptionCheckpoint
        are known; of any other it is said that it is not. Put the registrar last in the list.

        `save_on_exception` saves the state when an exception ends training, unless that was done less than
        `exception_interval` seconds before. `metrics` is called with MindSpore's callback parameters at every save
        and returns what to keep with it, finite numbers by name. `reset_exit_flag` puts the JSON flag of
        OnRequestExit back to 0 where it is still set when training begins. `retention` says what to keep: after each
        state that every rank has registered, rank 0 moves the others to the trash, on a thread of its own.
        """
        if retention is not None:
            check_policy(retention)
        for callback in callbacks:
            if not any(watches_for([callback])):
                log.warning("ckptstore does not know what %s saves: it is not watched", type(callback).__name__)
        return Registrar(
            self,
            callbacks,
            metrics=metrics,
            reset_exit_flag=reset_exit_flag,
            dying_gasp=DyingGasp(exception_interval) if save_on_exception else None,
            keeper=Keeper(self, retention) if retention is not None and self.rank == 0 else None,
        )

    def adopt_at_exit(self) -> None:
        """Register the breakpoint that MindSpore writes once the callbacks are gone, when the interpreter ends."""
        atexit.register(self._adopt)

    def _adopt(self) -> None:
        try:
            self.adopt()
        except CkptstoreError as error:
            log.warning("%s. The next start adopts what was saved last.", error)

    def _agree(self, steps: int, *, take_quarantined: bool) -> RestorePlan | None:
        """Rank 0 decides and stores; the others hear that it has, or why not, and read what it stored."""

        def decide() -> str:
            self.set_steps_per_epoch(steps)
            self.resolve(take_quarantined=take_quarantined)
            return self.id

        communication.decided_by_rank_0(decide)
        self.reread()
        return self.resolve()

    def _say(self, message: str) -> None:
        if self.rank == 0:
            log.info(message)


def join(run: str, *, catalog: Catalog | None = None, launch_id: str | None = None) -> TrainingLaunch:
    """Make this process part of a launch of `run`: rank, world size and layout come from MindSpore.

    `catalog` is an open one (None: `ckptstore.connect()`). Rank 0 makes the launch's id, or takes `launch_id` or
    CKPTSTORE_LAUNCH_ID, and tells the others. Call it after `mindspore.communication.init()`, on every rank.
    """
    _let_people_see()
    rank, world_size = communication.rank_and_world_size()

    def as_this_rank(agreed: str) -> RankLaunch:
        opened = catalog or connect()
        return opened.join(run, rank=rank, world_size=world_size, launch_id=agreed, layout=communication.layout())

    first: list[RankLaunch] = []

    def begin() -> str:
        first.append(as_this_rank(launch_id or os.environ.get("CKPTSTORE_LAUNCH_ID") or new_launch_id()))
        return first[0].id

    agreed = communication.decided_by_rank_0(begin)
    joined = first[0] if first else as_this_rank(agreed)
    return TrainingLaunch(joined.database, joined.facts, rank)


def _check_position(plan: RestorePlan, steps: int) -> None:
    saved = plan.launch.steps_per_epoch
    if saved is not None and saved != steps:
        count = plan.launch.world_size
        ranks = f"{count} rank{'' if count == 1 else 's'}"
        raise UsageError(
            f"step {plan.global_step} was saved with {saved} steps an epoch by {ranks}; now an epoch has {steps}",
            "use the batch size and the number of ranks that were saved, or start a run of another name",
        )


def _let_people_see() -> None:
    """A script that set up no logging still tells its user where training starts."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("ckptstore: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
