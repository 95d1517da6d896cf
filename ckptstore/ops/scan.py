"""Take a directory tree into the catalog that no catalog ever saw, or that has changed behind it.

What the files' names and headers prove becomes launches and saves (`core/history.py`); what is not proven is told, and
not taken. Files of launches that a registrar watches are left to reconciliation, which knows more of them: a scan while
training writes is safe.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, writes
from ckptstore.core.classify import Named, What, classify, prefixes
from ckptstore.core.found import Found
from ckptstore.core.history import reconstruct
from ckptstore.core.model import Checkpoint, Content, FileState, Kind, Rule, epoch_and_step
from ckptstore.core.naming import parse_rank_directory
from ckptstore.core.replicas import stand_alone
from ckptstore.errors import RefusedError, UnreadableError, UsageError
from ckptstore.formats.inspect import inspect, read_checkpoint
from ckptstore.formats.strategy import Strategy
from ckptstore.ops.adopt import Skipped, wrote
from ckptstore.ops.join import check_name
from ckptstore.ops.reconcile import reconcile
from ckptstore.storage.claims import FOLDER
from ckptstore.storage.walk import Seen, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.reads import Source
    from ckptstore.core.history import History, ProvenFile

_READERS = 16
_PORTION = 64  # files a task: handing over one alone costs as much as reading it
_LAUNCH = "scan-"
_MAY_SKIP = ("scale_sense", "accu_grads")  # a loss scale, gathered gradients: a step may bring no update
_NOT_TAKEN = {
    What.PART: "weights and optimizer are in files of their own (MindFormers 2.0): load it with MindFormers",
    What.OPAQUE: "a checkpoint of PyTorch or TensorFlow: nothing tells its step",
    What.DEBRIS: "a save that was never finished left it",
}


@dataclass(frozen=True)
class Uncertain:
    """A file whose step is not proven: the likeliest one (None: no idea), and why it is not more than that."""

    path: str
    best_guess: int | None
    reason: str


@dataclass(frozen=True)
class Scanned:
    """What a scan found, and did.

    `counts` says how many files are what, by `What`; `known` how many checkpoints were in the catalog already. What is
    `uncertain` or `skipped` was not taken in.
    """

    run: str
    world_size: int
    counts: Mapping[str, int]
    known: int = 0
    adopted: tuple[Checkpoint, ...] = ()
    damaged: tuple[Checkpoint, ...] = ()
    missing: tuple[Checkpoint, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass
class _Tree:
    """What is in the tree: checkpoints by path with what their paths say, and the ranks that anything names."""

    checkpoints: dict[str, tuple[Named, Seen]] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    skipped: list[Skipped] = field(default_factory=list)


def scan(
    database: Database,
    directory: Path,
    *,
    run: str | None = None,
    world_size: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Scanned:
    """Adopt what is below `directory` into a run (None: the directory's name). Can be repeated: then nothing changes.

    `world_size` is the number of ranks (None: by what is there, with a warning). `dry_run` writes nothing. `progress`
    hears how many more files were looked at. Raises `UsageError` for what cannot be meant, `RefusedError` where the
    directory's name is that of a run which lives elsewhere.
    """
    root = directory.absolute()
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory", "give the directory that the checkpoints are in")
    if world_size is not None and world_size < 1:
        raise UsageError(f"world size is {world_size}", "a job has at least one rank")
    name = root.name if run is None else run
    check_name("run", name)
    run_id = _run_to_fill(database, name, root, is_stated=run is not None)
    left_to_it = () if run_id is None or dry_run else reconcile(database, run_id).skipped
    tree = _look_at(root, progress)
    known, others = _known(database, name, root)
    tree.skipped += [Skipped(path, f"it is of run {others[path]!r}") for path in others if path in tree.checkpoints]
    recorded = {file.id for file in known.values()}
    is_watched = _watched(database, run_id)
    rewritten = {path for path, file in known.items() if path in tree.checkpoints and _is_rewritten(file, tree)}
    unknown = (path for path in tree.checkpoints if path not in known and path not in others)
    new = [path for path in (*unknown, *rewritten) if not is_watched(path)]
    ours = [
        path
        for path, file in known.items()
        if file.launch.startswith(_LAUNCH) and path in tree.checkpoints and path not in rewritten
    ]
    history = None
    if new:
        found = _read(tree, [*new, *ours])
        history = reconstruct(found, world_size=world_size, ranks_seen=tree.ranks)
    launches = _launches(name, history, {path: file for path, file in known.items() if path not in rewritten})
    is_new = set(new)
    adopted = [file for launch in launches for file in launch.files if file.path in is_new]
    damaged, missing, back = _changed({path: file for path, file in known.items() if path not in rewritten}, tree)
    missing += [known[path] for path in rewritten]
    if not dry_run:
        _write(database, name, launches, [*adopted, *back], damaged=damaged, missing=missing, known=recorded)
    return Scanned(
        run=name,
        world_size=history.world_size if history else 0,
        counts=dict(tree.counts),
        known=len(known.keys() & tree.checkpoints.keys()),
        adopted=tuple(adopted),
        damaged=tuple(damaged),
        missing=tuple(missing),
        uncertain=_uncertain(history),
        skipped=tuple(sorted({*tree.skipped, *left_to_it}, key=lambda each: (each.path, each.reason))),
        warnings=history.warnings if history else (),
    )


@dataclass(frozen=True)
class _Launch:
    """A launch that the files show, and its records."""

    id: str
    world_size: int
    steps_per_epoch: int | None
    began: datetime
    files: tuple[Checkpoint, ...]


def _run_to_fill(database: Database, name: str, root: Path, *, is_stated: bool) -> int | None:
    """The run's id; None if it is new."""
    with database.read() as connection:
        run_id = reads.run_id(connection, name)
        if run_id is None or is_stated:
            return run_id
        homes = reads.directories_of(connection, run_id)
    if homes and not any(Path(home) == root or root in Path(home).parents for home in homes):
        raise RefusedError(
            f"the catalog has a run {name!r} whose files are elsewhere, as in {min(homes)}",
            "give this one another name with --run, or that name if it is the same run",
        )
    return run_id


def _look_at(root: Path, progress: Callable[[int], None]) -> _Tree:
    tree = _Tree()
    for directory in walk(str(root), skip=lambda name: name == FOLDER):
        tree.skipped += [Skipped(passed.path, passed.reason) for passed in directory.passed]
        tree.ranks |= {rank for part in directory.parts if (rank := parse_rank_directory(part)) is not None}
        names = [seen.name for seen in directory.files]
        beside = prefixes(names)
        for seen in directory.files:
            path = f"{directory.path.rstrip('/')}/{seen.name}"
            named = classify([*directory.parts, seen.name], beside)
            tree.counts[named.what.value] += 1
            if named.what in (What.CHECKPOINT, What.WEIGHTS):
                tree.checkpoints[path] = named, seen
            elif named.what in _NOT_TAKEN:
                tree.skipped.append(Skipped(path, _NOT_TAKEN[named.what]))
            elif named.what is What.STRATEGY:
                tree.ranks |= _ranks_of(Path(path))
        progress(len(names))
    return tree


def _ranks_of(strategy: Path) -> set[int]:
    """The highest rank that a strategy file says there is, by the grid of a stage and the number of stages."""
    try:
        found = inspect(strategy)
    except (UnreadableError, OSError):
        return set()
    if not isinstance(found, Strategy) or not found.parameters:
        return set()
    of_a_stage = max(prod(parameter.dev_matrix) for parameter in found.parameters)
    return {of_a_stage * (max(found.stages, default=0) + 1) - 1}


def _known(database: Database, run: str, root: Path) -> tuple[dict[str, Checkpoint], dict[str, str]]:
    """What the catalog has below the root by path: this run's records, the live one of several; other runs' names."""
    with database.read() as connection:
        recorded = reads.files_below(connection, str(root))
    known: dict[str, Checkpoint] = {}
    others: dict[str, str] = {}
    for file in recorded:
        if file.run != run:
            others[file.path] = file.run
        elif file.path not in known or known[file.path].state in (FileState.MISSING, FileState.MOVED):
            known[file.path] = file
    return known, {path: name for path, name in others.items() if path not in known}


def _watched(database: Database, run_id: int | None) -> Callable[[str], bool]:
    """Whether a path is one that a registrar of this run watches, or reconciliation takes care of."""
    sources: dict[str, list[Source]] = {}
    if run_id is not None:
        with database.read() as connection:
            for source in reads.sources_of(connection, run_id):
                sources.setdefault(source.directory, []).append(source)
    ttp = {home: found for home, every in sources.items() if (found := [s for s in every if s.kind is Kind.TTP])}

    if not sources:
        return lambda _: False

    def is_watched(path: str) -> bool:
        home, _, name = path.rpartition("/")
        above = [source for parent in list(Path(path).parents)[2:3] for source in ttp.get(str(parent), ())]
        return any(wrote(source, name) for source in [*sources.get(home, ()), *above])

    return is_watched


def _read(tree: _Tree, paths: Sequence[str]) -> list[Found]:
    """What is in these files, and what their paths say; one that cannot be read is skipped with the reason."""

    def read(path: str) -> Found | Skipped:
        named, seen = tree.checkpoints[path]
        step, info, every_step = None, {}, False
        if named.format in ("ckpt", "safetensors"):
            try:
                header = read_checkpoint(Path(path))
            except UnreadableError as error:
                return Skipped(path, str(error))
            except OSError as error:
                return Skipped(path, error.strerror or str(error))
            step, info = header.optimizer_step, dict(header.info)
            every_step = not any(entry.name.startswith(_MAY_SKIP) for entry in header.entries)
        return Found(
            path=path,
            kind=named.kind or Kind.PERIODIC,
            content=Content.WEIGHTS if named.what is What.WEIGHTS else Content.FULL,
            format=named.format,
            family=named.family,
            relaunch=named.relaunch,
            rank=named.rank,
            epoch=named.epoch,
            step_in_epoch=named.step_in_epoch,
            named_step=named.named_step,
            optimizer_step=step,
            info=info,
            updates_every_step=every_step,
            size=seen.size,
            mtime_ns=seen.mtime_ns,
        )

    portions = [paths[start : start + _PORTION] for start in range(0, len(paths), _PORTION)]
    with ThreadPoolExecutor(_READERS) as pool:
        read_some = pool.map(lambda some: [read(path) for path in some], portions)
        results = [result for portion in read_some for result in portion]
    tree.skipped += [result for result in results if isinstance(result, Skipped)]
    return [result for result in results if isinstance(result, Found)]


def _launches(run: str, history: History | None, known: Mapping[str, Checkpoint]) -> list[_Launch]:
    """The launches of a history with the ids that they have, or get; and the records of their files."""
    launches = []
    for found in history.launches if history else ():
        ids = {known[each.file.path].launch for each in found.files if each.file.path in known}
        first = min(each.file.path for each in found.files)
        told = "\x1f".join((run, found.key, first)).encode("utf-8", "surrogatepass")
        launch_id = min(ids) if ids else f"{_LAUNCH}{blake2b(told, digest_size=6).hexdigest()}"
        began = datetime.fromtimestamp(min(each.file.mtime_ns for each in found.files) / 1e9, timezone.utc)
        files = tuple(_record(run, launch_id, each, found.steps_per_epoch) for each in found.files)
        launches.append(_Launch(launch_id, history.world_size if history else 1, found.steps_per_epoch, began, files))
    return launches


def _record(run: str, launch_id: str, proven: ProvenFile, steps_per_epoch: int | None) -> Checkpoint:
    file = proven.file
    epoch, step_in_epoch = epoch_and_step(proven.global_step, steps_per_epoch)
    return Checkpoint(
        run=run,
        launch=launch_id,
        kind=file.kind,
        global_step=proven.global_step,
        rank=proven.rank,
        path=file.path,
        optimizer_step=file.optimizer_step,
        epoch=epoch,
        step_in_epoch=step_in_epoch,
        size=file.size,
        mtime_ns=file.mtime_ns,
        format=file.format,
        content=file.content,
        state=FileState.COMPLETE,
        created_at=datetime.fromtimestamp(file.mtime_ns / 1e9, timezone.utc),
    )


def _is_rewritten(file: Checkpoint, tree: _Tree) -> bool:
    """Whether a file of which only size and time were recorded was written again with the same size.

    Then nothing is known of it any more, and it is looked at as if it were new.
    """
    here = tree.checkpoints[file.path][1]
    same_size = here.size == file.size and here.mtime_ns != file.mtime_ns
    return file.state is FileState.COMPLETE and file.digest is None and same_size


def _changed(
    known: Mapping[str, Checkpoint], tree: _Tree
) -> tuple[list[Checkpoint], list[Checkpoint], list[Checkpoint]]:
    """Of what the catalog has: files of another size than was recorded, files that are gone, and that are back."""
    unseen = [skipped.path for skipped in tree.skipped]
    damaged, missing, back = [], [], []
    for path, file in known.items():
        here = tree.checkpoints[path][1] if path in tree.checkpoints else None
        if here is None:
            hidden = any(path == each or path.startswith(f"{each}/") for each in unseen)
            missing += [file] if file.state is FileState.COMPLETE and not hidden else []
        elif file.state is FileState.COMPLETE and here.size != file.size:
            damaged.append(file)
        elif file.state is FileState.MISSING and (here.size, here.mtime_ns) == (file.size, file.mtime_ns):
            back.append(replace(file, state=FileState.COMPLETE))
    return damaged, missing, back


def _write(
    database: Database,
    run: str,
    launches: Sequence[_Launch],
    files: Sequence[Checkpoint],
    *,
    damaged: Sequence[Checkpoint],
    missing: Sequence[Checkpoint],
    known: AbstractSet[str],
) -> None:
    """Write it all, in one transaction; `known` are the ids of records that are there already."""
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        if launches:
            run_id = writes.add_run(connection, run, now)
            there = {launch.id for launch in reads.launches_of(connection, run_id)}
            for launch in launches:
                if launch.id not in there:
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
            _put_in_order(connection, run_id, launches)
        writes.mark(connection, [file.id for file in damaged], FileState.DAMAGED, Rule.SIZE_MISMATCH)
        writes.mark(connection, [file.id for file in missing], FileState.MISSING)
        writes.adopt_checkpoints(connection, [file for file in files if file.id not in known], now)
        writes.record_checkpoints(connection, [file for file in files if file.id in known], now)


def _put_in_order(connection: Connection, run_id: int, launches: Sequence[_Launch]) -> None:
    """Number the run's launches by the time they began; those that were found keep the order they were found in."""
    place = {launch.id: number for number, launch in enumerate(launches)}
    every = reads.launches_of(connection, run_id)
    others = [launch for launch in every if launch.id not in place]
    ordered = [launch.id for launch in launches]
    began = {launch.id: launch.began for launch in launches}
    for other in others:
        moment = other.created_at or datetime.now(timezone.utc)
        position = next((at for at, each in enumerate(ordered) if began.get(each, moment) > moment), len(ordered))
        ordered.insert(position, other.id)
        began[other.id] = moment
    writes.order_launches(connection, ordered)


def _uncertain(history: History | None) -> tuple[Uncertain, ...]:
    found = history.uncertain if history else ()
    return tuple(Uncertain(each.file.path, each.best_guess, each.reason) for each in found)
