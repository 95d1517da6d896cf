"""Asks a launch to save and leave, and follows whether it has left and from which step a restart would resume.

The request is a file in each rank's directory, and a row in the catalog. A process of this machine that cannot find the
file gets SIGTERM.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import exit_requests, reads, recent
from ckptstore.catalog.engine import in_memory
from ckptstore.catalog.runs import find_run
from ckptstore.core import validate
from ckptstore.core.gc_paused import gc_paused
from ckptstore.core.model import launch_key
from ckptstore.disk import exit_flags
from ckptstore.disk.notes import ask as leave_request
from ckptstore.disk.notes import of_living, request_path
from ckptstore.disk.notes import take_back as take_request_back
from ckptstore.disk.owner import is_here
from ckptstore.disk.run_directories import known_directories, root_of
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, UnknownRunError, UsageError, reason_of
from ckptstore.journal.sync import found_below, take_up_found
from ckptstore.outside import Path, os, signal, time
from ckptstore.resume.liveness import KILLED, Life, how_ended, last_sign, life, newest_begun
from ckptstore.resume.resolve import bring_up_to_date, choose
from ckptstore.resume.resolver import NEWEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.model import Launch, LaunchKey
    from ckptstore.disk.notes import Note


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How a launch was asked to save and leave.

    - `ending`: how it had ended before (empty: it may train). A launch that has ended is not asked.
    - `reached`: the directories with the request; `unreached`: those without it, and why.
    - `by_catalog`: whether the catalog has the request too, where rank 0 finds it.
    - `by_note`: the processes of this machine that find the request beside their note: they have saved nothing yet.
    - `signalled`: the processes of this machine that got SIGTERM, since they look for no request, or since none of
      their directories has it.
    - `away`: why the catalog cannot be used (empty: it can).
    """

    launch: Launch
    ending: str
    reached: tuple[str, ...] = ()
    unreached: tuple[tuple[str, str], ...] = ()
    by_catalog: bool = False
    by_note: tuple[int, ...] = ()
    signalled: tuple[int, ...] = ()
    away: str = ""

    @property
    def is_told(self) -> bool:
        """Whether any rank can find the request, or got SIGTERM."""
        return bool(self.reached or self.by_catalog or self.by_note or self.signalled)


def ask(database: Database, run: str, reason: str, directories: Iterable[str] = ()) -> Asked:
    """Ask the newest launch of a run to save and leave when its step is done. A second request changes nothing.

    The ranks of the run on this machine are asked first: a catalog that is locked or silent does not delay them.
    Without the catalog, the launch is found in journals, in the run's known directories and in `directories`. Raises
    `UnknownRunError`, `UsageError` if no launch ever began or if the reason is not UTF-8, and `CatalogUnavailableError`
    if no journal tells either.
    """
    validate.text("the reason", reason)
    here = set()
    for note in of_living():
        if note.run == run and note.may_be_of(database.name):
            here.add(note.launch)
            if note.is_of(database.name):  # else the catalog is asked for the launch first
                put_flags(launch_key(run, note.launch), run, note.directories, reason)
    launch, ending, homes, away = _known_anywhere(database, run, directories, here)
    if ending:  # else a script that trains again in the same process would leave
        for directory in homes:
            with suppress(OSError):
                exit_flags.take_back(directory, launch.key)
        return Asked(launch=launch, ending=ending, away=away)
    notes = [note for note in of_living() if (note.run, note.launch) == (launch.run, launch.id)]
    notes = [note for note in notes if note.may_be_of(database.name)]
    every = homes.union(*(note.directories for note in notes))
    unreached = put_flags(launch.key, launch.run, every, reason)
    if not away:
        try:
            database.in_write(lambda connection: exit_requests.ask(connection, launch.key, reason))
        except CatalogUnavailableError as error:
            away = str(error)
    hear = {note for note in notes if _hears(note, launch, unreached, reason)}
    return Asked(
        launch=launch,
        ending="",
        reached=tuple(sorted(every - unreached.keys())),
        unreached=tuple(sorted(unreached.items())),
        by_catalog=not away,
        by_note=tuple(note.pid for note in notes if note in hear and not note.directories),
        signalled=tuple(note.pid for note in notes if note not in hear and _terminate(note)),
        away=away,
    )


def _known_anywhere(
    database: Database, run: str, directories: Iterable[str], here: Set[str]
) -> tuple[Launch, str, set[str], str]:
    """As `_known`, and why journals were read instead of the catalog (empty: they were not).

    They are read if the catalog cannot be used, or if it lacks the launch that has ranks on this machine (`here`).
    """
    try:
        known = _known(database, run)
    except (CatalogUnavailableError, UnknownRunError) as error:
        if not here and isinstance(error, UnknownRunError):
            raise
        try:
            return *_known(by_journals(database, run, directories), run), str(error)
        except UnknownRunError:
            raise error from None
    if here - {known[0].id}:
        with suppress(UnknownRunError):
            told = _known(by_journals(database, run, directories), run)
            if told[0].id in here - {known[0].id}:
                return *told, f"{database.name} has no launch {told[0].id} of run {run!r} yet"
    return *known, ""


def _known(database: Database, run: str) -> tuple[Launch, str, set[str]]:
    """The newest launch of a run, how it has ended (empty: it may train), and where its ranks save."""
    run_id = find_run(database, run)
    with database.read() as connection:
        launch = newest_launch(connection, run_id, run)
        return launch, ending_of(connection, launch), _homes(connection, launch)


def take_back(database: Database, run: str) -> bool:
    """Withdraw the request to the newest launch of a run; return whether there was one.

    Ranks that have found it already leave all the same. Raises `CkptstoreError` if a file with it cannot be removed.
    """
    launch, _, homes = _known(database, run)
    was_asked = database.in_write(lambda connection: exit_requests.take_back(connection, launch.key))
    left = []
    for note in of_living():
        if (note.run, note.launch) == (launch.run, launch.id):
            try:
                take_request_back(note)
            except OSError as error:
                left.append(f"{request_path(note)} ({reason_of(error)})")
    for directory in sorted(homes):
        try:
            exit_flags.take_back(directory, launch.key)
        except OSError as error:  # noqa: PERF203 — the other ranks' requests are still removed
            if not isinstance(error, FileNotFoundError):  # else it is on another host, or gone
                left.append(f"{exit_flags.flag_path(directory, launch.key)} ({reason_of(error)})")
    if left:
        raise CkptstoreError(f"cannot be removed: {', '.join(left)}", "remove each as its owner")
    return was_asked


def put_flags(key: LaunchKey, run: str, directories: Iterable[str], reason: str) -> dict[str, str]:
    """Put the request into each of these directories; return the reasons where that failed, by directory."""
    unreached = {}
    for directory in sorted(directories):
        try:
            exit_flags.put(directory, key, run, reason)
        except OSError as error:  # noqa: PERF203 — the other ranks are still asked
            unreached[directory] = reason_of(error)
    return unreached


def pass_on(database: Database, launch: Launch, *, home: str | None) -> None:
    """Put a request from the catalog into the directories of the launch's ranks, as far as this host sees them.

    `home` is the directory of one rank (None: those of all ranks). Ranks record their directories at different times:
    this may be called again and again. Raises `CatalogUnavailableError`.
    """
    with database.read() as connection:
        reason = exit_requests.reason(connection, launch.key)
        if reason is None:
            return
        homes = _homes(connection, launch) if home is None else {home}
    asked = {home for home in homes if os.path.exists(exit_flags.flag_path(home, launch.key))}
    put_flags(launch.key, launch.run, homes - asked, reason)


def _homes(connection: Connection, launch: Launch) -> set[str]:
    """The directories that the ranks of a launch recorded; if they recorded none, those of its newest files.

    These are the files of its two newest steps: some ranks may not have saved the newest yet.
    """
    said = {home.directory for home in recent.homes_of(connection, launch.key)}
    if said:
        return said
    step = None
    for _ in range(2):
        step = reads.newest_step(connection, launch.key, below=step, at_most=None)
        if step is None:
            break
        said.update(str(Path(file.path).parent) for file in reads.files_at(connection, launch, step))
    return said


def _hears(note: Note, launch: Launch, unreached: Mapping[str, str], reason: str) -> bool:
    """Whether a process finds the request. One that looks, and has saved nothing yet, is asked by its note."""
    if not note.looks:
        return False
    if not note.directories:
        return leave_request(note, exit_flags.content(launch.run, reason))
    return any(directory not in unreached for directory in note.directories)


def _terminate(note: Note) -> bool:
    """Send SIGTERM to another process of this machine; return whether it was there and got the signal."""
    if note.pid == os.getpid() or not is_here(note.process):
        return False
    try:
        os.kill(note.pid, signal.SIGTERM)
    except OSError:
        return False
    return True


_LOOK_SECONDS = 0.2
_REST = 3
"""The pause between two looks is so many times the duration of a look: one at ten thousand ranks takes seconds."""
_LONGEST_REST_SECONDS = 5.0
"""The longest pause, also after a look that had to wait for a lock or a disk."""
_AWAY_SECONDS = 10.0
"""A catalog that could not be used is not tried again for so long."""

_SEEN = 5


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """The progress of a launch that was asked to leave.

    - `step`: the step after which it leaves (None: no rank has saved it yet).
    - `saved`: the ranks that have saved this step; `missing`: the other ranks.
    - `ending`: how the launch has ended (empty: it has not, as far as is known).
    - `restart`: the step that a restart would resume from now, chosen as for a restore (None: nothing is restorable).
    - `is_left`: whether this is `step` of this launch.
    - `step_seconds`: the seconds that a step takes, by the newest saves (None: unknown).
    """

    step: int | None
    saved: frozenset[int]
    missing: frozenset[int]
    ending: str
    restart: int | None
    is_left: bool
    step_seconds: float | None

    @property
    def is_over(self) -> bool:
        """Whether no more progress is expected."""
        return bool(self.ending) or (self.is_left and not self.missing)


def follow(
    database: Database, run: str, launch: Launch, directories: Iterable[str] = (), *, away: bool = False
) -> Iterator[Leaving]:
    """Yield the progress of a launch that was asked to leave, again and again, until no more progress is expected.

    While the catalog cannot be used, journals are read, in the run's known directories and in `directories`. `away`:
    the catalog could not be used a moment ago.
    """
    ask_from = time.monotonic() + _AWAY_SECONDS if away else 0.0
    while True:
        found = None
        began = time.monotonic()
        if began >= ask_from:
            try:
                found = look(database, run, launch)
            except (CatalogUnavailableError, UnknownRunError):  # it may lack a launch that began without it
                began = time.monotonic()
                ask_from = began + _AWAY_SECONDS
        if found is None:
            with suppress(UnknownRunError):  # this host sees no journal of the run: wait for the catalog
                found = look(by_journals(database, run, directories), run, launch)
        if found is not None:
            yield found
            if found.is_over:
                return
        rest = _REST * (time.monotonic() - began)
        time.sleep(min(max(_LOOK_SECONDS, rest), _LONGEST_REST_SECONDS))


@gc_paused()
def look(database: Database, run: str, launch: Launch) -> Leaving:
    """The progress of a launch that was asked to leave. Raises `UnknownRunError` if `database` does not know it."""
    run_id = find_run(database, run)
    with database.connected():
        bring_up_to_date(database, run_id)
        plan = choose(database, run, run_id, NEWEST).plan
    with database.read() as connection:
        if reads.launch(connection, launch.key) is None:
            raise UnknownRunError(f"no launch {launch.id} of run {run!r} in {database.name}")
        newest = newest_launch(connection, run_id, run)
        ending = ending_of(connection, launch) if newest.id == launch.id else f"launch {newest.id} has begun since"
        step = exit_requests.exit_step(connection, launch.key)
        if step is None and ending:
            step = max((end.global_step for end in reads.endings_of(connection, [launch.key]).values()), default=None)
        saved = frozenset(() if step is None else exit_requests.saved_at(connection, launch.key, step))
        costs = recent.costs_of(connection, launch.key, _SEEN)
    return Leaving(
        step=step,
        saved=saved,
        missing=frozenset(range(launch.world_size)) - saved,
        ending=ending,
        restart=plan.global_step if plan else None,
        is_left=plan is not None and (plan.launch.id, plan.global_step) == (launch.id, step),
        step_seconds=max((each.step_took for each in costs if each.step_took), default=None),
    )


def by_journals(database: Database, run: str, directories: Iterable[str]) -> Database:
    """A catalog in memory, from the journals of a run: in its known directories, and in `directories`.

    If one of `directories` is of one rank, the directories of the other ranks beside it are read too.
    """
    temporary = in_memory()
    sizes, _ = found_below(known_directories(database.name, [run], map(root_of, directories)), with_directories=True)
    take_up_found(temporary, sizes, look=False)
    return temporary


def newest_launch(connection: Connection, run_id: int, run: str) -> Launch:
    """The launch of a run that began last. Raises `UsageError` if none ever did."""
    newest = newest_begun(connection, run_id)
    if newest is None:
        raise UsageError(
            f"no training of run {run!r} has begun: there is nothing to ask", "give a run that trains with ckptstore"
        )
    return newest


def ending_of(connection: Connection, launch: Launch) -> str:
    """How a launch has ended; empty if it may go on. While its process lives, a script may train again after an end."""
    sign, now = last_sign(connection, reads.run_id(connection, launch.run))
    sign = sign if sign and sign.key == launch.key else None
    if sign is not None and life(sign.process, now - sign.seen_at) is not Life.GONE:
        return ""
    errors = [end.error for end in reads.endings_of(connection, [launch.key]).values()]
    # After an error of one rank the others may have been killed: then they recorded no end.
    if len(errors) == launch.world_size or any(errors):
        return how_ended(errors, was_asked_to_exit=exit_requests.exit_step(connection, launch.key) is not None)
    return KILLED if sign is not None else ""
