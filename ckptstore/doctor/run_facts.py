"""The facts by which `doctor` judges a run: from the catalog, and from a look at the run's directories.

Each directory is looked at, and the journals in it are listed. Checkpoint files are not opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckptstore.catalog import directories as of_files
from ckptstore.catalog import gauges, journals, leases, reads, recent, tallies
from ckptstore.core.events import FileRecorded, TrainingEnded, from_lines, launch_of
from ckptstore.core.limits import LEASE
from ckptstore.core.model import LaunchKey
from ckptstore.disk import presence
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.run_directories import root_of
from ckptstore.disk.waiting import for_each
from ckptstore.doctor.checkup import Check
from ckptstore.doctor.unanswered import NO_ANSWER, unanswered, unseen_of
from ckptstore.errors import reason_of
from ckptstore.journal import jsonl
from ckptstore.journal.sync import read_so_far
from ckptstore.outside import Path, os
from ckptstore.resume.liveness import Life, is_emptied, life, may_go_on

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.gauges import BadState
    from ckptstore.catalog.leases import Sign
    from ckptstore.catalog.recent import Home, Lock, Saved, Waiting
    from ckptstore.core.model import Launch, PassedOver
    from ckptstore.doctor.checkup import Fact, Status
    from ckptstore.journal.jsonl import Contents

SAVES = 5
"""The number of newest saves that show how large the next one will be, and which ranks no longer save."""


@dataclass(frozen=True)
class Surroundings:
    """A directory, its disk, and its journals."""

    directory: str
    device: int | None  # None: the directory cannot be looked at
    trouble: str = ""  # why it cannot be looked at
    journals: Mapping[str, int] = field(default_factory=dict)  # the length of each, in bytes, by its path
    hidden: str = ""  # why the folder of the journals cannot be read
    has_folder: bool = True  # of the journals, as far as it can be seen


@dataclass(frozen=True)
class Room:
    """The free space of a file system for users other than root, and whether this machine mounts it read-only."""

    bytes: int
    files: int | None  # that can still be created; None: there is no limit
    is_read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One run: the facts in the catalog, and the state of its directories."""

    run: str
    now: datetime
    launches: tuple[Launch, ...]  # oldest first
    saved: Mapping[str, int | None]  # the first saved step of each launch that saved anything, by the launch's id
    saving: Launch | None  # the newest launch that saved anything
    saves: tuple[Saved, ...]  # the newest saves of that launch
    highest_step: int  # that the newest launch saved, in a save of any kind; 0: it saved nothing
    homes: tuple[Home, ...]  # the directories of the newest launch
    saving_homes: tuple[Home, ...]  # the directories of `saving`
    ends: tuple[TrainingEnded, ...]
    leased_until: datetime | None
    sign: Sign | None
    failed_loads: Mapping[str, str]
    passed: tuple[PassedOver, ...]
    damaged: tuple[BadState, ...]
    lock: Lock | None
    trash: tuple[Waiting, ...]
    journals: Mapping[str, int]  # of the run, and all others in its directories: how far each is taken up
    around: Mapping[str, Surroundings] = field(default_factory=dict)  # by directory: those of the run and its journals
    absent: Mapping[str, str] = field(default_factory=dict)  # directories that gc waits for, and why they are not there
    lacking: tuple[Mapping[str, Contents], bool] = ({}, True)  # of the journals, what the catalog lacks: see `unread`
    heard: Mapping[int, datetime] = field(default_factory=dict)  # by step: the saves of the newest launch in `lacking`

    @property
    def newest(self) -> Launch | None:
        """The newest launch."""
        return self.launches[-1] if self.launches else None

    @property
    def is_saving(self) -> bool:
        """Whether the newest launch has saved."""
        return self.saving is not None and self.saving == self.newest

    @property
    def directories(self) -> list[str]:
        """The directories that the run saves to now, and those of its newest files."""
        homes = {home.directory for home in (*self.homes, *self.saving_homes)}
        return sorted(homes | {folder_of(saved.path) for saved in self.saves})

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank whose host is known."""
        return {home.rank: home.host for home in (*self.saving_homes, *self.homes) if home.host}

    @property
    def last_sign(self) -> datetime | None:
        """The last sign of the newest launch: its start, a save, also in journals only, or the renewal of its lease."""
        newest = self.newest
        if newest is None:
            return None
        signs = [newest.created_at, self.leased_until - LEASE if self.leased_until else None, *self.heard.values()]
        signs += [saved.at for saved in self.saves] if self.is_saving else []
        return max((sign for sign in signs if sign is not None), default=None)

    @property
    def is_gone(self) -> bool:
        """Whether the process of the newest launch ran on this machine and has ended."""
        return self.sign is not None and life(self.sign.process, self.now - self.sign.seen_at) is Life.GONE

    @property
    def is_alive(self) -> bool:
        """Whether the newest launch may be running. If its saves outlive its signs, it can give none: no catalog."""
        if self.last_sign is None or self.ends or self.is_gone:
            return False
        gives_signs = self.sign is not None and may_go_on(self.sign.seen_at, self.last_sign, gives_signs=True)
        return may_go_on(self.last_sign, self.now, gives_signs=gives_signs)

    def check(self, name: str, status: Status, detail: str, hint: str = "", fact: Fact | None = None) -> Check:
        """A check of this run."""
        return Check(name, status, detail, hint, self.run, fact=fact)


def gather(database: Database, run: str, run_id: int, now: datetime) -> RunFacts:
    """Gather the facts about a run: ask the catalog, then look at the run's directories."""
    with database.read() as connection:
        saved, saving_id = reads.first_saves(connection, run_id), recent.newest_saving(connection, run_id)
        launches = tuple(
            launch
            for launch in reads.launches_of(connection, run_id)
            if not (launch.foreign or is_emptied(launch, (*saved, saving_id)))
        )
        saving = next((launch for launch in launches if launch.id == saving_id), None)
        saves = recent.newest_saves(connection, saving.key, SAVES) if saving else []
        newest = launches[-1].key if launches else LaunchKey("")
        homes = recent.homes_of(connection, newest)
        sign = leases.last_sign(connection, run_id)
        decision = reads.resolution(connection, newest)
        facts = RunFacts(
            run=run,
            now=now,
            launches=launches,
            saved=saved,
            saving=saving,
            saves=tuple(saves),
            highest_step=tallies.highest_steps(connection, run_id).get(launches[-1].id, 0) if launches else 0,
            homes=tuple(homes),
            saving_homes=tuple(recent.homes_of(connection, saving.key) if saving and saving.key != newest else homes),
            ends=tuple(reads.endings_of(connection, [newest]).values()),
            leased_until=recent.lease_of(connection, newest),
            sign=sign if sign and sign.key == newest else None,
            failed_loads=reads.failed_loads(connection, run_id),
            passed=decision.passed if decision else (),
            damaged=tuple(gauges.damaged_states(connection, run_id)),
            lock=recent.lock_of(connection, run_id),
            trash=tuple(recent.waiting(connection, run_id)),
            journals={path: each.end for path, each in journals.journals_of(connection, run_id).items()},
        )
    around = look_around(sorted({*facts.directories, *map(jsonl.directory_of, facts.journals)}))
    seen = {each.directory: each for each in around}
    ends = read_so_far(database, facts.journals, sizes_of(around))
    lacking = unread(ends, sizes_of(around))
    read = ((jsonl.directory_of(path), contents.entries) for path, contents in lacking[0].items())
    told = [each for home, lines in read for each in from_lines(lines, home)[0] if launch_of(each) == newest]
    files = [each.file for each in told if isinstance(each, FileRecorded)]
    ended = {each.rank: each for each in (*facts.ends, *told) if isinstance(each, TrainingEnded)}
    with database.read() as connection:
        known = of_files.of_live_files(connection, run_id)
    unheard = {directory for directory in map(jsonl.directory_of, facts.journals) if not seen[directory].has_folder}
    absent = _absent(database, run_id, known, unheard)
    heard = {step: at for at, step in sorted((file.created_at or now, file.global_step) for file in files)}
    facts = replace(facts, ends=tuple(ended.values()), highest_step=max((facts.highest_step, *heard)))
    return replace(facts, around=seen, journals=ends, absent=absent, lacking=lacking, heard=heard)


def _absent(
    database: Database, run_id: int, known: Sequence[tuple[str, str]], unheard: Collection[str]
) -> dict[str, str]:
    """The directories with files of a run that gc would find absent, each with the reason. All launches count.

    `unheard` are directories that lost their journals: gc keeps the states of files below them.
    """
    gone, hung = unseen_of([path for path, _ in known])
    unseen = [each for each in known if each[0] in gone]
    places: Mapping[str, set[str]] = {}
    if not all(identity for _, identity in unseen):
        with database.read() as connection:
            places = presence.unidentified(reads.recorded_paths(connection, run_id))
    found = {directory: presence.NO_FOLDER for path, _ in known if (directory := jsonl.nearest(path, unheard))}
    found |= dict.fromkeys(hung, NO_ANSWER)
    for path, identity in unseen:
        directory = presence.directory_of(path)
        home = presence.Home({identity}, set()) if identity else presence.Home(set(), places.get(directory, set()))
        if why := presence.absence(directory, home):
            found[directory] = why
    return dict(sorted(found.items()))


def unread(known: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[dict[str, Contents], bool]:
    """The parts of these journals that the catalog lacks, and whether they were read to the end (of 16 MiB at most).

    `known` is the offset up to which the catalog has each journal, `sizes` the length of each, in bytes. A journal that
    cannot be read is left out.
    """
    begins = {path: known.get(path, 0) for path in sorted(sizes)}
    return jsonl.read_tails({path: begin for path, begin in begins.items() if sizes[path] > begin})


def backlogs(database: Database) -> dict[str, int]:
    """For each run, by its name: the number of records in its directories' journals that the catalog lacks."""
    with database.read() as connection:
        names = reads.names_of_runs(connection)
        known = journals.ends_of_runs(connection)
        directories = gauges.directories(connection)
    places = {run: directories.get(run, set()) | {*map(jsonl.directory_of, known.get(run, ()))} for run in names}
    seen = {each.directory: each for each in look_around(sorted(set().union(*places.values())))}
    found = {}
    for run, name in names.items():
        sizes = sizes_of(seen[each] for each in places[run])
        ends = read_so_far(database, known.get(run, {}), sizes)
        found[name] = sum(len(contents.entries) for contents in unread(ends, sizes)[0].values())
    return found


def folder_of(path: str) -> str:
    """The directory of a file."""
    return path.rpartition("/")[0] or "/"


def roots(directories: list[str]) -> list[str]:
    """The common directories above the directories of single ranks."""
    return sorted({root_of(directory) for directory in directories})


def look_around(directories: Sequence[str]) -> list[Surroundings]:
    """Look at each of these directories, in their order."""
    hung = unanswered(directories)
    return for_each(lambda each: Surroundings(each, None, NO_ANSWER) if each in hung else _look_at(each), directories)


def sizes_of(around: Iterable[Surroundings]) -> dict[str, int]:
    """The length of each journal in these directories, in bytes, by its path."""
    return {path: length for seen in around for path, length in seen.journals.items()}


def _look_at(directory: str) -> Surroundings:
    here = directory.rstrip("/")
    try:
        device = os.stat(f"{here}/.").st_dev
    except OSError as error:
        return Surroundings(directory, None, reason_of(error))
    try:
        sizes = jsonl.sizes_in(f"{here}/{FOLDER}")
        return Surroundings(directory, device, journals=sizes or {}, has_folder=sizes is not None)
    except OSError as error:
        return Surroundings(directory, device, hidden=reason_of(error))


def room_of(directory: str) -> Room:
    """The free space on the disk of a directory. Raises `OSError`."""
    found = os.statvfs(directory)
    files = found.f_favail if found.f_files else None
    return Room(found.f_bavail * found.f_frsize, files, bool(found.f_flag & os.ST_RDONLY))


def nearest(path: Path) -> Path:
    """The path itself if it exists, else the nearest directory above it that exists."""
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))


def may_write(path: Path) -> bool:
    """Whether this process may write to a file or into a directory. False too if the disk is mounted read-only."""
    return os.access(path, os.W_OK)
