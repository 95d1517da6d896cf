"""Brings the catalog up to date with a directory tree that is new to it, or that has changed without a record.

Names and headers of the files prove launches and saves (`evidence/reconstruct.py`). Files without such a proof are
reported, not adopted. Files that a registrar of the run watches are left to reconciliation, which knows more about
them. So a scan is safe while training writes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from ckptstore.catalog import journals, reads, removals
from ckptstore.catalog.engine import in_memory
from ckptstore.catalog.project import add_run, project
from ckptstore.catalog.runs import find_called
from ckptstore.core import validate
from ckptstore.core.events import FileRecorded, FileUnplaced, LaunchStarted, RunForgotten, RunRenamed, SourceAdded
from ckptstore.core.gc_paused import gc_paused
from ckptstore.core.groups import grouped
from ckptstore.core.model import FileState, Launch, Location, Rule
from ckptstore.core.naming import is_within
from ckptstore.disk import presence
from ckptstore.disk.files import absolute, facts_if_seen
from ckptstore.disk.presence import Home
from ckptstore.disk.run_directories import checkpoint_tree, remember, root_of
from ckptstore.disk.trust import on_behalf_of
from ckptstore.errors import UsageError
from ckptstore.journal.recorder import homes, shared
from ckptstore.journal.sync import as_called
from ckptstore.outside import Path, os, utc_now
from ckptstore.resume.join import check_name
from ckptstore.scan import foreign
from ckptstore.scan.known_files import recorded_below
from ckptstore.scan.plan import Asked, FoundTrash, check_ranks, make_plan, may_be_beyond
from ckptstore.scan.tree import look_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Database
    from ckptstore.core.events import Event
    from ckptstore.disk.trust import Trust
    from ckptstore.evidence.reconstruct import Stated
    from ckptstore.scan.plan import Scanned, ScanPlan
    from ckptstore.scan.tree import Tree


@gc_paused()
def scan(
    database: Database,
    directory: str | Path,
    *,
    run: str | None,
    world_size: int | None,
    said: Stated,
    dry_run: bool,
    trust: Trust | None,
    progress: Callable[[int], None],
) -> Scanned:
    """Adopt the checkpoints below `directory` into a run. Can be repeated: then nothing changes.

    - `run` is the name of the run. None: the run that the journals there name, if it is a single one, else the
      directory's name. If that run trains with ckptstore, only files in its own directories are adopted then.
    - `world_size` is the number of ranks (None: by the files, with a warning).
    - `said` are the user's statements about the files.
    - `dry_run` writes nothing.
    - `trust` is the users whose journals are believed (None: those that the environment names).
    - `progress` is called with the number of files that were looked at since its last call.

    Raises `UsageError` if an argument makes no sense, such as a `world_size` that is too small for the rank of a new
    file, or a step of a file that is no checkpoint there. Raises `RefusedError` if the directory's name is that of a
    run whose files are elsewhere, if the run was forgotten, or if there are several experiments or networks.
    """
    root = checkpoint_tree(directory)
    directory_name = Path(absolute(directory)).name  # if it is a link, the link's own
    if run is not None:
        check_name("run", run)
        run = _first_name(database, run)
    if world_size is not None:
        validate.ranks("world size", world_size)
    tree = look_at(root, world_size, progress)
    foreign.gather(tree)
    check_ranks(tree.root, tree.ranks)
    said = _checked(said, tree, root)

    asked = Asked(run, directory_name, world_size, said, trust)
    with database.read() as connection:
        trash_before = removals.known(connection)
    looked_at = database
    if dry_run or (world_size is not None and may_be_beyond(tree, world_size)):
        looked_at = _temporary_catalog(database, root, run or directory_name)
        plan = make_plan(tree, asked, looked_at, catalog=database)  # may refuse, before anything is written
    if not dry_run:
        looked_at = database
        plan = make_plan(tree, asked, database)
        _apply(database, tree, plan)
    with database.read() as connection:
        found = reads.called(connection, plan.found.run)
    name, synced = found.name if found else plan.found.run, as_called(looked_at, plan.found.synced)
    adopted = (*plan.taken, *plan.found.adopted)
    trash = _new_trash(looked_at, name, trash_before)
    return replace(plan.found, run=name, adopted=adopted, trash=trash, synced=synced)


def _checked(said: Stated, tree: Tree, root: Path) -> Stated:
    """The user's statements, with the paths as the tree has them. Raises `UsageError` if they make no sense."""
    if said.steps_per_epoch is not None:
        validate.number("steps per epoch", said.steps_per_epoch, "give how many batches an epoch has", lowest=1)
    steps: dict[str, int] = {}
    for path, step in said.steps.items():
        named = (absolute(path), absolute(root / path))
        known = [each for each in named if each in tree.checkpoints or each in tree.foreign]
        known = known or [each for each in named if foreign.take_directory(tree, each)]
        if not known:
            hint = f"give a path as it is, or below {root}"
            raise UsageError(f"there is no checkpoint {path} below {root}", hint)
        steps[known[0]] = validate.step_of(step)
    return replace(said, steps=steps)


def _first_name(database: Database, run: str) -> str:
    """The first name of a run, which its records keep. Raises `UnknownRunError` if the run was forgotten."""
    with database.read() as connection:
        is_new = reads.run_id(connection, run) is None
    return run if is_new else find_called(database, run).first


def _temporary_catalog(database: Database, root: Path, run: str) -> Database:
    """A catalog in memory with the records of a run, of the files below a directory, and of the runs of these files.

    It knows how far the journals of these runs were read, so that they are read on from there. Of the other runs, it
    has the names. It lacks the plans and the ends of launches.
    """
    now = utc_now()
    with database.read() as connection:
        below, moved = recorded_below(connection, str(root))
        known = journals.every_journal(connection)
        every = reads.every_called(connection)
        told = {name for name, own in known.items() if any(is_within(path, str(root)) for path in own)}
        named = {*told, *(file.run for file in (*below, *moved.values())), run}
        called = {each.first: each for name in named if (each := reads.called(connection, name)) is not None}
        ids = {name: each.id for name, each in called.items()}
        own_id = next((each.id for each in called.values() if run in (each.first, each.name)), None)
        of_run = [] if own_id is None else reads.files_of(connection, own_id)
        files = {file.id: file for file in (*of_run, *below, *moved.values())}
        launches = [launch for run_id in ids.values() for launch in reads.launches_of(connection, run_id)]
        sources = [source for run_id in ids.values() for source in reads.sources_of(connection, run_id)]
    copy = in_memory()
    names = [RunRenamed(each.first, each.name, now) for each in every if each.name != each.first]
    hidden = [RunForgotten(each.first, True, now) for each in every if each.forgotten]  # noqa: FBT003
    with copy.write() as connection:
        project(connection, [*names, *hidden])
        new_ids = {each.first: add_run(connection, each.first) for each in every}
        project(connection, [LaunchStarted(launch.undecided()) for launch in launches])
        project(connection, [SourceAdded(source, now) for source in sources])
        project(connection, list(map(FileRecorded, files.values())))
        for name, own in known.items():
            ends = own if name in ids else {path: to._replace(end=0) for path, to in own.items()}
            journals.set_read_to(connection, ends, dict.fromkeys(own, (new_ids[name],)))
    return copy


def _apply(database: Database, tree: Tree, plan: ScanPlan) -> None:
    """Record what the plan says, and remember on this machine where the run's checkpoints are."""
    found = plan.found
    damaged = [file.amended(state=FileState.DAMAGED, problem=Rule.SIZE_MISMATCH) for file in found.damaged]
    gone = [file.amended(state=FileState.MISSING, problem=None) for file in (*found.missing, *plan.overwritten)]
    gone += [file.amended(state=FileState.MOVED, problem=None) for file in plan.restated]
    now = utc_now()
    launches = [
        Launch(
            id=launch.id,
            run=found.run,
            order=0,
            world_size=launch.world_size,
            layout=launch.layout,
            steps_per_epoch=launch.steps_per_epoch,
            created_at=launch.began,
            owner=on_behalf_of(os.geteuid(), launch.files[0].path),
        )
        for launch in plan.launches
    ]
    with database.read() as connection:
        run_id = reads.run_id(connection, found.run)
        known = set() if run_id is None else set(reads.unplaced_of(connection, run_id))
        recorded = homes(connection, run_id or 0).get(tree.root, Home(set(), set()))
    unplaced = [FileUnplaced(found.run, each, now) for each in plan.unplaced if each not in known]
    trash = removals.moved(plan.lost_trash, Location.GONE, settled=True)
    trash += removals.moved(plan.trash_back, Location.TRASH, settled=True)
    changed: list[Event] = [*map(FileRecorded, (*gone, *damaged, *found.regraded)), *removals.told(trash)]
    seen = (*tree.checkpoints, *tree.foreign, *(file.path for file in plan.back))  # a script may choose any names
    left = (path for path in seen if facts_if_seen(path) is not None)
    recorded.places.update(presence.below(tree.root, path) for path in islice(left, 1))  # one that is still there
    if presence.absence(tree.root, recorded):  # an empty mount point, or the rest of a tree that was moved
        database.in_write(lambda connection: project(connection, changed))
        return
    recorder = shared(database)
    recorder.home(tree.root, recorded)
    recorder.record([LaunchStarted(launch, data_at=now) for launch in launches])
    recorder.record(changed)
    recorder.record(unplaced)
    recorder.adopt([*found.adopted, *plan.back])
    with database.read() as connection:
        called = reads.called(connection, found.run)
    names = [found.run, *([called.name] if called else [])]
    saved_to = {file.path.rpartition("/")[0] for file in found.adopted}
    for directory in sorted(map(root_of, saved_to)):
        remember(database.name, names, directory)


def _new_trash(database: Database, run: str, known: AbstractSet[str]) -> tuple[FoundTrash, ...]:
    """The trash of a run by gc, without the items that were known before."""
    with database.read() as connection:
        items = removals.items_of(connection, reads.run_id(connection, run) or 0, settled=True)
    found = grouped((item.collection, item) for item in items if item.id not in known)
    return tuple(FoundTrash(gc, run, len(some), sum(item.size for item in some)) for gc, some in found.items())
