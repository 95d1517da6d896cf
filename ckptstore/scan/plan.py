"""Plans a scan: what of a directory tree goes into the catalog, and what is left alone and why.

The journals there are taken up, and the run's own directories reconciled, before; no record is made of anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.catalog import directories, reads, recent
from ckptstore.catalog.runs import how_back
from ckptstore.core.hints import Command
from ckptstore.core.limits import MOST_RANKS
from ckptstore.core.model import SCANNED, Checkpoint, Content, FileState, Grade, Skipped, Unplaced, moment
from ckptstore.core.replicas import stand_alone
from ckptstore.core.text import count
from ckptstore.errors import RefusedError, UsageError
from ckptstore.evidence.reconstruct import NOTHING_STATED, Reconstruction, rank_of, reconstruct
from ckptstore.evidence.unregistered import ScannedLaunch, launch_id, record
from ckptstore.journal.sync import Synced, sync_below
from ckptstore.journal.unread import beside, unread
from ckptstore.outside import Path
from ckptstore.resume.join import check_name
from ckptstore.resume.reconcile import Reconciled, reconcile
from ckptstore.resume.resolve import stated_layout
from ckptstore.scan.copies import among_new, as_a_run, copies_of_known
from ckptstore.scan.experiments import apart, are_several, commands, strangers
from ckptstore.scan.foreign import Foreign
from ckptstore.scan.gaps import fill
from ckptstore.scan.iteration_saves import saves_in_parts
from ckptstore.scan.known_files import is_inside, known_files, unowned_files, unwatched
from ckptstore.scan.order import at_the_time_of_others, dated, in_order_of_time
from ckptstore.scan.tree import changed, is_rewritten, read_files

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.reads import Called
    from ckptstore.core.model import Launch
    from ckptstore.disk.trust import Trust
    from ckptstore.evidence.reconstruct import Stated
    from ckptstore.evidence.unregistered import FoundFile, Uncertain
    from ckptstore.scan.experiments import Stranger
    from ckptstore.scan.known_files import KnownFiles
    from ckptstore.scan.tree import Opaque, Tree

_OPAQUE_ONLY = (
    "only checkpoints of PyTorch or TensorFlow are there, and their steps are not known: there is no run to go on"
)


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

    `synced` is what journals said, `trash` what was in the trash and the catalog did not know of. `world_size` is
    that of what was adopted (None: nothing was new). `counts` says how many files are what, by `What`; `known` how many
    checkpoints were in the catalog already, of which `regraded` are surer now. What is `uncertain`, `skipped` or
    `opaque` was not taken in; of what was `skipped`, `unread` are directories that could not be read, and journals that
    tell of more than could be. `root` is the directory.
    """

    run: str
    world_size: int | None
    counts: Mapping[str, int]
    known: int = 0
    root: str = ""
    adopted: tuple[Checkpoint, ...] = ()
    regraded: tuple[Checkpoint, ...] = ()
    damaged: tuple[Checkpoint, ...] = ()
    missing: tuple[Checkpoint, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    unread: tuple[Skipped, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    warnings: tuple[str, ...] = ()
    synced: Synced = field(default_factory=Synced)
    trash: tuple[FoundTrash, ...] = ()


@dataclass(frozen=True)
class ScanPlan:
    """What a scan does with a run: what it found, and what else it records.

    `launches` are new ones, and known ones of which more is known now. Of the known records, those of files that are
    `back` become complete, `overwritten` ones, at whose paths other files are now, missing; `restated` ones have
    another step from now on, or are of copies. `unplaced` are the files that got no step.
    """

    found: Scanned
    launches: tuple[ScannedLaunch, ...]
    back: tuple[Checkpoint, ...]
    overwritten: tuple[Checkpoint, ...]
    restated: tuple[Checkpoint, ...]
    unplaced: tuple[Unplaced, ...]


_MAY_BE_AWAY = (
    "its disk may not be mounted: what was recorded there stays recorded; if that is gone for good, make .ckptstore in "
    "it and scan that very directory"
)


def _run_to_fill(database: Database, name: str, root: Path, *, is_stated: bool) -> Called | None:
    """The run in the catalog that the tree is judged by; None if it is new.

    Raises `RefusedError` where it was forgotten, or where the name is the directory's, and that of a run which lives
    elsewhere.
    """
    with database.read() as connection:
        found = reads.called(connection, name)
        if found is not None and found.forgotten:
            which = f"what is in {root} would be of run {name!r}, which was forgotten"
            raise RefusedError(which, f"{how_back(name)}; or give another name with --run")
        homes = set() if found is None or is_stated else reads.directories_of(connection, found.id)
    if homes and not any(Path(home) == root or root in Path(home).parents for home in homes):
        raise RefusedError(
            f"the catalog has a run {name!r} whose files are elsewhere, as in {min(homes)}",
            "give this one another name with --run, or that name if it is the same run",
        )
    return found


def make_plan(
    tree: Tree,
    root: Path,
    database: Database,
    *,
    stated: str | None,
    directory_name: str,
    world_size: int | None,
    said: Stated,
    trust: Trust | None,
    catalog: Database | None,
) -> ScanPlan:
    """What to do with a tree, by a catalog that its journals are taken up into: the user's, or one beside `catalog`.

    `stated` is the run that the user named, so that files are its wherever they lie; `world_size` the number of ranks
    that the user said (None: by what is there), `said` what is said of its files. Raises `UsageError` where a new file
    is of a rank beyond it.
    """
    heard_before = _recorded_below(database, root)
    synced = sync_below(database, root, trust)
    run = stated or (synced.runs[0] if len(synced.runs) == 1 else directory_name)
    check_name("run", run)  # the root of all directories has none
    filled = _run_to_fill(database, run, root, is_stated=stated is not None)
    run_id = filled.id if filled else None
    run = filled.first if filled else run
    done = Reconciled() if catalog is not None or run_id is None else reconcile(database, run_id)
    recorded = known_files(database, run, root, tree)
    copies = copies_of_known([database, *([catalog] if catalog else [])], tree, recorded, heard_before)
    is_own_run = stated is not None and all(original.run != run for original in copies.of.values())
    recorded.leave_out(copies.of)
    known, others = recorded.known, recorded.others
    foreign = Foreign(tree, said, world_size, recorded)
    unheard = beside(synced.skipped, (*tree.checkpoints, *tree.foreign))
    rewritten = _rewritten(tree, recorded, unheard)
    unknown = (
        path
        for path in (*tree.checkpoints, *foreign.placed)
        if not (path in known or path in others or path in copies.of or is_inside(path, recorded.owners))
    )
    candidates = unwatched(database, run_id, (*unknown, *rewritten))
    reasons = {path: unheard[path] for path in (*candidates, *recorded.replaced) if path in unheard}
    if stated is None:
        readable = [path for path in candidates if path not in reasons]
        reasons |= _unowned(database, run, tree, readable, recorded, told=synced.runs, world_size=world_size)
    to_adopt = [path for path in candidates if path not in reasons]

    kept = {path: known[path] for path in known.keys() - rewritten - recorded.replaced - recorded.doubtful}
    new = [path for path in to_adopt if path not in tree.foreign and not tree.is_part(path)]
    scanned_before = [
        path
        for path, file in kept.items()
        if file.launch.startswith(SCANNED) and path in tree.checkpoints and not tree.is_part(path)
    ]
    launches_there, saved = _launches_in(database, run_id if to_adopt or scanned_before or foreign.placed else None)
    sizes = {launch.id: launch.world_size for launch in launches_there}
    is_asked = said != NOTHING_STATED or _too_small((kept[path] for path in scanned_before), sizes)
    contents = _contents(
        database, tree, to_adopt, scanned_before if new or is_asked else [], kept, world_size=world_size
    )
    reasons |= contents.reasons
    to_adopt, new = ([path for path in paths if path not in reasons] for paths in (to_adopt, new))
    found, parts = ([file for file in files if file.path not in reasons] for files in contents[:2])
    history = (
        reconstruct(found, world_size=world_size, ranks_seen=tree.ranks, stated=said) if found else Reconstruction()
    )
    in_parts = saves_in_parts(run, tree, parts, kept, others.keys() | unheard.keys())
    of_others = foreign.launches(run, to_adopt, kept)
    own = as_a_run(run, copies, tree, [database, *([catalog] if catalog else [])]) if is_own_run else []
    of_history = fill(_launches(run, history, kept, said), known.values(), launches_there)
    launches = in_order_of_time(of_history, [*in_parts.launches, *of_others, *own])
    if world_size is not None:
        _check_world_size(world_size, _ranks(tree, new, found, foreign, to_adopt), launches, sizes)
    too_small = _too_small((file for launch in launches for file in launch.files), sizes)
    damaged, missing, back, away = changed(kept, tree)
    is_new = {*to_adopt, *(file.path for launch in own for file in launch.files)}
    regraded, moved = _placed_anew(launches, kept, said)
    adopted = (*(file for launch in launches for file in launch.files if file.path in is_new), *moved)
    opaque, unsure = foreign.left(
        {*(known.keys() - rewritten), *others, *(file.path for file in adopted)},
        has_others=bool(tree.checkpoints or known or adopted),
    )
    found_there = Scanned(
        run=run,
        root=str(root),
        world_size=history.world_size
        or max((launch.world_size for launch in (*in_parts.launches, *of_others)), default=None),
        counts=dict(tree.counts),
        known=len((known.keys() & {*tree.checkpoints, *tree.foreign}) - recorded.replaced - recorded.doubtful),
        adopted=adopted,
        regraded=tuple(regraded),
        damaged=tuple(damaged),
        missing=tuple(missing),
        uncertain=(
            *(each for each in history.uncertain if each.path in is_new or each.contradicted),
            *in_parts.uncertain,
            *unsure,
        ),
        skipped=_skipped(
            [
                *tree.skipped,
                *done.skipped,
                *synced.skipped,
                *synced.refused,
                *recorded.skipped,
                *contents.skipped,
                *in_parts.skipped,
                *(Skipped(file.path.rpartition("/")[0], _MAY_BE_AWAY) for file in away),
                *(() if is_own_run else copies.not_taken()),
                *(Skipped(path, reason) for path, reason in reasons.items()),
            ],
            adopted,
        ),
        unread=_skipped([*tree.unread, *done.unread, *synced.unreadable, *unread(synced.skipped)], ()),
        opaque=opaque,
        warnings=(
            *history.warnings,
            *(() if history.world_size else foreign.warnings),
            *in_parts.warnings,
            *at_the_time_of_others(launches_there, launches, saved),
            *([_OPAQUE_ONLY] if opaque and not (tree.checkpoints or known or adopted) else []),
        ),
        synced=synced,
    )
    return ScanPlan(
        found_there,
        launches=tuple(
            launch
            for launch in dated(launches_there, launches, saved)
            if launch.id not in sizes
            or (launch.id in too_small and launch.world_size > sizes[launch.id])
            or (said.replicas is not None and launch.id.startswith(SCANNED))
            or _says_more(launch, launches_there)
        ),
        back=tuple(back),
        overwritten=tuple(known[path] for path in rewritten - recorded.replaced),
        restated=(*(kept[file.path] for file in moved), *copies.told),
        unplaced=tuple(
            Unplaced(each.path, seen.size, seen.mtime_ns, each.best_guess, each.reason, each.remedy)
            for each in (*(each for each in history.uncertain if each.path in is_new), *unsure)
            if (seen := tree.seen(each.path)) is not None
        ),
    )


def _recorded_below(database: Database, root: Path) -> set[str]:
    with database.read() as connection:
        return directories.below(connection, str(root))


class _Contents(NamedTuple):
    """What was read of files, and of MindFormers' parts; what could not be, and why some may not be taken in."""

    found: list[FoundFile]
    parts: list[FoundFile]
    skipped: list[Skipped]
    reasons: dict[str, str]


def _contents(
    database: Database,
    tree: Tree,
    to_adopt: Iterable[str],
    scanned_before: Iterable[str],
    kept: Mapping[str, Checkpoint],
    *,
    world_size: int | None,
) -> _Contents:
    """What is in the files that are to be adopted, and in those that a scan found before."""
    new = [path for path in to_adopt if path not in tree.foreign]
    found, cut = read_files(tree, [*(path for path in new if not tree.is_part(path)), *scanned_before])
    check_ranks(Path(tree.root), (file.rank for file in found))
    parts, unreadable = read_files(tree, [path for path in new if tree.is_part(path)])
    reasons = _of_other_networks(database, tree, to_adopt, [*found, *parts], kept, world_size=world_size)
    reasons |= among_new([file for file in found if file.path in set(new)])
    return _Contents(found, parts, [*cut, *unreadable], reasons)


def _rewritten(tree: Tree, recorded: KnownFiles, unheard: Container[str]) -> set[str]:
    """The paths of known files at which others are now."""
    there = {
        path: file
        for path in (*tree.checkpoints, *tree.foreign)
        if path not in unheard and (file := recorded.known.get(path)) is not None
    }
    return {path for path, file in there.items() if path in recorded.replaced or is_rewritten(file, tree)}


def _placed_anew(
    launches: Iterable[ScannedLaunch], known: Mapping[str, Checkpoint], said: Stated
) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """Of files that were scanned before, the records that are surer now, and those of files that have another step.

    A step is another one only where the user says so, or it is proven and the other was not.
    """
    order = {grade: place for place, grade in enumerate(Grade)}
    surer, moved = [], []
    for file in (file for launch in launches for file in launch.files):
        before = known.get(file.path)
        if before is None or before.grade is None or file.grade is None:
            continue
        if before.global_step == file.global_step:
            if (order[file.grade], len(file.doubt)) < (order[before.grade], len(before.doubt)):
                facts = {"epoch": file.epoch, "step_in_epoch": file.step_in_epoch}
                surer.append(before.amended(grade=file.grade, doubt=file.doubt, **facts))
        elif file.path in said.steps or (file.grade is Grade.PROVEN and before.grade is not Grade.PROVEN):
            after = max(each for each in (file.created_at, before.created_at) if each is not None)
            moved.append(replace(file, created_at=after + timedelta(microseconds=1)))
    return surer, moved


def _says_more(launch: ScannedLaunch, known: Iterable[Launch]) -> bool:
    """Whether the steps an epoch of a known launch are known now, and were not."""
    before = next(each for each in known if each.id == launch.id)
    return before.steps_per_epoch is None and launch.steps_per_epoch is not None


def _unowned(
    database: Database,
    run: str,
    tree: Tree,
    paths: Iterable[str],
    recorded: KnownFiles,
    *,
    told: Iterable[str],
    world_size: int | None,
) -> dict[str, str]:
    """Which of these paths may not be taken in for a run that nobody named, by where they lie, and why.

    Raises `RefusedError` where checkpoints of no run are in the directories of several experiments.
    """
    reasons, homes, claimed = unowned_files(database, run, tree, paths, recorded, told=told)
    if not are_several(homes):
        return reasons
    directories = apart(homes, claimed)
    one_run = f"if they are of one run: {Command('scan', tree.root, '--run', run, *_size(world_size))}"
    if len(directories) == 1:  # as rank_0/a and rank_0/b
        told = " and ".join(sorted({home.key for home, _ in homes})[:2])
        raise RefusedError(
            f"{directories[0]} has checkpoints of several experiments, as far as directories tell: {told}",
            f"move each to a directory of its own and scan that; {one_run}",
        )
    raise RefusedError(
        f"{tree.root} has checkpoints of {len(directories)} experiments, as far as directories tell",
        f"scan each: {_commands(database, tree, directories, claimed, world_size)}; {one_run}",
    )


def _commands(
    database: Database, tree: Tree, directories: Collection[str], claimed: Iterable[str], world_size: int | None
) -> str:
    """The commands that scan directories, each as a run of its own."""
    with database.read() as connection:
        taken = reads.run_names(connection)
    return commands(directories, tree.root, taken, claimed, _size(world_size))


def _size(world_size: int | None) -> tuple[object, ...]:
    return () if world_size is None else ("--world-size", world_size)


def _of_other_networks(
    database: Database,
    tree: Tree,
    new: Iterable[str],
    read: Iterable[FoundFile],
    known: Mapping[str, Checkpoint],
    *,
    world_size: int | None,
) -> dict[str, str]:
    """The new files that are of another network than what the run has of their rank, and why.

    Of what was registered the newest file of each rank is looked into. Raises `RefusedError` where there is nothing,
    and the new files are of several networks.
    """
    to_adopt = set(new)
    found = [file for file in read if file.path in to_adopt]
    others = [file for file in read if file.path not in to_adopt]
    ranks = {rank_of(file) for file in found} - {rank_of(file) for file in others}
    newest: dict[int, Checkpoint] = {}
    for path, file in known.items():
        is_sound = file.state is FileState.COMPLETE and file.content is Content.FULL and path in tree.checkpoints
        if is_sound and not ranks.isdisjoint((file.rank, None)):
            newest[file.rank] = max(newest.get(file.rank, file), file, key=lambda each: each.mtime_ns or 0)
    strange = strangers(found, [*others, *read_files(tree, [file.path for file in newest.values()])[0]])
    if strange and not known:
        raise _two_networks(database, tree, to_adopt, strange[0], world_size=world_size)
    return {
        each.path: f"it is of another network than {each.other}: {each.difference}: move it to a directory of its own "
        "and scan that"
        for each in strange
    }


def _two_networks(
    database: Database, tree: Tree, paths: Iterable[str], proof: Stranger, *, world_size: int | None
) -> RefusedError:
    """Where directories keep them apart, the commands are those for the directories."""
    directories = apart(set(map(tree.home, paths)))
    hint = "move the files of each to a directory of its own and scan that"
    if len(directories) > 1:
        hint = f"scan each: {_commands(database, tree, directories, (), world_size)}"
    told = f"{proof.path} and {proof.other} are of two networks: of the first, {proof.difference}"
    return RefusedError(told, f"a run has one network: {hint}")


def _skipped(found: Iterable[Skipped], adopted: Iterable[Checkpoint]) -> tuple[Skipped, ...]:
    """What was skipped, by path; a file of a launch that no journal tells of may have been adopted by its name."""
    taken = {file.path for file in adopted}
    return tuple(sorted({each for each in found if each.path not in taken}, key=lambda each: (each.path, each.reason)))


def check_ranks(root: Path, ranks: Iterable[int | None]) -> None:
    """Raise `UsageError` where names tell of more ranks than a launch may have."""
    highest = max((rank for rank in ranks if rank is not None), default=0)
    if highest >= MOST_RANKS:
        raise UsageError(
            f"a name below {root} is of rank {highest}, and a launch has at most {MOST_RANKS} ranks",
            "rename it, or scan a directory that does not have it",
        )


def _launches_in(database: Database, run_id: int | None) -> tuple[list[Launch], dict[str, datetime]]:
    """The launches of a run that the catalog has, oldest first, and when each saved last."""
    if run_id is None:
        return [], {}
    with database.read() as connection:
        saved = recent.last_written(connection, run_id)
        return reads.launches_of(connection, run_id), {launch: moment(at) for launch, at in saved.items()}


def _launches(run: str, history: Reconstruction, known: Mapping[str, Checkpoint], said: Stated) -> list[ScannedLaunch]:
    """The launches of a history with the ids that they have, or get; and the records of their files."""
    layout = stated_layout(said.replicas, history.world_size) or stand_alone()
    launches = []
    for found in history.launches:
        ids = {known[each.file.path].launch for each in found.files if each.file.path in known}
        first = min(each.file.path for each in found.files)
        key = min(ids) if ids else launch_id(run, found.key, first)
        files = tuple(record(run, key, each, said.steps_per_epoch) for each in found.files)
        began = moment(min(each.file.mtime_ns for each in found.files))
        launches.append(ScannedLaunch(key, history.world_size, said.steps_per_epoch, began, files, layout))
    return launches


# A launch of one rank serves every rank: a state of several that was recorded with too few would give each rank
# another's file. So the stated number of ranks is held against the ranks of the files.


def may_be_beyond(tree: Tree, world_size: int) -> bool:
    """Whether a file of the tree may be of a rank that a job of this size has not, as far as paths tell."""
    ranks = (named.rank for path, (named, _) in {**tree.checkpoints, **tree.foreign}.items() if not tree.is_part(path))
    return any(rank is None or rank >= world_size for rank in ranks)


def _ranks(
    tree: Tree, new: Iterable[str], read: Iterable[FoundFile], foreign: Foreign, to_adopt: Iterable[str]
) -> dict[str, int | None]:
    """The ranks of new files, by what was read of them, or by their paths alone."""
    ranks = {path: tree.checkpoints[path][0].rank for path in new}
    ranks |= {file.path: rank_of(file) for file in read if file.path in ranks}
    return ranks | {path: foreign.placed[path].rank for path in to_adopt if path in foreign.placed}


def _check_world_size(
    world_size: int, ranks: Mapping[str, int | None], launches: Iterable[ScannedLaunch], known: Mapping[str, int]
) -> None:
    """Raise `UsageError` where a rank beyond the stated size left one of the new files, whose `ranks` are given.

    `known` is the size of each launch of the run that the catalog has: those keep it, and what is of no launch may be
    of any of them.
    """
    sizes = dict.fromkeys(ranks, max([world_size, *known.values()]))
    for launch in launches:
        size = max(world_size, known.get(launch.id, 0))
        sizes |= dict.fromkeys((file.path for file in launch.files if file.path in ranks), size)
    beyond = [(rank, path) for path, rank in ranks.items() if rank is not None and rank >= sizes[path]]
    if beyond:
        rank, path = min(beyond, key=lambda each: (-each[0], each[1]))
        raise UsageError(
            f"{path} is of rank {rank}, and the job is said to have {count(world_size, 'rank', 'ranks')}",
            f"give the number of ranks that saved it, --world-size {rank + 1} or more; if the file is of another job, "
            "scan each alone",
        )


def _too_small(files: Iterable[Checkpoint], known: Mapping[str, int]) -> set[str]:
    """The scanned launches that have fewer ranks in the catalog than left these files: it was told a wrong number."""
    return {
        file.launch
        for file in files
        if file.launch.startswith(SCANNED) and file.launch in known and file.rank >= known[file.launch]
    }
