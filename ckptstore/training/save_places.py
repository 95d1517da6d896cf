"""The directories that a rank saves to: each is checked for overlooked states, recorded, and claimed."""

from __future__ import annotations

import logging
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.events import FileRecorded, SourceAdded, from_lines
from ckptstore.core.model import Kind
from ckptstore.core.naming import parse_exit_name, parse_name
from ckptstore.disk import claims
from ckptstore.disk.files import facts_if_seen, names_in, real_directory, remove_own
from ckptstore.disk.places import remember_place, root_of
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, RefusedError
from ckptstore.journal import jsonl
from ckptstore.journal.sync import found_below, take_up_found
from ckptstore.resume.provenance import wrote
from ckptstore.training.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint, Content
    from ckptstore.training.launch import RankLaunch
    from ckptstore.training.recorder_thread import RecorderThread
    from ckptstore.training.start import Progress, Start

log = logging.getLogger("ckptstore")


_SUFFIXES = (".ckpt", ".safetensors")
_UNFINISHED = ".tmp"


class SavePlaces:
    """Where a registrar's callbacks save what."""

    def __init__(self, launch: RankLaunch, progress: Progress, recorder: RecorderThread) -> None:
        self._launch = launch
        self._progress = progress
        self._recorder = recorder
        self._claimed: set[tuple[str, Kind, str]] = set()
        self._names_before: dict[str, frozenset[str]] = {}
        self._has_reported = False
        self._complaints = Complaints()

    def add(
        self,
        directory: str,
        *,
        kind: Kind,
        prefix: str,
        names_before: Callable[[str], Iterable[str]],
        breakpoint_prefix: str | None = None,
        content: Content | None = None,
        has_begun: bool = False,
    ) -> None:
        """Record, once, where this rank saves what; log an error if another rank would write the same files.

        `names_before` gives the names in the directory that are not of this launch; breakpoints have the prefix of
        other files unless `breakpoint_prefix` is given. Raises `RefusedError` where the launch started without states
        of its run that are there; where training `has_begun` that is only logged.
        """
        directory = real_directory(directory)
        if (directory, kind, prefix) in self._claimed:
            return
        is_new = all(directory != claimed for claimed, _, _ in self._claimed)
        if is_new and has_begun:
            self._recorder.call(lambda: self._report(directory))
        elif is_new:
            self._check(directory)
            self._remove_leftovers(directory)
        if is_new:
            with suppress(OSError):
                self._names_before[directory] = frozenset(names_in(directory))
        remember_place(self._launch.database.name, self._launch.run, directory)
        self._claimed.add((directory, kind, prefix))
        before = sorted(names_before(directory))
        self._recorder.call(
            lambda: self._launch.add_source(
                directory,
                kind=kind,
                prefix=prefix,
                breakpoint_prefix=prefix if breakpoint_prefix is None else breakpoint_prefix,
                names_before=before,
                content=content,
            )
        )
        if kind is not Kind.TTP:  # there each rank has a directory of its own below this one
            self._claim(directory, kind, prefix)

    def look_for_unwatched(self) -> None:
        """Warn, once, of a checkpoint that appeared beside those of the watched callbacks, and that none of them wrote.

        On the recorder's thread, after what was saved is recorded.
        """
        for directory, before in self._names_before.items():
            try:
                new = names_in(directory) - before
                path = unregistered(directory, sorted(name for name in new if name.endswith(_SUFFIXES)))
            except (OSError, CkptstoreError):
                continue  # whoever saves there is told
            if path is not None:
                self._names_before = {}
                log.warning(
                    "%s was saved by nothing that the registrar watches: it is not registered, and no start finds it; "
                    "if a run is to go on from it, save it with a ModelCheckpoint, or call launch.register for it",
                    path,
                )
                return

    def release(self) -> None:
        """Training has ended: other ranks may write here."""
        for directory, kind, prefix in self._claimed:
            with suppress(OSError):  # the directory is gone, and the claim with it; or the next launch removes it
                claims.release(directory, f"{kind}-{prefix}", launch=self._launch.key, rank=self._launch.rank)

    def _claim(self, directory: str, kind: Kind, prefix: str) -> None:
        launch = self._launch
        try:
            other = claims.claim(directory, f"{kind}-{prefix}", launch=launch.key, rank=launch.rank)
        except OSError as error:
            self._complaints.warn(f"cannot see who else saves in {directory}: {error.strerror or error}")
            return
        if other is not None:
            log.error(
                "ranks %d and %d (on %s) would both write %s/%s*: give each rank a directory of its own",
                launch.rank,
                other.rank,
                other.host,
                directory,
                prefix,
            )

    def _check(self, directory: str) -> None:
        """Raise `RefusedError` if the launch started without a newer state of its run that is in this directory.

        The catalog was away or lost when it started. Without a catalog an unregistered checkpoint stops a fresh start
        too; with one that does not know the file, that is logged.
        """
        launch, start = self._launch, self._progress.start
        overlooked = self._overlooked(directory)
        if overlooked is not None:
            self._take_up(directory)
            raise RefusedError(overlooked[0], "start again: it is found now; or start a run of another name")
        if start is None or not start.fresh or not start.known.keys() <= {launch.id}:
            return
        if launch.rank == 0:
            self._say_whose(directory)
        path = unregistered(directory)
        if path is not None and start.by_journals:
            raise unknown_run(path, launch.name)
        if path is not None and launch.rank == 0:
            log.warning(
                "%s is in no journal, and the catalog knows no save of run %s: if the run goes on from there, stop it, "
                "ckptstore scan %s --run %s, and start again",
                path,
                launch.name,
                quote(root_of(directory)),
                quote(launch.name),
            )

    def _say_whose(self, directory: str) -> None:
        """Warn of the newest state of another run in a directory that this new run is about to save to."""
        others = [file for file in _files(_events(directory)) if file.run != self._launch.run and file.size is not None]
        if others:
            newest = max(others, key=lambda file: file.global_step)
            log.warning(
                "run %s is new, and %s has checkpoints of run %s, up to step %d: to go on with those join(%r); to keep "
                "the runs apart give this one a directory of its own",
                self._launch.name,
                directory,
                newest.run,
                newest.global_step,
                newest.run,
            )

    def _remove_leftovers(self, directory: str) -> None:
        """Delete the half-written files that earlier launches of this rank left here: they only take room.

        Those launches have ended: else this one would not have begun.
        """
        own = self._launch
        try:
            sources = [event.source for event in _events(directory) if isinstance(event, SourceAdded)]
            names = [name for name in names_in(directory) if name.endswith(_UNFINISHED)]
        except (OSError, CkptstoreError):
            return  # whoever saves there is told
        dead = [
            source
            for source in sources
            if (source.run, source.rank, source.directory) == (own.run, own.rank, directory) and source.launch != own.id
        ]
        for name in names:
            stem = name.removesuffix(_UNFINISHED)
            if any(wrote(source, f"{stem}{suffix}") for source in dead for suffix in _SUFFIXES):
                with suppress(OSError):
                    remove_own(directory, name)
                    log.info("%s/%s was left by a save that was never finished: deleted", directory, name)

    def _report(self, directory: str) -> None:
        """Log, once, what `_check` raises: training has begun, and goes on with what it has."""
        if self._has_reported:
            return
        overlooked = self._overlooked(directory)
        if overlooked is not None:
            self._has_reported = True
            log.error(
                "%s. Training goes on, and its saves are registered; to go on from that step instead, stop it and "
                "start again with resume(lineage=%r)",
                *overlooked,
            )

    def _overlooked(self, directory: str) -> tuple[str, str] | None:
        """What this start overlooked, in words, and the launch that saved it."""
        start = self._progress.start
        if start is None or start.launch.branched:  # who goes back on purpose gives up what came after that
            return None
        file = newer_state(directory, start) or self._moved_here(directory, start)
        if file is None:
            return None
        begins = f"after step {start.global_step}" if start.global_step else "from the beginning"
        held = f"{file.path} holds step {file.global_step} of run {self._launch.name}"
        return f"this launch starts {begins}, but {held}, and no catalog knew of it", file.launch

    def _moved_here(self, directory: str, start: Start) -> Checkpoint | None:
        """A newer file of the run that is in this directory, and that the catalog knows at another place, if at all.

        Rank 0 looks: a tree is moved as a whole.
        """
        launch = self._launch
        if launch.rank or start.by_journals or launch.recorder.behind:
            return None
        newer = {file.path: file for file in _of_others(directory, start) if file.global_step > start.global_step}
        if not newer:
            return None
        try:
            with launch.database.read() as connection:
                known = reads.files_at_paths(connection, sorted(newer))
        except CatalogUnavailableError as error:
            launch.recorder.fall_behind(error)
            return None
        unknown = [file for path, file in newer.items() if path not in known]
        there = [file for file in unknown if (found := facts_if_seen(file.path)) and found.size == file.size]
        return max(there, key=lambda file: file.global_step, default=None)

    def _take_up(self, directory: str) -> None:
        """Read the journals here into the catalog, for the next start; rank 0 reads those of all ranks."""
        launch = self._launch
        remember_place(launch.database.name, launch.run, directory)
        paths, _ = found_below([root_of(directory) if launch.rank == 0 else directory])
        try:
            with launch.database.connected():
                take_up_found(launch.database, paths)
        except CatalogUnavailableError as error:
            log.info("%s. It does not have yet what journals in %s tell.", error, directory)


def newer_state(directory: str, start: Start) -> Checkpoint | None:
    """The newest file of the run that the directory's journals have and that was not known when the launch started.

    None if there is none. Files of the launch itself do not count: other ranks may have saved them by now. Raises
    `CkptstoreError` where the journals cannot be read.
    """
    newer = [
        file
        for file in _of_others(directory, start)
        if file.global_step > max(start.global_step, start.known.get(file.launch, 0))
    ]
    return max(newer, key=lambda file: file.global_step, default=None)


def _of_others(directory: str, start: Start) -> list[Checkpoint]:
    """What other launches of the run have saved whole here, as the journals tell."""
    files = _files(_events(directory))
    own = start.launch
    return [file for file in files if file.run == own.run and file.launch != own.id and file.size is not None]


def unregistered(directory: str, names: Sequence[str] | None = None) -> str | None:
    """A file that has the name of a checkpoint and is in no journal of its directory; None if there is none.

    `names` are those that come into question (None: all that may hold steps).
    `scan` may have taken it into the catalog as this run's, or it may be of any other. Raises `CkptstoreError` where
    the directory cannot be read.
    """
    try:
        names = sorted(filter(_may_hold_steps, names_in(directory))) if names is None else names
    except NotADirectoryError:
        return None
    except OSError as error:
        raise CkptstoreError(f"{directory} cannot be read ({error.strerror})") from None
    if not names:
        return None
    events = _events(directory)
    known = {file.path for file in _files(events)}
    sources = [event.source for event in events if isinstance(event, SourceAdded)]
    paths = (f"{directory}/{name}" for name in names if not any(wrote(source, name) for source in sources))
    return next((path for path in paths if path not in known), None)


def unknown_run(path: str, run: str) -> RefusedError:
    """The error for a fresh start beside an unregistered file while the catalog cannot tell whose it is."""
    where = quote(root_of(path.rpartition("/")[0]))
    return RefusedError(
        f"{path} is in no journal, and the catalog that may know it is away or lost: whether run {run!r} goes on from "
        "it would be a guess",
        f"start when the catalog is back; if it is lost: ckptstore scan {where} --run {quote(run)}; if the file is of "
        "another run, move it away",
    )


def _may_hold_steps(name: str) -> bool:
    """Whether it is a checkpoint's name; a start that was stopped before its first step leaves a breakpoint too."""
    named = parse_name(name)
    if named is None:
        return parse_exit_name(name) is not None
    return named.step_in_epoch > 0 or not named.is_breakpoint


def _events(directory: str) -> list[Event]:
    events: list[Event] = []
    try:
        for path in jsonl.journals_in(directory):
            events += from_lines(jsonl.read(path).entries, directory)[0]
    except OSError as error:
        raise CkptstoreError(f"the journals in {directory} cannot be read ({error.strerror})") from None
    return events


def _files(events: Iterable[Event]) -> list[Checkpoint]:
    return [event.file for event in events if isinstance(event, FileRecorded)]
