"""Keeps what strategy and group info files say: MindSpore overwrites them at every start (mindspore.md §2, §8)."""

from __future__ import annotations

import logging
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from blake3 import blake3

from ckptstore.core.events import LayoutFileKept
from ckptstore.core.replicas import stand_alone
from ckptstore.errors import UnreadableError, UsageError
from ckptstore.formats.replica_groups import GROUP_INFO, STRATEGY, read_layout
from ckptstore.outside import Path, tempfile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.core.events import Event
    from ckptstore.core.model import Launch
    from ckptstore.core.replicas import Layout

log = logging.getLogger("ckptstore")

MOST_BYTES = 64 << 20
"""A larger file is not kept: one of 10,000 ranks has a few MB."""


def is_as_told(event: Event) -> bool:
    """Whether a layout file's content has the digest in its line: every launch looks contents up by their digests."""
    if not isinstance(event, LayoutFileKept):
        return True
    with suppress(zlib.error):
        content = _unpacked(event.content)
        if content is not None and blake3(content).hexdigest() == event.digest:
            return True
    log.warning("%s of launch %s is not what its line says: it is left out", event.path, event.launch)
    return False


def _unpacked(content: bytes) -> bytes | None:
    """Decompress; None if the result is too large. Raises `zlib.error`."""
    found = zlib.decompressobj().decompress(content, MOST_BYTES + 1)
    return found if len(found) <= MOST_BYTES else None


def layout_by(launch: Launch, kept: Mapping[tuple[int, str], tuple[str, bytes]]) -> Layout:
    """The layout of a launch by kept strategy files, or else by kept group infos; `kept` is by rank and digest.

    If the files contradict each other, none of them proves a replica, whichever came first.
    """
    wanted = STRATEGY if any(kind == STRATEGY for kind, _ in kept.values()) else GROUP_INFO
    with tempfile.TemporaryDirectory(prefix="ckptstore-") as directory:
        paths: dict[str, Path] = {}
        for (rank, digest), (kind, content) in sorted(kept.items()):
            if kind == wanted and digest not in paths:
                paths[digest] = Path(directory) / f"{kind}-of-rank-{rank}"
                paths[digest].write_bytes(zlib.decompress(content))
        try:
            return read_layout(paths.values(), launch.world_size)
        except (UnreadableError, UsageError) as error:
            log.warning("%s. Launch %s has no replicas by these files.", error, launch.id)
            return stand_alone()
