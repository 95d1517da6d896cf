"""Types of the values in journals, with their bounds: msgspec checks each value that is read from a journal."""

from __future__ import annotations

from datetime import datetime
from sys import float_info
from typing import Annotated

from msgspec import Meta

from ckptstore.core.limits import HIGHEST, HIGHEST_INTEGER, LONGEST_NAME, MOST_RANKS

_TEXT = r"[^\0\ud800-\udfff]"
"""A character that UTF-8 can encode and databases can store."""

Text = Annotated[str, Meta(pattern=rf"\A{_TEXT}*\Z")]
Name = Annotated[str, Meta(pattern=rf"\A{_TEXT}*\Z", min_length=1, max_length=LONGEST_NAME)]
Word = Annotated[str, Meta(pattern=rf"\A{_TEXT}*\Z", max_length=64)]
"""A digest, or a version."""
Id = Annotated[str, Meta(pattern=rf"\A{_TEXT}*\Z", max_length=32)]
"""A derived id; empty: none."""
LayoutKind = Annotated[str, Meta(pattern=rf"\A{_TEXT}*\Z", max_length=16)]
"""What a layout file is: a strategy or a group info."""
Prefix = Annotated[str, Meta(pattern=rf"\A{_TEXT}*\Z", max_length=255)]
"""The beginning of a file's name."""
Collection = Annotated[str, Meta(pattern=r"\A(?!\.)[^/\0\ud800-\udfff]+\Z", max_length=32)]
"""The id of a gc, which is also the name of a directory in the trash."""
DirectoryId = Annotated[str, Meta(pattern=r"\A([0-9a-f]{16})?\Z")]
_PLACING = r"--trust (?:counter|name|info|numbers)|--steps-per-epoch (?:E|[0-9]{1,9})|--step FILE=STEP|--world-size 1"
Remedy = Annotated[str, Meta(pattern=rf"\A(?:(?:{_PLACING})(?: |\Z))*\Z")]
"""Options of `ckptstore scan` for facts that only its user knows. No others, since users run the commands they see."""

TierName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
_PLACE = (
    r"file:///[^?#\0\ud800-\udfff]*|(?!file:)[a-z][a-z0-9+.-]*://[^/@?#\0\ud800-\udfff]+(?:/[^/?#\0\ud800-\udfff]+)*"
)
TierUrl = Annotated[str, Meta(pattern=rf"\A(?![\s\S]*/\.{{1,2}}(?:/|\Z))(?:{_PLACE})\Z", max_length=2000)]
"""A directory of this machine, or a bucket. Without `@`: the part before it may be a password. No part is `.` or `..`,
and none of a prefix is empty: such a prefix is another one for some servers, or two tiers share their objects."""
Key = Annotated[
    str, Meta(pattern=r"\A(?!\.{0,2}(?:/|\Z))(?:(?!/\.{0,2}(?:/|\Z))[^\0\ud800-\udfff])+\Z", max_length=2000)
]
"""A name, or names with slashes between them: none of them is `.` or `..`."""

Whole = Annotated[int, Meta(ge=0, le=HIGHEST)]
"""Steps and bytes."""
Nanoseconds = Annotated[int, Meta(ge=-HIGHEST, le=HIGHEST)]
Index = Annotated[int, Meta(ge=0, le=HIGHEST_INTEGER)]
"""Ranks, epochs, and steps in them."""
Count = Annotated[int, Meta(ge=1, le=HIGHEST_INTEGER)]
Ranks = Annotated[int, Meta(ge=1, le=MOST_RANKS)]
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Moment = Annotated[datetime, Meta(tz=True)]
