"""The directories that TTP's handlers write to, which get their last name once every rank is done (mindspore.md §7).

One that a cascaded fault left under its first name is written on by a launch that fails at the same step, and renamed
with all that is in it: MindSpore makes it where it is not there, and empties it never.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ckptstore.core.naming import parse_rank_directory, parse_ttp_directory, unfinished_ttp_directory
from ckptstore.disk.files import names_in
from ckptstore.outside import Path

if TYPE_CHECKING:
    from ckptstore.core.model import Source

_UNFINISHED = "_tmp"


def listing(source: Source) -> dict[str, frozenset[str]]:
    """The names in the directories that a source of TTP writes to. Raises `OSError` where one cannot be read."""
    found: dict[str, frozenset[str]] = {}
    for name in names_in(source.directory).difference(source.names_before):
        if parse_ttp_directory(name) is not None:
            found |= _of_rank(Path(source.directory) / name, source.rank)
    return found


def names_before(root: str, rank: int) -> list[str]:
    """The names below the root that a launch finds when it begins: whatever is in it, and a rank's unfinished files.

    Raises `OSError` where the root cannot be read.
    """
    found = sorted(names_in(root))
    for name in [name for name in found if unfinished_ttp_directory(name)]:
        with suppress(OSError):  # it is no directory, or not to be read: nothing is known of what is in it
            for directory, files in _of_rank(Path(root) / name, rank).items():
                found += sorted(f"{name}/{Path(directory).name}/{file}" for file in files)
    return found


def _of_rank(inside: Path, rank: int) -> dict[str, frozenset[str]]:
    directories = (str(inside / name) for name in names_in(str(inside)) if parse_rank_directory(name) == rank)
    return {directory: names_in(directory) for directory in directories}


def before_rename(path: str) -> str:
    """Where a file was before its directory was renamed; empty for one whose directory was not, or is none of TTP."""
    rank_directory = Path(path).parent
    directory = rank_directory.parent
    parsed = parse_ttp_directory(directory.name)
    if parsed is None or parsed.unfinished:
        return ""
    return str(directory.with_name(directory.name + _UNFINISHED) / rank_directory.name / Path(path).name)


def was_there(source: Source, path: str) -> bool:
    """Whether a file was there when a source's launch began, in its directory or in what that was renamed from."""
    first = before_rename(path)
    if first and Path(path).parents[1].name in source.names_before:
        return True
    return str(Path(first or path).relative_to(source.directory)) in source.names_before
