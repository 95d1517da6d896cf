"""Imports an export into a catalog as a run: its bytes are proved first, then it is named, then recorded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blake3 import blake3

from ckptstore.catalog import reads
from ckptstore.catalog.project import add_run
from ckptstore.core import validate
from ckptstore.core.bounded_json import parse
from ckptstore.core.events import FileRecorded, LaunchStarted
from ckptstore.core.hints import Command
from ckptstore.core.ids import derived_id
from ckptstore.core.model import IMPORTED, Content
from ckptstore.core.naming import SEVERAL, companion_of
from ckptstore.disk import presence
from ckptstore.disk.aside import clear_unfinished, named_last
from ckptstore.disk.files import absolute, digest, facts
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import Home
from ckptstore.disk.run_directories import remember
from ckptstore.errors import CkptstoreError, DamageError, RefusedError, UsageError, reason_of
from ckptstore.formats.safetensors import write
from ckptstore.handover import manifest as manifests
from ckptstore.handover.archive import open_source
from ckptstore.handover.manifest import place_of
from ckptstore.journal.recorder import shared
from ckptstore.outside import Path, os, utc_now
from ckptstore.resume.join import check_new_run
from ckptstore.training import companions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint, Launch, LaunchKey
    from ckptstore.handover.archive import Source
    from ckptstore.handover.manifest import Manifest, Part

    Progress = Callable[[int, int], None]  # called with the bytes done, and all bytes


@dataclass(frozen=True)
class Imported:
    """The result of an import: the new run, the exported run, the state, the directory, the files and their bytes."""

    run: str
    exported_run: str
    launch: str
    global_step: int
    directory: str
    holds: str
    files: int
    bytes: int


def import_(
    database: Database,
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str] | None,
    run: str | None,
    progress: Progress,
) -> Imported:
    """Copy an export to a new directory, and record it as a run.

    `directory` None: the run's name, in the current directory. Every byte is proved before anything is named or
    recorded. After an interruption, the same call continues. Raises `DamageError` if the export was changed,
    `RefusedError` if the run or the directory exists already.
    """
    with open_source(absolute(validate.path("the export", source))) as opened:
        if opened.manifest.holds is Content.WEIGHTS:
            hint = f"load {opened.manifest.parts[0].place} in it by itself"
            raise RefusedError("weights alone were exported: no training can go on from them", hint)
        new = _New.of(opened.manifest, directory, run)
        with database.read() as connection:
            _refuse_other(connection, new)
        database.let_go()  # the copy may take hours
        try:
            if new.is_named():
                clear_unfinished(new.directory)
                new.prove(progress)
            else:
                with named_last(new.directory) as aside:
                    _copy(opened, new, aside, progress)
        except OSError as error:
            raise CkptstoreError(f"cannot write {new.directory}: {reason_of(error)}", "look at its disk") from error
    _record(database, new)
    manifest = new.manifest
    return Imported(
        run=new.launch.run,
        exported_run=manifest.run,
        launch=new.launch.id,
        global_step=manifest.first.global_step,
        directory=new.directory,
        holds=manifest.holds.value,
        files=len(manifest.parts),
        bytes=manifest.size,
    )


@dataclass(frozen=True)
class _New:
    """The launch of the new run, and the directory for its files.

    `records` are pairs: the record of a file in the manifest, and its record in the new run.
    """

    manifest: Manifest
    directory: str
    launch: Launch
    records: tuple[tuple[Checkpoint, Checkpoint], ...]

    @classmethod
    def of(cls, manifest: Manifest, directory: str | os.PathLike[str] | None, run: str | None) -> _New:
        """Take the names that the user gives, else the name in the manifest. Raises `UsageError`."""
        name = manifest.run if run is None else run
        check_new_run(name)
        if directory is None and ("/" in name or name.startswith(".")):
            raise UsageError(f"run {name!r} has no name for a directory", "give the directory too")
        path = absolute(validate.path("the directory", name if directory is None else directory))
        if not Path(path).parent.is_dir():
            raise UsageError(f"there is no directory {Path(path).parent}", "make it first")
        told = derived_id(name, blake3(manifests.to_text(manifest)).hexdigest())
        # The same export imported again is the same launch.
        launch = replace(manifest.launch, id=f"{IMPORTED}{told[:12]}", run=name, owner=os.geteuid())
        return cls(manifest, path, launch, tuple((file, _moved(file, launch, path)) for file in manifest.files))

    @property
    def kept(self) -> str:
        """The place of the manifest below the directory. It is kept there to tell where the run comes from."""
        return f"{FOLDER}/{self.launch.id}.json"

    def is_named(self) -> bool:
        """Whether the directory exists already, from an earlier call of the same import."""
        try:
            with Path(self.directory, self.kept).open("rb") as file:
                return file.read(manifests.MOST_BYTES + 1) == manifests.to_text(self.manifest)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def companions(self) -> dict[str, tuple[Checkpoint, Checkpoint]]:
        """The pairs of records, by the places of their companions in the export."""
        return {place_of(companion_of(old.path)): (old, new) for old, new in self.records if old.format not in SEVERAL}

    def prove(self, progress: Progress) -> None:
        """Raise `DamageError` if a file in the directory differs from the manifest. Raises `OSError`."""
        done, rewritten = 0, self.companions()
        for part in self.manifest.parts:
            path = f"{self.directory}/{part.place}"
            if part.place not in rewritten and digest(path) != part.digest:
                # Other checkpoints may be in the directory by now: nobody shall remove it.
                hint = f"import it to another directory: {Command('import', 'SOURCE', 'DIRECTORY', '--run', 'NEW')}"
                raise DamageError(f"{path} changed since the import", hint)
            done += part.size
            progress(done, self.manifest.size)


def _moved(file: Checkpoint, launch: Launch, directory: str) -> Checkpoint:
    """The record of a file in the directory of the new run."""
    strategy = file.strategy_file and validate.path("a file of it", f"{directory}/{place_of(file.strategy_file)}")
    return replace(
        file,
        run=launch.run,
        launch=launch.id,
        path=validate.path("a file of it", f"{directory}/{place_of(file.path)}"),
        strategy_file=strategy,
    )


def _refuse_other(connection: Connection, new: _New) -> None:
    """Raise `RefusedError` if the run exists already, unless an interrupted import of the same export made it."""
    found = reads.called(connection, new.launch.run)
    if found is None:
        return
    launches = {each.id for each in reads.launches_of(connection, found.id)}
    paths = {each.path for each in reads.files_of(connection, found.id)}
    if found.forgotten or launches - {new.launch.id} or paths - {file.path for _, file in new.records}:
        hint = f"give it another name: {Command('import', 'SOURCE', '--run', 'NEW')}"
        raise RefusedError(f"run {new.launch.run!r} is in this catalog already", hint)


def _copy(source: Source, new: _New, aside: str, progress: Progress) -> None:
    """Write and prove the files, write their companions for the new run, and the manifest."""
    done, rewritten = 0, new.companions()
    times = {place_of(file.path): file.mtime_ns for file in new.manifest.files}
    for part in new.manifest.parts:
        path = Path(aside, part.place)
        path.parent.mkdir(parents=True, exist_ok=True)
        if part.place in rewritten:
            old, file = rewritten[part.place]
            _write_companion(part.place, _proved(source, part), replace(file, path=f"{aside}/{place_of(old.path)}"))
        else:
            with path.open("xb", buffering=0) as opened:
                _check(part, write(opened, source.read(part)))
            if (at := times.get(part.place)) is not None:
                os.utime(path, ns=(at, at))
        done += part.size
        progress(done, new.manifest.size)
    source.check_end()
    _check_several(new, aside)
    Path(aside, FOLDER).mkdir()
    Path(aside, new.kept).write_bytes(manifests.to_text(new.manifest))


def _check(part: Part, found: str) -> None:
    if found != part.digest:
        raise DamageError(f"{part.place} is damaged: its bytes are not those that were exported", "copy it again")


def _check_several(new: _New, aside: str) -> None:
    """Prove the digests of checkpoints of several files: their records have one digest for all files together."""
    for file in new.manifest.files:
        if file.format in SEVERAL and digest(f"{aside}/{place_of(file.path)}") != file.digest:
            raise DamageError(f"{place_of(file.path)} is not what its record says", "make the export again")


def _proved(source: Source, part: Part) -> bytes:
    """The proved bytes of a small part. Raises `DamageError`."""
    if part.size > companions.MOST_BYTES:
        raise DamageError(f"{part.place} is larger than any companion", "make the export again")
    raw = b"".join(map(bytes, source.read(part)))
    _check(part, blake3(raw).hexdigest())
    return raw


def _write_companion(place: str, raw: bytes, file: Checkpoint) -> None:
    """Write the companion of a checkpoint anew: a companion names the record that it belongs to."""
    try:
        content = parse(raw)["content"]
    except (ValueError, TypeError, KeyError):
        content = None
    if not isinstance(content, dict):
        raise DamageError(f"{place} is no companion", "make the export again")
    content.pop("of", None)
    companions.write(file, content, durable=False)


def _record(database: Database, new: _New) -> None:
    """Record the launch and its files: in the journal of the directory, then in the catalog."""
    recorded = tuple(_as_it_is(file) for _, file in new.records)
    recorder = shared(database)
    recorder.home(new.directory, Home(set(), {presence.below(new.directory, recorded[0].path)}))

    def decide(connection: Connection) -> tuple[Sequence[Event], Iterable[LaunchKey]]:
        add_run(connection, new.launch.run)  # another import of this name waits here, and then sees this run
        _refuse_other(connection, new)
        return [LaunchStarted(new.launch, data_at=utc_now()), *map(FileRecorded, recorded)], [new.launch.key]

    try:
        recorder.record_decided(decide)
    except RefusedError as error:  # the name was free when the copy began
        raise RefusedError(error.message, f"{error.hint}; remove the files in {new.directory}") from None
    remember(database.name, [new.launch.run], new.directory)


def _as_it_is(file: Checkpoint) -> Checkpoint:
    """The record with the file's time in this file system."""
    there = facts(file.path)
    if there is None or there.size != file.size:
        raise CkptstoreError(f"{file.path} is not there any more", "somebody changed it just now: import it again")
    return replace(file, mtime_ns=there.mtime_ns, created_at=file.created_at or utc_now())
