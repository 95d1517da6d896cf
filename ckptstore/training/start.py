"""Where a launch begins, decided by the catalog, or without it by the journals and directories of its run.

Rank 0 decides, and sends its decision to all ranks as one value (`Start`). `Progress` is how far the launch has come.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping  # noqa: TC003 — msgspec evaluates the types of fields
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime  # noqa: TC003
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import convert, to_builtins

from ckptstore.catalog import reads, schema, tallies
from ckptstore.catalog.engine import in_memory
from ckptstore.catalog.project import project
from ckptstore.core.events import LaunchStarted
from ckptstore.core.hints import Call, Command
from ckptstore.core.model import Checkpoint, Kind, Launch, RestorePlan, epoch_and_step
from ckptstore.core.naming import parse_exit_name, parse_name
from ckptstore.core.reference import readings
from ckptstore.disk.files import listed
from ckptstore.disk.run_directories import DIRECTORIES, known_directories, remembered, root_of
from ckptstore.errors import (
    CatalogForbidsError,
    CatalogUnavailableError,
    CkptstoreError,
    RefusedError,
    UsageError,
    reason_of,
)
from ckptstore.evidence.writers import Writers, wrote
from ckptstore.journal.sync import found_below, take_up_found
from ckptstore.resume import position
from ckptstore.resume.join import check_name, join
from ckptstore.resume.resolver import NEWEST
from ckptstore.training.rank_launch import RankLaunch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Line, TrainingEnded
    from ckptstore.outside import Path
    from ckptstore.resume.resolver import Query
    from ckptstore.resume.start import AskRanks
    from ckptstore.training.recorder_thread import RecorderThread

log = logging.getLogger("ckptstore")


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where training goes on.

    `plan` names the file of each rank; it is None if the launch is `fresh`. `initial` is the plan for the state of
    another run that a fresh launch begins from (None: it begins from none). `append_info` holds the values that this
    rank's file had beside parameters, by `CheckpointConfig(append_info=…)`.

    `launch` is the launch that starts, decided `at` that moment, `by_journals` if the catalog could not be used.
    `known` are the launches that the run had then, with the highest step that each had saved (0: none). `offset` is how
    far the launch's steps are ahead of the counter of an optimizer that never left out an update. `lost` are the
    records of ranks' own files of that state for which others' files stand in. `parts` are the records of all files of
    a state that is the directory of an iteration of MindFormers.
    """

    launch: Launch
    plan: RestorePlan | None
    at: datetime
    by_journals: bool = False
    known: Mapping[str, int] = field(default_factory=dict)
    offset: int = 0
    append_info: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[Checkpoint, ...] = ()
    parts: tuple[Checkpoint, ...] = ()
    initial: RestorePlan | None = None

    def __str__(self) -> str:
        """The decision in one line, as the training prints it."""
        if self.plan is None:
            of = self.initial
            return "starting at step 0" + (f", from step {of.global_step} of run {of.launch.run}" if of else "")
        saved, length = self.plan.launch, self.plan.launch.steps_per_epoch
        saved_as = "" if self.global_step == self.plan.global_step else f" as step {self.plan.global_step}"
        epochs = f", whose epochs had {length} steps" if length not in (None, self.launch.steps_per_epoch) else ""
        return (
            f"going on after step {self.global_step} (epoch {self.epoch}, step {self.step_in_epoch} of "
            f"{self.launch.steps_per_epoch}), saved{saved_as} by launch {saved.id}{epochs}"
        )

    @property
    def fresh(self) -> bool:
        """Whether the run had no complete checkpoint to start from; it may begin from another run's (`initial`)."""
        return self.plan is None

    @property
    def global_step(self) -> int:
        """Batches consumed since the run began, in steps of this launch."""
        return self.launch.start_step or 0

    @property
    def epoch(self) -> int:
        """Epoch of the last step done, from 1; 0 when fresh."""
        return epoch_and_step(self.global_step, self.launch.steps_per_epoch)[0] or 0

    @property
    def step_in_epoch(self) -> int:
        """Step in that epoch, from 1; 0 when fresh."""
        return epoch_and_step(self.global_step, self.launch.steps_per_epoch)[1] or 0

    @property
    def initial_epoch(self) -> int:
        """The argument `initial_epoch` with which `Model.train` goes on there."""
        return self.global_step // (self.launch.steps_per_epoch or 1)

    def to_json(self) -> Line:
        """As rank 0 sends it. `append_info` is not part of it: each rank has its own."""
        sent: Line = to_builtins(replace(self, append_info={}))
        return sent


@dataclass
class Progress:
    """How far a launch has trained in this process: shared by all its registrars, through all its trainings.

    - `start`: the result of `resume`; None before, and if the script does not call it.
    - `global_step`: the batches consumed since the run began.
    - `began_after`: the step after which the present training began, if it is not the first one.
    - `has_trained`: training has begun. `has_failed`: an exception ended the last training. `ending`: the step and the
      error of that end, if known. `has_left`: OnRequestExit ended it. `flag_may_be_stale`: the present training is the
      first one, or comes after such an end.
    - `seed`: with it random layers draw in each step by the number of the step (None: as MindSpore does).
    - `recorder`: records for a training while that is under way. `evaluated`: gets the results of an evaluation in it,
      if MindSpore runs it.
    """

    start: Start | None = None
    global_step: int = 0
    began_after: int = 0
    has_trained: bool = False
    has_failed: bool = False
    has_left: bool = False
    flag_may_be_stale: bool = True
    ending: TrainingEnded | None = None
    seed: int | None = None
    recorder: RecorderThread | None = None
    evaluated: Callable[[Mapping[str, Any]], None] | None = None


def start_from_json(sent: Line) -> Start:
    """The inverse of `Start.to_json`."""
    return convert(sent, Start)


def begin(
    database: Database,
    run: str,
    *,
    rank: int,
    world_size: int,
    launch_id: str,
    layout: str | None,
    directories: Iterable[str | Path] = (),
    claim: Callable[[Connection, Launch], None] | None = None,
) -> RankLaunch:
    """Make this rank part of a launch, as `Catalog.join` does, even while the catalog cannot be used.

    The journals in the run's known directories are read into the catalog first. If the catalog cannot be used, they
    alone count, and the launch is in journals only until the catalog is back. `claim` is the argument of `resume.join`,
    for a launch that is in the catalog.
    """
    sizes, _ = found_below(known_directories(database.name, [run], directories))
    try:
        with database.connected():
            schema.ensure(database)
            launch = _begin(
                database,
                run,
                sizes,
                rank=rank,
                world_size=world_size,
                launch_id=launch_id,
                layout=layout,
                claim=claim,
            )
    except CatalogUnavailableError as error:
        temporary = in_memory()
        take_up_found(temporary, sizes, look=False)
        facts = join(temporary, run, rank=rank, world_size=world_size, launch_id=launch_id, layout=layout)
        launch = _without_catalog(database, facts, rank)
        _look_back(launch, temporary)
        if isinstance(error, CatalogForbidsError):
            with suppress(CatalogUnavailableError):
                _look_back(launch, database)
        launch.recorder.complain(
            f"{error}. Training goes on without the catalog: journals beside the checkpoints have the records."
        )
        _warn_of_missing(launch)
    return launch


def begin_in_catalog(
    database: Database, run: str, *, rank: int, world_size: int, launch_id: str | None, layout: str | None
) -> RankLaunch:
    """Make this rank part of a launch, for `Catalog.join`.

    If the catalog knows no save of the run, it may have been lost, or away while the run saved: the journals in the
    run's known directories are read.
    """
    check_name("run", run)
    with database.connected():
        with database.read() as connection:
            called = reads.called(connection, run)
            has_saved = called is not None and any(tallies.highest_steps(connection, called.id).values())
        sizes = {} if has_saved else found_below(known_directories(database.name, [run]))[0]
        return _begin(database, run, sizes, rank=rank, world_size=world_size, launch_id=launch_id, layout=layout)


def _begin(database: Database, run: str, sizes: Mapping[str, int], *, rank: int, **asked: Any) -> RankLaunch:
    unread = take_up_found(database, sizes).failed
    facts = join(database, run, rank=rank, seen=sizes, **asked)
    launch = RankLaunch(database, facts, rank)
    launch.unread = unread
    _look_back(launch, database)
    _warn_of_missing(launch)
    return launch


def follow(database: Database, facts: Launch, rank: int, layout: str | None, *, away: bool) -> RankLaunch:
    """Make another rank part of a launch that the first one began; `away`: that one began it without the catalog."""
    if away:
        return _without_catalog(database, facts, rank)
    try:
        with database.connected():
            schema.check(database)
            own = join(database, facts.run, rank=rank, world_size=facts.world_size, launch_id=facts.id, layout=layout)
    except CatalogUnavailableError:
        return _without_catalog(database, facts, rank)
    return RankLaunch(database, own, rank)


def decide(
    launch: RankLaunch,
    directories: Iterable[str | Path] = (),
    query: Query = NEWEST,
    ask_ranks: AskRanks = lambda _: None,
) -> Start:
    """Where the launch starts, by the catalog, or without it by journals and directories.

    `ask_ranks` is the argument of `decide_start`; without the catalog this process's view of the disk counts.

    Raises as `resolve` does, and `RefusedError` if the run has no history and unregistered checkpoints are in its
    known directories, or if only the catalog has its states, and cannot be used, or may only be read by this login.
    """
    name = launch.database.name
    if not launch.recorder.behind:
        try:
            if not launch.saved_before:
                _check_known(launch, launch.database, remembered(name, launch.run))
            return _start(launch, launch.database, query, ask_ranks)
        except CatalogUnavailableError as error:
            launch.recorder.complain(f"{error}. Journals and directories decide where training starts.")
            launch.recorder.behind = True
    temporary = in_memory()
    known = known_directories(name, launch.names, directories)
    others = [each for run in _named(query.initial) for each in remembered(name, run)]
    sizes, hidden = found_below(dict.fromkeys((*known, *others)), with_directories=True)
    for unseen in (*hidden, *take_up_found(temporary, sizes, look=False).unreadable):
        raise CkptstoreError(
            f"{unseen.path} cannot be read ({unseen.reason}), and the catalog is unavailable: where training starts "
            "would be a guess",
            "make it readable, or start when the catalog is back",
        )
    with temporary.write() as connection:
        project(connection, [LaunchStarted(launch.facts.undecided())])
    _check_known(launch, temporary, known)
    start = _start(launch, temporary, query)
    if start.fresh and not query.fresh and launch.saved_before > max(start.known.values(), default=0):
        raise RefusedError(
            f"run {launch.name!r} has saved up to step {launch.saved_before}, but no journal of it was found, and the "
            "catalog cannot be used, or this login may not write to it: training would begin at step 0",
            f"start when the catalog is back, use a login that may write, or name its directories in {DIRECTORIES}; "
            f"give a new run another name; or start over: {Call('resume', 'model', 'dataset', fresh=True)}",
        )
    return start


def _named(reference: str | None) -> set[str]:
    """The runs that a reference may name."""
    found: set[str] = set()
    with suppress(UsageError):  # the choice of the state reports it
        for each in readings(reference) if reference else ():
            found.add(each.run)
    return found


def _look_back(launch: RankLaunch, database: Database) -> None:
    """Set a launch's `name`, the run's present one, and what the run had saved: `known` and `saved_before`."""
    with database.read() as connection:
        called = reads.called(connection, launch.run)
        known = tallies.highest_steps(connection, called.id) if called else {}
    launch.name = called.name if called else launch.run
    launch.known = known
    launch.saved_before = max((step for each, step in known.items() if each != launch.id), default=0)


def _warn_of_missing(launch: RankLaunch) -> None:
    """Warn if no save of a run is known, and its directory has no journal: perhaps its disk is not mounted."""
    if launch.rank or launch.known.keys() - {launch.id}:
        return
    for root in remembered(launch.database.name, launch.run):
        if not found_below([root])[0]:
            log.warning(
                "run %s saved to %s before, and no save of it is known now: if its disk is not mounted here, stop "
                "the job, mount the disk, and start the job again; else training begins at step 0",
                launch.name,
                root,
            )
            return


def _start(launch: RankLaunch, database: Database, query: Query, ask_ranks: AskRanks = lambda _: None) -> Start:
    decided = launch.decide_start(database, query, ask_ranks)
    plan = decided.plan
    if plan is not None and launch.facts.start_step is None:
        raise CkptstoreError(f"the first step of launch {launch.id} is not in {database.name}", "join again")
    with database.read() as connection:
        run_id = reads.run_id(connection, launch.run) or 0
        launches = {each.id: each for each in reads.launches_of(connection, run_id)}
        known = tallies.highest_steps(connection, run_id)
        stood_in_for = {each.rank for each in plan.ranks if each.source.rank != each.rank} if plan else set()
        is_asked = plan is not None and (stood_in_for or plan.in_parts)
        saved = reads.files_at(connection, plan.launch, plan.global_step) if plan and is_asked else ()
    return Start(
        launch=launch.facts,
        plan=plan,
        at=decided.at,
        by_journals=database is not launch.database,
        known=known,
        offset=position.shift(launch.facts, launches),
        lost=tuple(file for file in saved if file.rank in stood_in_for and file.size is not None),
        parts=plan.parts_among(saved) if plan else (),
        initial=decided.initial,
    )


def _check_known(launch: RankLaunch, database: Database, known: Iterable[str]) -> None:
    """Raise `RefusedError` if the run has no history in the database, and unregistered checkpoints are in `known`."""
    with database.read() as connection:
        run_id = reads.run_id(connection, launch.run) or 0
        decided = any(each.decided for each in reads.launches_of(connection, run_id))
        if decided or reads.first_saves(connection, run_id) or reads.saving(connection, run_id):
            return
    for root in known:
        for directory in (root, f"{root}/rank_{launch.rank}"):
            for path in unregistered(database, directory, listed(directory)):
                raise unknown_run(path, launch.name)


def _without_catalog(database: Database, facts: Launch, rank: int) -> RankLaunch:
    launch = RankLaunch(database, facts, rank)
    launch.recorder.behind = True
    return launch


def unregistered(database: Database, directory: str, names: frozenset[str] | OSError) -> list[str]:
    """As `without_record`, for those files of a directory that may hold steps; `names` is of `disk.files.listed`.

    Raises `CkptstoreError` if the directory could not be read.
    """
    if isinstance(names, NotADirectoryError):
        return []
    if isinstance(names, OSError):
        raise CkptstoreError(f"{directory} cannot be read ({reason_of(names)})")
    return without_record(database, directory, sorted(filter(_may_hold_steps, names)))


def without_record(database: Database, directory: str, names: Sequence[str]) -> list[str]:
    """Those of these files that have no record. The database must have taken up the directory's journals.

    A record of any run counts, also one that a scan made.
    """
    with database.read() as connection:
        sources = reads.sources_in(connection, [directory]) if names else []
        writers = Writers((directory, source) for source in sources)
        of_ttp = [source for source in sources if source.kind is Kind.TTP]
        left = [
            f"{directory}/{name}"
            for name in names
            if not any(wrote(source, name) for source in chain(writers.of(directory, name), of_ttp))
        ]
        known = reads.files_at_paths(connection, left) if left else {}
    return [path for path in left if path not in known]


def _may_hold_steps(name: str) -> bool:
    """Whether it is a checkpoint's name, except that of a breakpoint from a start that ended before its first step."""
    named = parse_name(name)
    if named is None:
        return parse_exit_name(name) is not None
    return named.step_in_epoch > 0 or not named.is_breakpoint


def unknown_run(path: str, run: str) -> RefusedError:
    """The error for a fresh start beside an unregistered file while the catalog cannot tell whose it is."""
    where = root_of(path.rpartition("/")[0])
    return RefusedError(
        f"{path} is in no journal, and the catalog, which may know this file, is unreachable or lost: ckptstore would "
        f"have to guess whether run {run!r} goes on from it",
        f"start when the catalog is back; if it is lost: {Command('scan', where, '--run', run)}; if the file "
        "is of another run, move it away",
    )
