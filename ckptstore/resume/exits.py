"""Renames the files of graceful exits: all have one name, and MindSpore loads it at any start (mindspore.md §5).

Each file stays in its directory and gets its step in its name. So the next exit does not overwrite it, and
OnRequestExit does not find it and load it over the restored state.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from ckptstore.catalog import live, reads
from ckptstore.core.model import FileState, Kind
from ckptstore.core.naming import exit_name, parse_exit_name
from ckptstore.disk import files
from ckptstore.errors import UnreadableError, UsageError, reason_of
from ckptstore.evidence.witnesses import whole_number
from ckptstore.formats.inspect import read_checkpoint
from ckptstore.journal.recorder import Recorder, shared
from ckptstore.outside import Path
from ckptstore.resume import register

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint

log = logging.getLogger("ckptstore")

_GRAPH = ".mindir"


def kept_path(path: str, global_step: int | None) -> str:
    """A free path beside `path` with the step in its name.

    Raises `ValueError` if `path` does not have the name of a graceful exit's file.
    """
    parsed = parse_exit_name(Path(path).name)
    if parsed is None:
        raise ValueError(f"{path} is not named as the file of a graceful exit")
    taken = files.names_in(str(Path(path).parent))
    names = (exit_name(parsed.file_name, global_step, repeat) for repeat in count())
    return str(Path(path).with_name(next(name for name in names if name not in taken)))


def keep(recorder: Recorder, file: Checkpoint, new_path: str) -> Checkpoint:
    """Rename the complete file of an exit and its `.mindir`; return its new record. Can be repeated after a crash.

    The new name is recorded before the file has it: a process that dies in between leaves no unregistered file.
    Raises `OSError` if the file cannot be renamed: it keeps its old name.
    """
    announced = replace(file, path=new_path, size=None, mtime_ns=None, digest=None, state=FileState.IN_PROGRESS)
    recorder.record_files([announced])
    keep_graph(file.path, new_path)
    try:
        files.move(file.path, new_path)
    except OSError:
        recorder.mark([announced], FileState.MISSING)
        raise
    (kept,) = recorder.record_files([replace(file, path=new_path)])
    recorder.mark([file], FileState.MOVED)
    return kept


def keep_graph(path: str, new_path: str) -> None:
    """Rename the `.mindir` beside an exit's file like the file. A failure is only logged: the file matters more."""
    graph, new_graph = Path(path).with_suffix(_GRAPH), Path(new_path).with_suffix(_GRAPH)
    try:
        if graph.exists():
            files.move(str(graph), str(new_graph))
    except OSError as error:
        log.warning("%s could not be renamed (%s)", graph, reason_of(error))


def keep_unknown(path: str) -> str | None:
    """Rename an unregistered file of an exit, before the next exit overwrites it, and return its new path.

    The step in the new name is MindSpore's `step_num`. After an exit by a signal the file has none (mindspore.md §3):
    then the new name has no step, since a name must not claim an unproven one. Returns None if the file cannot be read
    or renamed: it keeps its old name.
    """
    try:
        new_path = kept_path(path, whole_number(read_checkpoint(Path(path)).info.get("step_num")))
        files.move(path, new_path)
    except (UnreadableError, OSError, ValueError):
        return None
    keep_graph(path, new_path)
    return new_path


def set_aside(database: Database, run_id: int) -> None:
    """Rename files of exits that still have MindSpore's fixed name: their launches died before they renamed them."""
    with database.read() as connection:
        left = live.exits(connection, run_id)
        homes = {
            (source.launch, source.rank, source.directory)
            for source in reads.sources_of_launches(connection, {file.launch_key for file in left})
            if source.kind is Kind.GRACEFUL_EXIT
        }
    recorder = shared(database)
    for file in left:
        named = parse_exit_name(Path(file.path).name)
        at_home = (file.launch, file.rank, str(Path(file.path).parent)) in homes
        if named is None or named.global_step is not None or not at_home:
            continue
        try:
            whole = register.measured(file, prove_step=True)
            if whole is not None and file.digest in (None, whole.digest):
                keep(recorder, whole, kept_path(file.path, file.global_step))
        except (OSError, UsageError) as error:
            log.warning(
                "%s could not be renamed (%s): the next graceful exit overwrites it", file.path, reason_of(error)
            )
