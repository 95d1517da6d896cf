"""Keep what MindSpore wrote of a launch's layout: its files are overwritten at every start (domain §2, §8)."""

from __future__ import annotations

import logging
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from ckptstore.catalog import layouts
from ckptstore.errors import UnreadableError, UsageError
from ckptstore.formats.layouts import GROUP_INFO, STRATEGY, layout_kind, read_layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Launch
    from ckptstore.core.replicas import Layout

log = logging.getLogger("ckptstore")

MOST_BYTES = 64 << 20
"""A larger file is not kept: one of 10,000 ranks has a few MB."""


def keep(database: Database, launch: Launch, rank: int, path: str) -> bool:
    """Keep the content of a strategy or group info file of this launch, and set the layout by all that are kept.

    What is the same on many ranks is kept and looked at once. Returns whether it is kept: what cannot be used is
    logged and left. Raises `CatalogUnavailableError`; doing it again changes nothing.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            log.warning("%s has more than %d MB: it is not kept, nor used", path, MOST_BYTES >> 20)
            return False
        kind = layout_kind(Path(path))
    except OSError as error:
        log.warning("%s cannot be read (%s): the layout is not known by it", path, error.strerror or error)
        return False
    except (UnreadableError, UsageError) as error:
        log.warning("%s. The layout is not known by it.", error)
        return False
    digest = blake3(content).hexdigest()
    with database.read() as connection:
        if layouts.has_strategy(connection, launch.id, digest):
            return True
    with database.write() as connection:
        layouts.keep_strategy(
            connection,
            launch_id=launch.id,
            rank=rank,
            path=path,
            digest=digest,
            kind=kind,
            content=zlib.compress(content),
        )
    _set_layout(database, launch)
    return True


def _set_layout(database: Database, launch: Launch) -> None:
    """By all files of the launch so far. Another rank may add one meanwhile: then it is done again."""
    used: set[tuple[int, str]] = set()
    while True:
        with database.read() as connection:
            kept = layouts.strategies_of(connection, launch.id)
        if kept.keys() == used:
            return
        used = set(kept)
        try:
            layout = layout_by(kept, launch.world_size)
        except (UnreadableError, UsageError) as error:
            log.warning("%s. Launch %s has no replicas by these files.", error, launch.id)
            return
        with database.write() as connection:
            layouts.set_layout(connection, launch.id, layout)


def layout_by(kept: Mapping[tuple[int, str], tuple[str, bytes]], world_size: int) -> Layout:
    """The layout by kept contents, which are by rank and digest: of the strategies, else of the group infos.

    Raises as `formats.layouts.read_layout` does.
    """
    wanted = STRATEGY if any(kind == STRATEGY for kind, _ in kept.values()) else GROUP_INFO
    with tempfile.TemporaryDirectory(prefix="ckptstore-") as directory:
        paths: dict[str, Path] = {}
        for (rank, digest), (kind, content) in sorted(kept.items()):
            if kind == wanted and digest not in paths:
                paths[digest] = Path(directory) / f"{kind}-of-rank-{rank}"
                paths[digest].write_bytes(zlib.decompress(content))
        return read_layout(paths.values(), world_size)
