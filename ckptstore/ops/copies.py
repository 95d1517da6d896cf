"""Files of a run that were copied to where another run saves: they are not this run's to remove.

Who begins an experiment with `cp -r A B` copies the journals too, and what they tell is told of B's files as well.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, Kind

    Key = tuple[str, int]


def held_by_others(
    database: Database, run_id: int, going: Collection[Key], files: Iterable[Checkpoint]
) -> dict[Key, str]:
    """Why some of these states may not go: a rank has a file of theirs twice, and once where another run saves.

    `files` are all of these states, those too that are gone: a copy is one also when its original is in the trash.
    """
    named: dict[tuple[Key, int, Kind, str], list[str]] = defaultdict(list)
    for file in files:
        key = file.launch, file.global_step
        if key in going:
            named[key, file.rank, file.kind, Path(file.path).name].append(file.path)
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
