"""What one rank records of a launch, and where the launch starts."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING

from ckptstore.catalog import live, reads
from ckptstore.catalog.backoff import Backoff
from ckptstore.core import validate
from ckptstore.core.events import LaunchStarted, LoadOutcome, SourceAdded, later
from ckptstore.core.limits import HIGHEST_INTEGER, is_text
from ckptstore.core.model import FileState, Kind, LoadResult, Rule, Source, Timing
from ckptstore.core.naming import SEVERAL, checkpoints_of, companion_of, format_of
from ckptstore.disk import name_claims, presence
from ckptstore.disk.aside import Aside
from ckptstore.disk.files import absolute, facts, is_in, listed, real_directory, remove_own
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.run_directories import remember
from ckptstore.disk.several import is_worked_in, lacking
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, RefusedError, UsageError, reason_of
from ckptstore.formats.inspect import is_cut
from ckptstore.journal import jsonl, summaries
from ckptstore.journal.recorder import Recorder, for_rank
from ckptstore.journal.sync import take_up_found
from ckptstore.outside import Path, atexit, time, utc_now
from ckptstore.resume import register as registering
from ckptstore.resume.measure import measure
from ckptstore.resume.reconcile import Reconciled, left_at, reconcile
from ckptstore.resume.resolver import Query
from ckptstore.resume.start import Decided, decide_start, earlier_start, keep_holding, start_event
from ckptstore.tiers.fetch import Fetched
from ckptstore.training import layout_files
from ckptstore.training.exit_request import ExitRequest
from ckptstore.training.life_signs import LifeSigns
from ckptstore.training.links import Links
from ckptstore.training.overlooked import Begun, View, newer_state, of_renamed, overlooked, take_up_for_next

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.events import TrainingEnded
    from ckptstore.core.model import Checkpoint, Content, Launch, LaunchKey, RestorePlan, Skipped
    from ckptstore.outside import os
    from ckptstore.resume.start import AskRanks

log = logging.getLogger("ckptstore")

LONGEST_PAUSE_SECONDS = 20.0
"""The time between two tries of an unusable catalog: 30 seconds after it is back it has everything."""


class RankLaunch:
    """One rank of a launch. Made by `Catalog.join`.

    `facts` are the catalog's facts about the launch: its id, order, world size and layout. All records go through
    `recorder`: into a journal first, then into the catalog. `name` is the run's present name, as far as this start
    knew; `known` the launches that the run had then, with the highest step that each had saved; `saved_before` the
    highest step that earlier launches saved (0: none); `unread` are journals that could not be read when it began.
    """

    def __init__(self, database: Database, facts: Launch, rank: int) -> None:
        self.database = database
        self.facts = facts
        self.rank = index(rank)
        self._start_event = LaunchStarted(facts)
        self.recorder = for_rank(database, rank, facts, lambda: self._start_event)
        self.live_files = LiveFiles(self.recorder)
        self._corrected: set[str] = set()  # ids of records whose file was registered for another step since
        self._has_saved = False
        self._newest = facts.created_at  # the moment of its last record of a file, or its beginning
        self._sources: list[Source] = []
        self._unsummarised: set[str] = set()
        self._asides: dict[str, Aside] = {}
        self._joined_late = facts.decided  # another rank has asked where the launch starts
        self._begun: Begun | None = None  # None: the script did not ask `resolve` where to start
        self._looked_in: set[str] = set()
        self._fetched = Fetched()
        self.name = facts.run
        self.saved_before = 0
        self.known: Mapping[str, int] = {}
        self.unread: tuple[Skipped, ...] = ()
        self.signs = LifeSigns(self.recorder, database, facts, self.rank)
        self.exit_request = ExitRequest(database, facts, self.rank)
        self._backoff = Backoff(LONGEST_PAUSE_SECONDS)
        self._next_look = 0.0

    @property
    def id(self) -> str:
        """The launch's id, the same on all ranks."""
        return self.facts.id

    @property
    def key(self) -> LaunchKey:
        """The key of the launch, unique among all runs."""
        return self.facts.key

    @property
    def run(self) -> str:
        """The run's first name: its records have it even after a rename."""
        return self.facts.run

    @property
    def names(self) -> tuple[str, str]:
        """The run's first name, and its present one."""
        return self.run, self.name

    @property
    def world_size(self) -> int:
        """How many ranks the launch has."""
        return self.facts.world_size

    def register(
        self,
        path: str | os.PathLike[str],
        *,
        kind: Kind | str = Kind.PERIODIC,
        global_step: int,
        optimizer_step: int | None = None,
        epoch: int | None = None,
        step_in_epoch: int | None = None,
        strategy_file: str | os.PathLike[str] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Checkpoint:
        """Record a checkpoint that this rank has written, and return the record.

        `path` is a file, the prefix of a checkpoint of TensorFlow, or a directory all of which is one checkpoint.
        `global_step` counts the batches consumed since the run began. The checkpoint must be complete; its size and
        digest are taken now. Registering the same again changes nothing; with another step, that step replaces the one
        before, once. Raises `UsageError` for a missing, empty or truncated checkpoint and for invalid values,
        `CatalogUnavailableError` if the record could not be stored, and at the launch's first save `RefusedError` if
        `resolve` did not know of a newer state that is in that directory.
        """
        described = registering.describe(
            self.facts,
            rank=self.rank,
            path=absolute(validate.path("path", path)),
            kind=kind,
            global_step=global_step,
            optimizer_step=optimizer_step,
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            strategy_file=strategy_file,
            metrics=metrics,
        )
        return self._register(described)

    def _register(self, described: Checkpoint) -> Checkpoint:
        try:
            if is_worked_in(described.path):
                raise UsageError(f"{described.path} is a directory that this process works in, and no checkpoint")
            file = registering.measured(described)
            if file is not None and file.format not in SEVERAL and is_cut(Path(file.path)):
                raise UsageError(f"{file.path} is empty or cut", "register a file once it is whole")
            if file is not None and (part := lacking(file.path)):
                raise UsageError(f"{file.path} lacks {part}", "register a checkpoint once all its files are there")
        except OSError as error:
            raise UsageError(f"cannot read {described.path}: {reason_of(error)}") from None
        if file is None:
            raise UsageError(f"{described.path} is not there, or is being written", "register a file once it is whole")
        directory = str(Path(file.path).parent)
        self._look_in(directory)
        self.exit_request.look_in(directory)
        before = self.live_files.at(file.path)
        if before is not None and file.id in self._corrected:
            raise UsageError(
                f"{file.path} was registered for step {file.global_step}, and for step {before.global_step} since",
                "a step is corrected once: to go back to it, register a copy of the file with another name",
            )
        (recorded,) = self.record_files([file])
        if before is not None and before.save_id != recorded.save_id and _is_same_file(before, recorded):
            self.recorder.mark([before], FileState.MOVED)  # the caller has corrected its step or kind
            self._corrected.add(before.id)
        self._try_the_catalog()
        return recorded

    def save(
        self,
        write: Callable[[str], object],
        *,
        global_step: int,
        directory: str | os.PathLike[str],
        name: str | None = None,
        kind: Kind | str = Kind.PERIODIC,
        optimizer_step: int | None = None,
        epoch: int | None = None,
        step_in_epoch: int | None = None,
        strategy_file: str | os.PathLike[str] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Checkpoint:
        """Let `write(path)` write a checkpoint of any framework, and register it; return the record.

        `write` gets a temporary path, and leaves a file there, a directory, or the files of a prefix of TensorFlow.
        Once they are complete and flushed to the disk they are renamed to `name` in `directory` (default: `step-N`); if
        that is taken, with `_1`, `_2` … before its suffixes. Nothing is overwritten. Each rank needs a directory or
        names of its own. The other arguments are those of `register`. Raises as that does, and what `write` raises.
        """
        described = registering.describe(
            self.facts,
            rank=self.rank,
            path=real_directory(validate.path("directory", directory)),
            kind=kind,
            global_step=global_step,
            optimizer_step=optimizer_step,
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            strategy_file=strategy_file,
            metrics=metrics,
        )
        where = described.path
        chosen = validate.path("name", f"step-{global_step}" if name is None else name)
        if chosen in ("", ".", "..") or "/" in chosen:
            raise UsageError(f"name is {chosen!r}, which names no file in {where}", "give the name of a file")
        self._look_in(where)
        began = time.monotonic()

        def written(path: str) -> None:
            write(path)
            if Path(path).is_file() and is_cut(Path(path)):
                what = f"the function given to save wrote {chosen}, which is empty or cut: nothing was saved to {where}"
                raise UsageError(what, "write all of it before the function returns")

        try:
            path = self.aside(where).save(chosen, written)
        except OSError as error:
            raise CkptstoreError(f"nothing was saved to {where}: {reason_of(error)}", "look at that disk") from error
        took = time.monotonic() - began
        return self._register(replace(described, path=path, format=format_of(path), timing=Timing(took, took)))

    def _look_in(self, directory: str) -> None:
        """Raise `RefusedError` if `resolve` overlooked a newer state of the run that is in this directory.

        The catalog was lost, or is older than that state. If this launch has saved, that is only logged.
        """
        begun = self._begun
        if begun is None or begun.launch.branched or directory in self._looked_in or self.recorder.behind:
            return
        self._looked_in.add(directory)
        remember(self.database.name, self.names, directory)
        view = View(directory, self.database, ())
        try:
            sizes = jsonl.sizes_in(f"{directory}/{FOLDER}")
            if not sizes:
                return
            with self.database.connected():
                take_up_found(self.database, sizes, copies=True)
                file = newer_state(view, begun) or of_renamed(view, begun)
        except OSError:
            return  # the save there reports it
        except CatalogUnavailableError as error:
            self.recorder.fall_behind(error)
            return
        moment = begun.launch.created_at
        if file is None or (moment and file.created_at and file.created_at > moment):
            return  # what another launch has saved since then was not overlooked
        found = overlooked(view, begun, file, name=self.name, catalog=self.database)
        if self._has_saved:
            found.log_error()
            return
        take_up_for_next(self.database, self.names, self.rank, directory)
        raise RefusedError(found.what, found.hint)

    @property
    def exit_requested(self) -> bool:
        """Whether `ckptstore exit` asked this launch to save and end: for a training loop of your own.

        Read it after each step: it looks at the file system once a second at most. Ranks see the request at different
        moments; if they must end at the same step, let them agree on one. Then save with kind="graceful_exit", and end.
        """
        self.exit_request.is_heeded()
        return bool(self.exit_request.path())

    def aside(self, directory: str) -> Aside:
        """The folder for this rank's unfinished saves to a directory; leftovers of its earlier launches are deleted."""
        if directory not in self._asides:
            self.exit_request.look_in(directory)
            made = Aside(directory, self.run, self.id, self.rank)
            made.clear_others()
            self._asides.setdefault(directory, made)  # another thread may have been first
        return self._asides[directory]

    def _try_the_catalog(self) -> None:
        """Project the journals into a catalog that was unusable, if it is time to try again."""
        if not self.recorder.behind:
            self._backoff.reset()
        elif time.monotonic() >= self._next_look:
            with suppress(CatalogUnavailableError):
                self.recorder.catch_up()
            self._next_look = time.monotonic() + self._backoff.pause()

    def link(self, *trackers: str) -> None:
        """Report each state that this launch saves to the active run of "mlflow" or "wandb".

        Rank 0 sends the reference and the metrics of each, but no bytes, on a thread of its own. Raises `UsageError`
        for a tracker that is not installed, or has no active run.
        """
        if self.rank == 0:
            self.live_files.on_added = Links(f"{self.name}/{self.id}", *trackers).add

    def record(self, *, step: int, **metrics: float) -> None:
        """Add metrics to the saves of a step, such as those of a later evaluation.

        They are recorded with the file of this rank, or with the state of that step from before this launch. The last
        recorded value counts. Raises `UsageError` for an invalid metric, `NothingRestorableError` for a step without a
        state, and `CatalogUnavailableError` if neither journal nor catalog accepted them.
        """
        self.measure(validate.step_of(step), registering.checked(metrics))

    def measure(self, step: int, metrics: Mapping[str, float]) -> None:
        """As `record`, with checked arguments."""
        if not self.live_files.measure(step, metrics):
            measure(self.database, f"{self.name}@{step}", metrics)

    def record_files(self, files: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Record files: in the journals beside them, then in the catalog. Returns the records.

        The first of them proves that the launch's restore plan worked, and that is recorded too. Raises
        `CatalogUnavailableError` if neither accepted them.
        """
        proves = self.facts.parent is not None and not self._has_saved
        saved = self._outcome(LoadResult.SAVED) if proves else None
        recorded = self.recorder.record_files([self._dated(file) for file in files], saved)
        if not self._has_saved:
            self._fetched.remove(recorded)
        self._has_saved = True
        self.live_files.add(recorded)
        self._summarise()
        return recorded

    def _dated(self, file: Checkpoint) -> Checkpoint:
        """The record with its moment. A clock that was set back does not date it before earlier records."""
        self._newest = later(file.created_at or utc_now(), self._newest)
        return replace(file, created_at=self._newest)

    def _summarise(self) -> None:
        """Summarize finished journals in this rank's directories, once, at a save and not at the start: it takes long.

        The first of the ranks that share a directory does it.
        """
        while self._unsummarised:
            directory = self._unsummarised.pop()
            with suppress(OSError):  # without it the next start reads more
                if name_claims.claim(directory, "summary", launch=self.key, rank=self.rank) is None:
                    summaries.make(directory, self.key)
                    name_claims.release(directory, "summary", launch=self.key, rank=self.rank)

    def resolve(
        self, *, step: int | None = None, lineage: str | None = None, take_quarantined: bool = False
    ) -> RestorePlan | None:
        """Decide where this launch starts, the same for all its ranks; None for a fresh start.

        `step` and `lineage` ask for an older state, of the history that leads to a launch (None: to the newest). Later
        states are abandoned, and `NothingRestorableError` is raised if the state cannot be restored. `take_quarantined`
        allows quarantined states too. The first rank decides for the launch. A file of this rank that only a tier has
        is fetched; until the launch has saved, the plan names the fetched file.
        """
        query = Query(step=step, lineage=lineage, take_quarantined=take_quarantined, fetches=True)
        decided = self.decide_start(self.database, query)
        plan, known, passed = decided.plan, dict(self.known), list(decided.passed)
        if plan is None and self._joined_late:
            with self.database.read() as connection:
                every = reads.launches_of(connection, reads.run_id(connection, self.run) or 0)
                answers = [reads.resolution(connection, each.key) for each in every]
            if not any(each.branched for each in every):
                # Another rank may have found states since the answer was stored: only what an answer names was known.
                known = {}
                passed += [each for answer in answers if answer is not None for each in answer.passed]
        for each in passed:
            known[each.launch] = max(known.get(each.launch, 0), each.global_step)
        self._begun = Begun(self.facts, self.facts.start_step or 0, known)
        return None if plan is None else self.fetched(plan)

    def fetched(self, plan: RestorePlan) -> RestorePlan:
        """The plan with local paths for this rank: files that are not here are fetched from the nearest tier.

        Raises `NothingRestorableError` if no tier gives a file.
        """
        return self._fetched.local(self.database, plan, plan.files_for(self.rank, self.facts.layout))

    def decide_start(self, database: Database, query: Query, ask_ranks: AskRanks = lambda _: None) -> Decided:
        """As `resolve`, with the catalog or with a database made of journals."""
        decided = decide_start(database, self.facts, query, ask_ranks, unread=self.unread)
        if database is self.database:
            self.facts = decided.launch
        self.note_start(decided)
        return decided

    def earlier_start(self, fits: Callable[[int], bool]) -> int | None:
        """The newest earlier saved step from which this launch would start at a step that `fits`."""
        try:
            return earlier_start(self.database, self.facts, self.facts.parent_step or 0, fits=fits)
        except CkptstoreError:  # the catalog cannot be used
            return None

    def note_start(self, decided: Decided) -> None:
        """Note where this launch starts, as it was decided; rank 0 journals it for all ranks."""
        now = decided.launch
        event = start_event(
            self.facts,
            decided.plan,
            decided.at,
            start_step=now.start_step,
            branched=now.branched,
            passed=decided.passed if self.rank == 0 else (),
            initial=decided.initial,
            reference=now.initial.reference if now.initial else "",
        )
        self.facts = event.launch
        # The files that it begins from are in directories of another run: their journals record nothing of this one.
        own = [source for rank, source in event.plan if rank == self.rank and decided.initial is None]
        plan_files = event.plan if self.rank == 0 else ()
        self._start_event = replace(event, plan=plan_files, data_at=self._start_event.data_at)
        self.recorder.tell(self.key, own)

    def set_steps_per_epoch(self, steps: int, *, batch_size: int | None = None, shards: int | None = None) -> None:
        """Record how many batches an epoch of one rank has, and, if known, the samples of a step.

        `batch_size` is the number of samples of one rank in a step, `shards` the number of parts that the samples are
        dealt into, in turn. Raises `UsageError` for an invalid number.
        """
        self.note_steps_per_epoch(steps, batch_size=batch_size, shards=shards)
        self.recorder.tell(self.key)

    def note_steps_per_epoch(self, steps: int, *, batch_size: int | None, shards: int | None) -> None:
        """As `set_steps_per_epoch`, before `decide_start`, which records it with where the launch starts."""
        steps = _counted("steps_per_epoch", steps)
        batch_size = None if batch_size is None else _counted("batch_size", batch_size)
        shards = None if shards is None else _counted("shards", shards)
        self.facts = replace(self.facts, steps_per_epoch=steps, batch_size=batch_size, shards=shards)
        self._start_event = replace(self._start_event, launch=self.facts, data_at=utc_now())

    def add_source(
        self,
        directory: str,
        *,
        kind: Kind,
        prefix: str,
        breakpoint_prefix: str,
        names_before: Sequence[str],
        content: Content | None = None,
    ) -> None:
        """Record where this rank saves files of a kind, and the names there that belong to earlier launches.

        `content` is the content of its periodic files (None: the whole state). Raises `UsageError` for a directory or
        prefix that is not UTF-8.
        """
        source = Source(
            run=self.run,
            launch=self.id,
            rank=self.rank,
            directory=real_directory(validate.path("directory", directory)),
            kind=kind,
            prefix=validate.path("prefix", prefix),
            breakpoint_prefix=breakpoint_prefix,
            names_before=frozenset(filter(is_text, names_before)),  # a file of another name gets no record
            host=name_claims.host_name(),
            content=content,
        )
        self._sources.append(source)
        self.exit_request.look_in(source.directory)
        self.recorder.announce(SourceAdded(source, utc_now()))
        self.signs.pass_on(source.directory)
        self._unsummarised.add(source.directory)

    def keep_layout_file(self, path: str) -> bool:
        """Store a strategy or group info file of this launch: it shows which ranks are replicas.

        Returns whether it was stored: a data-parallel launch, or one of a single rank, needs none. Raises `UsageError`
        for a path that is not UTF-8.
        """
        if self.facts.any_file_serves:
            return False
        return layout_files.keep(self.recorder, self.facts, self.rank, validate.path("the layout file", path))

    def moved(self, before: str, after: str) -> None:
        """Record that a directory with files of any ranks of this launch was renamed. Can be repeated.

        Only the catalog knows the files of all ranks. If it cannot be used, the next start finds the moved files.
        """
        if self.recorder.behind:
            return
        try:
            with self.database.read() as connection:
                known = [file for file in live.files(connection, self.key) if Path(before) in Path(file.path).parents]
            renamed = [(file, str(after / Path(file.path).relative_to(before))) for file in known]
            there = [(file, path) for file, path in renamed if (found := facts(path)) and found.size == file.size]
            if there:
                self.recorder.record_files([replace(file, path=path) for file, path in there])
                self.recorder.mark([file for file, _ in there], FileState.MOVED)
        except CatalogUnavailableError as error:
            self.recorder.fall_behind(error)

    def mark_damaged(self, file: Checkpoint, rule: Rule) -> None:
        """Record that a file is damaged: no later plan takes it."""
        self.recorder.mark([file], FileState.DAMAGED, rule)

    def record_load_failure(self, file: Checkpoint | None, damage: Rule | None, detail: str) -> None:
        """As `load_failed`, and record the rule that the file broke, if any. Log a failure that cannot be recorded.

        A damaged file is marked as damaged, and the failure does not name it: once the original is back, `verify` takes
        the mark away, and copies of the file at other paths are not damaged.
        """
        cause = file if damage is None else None
        if file is not None and (origin := self._fetched.origin(file)) is not None:
            # The damage is in the fetched file, not in the recorded one. But if that is damaged too, mark it as
            # unreadable: then its copies are not tried again.
            cause = file = origin
            damage = damage and (Rule.UNREADABLE if origin.problem else None)
        try:
            if file is not None and damage is not None:
                self.mark_damaged(file, damage)
            self.load_failed(cause, detail)
        except CatalogUnavailableError as error:
            log.error("%s. It is not recorded that this launch could not load its file.", error)  # noqa: TRY400

    def load_failed(self, file: Checkpoint | None, detail: str) -> None:
        """Record that this rank could not load its file of the plan: the next launch skips that file.

        `file` is None if the file is not the cause: the next launch may take it.
        """
        reason = detail.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")  # it may quote any bytes
        self.recorder.record([self._outcome(LoadResult.FAILED, file, reason)])

    def _outcome(self, outcome: LoadResult, file: Checkpoint | None = None, why: str | None = None) -> LoadOutcome:
        return LoadOutcome(self.run, self.id, self.rank, outcome, utc_now(), file, why)

    def adopt(self) -> Reconciled:
        """Register files that this rank wrote and did not register, such as the breakpoint after an exception.

        Records that only the catalog has go into journals first: else, if the catalog is lost, a file may count as
        another launch's.
        """
        self.recorder.write_missed()
        with self.database.read() as connection:
            run_id = reads.run_id(connection, self.run)
        if run_id is None:
            return Reconciled()
        return reconcile(self.database, run_id, only=(self.key, self.rank), recorder=self.recorder)

    def adopt_at_exit(self) -> None:
        """Adopt, when the interpreter ends, the breakpoint that MindSpore writes after all callbacks have ended."""
        atexit.unregister(self._adopt_now)
        atexit.register(self._adopt_now)

    def _adopt_now(self) -> None:
        if self.recorder.behind:  # the next start adopts it
            return
        try:
            self.adopt()
        except CkptstoreError as error:
            log.warning("%s. The next start adopts the last saves.", error)
        self.let_go()  # many launches may end here

    def record_left(self, ending: TrainingEnded, expected: frozenset[str]) -> None:
        """Register the breakpoints that this rank wrote when an exception ended training, and that have no record.

        This does not use the catalog: the next training in this process must not wait for it. `expected` are the
        parameters of a complete file. Raises as `record` does, and `OSError`.
        """
        left = left_at(ending, self.facts, self._sources, self.live_files.paths(), expected)
        if left:
            self.record_files(left)

    def renew_lease(self) -> None:
        """Renew the lease on the state that this launch started from: the launch is alive.

        If the catalog cannot be used, the next call renews it: until then no gc can remove the state either.
        """
        if self.recorder.behind:
            return
        try:
            keep_holding(self.database, self.key)
        except CatalogUnavailableError as error:
            self.recorder.complain(f"{error}. Training goes on.")

    def let_go(self) -> None:
        """Close connections to the catalog. Later records open them again."""
        self.database.disconnect()


class LiveFiles:
    """The files that this rank registered in this launch and that still exist, without asking the catalog."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._files: dict[str, Checkpoint] = {}
        self.on_added: Callable[[Checkpoint], None] = lambda _: None

    def add(self, files: Iterable[Checkpoint]) -> None:
        """Add files that were recorded."""
        for file in files:
            self._files[file.path] = file
            self.on_added(file)

    def forget(self, path: str) -> None:
        """The file has another name now, or is gone."""
        self._files.pop(path, None)  # another registrar's thread may have noticed it too

    def at(self, path: str) -> Checkpoint | None:
        """The file at a path; None if none was registered."""
        return self._files.get(path)

    def paths(self) -> list[str]:
        """The paths of the files."""
        return [file.path for file in self._all()]

    def notice_vanished(self, directory: Path) -> None:
        """Record the files that are gone: MindSpore's keep_checkpoint_max deletes them by itself."""
        names = listed(str(directory))
        if isinstance(names, OSError):
            return  # it is not known which are gone
        whole = [file for file in self._all() if file.state is not FileState.IN_PROGRESS]
        begin = f"{directory}/"  # not by `Path`, which takes long for many files, at each save
        here = [file for file in whole if file.path.startswith(begin) and "/" not in file.path[len(begin) :]]
        unseen = [file for file in here if not is_in(names, file.path[len(begin) :])]
        gone = presence.gone(unseen, presence.unidentified((file.path, file.directory_id) for file in here))
        if gone:
            self._recorder.mark(gone, FileState.MISSING)
            for file in gone:
                self.forget(file.path)
                companion = Path(companion_of(file.path)).name
                if companion in names and names.isdisjoint(checkpoints_of(companion)):
                    with suppress(OSError):  # gc removes it later
                        remove_own(str(directory), companion)

    def measure(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Add metrics to the files of a step; return whether there are any."""
        files = self._known([file for file in self._all() if file.global_step == step])
        return self._put([file.amended(metrics={**file.metrics, **metrics}) for file in files])

    def quarantine_after(self, step: int, reason: str) -> None:
        """Record a fault of all files after a step. A file that is saved again later gets a new record."""
        files = self._known([file for file in self._all() if file.global_step > step])
        self._put([file.amended(quarantine=file.quarantine or reason) for file in files])

    def _put(self, amended: Sequence[Checkpoint]) -> bool:
        """Record amended files, if any: as missing those that gc has moved, or moves now: its removal says the rest."""
        whole = [file for file in amended if file.state is not FileState.IN_PROGRESS]
        gone = presence.gone(whole, presence.unidentified((file.path, file.directory_id) for file in self._all()))
        going = (*gone, *(file for file in whole if file.state is FileState.TRASHED))
        missing = {file.id: replace(file, state=FileState.MISSING, problem=None) for file in going}
        if amended:
            self._recorder.record_files([missing.get(file.id, file) for file in amended])
            self.add(amended)
        return bool(amended)

    def _known(self, files: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
        """The newest records of these files: if the catalog can be used, with what other processes changed since."""
        if not files or self._recorder.behind:
            return files
        known: dict[str, Checkpoint] = {}
        try:
            with self._recorder.database.read() as connection:
                known = reads.files_by_id(connection, [file.id for file in files])
        except CatalogUnavailableError as error:
            self._recorder.fall_behind(error)  # else the record would wait for it once more
        pairs = [sorted((file, known.get(file.id, file)), key=lambda each: each.newness) for file in files]
        joined = {newest.id: older.metrics for older, newest in pairs if _is_same_file(older, newest)}
        return [replace(newest, metrics={**joined.get(newest.id, {}), **newest.metrics}) for _, newest in pairs]

    def _all(self) -> list[Checkpoint]:
        return list(self._files.values())  # a copy: a script may register files in another thread


def _is_same_file(before: Checkpoint, file: Checkpoint) -> bool:
    return (before.size, before.mtime_ns, before.digest) == (file.size, file.mtime_ns, file.digest)


def _counted(what: str, value: int) -> int:
    return validate.number(what, value, "it is counted from 1", HIGHEST_INTEGER, lowest=1)
