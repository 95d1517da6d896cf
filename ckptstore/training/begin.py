"""Start a launch with the catalog, or without it by the journals and directories of its run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, schema, tallies
from ckptstore.catalog.engine import in_memory
from ckptstore.catalog.project import project
from ckptstore.core.events import LaunchStarted
from ckptstore.core.model import Content
from ckptstore.core.reference import readings
from ckptstore.disk.run_directories import known_directories, remembered
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, UsageError
from ckptstore.journal.sync import found_below, take_up_found
from ckptstore.resume import position
from ckptstore.resume.join import join
from ckptstore.resume.resolver import NEWEST
from ckptstore.training.rank_launch import RankLaunch
from ckptstore.training.save_places import unknown_run, unregistered
from ckptstore.training.start import Start

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Launch
    from ckptstore.outside import Path
    from ckptstore.resume.resolver import Query
    from ckptstore.resume.start import AskRanks


def begin(
    database: Database,
    run: str,
    *,
    rank: int,
    world_size: int,
    launch_id: str,
    layout: str | None,
    directories: Iterable[str | Path] = (),
) -> RankLaunch:
    """Make this rank part of a launch, as `Catalog.join` does, also while the catalog cannot be used.

    The journals in the run's known directories are read into the catalog first. Where that cannot be used they alone
    count, and the launch is in journals only until the catalog is back.
    """
    sizes, _ = found_below(known_directories(database.name, run, directories))
    try:
        with database.connected():
            schema.ensure(database)
            unread = take_up_found(database, sizes).failed
            facts = join(
                database, run, rank=rank, world_size=world_size, launch_id=launch_id, layout=layout, seen=sizes
            )
            launch = RankLaunch(database, facts, rank)
            launch.unread = unread
            _look_back(launch, database)
    except CatalogUnavailableError as error:
        temporary = in_memory()
        take_up_found(temporary, sizes, look=False)
        facts = join(temporary, run, rank=rank, world_size=world_size, launch_id=launch_id, layout=layout)
        launch = _without_catalog(database, facts, rank)
        _look_back(launch, temporary)
        launch.recorder.complain(
            f"{error}. Training goes on without the catalog: journals beside the checkpoints have the records."
        )
    return launch


def follow(database: Database, facts: Launch, rank: int, layout: str | None, *, away: bool) -> RankLaunch:
    """Make another rank part of a launch that the first one began; `away` tells that it did so without a catalog."""
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

    `ask_ranks` is that of `settle`; without the catalog what this process sees counts.

    Raises as `resolve` does, and `RefusedError` where the run has no history and unregistered checkpoints are in its
    known directories.
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
    known = known_directories(name, launch.run, directories)
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
    return _start(launch, temporary, query)


def _named(reference: str | None) -> set[str]:
    """The runs that a reference may name."""
    found: set[str] = set()
    with suppress(UsageError):  # whoever chooses the state says so
        for each in readings(reference) if reference else ():
            found.add(each.run)
    return found


def _look_back(launch: RankLaunch, database: Database) -> None:
    """Tell a launch what its run is called now, and the highest step that other launches of it saved."""
    with database.read() as connection:
        called = reads.called(connection, launch.run)
        known = tallies.highest_steps(connection, called.id) if called else {}
    launch.name = called.name if called else launch.run
    launch.saved_before = max((step for each, step in known.items() if each != launch.id), default=0)


def _start(launch: RankLaunch, database: Database, query: Query, ask_ranks: AskRanks = lambda _: None) -> Start:
    settled = launch.settle(database, query, ask_ranks)
    plan = settled.plan
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
        at=settled.at,
        by_journals=database is not launch.database,
        known=known,
        offset=position.shift(launch.facts, launches),
        lost=tuple(file for file in saved if file.rank in stood_in_for and file.size is not None),
        parts=tuple(file for file in saved if file.content is Content.PART),
        initial=settled.initial,
    )


def _check_known(launch: RankLaunch, database: Database, known: Iterable[str]) -> None:
    """Raise `RefusedError` if the database knows no earlier launch of the run, and checkpoints are in them."""
    with database.read() as connection:
        run_id = reads.run_id(connection, launch.run) or 0
        decided = any(each.decided for each in reads.launches_of(connection, run_id))
        if decided or reads.first_saves(connection, run_id) or reads.sources_of(connection, run_id):
            return
    for root in known:
        for directory in (root, f"{root}/rank_{launch.rank}"):
            path = unregistered(database, directory)
            if path is not None:
                raise unknown_run(path, launch.name)


def _without_catalog(database: Database, facts: Launch, rank: int) -> RankLaunch:
    launch = RankLaunch(database, facts, rank)
    launch.recorder.behind = True
    return launch
