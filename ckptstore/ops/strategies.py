"""Keep what MindSpore wrote of a launch's layout: its files are overwritten at every start (domain §2, §8)."""

from __future__ import annotations

import logging
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from ckptstore.catalog import layouts
from ckptstore.core.replicas import stand_alone
from ckptstore.errors import CatalogUnavailableError, UnreadableError, UsageError
from ckptstore.formats.layouts import GROUP_INFO, STRATEGY, layout_kind, read_layout
from ckptstore.ops.records import LayoutFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from ckptstore.core.model import Launch
    from ckptstore.core.replicas import Layout
    from ckptstore.ops.ledger import Ledger

log = logging.getLogger("ckptstore")

MOST_BYTES = 64 << 20
"""A larger file is not kept: one of 10,000 ranks has a few MB."""


def keep(ledger: Ledger, launch: Launch, rank: int, path: str) -> bool:
    """Keep the content of a strategy or group info file of this launch, and set the layout by all that are kept.

    What is the same on many ranks is kept and looked at once. Returns whether it is kept: what cannot be used is
    logged and left. Raises `CatalogUnavailableError` where neither journal nor catalog took it; doing it again changes
    nothing.
    """
    try:
        content = _read(path)
        kind = layout_kind(Path(path))
    except OSError as error:
        log.warning("%s cannot be read (%s): the layout is not known by it", path, error.strerror or error)
        return False
    except (UnreadableError, UsageError) as error:
        log.warning("%s. The layout is not known by it.", error)
        return False
    if content is None:
        log.warning("%s has more than %d MB: it is not kept, nor used", path, MOST_BYTES >> 20)
        return False
    digest = blake3(content).hexdigest()
    if not _is_kept(ledger, launch.id, digest):
        ledger.keep_layout_file(LayoutFile(launch.id, rank, path, digest, kind, zlib.compress(content)))
    return True


def _is_kept(ledger: Ledger, launch_id: str, digest: str) -> bool:
    """Whether the catalog has it of another rank; where that cannot be asked, the journal takes it once more."""
    if not ledger.behind:
        with suppress(CatalogUnavailableError), ledger.database.read() as connection:
            return layouts.has_strategy(connection, launch_id, digest)
    return False


def put(connection: Connection, kept: LayoutFile) -> None:
    """Put a strategy or group info file into the catalog, and set the layout of its launch by all that are there.

    Of one whose content is not told, that is in the file, if it has not changed since; without it nothing is put.
    """
    content = kept.content or _still_there(kept)
    if content is None:
        log.warning("%s of launch %s was overwritten: its replicas are not known by it", kept.path, kept.launch)
        return
    launch = layouts.lock_launch(connection, kept.launch)
    is_new = not layouts.has_strategy(connection, kept.launch, kept.digest)
    layouts.keep_strategy(
        connection,
        launch_id=kept.launch,
        rank=kept.rank,
        path=kept.path,
        digest=kept.digest,
        kind=kept.kind,
        content=content,
    )
    if is_new and launch is not None:
        _set_layout(connection, launch)


def _set_layout(connection: Connection, launch: Launch) -> None:
    """Where the files contradict each other none of them proves a replica, whichever came first."""
    try:
        layout = layout_by(layouts.strategies_of(connection, launch.id), launch.world_size)
    except (UnreadableError, UsageError) as error:
        log.warning("%s. Launch %s has no replicas by these files.", error, launch.id)
        layout = stand_alone()
    layouts.set_layout(connection, launch.id, layout)


def _still_there(kept: LayoutFile) -> bytes | None:
    try:
        content = _read(kept.path)
    except OSError:
        return None
    return zlib.compress(content) if content is not None and blake3(content).hexdigest() == kept.digest else None


def _read(path: str) -> bytes | None:
    """What is in a file; None if that is too much. Raises `OSError`."""
    with Path(path).open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    return content if len(content) <= MOST_BYTES else None


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
