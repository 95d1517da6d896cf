"""A launch as a training script sees it."""

from __future__ import annotations

import atexit
import json
import logging
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ckptstore.catalog.engine import Database, open_database
from ckptstore.core.model import epoch_and_step
from ckptstore.core.retention import check_policy
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, RefusedError, UsageError
from ckptstore.mindspore import communication
from ckptstore.mindspore.data import steps_of
from ckptstore.mindspore.dying_gasp import DyingGasp
from ckptstore.mindspore.keeper import Keeper
from ckptstore.mindspore.layout_files import LayoutFiles
from ckptstore.mindspore.registrar import Registrar
from ckptstore.mindspore.resume import Decryption, Start, load
from ckptstore.mindspore.watches import watches_for
from ckptstore.ops.join import new_launch_id
from ckptstore.ops.launch import RankLaunch
from ckptstore.ops.start import (
    Decision,
    a_guess,
    begin,
    decide,
    decision_from_json,
    follow,
    launch_from_json,
    launch_to_json,
    make_known,
    overlooked,
    untold,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ckptstore.catalog.reads import Ending
    from ckptstore.core.model import Checkpoint, Launch, RestorePlan, Rule
    from ckptstore.core.policy import Policy
    from ckptstore.mindspore.data import Steps
    from ckptstore.mindspore.training import Metrics
    from ckptstore.ops.connect import Catalog

log = logging.getLogger("ckptstore")

_ANSWER_SECONDS = 5.0
"""Of the catalog while a job starts, runs and ends: a job's end must not wait for it longer than twice that."""


class TrainingLaunch(RankLaunch):
    """What one rank does in a launch of a training script. Made by `ckptstore.mindspore.join`.

    `start` is what `resume` returned; None before. `known` are the run's launches that were known then, with the
    highest step of each, and `is_by_journals` tells that the catalog could not be used. `directories` are where the
    script says that it keeps its files. `global_step` counts the batches consumed so far, by whichever registrar sees
    them; it is `step_shift` beyond the updates of an optimizer that never left one out. `trained` tells that training
    has begun, `failed` that an exception ended the last one, and `ending` how, where that is known.
    """

    start: Start | None = None
    known: Mapping[str, int] = MappingProxyType({})
    is_by_journals: bool = False
    directories: tuple[str, ...] = ()
    global_step: int = 0
    step_shift: int = 0
    trained: bool = False
    failed: bool = False
    ending: Ending | None = None

    def __init__(self, database: Database, facts: Launch, rank: int) -> None:
        super().__init__(database, facts, rank)
        self._said_overlooked = False
        self._layout_files = LayoutFiles()
        self.note_layout_files()

    def note_layout_files(self) -> None:
        """Remember what strategy and group info files are there before MindSpore compiles."""
        self._layout_files.note()

    def keep_layout_files(self) -> None:
        """Keep the strategy and group info files that MindSpore has written in this launch."""
        for path in self._layout_files.written():
            self.keep_layout_file(path)

    def resume(
        self,
        model: Any,
        dataset: Any,
        *,
        step: int | None = None,
        lineage: str | None = None,
        take_quarantined: bool = False,
        dec_key: bytes | None = None,
        dec_mode: str = "AES-GCM",
    ) -> Start:
        """Restore the newest whole state of the run into `model` and `dataset`, if there is one.

        Every parameter of the model's train network, the optimizer's too, comes from the file; the dataset goes on
        with the batch after the last one consumed. All ranks must call it, before `Model.train`, and get the same
        state. `step` and `lineage` ask for an older one, of the history that leads to a launch (None: to the newest):
        the run goes on from there, and what came after it is given up, not deleted. `take_quarantined` takes a state
        that was found to be bad too. `dec_key` and `dec_mode` are those of
        `mindspore.load_checkpoint`, for files saved with `enc_key`. Raises `NothingRestorableError` where states were
        lost or are of another branch, `RefusedError` where it cannot be told whether any were saved, `UsageError` where
        the network is not the one that was saved, or the state has no place in the dataset, `DamageError` for a file
        that is not what was recorded.
        """
        if self.trained:
            raise UsageError("training has begun in this launch", "join again to resume in the same process")
        known = steps_of(dataset, self.world_size)
        plan = self._agree(known, step=step, lineage=lineage, take_quarantined=take_quarantined)
        if plan is None:
            self.start = Start(fresh=True)
            self._say(f"run {self.run}: no whole state was saved yet, training starts from the beginning")
            return self.start
        steps, first = known.an_epoch, self.facts.start_step
        if first is None:
            raise CkptstoreError(f"the first step of launch {self.id} is not in {self.database.name}", "join again")
        appended = load(
            model.train_network,
            plan,
            self.rank,
            Decryption(dec_key, dec_mode),
            layout=self.facts.layout,
            on_failure=self._failed_to_load,
        )
        dataset.set_init_step(first)
        self.global_step = first
        epoch, step_in_epoch = epoch_and_step(first, steps)
        self.start = Start(
            fresh=False,
            global_step=first,
            epoch=epoch or 0,
            step_in_epoch=step_in_epoch or 0,
            initial_epoch=first // steps,
            append_info=appended,
            plan=plan,
        )
        there = "" if first == plan.global_step else f" as step {plan.global_step}"
        self._say(
            f"run {self.run}: going on after step {first} "
            f"(epoch {epoch}, step {step_in_epoch} of {steps}), saved{there} by launch {plan.launch.id}"
        )
        return self.start

    def registrar(
        self,
        *callbacks: Any,
        save_on_exception: bool = False,
        exception_interval: float = 60.0,
        metrics: Metrics | None = None,
        reset_exit_flag: bool = True,
        durable: bool = False,
        retention: Policy | None = None,
    ) -> Registrar:
        """The callback that registers what these callbacks save (none given: all in the callback list).

        ModelCheckpoint, OnRequestExit, TrainFaultTolerance (TFTRegister) and the Elastic Agent's ExceptionCheckpoint
        are known; of any other it is said that it is not. Put the registrar last in the list.

        `save_on_exception` saves the state when an exception ends training, unless that was done less than
        `exception_interval` seconds before. `metrics` is called with MindSpore's callback parameters at every save
        and returns what to keep with it, finite numbers by name. `reset_exit_flag` puts the JSON flag of
        OnRequestExit back to 0 where it is still set when training begins. `durable` has each file on the disk before
        it is registered, on the registrar's own thread: a power loss then takes no file that was registered.
        `retention` says what to keep: after each state that every rank has registered, rank 0 moves the others to the
        trash, on a thread of its own.
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
            durable=durable,
            dying_gasp=DyingGasp(exception_interval) if save_on_exception else None,
            keeper=Keeper(self, retention) if retention is not None and self.rank == 0 else None,
        )

    def adopt_at_exit(self) -> None:
        """Register the breakpoint that MindSpore writes once the callbacks are gone, when the interpreter ends."""
        atexit.unregister(self._adopt)
        atexit.register(self._adopt)

    def _adopt(self) -> None:
        if self.ledger.behind:  # the next start adopts it
            return
        try:
            self.adopt()
        except CkptstoreError as error:
            log.warning("%s. The next start adopts what was saved last.", error)
        self.let_go()  # many launches may end here

    def check_place(self, directory: str) -> None:
        """Raise `RefusedError` if this start overlooked what its run had saved in this directory before.

        Nobody knew of it then: the catalog could not be reached or was lost. Now it is known where to look. Without the
        catalog a checkpoint that no journal tells of stops it too; where the catalog does not know it, that is said.
        """
        lost = self._overlooked(directory)
        if lost is not None:
            make_known(self.database, self.run, directory, is_first=self.rank == 0)
            raise RefusedError(lost[0], "start again: it is found now; or start a run of another name")
        is_first = self.start is not None and self.start.fresh and self.known.keys() <= {self.id}
        path = untold(directory) if is_first else None
        if path is not None and self.is_by_journals:
            raise a_guess(path, self.run)
        if path is not None and self.rank == 0:
            log.warning(
                "%s is in no journal, and the catalog knows no save of run %s: if the run goes on from there, stop it, "
                "ckptstore scan %s --run %s, and start again",
                path,
                self.run,
                directory,
                self.run,
            )

    def report_place(self, directory: str) -> None:
        """Say once, as an error, what `check_place` raises: training has begun, and goes on with what it has.

        Its files are recorded as any other. Reads all journals there: not for the training thread.
        """
        if self._said_overlooked:
            return
        try:
            lost = self._overlooked(directory)
        except (CkptstoreError, OSError) as error:
            log.warning("whether run %s had saved in %s before cannot be seen: %s", self.run, directory, error)
            return
        if lost is not None:
            self._said_overlooked = True
            log.error(
                "%s. Training goes on, and its saves are registered; to go on from that step instead, stop it and "
                "start again with resume(lineage=%r)",
                *lost,
            )

    def _overlooked(self, directory: str) -> tuple[str, str] | None:
        """What this start overlooked, in words, and the launch that saved it."""
        if self.start is None or self.facts.branched:  # who goes back on purpose gives up what came after that
            return None
        lost = overlooked(directory, self.run, self.known, launch=self.id, start_step=self.start.global_step)
        if lost is None:
            return None
        held = f"{lost.path} holds step {lost.global_step} of run {lost.run}"
        return f"this launch starts {self.start.place}, but {held}, and no catalog knew of it", lost.launch

    def _failed_to_load(self, file: Checkpoint | None, damage: Rule | None, detail: str) -> None:
        """Record that a file could not be loaded, so that the next launch does without it."""
        try:
            if file is not None and damage is not None:
                self.mark_damaged(file, damage)
            self.load_failed(file, detail)
        except CatalogUnavailableError as error:
            log.error("%s. It is not recorded that this launch could not load its file.", error)  # noqa: TRY400

    def _agree(
        self, steps: Steps, *, step: int | None, lineage: str | None, take_quarantined: bool
    ) -> RestorePlan | None:
        """Rank 0 decides and tells the others, or why it cannot: they need no catalog for it."""
        own: list[Decision] = []

        def decided() -> str:
            self.set_steps_per_epoch(steps.an_epoch, batch_size=steps.batch_size, shards=steps.shards)
            own.append(decide(self, self.directories, step=step, lineage=lineage, take_quarantined=take_quarantined))
            return json.dumps(own[0].to_json())

        told = communication.decided_by_rank_0(decided)
        decision = own[0] if own else decision_from_json(json.loads(told))
        self.known, self.step_shift = decision.known, decision.shift
        self.is_by_journals = self.ledger.behind
        if not own:
            self.facts = found = decision.launch
            self.started(decision.plan, decision.at, start_step=found.start_step, branched=found.branched)
        return decision.plan

    def _say(self, message: str) -> None:
        if self.rank == 0:
            log.info(message)


def join(
    run: str,
    *,
    catalog: Catalog | None = None,
    launch_id: str | None = None,
    directories: Sequence[str | Path] = (),
) -> TrainingLaunch:
    """Make this process part of a launch of `run`: rank, world size and layout come from MindSpore.

    `catalog` is an open one (None: `ckptstore.connect()`). Rank 0 makes the launch's id, or takes `launch_id` or
    CKPTSTORE_LAUNCH_ID, and tells the others. Call it after `mindspore.communication.init()`, on every rank.
    `directories` are those that the checkpoints are in or below, as CKPTSTORE_DIRECTORIES may name them too: while the
    catalog cannot be used, a start finds them there. Where this user started the run on this machine before, they are
    known without that.
    """
    _let_people_see()
    rank, world_size = communication.rank_and_world_size()

    url = catalog.database.url if catalog else open_database(None).url
    database = Database(url, answer_within=_ANSWER_SECONDS)
    layout = communication.layout()
    first: list[RankLaunch] = []

    def begun() -> str:
        named = launch_id or os.environ.get("CKPTSTORE_LAUNCH_ID") or new_launch_id()
        launch = begin(
            database,
            run,
            rank=rank,
            world_size=world_size,
            launch_id=named,
            layout=layout,
            directories=directories,
        )
        first.append(launch)
        return json.dumps({"launch": launch_to_json(launch.facts), "away": launch.ledger.behind})

    told = json.loads(communication.decided_by_rank_0(begun))
    facts = launch_from_json(told["launch"])
    joined = first[0] if first else follow(database, facts, rank, layout, away=told["away"])
    launch = TrainingLaunch(database, joined.facts, rank)
    launch.ledger.inherit(joined.ledger)
    launch.directories = tuple(map(str, directories))
    return launch


def _let_people_see() -> None:
    """A script that set up no logging still tells its user where training starts."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("ckptstore: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
