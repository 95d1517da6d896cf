"""Compares a record with the file that the disk shows at its path."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from ckptstore.core.model import Checkpoint, Observed


class Sighting(str, Enum):
    """What became of a recorded file, as far as the look at the disk tells."""

    SAME = "same"
    GONE = "gone"
    CUT = "cut"  # fewer bytes than were recorded
    CHANGED = "changed"  # written again since; without a digest, its bytes may be the same or not
    DAMAGED = "damaged"  # other bytes, though its time does not tell that it was written again
    ANOTHER = "another file"  # more bytes, or other bytes and another time
    CANNOT_LOOK = "cannot look"

    __str__ = str.__str__


class Bytes(NamedTuple):
    """The facts of a file without a record of its own: size in bytes, time in nanoseconds since 1970."""

    size: int | None
    mtime_ns: int | None
    digest: str | None = None


Recorded: TypeAlias = Checkpoint | Bytes


def compare(record: Recorded, seen: Observed) -> Sighting:
    """What the disk shows of a recorded file.

    Digests count more than times: a copy has another time, and a file of another step has the same size
    (mindspore.md §6). The record of a file in progress has no size: then its time decides; without one it is `CHANGED`.
    """
    if seen.unreadable:
        return Sighting.CANNOT_LOOK
    if seen.size is None:
        return Sighting.GONE
    if record.size not in (None, seen.size):
        return Sighting.CUT if seen.size < (record.size or 0) else Sighting.ANOTHER
    rewritten = None not in (record.mtime_ns, seen.mtime_ns) and record.mtime_ns != seen.mtime_ns
    if seen.digest is not None and record.digest is not None:
        if seen.digest == record.digest:
            return Sighting.SAME
        return Sighting.ANOTHER if rewritten else Sighting.DAMAGED
    is_unknown = record.size is None and record.mtime_ns is None
    return Sighting.CHANGED if rewritten or is_unknown else Sighting.SAME


def is_as_recorded(record: Recorded, size: int, mtime_ns: int) -> bool:
    """Whether a file of this size and time is the recorded one, without reading its bytes."""
    return compare(record, Observed(size, mtime_ns=mtime_ns)) is Sighting.SAME
