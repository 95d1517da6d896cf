"""Tiers, and copies of checkpoint files in them (docs/how-to/keep-copies.md)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 — msgspec reads the annotations
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.fields import (  # noqa: TC001 — msgspec reads the annotations
    Index,
    Key,
    TierName,
    TierUrl,
    Whole,
    Word,
)
from ckptstore.core.ids import derived_id

if TYPE_CHECKING:
    from collections.abc import Iterable

ON_NODE = "file://"
"""The beginning of the URLs of tiers that are directories."""


class Tier(NamedTuple):
    """A place that holds copies of checkpoints: a directory, or a bucket of an object store and a prefix in it.

    The name and the URL together identify a tier: two users may give two places the same name.
    """

    name: TierName
    url: TierUrl
    level: Index  # 0: the node's own disk; the higher, the farther from the node, and the safer

    @property
    def id(self) -> str:
        """Identifies the tier in a catalog."""
        return derived_id(self.name, self.url)

    @property
    def directory(self) -> str:
        """The tier's directory; empty if the tier is a bucket."""
        return self.url.removeprefix(ON_NODE) if self.url.startswith(ON_NODE) else ""

    def contains(self, path: str) -> bool:
        """Whether a path is in the tier's directory."""
        return bool(self.directory) and path.startswith(f"{self.directory.rstrip('/')}/")


class CopyState(str, Enum):
    """The state of a copy."""

    PENDING = "pending"
    READY = "ready"  # all of it is there, and was checked
    FAILED = "failed"
    TRASHED = "trashed"  # retention has removed it, and it comes back by undo; its object is deleted after the grace
    GONE = "gone"

    __str__ = str.__str__


MADE = (CopyState.READY, CopyState.TRASHED, CopyState.GONE)
"""The states of a copy that is not made again."""


class Beside(NamedTuple):
    """A file that was copied with a checkpoint, since a restore needs it: the checkpoint's companion."""

    name: Key  # of the file; it lies in the checkpoint's directory
    key: Key
    size: Whole  # bytes
    digest: Word  # BLAKE3 in hexadecimal


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of one checkpoint file in a tier."""

    tier: Tier
    key: str  # below the URL of the tier
    state: CopyState
    size: int | None  # bytes
    digest: str | None  # BLAKE3 in hexadecimal: the copy matches the record with the same digest
    at: datetime
    beside: tuple[Beside, ...] = ()
    detail: str = ""  # why it failed; of a trashed one, when its grace is over

    @property
    def all_bytes(self) -> int:
        """The bytes that must be fetched to use the copy."""
        return (self.size or 0) + sum(each.size for each in self.beside)

    def is_of(self, digest: str | None) -> bool:
        """Whether a rank can load this copy in place of a file that is recorded with this digest."""
        return digest is not None and self.digest == digest and self.state is CopyState.READY


def nearest_first(copies: Iterable[Copy]) -> tuple[Copy, ...]:
    """Copies by the level of their tiers, then by name."""
    return tuple(sorted(copies, key=lambda copy: (copy.tier.level, copy.tier.name, copy.tier.url)))


@dataclass(frozen=True)
class Declared:
    """A tier in the catalog. It is not `declared` if it was removed, or if only another user's journal names it."""

    tier: Tier
    declared: bool
    since: datetime | None = None
