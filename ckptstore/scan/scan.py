"""Takes a directory tree into the catalog that no catalog ever saw, or that has changed without it.

What the files' names and headers prove becomes launches and saves (`history.py`); what is not proven is reported, and
not adopted. Files of launches that a registrar watches are left to reconciliation, which knows more of them: a scan
while training writes is safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import journals, reads, trash
from ckptstore.catalog.engine import in_memory
from ckptstore.catalog.project import add_run, project
from ckptstore.core import validate
from ckptstore.core.events import FileRecorded, LaunchStarted, SourceAdded
from ckptstore.core.many import without_gc
from ckptstore.core.model import FileState, Launch, Phase, Rule
from ckptstore.core.replicas import stand_alone
from ckptstore.disk.files import absolute
from ckptstore.disk.places import checkpoint_tree, remember_place, root_of
from ckptstore.journal.sync import Synced, sync_below
from ckptstore.journal.unread import unread
from ckptstore.journal.writers import shared
from ckptstore.resume.join import check_name
from ckptstore.resume.reconcile import Reconciled, reconcile
from ckptstore.scan.known_files import recorded_below
from ckptstore.scan.plan import ScanPlan, check_ranks, make_plan, may_be_beyond, run_to_fill
from ckptstore.scan.tree import Opaque, look_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, Skipped
    from ckptstore.scan.found import Uncertain


@dataclass(frozen=True)
class FoundTrash:
    """What a gc left in the trash that the catalog did not know of: how many files and bytes, and of which run."""

    collection: str
    run: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Scanned:
    """What a scan found, and did.

    `taken_up` is what journals said, `trash` what was in the trash and the catalog did not know of. `world_size` is
    that of what was adopted (None: nothing was new). `counts` says how many files are what, by `What`; `known` how many
    checkpoints were in the catalog already. What is `uncertain`, `skipped` or `opaque` was not taken in; of what was
    `skipped`, `unread` are directories that could not be read, and journals that tell of more than could be.
    """

    run: str
    world_size: int | None
    counts: Mapping[str, int]
    known: int = 0
    adopted: tuple[Checkpoint, ...] = ()
    damaged: tuple[Checkpoint, ...] = ()
    missing: tuple[Checkpoint, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unread: tuple[Skipped, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    warnings: tuple[str, ...] = ()
    taken_up: Synced = field(default_factory=Synced)
    trash: tuple[FoundTrash, ...] = ()


@without_gc()
def scan(
    database: Database,
    directory: str | Path,
    *,
    run: str | None = None,
    world_size: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Scanned:
    """Adopt what is below `directory` into a run. Can be repeated: then nothing changes.

    Without `run` it is the one that the journals there tell of, if that is one, else the run of the directory's name;
    and of a run that is trained with ckptstore only what lies in its own directories is taken in. `world_size` is the
    number of ranks (None: by what is there, with a warning). `dry_run` writes nothing. `progress` hears how many more
    files were looked at. Raises `UsageError` for what cannot be meant, as a `world_size` that a new file's rank is
    beyond, `RefusedError` where the directory's name is that of a run which lives elsewhere.
    """
    root = checkpoint_tree(directory)
    directory_name = Path(absolute(directory)).name  # where it is a link, its own
    if run is not None:
        check_name("run", run)
    if world_size is not None:
        validate.ranks("world size", world_size)
    tree = look_at(root, progress)
    check_ranks(root, tree.ranks)

    def planned(catalog: Database, *, is_temporary: bool) -> tuple[ScanPlan, Synced, Reconciled]:
        taken_up = sync_below(catalog, root)
        name = run or (taken_up.runs[0] if len(taken_up.runs) == 1 else directory_name)
        check_name("run", name)  # the root of all directories has none
        run_id = run_to_fill(catalog, name, root, is_stated=run is not None)
        done = Reconciled() if is_temporary or run_id is None else reconcile(catalog, run_id)
        plan = make_plan(
            catalog, tree, root, taken_up, run=name, run_id=run_id, is_stated=run is not None, world_size=world_size
        )
        return plan, taken_up, done

    with database.read() as connection:
        trash_before = trash.known(connection)
    looked_at = database
    if dry_run or (world_size is not None and may_be_beyond(tree, world_size)):
        looked_at = _temporary_catalog(database, root, run or directory_name)
        plan, taken_up, done = planned(looked_at, is_temporary=True)  # may refuse, before anything is written
    if not dry_run:
        looked_at = database
        plan, taken_up, done = planned(database, is_temporary=False)
        _apply(database, plan)
    skipped = [*tree.skipped, *plan.skipped, *done.skipped, *taken_up.skipped]
    return Scanned(
        run=plan.run,
        world_size=plan.world_size,
        counts=dict(tree.counts),
        known=plan.known,
        adopted=plan.adopted,
        damaged=plan.damaged,
        missing=plan.missing,
        uncertain=plan.uncertain,
        skipped=_skipped(skipped, plan.adopted),
        unread=_skipped([*tree.unread, *done.unread, *taken_up.unreadable, *unread(taken_up.skipped)], ()),
        opaque=tuple(sorted(tree.opaque, key=lambda each: each.path)),
        warnings=plan.warnings,
        taken_up=taken_up,
        trash=_new_trash(looked_at, plan.run, trash_before),
    )


def _temporary_catalog(database: Database, root: Path, run: str) -> Database:
    """A catalog in memory with what this one has of a run, and of the files below a directory with their runs.

    Of the journals it has all, so that one below the directory is taken up from where it was read to. What becomes of a
    launch (its plan, its end) is not in it.
    """
    now = datetime.now(timezone.utc)
    prefix = f"{str(root).rstrip('/')}/"
    with database.read() as connection:
        below, moved = recorded_below(connection, root)
        known = journals.every_journal(connection)
        told = {name for name, own in known.items() if any(path.startswith(prefix) for path in own)}
        named = {*told, *(file.run for file in (*below, *moved.values())), run}
        ids = {name: run_id for name in named if (run_id := reads.run_id(connection, name)) is not None}
        of_run = reads.files_of(connection, ids[run]) if run in ids else []
        files = {file.id: file for file in (*of_run, *below, *moved.values())}
        launches = [launch for run_id in ids.values() for launch in reads.launches_of(connection, run_id)]
        sources = [source for run_id in ids.values() for source in reads.sources_of(connection, run_id)]
    copy = in_memory()
    with copy.write() as connection:
        new_ids = {name: add_run(connection, name) for name in ids.keys() | known.keys()}
        project(connection, [LaunchStarted(launch.undecided()) for launch in launches])
        project(connection, [SourceAdded(source, now) for source in sources])
        project(connection, list(map(FileRecorded, files.values())))
        for name, own in known.items():
            journals.set_taken_up(connection, own, dict.fromkeys(own, (new_ids[name],)))
    return copy


def _apply(database: Database, plan: ScanPlan) -> None:
    """Record what the plan says, and remember on this machine where the run's checkpoints are."""
    damaged = [file.amended(state=FileState.DAMAGED, problem=Rule.SIZE_MISMATCH) for file in plan.damaged]
    gone = [file.amended(state=FileState.MISSING, problem=None) for file in (*plan.missing, *plan.overwritten)]
    launches = [
        Launch(
            id=launch.id,
            run=plan.run,
            order=0,
            world_size=launch.world_size,
            layout=stand_alone(),
            steps_per_epoch=launch.steps_per_epoch,
            created_at=launch.began,
        )
        for launch in plan.launches
    ]
    recorder = shared(database)
    recorder.home(plan.root)
    try:
        recorder.record(list(map(LaunchStarted, launches)))
        recorder.record([FileRecorded(file) for file in (*gone, *damaged)])
        recorder.adopt([*plan.adopted, *plan.back])
    finally:
        recorder.close()
    homes = {file.path.rpartition("/")[0] for file in plan.adopted}
    for directory in sorted({root_of(home) for home in homes}):
        remember_place(database.name, plan.run, directory)


def _new_trash(database: Database, run: str, known: AbstractSet[str]) -> tuple[FoundTrash, ...]:
    """What is in the trash of a run by gc, but for the items that were known before."""
    with database.read() as connection:
        items = trash.items_of(connection, reads.run_id(connection, run) or 0, Phase.TRASHED)
    found: dict[str, list[trash.Item]] = {}
    for item in items:
        if item.id not in known:
            found.setdefault(item.collection, []).append(item)
    return tuple(FoundTrash(gc, run, len(some), sum(item.size for item in some)) for gc, some in found.items())


def _skipped(found: Iterable[Skipped], adopted: Iterable[Checkpoint]) -> tuple[Skipped, ...]:
    """What was skipped, by path; a file of a launch that no journal tells of may have been adopted by its name."""
    taken = {file.path for file in adopted}
    return tuple(sorted({each for each in found if each.path not in taken}, key=lambda each: (each.path, each.reason)))
