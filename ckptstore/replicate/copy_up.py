"""Copies one checkpoint to a store: first its companion, which a restore needs, then the checkpoint itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.copies import Beside
from ckptstore.core.copy_keys import key_of
from ckptstore.core.naming import companion_of
from ckptstore.disk.files import digest as digest_of
from ckptstore.disk.files import facts
from ckptstore.errors import reason_of
from ckptstore.objects.errors import SourceError, StoreError
from ckptstore.objects.store import read_pieces
from ckptstore.outside import time

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptstore.core.model import Checkpoint
    from ckptstore.objects.store import Limit, Store


def copy_up(store: Store, file: Checkpoint, limit: Limit | None = None, *, anew: bool = False) -> tuple[Beside, ...]:
    """Copy the companion of a recorded file, then the file; return the companion. Their bytes are proven in the store.

    `anew`: the copy in the store was found damaged, which the store's checksum may not show. It is deleted if that is
    still so, after the local file was proven. Raises `StoreError`; `SourceError` if the file is not as recorded.
    """
    if anew:
        for _ in read_pieces(file.path, file.size or 0, file.digest or ""):
            pass
        others = [(each.key, each.size, each.digest) for each in _beside(file)]
        for key, size, digest in (*others, (key_of(file), file.size or 0, file.digest or "")):
            if not _is_whole(store, key, size, digest):
                store.remove(key)
    try:
        beside = _copy_beside(store, file, limit)
    except SourceError:  # the companion was written anew during the copy
        beside = _copy_beside(store, file, limit)
    store.put(file.path, key_of(file), file.size or 0, file.digest or "", limit)
    return beside


def _is_whole(store: Store, key: str, size: int, digest: str) -> bool:
    """Whether an object holds these bytes: ranks share objects, and another rank may have copied it anew since."""
    try:
        seen = store.head(key)
        return seen is not None and seen.size == size and store.digest_of(key, size) == digest
    except StoreError:  # it cannot be read; if the store cannot be used, its next call says so
        return False


def _copy_beside(store: Store, file: Checkpoint, limit: Limit | None) -> tuple[Beside, ...]:
    beside = tuple(_beside(file))
    for each in beside:
        store.put(f"{file.path.rpartition('/')[0]}/{each.name}", each.key, each.size, each.digest, limit)
    return beside


def _beside(file: Checkpoint) -> list[Beside]:
    path = companion_of(file.path)
    try:
        found = facts(path)
        if found is None:
            return []
        digest = digest_of(path)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {reason_of(error)}", "it is not copied") from None
    name = path.rpartition("/")[2]
    return [Beside(name, key_of(file, name, digest), found.size, digest)]


class Rate:
    """A limit in bytes a second, for all users of one object together. None: no limit."""

    def __init__(self, bytes_per_second: float | None, wait: Callable[[float], object] = time.sleep) -> None:
        self._rate = bytes_per_second
        self._wait = wait
        self._free_at = 0.0

    def take(self, count: int) -> None:
        """Wait until so many bytes may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        begin = max(now, self._free_at)
        self._free_at = begin + count / self._rate
        self._wait(begin - now)
