"""Who writes a file of this name: the sources of a launch, which announce where they save what.

TTP's directories get their last name once every rank is done (mindspore.md §7). One that a cascaded fault left under
its first name is written on by a launch that fails at the same step, and renamed with all that is in it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.core.model import Kind
from ckptstore.core.naming import (
    is_numbered,
    is_ttp_file,
    parse_exit_name,
    parse_name,
    parse_rank_directory,
    parse_ttp_directory,
    unfinished_ttp_directory,
)
from ckptstore.disk.files import names_in
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ckptstore.core.model import Source
    from ckptstore.core.naming import CheckpointName

_UNFINISHED = "_tmp"


@dataclass(frozen=True)
class UnregisteredFile:
    """A file that a rank of a launch wrote, by its name, and that is not among the live ones of the catalog."""

    source: Source
    path: str

    @property
    def name(self) -> CheckpointName | None:
        """What its name says, if a ModelCheckpoint gave it."""
        return parse_name(Path(self.path).name)

    @property
    def is_breakpoint(self) -> bool:
        """Whether it was written at an exception."""
        return self.name is not None and self.name.is_breakpoint

    @property
    def kind(self) -> Kind:
        """The kind of save it is part of."""
        return Kind.DYING_GASP if self.is_breakpoint else self.source.kind

    @property
    def named_step(self) -> int | None:
        """The step that the name of a graceful exit's file, or the directory of a TTP file, states."""
        if self.kind is Kind.GRACEFUL_EXIT:
            exit_name = parse_exit_name(Path(self.path).name)
            return None if exit_name is None else exit_name.global_step
        directory = parse_ttp_directory(Path(self.path).parents[1].name)
        return None if directory is None else directory.step


def wrote(source: Source, name: str) -> bool:
    """Whether a source writes files of this name, and this one was not there before it."""
    if source.kind is Kind.TTP:
        return is_ttp_file(name)
    if name in source.names_before:
        return False
    if source.kind is Kind.GRACEFUL_EXIT:
        exit_name = parse_exit_name(name)
        return exit_name is not None and exit_name.file_name == source.prefix
    parsed = parse_name(name)
    if parsed is None:
        return False
    if parsed.is_breakpoint:
        return is_numbered(parsed.prefix, source.breakpoint_prefix)
    return source.kind is Kind.PERIODIC and parsed.prefix == source.prefix


def unregistered_files(
    source: Source, listed: Mapping[str, Iterable[str]], known: Iterable[str]
) -> Iterator[UnregisteredFile]:
    """What a source wrote among the listed names, but for the paths that are known."""
    paths = set(known)
    for directory, names in sorted(listed.items()):
        home = str(Path(directory)).rstrip("/")
        for name in sorted(names):
            path = f"{home}/{name}"
            if path not in paths and wrote(source, name):
                yield UnregisteredFile(source, path)


def list_ttp(source: Source) -> dict[str, frozenset[str]]:
    """The names in the directories that a source of TTP writes to. Raises `OSError` if one cannot be read."""
    found: dict[str, frozenset[str]] = {}
    for name in names_in(source.directory).difference(source.names_before):
        if parse_ttp_directory(name) is not None:
            found |= _of_rank(Path(source.directory) / name, source.rank)
    return found


def ttp_names_before(root: str, rank: int) -> list[str]:
    """The names below the root that a launch finds when it begins: what is in it, and a rank's unfinished files.

    Raises `OSError` if the root cannot be read.
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
    """Where a TTP file was before its directory was renamed; empty if that was not, or for any other file."""
    rank_directory = Path(path).parent
    directory = rank_directory.parent
    parsed = parse_ttp_directory(directory.name)
    if parsed is None or parsed.unfinished:
        return ""
    return str(directory.with_name(directory.name + _UNFINISHED) / rank_directory.name / Path(path).name)


def was_there(source: Source, path: str) -> bool:
    """Whether a TTP file was there when a source's launch began, in its directory or in what that was renamed from."""
    first = before_rename(path)
    if first and Path(path).parents[1].name in source.names_before:
        return True
    return str(Path(first or path).relative_to(source.directory)) in source.names_before
