"""Keeps the strategy and group info files of a launch before the next start overwrites them."""

from __future__ import annotations

import logging
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from blake3 import blake3

from ckptstore.catalog import layouts
from ckptstore.core.events import MOST_CONTENT, LayoutFileKept
from ckptstore.disk.files import facts, read_small
from ckptstore.errors import CatalogUnavailableError, UnreadableError, UsageError, reason_of
from ckptstore.formats.replica_groups import layout_kind
from ckptstore.journal.layouts import MOST_BYTES
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ckptstore.core.model import Launch, LaunchKey
    from ckptstore.disk.files import FileFacts
    from ckptstore.journal.recorder import Recorder

log = logging.getLogger("ckptstore")


class LayoutFiles:
    """The files that the framework is configured to write, with their earlier content.

    `named` returns their paths, as far as they are known when it is called. A file that is unchanged since this rank
    joined may be of an earlier launch. Clocks of hosts differ, so only a change proves that it was written since.
    """

    def __init__(self, named: Callable[[], Iterable[str]]) -> None:
        self._named = named
        self._before: dict[str, FileFacts | None] = {}
        self.note()

    def note(self) -> None:
        """Remember the content of files that are named now and were not before."""
        for path in self._named():
            if path not in self._before:
                with suppress(OSError):  # an unreadable file proves nothing later
                    self._before[path] = facts(path)

    def written(self) -> list[str]:
        """The files that were written since they were noted."""
        found = []
        for path, before in self._before.items():
            with suppress(OSError):
                now = facts(path)
                if now is not None and now != before:
                    found.append(path)
        return found


def keep(recorder: Recorder, launch: Launch, rank: int, path: str) -> bool:
    """Keep the content of a strategy or group info file of this launch, and set the layout by all that are kept.

    A file that is the same on many ranks is kept and read once. Returns whether it is kept: an unusable one is only
    logged. Can be repeated. Raises `CatalogUnavailableError` if neither journal nor catalog took it.
    """
    try:
        content = read_small(path, MOST_BYTES)
        kind = layout_kind(Path(path))
    except OSError as error:
        log.warning("%s cannot be read (%s): the layout is not known by it", path, reason_of(error))
        return False
    except (UnreadableError, UsageError) as error:
        log.warning("%s. The layout is not known by it.", error)
        return False
    if content is None:
        log.warning("%s has more than %d MB: it is not kept, nor used", path, MOST_BYTES >> 20)
        return False
    digest, packed = blake3(content).hexdigest(), zlib.compress(content)
    if len(packed) > MOST_CONTENT:
        log.warning("%s has %d MB when compressed: it is not kept, nor used", path, len(packed) >> 20)
        return False
    if not _is_kept(recorder, launch.key, digest):
        recorder.record([LayoutFileKept(launch.run, launch.id, rank, path, digest, kind, packed)])
    return True


def _is_kept(recorder: Recorder, key: LaunchKey, digest: str) -> bool:
    """Whether the catalog has this content from any rank. False if the catalog cannot be used: it is kept once more."""
    if not recorder.behind:
        with suppress(CatalogUnavailableError), recorder.database.read() as connection:
            return layouts.has_strategy(connection, key, digest)
    return False
