"""Take a directory tree into the catalog that no catalog ever saw, or that has changed behind it.

What the files' names and headers prove becomes launches and saves (`core/history.py`); what is not proven is told, and
not taken. Files of launches that a registrar watches are left to reconciliation, which knows more of them: a scan while
training writes is safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, recent, writes
from ckptstore.core.history import reconstruct
from ckptstore.core.limits import MOST_RANKS
from ckptstore.core.model import Checkpoint, FileState, Rule
from ckptstore.core.replicas import stand_alone
from ckptstore.errors import RefusedError, UsageError
from ckptstore.ops import meant, stated_size
from ckptstore.ops.adopt import Skipped
from ckptstore.ops.adoption import (
    SCANNED,
    FoundLaunch,
    at_the_time_of_others,
    in_order,
    in_order_of_time,
    launch_id,
    moment,
    record,
)
from ckptstore.ops.beside_journals import beside, unread
from ckptstore.ops.foresee import copy_below
from ckptstore.ops.found_trash import FoundTrash, take_up_trash
from ckptstore.ops.join import check_name
from ckptstore.ops.on_record import on_record
from ckptstore.ops.parts import is_part, look_into
from ckptstore.ops.reconcile import Reconciled, reconcile
from ckptstore.ops.second_paths import known_elsewhere
from ckptstore.ops.start import remember_place
from ckptstore.ops.strangers import strangers
from ckptstore.ops.sync import Synced, sync_below
from ckptstore.ops.tree import Opaque, changed, is_rewritten, look_at, read_headers
from ckptstore.ops.watched import watched
from ckptstore.storage.places import root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.core.history import History, UncertainFile
    from ckptstore.ops.tree import Tree

_OPAQUE_ONLY = (
    "only checkpoints of PyTorch or TensorFlow are there: nothing tells their steps, so there is no run to go on"
)


@dataclass(frozen=True)
class Uncertain:
    """A file whose step is not proven: the likeliest one (None: no idea), and why it is not more than that."""

    path: str
    best_guess: int | None
    reason: str


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
    beyond, `RefusedError` where the directory's name is that of a run which lives elsewhere, or the catalog knows its
    files under another path.
    """
    root = _meant(directory, run, world_size)
    tree = look_at(root, progress)
    _check_ranks(root, max(tree.ranks, default=0))
    if world_size is not None and not dry_run and stated_size.may_be_beyond(tree, world_size):
        scan(database, root, run=run, world_size=world_size, dry_run=True)  # refuses before anything is written
    seen_by = copy_below(database, root, run or root.name) if dry_run else database
    taken_up = sync_below(seen_by, root)
    name = run or (taken_up.runs[0] if len(taken_up.runs) == 1 else root.name)
    check_name("run", name)  # the root of all directories has none
    run_id = _run_to_fill(database, seen_by, name, root, is_stated=run is not None)
    done = Reconciled() if run_id is None or dry_run else reconcile(database, run_id)
    records = on_record(seen_by, name, root, tree)
    known, others = records.known, records.others
    elsewhere = known_elsewhere(database, str(root), tree.checkpoints, known.keys() | others.keys())
    tree.skipped += [*records.skipped, *(Skipped(path, reason) for path, reason in elsewhere.items())]
    others |= elsewhere
    is_watched = watched(seen_by, run_id)
    held = beside(taken_up.skipped, tree.checkpoints)
    there = {path: file for path, file in known.items() if path in tree.checkpoints and path not in held}
    rewritten = {path for path, file in there.items() if path in records.replaced or is_rewritten(file, tree)}
    unknown = (path for path in tree.checkpoints if path not in known and path not in others)
    unwatched = [path for path in (*unknown, *rewritten) if not is_watched(path)]
    unwatched = _but(held, unwatched, tree)
    _but(held, records.replaced, tree)
    if run is None:
        unwatched = _but(strangers(seen_by, name, unwatched, records.owners, taken_up.runs), unwatched, tree)
    new = [path for path in unwatched if not is_part(tree, path)]
    anew = rewritten | records.replaced | records.doubtful
    kept = {path: file for path, file in known.items() if path not in anew}
    ours = [
        path
        for path, file in kept.items()
        if file.launch.startswith(SCANNED) and path in tree.checkpoints and not is_part(tree, path)
    ]
    sizes = _sizes(database, run_id) if new or ours else {}
    is_due = bool(new or stated_size.too_small((kept[path] for path in ours), sizes))
    found = read_headers(tree, [*new, *ours]) if is_due else []
    _check_ranks(root, max((file.rank for file in found if file.rank is not None), default=0))
    history = reconstruct(found, world_size=world_size, ranks_seen=tree.ranks) if is_due else None
    parts = read_headers(tree, [path for path in unwatched if is_part(tree, path)])
    in_parts = look_into(name, tree, parts, kept, others.keys() | held.keys())
    launches = in_order_of_time(_launches(name, history, kept), in_parts.launches)
    if world_size is not None:
        stated_size.check(world_size, stated_size.ranks_of(tree, new, found), launches, sizes)
    is_new = set(unwatched)
    adopted = [file for launch in launches for file in launch.files if file.path in is_new]
    overlapping = _overlapping(database, run_id, launches)
    damaged, missing, back = changed(kept, tree)
    gone = [*missing, *(known[path] for path in rewritten - records.replaced)]
    if not dry_run:
        _write(database, name, launches, [*adopted, *back], damaged=damaged, gone=gone, known=records.ids)
        for home in sorted({root_of(str(Path(file.path).parent)) for file in adopted}):
            remember_place(database, name, home)
    trash, hidden = take_up_trash(database, root, foreseen=seen_by if dry_run else None)
    return Scanned(
        run=name,
        world_size=_world_size(history, in_parts.launches),
        counts=dict(tree.counts),
        known=len((known.keys() & tree.checkpoints.keys()) - records.replaced - records.doubtful),
        adopted=tuple(adopted),
        damaged=tuple(damaged),
        missing=tuple(missing),
        uncertain=_uncertain([*(history.uncertain if history else ()), *in_parts.uncertain]),
        skipped=_skipped([*tree.skipped, *in_parts.skipped, *done.skipped, *taken_up.skipped, *hidden], adopted),
        unread=_skipped([*tree.unread, *done.unread, *taken_up.unreadable, *unread(taken_up.skipped), *hidden], ()),
        opaque=tuple(sorted(tree.opaque, key=lambda each: each.path)),
        warnings=(
            *(history.warnings if history else ()),
            *in_parts.warnings,
            *overlapping,
            *([_OPAQUE_ONLY] if tree.opaque and not tree.checkpoints else []),
        ),
        taken_up=taken_up,
        trash=trash,
    )


def _meant(directory: str | Path, run: str | None, world_size: int | None) -> Path:
    """The root of the tree. Raises `UsageError` for what cannot be meant."""
    root = meant.tree(directory)
    if run is not None:
        check_name("run", run)
    if world_size is not None:
        meant.ranks("world size", world_size)
    return root


def _check_ranks(root: Path, highest: int) -> None:
    """Raise `UsageError` where names tell of more ranks than a launch may have."""
    if highest >= MOST_RANKS:
        raise UsageError(
            f"a name below {root} is of rank {highest}, and a launch has at most {MOST_RANKS} ranks",
            "rename it, or scan a directory that does not have it",
        )


def _run_to_fill(database: Database, seen_by: Database, name: str, root: Path, *, is_stated: bool) -> int | None:
    """The run's id in the catalog that the tree is judged by; None if it is new."""
    with seen_by.read() as connection:
        run_id = reads.run_id(connection, name)
    if run_id is None or is_stated:
        return run_id
    homes: set[str] = set()
    for each in {database, seen_by}:
        with each.read() as connection:
            homes |= reads.directories_of(connection, reads.run_id(connection, name) or 0)
    if homes and not any(Path(home) == root or root in Path(home).parents for home in homes):
        raise RefusedError(
            f"the catalog has a run {name!r} whose files are elsewhere, as in {min(homes)}",
            "give this one another name with --run, or that name if it is the same run",
        )
    return run_id


def _but(reasons: Mapping[str, str], paths: Iterable[str], tree: Tree) -> list[str]:
    """The paths but for those that have a reason to be skipped."""
    paths = list(paths)
    tree.skipped += [Skipped(path, reasons[path]) for path in paths if path in reasons]
    return [path for path in paths if path not in reasons]


def _launches(run: str, history: History | None, known: Mapping[str, Checkpoint]) -> list[FoundLaunch]:
    """The launches of a history with the ids that they have, or get; and the records of their files."""
    launches = []
    for found in history.launches if history else ():
        ids = {known[each.file.path].launch for each in found.files if each.file.path in known}
        first = min(each.file.path for each in found.files)
        key = min(ids) if ids else launch_id(run, found.key, first)
        files = tuple(record(run, key, each, found.steps_per_epoch) for each in found.files)
        began = moment(min(each.file.mtime_ns for each in found.files))
        launches.append(FoundLaunch(key, history.world_size if history else 1, found.steps_per_epoch, began, files))
    return launches


def _world_size(history: History | None, in_parts: Iterable[FoundLaunch]) -> int | None:
    sizes = [history.world_size] if history else [launch.world_size for launch in in_parts]
    return max(sizes, default=None)


def _sizes(database: Database, run_id: int | None) -> dict[str, int]:
    """The number of ranks of each launch of the run that the catalog has."""
    if run_id is None:
        return {}
    with database.read() as connection:
        return {launch.id: launch.world_size for launch in reads.launches_of(connection, run_id)}


def _overlapping(database: Database, run_id: int | None, launches: Sequence[FoundLaunch]) -> list[str]:
    if run_id is None or not launches:
        return []
    with database.read() as connection:
        known = reads.launches_of(connection, run_id)
        return at_the_time_of_others(known, launches, _last_saved(connection, run_id))


def _last_saved(connection: Connection, run_id: int) -> dict[str, datetime]:
    return {launch: moment(mtime_ns) for launch, mtime_ns in recent.last_written(connection, run_id).items()}


def _write(
    database: Database,
    run: str,
    launches: Sequence[FoundLaunch],
    files: Sequence[Checkpoint],
    *,
    damaged: Sequence[Checkpoint],
    gone: Sequence[Checkpoint],
    known: AbstractSet[str],
) -> None:
    """Write it all, in one transaction; `known` are the ids of records that are there already."""
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        if launches:
            run_id = writes.add_run(connection, run, now)
            writes.lock_run(connection, run_id)  # launches are numbered
            there = reads.launches_of(connection, run_id)
            sizes = {launch.id: launch.world_size for launch in there}
            new = {launch.id for launch in launches} - sizes.keys()
            too_small = stated_size.too_small((file for launch in launches for file in launch.files), sizes)
            for launch in launches:
                if launch.id in new:
                    writes.add_launch(
                        connection,
                        run_id=run_id,
                        launch_id=launch.id,
                        world_size=launch.world_size,
                        layout=stand_alone(),
                        now=launch.began,
                    )
                    if launch.steps_per_epoch is not None:
                        writes.set_steps_per_epoch(connection, launch.id, launch.steps_per_epoch)
                elif launch.id in too_small and launch.world_size > sizes[launch.id]:
                    writes.set_world_size(connection, launch.id, launch.world_size)
            if new:
                writes.order_launches(connection, in_order(there, launches, _last_saved(connection, run_id)))
        writes.mark(connection, [file.id for file in damaged], FileState.DAMAGED, Rule.SIZE_MISMATCH, at=now)
        writes.mark(connection, [file.id for file in gone], FileState.MISSING, at=now)
        writes.adopt_checkpoints(connection, [file for file in files if file.id not in known], now)
        writes.record_checkpoints(connection, [file for file in files if file.id in known], now)


def _uncertain(found: Iterable[UncertainFile]) -> tuple[Uncertain, ...]:
    return tuple(Uncertain(each.file.path, each.best_guess, each.reason) for each in found)


def _skipped(found: Iterable[Skipped], adopted: Iterable[Checkpoint]) -> tuple[Skipped, ...]:
    """What was skipped, by path; a file of a launch that no journal tells of may have been adopted by its name."""
    taken = {file.path for file in adopted}
    return tuple(sorted({each for each in found if each.path not in taken}, key=lambda each: (each.path, each.reason)))
