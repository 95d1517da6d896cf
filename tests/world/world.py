"""A world of nodes, disks, ranks, operators, users and faults around one run; promises are checked after each step.

Each public method with plain arguments is one step of a history. Its effect depends on the state of the world, and it
may do nothing. So a history from which a step is removed is still a valid history.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import ckptstore
from ckptstore.api import Catalog
from ckptstore.catalog.engine import open_database
from ckptstore.core.events import launch_from_json, launch_to_json
from ckptstore.core.model import Checkpoint, Content, Kind, Resolution, RestorePlan, Rule
from ckptstore.disk.files import digest, facts
from ckptstore.errors import CkptstoreError, DamageError, RefusedError
from ckptstore.resume.register import describe
from ckptstore.resume.resolver import NEWEST, Query
from ckptstore.resume.start import Decided
from ckptstore.retention.plan import GcPlan
from ckptstore.retention.policy import Policy
from ckptstore.training.recorder_thread import RecorderThread
from ckptstore.training.save_places import SavePlaces
from ckptstore.training.start import Progress, Start, begin, decide, follow, start_from_json
from tests import ckpt_bytes
from tests.world.disks import Disk, File
from tests.world.machine import Fault, Machine, Program, Task
from tests.world.sql import REAL, template
from tests.world.system import Node
from tests.world.truth import Identity, Launch, Saved, Truth, ViolationError

ROOT = "/data"
BASE = f"{ROOT}/run"
LATE = f"{ROOT}/late"
_STRANGERS = (("notes.txt", b"mine"), ("net.tmp.bak", b"x"), ("other-1_1.ckpt", b"mine too"))
_LINKED = "/tmp/linked.ckpt"  # noqa: S108 — a stranger's file
_BELOW = "below:"
_BACKUP = "backup-"
_TRAINING = ("save", "end")
STEPS_PER_EPOCH = 10
RUN = "run"
NEIGHBOUR = "neighbour"
KEPT = "kept"
BARE = "/bare"
_NEIGHBOURS_STEP = 300
"""The first step of a run beside this one: runs that share directories and a prefix must not share steps too."""

_LEASE_NS = 24 * 3600 * 10**9
"""The time of a lease."""

_WITHIN_A_LEASE = 23 * 3600  # seconds


class ScriptError(CkptstoreError):
    """An error of the user's own script."""


@dataclass(eq=False)
class Trainer:
    """A process that trains: one rank of a launch."""

    program: Program
    rank: int
    launch: Any
    recorder: RecorderThread | None
    places: SavePlaces | None
    progress: Progress
    directory: str = ""
    prefix: str = ""


class Collecting(NamedTuple):
    """A gc that is at work: on which catalog, with which floor, and the contents that it may take from nodes."""

    catalog: int
    floor: int
    copied: Collection[bytes]


@dataclass
class InTrash:
    """The promise about a file in the trash: it stays for `grace_ns` from `since_ns` on.

    `is_open`: the gc was killed before it had moved all its files, so the grace has not begun. `is_doomed`: the file
    was to be deleted at once, but the command was killed or could not delete it. The next gc or purge deletes it.
    """

    since_ns: int
    grace_ns: int
    is_open: bool = False
    is_doomed: bool = False

    def is_due(self, now_ns: int) -> bool:
        return self.is_doomed or (not self.is_open and self.since_ns + self.grace_ns <= now_ns)


class World:
    """One run on `nodes` machines. `disks`: "one" disk for all ranks, or "each" rank has its own.

    `late`: later launches may save to another directory. `keeps`: MindSpore deletes old files of each launch and rank,
    and keeps so many (0: it deletes none). `coarse`: disks store times in whole seconds.
    """

    tuned: tuple[str, Launch, int] | None = None
    """Another run without a state of its own, and the launch and step of this run that it began from."""

    def __init__(  # noqa: PLR0915
        self,
        machine: Machine,
        *,
        size: int = 2,
        replicas: bool = False,
        disks: str = "one",
        nodes: int = 1,
        late: bool = False,
        keeps: int = 0,
        coarse: bool = False,
    ) -> None:
        self.machine = machine
        self.keeps = keeps
        self.is_coarse = coarse
        self.truth = Truth(size, replicas=replicas)
        self.size = size
        self.places = [BASE, LATE] if late else [BASE]
        self.nodes = [Node(f"node{number}") for number in range(nodes)]
        self.disks: dict[str, Disk] = {}
        self.catalogs = [f"{REAL}/{os.getpid()}/{name}.db" for name in ("main", "other")]
        self._template = template()
        machine.catalogs.make(self.catalogs[0])
        self._kept_catalog = ""
        paths = [BASE] if disks == "one" else [f"{BASE}/rank_{rank}" for rank in range(size)]
        paths += [LATE] if late else []
        self.below = Disk("below", 9)
        """The disk with the mount points. A process sees its files at paths whose disk is not mounted."""
        for node in self.nodes:
            node.mount(ROOT, self.below)
        for number, path in enumerate(paths):
            self.disks[path] = Disk(path, 10 + number)
            self.disks[path].is_coarse = coarse
            for node in self.nodes:
                node.directory(BASE)
                node.mount(path, self.disks[path])
        self.below.sync_all()
        self.place = BASE
        self.plans: list[tuple[GcPlan, int]] = []
        self._is_within_a_move = self._is_within_a_start = False
        self.has_gap = False
        """Whether the catalog has records that no journal could take. They are written when all disks can be seen."""
        self.is_current = True
        """Whether the catalog has all records, or was rebuilt from all journals since it lost some."""
        self.away: set[str] = set()
        self.uid = 0
        """The user id of the operator."""
        self._locks: list[sqlite3.Connection] = []
        self.trainers: list[Trainer] = []
        self.step = 0
        self.done: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        self.has_moved = False
        """Whether the tree was moved to another path."""
        self._dropped: set[bytes] = set()
        """Contents that MindSpore or a user deleted or changed: ckptstore is not to blame if they are missing."""
        self._of_prefix: dict[tuple[str, str], list[Launch]] = {}
        self._risen: set[str] = set()
        """Files that were deleted from the trash, and that a power loss brought back."""
        self._uncounted: set[bytes] = set()
        """Contents that a catalog may ignore: a user copied them out of the trash, or a killed gc was to move them."""
        self._unmoved: set[bytes] = set()
        """Of these, what a killed gc was to move: the next gc counts it again."""
        self.unpinned: dict[int, set[int]] = {}
        """The catalogs in which a step was unpinned."""
        self.is_shaken = False
        """Whether something happened that no promise covers: a clock jumped, or a user copied or changed files."""
        self.neighbours: dict[str, bytes] = {}
        """The files that another run has saved to the same directories."""
        self.beside: list[Trainer] = []
        self.has_neighbour = False
        self._is_neighbour_unheard = False
        """Whether the other run started while a disk or catalog failed: perhaps no journal that can be read has it."""
        self._bare: dict[bytes, tuple[int, int, int]] = {}
        self._bare_starts = 0
        self._step_beside = _NEIGHBOURS_STEP
        self.rotten: dict[str, bytes] = {}
        """Files whose bytes a power loss changed, but not their size and time: only reading them shows the change."""
        self.has_lost_disk = False
        """Whether a disk was lost with its journals, so that a rebuilt catalog lacks their records."""
        self.lost: dict[str, bytes] = {}
        """Copies that users deleted or cut, by their key. The catalog still has records of them."""
        self.damaged: set[bytes] = set()
        """The contents that `cut` and `flip` made."""
        self.fault: Fault | None = None
        self._started_ns = 0
        self._collecting: Collecting | None = None
        self.has_other = False
        self.other_missed = self.first_missed = False
        """Whether a catalog was made anew when a scan could not see every journal, and no scan has seen all since."""
        self.operator = self._boot(0, "operator")
        self.in_trash: dict[str, InTrash] = {}
        self._strangers = self._make_strangers()
        self.backups: dict[str, bytes] = {}
        """Copies that a user has made of registered files, with their journals."""
        self._in_trash_before: set[bytes] = set()
        self._went_on = 0

    # Helpers.

    def _boot(self, number: int, name: str) -> Program:
        return self.machine.boot(self.nodes[number % len(self.nodes)], name)

    def _make_strangers(self) -> dict[str, bytes]:
        """Make files of other users and programs, which ckptstore must not touch."""
        system = self.machine.system
        made = {}

        def make() -> None:
            with system.open_file(_LINKED, "wb") as file:
                file.write(b"linked")
            for path in self.disks:
                for name, content in _STRANGERS[: 2 + (self.size % 2)]:
                    with system.open_file(f"{path}/{name}", "wb") as file:
                        file.write(content)
                    made[f"{path}/{name}"] = content
                system.symlink(_LINKED, f"{path}/net-9_9.ckpt")

        self.machine.run(self.operator, make, "strangers")
        self.operator.node.disk.sync_all()
        for disk in self.disks.values():
            disk.sync_all()
        return made

    def everything(self) -> dict[str, bytes]:
        """All files on the disks, mounted or not, by their path when mounted; and the files below mount points."""
        found = {
            f"{at}/{path}": content for at, disk in self.disks.items() for path, content in disk.everything().items()
        }
        return found | {f"{_BELOW}/data/{path}": content for path, content in self.below.everything().items()}

    def _at(self, path: str) -> str:
        """The key in `everything` of the file that a process sees at a path."""
        return f"{_BELOW}{path}" if self._is_away(path) else path

    def there(self) -> dict[str, bytes]:
        """The files that a process sees now. If a disk is unmounted, these include files below its mount point."""
        every = self.everything().items()
        seen = {path: content for path, content in every if not (self._is_away(path) or path.startswith(_BELOW))}
        if self.away:
            below = {f"/data/{path}": content for path, content in self.below.everything().items()}
            seen |= {path: content for path, content in below.items() if self._is_away(path)}
        return seen

    def _is_away(self, path: str) -> bool:
        return any(path.startswith(f"{each}/") for each in self.away)

    def _is_hiding(self) -> bool:
        """Whether a scan cannot see every journal. Then it may miss a pin, or that the run went back."""
        return bool(self.away) or self._is_hidden() or any(disk.unreadable for disk in self.disks.values())

    def _is_interrupted(self) -> bool:
        """Whether two actions interleave: the next one is stopped for another, or runs inside one that moves files."""
        return self._is_within_a_move or (self.fault is not None and self.fault.what == "stop")

    @property
    def is_quiet(self) -> bool:
        """Whether all disks and catalogs can be read and written."""
        return not (
            self.away
            or self.machine.catalogs.away
            or self._locks
            or any(
                disk.read_only or disk.capacity is not None or disk.slow_ns or disk.unreadable
                for disk in self.disks.values()
            )
        )

    def _run(self, program: Program, work: Callable[[], Any], name: str) -> Task:
        fault, self.fault = self.fault, None
        at_stop: Callable[[], None] | None = None
        if fault is not None and fault.beside is not None:
            other, arguments = fault.beside
            self.machine.drawn[f"beside {other}"] += 1

            def at_stop() -> None:
                self._is_within_a_move = name in ("gc", "execute", "undo", "purge")
                self._is_within_a_start = name in ("start", "branch")
                try:
                    getattr(self, other)(**arguments)
                finally:
                    self._is_within_a_move = self._is_within_a_start = False

        self._went_on = self.machine.went_on
        task = self.machine.run(program, work, name, fault, at_stop)
        self.done[name] += 1
        self.has_gap |= any("catalog alone" in line for line in self.machine.logged)
        self.machine.logged.clear()
        if fault is not None:
            self.machine.drawn[f"{name} × {fault.what} {fault.error}".strip()] += 1
        error = task.error
        if error is not None and not isinstance(error, (CkptstoreError, OSError, sqlite3.Error)):
            raise error
        if isinstance(error, sqlite3.Error):
            raise ViolationError(f"{name}: an error of SQLite reaches the caller: {error!r}") from error
        was_given = fault is not None and fault.what.startswith("error") and name not in _TRAINING
        if isinstance(error, OSError) and not isinstance(error, CkptstoreError) and not was_given:
            raise ViolationError(f"{name}: an error of the disk reaches the caller: {error!r}") from error
        return task

    # Training.

    def start(  # noqa: PLR0915
        self,
        step: int | None = None,
        kill_rank: int | None = None,
        place: int = 0,
        plain: bool = False,  # noqa: FBT001, FBT002
        again: int = 0,
        fresh: bool = False,  # noqa: FBT001, FBT002
        ranks: int = 0,
    ) -> None:
        """Start a new launch of all ranks, or of `ranks` ranks if all are replicas.

        `step`: the user goes back to the saved step with this number, counted from 0. `place`: the number of the place
        that the launch saves to. `plain`: the script registers its files itself. `again`: the start has the id of an
        earlier launch, counted back from the newest. `fresh`: the run starts over on purpose.
        """
        self._end_trainers()
        self.place = self.places[place % len(self.places)]
        before = [each for each in self.truth.launches if each.name.startswith("L")]
        if again and before:
            self._start_again(before[-min(again, len(before))], plain)
            return
        fresh = fresh and not plain
        number = len(self.truth.launches)
        count = min(ranks, self.size) if ranks and self.truth.replicas else self.size
        launch = Launch(number, f"L{number}", count, plain=plain)
        query = NEWEST
        back: int | None = None
        if fresh:
            query = Query(fresh=True)
        elif step is not None:
            known = sorted({at for _, at in self.truth.whole(self.there())})
            if known:
                back = known[step % len(known)]
                query = Query(step=back)
        self.truth.launches.append(launch)
        self._started_ns = self.machine.now_ns
        for each in self.truth.launches[:-1] if self.away else ():  # only the next start adopts their files
            each.is_announced = False
        cannot_tell = (disk.read_only or disk.capacity is not None for disk in self.disks.values())
        launch.is_unheard = bool(self.machine.catalogs.away or self._locks) and (bool(self.away) or any(cannot_tell))
        launch.is_in_catalog_alone = bool(self.away)
        launch.is_late_to_see = self._is_slow()
        self.other_missed |= plain and self.has_other  # the second catalog cannot know where it saves
        fault, self.fault = self.fault, None
        trainers: list[Trainer] = []
        start: Start | None = None
        error: CkptstoreError | None = None
        for rank in range(launch.size):
            if kill_rank is not None and rank == kill_rank % launch.size:
                self.fault = fault
            program = self._boot(rank, f"rank {rank} of {launch.name}")
            first = trainers[0].launch if trainers else None
            shown = start.to_json() if start else None
            begin_it = self._begin_plain if plain else self._begin
            task = self._run(program, lambda: begin_it(rank, launch, query, first, shown), "start")  # noqa: B023
            if task.error is not None or not program.alive:
                error = task.error if isinstance(task.error, CkptstoreError) else None
                self.machine.kill(program)
                launch.in_doubt = launch.in_doubt or (rank == 0 and (fresh or back is not None))
                break
            trainer, start = task.result
            trainers.append(trainer)
            was_faulty = fault is not None and rank == (kill_rank or 0) % launch.size
            is_hindered = self.has_gap or bool(self.away) or self._is_slow()
            is_hindered |= self._is_hidden() or self.has_lost_disk  # the catalog alone may know
            is_blind = was_faulty and (is_hindered or (fault is not None and fault.blinds()))
            # A launch whose journals are below a mount point is known to the catalog alone.
            is_blind |= self._is_hidden() and bool(self.machine.catalogs.away or self._locks)
            is_alone = fault is None or not was_faulty or fault.what != "stop"
            self._check_start(launch, trainer, start, back, fresh=fresh, is_blind=is_blind, is_alone=is_alone)
        if len(trainers) < launch.size:
            for each in trainers:
                self.machine.kill(each.program)
            self._check_refusal(launch, error, fault)
        else:
            self.trainers = trainers
            self.machine.sleep(self.is_coarse)  # its first save comes in a later second than its begin
            launch.is_announced = not plain and not self.has_gap
            for trainer in trainers:  # a file may belong to any launch with its directory and prefix
                alike = self._of_prefix.setdefault((trainer.directory, trainer.prefix), [])
                alike.append(launch)
                for each in alike if len(alike) > 1 else ():
                    each.is_announced = False
            self.step = start.global_step if start else 0
        self.fault = None

    def _start_again(self, launch: Launch, plain: bool) -> None:  # noqa: FBT001
        """Start with a used launch id. Once that launch or a later one has saved, the start must be refused.

        Before that, it must give the same plan again.
        """
        later = self.truth.launches[launch.number + 1 :]
        program = self._boot(0, f"rank 0 of {launch.name} again")
        begin_it = self._begin_plain if plain else self._begin
        # Otherwise only the catalog may know the plan, and it may be wrong. A plain script knows only the journals that
        # the catalog names.
        is_told = self.fault is None and (self.is_current or (self.is_quiet and not plain))
        # Its journals are lost, or below a mount point, and the catalog was lost since or may fail at this start.
        may_be_unknown = self.has_lost_disk or (self._is_hidden() and (self.first_missed or self.fault is not None))
        task = self._run(program, lambda: begin_it(0, launch, NEWEST, None, None), "start again")
        self.machine.kill(program)
        if task.error is not None or not task.is_over:
            return
        _, start = task.result
        has_saved = any(each.registered for ranks in launch.saved.values() for each in ranks.get(0, ()))
        if has_saved and launch.decided and self.is_quiet and self.is_current and not may_be_unknown:
            raise ViolationError(f"launch {launch.name} starts again, though it has saved")
        is_known = launch.decided and not launch.is_unheard
        if is_known and self.is_quiet and self.is_current and any(each.has_registered() for each in later):
            raise ViolationError(f"launch {launch.name} starts again, though a later launch has saved")
        paths = {each.rank: each.source.path for each in start.plan.ranks} if start.plan else {}
        is_fetched = self.has_moved and start.plan is not None and start.plan.copies  # copies of the old paths
        if launch.decided and is_told and not launch.is_unheard and not is_fetched and paths != launch.plan:
            raise ViolationError(f"launch {launch.name} started from {launch.plan}, then again from {paths}")
        launch.in_doubt = True

    def _begin_plain(
        self, rank: int, truth: Launch, query: Query, _: Any, __: dict[str, Any] | None
    ) -> tuple[Trainer, Start]:
        """Begin as a script of another framework, which calls `resolve` and registers its files itself."""
        catalog = ckptstore.connect(self.catalogs[0])
        layout = "data_parallel" if self.truth.replicas else None
        launch = catalog.join(RUN, rank=rank, world_size=truth.size, launch_id=truth.name, layout=layout)
        launch.set_steps_per_epoch(STEPS_PER_EPOCH, **self._samples(truth))
        plan = launch.decide_start(launch.database, replace(query, fetches=True)).plan
        start = Start(launch=launch.facts, plan=plan, at=datetime.now(timezone.utc))
        trainer = Trainer(self.machine.program(), rank, launch, None, None, Progress(start=start))
        self._make_folder(trainer)
        if plan is not None:
            self._load(trainer, plan)
        return trainer, start

    def _begin(
        self, rank: int, truth: Launch, query: Query, first: Any, shown: dict[str, Any] | None, run: str = RUN
    ) -> tuple[Trainer, Start]:
        query = replace(query, fetches=True)
        layout = "data_parallel" if self.truth.replicas else None
        url = self.catalogs[0]
        database = open_database(url)
        if first is None:
            launch = begin(
                database,
                run,
                rank=rank,
                world_size=truth.size,
                launch_id=truth.name,
                layout=layout,
                directories=self.places,
            )
            launch.signs.begin()
            launch.note_steps_per_epoch(STEPS_PER_EPOCH, **self._samples(truth))
            start = decide(launch, self.places, query)
        else:
            facts = launch_from_json(launch_to_json(first.facts))
            launch = follow(database, facts, rank, layout, away=first.recorder.behind)
            start = start_from_json(shown or {})
            launch.facts = start.launch
            launch.note_start(Decided(start.launch, start.plan, start.at))
        progress = Progress(start=start, global_step=start.global_step)
        recorder = RecorderThread(launch, on_recorded=self._recorded)
        trainer = Trainer(
            self.machine.program(), rank, launch, recorder, SavePlaces(launch, progress, recorder), progress
        )
        directory = self._make_folder(trainer)
        recorder.state_names = frozenset({"weight", "global_step"})
        recorder.begin()
        trainer.places.add(
            directory,
            kind=Kind.PERIODIC,
            prefix=trainer.prefix,
            breakpoint_prefix="net",
            names_before=self._breakpoints,
            content=Content.FULL,
        )
        progress.has_trained = True
        if start.plan is not None:
            self._load(trainer, start.plan)
        return trainer, start

    def _samples(self, launch: Launch) -> dict[str, int | None]:
        """The batch size and the shards of each rank. All ranks together take 12 samples a step for any world size."""
        shared = self.truth.replicas
        return {"batch_size": 12 // launch.size if shared else None, "shards": launch.size if shared else None}

    def _load(self, trainer: Trainer, plan: RestorePlan) -> None:
        """Load as the loader does: a file with other bytes than recorded is reported as damaged and stops the start."""
        plan = trainer.launch.fetched(plan)
        own = next(each.source for each in plan.ranks if each.rank == trainer.rank)
        if facts(own.path) is None:
            trainer.launch.record_load_failure(None, None, "not there")
            raise DamageError(f"{own.path} is not there", "start again")
        if own.digest is not None and digest(own.path) != own.digest:
            trainer.launch.record_load_failure(own, Rule.DIGEST_MISMATCH, "other bytes")
            raise DamageError(f"{own.path} has other bytes than were recorded", "start again")

    def _make_folder(self, trainer: Trainer) -> str:
        """Make the directory that a rank saves to, as a script does."""
        directory = trainer.directory = self._folder(trainer.rank)
        try:
            self.machine.system.makedirs(directory, exist_ok=True)
            trainer.prefix = self._prefix(directory, "own" if trainer.recorder is None else "net")
        except OSError as error:
            raise ScriptError(f"{directory}: {error}", "") from error
        return directory

    def _prefix(self, directory: str, first: str) -> str:
        """The prefix that MindSpore gives the files of a relaunch: with the first free number."""
        names = self.machine.system.listdir(directory)
        number = 0
        while any(name.startswith(f"{first}_{number}-" if number else f"{first}-") for name in names):
            number += 1
        return f"{first}_{number}" if number else first

    @staticmethod
    def _breakpoints(names: Iterable[str]) -> list[str]:
        return sorted(name for name in names if name.endswith("_breakpoint.ckpt"))

    def _folder(self, rank: int) -> str:
        return f"{self.place}/rank_{rank}"

    def _recorded(self, file: Any) -> None:
        for launch in self.truth.launches:
            if launch.name == file.launch:
                for each in launch.saved.get(file.global_step, {}).get(file.rank, ()):
                    if each.path == file.path:
                        each.registered = True

    def save(self, steps: int = 1, kill_rank: int = 0, ranks: int = 0, behind: bool = False) -> None:  # noqa: FBT001, FBT002
        """Every rank trains on and saves; only the first `ranks` ranks if `ranks` is not 0.

        `behind`: as with `async_save`, the files are written after the registrar was told of them.
        """
        if not self.trainers:
            return
        launch = self.truth.launches[-1]
        if self._is_slow():  # a summary may leave out files in the trash: the journal that tells of them is not listed
            self._uncounted |= {content for path, content in self.everything().items() if "/trash/" in path}
        self.step += steps
        fault, self.fault = self.fault, None
        some = self.trainers[:ranks] if ranks else list(self.trainers)
        for trainer in some:
            if trainer.rank == kill_rank % launch.size:
                self.fault = fault
            if trainer.program.alive:
                # The registrar would take an older file of the same name for the file that is still to be written.
                is_new = self._path(trainer) not in self.everything()
                if behind and is_new and trainer.recorder is not None:
                    held, self.fault = self.fault, None
                    self._run(trainer.program, lambda: self._tell(trainer, None), "save")  # noqa: B023
                    self.fault = held
                self._run(trainer.program, lambda: self._save(trainer, launch, behind=behind and is_new), "save")  # noqa: B023
            self.fault = None
            if not trainer.program.alive:
                launch.in_doubt = launch.in_doubt or not (launch.has_registered() or launch.has_nothing())
        if behind:
            self.machine.sleep(2)
        self.trainers = [each for each in self.trainers if each.program.alive]
        if len(self.trainers) < launch.size:
            self._end_trainers()

    def _tell(self, trainer: Trainer, mtime_ns: int | None, step: int | None = None) -> None:
        """Tell the registrar of a save. Without `mtime_ns` the file is still being written."""
        assert trainer.recorder is not None
        step = self.step if step is None else step
        file = describe(
            trainer.launch.facts,
            rank=trainer.rank,
            path=self._path(trainer, step),
            kind=Kind.PERIODIC,
            global_step=step,
            optimizer_step=step,
            mtime_ns=mtime_ns,
        )
        trainer.recorder.submit(file, asynchronous=mtime_ns is None)

    def _path(self, trainer: Trainer, step: int | None = None) -> str:
        step = self.step if step is None else step
        epoch, place = (step - 1) // STEPS_PER_EPOCH + 1, (step - 1) % STEPS_PER_EPOCH + 1
        return f"{trainer.directory}/{trainer.prefix}-{epoch}_{place}.ckpt"

    def _save(self, trainer: Trainer, launch: Launch, *, behind: bool) -> None:
        """Save as MindSpore does: write to another name, rename, make read-only. Then tell the registrar."""
        rank, step = trainer.rank, self.step
        path = self._path(trainer)
        own = [each for ranks in launch.saved.values() for each in ranks.get(rank, ())]
        saved = self._saved(launch, rank, path)
        away = set(self.away)
        try:
            for each in own[: -self.keeps + 1 or None] if self.keeps else ():
                self._dropped.add(each.content)
                with suppress(FileNotFoundError):
                    self.machine.system.unlink(each.path)
            written = self._write(path, saved)
        except OSError:
            return  # in MindSpore this would end the training; here training goes on
        saved.is_written = True
        trainer.progress.global_step = step
        if self.away != away and self.there().get(path) != saved.content:
            return  # a disk was mounted in this moment: the registrar would take an older file there for this one
        if trainer.recorder is None:
            with suppress(CkptstoreError):
                trainer.launch.register(path, global_step=step, optimizer_step=step)
                saved.registered = True
        elif not behind:
            self._tell(trainer, written)

    def _saved(self, launch: Launch, rank: int, path: str) -> Saved:
        """The file that a rank of a launch is about to write, after the present step."""
        weight = launch.number * 100 + rank + 1 + 0.5 * path.endswith("_breakpoint.ckpt")
        content = ckpt_bytes.checkpoint(self.step, weight)
        identity = self.truth.contents[content] = Identity(launch.number, self.step, rank)
        saved = Saved(path, content, identity)
        launch.saved.setdefault(self.step, {}).setdefault(rank, []).append(saved)
        return saved

    def _write(self, path: str, saved: Saved) -> int:
        """Write a checkpoint as MindSpore does; its modification time."""
        self._write_new(path, saved.content, saved)
        return self.machine.system.stat(path).st_mtime_ns

    def _write_new(self, path: str, content: bytes, saved: Saved | None = None) -> None:
        system = self.machine.system
        draft = path.removesuffix(".ckpt") + ".tmp"
        with system.open_file(draft, "wb") as file:
            file.write(content)
        if saved is not None:
            saved.is_named = True
        system.rename(draft, path)
        system.chmod(path, 0o400)

    def end(self, gracefully: bool = True) -> None:  # noqa: FBT001, FBT002
        """The training ends, or is killed."""
        self._end_trainers(gracefully=gracefully)

    def _end_trainers(self, *, gracefully: bool = False) -> None:
        """End the launch. If it saved, but no rank was told of a record, it is in doubt whether the launch counts."""
        for trainer in self.trainers:
            if gracefully and trainer.program.alive:
                self._run(trainer.program, lambda: self._let_go(trainer), "end")  # noqa: B023
                self.machine.end(trainer.program)
            self.machine.kill(trainer.program)
        if self.trainers:
            launch = self.truth.launches[-1]
            launch.in_doubt = launch.in_doubt or not (launch.has_registered() or launch.has_nothing())
        self.trainers = []

    def quarantine(self, back: int = 1) -> None:
        """The loss is not a number: the ranks report the states of the last `back` saves as bad."""
        if not self.trainers or any(trainer.recorder is None for trainer in self.trainers):
            return
        launch = self.truth.launches[-1]
        since = sorted(launch.saved)[-back:][:1]
        if not since:
            return
        bad = {step for step in launch.saved if step >= since[0]}
        launch.quarantined |= bad
        for trainer in self.trainers:
            if trainer.program.alive and trainer.recorder is not None:
                recorder = trainer.recorder
                self._run(trainer.program, lambda: recorder.quarantine_after(since[0] - 1, "loss"), "quarantine")  # noqa: B023
                launch.in_doubt |= recorder._open_jobs > 0  # reported, but not recorded yet

    def _let_go(self, trainer: Trainer) -> None:
        if trainer.recorder is None or trainer.places is None:
            return
        trainer.recorder.finish()
        trainer.launch.signs.end()
        trainer.recorder.rest()
        trainer.places.release()

    # Another run.

    def tune(self, step: int = 0, saves: bool = False) -> None:  # noqa: FBT001, FBT002
        """A run of one rank begins from a state of this run, or begins again from it. `saves`: it saves a state too."""
        there, fault = self.there(), self.fault
        number = self.done["tune"]
        known = [self.tuned] if self.tuned else [(f"tuned-{number}", *state) for state in self.truth.whole(there)]
        if not known:
            return
        run, launch, at = known[step % len(known)]

        def work(opened: Catalog) -> Any:
            rank = opened.join(run, rank=0, world_size=1, launch_id=f"T{number}")
            settled = rank.decide_start(opened.database, Query(initial=f"{RUN}/{launch.name}@{at}"))
            if saves:
                path = f"/tuned/{run}.ckpt"
                self.machine.system.makedirs("/tuned", exist_ok=True)
                with self.machine.system.open_file(path, "wb") as file:
                    file.write(ckpt_bytes.checkpoint(1, -number))
                rank.register(path, global_step=1)
            return settled.initial

        task = self._operate("tune", work)
        serves = self.size == 1 or self.truth.replicas
        if task.error is not None or not task.is_over:
            is_sure = fault is None and self.is_quiet and self.is_current
            is_sure &= not (self.is_shaken or self.rotten or self._uncounted or self._is_within_a_move)
            is_sure &= not (self.truth.is_in_doubt() or launch.quarantined)
            if serves and is_sure and self.truth.is_whole(launch, at, there):
                raise ViolationError(f"no run can begin from step {at} of {launch.name}, though it is whole: {task}")
            self.tuned = None if saves else self.tuned
            return
        plan: RestorePlan | None = task.result
        if plan is None or (plan.launch.id, plan.global_step) != (launch.name, at):
            raise ViolationError(f"a run that was to begin from step {at} of {launch.name} begins from {plan}")
        if not serves:
            raise ViolationError(f"a run begins from only some of the files of step {at} of {launch.name}")
        content = there.get(plan.ranks[0].source.path, b"")
        identity = self.truth.contents.get(content)
        if fault is None and content not in self.rotten.values() and (identity is None or identity.step != at):
            raise ViolationError(f"a run begins from {plan.ranks[0].source.path}, which is not of step {at}")
        self.checked["begun"] += 1
        self.tuned = None if saves else (run, launch, at)

    def _needed(self, there: dict[str, bytes]) -> set[str]:
        """The files that another run needs if it begins again."""
        files = self.truth.files(*self.tuned[1:]) if self.tuned else []
        return {each.path for each in files if each.registered and there.get(each.path) == each.content}

    def fail(self, steps: int = 1, rank: int = 0, told: bool = True, every: bool = True) -> None:  # noqa: FBT001, FBT002
        """The training of one rank, or of `every` rank, ends with an exception: MindSpore writes a breakpoint file.

        The file has the same name in each launch. `told`: the rank registers it before it ends. The other ranks are
        killed.
        """
        if not self.trainers:
            return
        launch = self.truth.launches[-1]
        self.step += steps
        fault, self.fault = self.fault, None
        for trainer in self.trainers:
            if trainer.recorder is not None and (every or trainer.rank == rank % launch.size):
                self.fault = fault if trainer.rank == rank % launch.size else None
                self._run(trainer.program, lambda: self._fail(trainer, launch, told=told), "fail")  # noqa: B023
        self.fault = None
        launch.in_doubt = launch.in_doubt or not (launch.has_registered() or launch.has_nothing())
        self._end_trainers()

    def _fail(self, trainer: Trainer, launch: Launch, *, told: bool) -> None:
        trainer.prefix, prefix = "net", trainer.prefix
        path = self._path(trainer).removesuffix(".ckpt") + "_breakpoint.ckpt"
        trainer.prefix = prefix
        saved = self._saved(launch, trainer.rank, path)
        try:
            self._write(path, saved)
        except OSError:
            return
        if told:
            with suppress(CkptstoreError):
                adopted = trainer.launch.adopt().adopted
                saved.registered = path in {file.path for file in adopted}

    # Another run in the same directories.

    def neighbour(self) -> None:
        """Start another run, which saves to the same directories, and may have the same prefix."""
        self._end_neighbour()
        self.has_neighbour = True
        self._is_neighbour_unheard = not self.is_quiet
        truth = Launch(-1, f"N{self._step_beside}", self.size)
        trainers: list[Trainer] = []
        start: Start | None = None
        for rank in range(self.size):
            program = self._boot(rank, f"rank {rank} of {truth.name}")
            first, shown = (trainers[0].launch, start.to_json()) if trainers and start else (None, None)
            task = self._run(
                program,
                lambda: self._begin(rank, truth, Query(fresh=True), first, shown, NEIGHBOUR),  # noqa: B023
                "neighbour",
            )
            if task.error is not None or not program.alive:
                self.machine.kill(program)
                break
            trainer, start = task.result
            trainers.append(trainer)
        self.beside = trainers
        if len(trainers) < self.size:
            self._end_neighbour()

    def _end_neighbour(self) -> None:
        for trainer in self.beside:
            self.machine.kill(trainer.program)
        self.beside = []

    def neighbour_saves(self, untold: bool = False) -> None:  # noqa: FBT001, FBT002
        """The ranks of the other run save. If `untold`, they are killed before they register the file."""
        # In these cases neither a journal on the disk nor a clock would show which run wrote the file.
        untold &= not (self._is_neighbour_unheard or self.away or self._is_behind())
        self._step_beside += 1
        own = self._step_beside
        for trainer in self.beside:
            path = self._path(trainer, own)

            def save() -> None:
                content = ckpt_bytes.checkpoint(own, -1.0 - trainer.rank)  # noqa: B023
                with suppress(OSError):
                    self._write_new(path, content)  # noqa: B023
                    self.neighbours[self._at(path)] = content  # noqa: B023
                    if not untold:
                        self._tell(trainer, self.machine.system.stat(path).st_mtime_ns, own)  # noqa: B023

            self._run(trainer.program, save, "neighbour saves")
        if untold:
            self._end_neighbour()

    def share(self, step: int = 0, saves: int = 2) -> None:
        """A fine-tuning begins with a state of the run. It registers the state's files as its own, and saves others."""
        states = self.truth.whole(self.there())
        if not states:
            return
        launch, at = states[step % len(states)]
        self._step_beside += 10
        first = self._step_beside

        def work(rank: int) -> None:
            catalog = ckptstore.connect(self.catalogs[0])
            own = catalog.join(NEIGHBOUR, rank=rank, world_size=self.size, launch_id=f"T{first}")
            for each in launch.saved[at].get(rank, ())[:1]:
                own.register(each.path, global_step=at)
            for number in range(saves):
                path = f"{self._folder(rank)}/tuned-1_{first + number}.ckpt"
                content = ckpt_bytes.checkpoint(first + number, -1.0 - rank)
                with suppress(OSError):
                    self._write_new(path, content)
                    self.neighbours[self._at(path)] = content
                    own.register(path, global_step=first + number)

        for rank in range(self.size):
            program = self._boot(rank, f"rank {rank} of T{first}")
            self._run(program, lambda: work(rank), "share")  # noqa: B023
            self.machine.kill(program)

    def neighbour_gc(self, keep_last: int = 1, now: bool = False) -> None:  # noqa: FBT001, FBT002
        """Retention of the other run, which must not touch this run's files."""
        there = self.everything()
        counted = {path: content for path, content in there.items() if content not in self._uncounted}
        keep = self._must_stay(counted, 2, now=now)
        # In a tree that was moved, only a journal beside the files says that they are of this run.
        unsure = self.is_shaken or self._is_interrupted() or (self.has_moved and self._is_slow())
        policy = Policy(keep_last=max(keep_last, 1), floor=1)

        def work(opened: Catalog) -> None:
            opened.execute(opened.plan_gc(NEIGHBOUR, policy), now=now, allow_mass_delete=True)

        self._operate("neighbour's gc", work)
        after = self.everything()
        self._risen |= {path for path in after.keys() - there.keys() if "/.ckptstore/trash/" in path}
        if not unsure:
            self._check_kept("gc of another run", there, after, keep)
        self.neighbours = {path: content for path, content in self.neighbours.items() if after.get(path) == content}

    # Scripts of other frameworks, and those without ckptstore.

    def keep(self, step: int = 1, prefix: bool = True) -> None:  # noqa: FBT001, FBT002
        """A script of another framework saves a file, or the files of a `prefix` of TensorFlow, under a fixed name."""
        folder = f"{min(self.disks)}/kept"
        system = self.machine.system
        fault, is_quiet = self.fault, self.is_quiet
        content = b"index of %d" % step

        def write(path: str) -> None:
            for name in (f"{path}.data-00000-of-00001", f"{path}.index") if prefix else (path,):
                with system.open_file(name, "wb") as file:
                    file.write(content)

        def work() -> str:
            try:
                system.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise ScriptError(f"{folder}: {error}", "") from error
            number = self.done["keep"]
            launch = ckptstore.connect(self.catalogs[0]).join(KEPT, launch_id=f"K{number}")
            name = "model" if prefix else "model.h5"
            return launch.save(write, global_step=step, directory=folder, name=name).path

        program = self._boot(0, "keep")
        task = self._run(program, work, "keep")
        self.machine.kill(program)
        self.is_shaken |= not task.is_over  # a file of unknown step may make a start refuse
        if task.error is not None and fault is None and is_quiet:
            raise ViolationError(f"a save failed, though no fault prevented it: {task.error}") from task.error
        if task.error is None and task.is_over and task.result:
            names = (".data-00000-of-00001", ".index") if prefix else ("",)
            self.neighbours |= {self._at(f"{task.result}{name}"): content for name in names}

    def bare(self, steps: int = 2, ranks: int = 0, first: int = 0) -> None:
        """A script without ckptstore trains from the beginning, and overwrites older files.

        If `ranks` is not 0, only so many ranks train, beginning with rank `first`.
        """
        self._bare_starts += 1
        start = self._bare_starts
        system = self.machine.system
        self.machine.sleep(4000)
        for step in range(1, steps + 1):
            for rank in [(first + each) % self.size for each in range(ranks)] if ranks else range(self.size):
                path = f"{BARE}/rank_{rank}/net-1_{step}.ckpt"
                content = ckpt_bytes.checkpoint(step, start * 100 + rank)
                self._bare[content] = start, step, rank

                def write() -> None:
                    system.makedirs(f"{BARE}/rank_{rank}", exist_ok=True)  # noqa: B023
                    self._write_new(path, content)  # noqa: B023

                self._run(self.operator, write, "bare")
            self.machine.sleep(
                60 + 20 * start
            )  # each start has its own speed: with equal ones, the tree looks like a copy

    def scan_bare(self) -> None:
        """Scan the files of scripts without ckptstore, and resolve their run."""
        self._operate("scan", lambda opened: opened.scan(BARE, run="bare", world_size=self.size))
        task = self._operate("resolve", lambda opened: opened.resolve("bare"))
        if task.error is not None or not task.is_over or task.result.plan is None:
            return
        there = self.nodes[0].disk.everything()
        found = [self._bare.get(there.get(each.source.path[1:], b"")) for each in task.result.plan.ranks]
        self.checked["bare"] += 1
        if None in found or len({each[:2] for each in found if each}) != 1:
            raise ViolationError(f"the files of a plan are of these (start, step, rank): {found}")

    # Operators.

    def _operate(
        self,
        name: str,
        work: Callable[[Catalog], Any],
        catalog: int = 0,
    ) -> Task:
        """Run a command on a catalog, in a new process. The second catalog is made at its first command."""
        self._ensure(catalog)
        program = self.machine.boot(self.nodes[0], name, self.uid)

        def run() -> Any:
            with ckptstore.connect(self.catalogs[catalog]) as opened:
                return work(opened)

        task = self._run(program, run, name)
        self.machine.end(program)
        return task

    def _ensure(self, catalog: int) -> None:
        """Make the second catalog if it is asked for, and is not there yet."""
        if catalog and not self.has_other:
            self._make_other()
            held, self.fault, uid, self.uid = self.fault, None, self.uid, 0
            self._operate("scan", lambda opened: opened.scan(ROOT, run=RUN), 1)
            self.fault, self.uid = held, uid

    def gc(
        self,
        keep_last: int = 2,
        floor: int = 2,
        now: bool = False,  # noqa: FBT001, FBT002
        catalog: int = 0,
        hours: int = 24,
    ) -> None:
        """Run gc with a policy, and a grace of `hours`."""
        policy = Policy(keep_last=max(keep_last, 1), floor=max(floor, 1), grace=timedelta(hours=max(hours, 1)))
        self._collect("gc", lambda opened: opened.plan_gc(RUN, policy), policy, catalog, now=now)

    def plan(self, keep_last: int = 1, floor: int = 2, catalog: int = 0) -> None:
        """Make a plan. `execute` carries it out later."""
        policy = Policy(keep_last=max(keep_last, 1), floor=max(floor, 1))
        task = self._operate("plan", lambda opened: opened.plan_gc(RUN, policy), catalog)
        if task.error is None and task.is_over:
            self.plans.append((task.result, catalog))

    def execute(self, now: bool = False) -> None:  # noqa: FBT001, FBT002
        """Carry out the newest plan of `plan`."""
        if self.plans:
            plan, catalog = self.plans.pop()
            self._collect("execute", lambda _: plan, plan.policy, catalog, now=now)

    def _collect(
        self,
        name: str,
        planned: Callable[[Catalog], GcPlan],
        policy: Policy,
        catalog: int,
        *,
        now: bool,
        copied: Collection[bytes] = (),
    ) -> None:
        outer, own = self._collecting, Collecting(catalog, policy.floor, copied)
        if outer is not None:  # that one may go on while this one waits: what it may move goes meanwhile
            # No promise covers two gcs of one tree at the same time from two catalogs.
            self.is_shaken |= outer.catalog != catalog
            own = Collecting(catalog, min(own.floor, outer.floor), {*own.copied, *outer.copied})
        self._collecting = own
        self._ensure(catalog)  # what it has missed is asked now
        there, seen = self.everything(), self.there()
        has_missed = self.other_missed if catalog else self.first_missed
        is_told = self._has_heard_marks(catalog)
        # A lease is renewed by signs of life. Plain scripts give none, and a second catalog does not get them.
        has_signs = not catalog and all(trainer.recorder is not None for trainer in self.trainers)
        is_leased = has_signs or self.machine.now_ns - self._started_ns < _LEASE_NS
        given: dict[str, Any] = {"now": now, "marked": is_told, "leased": is_leased, "copied": own.copied}
        keep = self._must_stay_in(there, seen, own.floor, **given)
        uncounted = self._uncounted - self._unmoved  # a gc counts again what another one did not move
        if uncounted:  # these files may count or not: only files that stay in both cases must stay
            counted = ({path: at for path, at in some.items() if at not in uncounted} for some in (there, seen))
            keep &= self._must_stay_in(*counted, own.floor, **given)
        keep |= self._needed(there) if not catalog else set()
        marked = self._marked_contents(there) if is_told else {}
        unsure = self.is_shaken or self._is_interrupted() or has_missed or (catalog > 0 and self.has_gap)
        going: set[str] = set()

        def work(opened: Catalog) -> Any:
            plan = planned(opened)
            going.update(target.path for targets in plan.targets.values() for target in targets)
            return opened.execute(plan, now=now, allow_mass_delete=True)

        begun = self.machine.now_ns
        task = self._operate(name, work, catalog)
        self._collecting = outer
        after = self.everything()
        unsure |= self.is_shaken
        if not unsure:
            self._check_kept(name, there, after, keep)
            self._check_marked(name, marked, after)
        self._settle_graces(begun, there, after)
        was_killed = not task.is_over
        is_refused = isinstance(task.error, RefusedError)  # before it moved anything
        has_failed = task.is_over and not is_refused and (task.error is not None or bool(task.result.troubles))
        if was_killed or has_failed:  # files that were not moved count again after the next gc or undo
            self._unmoved |= {after[path] for path in going if path in after}
            self._uncounted |= self._unmoved
        is_open = was_killed and not (now or unsure) and self.is_quiet and bool(going & set(self.there()))
        removed = {step for _, step in task.result.removed} if task.is_over and task.error is None else set()
        for path, content in after.items():
            is_new = path not in there and path not in self.in_trash  # a gc that came in between has its own grace
            identity = self.truth.contents.get(content)
            if not (is_new and "/.ckptstore/trash/" in path and identity):
                continue
            if outer is None or identity.step in removed:  # while that one waits, its files have their own grace
                grace_ns = int(policy.grace.total_seconds()) * 10**9
                self.in_trash[path] = InTrash(begun, grace_ns, is_open, now and was_killed)

    def branch(self, step: int = 0) -> None:
        """The job is stopped, and a user makes the run go back to an older state."""
        self._end_trainers()
        known = sorted({at for _, at in self.truth.whole(self.there())})
        if not known:
            return
        back = known[step % len(known)]

        def work(opened: Catalog) -> Any:
            plan = opened.resolve(RUN, step=back).plan
            return (plan, opened.branch(plan)) if plan is not None else None

        number = len(self.truth.launches)
        task = self._operate("branch", work)
        if task.error is not None and not isinstance(task.error, CkptstoreError):
            return
        decision = Launch(number, f"decision {number}", self.size, branched=True)
        self.truth.launches.append(decision)
        if task.error is None and task.is_over and task.result:
            plan, decision.name = task.result
            decision.parent = self._launch_of(plan), plan.global_step
            decision.decided = True
            decision.in_doubt = self.has_moved and not self.is_current  # perhaps only the catalog has it
            self._check_given("branch", plan)
        else:
            decision.in_doubt = True

    def undo(self, catalog: int = 0) -> None:
        """Undo the last gc."""
        before, alone = self.everything(), not self._is_interrupted()
        begun = self.machine.now_ns
        task = self._operate("undo", lambda opened: opened.undo(RUN), catalog)
        after = self.everything()
        has_unread = any(disk.unreadable for disk in self.disks.values())
        # If it was killed or failed, files that it moved back count only after the next gc or undo. A journal that it
        # could not read may say that a rank missed a file, which was in the trash: that file counts only after a scan.
        if has_unread or not task.is_over or task.error is not None or task.result.troubles:
            trashed = {content for path, content in before.items() if "/.ckptstore/trash/" in path}
            self._uncounted |= trashed & {content for path, content in after.items() if path not in before}
        if alone:
            self._check_nothing_lost("undo", before, after)
        self._settle_graces(begun, before, after)

    def purge(self, now: bool = False, catalog: int = 0) -> None:  # noqa: FBT001, FBT002
        """Delete the files in the trash whose grace is over, or all of them with `now`."""
        self._ensure(catalog)
        before, alone = self.everything(), not self._is_interrupted()
        marked = self._marked_contents(before) if self._has_heard_marks(catalog) else {}
        away, begun = {path for path in self.in_trash if self._is_away(path)}, self.machine.now_ns
        for path in self.in_trash.keys() - away if now else ():
            self.in_trash[path].is_doomed = True  # a gc that runs in between may delete it
        self._operate("purge", lambda opened: opened.purge(RUN, now=now), catalog)
        after = self.everything()
        if alone:
            self._check_homes("purge", before, after)
            if not (self.is_shaken or (catalog > 0 and self.has_gap)):
                self._check_marked("purge", marked, after)
        if now:
            for path, promised in self.in_trash.items():
                promised.is_doomed |= path not in away or not self._is_away(path)
            self.in_trash = {path: promised for path, promised in self.in_trash.items() if path in after}
        else:
            self._settle_graces(begun, before, after)

    def pin(self, step: int = 0, undo: bool = False, catalog: int = 0) -> None:  # noqa: FBT001, FBT002
        """Pin a saved step, or unpin it.

        If several catalogs change one pin, each may undo the change of another. Then no promise is checked.
        """
        steps = self._steps()
        if not steps:
            return
        at = steps[step % len(steps)]
        was = self.truth.pinned.pop(at, False)
        had_gap = self.has_gap

        def work(opened: Catalog) -> bool:
            return opened.unpin(RUN, at) if undo else opened.pin(RUN, at)

        is_heard = self.is_quiet and not had_gap
        task = self._operate("unpin" if undo else "pin", work, catalog)
        self.machine.sleep(6 if catalog else 0)  # until a slow disk lists the journal to the others
        if undo:  # a pin that was set in between may be undone too, or not
            self.truth.pinned.pop(at, None)
            self.unpinned.setdefault(at, set()).add(catalog)
            return
        is_told = task.error is None and task.is_over
        is_certain = self.unpinned.get(at, set()) <= {catalog}
        if (is_told and is_certain and (not catalog or (is_heard and not self.has_gap))) or (was and is_certain):
            self.truth.pinned[at] = True

    def tag(self, step: int = 0, name: int = 0, undo: bool = False) -> None:  # noqa: FBT001, FBT002
        """Tag a saved step, or remove its tag."""
        steps = self._steps()
        if not steps:
            return
        at, label = steps[step % len(steps)], f"tag{name % 3}"
        was = self.truth.tags.pop(label, None)
        task = self._operate(
            "untag" if undo else "tag", lambda opened: opened.untag(RUN, label) if undo else opened.tag(RUN, at, label)
        )
        if undo:
            self.truth.tags.pop(label, None)
        if not undo and task.error is None and task.is_over:
            self.truth.tags[label] = at
        elif not undo and task.is_over:
            self.truth.tags[label] = was

    def resolve(self, catalog: int = 0) -> None:
        """Resolve the run, and check the plan."""
        fault = self.fault
        task = self._operate("resolve", lambda opened: opened.resolve(RUN), catalog)
        if task.error is None and task.is_over:
            resolution: Resolution = task.result
            if fault is None or fault.what != "stop":
                is_sure = fault is None and self.is_current and not (self.is_shaken or self._is_within_a_start)
                self._check_plan(
                    "resolve",
                    resolution.plan,
                    self._counted([each.source.path for each in resolution.plan.ranks] if resolution.plan else ()),
                    complete=is_sure and not (catalog or self.uid),
                )

    def scan(self, catalog: int = 0) -> None:
        """Scan the tree."""
        before, alone = self.everything(), not self._is_interrupted()
        if catalog:
            if not self.has_other:
                self._make_other()
            self.other_missed &= self._is_hiding() or self._is_slow()
        else:
            self.first_missed &= self._is_hiding()
        task = self._operate("scan", lambda opened: opened.scan(ROOT, run=RUN), catalog)
        if alone:
            self._check_homes("scan", before, self.everything())
        for file in task.result.adopted if task.error is None and task.is_over else ():
            if self._at(file.path) in self.neighbours:
                raise ViolationError(f"a scan takes {file.path} of another run")
        self.is_current |= not (catalog or self.uid) and task.error is None and task.is_over and self.is_quiet

    def verify(self, digest: bool = False, beside: bool = False) -> None:  # noqa: FBT001, FBT002
        """Compare all files with the catalog; the files of the other run if `beside`."""
        before, alone = self.everything(), not self._is_interrupted()
        self.is_shaken |= self.fault is not None and self.fault.error == "EIO"  # an unreadable file counts as damaged
        self._operate("verify", lambda opened: opened.verify(NEIGHBOUR if beside else RUN, digest))
        if alone:
            self._check_homes("verify", before, self.everything())

    def sync(self, catalog: int = 0) -> None:
        """Take up the journals."""
        task = self._operate("sync", lambda opened: opened.sync(RUN), catalog)
        is_told = self.is_quiet and self.is_current  # only a start or a scan finds a moved tree
        if not (catalog or self.uid) and task.is_over and task.error is None and is_told:
            # A launch that was killed before it could make its directory stays in the catalog alone.
            self.has_gap &= any(each.branched and not each.is_announced for each in self.truth.launches)

    def as_stranger(self, name: str, arguments: dict[str, Any]) -> None:
        """Run a command as a user who can neither read the files nor write beside them."""
        self.uid = 1000
        try:
            getattr(self, name)(**arguments)
        finally:
            self.uid = 0

    def look(self) -> None:
        """Run each command that lists something."""
        self._operate("look", lambda opened: (opened.runs(), opened.saves(RUN), opened.files(RUN), opened.history(RUN)))

    def rename(self) -> None:
        """Rename the run, and give it its first name back."""
        if self._operate("rename", lambda opened: opened.rename(RUN, "other-name")) is not None:
            self._operate("rename", lambda opened: opened.rename("other-name", RUN))

    def forget(self) -> None:
        """Hide the run, and bring it back."""
        self._operate("forget", lambda opened: opened.forget(RUN))
        for _ in range(3):
            task = self._operate("forget", lambda opened: opened.forget(RUN, undo=True))
            if task.error is None and task.is_over:
                break

    def policy(self, keep_last: int = 3) -> None:
        """Store a policy."""
        from ckptstore.retention import stored_policy

        self._operate("policy", lambda opened: stored_policy.store(opened.database, RUN, Policy(keep_last=keep_last)))

    # Users and the machines.

    def cut(self, which: int = 0) -> None:
        """A user cuts a checkpoint."""
        self._change(which, lambda content: content[:-7])

    def flip(self, which: int = 0) -> None:
        """A user writes other bytes into a checkpoint."""
        self._change(which, lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:])

    def _change(self, which: int, change: Callable[[bytes], bytes]) -> None:
        path = self._checkpoint(which)
        if path is None:
            return
        self._give_up_backups()
        system = self.machine.system

        def work() -> None:
            with system.open_file(path, "rb") as file:
                content = file.read()
            system.unlink(path)
            with system.open_file(path, "wb") as file:
                file.write(change(content))

        was = self.there()[path]
        self._dropped.add(was)
        identity = self.truth.contents[was]
        known = self.truth.launches[identity.launch].saved[identity.step][identity.rank]
        self.machine.sleep(self.is_coarse)  # a change in the second of the save shows only in the bytes
        with suppress(ViolationError):
            self._run(self.operator, work, "damage")
        damaged = self.there().get(path, b"")
        self.damaged.add(damaged)
        if not any(each.registered for each in known):  # no record has its original bytes
            self.rotten[path] = damaged

    def _checkpoints(self) -> list[str]:
        """The paths of the checkpoints that can be seen, without those in the trash and in backups."""
        there = self.there().items()
        known = (path for path, at in there if at in self.truth.contents)
        return sorted(path for path in known if "/.ckptstore/" not in path and _BACKUP not in path)

    def _checkpoint(self, which: int) -> str | None:
        """The path of one of the checkpoints that can be seen."""
        paths = self._checkpoints()
        return paths[which % len(paths)] if paths else None

    def delete(self, which: int = 0) -> None:
        """A user deletes a checkpoint."""
        path = self._checkpoint(which)
        if path is not None:
            self._give_up_backups()
            self._dropped.add(self.everything().get(path, b""))
            with suppress(ViolationError):
                self._run(self.operator, lambda: self.machine.system.unlink(path), "delete")

    def move(self, which: int = 0) -> None:
        """A user renames a checkpoint."""
        path = self._checkpoint(which)
        if path is not None:
            self._give_up_backups()
            other = f"{path.removesuffix('.ckpt')}-old.ckpt"
            with suppress(ViolationError):
                self._run(self.operator, lambda: self.machine.system.rename(path, other), "move")

    def touch(self, which: int = 0, every: bool = False) -> None:  # noqa: FBT001, FBT002
        """Set the time of a checkpoint to now, as a copy there and back does. `every`: of all files of its step."""
        path = self._checkpoint(which)
        if path is None:
            return
        there = self.there()
        step = self.truth.contents[there[path]].step
        paths = [
            other
            for other, content in sorted(there.items())
            if content in self.truth.contents and self.truth.contents[content].step == step
        ]
        for each in paths if every else [path]:
            if "/.ckptstore/" not in each:
                with suppress(ViolationError):
                    self._run(self.operator, lambda: self.machine.system.utime(each), "touch")  # noqa: B023

    def copy(self, which: int = 0, times: bool = False) -> None:  # noqa: FBT001, FBT002
        """A user copies a checkpoint to a name beside it, with its times or without."""
        path = self._checkpoint(which)
        if path is not None:
            self._copy(path, f"{path.removesuffix('.ckpt')}-copy.ckpt", times=times)

    def _copy(self, path: str, other: str, *, times: bool) -> None:
        with suppress(ViolationError):
            self._run(self.operator, lambda: self._copy_file(path, other, times=times), "copy")

    def _copy_file(self, path: str, other: str, *, times: bool) -> None:
        system = self.machine.system
        with system.open_file(path, "rb") as source, system.open_file(other, "wb") as target:
            target.write(source.read())
        if times:
            at = system.stat(path).st_mtime_ns
            system.utime(other, ns=(at, at))

    def back_up(self, which: int = 0, times: bool = False) -> None:  # noqa: FBT001, FBT002
        """A user copies a directory with its journals into a subdirectory, with the times of its files or without."""
        folders = sorted({path.rpartition("/")[0] for path in self._checkpoints()})
        if not folders or not self.is_quiet:
            return
        source = folders[which % len(folders)]
        target = f"{source}/{_BACKUP}{self.done['back up']}"
        self.done["back up"] += 1
        system = self.machine.system
        inside = sorted(path for path in self.there() if path.startswith(f"{source}/") and _BACKUP not in path)

        def work() -> None:
            for path in inside:
                other = target + path.removeprefix(source)
                system.makedirs(other.rpartition("/")[0], exist_ok=True)
                self._copy_file(path, other, times=times)

        with suppress(ViolationError):
            self._run(self.operator, work, "copy")
        known = {each.content for each in self.truth.every_file() if each.registered}
        self.backups |= {
            path: content
            for path, content in self.everything().items()
            if path.startswith(f"{target}/") and content in known
        }

    def _give_up_backups(self) -> None:
        """Originals are changed, or their journals cannot be read: copies may count from now on."""
        self.is_shaken |= bool(self.backups)
        self.backups.clear()

    def _check_backups(self, after: dict[str, bytes]) -> None:
        """Check that no copy of a registered file is touched while the original is in its place or in the trash."""
        if self.first_missed or self.other_missed or self.has_gap:
            self.backups.clear()  # a catalog may know the copies before the originals
        homes = {each.content: each.path for each in self.truth.every_file()}
        trashed = {at for path, at in after.items() if "/.ckptstore/trash/" in path and _BACKUP not in path}
        for path, content in list(self.backups.items()):
            is_original_there = after.get(homes[content]) == content
            if is_original_there or content in trashed | self._in_trash_before:
                if after.get(path) != content:
                    raise ViolationError(f"{path} of a backup was touched")
                self.checked["backups"] += 1
            else:
                del self.backups[path]
                self.is_shaken = True  # the copy may count: a floor may have it in place of an older state
        self._in_trash_before = trashed

    def move_tree(self) -> None:
        """A user moves all files of the run to another path. The next launch saves there."""
        self._end_trainers()
        if not self.is_quiet or any(f"/data/{path}".startswith(self.place) for path in self.below.everything()):
            return  # files below the mount points would stay at the old path
        old, new = self.place, f"{ROOT}/moved{self.done['move tree']}"
        self.done["move tree"] += 1

        def at(path: str) -> str:
            return new + path.removeprefix(old) if path == old or path.startswith(f"{old}/") else path

        for path in [path for path in self.disks if at(path) != path]:
            disk = self.disks.pop(path)
            self.disks[at(path)] = disk
            for node in self.nodes:
                node.unmount(path)
                node.directory(new)
                node.mount(at(path), disk)
        for each in self.truth.every_file():
            each.path = at(each.path)
        for launch in self.truth.launches:
            launch.plan = {rank: at(path) for rank, path in launch.plan.items()}
        self.rotten = {at(path): content for path, content in self.rotten.items()}
        self.backups = {at(path): content for path, content in self.backups.items()}
        self._strangers = {at(path): content for path, content in self._strangers.items()}
        self.neighbours = {at(path): content for path, content in self.neighbours.items()}
        self._end_neighbour()
        self.in_trash = {at(path): promised for path, promised in self.in_trash.items()}
        self.places = [at(place) for place in self.places]
        self.place = new
        self.plans.clear()
        self.is_current = False
        self.has_moved = True
        self.is_shaken |= self.has_gap  # records that only the catalog has name the old path

    def unmount(self, which: int = 0, gone: bool = False) -> None:  # noqa: FBT001, FBT002
        """Unmount a disk. Its mount point stays as an empty directory, or is `gone` too."""
        paths = sorted(set(self.disks) - self.away)
        if paths:
            path = paths[which % len(paths)]
            for node in self.nodes:
                node.unmount(path)
            self.away.add(path)
            if gone:
                with suppress(ViolationError):
                    self._run(self.operator, lambda: self.machine.system.rmdir(path), "unmount")

    def mount(self) -> None:
        """Mount all disks again."""
        for path in sorted(self.away):
            for node in self.nodes:
                node.directory(path.rpartition("/")[0])
                node.mount(path, self.disks[path])
        self.away.clear()

    def fill(self, which: int = 0, room: int = 0) -> None:
        """Fill a disk, except for a few bytes."""
        disk = self.disks[sorted(self.disks)[which % len(self.disks)]]
        disk.capacity = disk.used + room

    def protect(self, which: int = 0) -> None:
        """Make a disk read-only."""
        self.disks[sorted(self.disks)[which % len(self.disks)]].read_only = True

    def slow(self, which: int = 0) -> None:
        """Make a disk list new files only after some seconds, as a network file system may."""
        self.disks[sorted(self.disks)[which % len(self.disks)]].slow_ns = 5 * 10**9

    def _has_heard_marks(self, catalog: int) -> bool:
        """Whether a catalog knows all pins and tags. The second catalog reads them from journals."""
        if not catalog:
            return not self.first_missed
        return not (self.other_missed or self.has_lost_disk or self._is_slow())  # the line may have been on that disk

    def _is_slow(self) -> bool:
        return any(disk.slow_ns for disk in self.disks.values())

    def spoil(self, which: int = 0) -> None:
        """Make a journal unreadable (EIO) for some time. A catalog that was made anew may not have read it before."""
        self._give_up_backups()
        self.first_missed |= not self.is_current
        disks = (disk for _, disk in sorted(self.disks.items()))
        journals = [file for disk in disks for path, file in sorted(disk.walk_files()) if path.endswith(".jsonl")]
        if journals:
            file = journals[which % len(journals)]
            file.disk.unreadable.add(file)

    def rot(self, which: int = 0) -> None:
        """Damage one line about a launch in a journal. A journal of another directory says the same.

        That of a backup is read after the damaged one: only the next sync takes up what was left out.
        """
        told: dict[tuple[str, bool], dict[str, list[tuple[File, int]]]] = {}
        for at, disk in sorted(self.disks.items()):
            for path, file in sorted(disk.walk_files()):
                folder, _, name = path.rpartition("/")
                if not name.endswith(".jsonl") or name.startswith("summary") or _BACKUP in path:
                    continue
                begin = 0
                for line in bytes(file.content).splitlines(keepends=True):
                    if line.startswith(b'{"v":1,"t":"launch"') and line.endswith(b"}\n"):
                        launch = line.partition(b'"id":')[2].partition(b",")[0].decode()
                        key = launch, b'"start":' in line
                        told.setdefault(key, {}).setdefault(f"{at}/{folder}", []).append((file, begin))
                    begin += len(line)
        places = [place for homes in told.values() if len(homes) > 1 for each in homes.values() for place in each]
        if places:
            file, begin = places[which % len(places)]
            for held in (file.content, file.stable):
                held[begin + 1 : begin + 2] = b"\xff"[: len(held) - begin - 1]

    def take_out(self, which: int = 0, times: bool = False) -> None:  # noqa: FBT001, FBT002
        """A user copies a checkpoint from the trash to its original path, with its times or without."""
        homes = {each.content: each.path for each in self.truth.every_file()}
        there = self.there()
        inside = sorted(path for path, at in there.items() if at in homes and "/.ckptstore/trash/" in path)
        if inside:
            path = inside[which % len(inside)]
            if homes[there[path]] not in there:
                self._uncounted.add(there[path])
                self._copy(path, homes[there[path]], times=times)

    def relieve(self) -> None:
        """Make all disks and catalogs readable and writable, except unmounted disks. A launch notices within 20 s."""
        while self._locks:
            self._locks.pop().close()
        for disk in self.disks.values():
            disk.read_only, disk.capacity, disk.slow_ns = False, None, 0
            disk.unreadable.clear()
        self.machine.catalogs.away.clear()
        self.machine.sleep(21 if self.trainers else 0)

    def catalog_away(self) -> None:
        """Make the catalog unreachable."""
        self.machine.catalogs.away.add(self.catalogs[0])
        self.is_current = False

    def lock_catalog(self) -> None:
        """Another program holds a transaction in the catalog."""
        if not self._locks and not self.machine.catalogs.away:
            lock = sqlite3.connect(self.catalogs[0], isolation_level=None)
            lock.execute("BEGIN IMMEDIATE")
            self._locks.append(lock)
            self.is_current = False

    def lose_catalog(self, to_yesterday: bool = False) -> None:  # noqa: FBT001, FBT002
        """Lose the catalog, or restore an old copy of it (`to_yesterday`)."""
        self._end_trainers()
        self.tuned = None  # no journal had a record of it
        self.is_current, self.first_missed = self.is_quiet, self._is_hiding()
        self.is_shaken |= self.has_gap
        for launch in self.truth.launches:
            if launch.plain or launch.is_in_catalog_alone or (self.has_gap and not launch.is_announced):
                launch.decided, launch.in_doubt = False, launch.in_doubt or launch.branched
        copied = self._kept_catalog if to_yesterday and self._kept_catalog else self._template
        while self._locks:
            self._locks.pop().close()
        self.machine.catalogs.replace(self.catalogs[0], copied)
        if self.is_current:
            self._operate("scan", lambda opened: opened.scan(ROOT, run=RUN))

    def keep_catalog(self) -> None:
        """Copy the catalog."""
        copy = f"{self.catalogs[0]}.kept"
        for suffix in ("", "-wal", "-shm"):  # from an earlier history
            Path(f"{copy}{suffix}").unlink(missing_ok=True)
        with closing(sqlite3.connect(self.catalogs[0])) as connection, closing(sqlite3.connect(copy)) as target:
            connection.backup(target)
        self._kept_catalog = copy

    def _make_other(self) -> None:
        self.machine.catalogs.make(self.catalogs[1])
        self.has_other = True
        self.other_missed = self._is_hiding() or self._is_slow()

    def power_loss(self) -> None:
        """All nodes lose power. Changes that were not synced may be lost."""
        self._end_trainers()
        self.done["power loss"] += 1
        # With a clock that is behind, a file that replaces a lost one seems older than the lost one.
        self.is_shaken |= any(node.clock_offset_ns < 0 for node in self.nodes)
        self.beside = []
        for node in self.nodes:
            node.reboot()
        self.operator = self._boot(0, "operator")
        before = self.everything()
        for disk in self.disks.values():
            disk.power_loss(self.machine.chance)
        after = self.everything()
        self.neighbours = {path: content for path, content in self.neighbours.items() if after.get(path) == content}
        self.backups = {path: content for path, content in self.backups.items() if after.get(path) == content}
        for path in self._strangers:
            if path not in after:
                raise ViolationError(f"{path} of a stranger is lost")
        for folder in self._journalled(before) - self._journalled(after):
            raise ViolationError(f"{folder} lost its journals, though it has registered files")
        self._risen |= {path for path in after.keys() - before.keys() if "/.ckptstore/trash/" in path}
        # A move into the trash may not be durable yet. Files that return home count again after the next gc or undo.
        trashed = {content for path, content in before.items() if "/.ckptstore/trash/" in path}
        self._uncounted |= trashed & {after[path] for path in after.keys() - before.keys()}
        for path, content in before.items():
            is_changed = content in self.truth.contents and after.get(path, content) != content
            is_damaged = content in self.damaged  # its recorded time may have come back
            if (is_damaged or is_changed) and len(after.get(path, b"")) == len(content):
                root, in_trash, place = path.partition("/.ckptstore/trash/")
                home = f"{root}/{place.partition('/')[2]}" if in_trash else path  # where an undo brings it
                self.rotten[path] = self.rotten[home] = after[path]
        for each in self.truth.every_file():  # no program knows of files that came back, or have their old size again
            was_cut = before.get(each.path) != each.content != after.get(each.path)
            if (each.path not in before or was_cut) and len(after.get(each.path, b"")) == len(each.content):
                self.rotten[each.path] = after[each.path]
            each.registered &= before.get(each.path) == each.content or after.get(each.path) != each.content
            each.is_written &= each.registered

    def _journalled(self, files: dict[str, bytes]) -> set[str]:
        """The directories that have a journal and a registered file."""
        found = {path.rpartition("/.ckptstore/")[0] for path in files if path.endswith(".jsonl")}
        return found & {each.path.rpartition("/")[0] for each in self.truth.every_file() if each.registered}

    def wait(self, seconds: int = 60, to_grace: bool = False) -> None:  # noqa: FBT001, FBT002
        """Let so many seconds pass. `to_grace`: counted from the end of the next grace (before it if less than 0)."""
        ends = [promised.since_ns + promised.grace_ns for promised in self.in_trash.values()]
        if to_grace and ends:
            seconds += (min(ends) - self.machine.now_ns) // 10**9
        if seconds > _WITHIN_A_LEASE:
            self.machine.sleep(seconds - _WITHIN_A_LEASE)  # a launch that is alive then renews its lease
        self.machine.sleep(min(max(seconds, 0), _WITHIN_A_LEASE))

    def clock(self, node: int = 0, seconds: int = 0) -> None:
        """Set the clock of a node. No promise covers clocks that differ too much, or run behind after a power loss."""
        self.is_shaken |= abs(seconds) > 300 or (seconds < 0 and bool(self.done["power loss"]))
        self.nodes[node % len(self.nodes)].clock_offset_ns = seconds * 10**9

    # What must hold.

    def _steps(self) -> list[int]:
        return sorted({step for launch in self.truth.launches for step in launch.saved})

    def _must_stay_in(
        self,
        there: dict[str, bytes],
        seen: dict[str, bytes],
        floor: int,
        *,
        copied: Collection[bytes] = (),
        **given: bool,
    ) -> set[str]:
        """As `_must_stay`, for the files on all disks, and for the files that can be seen now and are not `copied`.

        A state that was saved below an empty mount point counts until a mounted disk hides it, also if the disk has
        older files of the same names. What a user deleted on a disk that is unmounted now counts for the floor on the
        nodes, and so does what a mounted disk hides: then a state may go there that the tier has.
        """
        besides = copied if self.away or self._is_hidden() else ()
        keep = {path for path in self._must_stay({**there, **seen}, floor, **given) if there.get(path) not in besides}
        keep &= there.keys()
        return keep | {self._at(path) for path in self._must_stay(seen, floor, **given) if seen[path] not in copied}

    def _must_stay(
        self, there: dict[str, bytes], floor: int, *, now: bool, marked: bool = True, leased: bool = True
    ) -> set[str]:
        """The files that gc must keep: those of the newest complete states, marked steps, and the leased state."""
        if self.truth.is_in_doubt() or self.truth.has_untold():
            states: list[tuple[Launch, int]] = []
        else:
            states = self.truth.floor(there, max(floor, 1), {} if now else self.rotten)
        # An unregistered file may count as a file of another launch. Its state is complete without it.
        paths = {each.path for launch, step in states for each in self.truth.files(launch, step) if each.registered}
        marks = self.truth.marked() if marked else set()
        for launch in self.truth.launches:
            for step in launch.saved:
                if step in marks:
                    paths |= {each.path for each in self.truth.files(launch, step)}
        newest = self.truth.launches[-1] if self.truth.launches else None
        if (
            newest is not None
            and leased
            and self.trainers
            and newest.parent
            and not self.truth.has_newer(newest, newest.parent[1])
            # Unregistered files may be adopted.
            and not any(
                step > newest.parent[1] and self.truth.is_whole(newest, step, there, registered=False)
                for step in newest.saved
            )
        ):
            paths |= set(newest.plan.values())
        return {path for path in paths if there.get(path) in self.truth.contents}

    def _check_kept(self, what: str, before: dict[str, bytes], after: dict[str, bytes], keep: set[str]) -> None:
        self.checked["kept"] += len(keep)
        for path in sorted(keep):
            if after.get(path) != before[path] and before[path] not in self._dropped:
                where = [other for other, content in after.items() if content == before[path]]
                raise ViolationError(f"{what} removed {path}, which must stay (now at {where})")

    def _check_homes(self, what: str, before: dict[str, bytes], after: dict[str, bytes]) -> None:
        """Check that this command moved or changed no checkpoint. Skipped if a stopped gc ran on at the same time."""
        if self.machine.went_on != self._went_on:
            return
        for path, content in before.items():
            is_renamed = path.endswith(".tmp") and content in after.values()  # its rank was writing it
            if "/.ckptstore/" in path or content not in self.truth.contents or is_renamed:
                continue
            if after.get(path) != content:
                raise ViolationError(f"{what} moved or changed {path}")

    def _check_nothing_lost(self, what: str, before: dict[str, bytes], after: dict[str, bytes]) -> None:
        contents = set(after.values())
        for path, content in before.items():
            if "/.ckptstore/fetched/" in path:  # a launch deletes what it fetched once its first save is recorded
                continue
            if content in self.truth.contents and content not in contents | self._dropped:
                raise ViolationError(f"{what} deleted {path}")

    def _marked_contents(self, there: dict[str, bytes]) -> dict[bytes, str]:
        """The files of pinned and tagged steps, wherever they are, and their paths."""
        marked = self.truth.marked()
        registered = {
            each.content
            for launch in self.truth.launches
            for step in marked & launch.saved.keys()
            for each in self.truth.files(launch, step)
            if each.registered
        }
        # After a power loss, a file may have its temporary name again. Such a file is debris.
        named = {path: content for path, content in there.items() if not path.endswith(".tmp")}
        return {content: path for path, content in named.items() if content in registered}

    def _check_marked(self, what: str, marked: dict[bytes, str], after: dict[str, bytes]) -> None:
        self.checked["marked"] += len(marked)
        left = set(after.values())
        for content, path in marked.items():
            if content not in left | self._dropped:
                raise ViolationError(f"{what} deleted {path}, of a pinned or tagged step")

    def _settle_graces(self, begun: int, before: dict[str, bytes], after: dict[str, bytes]) -> None:
        """Check that files left the trash only after their grace. Files of an unfinished gc begin their grace now.

        Clocks that differ by ten minutes must not shorten a grace. Files may be missing without a violation if a
        stopped action ran on at the same time.
        """
        contents = set(after.values())
        for path, promised in list(self.in_trash.items()):
            was = before.get(path)
            if path not in after:
                is_lost = was is not None and was not in contents | self._dropped
                is_lost &= self.machine.went_on == self._went_on
                if is_lost and not promised.is_due(self.machine.now_ns) and not self.is_shaken:
                    raise ViolationError(f"{path} was purged before its grace is over")
                del self.in_trash[path]
            elif promised.is_open:
                promised.is_open, promised.since_ns = False, begun

    def check(self) -> None:
        """Check the promises that hold after every step."""
        after = self.everything()
        for path, content in (*self._strangers.items(), *self.neighbours.items()):
            if after.get(path) != content:
                raise ViolationError(f"{path} of a stranger was touched")
        if self.nodes[0].disk.everything().get(_LINKED[1:]) != b"linked":
            raise ViolationError(f"{_LINKED}, to which a link leads, was touched")
        self.checked["strangers"] += 1
        self._check_backups(after)

    def _check_start(
        self,
        launch: Launch,
        trainer: Trainer,
        start: Start,
        back: int | None,
        *,
        fresh: bool,
        is_blind: bool,
        is_alone: bool,
    ) -> None:
        """Check a rank's start: the plan is the same for all ranks, is one complete state, and is the newest possible.

        `is_blind`: the start could not look at a file, or at a catalog with records that no journal has.
        """
        plan = start.plan
        paths = {each.rank: each.source.path for each in plan.ranks} if plan else {}
        there = self._counted(paths.values())
        if trainer.rank == 0:
            is_listed = self.is_current or not self._is_slow()
            has_missed = self.first_missed and any(each.branched for each in self.truth.launches)
            is_told = (self.is_current or trainer.recorder is not None) and is_listed and not has_missed
            is_complete = back is None and not fresh and not self.is_shaken and is_told and not is_blind
            if fresh and plan is not None:
                raise ViolationError(f"a start that was to start over goes on from step {plan.global_step}")
            if is_alone:
                self._check_plan("start", plan, there, complete=is_complete, adopts=self._adopts())
                is_known = self.is_current and not self.first_missed
                if is_complete and plan is None and (is_known or not (self.away or self._is_hidden())):
                    self._check_nothing_hidden(launch)
            if plan is not None:
                self._check_given("start", plan)
            self.is_current |= trainer.recorder is not None and self.is_quiet
            launch.decided = True
            launch.in_doubt = False
            launch.plan = paths
            launch.branched = fresh or back is not None
            # Neither the catalog nor a clock shows after which launches it began.
            launch.in_doubt |= launch.plain and not self.is_current and self._is_behind()
            if plan is not None:
                launch.parent = self._launch_of(plan), plan.global_step
        elif paths != launch.plan:
            raise ViolationError(f"rank {trainer.rank} starts from {paths}, rank 0 from {launch.plan}")

    def _is_behind(self) -> bool:
        return any(node.clock_offset_ns < 0 for node in self.nodes)

    def _adopts(self) -> bool:
        """Whether a start must adopt unregistered files.

        It must only if no other run can have written them, and no launch that began before they were listed.
        """
        may_be_of_others = self.has_neighbour or any(each.is_late_to_see for each in self.truth.launches[:-1])
        return self.is_quiet and not self.has_gap and not may_be_of_others

    def _launch_of(self, plan: RestorePlan) -> int:
        """The number of the launch that a plan goes on from. For unregistered files, the plan has a scanned launch."""
        named = {each.name: each.number for each in self.truth.launches}
        if plan.launch.id in named:
            return named[plan.launch.id]
        there = self.there()
        found = {
            self.truth.contents[content].launch
            for each in plan.ranks
            if (content := self._read(plan, each.source, there)) in self.truth.contents
        }
        if not plan.launch.id.startswith("scan-") or len(found) != 1:
            raise ViolationError(f"a start goes on from launch {plan.launch.id}, which never existed")
        return found.pop()

    def _check_plan(
        self,
        what: str,
        plan: RestorePlan | None,
        there: dict[str, bytes],
        *,
        complete: bool,
        adopts: bool = False,
    ) -> None:
        """Check that a plan is one state, and with `complete` the newest. With `adopts`, unregistered files count."""
        truth = self.truth
        must = truth.whole(self._within_reach(there), adopts=adopts)
        if plan is not None:
            self._check_one_state(what, plan, there)
        if not complete or truth.is_in_doubt() or not must:
            return
        self.checked["newest"] += 1
        newest, step = must[0]
        chosen = (plan.launch.id, plan.global_step) if plan is not None else None
        if chosen == (newest.name, step):
            return
        if plan is not None and plan.launch.id.startswith("scan-"):
            return  # a newer state that was not registered
        if plan is not None:
            launch = next((each for each in truth.launches if each.name == plan.launch.id), None)
            order = [(each.name, at) for each, at in truth.lineage()]
            if chosen in order and order.index(chosen) < order.index((newest.name, step)):
                return  # a newer state that was not registered
            if launch is not None and launch.number > newest.number:
                return
            if launch is newest and plan.global_step > step and self._is_hidden():
                self.checked["hidden"] += 1  # what the launch that gave this state up saved is below a mount point
                return
        raise ViolationError(f"{what} takes {chosen}, though step {step} of {newest.name} is newer and whole")

    def _check_one_state(self, what: str, plan: RestorePlan, there: dict[str, bytes]) -> None:
        self.checked["one state"] += 1
        size = self.truth.launches[-1].size if what == "start" else plan.launch.world_size
        if {each.rank for each in plan.ranks} != set(range(size)):
            raise ViolationError(f"{what}: the plan has the wrong ranks: {[each.rank for each in plan.ranks]}")
        for each in plan.ranks:
            content = self._read(plan, each.source, there)
            if content is None:
                raise ViolationError(f"{what}: {each.source.path} of the plan is not there")
            identity = self.truth.contents.get(content)
            if identity is None and content in self.rotten.values():  # gc, undo or a power loss may have moved it
                self.checked["rotten"] += 1
                continue
            if identity is None:
                raise ViolationError(f"{what}: {each.source.path} of the plan has bytes that no rank wrote")
            launch = self.truth.launches[identity.launch]
            if launch.is_unheard:
                self.checked["unheard"] += 1
                continue
            planned = next((each for each in self.truth.launches if each.name == plan.launch.id), None)
            # A launch that goes on trains what the one before did: its files of a step are alike.
            may_be_alike = planned is not None and planned.number > launch.number and not planned.branched
            is_seen_late = may_be_alike and planned.is_late_to_see and not self._is_registered(content)
            if is_seen_late and identity.step == plan.global_step:
                self.checked["seen late"] += 1  # files of the launch before were not listed yet
                continue
            is_scanned = plan.launch.id.startswith("scan-") and not self._is_registered(content)
            # A catalog that has not heard where it saves may take its file for one of the launch before. So does each
            # if the file is dated before its launch, by a clock that was set back.
            is_taken = (launch.is_in_catalog_alone and self.has_other) or self._is_behind()
            is_taken &= not launch.branched and launch.name != plan.launch.id
            self.checked["unheard"] += is_taken
            name = plan.launch.id if is_scanned or is_taken else launch.name
            if (name, identity.step) != (plan.launch.id, plan.global_step):
                raise ViolationError(
                    f"{what}: {each.source.path} is of step {identity.step} of {launch.name}, the plan is step "
                    f"{plan.global_step} of {plan.launch.id}"
                )
            if identity.rank not in self.truth.stand_ins(each.rank):
                raise ViolationError(f"{what}: rank {each.rank} gets the file of rank {identity.rank}")

    def _is_registered(self, content: bytes) -> bool:
        return any(each.registered for each in self.truth.every_file() if each.content == content)

    def _within_reach(self, there: dict[str, bytes]) -> dict[str, bytes]:
        """The files that a start can read or fetch."""
        return there

    def _read(self, plan: RestorePlan, file: Checkpoint, there: dict[str, bytes]) -> bytes | None:
        """The bytes that a launch with this plan gets for one of its files."""
        return there.get(file.path)

    def _is_hidden(self) -> bool:
        """Whether there are journals below a mount point. They cannot be read while the disk is mounted."""
        return any("/.ckptstore/" in path for path in self.below.everything())

    def _check_nothing_hidden(self, launch: Launch) -> None:
        """Check that a launch that began at step 0, without a request to do so, had no state to start from."""
        if self.truth.is_in_doubt() or self.truth.has_untold():
            return
        self.checked["from nothing"] += 1
        once = next((state for state in self.truth.lineage() if self.truth.was_whole(*state)), None)
        if once is not None:
            raise ViolationError(f"{launch.name} begins at step 0, though step {once[1]} of {once[0].name} was whole")

    def _check_given(self, what: str, plan: RestorePlan) -> None:
        """Check that no file of a plan is in the trash."""
        here = self.there()
        trashed = {content for path, content in here.items() if "/.ckptstore/trash/" in path}
        wrote = {each.path: each.content for each in self.truth.every_file() if each.content in trashed}
        for each in plan.ranks:
            if each.source.path in wrote and each.source.path not in here and each.source.id not in plan.copies:
                raise ViolationError(f"{what} was given {each.source.path}, which is in the trash")

    def _counted(self, taken: Collection[str] = ()) -> dict[str, bytes]:
        """The files that a process sees and must count. A catalog may ignore files that a user copied from the trash.

        Such files count only if they are in `taken`, the files of a plan.
        """
        there = self.there().items()
        return {path: content for path, content in there if path in taken or content not in self._uncounted}

    def _check_refusal(self, launch: Launch, error: CkptstoreError | None, fault: Fault | None) -> None:
        """Check that a refused start had a reason."""
        is_explained = error is None or isinstance(error, DamageError) or fault is not None
        if is_explained or not self.is_quiet or self.is_shaken:
            return
        if launch.plain and not self.is_current:
            return  # a plain script does not record where it saves: after a move, the tree needs a scan
        if self.truth.is_in_doubt() and launch.number:
            return
        if self.truth.whole(self._within_reach(self._counted()), adopts=self._adopts()):
            raise ViolationError(f"a start is refused, though a state is whole: {error}")
        if not launch.branched and self.truth.is_begun_anew(launch.number):
            raise ViolationError(f"a start is refused that was to start over: {error}")

    def finish(self) -> None:
        """Check, without faults, that a start takes the newest state, and that a rebuilt catalog knows the same."""
        self._end_trainers()
        self.relieve()
        self.mount()
        self.machine.sleep(120)
        self.check()
        must = self.truth.whole(self._within_reach(self._counted()))
        certain = not self.truth.is_in_doubt()
        for _ in range(3 + len(self.rotten) + len(self.lost)):
            self.start()
            if self.trainers:
                break
        else:
            if must and certain and not self.is_shaken:
                raise ViolationError("three starts in a row fail, though a state is whole")
        started = self.truth.launches[-1]
        self._end_trainers()
        if self.is_shaken or not certain:
            return
        self.checked["finished"] += 1
        if must and started.plan:
            newest, step = must[0]
            chosen = started.parent
            if chosen is not None and self.truth.launches[chosen[0]].number < newest.number:
                raise ViolationError(f"the last start takes {chosen}, not step {step} of {newest.name}, which is newer")
        self._check_undone()
        self.sync()
        if not self.has_lost_disk:
            self._check_made_anew(self.there())
        self._check_purged()

    def _check_undone(self) -> None:
        """Check that undo brings back every file in the trash, except if another file is in its place."""
        before = self.everything()
        for _ in range(20):
            task = self._operate("undo", lambda opened: opened.undo(RUN))
            if isinstance(task.error, RefusedError) and "is at work" in task.error.message:
                self.machine.sleep(15 * 60)  # after a power loss the lock of a dead process lasts until it expires
            elif task.error is not None or not task.result.files:
                break
        after = self.everything()
        self._check_nothing_lost("undo", before, after)
        homes = {content for path, content in after.items() if "/.ckptstore/" not in path}
        names = {path.rpartition("/")[2] for path in after if "/.ckptstore/" not in path}
        for path, content in after.items():
            is_left = self._is_in_trash(path) and content in self.truth.contents
            if is_left and content not in homes and path.rpartition("/")[2] not in names:
                raise ViolationError(f"{path} stays in the trash: no undo brings it back")
        self.checked["undone"] += 1

    def _check_purged(self) -> None:
        """Check that purge deletes all files from the trash that no mark protects."""
        task = self._operate("purge", lambda opened: opened.purge(RUN, now=True))
        if task.error is not None or self.has_moved or self.done["power loss"]:
            return  # files that were moved back may be in the trash again
        marked = self.truth.marked()
        for path, content in self.everything().items():
            identity = self.truth.contents.get(content)
            is_left = self._is_in_trash(path) and identity is not None and identity.step not in marked
            if is_left and not task.result.waiting:
                raise ViolationError(f"{path} stays in the trash: no purge deletes it")
        self.checked["purged"] += 1

    def _is_in_trash(self, path: str) -> bool:
        """Whether a file is in the trash of the run, as far as it can know: not in that of a backup."""
        is_there = "/.ckptstore/trash/" in path and not path.startswith(_BELOW)
        return is_there and path not in self._risen and _BACKUP not in path

    def _check_made_anew(self, there: dict[str, bytes]) -> None:
        had_other = self.has_other
        self._make_other()
        self._operate("scan", lambda opened: opened.scan(ROOT, run=RUN), 1)
        known = [
            {
                (file.path, file.launch, file.global_step, file.rank, file.directory_id)
                for file in task.result
                if str(file.state) == "complete"
            }
            for number in (0, 1)
            if (task := self._operate("files", lambda opened: opened.files(RUN), number)).error is None
        ]
        registered = {
            (each.path, launch.name, step, each.identity.rank)
            for launch in self.truth.launches
            for step in launch.saved
            for each in self.truth.files(launch, step)
            if each.registered
            and there.get(each.path) == each.content
            and each.content not in self._uncounted
            # Another catalog may count it as a file of a later launch, which went back and did not see the file.
            and not (had_other and any(other.is_late_to_see for other in self.truth.launches[launch.number + 1 :]))
            # A launch that saved below the empty mount point has recorded another file at this path.
            and each.path.removeprefix("/data/") not in self.below.everything()
        }
        for name, some in zip(("catalog", "catalog made anew"), known, strict=False):
            for each in sorted(registered - {tuple(file) for *file, _ in some}):
                raise ViolationError(f"{each} is not in the {name}")
            for (path, _), times in Counter((path, directory) for path, *_, directory in some).items():
                if times > 1:
                    raise ViolationError(f"{path} is in the {name} {times} times")
        self.checked["made anew"] += 1
        is_hidden = self._is_hidden()
        steps = {step for _, _, step, _ in registered}
        marks = [
            {
                (mark, row.tally.global_step)
                for row in task.result
                for mark in (*row.tags, *(("pin",) * row.pinned))
                if row.tally.global_step in steps
            }
            for number in (0, 1)
            if (task := self._operate("saves", lambda opened: opened.saves(RUN), number)).error is None
        ]
        if not (is_hidden or self.has_gap or self.has_moved) and len(marks) == 2:
            # A catalog does not remove a protection because another catalog did: a person must confirm it.
            certain = {("pin", step) for step, is_pinned in self.truth.pinned.items() if is_pinned}
            certain |= set(self.truth.tags.items())
            differs = (marks[0] - marks[1]) & certain, marks[1] - marks[0]
            if any(differs):
                raise ViolationError(f"the catalog made anew lacks the marks {differs[0]} and has {differs[1]} besides")
        # A scan can prove more than a start, for example the files of a rank that was killed before it announced its
        # directory.
        self._operate("scan", lambda opened: opened.scan(ROOT, run=RUN), 0)
        answers = [
            task.result.plan and (task.result.plan.launch.id, task.result.plan.global_step)
            for number in (0, 1)
            if (task := self._operate("resolve", lambda opened: opened.resolve(RUN), number)).error is None
        ]
        # If a launch began while a disk was unmounted, its journal is now below the mount point, and cannot be read.
        # A power loss may destroy a journal line that a start has already read, if no rank was told of the record.
        told = {
            (each.name, step) for each in self.truth.launches for step in each.saved if self.truth.was_whole(each, step)
        }
        is_told = not self.done["power loss"] or answers[:1] == [None] or told.issuperset(answers[:1])
        is_told &= not self.has_gap
        if not is_hidden and is_told and len(answers) == 2 and answers[0] != answers[1]:
            raise ViolationError(f"the catalog resolves to {answers[0]}, a catalog made anew to {answers[1]}")
