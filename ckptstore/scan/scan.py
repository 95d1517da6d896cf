"""Takes a directory tree into the catalog that no catalog ever saw, or that has changed without it.

What the files' names and headers prove becomes launches and saves (`history.py`); what is not proven is reported, and
not adopted. Files of launches that a registrar watches are left to reconciliation, which knows more of them: a scan
while training writes is safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, trash
from ckptstore.core import validate
from ckptstore.core.many import without_gc
from ckptstore.core.model import Phase
from ckptstore.disk.files import absolute
from ckptstore.disk.places import checkpoint_tree
from ckptstore.journal.sync import Synced, sync_below
from ckptstore.journal.unread import unread
from ckptstore.resume.join import check_name
from ckptstore.resume.reconcile import Reconciled, reconcile
from ckptstore.scan.apply import apply
from ckptstore.scan.plan import ScanPlan, check_ranks, make_plan, may_be_beyond, run_to_fill
from ckptstore.scan.temporary_catalog import temporary_catalog
from ckptstore.scan.tree import Opaque, look_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, Skipped


@dataclass(frozen=True)
class Uncertain:
    """A file whose step is not proven: the likeliest one (None: no idea), and why it is not more than that."""

    path: str
    best_guess: int | None
    reason: str


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
        looked_at = temporary_catalog(database, root, run or directory_name)
        plan, taken_up, done = planned(looked_at, is_temporary=True)  # may refuse, before anything is written
    if not dry_run:
        looked_at = database
        plan, taken_up, done = planned(database, is_temporary=False)
        apply(database, plan)
    skipped = [*tree.skipped, *plan.skipped, *done.skipped, *taken_up.skipped]
    return Scanned(
        run=plan.run,
        world_size=plan.world_size,
        counts=dict(tree.counts),
        known=plan.known,
        adopted=plan.adopted,
        damaged=plan.damaged,
        missing=plan.missing,
        uncertain=tuple(Uncertain(each.file.path, each.best_guess, each.reason) for each in plan.uncertain),
        skipped=_skipped(skipped, plan.adopted),
        unread=_skipped([*tree.unread, *done.unread, *taken_up.unreadable, *unread(taken_up.skipped)], ()),
        opaque=tuple(sorted(tree.opaque, key=lambda each: each.path)),
        warnings=plan.warnings,
        taken_up=taken_up,
        trash=_new_trash(looked_at, plan.run, trash_before),
    )


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
