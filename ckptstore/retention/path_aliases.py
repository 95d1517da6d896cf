"""Reasons to keep a state that the policy would remove: it shares a file with another state, or with another run.

The catalog has each file by its real path. It has a file twice if a file system is mounted in two places, or if a disk
was moved and a link left. Removing one path would lose the other too: so both stay, and count as one state.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.catalog import directories, reads
from ckptstore.core.groups import grouped
from ckptstore.core.limits import HIGHEST
from ckptstore.core.naming import SEVERAL, parse_tensorflow
from ckptstore.disk import files as disk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ckptstore.catalog.directories import Recorded
    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, Observed
    from ckptstore.retention.debris import Target
    from ckptstore.retention.decide import Key, StateFacts


def count_once(
    states: Sequence[StateFacts], files: Iterable[Checkpoint], seen: Mapping[str, Observed]
) -> list[StateFacts]:
    """The states, with a doubt on those that share a file. Of these only the newest complete one counts."""
    by_key = {state.key: state for state in states}
    rank = {state.key: (state.restorable, not state.branch, state.age_order) for state in states}
    shared = [
        sorted(found, key=lambda file: rank[_key(file)], reverse=True)
        for found in _shared([file for file in files if _key(file) in by_key], seen)
    ]
    for first, *others in shared:
        for other in others:
            told = f"{other.path} is also {first.path}, of {_named(first)}: both stay, and count as one"
            state = by_key[_key(other)]
            by_key[state.key] = replace(state, doubt=state.doubt or told, problem=state.problem or told)
    for first, other, *_ in shared:
        state = by_key[_key(first)]
        told = f"{first.path} is also {other.path}, of {_named(other)}: both stay"
        by_key[state.key] = replace(state, doubt=state.doubt or told)
    return list(by_key.values())


def _shared(files: Iterable[Checkpoint], seen: Mapping[str, Observed]) -> list[list[Checkpoint]]:
    """Records of several states that are one file. Only files of one size and time are looked at."""
    alike: dict[tuple[int, int], list[Checkpoint]] = defaultdict(list)
    for file in files:
        here = seen.get(file.path)
        if here is not None and here.size is not None and here.mtime_ns is not None:
            alike[here.size, here.mtime_ns].append(file)
    found: list[list[Checkpoint]] = []
    for some in alike.values():
        if len(some) > 1 and len({_key(file) for file in some}) > 1:
            same: dict[tuple[int, int, str] | None, dict[Key, Checkpoint]] = defaultdict(dict)
            for file in some:
                same[disk.identity(file.path)].setdefault(_key(file), file)
            found += [list(each.values()) for what, each in same.items() if what is not None and len(each) > 1]
    return found


def states_in_use(database: Database, going: Mapping[Key, Sequence[Target]]) -> dict[Key, str]:
    """Why some of these states may not go: they share a file with another state, of this run or another.

    The other state has the file at the same path, at another path, or as part of a checkpoint of several files. Other
    paths are searched only among records with the size of a file that goes, and with its present or recorded time.
    """
    files = [(key, target) for key, targets in going.items() for target in targets if target.checkpoint is not None]
    if not files:
        return {}
    own = {target.checkpoint for _, target in files if target.checkpoint is not None}
    marks = {mark for _, target in files for mark in _marks(target)}
    moments = [mark[0] for mark in marks if isinstance(mark, tuple)]
    with database.read() as connection:
        every = directories.written_within(connection, min(moments), max(moments))
        alike = [record for record in every if record.id not in own and _mark(record) in marks]
        beside = directories.at_the_paths_of(connection, own)
        same = {record.path: record for record in beside if record.id not in own}
        several = {target.path: (key, target) for key, target in files if target.format in SEVERAL}
        others = directories.written_within(connection, -HIGHEST, HIGHEST) if several else ()
        inside = [(*several[above], record) for record in others for above in _above(record.path) if above in several]
        above = {each for _, target in files for each in _above(target.path)}
        around = {record.path: record for record in directories.at_paths(connection, above)}
    held = {key: _told(target, same[target.path]) for key, target in files if target.path in same}
    held |= {key: f"{target.path} has {record.path} in it, {_of(record)}: it stays" for key, target, record in inside}
    for key, target in files if around else ():
        for record in filter(None, map(around.get, _above(target.path))):
            held[key] = f"{target.path} is one of several files, {record.path}, {_of(record)}: it stays"
    if not alike:
        return held
    wanted = {_mark(record) for record in alike}
    there = grouped(
        (disk.identity(target.path), (key, target)) for key, target in files if not wanted.isdisjoint(_marks(target))
    )
    there.pop(None, None)
    for record in alike:
        for key, target in there.get(disk.identity(record.path), ()):
            held.setdefault(key, _told(target, record))
    return held


def _told(target: Target, record: Recorded) -> str:
    return f"{target.path} is also {record.path}, {_of(record)}: it stays"


def _of(record: Recorded) -> str:
    return f"of step {record.global_step} of launch {record.launch} of run {record.run}"


def _above(path: str) -> Iterator[str]:
    """The checkpoints that a file may be a part of: those with a prefix of its name, or a directory above it."""
    above, _, name = path.rpartition("/")
    parsed = parse_tensorflow(name)
    if parsed is not None:
        yield f"{above}/{parsed.prefix}"
    while above:
        yield above
        above = above.rpartition("/")[0]


def _marks(target: Target) -> set[tuple[int, int] | str]:
    """The marks by which a record may be of the same file: time and size, or the name while it is being written."""
    times = {target.mtime_ns, target.recorded_ns or target.mtime_ns}
    return {*((moment, target.size) for moment in times), target.path.rpartition("/")[2]}


def _mark(record: Recorded) -> tuple[int, int] | str:
    if record.mtime_ns is None or record.size is None:
        return record.path.rpartition("/")[2]
    return record.mtime_ns, record.size


def copied_by_others(
    database: Database, run_id: int, going: Collection[Key], files: Iterable[Checkpoint]
) -> dict[Key, str]:
    """Why some of these states may not go: a rank has a file twice, one of them in a directory of another run.

    An experiment that begins with `cp -r A B` copies the journals too, and their records then cover B's files as well.
    `files` are all files of these states, gone ones too: a file is a copy even if its original is in the trash.
    """
    named = grouped(
        ((_key(file), file.rank, file.kind, file.path.rpartition("/")[2]), file.path)
        for file in files
        if _key(file) in going
    )
    twice = [(key, path) for (key, *_), paths in named.items() if len(paths) > 1 for path in paths]
    if not twice:
        return {}
    with database.read() as connection:
        beside = reads.sources_beside(connection, run_id, {path.rpartition("/")[0] for _, path in twice})
    others = {source.directory: source.launch for source in beside}
    return {
        key: f"{path} is a copy, where launch {others[directory]} of another run saves: all of this state stays"
        for key, path in twice
        if (directory := path.rpartition("/")[0]) in others
    }


def _key(file: Checkpoint) -> Key:
    return file.launch, file.global_step


def _named(file: Checkpoint) -> str:
    return f"step {file.global_step} of launch {file.launch}"
