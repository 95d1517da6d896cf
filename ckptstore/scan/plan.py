"""Plans a scan: which files of a tree go into the catalog, which do not, and why.

First the journals of the tree are synced, and the run's own directories are reconciled with the disk. Planning writes
nothing else to the catalog.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.catalog import directories, live, reads, recent
from ckptstore.catalog.runs import how_back
from ckptstore.core.classify import What
from ckptstore.core.hints import Command
from ckptstore.core.limits import MOST_RANKS
from ckptstore.core.model import SCANNED, Checkpoint, Content, FileState, Grade, Skipped, Unplaced, moment
from ckptstore.core.naming import is_within
from ckptstore.core.replicas import stand_alone
from ckptstore.core.text import count
from ckptstore.disk.presence import directory_of
from ckptstore.errors import RefusedError, UsageError
from ckptstore.evidence.reconstruct import NOTHING_STATED, Reconstruction, rank_of, reconstruct
from ckptstore.evidence.unregistered import ScannedLaunch, launch_id, record
from ckptstore.journal.jsonl import nearest
from ckptstore.journal.sync import Synced, beside_unread, sync_below, unread_journals
from ckptstore.outside import Path, utc_now
from ckptstore.resume.join import check_name, check_new_run
from ckptstore.resume.reconcile import Reconciled, reconcile
from ckptstore.resume.resolve import check_stated_layout, stated_layout
from ckptstore.scan.copies import LIVE, among_new, as_a_run, copies_of_known, not_taken, quarantines
from ckptstore.scan.experiments import apart, are_several, commands, strangers
from ckptstore.scan.foreign import Foreign
from ckptstore.scan.iteration_saves import saves_in_parts
from ckptstore.scan.known_files import is_trained, known_files, newest_elsewhere, unowned_files, unwatched
from ckptstore.scan.lost_trash import lost_trash, told_lost, trash_that_is_back
from ckptstore.scan.order import (
    at_the_time_of_others,
    dated,
    fill,
    going_back,
    in_order_of_time,
    not_ahead,
    still_saved,
)
from ckptstore.scan.tree import changed, is_rewritten, read_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.removals import Item
    from ckptstore.core.model import Launch
    from ckptstore.disk.trust import Trust
    from ckptstore.evidence.reconstruct import PlacedLaunch, Stated
    from ckptstore.evidence.unregistered import FoundFile, Uncertain
    from ckptstore.scan.experiments import Stranger
    from ckptstore.scan.tree import Opaque, Tree

_OPAQUE_ONLY = (
    "only checkpoints of PyTorch or TensorFlow are there, and their steps are not known: no run can go on from them"
)


@dataclass(frozen=True)
class FoundTrash:
    """Files that a gc moved to the trash and that the catalog did not know: their number, bytes and run."""

    collection: str
    run: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Scanned:
    """The result of a scan: the files that it found, and the records that it made.

    - `root` is the directory, `synced` the result of reading its journals, `trash` the files in the trash that the
      catalog did not know.
    - `world_size` is the number of ranks of the adopted files (None: nothing was new).
    - `counts` are the numbers of files by their kind (`What`). `known` is the number of checkpoints, of any run, that
      were in the catalog already. `regraded` are the records whose steps are surer now.
    - Files that are `uncertain`, `skipped` or `opaque` were not adopted. `unread` are a part of `skipped`: directories
      that could not be read, and journals that could not be read to their end.
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
    """The plan of a scan for one run: the result of looking, and the records to write."""

    found: Scanned
    launches: tuple[ScannedLaunch, ...]  # new ones, and known ones with more facts now
    back: tuple[Checkpoint, ...]  # known records that become complete: their files are there again
    overwritten: tuple[Checkpoint, ...]  # known records that become missing: other files are at their paths
    restated: tuple[Checkpoint, ...]  # known records that get another step
    taken: tuple[Checkpoint, ...]  # files that the reconciliation before it adopted: recorded already
    unplaced: tuple[Unplaced, ...]  # files that got no step
    lost_trash: tuple[Item, ...]  # files in the trash that are gone with their directories
    trash_back: tuple[Item, ...]  # files that count as deleted, and are in the trash of a directory


@dataclass(frozen=True)
class Asked:
    """The options of a scan."""

    run: str | None  # None: not named
    directory_name: str  # names the run if nothing else does
    world_size: int | None
    said: Stated
    trust: Trust | None  # the users whose journals are believed


_MAY_BE_AWAY = (
    "perhaps its disk is not mounted: its records stay; if its files are gone for good, make the directory .ckptstore "
    "in it and scan that very directory"
)


def make_plan(tree: Tree, asked: Asked, database: Database, *, catalog: Database | None = None) -> ScanPlan:
    """Plan the scan of a tree, with a catalog that its journals are synced into.

    `database` is this catalog: the user's, or a temporary one. If it is temporary, `catalog` is the user's.

    Raises `UsageError` if a new file is of a rank beyond the given number of ranks, `RefusedError` if the run was
    forgotten, if its files are elsewhere, or if there are several experiments or networks.
    """
    planner = _Planner(tree, asked, database, catalog)
    planner.choose()
    planner.read()
    planner.put_into_launches()
    return planner.plan()


class _Planner:
    """Plans a scan in steps: each step needs the results of those before it."""

    def __init__(self, tree: Tree, asked: Asked, database: Database, catalog: Database | None) -> None:
        """Sync the journals of the tree, and compare its files with the records."""
        self.tree, self.asked, self.database = tree, asked, database
        self.databases = [database] if catalog is None else [database, catalog]
        with database.read() as connection:
            heard_before = directories.below(connection, tree.root)
        self.synced = sync_below(database, Path(tree.root), asked.trust)
        self.run, self.run_id = self._run_to_fill()
        is_tried = catalog is not None or self.run_id is None
        self.reconciled = (
            Reconciled() if is_tried else reconcile(database, self.run_id or 0, synced=self.synced, of_all=True)
        )
        self.recorded = known_files(database, self.run, tree, self.synced.left_out, is_named=asked.run is not None)
        self.copies = copies_of_known(self.databases, tree, self.recorded, heard_before, dict(self.synced.copies))
        self.is_run_of_copies = (
            asked.run is not None
            and not is_trained(self.database, self.run_id)
            and all(each.run != self.run for each in self.copies.values())
        )
        self.recorded.leave_out(self.copies)
        self.known = self.recorded.known
        self.foreign = Foreign(tree, asked.said, asked.world_size, self.recorded)
        # Files that may have a record in a journal beside them that was not read, and why.
        self.unheard = beside_unread(self.synced, (*tree.checkpoints, *tree.foreign))
        self.rewritten = {  # paths of known files where other files are now
            path
            for path in (*tree.checkpoints, *tree.foreign)
            if path in self.known
            and path not in self.unheard
            and (path in self.recorded.replaced or is_rewritten(self.known[path], tree))
        }
        others = {*self.rewritten, *self.recorded.replaced, *self.recorded.doubtful}
        # The records that still hold, by path.
        self.kept = {path: file for path, file in self.known.items() if path not in others}

    def _run_to_fill(self) -> tuple[str, int | None]:
        """The run that the tree's files may join, and its id (None: it is new)."""
        told, root = self.synced.runs, Path(self.tree.root)
        name = self.asked.run or (told[0] if len(told) == 1 else self.asked.directory_name)
        check_name("run", name)  # the directory / has no name
        with self.database.read() as connection:
            found = reads.called(connection, name)
            if found is None:
                check_new_run(name)
            elif found.forgotten:
                which = f"the files in {root} would be of run {name!r}, which was forgotten"
                raise RefusedError(which, f"{how_back(name)}; or give another name with --run")
            homes = set() if found is None or self.asked.run else reads.directories_of(connection, found.id)
        if homes and not any(is_within(home, self.tree.root) for home in homes):
            raise RefusedError(
                f"the catalog has a run {name!r} whose files are elsewhere, as in {min(homes)}",
                "give this one another name with --run, or that name if it is the same run",
            )
        return (name, None) if found is None else (found.first, found.id)

    def choose(self) -> None:
        """Choose the new files that may belong to the run by their directories."""
        recorded = self.recorded
        unknown = [
            path
            for path in (*self.tree.checkpoints, *self.foreign.placed)
            if not (path in self.known or path in recorded.others or path in self.copies)
            and not nearest(path, recorded.owners)  # it is in a directory that is one checkpoint
        ]
        candidates, of_others = unwatched(self.database, self.run_id, (*unknown, *self.rewritten))
        # Files that launches of this or another run may have written: reconciliation judges them. They may have copies.
        self.watched = set(unknown) - {*candidates, *self.foreign.placed}
        # Why files are not adopted.
        self.reasons = {path: self.unheard[path] for path in (*candidates, *recorded.replaced) if path in self.unheard}
        self.reasons |= of_others
        if self.asked.run is None:
            self.reasons |= self._unowned([path for path in candidates if path not in self.reasons])
        self.new = [path for path in candidates if path not in self.reasons]

    def _unowned(self, paths: Sequence[str]) -> dict[str, str]:
        """The paths that may not be adopted without `--run`, and why."""
        told, root = self.synced.runs, self.tree.root
        reasons, homes, claimed = unowned_files(self.database, self.run, self.tree, paths, self.recorded, told=told)
        if not are_several(homes):
            return reasons
        directories = apart(homes, claimed)
        one_run = f"if they are of one run: {Command('scan', root, '--run', self.run, *self._size())}"
        if len(directories) == 1:  # as rank_0/a and rank_0/b
            keys = " and ".join(sorted({home.key for home, _ in homes})[:2])
            raise RefusedError(
                f"{directories[0]} has checkpoints of several experiments, as far as directories tell: {keys}",
                f"move each to a directory of its own and scan that; {one_run}",
            )
        raise RefusedError(
            f"{root} has checkpoints of {len(directories)} experiments, as far as directories tell",
            f"scan each: {self._commands(directories, claimed)}; {one_run}",
        )

    def _commands(self, directories: Collection[str], claimed: Iterable[str] = ()) -> str:
        """The commands that scan these directories, each as a run of its own."""
        with self.database.read() as connection:
            taken = reads.run_names(connection)
        return commands(directories, self.tree.root, taken, claimed, self._size())

    def _size(self) -> tuple[object, ...]:
        return () if self.asked.world_size is None else ("--world-size", self.asked.world_size)

    def read(self) -> None:
        """Read the new files, and scanned files that may be judged anew; drop files of other networks, and copies."""
        tree, of_mindspore = self.tree, [path for path in self.new if path not in self.tree.foreign]
        whole = dict.fromkeys(path for path in of_mindspore if not tree.is_part(path))
        before = [
            path
            for path, file in self.kept.items()
            if file.launch.startswith(SCANNED) and path in tree.checkpoints and not tree.is_part(path)
        ]
        self.launches_known: list[Launch] = []  # those of the run in the catalog, oldest first
        self.steps: set[tuple[str, int]] = set()  # the launch and step of each of its saves
        self.saved: dict[str, datetime] = {}  # when each launch saved last
        if self.run_id is not None and (self.new or before or self.foreign.placed or self.copies):
            with self.database.read() as connection:
                self.launches_known = reads.launches_of(connection, self.run_id)
                self.steps = reads.steps_of(connection, self.run_id)
                saved = recent.last_written(connection, self.run_id)
            self.saved = {launch: moment(at) for launch, at in saved.items()}
        self.sizes = {launch.id: launch.world_size for launch in self.launches_known}
        is_asked = self.asked.said != NOTHING_STATED or self._too_small(self.kept[path] for path in before)
        found, cut = read_files(tree, [*whole, *(before if whole or is_asked else [])])
        check_ranks(tree.root, (file.rank for file in found))
        parts, unreadable = read_files(tree, [path for path in of_mindspore if tree.is_part(path)])
        self.unreadable = [*cut, *unreadable]
        self.reasons |= self._of_other_networks([*found, *parts])
        watched, _ = read_files(tree, [path for path in sorted(self.watched) if whole and not tree.is_part(path)])
        self.reasons |= among_new(
            [file for file in found if file.path in whole], watched, self.watched & self.reasons.keys()
        )
        self.new = [path for path in self.new if path not in self.reasons]
        self.found, self.parts = ([file for file in some if file.path not in self.reasons] for some in (found, parts))

    def _of_other_networks(self, read: Iterable[FoundFile]) -> dict[str, str]:
        """The new files of another network than the run's files of the same rank, and why.

        They are compared with the newest registered file of each rank in the tree; if the tree has none, with the
        newest one elsewhere. Raises `RefusedError` if the run has no file in the tree, and the new files are of several
        networks or of another network than the run's; and if copies that would join the run are of another network.
        """
        new = set(self.new)
        copies = self._copies_to_compare()
        found = [*(file for file in read if file.path in new), *copies]
        others = [file for file in read if file.path not in new]
        ranks = {rank_of(file) for file in found} - {rank_of(file) for file in others}
        newest: dict[int, Checkpoint] = {}
        for path, file in self.kept.items():
            is_sound = file.state is FileState.COMPLETE and file.content is Content.FULL
            if is_sound and path in self.tree.checkpoints and not ranks.isdisjoint((file.rank, None)):
                newest[file.rank] = max(newest.get(file.rank, file), file, key=lambda each: each.mtime_ns or 0)
        registered, _ = read_files(self.tree, [file.path for file in newest.values()])
        rest = ranks - newest.keys() - ({None} if newest else set())
        lacking = [file for file in found if rank_of(file) in rest and file.content is Content.FULL]
        elsewhere = newest_elsewhere(self.database, self.run_id, self.tree, lacking)
        strange = strangers(found, [*others, *registered, *elsewhere])
        if strange and (not self.kept or {each.path for each in strange} & {file.path for file in copies}):
            raise self._two_networks(strange[0])
        return {
            each.path: f"it is of another network than {each.other}: {each.difference}: move it to a directory of its "
            "own and scan that"
            for each in strange
        }

    def _copies_to_compare(self) -> list[FoundFile]:
        """The newest file of each rank among the copies that would join the run."""
        newest: dict[int, Checkpoint] = {}
        for path, file in self.copies.items() if self.is_run_of_copies else ():
            if file.content is Content.FULL and path in self.tree.checkpoints:
                copy = replace(file, path=path)
                newest[file.rank] = max(newest.get(file.rank, copy), copy, key=lambda each: each.global_step)
        return read_files(self.tree, [file.path for file in newest.values()])[0]

    def _two_networks(self, proof: Stranger) -> RefusedError:
        directories = apart(set(map(self.tree.home, self.new)))
        hint = "move the files of each to a directory of its own and scan that"
        if len(directories) > 1:
            hint = f"scan each: {self._commands(directories)}"
        told = f"{proof.path} is of another network than {proof.other}: {proof.difference}"
        if proof.other not in self.tree.checkpoints:
            hint = "give this one another name with --run"
        return RefusedError(told, f"a run has one network: {hint}")

    def put_into_launches(self) -> None:
        """Group the files into launches, and put the launches in order."""
        asked, tree = self.asked, self.tree
        self.history = (
            reconstruct(self.found, world_size=asked.world_size, ranks_seen=tree.ranks, stated=asked.said)
            if self.found
            else Reconstruction()
        )
        unreadable = self.recorded.others.keys() | self.unheard.keys()
        self.in_parts = saves_in_parts(self.run, tree, self.parts, self.kept, unreadable)
        self.of_others = self.foreign.launches(self.run, self.new, self.kept)
        self.copied: list[ScannedLaunch] = []
        if self.is_run_of_copies:
            self.copied = as_a_run(
                self.run, self.copies, tree, self.databases, world_size=asked.world_size, said=asked.said
            )
        self.is_new = {*self.new, *(file.path for launch in self.copied for file in launch.files)}
        of_history = fill(self._launches(), self.known.values(), self.launches_known)
        self.launches = in_order_of_time(of_history, [*self.in_parts.launches, *self.of_others, *self.copied])
        self._check_copies()
        if asked.world_size is not None:
            self._check_world_size(asked.world_size)

    def _check_copies(self) -> None:
        """Raise `RefusedError` if copies of a scanned run have some ranks of a step, and new files have others.

        No launch would have both. The launch of the copies might count as complete: it has the originals' number of
        ranks.
        """
        new: dict[int, set[int]] = defaultdict(set)  # ranks by step
        taken = set(self.new)
        for file in (file for launch in self.launches for file in launch.files):
            if file.path in taken and file.content is not Content.PART:
                new[file.global_step].add(file.rank)
        for launch in self.copied:
            ranks: dict[int, set[int]] = defaultdict(set)
            for file in launch.files:
                ranks[file.global_step].add(file.rank)
            for file in launch.files:
                original, others = self.copies[file.path], new[file.global_step]
                is_scanned = original.launch.startswith(SCANNED)
                if is_scanned and others and others.isdisjoint(ranks[file.global_step]):
                    raise self._apart(file, original, min(others))

    def _apart(self, copy: Checkpoint, original: Checkpoint, rank: int) -> RefusedError:
        root, homes = self.tree.root, {path.rpartition("/")[0] for path in self.copies}
        told = f"of step {copy.global_step} rank {copy.rank} is a copy of a file of run {original.run!r}"
        hint = "move the copies to a directory of their own and scan that first"
        if root not in homes:
            size = ("--world-size", max(launch.world_size for launch in self.launches))
            each = (Command("scan", home, "--run", self.run, *size) for home in (*sorted(homes), root))
            hint = f"scan the copies first: {' && '.join(map(str, each))}"
        return RefusedError(f"{told}, and rank {rank} is new: {copy.path}", hint)

    def _launches(self) -> list[ScannedLaunch]:
        """The launches of the history with their old or new ids; and the records of their files."""
        history, said = self.history, self.asked.said
        layout = stated_layout(said.replicas, history.world_size) or stand_alone()
        launches = []
        for found in history.launches:
            check_stated_layout(said.replicas, found.files[-1].file.path)
            key = self._id_of(found)
            files = tuple(record(self.run, key, each, said.steps_per_epoch) for each in found.files)
            began = moment(min(each.file.mtime_ns for each in found.files))
            launches.append(ScannedLaunch(key, history.world_size, said.steps_per_epoch, began, files, layout))
        return launches

    def _id_of(self, found: PlacedLaunch) -> str:
        """The launch of the recorded files; a new one if that launch has a record of a new file's step at another path.

        Another start may have overwritten some files of that launch. The new files are then no part of its states.
        """
        placed = {each.file.path: each for each in found.files}
        steps = {each.global_step for path, each in placed.items() if path in self.is_new}
        ids = {self.kept[path].launch for path in placed if path in self.kept}
        if ids and steps:
            ids -= self._having(ids, steps, placed.keys())
        if ids:
            return min(ids)
        first = min(placed.values(), key=lambda each: each.file.path).file
        told = launch_id(self.run, found.key, first.path)
        return told if told not in self.sizes else launch_id(self.run, found.key, first.path, str(first.mtime_ns))

    def _having(self, launches: Collection[str], steps: Collection[int], paths: Collection[str]) -> set[str]:
        """The launches that have a record of one of these steps at another path than these."""
        with self.database.read() as connection:
            files = reads.files_of(connection, self.run_id or 0)
        return {
            file.launch
            for file in files
            if file.launch in launches and file.global_step in steps and file.path not in paths
        }

    # Any rank may load the file of a launch of one rank. If a state of several ranks were recorded with too few, each
    # rank would get the file of another. So the stated number of ranks is compared with the ranks of the files.

    def _check_world_size(self, world_size: int) -> None:
        """Raise `UsageError` if a new file is of a rank beyond the given number of ranks.

        Launches in the catalog keep their size; a file without a launch may be of any of them.
        """
        ranks = {path: self.tree.checkpoints[path][0].rank for path in self.new if path in self.tree.checkpoints}
        ranks = {path: rank for path, rank in ranks.items() if not self.tree.is_part(path)}
        ranks |= {file.path: rank_of(file) for file in self.found if file.path in ranks}
        ranks |= {path: self.foreign.placed[path].rank for path in self.new if path in self.foreign.placed}
        copied = (file for launch in self.copied for file in launch.files if file.content is not Content.PART)
        ranks |= {file.path: file.rank for file in copied}
        sizes = dict.fromkeys(ranks, max([world_size, *self.sizes.values()]))
        for launch in self.launches:
            size = max(world_size, launch.world_size, self.sizes.get(launch.id, 0))
            sizes |= dict.fromkeys((file.path for file in launch.files if file.path in ranks), size)
        beyond = [(rank, path) for path, rank in ranks.items() if rank is not None and rank >= sizes[path]]
        if beyond:
            rank, path = min(beyond, key=lambda each: (-each[0], each[1]))
            raise UsageError(
                f"{path} is of rank {rank}, and the job is said to have {count(world_size, 'rank', 'ranks')}",
                f"give the number of ranks that saved it, --world-size {rank + 1} or more; if the file is of another "
                "job, scan each alone",
            )

    def _too_small(self, files: Iterable[Checkpoint]) -> set[str]:
        """The scanned launches whose files show more ranks than the catalog records."""
        scanned = (file for file in files if file.launch.startswith(SCANNED) and file.launch in self.sizes)
        return {file.launch for file in scanned if file.rank >= self.sizes[file.launch]}

    def _keep_their_ranks(self, recorded: Iterable[ScannedLaunch]) -> list[str]:
        """A warning for each recorded number of ranks, other than `--world-size`, that stays.

        `recorded` are the launches that this scan records: a number that is corrected does not stay.
        """
        if self.asked.world_size is None:
            return []
        there = (file.launch for file in self.kept.values() if file.path in self.tree.checkpoints)
        shown = {launch for launch in there if launch.startswith(SCANNED)} | {launch.id for launch in self.copied}
        sizes = {launch: self.sizes[launch] for launch in shown & self.sizes.keys()}
        for launch in recorded:
            if launch.id in sizes:
                sizes[launch.id] = max(sizes[launch.id], launch.world_size)  # as the catalog joins them
        of_size = Counter(sizes.values())
        of_original = Counter(launch.world_size for launch in self.copied if launch.id not in self.sizes)
        anew = f"; if they are wrong: {Command('forget', self.run, '--apply')}, and scan again with a new name, --run"
        how = "" if is_trained(self.database, self.run_id) else anew
        return [
            f"{count(number, 'launch keeps', 'launches keep')} the {count(size, 'rank', 'ranks')} {whose}"
            for some, whose in ((of_size, f"that an earlier scan recorded{how}"), (of_original, "of its original"))
            for size, number in sorted(some.items())
            if size != self.asked.world_size
        ]

    def plan(self) -> ScanPlan:
        """The plan: records to write, and the result to report."""
        damaged, missing, back, away = changed(self.kept, self.tree)
        for file in self.recorded.left_behind:  # only a scan of the directory itself says that they are gone
            if file.run == self.run and directory_of(file.path) == self.tree.root:
                missing.append(file)
        lost = () if self.run_id is None else lost_trash(self.database, self.run_id, self.tree.root)
        regraded, moved = _placed_anew(self.launches, self.kept, self.asked.said)
        files = [file for launch in self.launches for file in launch.files]
        launches = self._launches_to_record(self._too_small(files))
        new = [file for file in files if file.path in self.is_new]
        bad = quarantines(self.databases, self.tree, new)
        adopted = (*(replace(file, quarantine=bad.get(file.path, file.quarantine)) for file in new), *moved)
        is_recorded = {*(self.known.keys() - self.rewritten), *self.recorded.others, *(file.path for file in adopted)}
        is_recorded |= self.copies.keys()
        has_others = bool(self.tree.checkpoints or self.known or adopted)
        opaque, unsure = self.foreign.left(is_recorded, has_others=has_others)
        uncertain = [each for each in self.history.uncertain if each.path in self.is_new]
        contradicted = [each for each in self.history.uncertain if each.path not in self.is_new and each.contradicted]
        new_launches = (*self.in_parts.launches, *self.of_others)
        taken = tuple(file for file in self.reconciled.adopted if self.tree.seen(file.path) is not None)
        there = (self.known.keys() & {*self.tree.checkpoints, *self.tree.foreign}) - self.recorded.replaced
        live = {file.path for file in self.recorded.below if file.state in LIVE}
        of_others = live & self.recorded.others.keys() & {*self.tree.checkpoints, *self.tree.foreign}
        registered = len(live & self.tree.strangers)  # `launch.save` lets the script name its files
        counts = self.tree.counts + Counter({What.CHECKPOINT.value: registered, What.STRANGER.value: -registered})
        found = Scanned(
            run=self.run,
            root=self.tree.root,
            world_size=self.history.world_size or max((each.world_size for each in new_launches), default=None),
            counts=dict(counts),
            known=len(there - self.recorded.doubtful - {file.path for file in taken}) + len(of_others) + registered,
            adopted=adopted,
            regraded=tuple(regraded),
            damaged=tuple(damaged),
            missing=tuple(missing),
            uncertain=(*uncertain, *contradicted, *self.in_parts.uncertain, *unsure),
            skipped=self._skipped(away, adopted),
            unread=_sorted(
                [*self.tree.unread, *self.reconciled.unread, *self.synced.unreadable, *unread_journals(self.synced)]
            ),
            opaque=opaque,
            warnings=(
                *self.history.warnings,
                *(() if self.history.world_size else self.foreign.warnings),
                *self.in_parts.warnings,
                *at_the_time_of_others(self.launches_known, self.launches, self.saved),
                *going_back(self.run, self.launches_known, launches, self.steps),
                *self._keep_their_ranks(launches),
                *([_OPAQUE_ONLY] if opaque and not has_others else []),
                *told_lost(lost),
            ),
            synced=self.synced,
        )
        return ScanPlan(
            found,
            launches=launches,
            back=tuple(back),
            overwritten=tuple(self.known[path] for path in self.rewritten - self.recorded.replaced),
            restated=tuple(self.kept[file.path] for file in moved),
            taken=taken,
            lost_trash=lost,
            trash_back=tuple(trash_that_is_back(self.database, self.run_id or 0, self.tree.root)),
            unplaced=tuple(
                Unplaced(each.path, seen.size, seen.mtime_ns, each.best_guess, each.reason, each.remedy)
                for each in (*uncertain, *unsure)
                if (seen := self.tree.seen(each.path)) is not None and not self.tree.is_of_weights(each.path)
            ),
        )

    def _skipped(self, away: Iterable[Checkpoint], adopted: Iterable[Checkpoint]) -> tuple[Skipped, ...]:
        """The files that were not adopted, and why.

        A file whose launch is in no journal may have been adopted by its name: then it is left out here.
        """
        taken = {file.path for file in adopted}
        found = [
            *self.tree.skipped,
            *self.reconciled.skipped,
            *self.synced.skipped,
            *self.synced.refused,
            *self.recorded.skipped,
            *self.unreadable,
            *self.in_parts.skipped,
            *(Skipped(file.path.rpartition("/")[0], _MAY_BE_AWAY) for file in away),
            *(() if self.is_run_of_copies else not_taken(self.copies)),
            *(Skipped(path, reason) for path, reason in self.reasons.items()),
        ]
        return _sorted(each for each in found if each.path not in taken)

    def _saved_but_by_originals(self) -> dict[str, datetime]:
        """When each known launch saved last; without scanned launches whose lost files a new launch has copies of.

        Such copies have the times of their originals. The new launch must not sort before the known one for that.
        """
        saved = dict(self.saved)
        new = [launch for launch in self.launches if launch.id not in self.sizes]
        for known in (each for each in self.launches_known if each.id.startswith(SCANNED)):
            beside = [_facts_of(launch.files) for launch in new if still_saved(known, launch, self.saved)]
            if beside:
                with self.database.read() as connection:
                    recorded = _facts_of(live.files(connection, known.key))
                if any(copies <= recorded for copies in beside):
                    del saved[known.id]
        return saved

    def _launches_to_record(self, too_small: Collection[str]) -> tuple[ScannedLaunch, ...]:
        """The new launches, and known launches with more facts now."""
        lengths = {launch.id: launch.steps_per_epoch for launch in self.launches_known}
        is_stated = self.asked.said.replicas is not None
        ordered = dated(self.launches_known, self.launches, self._saved_but_by_originals())
        return tuple(
            launch
            for launch in not_ahead(self.launches_known, ordered, utc_now())
            if launch.id not in self.sizes
            or (launch.id in too_small and launch.world_size > self.sizes[launch.id])
            or (is_stated and launch.id.startswith(SCANNED))
            or (lengths[launch.id] is None and launch.steps_per_epoch is not None)
        )


def _facts_of(files: Iterable[Checkpoint]) -> set[tuple[int, int | None, int | None]]:
    return {(file.rank, file.size, file.mtime_ns) for file in files}


def _sorted(found: Iterable[Skipped]) -> tuple[Skipped, ...]:
    return tuple(sorted(set(found), key=lambda each: (each.path, each.reason)))


def _placed_anew(
    launches: Iterable[ScannedLaunch], known: Mapping[str, Checkpoint], said: Stated
) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """Records of earlier scanned files with a surer step now, and records of files that have another step.

    A file gets another step only if the user states it, or if the new step is proven and the old one was not.
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


def check_ranks(root: str, ranks: Iterable[int | None]) -> None:
    """Raise `UsageError` if file names show more ranks than a launch may have."""
    highest = max((rank for rank in ranks if rank is not None), default=0)
    if highest >= MOST_RANKS:
        raise UsageError(
            f"a name below {root} is of rank {highest}, and a launch has at most {MOST_RANKS} ranks",
            "rename it, or scan a directory that does not have it",
        )


def may_be_beyond(tree: Tree, world_size: int) -> bool:
    """Whether, by the paths, a file of the tree may be of a rank beyond a job of this size."""
    ranks = (named.rank for path, (named, _) in {**tree.checkpoints, **tree.foreign}.items() if not tree.is_part(path))
    return any(rank is None or rank >= world_size for rank in ranks)
