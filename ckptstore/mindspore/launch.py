"""The interface for training scripts: `join`, and the methods of its launch, as `resume` and `registrar`."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import mindspore
from mindspore.train import ModelCheckpoint

from ckptstore.advise.advise import mtbf_of
from ckptstore.catalog.engine import Database, open_database
from ckptstore.core import validate
from ckptstore.core.events import TrainingEnded, launch_from_json, launch_to_json
from ckptstore.core.hints import Call, Command
from ckptstore.core.naming import ONE_FILE
from ckptstore.core.text import count, size, some, span
from ckptstore.disk.files import absolute
from ckptstore.disk.run_directories import root_of
from ckptstore.doctor.unanswered import named_if_slow
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, UsageError
from ckptstore.mindspore import communication, random_layers
from ckptstore.mindspore.data import begin_anew, check_dataset, check_exact, complaints, go_on, randomness, steps_of
from ckptstore.mindspore.dying_gasp import DyingGasp
from ckptstore.mindspore.extra_state import Keeper, Remembered, why_no_state
from ckptstore.mindspore.initial import Warm, begin_from
from ckptstore.mindspore.load_guard import LoadGuard
from ckptstore.mindspore.loop import Loop, check_loop
from ckptstore.mindspore.registrar import Registrar
from ckptstore.mindspore.resume import check_arguments, load
from ckptstore.mindspore.saver import Saver, check_saver
from ckptstore.mindspore.schedule import ExitFlag, Schedule
from ckptstore.mindspore.session import Session
from ckptstore.mindspore.state import TrainState, fixed_rates, settle_names
from ckptstore.mindspore.state_writer import StateWriter
from ckptstore.mindspore.train_call import LOOP, is_finished, watch_calls, watch_evaluations
from ckptstore.mindspore.watches import PeriodicWatch, watches_for
from ckptstore.outside import Path, atexit, os, utc_now
from ckptstore.resume.join import check_name, new_launch_id
from ckptstore.resume.register import checked
from ckptstore.resume.resolver import Loads, Query
from ckptstore.resume.start import Decided
from ckptstore.retention.decide import check_policy
from ckptstore.training.complaints import Complaints
from ckptstore.training.copies_to_tiers import CopiesToTiers
from ckptstore.training.layout_files import LayoutFiles
from ckptstore.training.life_signs import LifeSigns, Silence
from ckptstore.training.rank_launch import RankLaunch
from ckptstore.training.start import Progress, begin, decide, follow, start_from_json
from ckptstore.training.visibility import answer, ask_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ckptstore.api import Catalog
    from ckptstore.core.events import Line
    from ckptstore.core.model import Launch, RestorePlan
    from ckptstore.mindspore.data import Exact, Steps
    from ckptstore.mindspore.saver import AppendInfo
    from ckptstore.retention.policy import Policy
    from ckptstore.training.rhythm import Every
    from ckptstore.training.start import Start

log = logging.getLogger("ckptstore")

_NOT_FOUND = f"no later start finds it; write model.train(…, callbacks=[…, {Call('launch.registrar', '…')}])"

_SAVER = Call("launch.saver", '"checkpoints"', every=100)

_ANSWER_SECONDS = 5.0
"""How long to wait for the catalog while a job starts, runs and ends. A job's end waits at most twice as long."""

_LONG_LOAD = 1 << 30  # bytes: seconds on most disks


class TrainingLaunch(RankLaunch):
    """One rank of a launch, in a training script. Made by `ckptstore.mindspore.join`.

    `directories` are those that the script gave to `join`.
    """

    directories: tuple[str, ...] = ()

    def __init__(self, database: Database, facts: Launch, rank: int) -> None:
        super().__init__(database, facts, rank)
        self.progress = Progress()
        self._layout_files = LayoutFiles(communication.layout_files)
        self._guard = LoadGuard()
        self._complaints = Complaints()
        self._exit_flags: dict[str, ExitFlag] = {}
        self._was_finished = False
        self._remembered: Remembered | None = None
        self._not_registered = ""
        self._check_restored: Callable[[Any], None] | None = None

    @property
    def start(self) -> Start | None:
        """What `resume` returned; None before."""
        return self.progress.start

    @property
    def global_step(self) -> int:
        """Batches consumed since the run began, counted by all registrars of the launch."""
        return self.progress.global_step

    def resume(
        self,
        model: Any,
        dataset: Any,
        *,
        step: int | None = None,
        lineage: str | None = None,
        take_quarantined: bool = False,
        fresh: bool = False,
        initial: str | None = None,
        initial_optimizer: bool = False,
        rename: Mapping[str, str] = MappingProxyType({}),
        strict: bool = False,
        exact_data: Exact = "auto",
        repeat_random: bool = False,
        dec_key: bytes | None = None,
        dec_mode: str = "AES-GCM",
    ) -> Start:
        """Restore the newest complete state of the run into `model` and `dataset`, if there is one.

        Every parameter of the model's train network, the optimizer's too, comes from the file. The dataset goes on with
        the batch after the last one consumed. All ranks must call it, before `Model.train`, and get the same state.

        - `step`, `lineage`: go back to an older state, by its step, or in the history that leads to a launch (None: to
          the newest). The run goes on from there. Later saves are abandoned, not deleted.
        - `take_quarantined`: take a state that was found to be bad too.
        - `fresh`: start over at step 0 on purpose. Earlier saves are abandoned, not deleted.
        - `exact_data`: the dataset computes the skipped batches again, without training on them. Then its random
          operations, as augmentations, draw the same numbers as without a restart. "auto" does so if something may draw
          any, True always, False never.
        - `repeat_random`: random layers, as dropout, draw the same numbers as without a restart (PyNative mode). Give
          it from the first start on.
        - `dec_key`, `dec_mode`: those of `mindspore.load_checkpoint`, for files saved with `enc_key`.
        - `initial`: a reference to a state of another run, as "pretrain@best:loss". While this run has no state of its
          own, it begins at step 0 with those weights of that state that fit by name and shape. A restart takes the same
          state, even if the reference names another one by then; `fresh` chooses anew.
        - `rename`: prefixes of names in the file of `initial`, each with the prefix in the network.
        - `initial_optimizer`: take the optimizer's parameters too, except its counter and learning rates.
        - `strict`: refuse a file of `initial` if parameters are left over in it or in the network. Else they are only
          logged.

        It raises:

        - `NothingRestorableError` if states were lost or are of another branch, or if that of another run cannot be
          loaded,
        - `RefusedError` if it is unknown whether any states were saved,
        - `UsageError` if the network is not the one that was saved, or if the state has no matching position in the
          dataset,
        - `DamageError` for a file that differs from its record.
        """
        check_arguments(model, dataset)
        settle_names(model.train_network)
        warm = Warm(initial, initial_optimizer, rename, strict).checked()
        query = _query(step=step, lineage=lineage, take_quarantined=take_quarantined, fresh=fresh, initial=initial)
        decryption = {"dec_key": dec_key, "dec_mode": dec_mode}
        start = self._restore(model.train_network, dataset, query, exact_data, warm=warm, decryption=decryption)
        self._repeat([model.train_network], repeats=repeat_random)
        self.watch_calls(model)
        return start

    def restore(
        self,
        network: Any,
        optimizer: Any,
        dataset: Any,
        *,
        step: int | None = None,
        lineage: str | None = None,
        take_quarantined: bool = False,
        fresh: bool = False,
        initial: str | None = None,
        initial_optimizer: bool = False,
        rename: Mapping[str, str] = MappingProxyType({}),
        strict: bool = False,
        exact_data: Exact = "auto",
    ) -> Start:
        """As `resume`, for a loop of the script's own: into networks and optimizers, one or several of each.

        The next iterator of the dataset begins with the batch after the last one consumed. Make one for all epochs:
        `dataset.create_tuple_iterator(num_epochs=EPOCHS)`; MindSpore begins each later one there too. The loop saves by
        `launch.save`: `launch.save(TrainState(network, optimizer).write, name="net.safetensors", …)`. Several networks
        or optimizers are given as a list, or as a dict by names (`TrainState`).
        """
        check_dataset(dataset, "restore")
        warm = Warm(initial, initial_optimizer, rename, strict).checked()
        query = _query(step=step, lineage=lineage, take_quarantined=take_quarantined, fresh=fresh, initial=initial)
        return self._restore(TrainState(network, optimizer), dataset, query, exact_data, warm=warm)

    def loop(
        self,
        network: Any,
        optimizer: Any,
        dataset: Any,
        *,
        epochs: int,
        directory: str | os.PathLike[str],
        every: Every,
        prefix: str = "CKP",
        format: str = "safetensors",  # noqa: A002 — as MindSpore's CheckpointConfig calls it
        others: Mapping[str, Any] | None = None,
        exit_flag: str | os.PathLike[str] | None = None,
        buffers: int | None = None,
        retention: Policy | None = None,
        tiers: Mapping[str, str] | None = None,
        copy_rate: float | None = None,
        step: int | None = None,
        lineage: str | None = None,
        take_quarantined: bool = False,
        fresh: bool = False,
        initial: str | None = None,
        initial_optimizer: bool = False,
        rename: Mapping[str, str] = MappingProxyType({}),
        strict: bool = False,
        exact_data: Exact = "auto",
        repeat_random: bool = False,
    ) -> Loop:
        """Restore the newest complete state into network, optimizer and dataset; return the loop that goes on from it.

            for batch in loop:
                loss = train_step(*batch)
                loop.step(loss=loss)

        It saves network and optimizer when a save is due, and when it ends. The values are copied, and written while
        training goes on. It also saves if an exception ends training, and it is certain which step the network holds
        then. At SIGTERM, or when `exit_flag` asks, it saves and leaves with exit code 75.

        - `network`, `optimizer`: one or several of each (`TrainState`).
        - `directory`: several ranks save to `rank_N` in it.
        - `every`: a number of steps; a time after the last save; "auto", the time at which least is lost, a minute or
          more, by the cost of the saves and the failures of the run.
        - `format`: "safetensors" or "ckpt".
        - `others`: objects by name, as a scheduler of learning rates. Their `state_dict`, or their numbers, go with
          each save.
        - `exit_flag`: a JSON file that asks for an exit with `{"GracefulExit": 1}`.
        - `buffers`: bytes that the copy may take; None: a tenth of the free memory. If the copy needs more, nothing is
          copied, and training waits until a save is written.
        - `retention`, `tiers`, `copy_rate`: as for `registrar`.

        The other arguments and the errors are those of `resume`.
        """
        _check_format(format)
        state = TrainState(network, optimizer)
        state.check_format(format)
        check_loop(dataset, epochs, every, {} if others is None else others)
        if retention is not None:
            check_policy(retention)
        copies = self._copies(tiers, copy_rate)
        warm = Warm(initial, initial_optimizer, rename, strict).checked()
        query = _query(step=step, lineage=lineage, take_quarantined=take_quarantined, fresh=fresh, initial=initial)
        start = self._restore(state, dataset, query, exact_data, warm=warm)
        begin_anew(dataset)
        self._repeat(state.networks.values(), repeats=repeat_random)
        session = Session(self, self.progress, retention=retention, copies=copies)
        session.take(state, dataset)
        return Loop(
            session,
            StateWriter(session, directory=directory, prefix=prefix, form=format, buffers=buffers),
            state,
            dataset,
            start,
            remembered=self._take_remembered(),
            guard=self._guard,
            epochs=epochs,
            exact_data=exact_data,
            schedule=self._schedule(every, _flag_path(exit_flag)),
            others=others or {},
        )

    def _schedule(self, every: Every, exit_flag: str | None) -> Schedule:
        return Schedule(
            self,
            every,
            step=self.global_step,
            mtbf=self._mtbf() if every == "auto" and self.rank == 0 else None,
            flag=None if exit_flag is None else self._exit_flag(exit_flag),
        )

    def _exit_flag(self, path: str) -> ExitFlag:
        """The same one in each training: one that is set between two of them counts."""
        if path not in self._exit_flags:
            self._exit_flags[path] = ExitFlag(path, puts_back=self.rank == 0)
        return self._exit_flags[path]

    def _mtbf(self) -> float:
        seconds, has_failed = mtbf_of(self.database, self.name)
        seen = "as it has failed so far" if has_failed else "which is assumed"
        self._say(
            f"run {self.name}: chooses the save interval for one failure per {span(timedelta(seconds=seconds))}, {seen}"
        )
        return seconds

    def _restore(
        self,
        target: Any,
        dataset: Any,
        query: Query,
        exact_data: Exact,
        *,
        warm: Warm,
        decryption: Mapping[str, Any] = MappingProxyType({}),
    ) -> Start:
        check_exact(exact_data)
        if self.progress.has_trained:
            raise UsageError("training has begun in this launch", "join again to resume in the same process")
        with self._refusal_recorded():
            start = self._agree(steps_of(dataset, self.world_size), query)
            if (plan := start.plan) is None:
                self._say_fresh(has_initial=start.initial is not None)
                if start.initial is not None:
                    self._begin_from(start.initial, target, warm, decryption)
            else:
                here = self.fetched(plan)
                self._say_loading(here)
                rates = fixed_rates(target)
                appended = load(
                    target,
                    here,
                    self.rank,
                    decryption,
                    layout=self.facts.layout,
                    on_failure=self.record_load_failure,
                    on_put=partial(self._guard.begin_loading, target),
                )
                start = replace(start, append_info=appended)
                self._remember(here, start).put(target)
                first = self.progress.global_step = start.global_step
                computed_again = go_on(dataset, first, exact_data)
                self._say(f"run {self.name}: {start}")
                self._say_left(appended)
                self._say_rates(rates, fixed_rates(target))
                if computed_again:
                    self._say(computed_again)
            self._guard.resumed(target, restored=not start.fresh)
            self.progress.start = start
            if self.rank == 0:
                for complaint in complaints(dataset, exact_data):
                    log.warning(complaint)
            return start

    @contextmanager
    def _refusal_recorded(self) -> Iterator[None]:
        """Record at exit that the start was refused, unless a later call of this process goes on."""
        atexit.unregister(self._record_refusal)
        try:
            yield
        except CkptstoreError as error:
            if not isinstance(error, CatalogUnavailableError):
                atexit.register(self._record_refusal, type(error).__name__)
            raise

    def _begin_from(self, initial: RestorePlan, target: Any, warm: Warm, decryption: Mapping[str, Any]) -> None:
        (file,) = initial.files_for(self.rank, self.facts.layout)
        fitted = begin_from(target, file, warm, decryption, self._guard.loading)
        self._say(
            f"run {self.name}: began from step {initial.global_step} of run {initial.launch.run} (launch "
            f"{initial.launch.id}), {fitted}"
        )

    def decide(self, dataset: Any, loads: Loads, *, check_restored: Callable[[Any], None]) -> Start:
        """Decide where training goes on, for a framework that restores states by itself. Nothing is loaded here.

        `loads` is the kind of state that the framework can load.
        All ranks must call it, before the framework restores. Registrars made after it do not touch MindSpore's step
        count, and call `check_restored` with MindSpore's callback parameters when the first training begins; it may
        raise `RefusedError`. Raises as `resume` does.
        """
        start = self._agree(steps_of(dataset, self.world_size), Query(loads=loads))
        self._check_restored = check_restored
        if start.plan is None:
            self._say_fresh()
        else:
            self._say(f"run {self.name}: {start}")
            self._remember(start.plan, start)
        self.progress.start, self.progress.global_step = start, start.global_step
        return start

    def watch_calls(self, model: Any) -> None:
        """Watch the arguments of `model.train`, and the results of `model.eval` during it.

        A call that has nothing left to train returns at once.
        """
        watch_calls(model, self._call)
        watch_evaluations(model, self._evaluated)

    def _evaluated(self, results: Any) -> None:
        if self.progress.evaluated is not None and isinstance(results, dict):
            self.progress.evaluated(results)

    def record(self, *, step: int, **metrics: float) -> None:
        """As `RankLaunch.record`, while training on its own thread: training does not wait for it."""
        if self.progress.recorder is None:
            super().record(step=step, **metrics)
        else:
            self.progress.recorder.measure(validate.step_of(step), checked(metrics))

    def _say_loading(self, plan: RestorePlan) -> None:
        """Log the begin of a load that takes some seconds: nothing else is printed until its end."""
        total = sum(file.size or 0 for file in plan.files_for(self.rank, self.facts.layout))
        if total >= _LONG_LOAD:
            self._say(f"run {self.name}: loading step {plan.global_step}, {size(total)} on each rank")

    def _say_left(self, appended: Mapping[str, Any]) -> None:
        """Warn of saved arrays without a parameter: the network may have changed. Numbers come from `append_info`."""
        arrays = sorted(name for name, value in appended.items() if getattr(value, "size", 1) > 1)
        if arrays and self.rank == 0:
            log.warning(
                "the saved state has %s that the train network has no parameter for: %s. They are not restored",
                count(len(arrays), "array", "arrays"),
                some(arrays),
            )

    def _say_rates(self, of_script: Mapping[str, float], restored: Mapping[str, float]) -> None:
        for name, rate in restored.items() if self.rank == 0 else ():
            if of_script.get(name, rate) != rate:
                told = f"{name} is {rate:.7g}, from the saved state, not the script's {of_script[name]:.7g}"
                log.warning("%s: to change it, set it after resume", told)

    def _repeat(self, networks: Iterable[Any], *, repeats: bool) -> None:
        if repeats:
            self.progress.seed = mindspore.get_seed() or 0
        if self.rank == 0 and (told := random_layers.complaint(networks, repeats=repeats)):
            log.warning(told)

    def begin_fresh(self) -> Start:
        """Begin at step 0 on purpose, without `resume`. Earlier saves of the run are abandoned, not deleted.

        All ranks must call it, before `Model.train`.
        """
        start = self._agree(None, Query(fresh=True))
        self._say_fresh()
        self.progress.start = start
        return start

    def registrar(
        self,
        *callbacks: Any,
        save_on_exception: bool = False,
        exception_interval: float = 60.0,
        metrics: Callable[[Any], Mapping[str, float]] | None = None,
        reset_exit_flag: bool = True,
        durable: bool = False,
        retention: Policy | None = None,
        tiers: Mapping[str, str] | None = None,
        copy_rate: float | None = None,
        keeps: Sequence[Any] = (),
    ) -> Registrar:
        """The callback that registers what these callbacks save (none given: all in the callback list).

        ModelCheckpoint, OnRequestExit, TrainFaultTolerance (TFTRegister) and the Elastic Agent's ExceptionCheckpoint
        are known; a warning names every other. Put the registrar last in the list.

        - `save_on_exception`: save the state when an exception ends training, unless that was done less than
          `exception_interval` seconds before.
        - `metrics`: called with MindSpore's callback parameters at every save; returns the metrics to record with it,
          finite numbers by name. Metrics of evaluations by `Model.fit` or `model.eval` are recorded anyway, with the
          state that was evaluated, the loss as `eval_loss`.
        - `reset_exit_flag`: put the JSON flag of OnRequestExit back to 0 if it is still set when training begins.
        - `durable`: flush each file to the disk before it is registered, on the registrar's own thread. Then a power
          loss takes no registered file.
        - `retention`: the policy of what to keep. After each state that every rank has registered, rank 0 moves the
          others to the trash, on a thread of its own.
        - `tiers`: names and URLs of tiers, as {"s3": "s3://bucket/prefix"}. Each registered file is copied to them, on
          a thread of its own, by `copy_rate` bytes a second at most.
        - `keeps`: callbacks whose numbers, text and arrays are restored after a restart. Callbacks with `state_dict`
          and `load_state_dict` are restored anyway, as are EarlyStopping and ReduceLROnPlateau.
        """
        if not isinstance(keeps, (list, tuple)):
            raise UsageError(f"keeps is {type(keeps).__name__}", "give a list of callbacks: keeps=[…]")
        for problem in filter(None, map(why_no_state, keeps)):
            raise UsageError(
                f"keeps has an object that cannot be kept: {problem}", "give callbacks, or objects with state_dict"
            )
        if not isinstance(exception_interval, Real) or not float(exception_interval) >= 0:
            raise UsageError(f"exception_interval is {exception_interval!r}", "give seconds, as exception_interval=60")
        for callback in callbacks:
            if not any(watches_for([callback])):
                log.warning("ckptstore does not know what %s saves: it is not watched", type(callback).__name__)
        session = self._session(
            metrics,
            durable=durable,
            retention=retention,
            tiers=tiers,
            copy_rate=copy_rate,
            reset_exit_flag=reset_exit_flag,
            check_restored=self._check_restored,
        )
        return Registrar(
            session,
            Keeper(session, keeps),
            callbacks,
            guard=self._guard,
            layout_files=self._layout_files,
            dying_gasp=DyingGasp(exception_interval) if save_on_exception else None,
            remembered=self._take_remembered,
        )

    def saver(
        self,
        directory: str | os.PathLike[str],
        *,
        every: Every | Literal["epoch"],
        prefix: str = "CKP",
        format: str = "safetensors",  # noqa: A002 — as MindSpore's CheckpointConfig calls it
        append_info: AppendInfo = (),
        metrics: Callable[[Any], Mapping[str, float]] | None = None,
        exit_flag: str | os.PathLike[str] | None = None,
        buffers: int | None = None,
        copies: int | None = None,
        keep: Policy | None = None,
        tiers: Mapping[str, str] | None = None,
        copy_rate: float | None = None,
    ) -> Saver:
        """The callback for `Model.train` that saves, in place of a ModelCheckpoint and a registrar. Put it last.

            model.train(10, dataset, callbacks=[launch.saver("checkpoints", every=100)], initial_epoch=…)

        The values of the train network are copied when a step has ended, and written while training goes on. It saves
        when it is due, at the end of training, and at an exception, if it is certain which step the network holds then.
        At SIGTERM, at `ckptstore exit`, or when `exit_flag` asks, it saves and ends the process with exit code 75.

        - `directory`: several ranks save to `rank_N` in it.
        - `every`: a number of steps; a time after the last save; "epoch", the end of each; "auto", the time at which
          least is lost, a minute or more, by what the saves cost and how often the run failed.
        - `prefix`, `format`: files have MindSpore's names, `PREFIX-EPOCH_STEP`, and are "safetensors" or "ckpt".
        - `append_info`: dicts of numbers that go into each file, as with CheckpointConfig. "epoch_num" and "step_num"
          are in it anyway.
        - `metrics`: as for `registrar`.
        - `exit_flag`: a JSON file that asks for an exit with `{"GracefulExit": 1}`.
        - `buffers`: bytes that the copy may take; None: a tenth of the free memory. If the copy needs more, nothing is
          copied, and training waits until a save is written.
        - `copies`: how many ranks of each replica group save, on different hosts if there are any; None: all. The
          others load their files; their own random numbers are not kept.
        - `keep`: the policy by which rank 0 removes older states.
        - `tiers`, `copy_rate`: as for `registrar`: where each save is copied to.

        A save that is due while one is being written waits for that, on every rank. Parameters that are cut over the
        ranks are not saved: training is refused then, before its first step. Raises `UsageError` for an invalid
        argument.
        """
        check_saver(every, append_info, copies)
        _check_format(format)
        flag = _flag_path(exit_flag)
        session = self._session(metrics, durable=True, retention=keep, tiers=tiers, copy_rate=copy_rate)
        return Saver(
            session,
            Keeper(session, ()),
            (),
            guard=self._guard,
            layout_files=self._layout_files,
            dying_gasp=None,
            remembered=self._take_remembered,
            every=every,
            schedule=lambda due: self._schedule(due, flag),
            directory=directory,
            prefix=prefix,
            form=format,
            append_info=append_info,
            buffers=buffers,
            copies=copies,
        )

    def _copies(self, tiers: Mapping[str, str] | None, rate: float | None) -> CopiesToTiers | None:
        if tiers is None and rate is not None:
            raise UsageError(
                "copy_rate is given, and no tiers", 'say where to copy: tiers={"s3": "s3://bucket/prefix"}'
            )
        return None if tiers is None else CopiesToTiers(self, tiers, rate)

    def _session(
        self,
        metrics: Callable[[Any], Mapping[str, float]] | None,
        *,
        durable: bool,
        retention: Policy | None,
        tiers: Mapping[str, str] | None,
        copy_rate: float | None,
        reset_exit_flag: bool = True,
        check_restored: Callable[[Any], None] | None = None,
    ) -> Session:
        if retention is not None:
            check_policy(retention)
        if metrics is not None and not callable(metrics):
            raise UsageError(f"metrics is {metrics!r}", "give a function that returns the metrics of a save by name")
        copies = self._copies(tiers, copy_rate)
        session = Session(
            self,
            self.progress,
            durable=durable,
            retention=retention,
            copies=copies,
            reset_exit_flag=reset_exit_flag,
            check_restored=check_restored,
        )
        if metrics is not None:
            session.metrics = lambda: metrics(session.params)
        return session

    def _remember(self, plan: RestorePlan, start: Start) -> Remembered:
        """Read the extra state beside the files of a plan, for the first training. All ranks must call it."""
        self._remembered = Remembered(plan, start.lost, self)
        self._remembered.agree(communication.decided_by_rank_0(self._remembered.of_all))
        return self._remembered

    def _take_remembered(self) -> Remembered | None:
        """The extra state that the first training goes on with; None for a later one."""
        remembered, self._remembered = self._remembered, None
        return remembered

    @contextmanager
    def _call(self, asked: Mapping[str, Any]) -> Iterator[bool]:
        """Wrap a call of `Model.train` or `Model.fit`; yields whether it has anything to train. Raises `UsageError`."""
        callbacks = _listed(asked["callbacks"])
        if self.facts.layout.any_world_size:  # then all ranks call it
            ranks, savers = communication.added_up([1, int(any(isinstance(each, Saver) for each in callbacks))])
            if 0 < savers < ranks:
                raise UsageError(
                    f"{savers} of {ranks} ranks have a saver among their callbacks, and after a step all "
                    "ranks must decide together whether to save",
                    f"give {Call('launch.saver', '…', copies=1)} to all ranks: then one of them writes",
                )
        has_work = self._has_work(asked)
        if any(isinstance(each, Registrar) for each in callbacks):
            yield has_work
            return
        watches = [PeriodicWatch(each) for each in callbacks if isinstance(each, ModelCheckpoint)]
        self._complaints.warn(
            f"no registrar is among the callbacks: what this training saves is not registered, and {_NOT_FOUND}"
            if watches
            else "neither a saver nor a registrar is among the callbacks: what this training does is not saved, and a "
            f"restart begins where this start began; add {_SAVER} to them"
        )
        try:
            yield has_work
            if has_work and (dataset := asked.get("train_dataset")) is not None:  # as a registrar does
                self.progress.has_trained = True
                self.progress.global_step += -self.global_step % (self.facts.steps_per_epoch or 1)
                self._guard.begin(is_later=True)
                begin_anew(dataset)
        finally:
            for saved in filter(None, [watch.poll() for watch in watches]):
                self._not_registered = absolute(saved.path)
                atexit.unregister(self._say_again)
                atexit.register(self._say_again)

    def _has_work(self, asked: Mapping[str, Any]) -> bool:
        start = self.progress.start
        if start is None or self.progress.has_trained:
            if start is not None and self.progress.has_failed:
                self._complaints.warn(
                    f"an exception ended the last training after step {self.global_step}, and this call does not "
                    "finish its epoch: to go on with it, join and resume again"
                )
            elif start is not None and int(asked["initial_epoch"]) > 0:
                data = randomness(asked.get("train_dataset"))
                if data.shuffles or data.augments:
                    self._complaints.warn(
                        "each call of model.train begins the random numbers of the dataset anew: after a restart in "
                        "mid-epoch, the rest of that epoch has another order or other augmentations, so some samples "
                        "may be trained twice and others never; train all epochs in one call"
                    )
            return True
        if start.fresh:
            if (first := int(asked["initial_epoch"])) > 0:
                self._complaints.warn(
                    f"the run starts at step 0, and initial_epoch={first} leaves out "
                    f"{count(first, 'epoch', 'epochs')}: pass initial_epoch=start.initial_epoch"
                )
            return True
        if stopper := self._stopped_by(asked):
            self._say_nothing_left(f"training was stopped by {stopper} after epoch {start.epoch}")
            return False
        if not is_finished(start, asked):
            return True
        if self._was_finished:
            raise UsageError(
                f"all epochs of this call were trained before (the run is at step {start.global_step}), and so were "
                "those of the previous call",
                LOOP,
            )
        self._was_finished = True
        self._say_nothing_left(f"all {asked['epoch']} epochs were trained before")
        return False

    def _stopped_by(self, asked: Mapping[str, Any]) -> str:
        """The callback that stopped the resumed training, and would stop it again; empty if there is none."""
        callbacks = _listed(asked["callbacks"])
        registrar = next((each for each in callbacks if isinstance(each, Registrar)), None)
        if registrar is None or self._remembered is None:
            return ""
        stopper = self._remembered.stopper(registrar.kept_of(callbacks))
        self._remembered = None if stopper else self._remembered  # a later call is another training
        return stopper

    def _say_nothing_left(self, why: str) -> None:
        self._record_end(None)
        self._say(f"run {self.name}: {why}: nothing left to train")

    def _record_refusal(self, error: str) -> None:
        if not self.progress.has_trained:  # after `begin_fresh` it may have trained
            self._record_end(error)

    def _record_end(self, error: str | None) -> None:
        """Record that this launch ended without training, and the error's name if one ended it."""
        step, now = self.progress.global_step, utc_now()
        with suppress(CatalogUnavailableError):  # it ended, even without a record
            self.recorder.record([TrainingEnded(self.run, self.id, self.rank, step, None, error, "", now)])

    def _say_again(self) -> None:
        """At exit, warn of files that were saved without a registrar."""
        log.warning(
            "%s was saved while no registrar was among the callbacks: it is not registered, and %s; to take in what "
            "can be proven: %s",
            self._not_registered,
            _NOT_FOUND,
            Command("scan", root_of(str(Path(self._not_registered).parent)), "--run", self.name),
        )

    def _say_fresh(self, *, has_initial: bool = False) -> None:
        if self.saved_before:
            what = f"starting over at step 0: its saves up to step {self.saved_before} are abandoned"
        else:
            what = f"no complete checkpoint {'of its own ' if has_initial else ''}yet: starting at step 0"
        self._say(f"run {self.name}: {what}")

    def _agree(self, steps: Steps | None, query: Query) -> Start:
        """Rank 0 decides, and sends its decision or its error to the others: they need no catalog for it."""
        own: list[Start] = []

        def decided(ask: Callable[[Any], int]) -> Line:
            if steps is not None:
                self.note_steps_per_epoch(steps.an_epoch, batch_size=steps.batch_size, shards=steps.shards)
            asks = [ask_ranks(self, query, ask)] if communication.rank_and_world_size()[1] > 1 else []
            with named_if_slow(self.database, self.run):
                own.append(decide(self, self.directories, query, *asks))
            return own[0].to_json()

        sent = communication.decided_together(decided, lambda question: answer(self, question))
        if own:
            return own[0]
        start = start_from_json(sent)
        self.facts = start.launch
        self.note_start(Decided(start.launch, start.plan, start.at, initial=start.initial))
        return start

    def _say(self, message: str) -> None:
        if self.rank == 0:
            log.info(message)


def join(
    run: str,
    *,
    catalog: Catalog | None = None,
    launch_id: str | None = None,
    directories: Sequence[str | Path] = (),
    take_over: bool = False,
) -> TrainingLaunch:
    """Make this process part of a launch of `run`: rank, world size and layout come from MindSpore.

    `catalog` is an open one (None: `ckptstore.connect()`). Rank 0 makes the launch's id, or takes `launch_id` or
    CKPTSTORE_LAUNCH_ID, and tells the others. Call it after `mindspore.communication.init()`, on every rank.
    `directories` are those that the checkpoints are in or below; CKPTSTORE_DIRECTORIES may name them too. A start finds
    the checkpoints there while the catalog cannot be used. Directories are known anyway if this user started the run on
    this machine before.

    If another launch of the run gives signs of life, this waits for a minute at most, and raises `RefusedError` if the
    other launch is still alive. With `take_over`, or CKPTSTORE_TAKE_OVER=1, it goes on at once.
    """
    _let_people_see()
    _check_arguments(run, catalog, launch_id, directories)
    validate.switch("take_over", take_over)
    rank, world_size = communication.rank_and_world_size()

    url = catalog.database.url if catalog else open_database(None).url
    database = Database(url, answer_within=_ANSWER_SECONDS)
    layout = communication.layout()
    first: list[RankLaunch] = []
    silence = None if take_over or os.environ.get("CKPTSTORE_TAKE_OVER") == "1" else Silence(database, run)

    def begun() -> Line:
        named = launch_id or os.environ.get("CKPTSTORE_LAUNCH_ID") or new_launch_id()
        with named_if_slow(database, run):
            launch = begin(
                database,
                run,
                rank=rank,
                world_size=world_size,
                launch_id=named,
                layout=layout,
                directories=directories,
                claim=silence.claim if silence else None,
            )
        first.append(launch)
        facts, known = launch_to_json(launch.facts), dict(launch.known)
        noted = {"name": launch.name, "known": known, "saved_before": launch.saved_before}
        return {"launch": facts, "away": launch.recorder.behind, **noted}

    # Each rank asks, whatever its own take_over is: rank 0 decides, perhaps as the only one that takes over.
    while not communication.decided_by_rank_0(lambda: silence is None or silence.is_there()):
        log.debug("waiting for a sign of life of another launch")
    sent = communication.decided_by_rank_0(begun)
    joined = first[0] if first else follow(database, launch_from_json(sent["launch"]), rank, layout, away=sent["away"])
    launch = TrainingLaunch(database, joined.facts, rank)
    launch.recorder.inherit(joined.recorder)
    launch.name, launch.known, launch.saved_before = sent["name"], sent["known"], sent["saved_before"]
    launch.unread = joined.unread
    _give_signs(launch)
    launch.exit_request.announce()
    launch.directories = tuple(map(str, directories))
    return launch


_signs: dict[tuple[str, str], LifeSigns] = {}


def _give_signs(launch: TrainingLaunch) -> None:
    """Give signs of a launch, and no more of one of its run that this process joined before, as for a refused start."""
    run = launch.database.name, launch.run
    if run in _signs:
        _signs[run].end()
    _signs[run] = launch.signs
    launch.signs.begin()


def _check_arguments(run: object, catalog: object, launch_id: object, directories: object) -> None:
    check_name("run", run)
    if launch_id:
        check_name("launch", launch_id)
    if isinstance(directories, (str, os.PathLike)):
        one = os.fspath(directories)
        raise UsageError(f"directories is {one!r}, not a list", f"write directories=[{one!r}]")
    if not isinstance(directories, (list, tuple)):
        raise UsageError(f"directories is {directories!r}, not a list", 'give paths, as directories=["/data/digits"]')
    for each in directories:
        validate.path("one of directories", each)
    if catalog is not None and not hasattr(catalog, "database"):
        raise UsageError(f"catalog is {catalog!r}", f"write catalog={Call('ckptstore.connect', repr(catalog))}")


def _listed(callbacks: Any) -> list[Any]:
    """The callbacks of a call: MindSpore takes one, or several."""
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def _query(**asked: Any) -> Query:
    return Query(loads=Loads.MINDSPORE, fetches=True, **asked)


def _flag_path(given: str | os.PathLike[str] | None) -> str | None:
    return None if given is None else absolute(validate.path("exit_flag", given))


def _check_format(form: object) -> None:
    if form not in ONE_FILE:
        raise UsageError(f"format is {form!r}", f"use one of {', '.join(ONE_FILE)}")


def _let_people_see() -> None:
    """Set up logging if the script did not, so that its user sees where training starts.

    Any library that calls `logging.info`, as MindSpore's AdaFactor does, sets up the root logger for warnings only.
    """
    root = logging.getLogger()
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("ckptstore: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    elif (log.handlers, log.level, root.level) == ([], logging.NOTSET, logging.WARNING) and all(
        map(_is_basic, root.handlers)
    ):
        log.setLevel(logging.INFO)


def _is_basic(handler: logging.Handler) -> bool:
    """Whether a handler is as `logging.info` makes it if there is none."""
    record = logging.makeLogRecord({"msg": "a message"})
    basic = logging.Formatter(logging.BASIC_FORMAT).format(record)
    try:
        return type(handler) is logging.StreamHandler and handler.format(record) == basic
    except Exception:  # noqa: BLE001 — the script's format may name a field that only its filter adds, as the rank
        return False
