"""Start a launch whether or not the catalog can be used: what it cannot tell, journals and directories do."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, replay, schema, tallies
from ckptstore.catalog.engine import in_memory
from ckptstore.core import position
from ckptstore.core.model import Assignment, RestorePlan
from ckptstore.core.naming import parse_exit_name, parse_name
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, RefusedError
from ckptstore.ops import entries
from ckptstore.ops.authorship import wrote
from ckptstore.ops.join import join
from ckptstore.ops.launch import RankLaunch
from ckptstore.ops.records import Began, Said
from ckptstore.ops.settle import settle
from ckptstore.ops.sync import found_below, take_up_found
from ckptstore.storage import journal
from ckptstore.storage.files import names_in
from ckptstore.storage.places import places, remember, remembered, root_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, Launch
    from ckptstore.storage.journal import Entry

log = logging.getLogger("ckptstore")

_ROOT = "/"


@dataclass(frozen=True)
class Decision:
    """Where a launch starts (`plan` None: afresh), when that was decided, and what was known then.

    `known` are the run's launches, with the highest step that each was known to have saved (0: none). `launch` tells
    the step that it starts at; `shift` by how much that is beyond the updates of an optimizer that never left one out.
    """

    launch: Launch
    plan: RestorePlan | None
    at: datetime
    known: Mapping[str, int]
    shift: int

    def to_json(self) -> Entry:
        """As one rank tells it to the others: with it they need no catalog."""
        origin = self.plan.launch if self.plan else None
        return {
            "launch": launch_to_json(self.launch),
            "at": self.at.isoformat(),
            "known": dict(self.known),
            "shift": self.shift,
            "start_step": self.launch.start_step,
            "branched": self.launch.branched,
            "from": launch_to_json(origin) if origin else None,
            "step": self.plan.global_step if self.plan else None,
            "ranks": [[each.rank, entries.of_file(each.source, _ROOT)] for each in self.plan.ranks]
            if self.plan
            else [],
        }


def decision_from_json(told: Entry) -> Decision:
    """The inverse of `Decision.to_json`."""
    plan = None
    if told["from"]:
        files = Said()
        entries.said([file for _, file in told["ranks"]], _ROOT, files)
        ranks = tuple(Assignment(rank, file) for (rank, _), file in zip(told["ranks"], files.files, strict=True))
        plan = RestorePlan(launch=launch_from_json(told["from"]), global_step=told["step"], ranks=ranks)
    at = datetime.fromisoformat(told["at"])
    launch = replace(
        launch_from_json(told["launch"]),
        decided=True,
        parent=plan.launch.id if plan else None,
        parent_step=plan.global_step if plan else None,
        start_step=told["start_step"],
        branched=told["branched"],
    )
    return Decision(launch, plan, at, told["known"], told["shift"])


def launch_to_json(launch: Launch) -> Entry:
    """A launch as rank 0 tells it to the others."""
    return entries.of_launch(Began(launch), _ROOT)


def launch_from_json(told: Entry) -> Launch:
    """The inverse of `launch_to_json`."""
    heard = Said()
    entries.said([told], _ROOT, heard)
    return heard.began[0].launch


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

    What journals in the run's known places say is in the catalog before. Where that cannot be used they are all that
    counts, and the launch is in them until the catalog is back.
    """
    paths, _ = found_below(places(database.name, run, directories))
    try:
        with database.connected():
            schema.ensure(database)
            take_up_found(database, paths)
            facts = join(database, run, rank=rank, world_size=world_size, launch_id=launch_id, layout=layout)
    except CatalogUnavailableError as error:
        away = in_memory()
        take_up_found(away, paths, look=False)
        facts = join(away, run, rank=rank, world_size=world_size, launch_id=launch_id, layout=layout)
        launch = _without_catalog(database, facts, rank)
        launch.ledger.complain(
            f"{error}. Training goes on without: journals beside the checkpoints have what is recorded."
        )
        return launch
    return RankLaunch(database, facts, rank)


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
    *,
    step: int | None = None,
    lineage: str | None = None,
    take_quarantined: bool = False,
) -> Decision:
    """Where the launch starts, by the catalog, or without it by journals and directories.

    Raises as `resolve` does, and `RefusedError` where checkpoints are in a known place of a run that nothing tells of.
    """
    if not launch.ledger.behind:
        try:
            _check_known(launch, launch.database, remembered(launch.database.name, launch.run))
            plan = launch.resolve(step=step, lineage=lineage, take_quarantined=take_quarantined)
            return _decision(launch, launch.database, plan)
        except CatalogUnavailableError as error:
            launch.ledger.complain(f"{error}. Journals and directories decide where training starts.")
            launch.ledger.behind = True
    away = in_memory()
    paths, hidden = found_below(places(launch.database.name, launch.run, directories), with_directories=True)
    for unseen in (*hidden, *take_up_found(away, paths, look=False).unreadable):
        raise CkptstoreError(
            f"{unseen.path} cannot be read ({unseen.reason}), nor the catalog: where training starts would be a guess",
            "make it readable, or start when the catalog is back",
        )
    with away.write() as connection:
        replay.put_launches(connection, [launch.facts])
    _check_known(launch, away, places(launch.database.name, launch.run, directories))
    plan = settle(away, launch.facts, step=step, lineage_of=lineage, take_quarantined=take_quarantined)
    with away.read() as connection:
        settled = reads.launch(connection, launch.id) or launch.facts
    at = datetime.now(timezone.utc)
    launch.started(plan, at, start_step=settled.start_step, branched=settled.branched)
    return _decision(launch, away, plan)


def _decision(launch: RankLaunch, database: Database, plan: RestorePlan | None) -> Decision:
    with database.read() as connection:
        at = reads.decided_at(connection, launch.id) or datetime.now(timezone.utc)
    return Decision(launch.facts, plan, at, known_steps(database, launch.run), step_shift(database, launch.facts))


def step_shift(database: Database, launch: Launch) -> int:
    """By how much a launch's steps are beyond those of the run's first at the same updates of the optimizer."""
    with database.read() as connection:
        run_id = reads.run_id(connection, launch.run)
        known = {} if run_id is None else {each.id: each for each in reads.launches_of(connection, run_id)}
    return position.shift(launch, known)


def remember_place(database: Database, run: str, directory: str) -> None:
    """Remember where a run saves, for a start without a catalog; a machine that cannot keep it is none the worse."""
    try:
        remember(database.name, run, directory)
    except OSError as error:
        log.info("where run %s saves is not remembered on this machine (%s)", run, error.strerror or error)


def make_known(database: Database, run: str, directory: str, *, is_first: bool) -> None:
    """Have a later start, and who asks the catalog before it, know what journals tell of a run where a rank saves.

    The first rank does it for all of them. A catalog that cannot be used now takes that up by the next start.
    """
    remember_place(database, run, directory)
    paths, _ = found_below([root_of(directory) if is_first else directory])
    try:
        with database.connected():
            take_up_found(database, paths)
    except CatalogUnavailableError as error:
        log.info("%s. It does not have yet what journals in %s tell.", error, directory)


def overlooked(
    directory: str, run: str, known: Mapping[str, int], *, launch: str, start_step: int
) -> Checkpoint | None:
    """The newest whole file that journals of a directory have of a run, and that nobody knew of; None if there is none.

    `known` is as a decision has it. A `launch` that started at a lower step, where such a file is, started from the
    wrong place. Its own files, as other ranks may have saved them by now, are none.
    """
    lost = [
        file
        for file in _heard(directory).files
        if file.run == run
        and file.launch != launch
        and file.global_step > max(start_step, known.get(file.launch, 0))
        and file.size is not None
    ]
    return max(lost, key=lambda file: file.global_step, default=None)


def untold(directory: str) -> str | None:
    """A file in a directory that has the name of a checkpoint, and that no journal there tells of; None if none has.

    It may be of this run, taken in by `scan`, or of any other.
    """
    try:
        names = sorted(filter(_may_hold_steps, names_in(directory)))
    except NotADirectoryError:
        return None
    except OSError as error:
        raise CkptstoreError(f"{directory} cannot be read ({error.strerror})") from None
    if not names:
        return None
    heard = _heard(directory)
    told = {file.path for file in heard.files}
    paths = (f"{directory}/{name}" for name in names if not any(wrote(source, name) for source in heard.sources))
    return next((path for path in paths if path not in told), None)


def _may_hold_steps(name: str) -> bool:
    """Whether it is a checkpoint's name; a start that was stopped before its first step leaves a breakpoint too."""
    named = parse_name(name)
    if named is None:
        return parse_exit_name(name) is not None
    return named.step_in_epoch > 0 or not named.is_breakpoint


def a_guess(path: str, run: str) -> RefusedError:
    """The error for a fresh start beside such a file, where nobody can tell whether the run goes on from it."""
    where = quote(path.rpartition("/")[0])
    return RefusedError(
        f"{path} is in no journal, and the catalog that may know it is away or lost: whether run {run!r} goes on from "
        "it would be a guess",
        f"start when the catalog is back; if it is lost: ckptstore scan {where} --run {quote(run)}; if the file is of "
        "another run, move it away",
    )


def _check_known(launch: RankLaunch, database: Database, known_places: Iterable[str]) -> None:
    """Raise `RefusedError` if nothing tells of earlier launches of a run, and checkpoints are in its places."""
    with database.read() as connection:
        run_id = reads.run_id(connection, launch.run) or 0
        decided = any(each.decided for each in reads.launches_of(connection, run_id))
        if decided or reads.first_saves(connection, run_id) or reads.sources_of(connection, run_id):
            return
    for place in known_places:
        for directory in (place, f"{place}/rank_{launch.rank}"):
            path = untold(directory)
            if path is not None:
                raise a_guess(path, launch.run)


def _without_catalog(database: Database, facts: Launch, rank: int) -> RankLaunch:
    launch = RankLaunch(database, facts, rank)
    launch.ledger.behind = True
    return launch


def known_steps(database: Database, run: str) -> dict[str, int]:
    """The launches of a run, and the highest step that each has saved, whatever became of that (0: none)."""
    with database.read() as connection:
        return tallies.highest_steps(connection, reads.run_id(connection, run) or 0)


def _heard(directory: str) -> Said:
    """What the journals of a directory say."""
    heard = Said()
    try:
        for path in journal.journals_in(directory):
            entries.said(journal.read(path).entries, directory, heard)
    except OSError as error:
        raise CkptstoreError(f"the journals in {directory} cannot be read ({error.strerror})") from None
    return heard
