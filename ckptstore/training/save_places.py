"""The directories that a rank saves to: each is checked for overlooked states, recorded, and claimed."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog.engine import in_memory
from ckptstore.core.hints import Call, Command
from ckptstore.core.iterations import COMMON, parse_iteration
from ckptstore.core.model import Content, FileState, Kind
from ckptstore.core.naming import INDEX, parse_shards
from ckptstore.disk import name_claims
from ckptstore.disk.files import facts_if_seen, listed, names_in, real_directory, remove_own
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import enter_announced
from ckptstore.disk.run_directories import remember, root_of
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, RefusedError, UnreadableError, reason_of
from ckptstore.evidence.writers import wrote
from ckptstore.formats.inspect import read_checkpoint
from ckptstore.journal import jsonl
from ckptstore.journal.sync import take_up_found
from ckptstore.outside import Path, os
from ckptstore.training.complaints import Complaints
from ckptstore.training.overlooked import (
    Begun,
    Overlooked,
    View,
    newer_state,
    of_renamed,
    overlooked,
    take_up_for_next,
)
from ckptstore.training.start import unknown_run, unregistered, without_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ckptstore.core.model import Checkpoint, RestorePlan
    from ckptstore.journal.sync import Synced
    from ckptstore.training.rank_launch import RankLaunch
    from ckptstore.training.recorder_thread import RecorderThread
    from ckptstore.training.start import Progress, Start

log = logging.getLogger("ckptstore")


_SUFFIXES = (".ckpt", ".safetensors")
_UNFINISHED = ".tmp"


class SavePlaces:
    """The directories that a registrar's callbacks save to, with kind and prefix of the files."""

    def __init__(self, launch: RankLaunch, progress: Progress, recorder: RecorderThread) -> None:
        self._launch = launch
        self._progress = progress
        self._recorder = recorder
        self._claimed: set[tuple[str, Kind, str]] = set()
        self._names_before: dict[str, frozenset[str]] = {}
        self._of_iterations: set[str] = set()
        self._has_reported = False
        self._complaints = Complaints()

    def add(
        self,
        directory: str,
        *,
        kind: Kind,
        prefix: str,
        names_before: Callable[[frozenset[str]], Iterable[str]] | None,
        breakpoint_prefix: str | None = None,
        content: Content | None = None,
        has_begun: bool = False,
    ) -> None:
        """Record, once, a directory that this rank saves to; log an error if another rank would write the same files.

        `names_before` picks, of the names in the directory, those that are not of this launch (None: none could be).
        Breakpoints have `prefix` unless `breakpoint_prefix` is given. Raises `RefusedError` if the launch started
        without a newer state of its run that is in the directory; if training `has_begun`, that is only logged. Raises
        `OSError` if `names_before` needs the names and they cannot be read; if training `has_begun`, the next save
        tries it again.
        """
        directory = real_directory(directory)
        if (directory, kind, prefix) in self._claimed:
            return
        if content is Content.PART:
            self._of_iterations.add(directory)
        is_new = all(directory != claimed for claimed, _, _ in self._claimed)
        if is_new and has_begun:
            self._recorder.call(lambda: self._report(directory))
        view = self._view(directory) if is_new and not has_begun else None
        names = listed(directory)
        if view is not None:
            self._check(view, names)
            names = self._without_leftovers(view, names)
        if isinstance(names, OSError) and names_before is not None:
            if has_begun:
                return
            raise names
        if is_new and not isinstance(names, OSError):
            self._names_before[directory] = names
        remember(self._launch.database.name, self._launch.names, directory)
        self._claimed.add((directory, kind, prefix))
        before = [] if names_before is None or isinstance(names, OSError) else sorted(names_before(names))
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
        # With TTP each rank has its own directory below this one, in an iteration of MindFormers its own names.
        if kind is not Kind.TTP and content is not Content.PART:
            self._claim(directory, kind, prefix)

    def look_for_unwatched(self) -> None:
        """Warn, once, of a checkpoint that appeared beside those of the watched callbacks, and that none of them wrote.

        On the recorder's thread, after the saves are recorded.
        """
        for directory, before in self._names_before.items():
            try:
                appeared = sorted(names_in(directory) - before)
                new = [name for name in appeared if name.endswith(_SUFFIXES)]
                unwatched = without_record(self._view(directory).database, directory, new) if new else []
                if directory not in self._of_iterations:
                    unwatched += [f"{directory}/{name}" for name in appeared if _is_of_save(name)]
            except (OSError, CkptstoreError):
                continue  # the next save there reports it
            if unwatched:
                self._names_before = {}
                log.warning(
                    "%s was saved, but by no callback that this launch watches: it is not registered, and no start "
                    "finds it; if a run is to go on from it, save it with a ModelCheckpoint, or call launch.register",
                    unwatched[0],
                )
                return

    def release(self) -> None:
        """Training has ended: other ranks may write here."""
        for directory, kind, prefix in self._claimed:
            with suppress(OSError):  # the directory is gone, and the claim with it; or the next launch removes it
                name_claims.release(directory, f"{kind}-{prefix}", launch=self._launch.key, rank=self._launch.rank)

    def _claim(self, directory: str, kind: Kind, prefix: str) -> None:
        launch = self._launch
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            os.close(enter_announced(directory))
            other = name_claims.claim(directory, f"{kind}-{prefix}", launch=launch.key, rank=launch.rank)
        except OSError as error:
            self._complaints.warn(f"cannot see who else saves in {directory}: {reason_of(error)}")
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

    def _view(self, directory: str) -> View:
        """Read the journals of a directory into the catalog, or into a temporary one if the catalog cannot be used.

        This rank saves here. So copies count too: the catalog may have read a backup of this directory before it.
        Raises `CkptstoreError` if they cannot be read.
        """
        launch = self._launch
        try:
            sizes = jsonl.sizes_in(f"{directory}/{FOLDER}") or {}
        except OSError as error:
            raise CkptstoreError(f"the journals in {directory} cannot be read ({reason_of(error)})") from None
        if not launch.recorder.is_late:
            try:
                with launch.database.connected():
                    taken = _readable(take_up_found(launch.database, sizes, copies=True))
                    return View(directory, launch.database, taken.new)
            except CatalogUnavailableError as error:
                launch.recorder.fall_behind(error)
        temporary = in_memory()
        _readable(take_up_found(temporary, sizes, look=False))
        return View(directory, temporary, ())

    def _check(self, view: View, names: frozenset[str] | OSError) -> None:
        """Raise `RefusedError` if the launch started without a newer state of its run that is in this directory.

        The catalog was unreachable or lost when it started. Without a catalog an unregistered checkpoint stops a fresh
        start too; with one that does not know the file, that is logged.
        """
        launch, start, directory = self._launch, self._progress.start, view.directory
        found = self._overlooked(view)
        if found is not None:
            take_up_for_next(launch.database, launch.names, launch.rank, directory)
            raise RefusedError(found.what, found.hint)
        if start is None:
            return
        if start.plan is not None:
            self._say_newer(view, names, start, start.plan)
            return
        if not start.known.keys() <= {launch.id}:
            return
        if launch.rank == 0:
            self._say_whose(view, names)
        paths = unregistered(view.database, directory, names)
        if paths and start.by_journals:
            raise unknown_run(paths[0], launch.name)
        if paths and launch.rank == 0:
            self._say_unregistered(paths[0], f"the catalog knows no save of run {launch.name}")

    def _say_newer(self, view: View, names: frozenset[str] | OSError, start: Start, plan: RestorePlan) -> None:
        """Warn of an unregistered checkpoint that was saved after the state of a plan, as without ckptstore.

        Rank 0 looks, and only if the catalog can be used: files that a scan took in are in the journal of the tree's
        root alone.
        """
        launch = self._launch
        is_asked = launch.rank == 0 and not start.launch.branched and view.database is launch.database
        if not is_asked or isinstance(names, OSError):
            return
        written = max(each.source.mtime_ns or 0 for each in plan.ranks)
        updates = max(each.source.optimizer_step or 0 for each in plan.ranks)
        for path in unregistered(view.database, view.directory, names):
            here = facts_if_seen(path)
            if here is not None and here.mtime_ns > written and _updates_in(path) > updates:
                self._say_unregistered(path, f"holds more updates than step {plan.global_step}, which is loaded")
                return

    def _say_unregistered(self, path: str, what: str) -> None:
        run = self._launch.name
        log.warning(
            "%s is in no journal, and %s: if the run is to go on from this file, stop the job, run %s, and start the "
            "job again; if the job has saved by then, first run %s, with the launch of the scan in %s",
            path,
            what,
            Command("scan", root_of(path.rpartition("/")[0]), "--run", run),
            Command("resolve", run, "--lineage", "LAUNCH", "--branch"),
            Command("list", run),
        )

    def _say_whose(self, view: View, names: frozenset[str] | OSError) -> None:
        """Warn of the newest state of another run in a directory that this new run is about to save to."""
        if isinstance(names, OSError):
            return
        with view.database.read() as connection:
            of_files = [name.removesuffix(INDEX) for name in names if parse_iteration(name) is None]
            of_iterations = [f"{name}/{COMMON}" for name in names if parse_iteration(name) is not None]
            paths = [f"{view.directory}/{name}" for name in (*of_files, *of_iterations)]
            known = reads.files_at_paths(connection, sorted(paths))
        others = [file for files in known.values() for file in files if file.run != self._launch.run and file.size]
        if not others:
            return
        newest = max(others, key=lambda file: file.global_step)
        log.warning(
            "run %s is new, and %s has checkpoints of run %s, up to step %d: to go on from those, call %s; to keep "
            "the runs apart, give this one a directory of its own",
            self._launch.name,
            view.directory,
            newest.run,
            newest.global_step,
            Call("join", repr(newest.run)),
        )

    def _without_leftovers(self, view: View, names: frozenset[str] | OSError) -> frozenset[str] | OSError:
        """Delete the half-written files that earlier launches of this rank left here; return the other names.

        They only take room. Those launches have ended: else this one would not have begun.
        """
        own, directory = self._launch, view.directory
        if isinstance(names, OSError):
            return names  # the next save there reports it
        unfinished = [name for name in names if name.endswith(_UNFINISHED)]
        if not unfinished:
            return names
        with view.database.read() as connection:
            sources = reads.sources_in(connection, [directory])
        dead = [each for each in sources if (each.run, each.rank) == (own.run, own.rank) and each.launch != own.id]
        removed: set[str] = set()
        for name in unfinished:
            stem = name.removesuffix(_UNFINISHED)
            if any(wrote(source, f"{stem}{suffix}") for source in dead for suffix in _SUFFIXES):
                with suppress(OSError):
                    remove_own(directory, name)
                    removed.add(name)
                    log.info("%s/%s was left by a save that was never finished: deleted", directory, name)
        return names - removed

    def _report(self, directory: str) -> None:
        """Log, once, what `_check` raises: training has begun, and goes on from its own state."""
        if self._has_reported:
            return
        found = self._overlooked(self._view(directory))
        if found is not None:
            self._has_reported = True
            found.log_error()

    def _overlooked(self, view: View) -> Overlooked | None:
        """The newer state in this directory that this start overlooked; None if there is none."""
        start = self._progress.start
        if start is None or start.launch.branched:  # going back on purpose abandons newer states
            return None
        begun = Begun(start.launch, start.global_step, start.known)
        file = newer_state(view, begun) or self._moved_here(view, start) or of_renamed(view, begun)
        if file is None:
            return None
        return overlooked(view, begun, file, name=self._launch.name, catalog=self._launch.database)

    def _moved_here(self, view: View, start: Start) -> Checkpoint | None:
        """A newer file of the run that is in this directory, and that the catalog knew at another place, if at all.

        Rank 0 looks: a tree is moved as a whole.
        """
        if self._launch.rank or start.by_journals or not view.new:
            return None
        with view.database.read() as connection:
            new = reads.files_by_id(connection, view.new).values()
        others = [file for file in new if file.run == start.launch.run and file.launch != start.launch.id]
        newer = [file for file in others if file.global_step > start.global_step and file.state is FileState.COMPLETE]
        there = [file for file in newer if (found := facts_if_seen(file.path)) and found.size == file.size]
        return max(there, key=lambda file: file.global_step, default=None)


def _updates_in(path: str) -> int:
    """How many updates the optimizer of a checkpoint has counted; 0 if that is not known."""
    try:
        return read_checkpoint(Path(path)).optimizer_step or 0
    except (OSError, UnreadableError):
        return 0


def _is_of_save(name: str) -> bool:
    """Whether a name is that of a directory in which MindFormers or HyperParallel save a state of all ranks."""
    return parse_iteration(name) is not None or parse_shards(name) is not None


def _readable(synced: Synced) -> Synced:
    """The events that were taken up. Raises `CkptstoreError` if a journal that is believed cannot be read."""
    for unseen in synced.unreadable:
        if not os.access(unseen.path, os.R_OK):
            raise CkptstoreError(f"{unseen.path} cannot be read ({unseen.reason})")
    return synced
