"""Tells the experiments of a tree apart: by their directories, and by their networks.

Directories are a hint: an experiment saves each kind of checkpoint to one directory, which may contain one for each
rank. Networks are a proof: if two files of one rank differ in the names or shapes of parameters, they are of two runs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ckptstore.core.classify import WEIGHTS_DIRECTORIES
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.iterations import parse_iteration, parse_part
from ckptstore.core.model import Content
from ckptstore.core.naming import is_within, parse_rank_directory, parse_ttp_directory
from ckptstore.evidence.reconstruct import rank_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping

    from ckptstore.evidence.unregistered import FoundFile

_RANK = "rank_R"
_COMMANDS_SHOWN = 20
_COMPARED = (Content.FULL, Content.PART)


@dataclass(frozen=True)
class Home:
    """Where a callback saves: `key` is the same for all ranks, `directory` contains the directories of all ranks."""

    key: str
    directory: str


@lru_cache(maxsize=1024)
def home_of(directory: str, root: str) -> Home:
    """The home of the files in a directory, which may be that of one rank. `root` is the root of the scanned tree."""
    parts = directory.split("/")
    key: list[str] = []
    above: int | None = None
    for place, part in enumerate(parts):
        is_rank = parse_rank_directory(part) is not None
        ends = parse_ttp_directory(part) is not None or parse_iteration(part) is not None
        if above is None and (is_rank or ends) and directory.startswith(root) and place > root.rstrip("/").count("/"):
            above = place
        if ends:
            break
        key.append(_RANK if is_rank else "checkpoint" if part in WEIGHTS_DIRECTORIES else part)
    while key and key[-1] == _RANK:
        key.pop()
    return Home("/".join(key) or "/", "/".join(parts[:above]) or "/")


def are_several(homes: Iterable[tuple[Home, str]]) -> bool:
    """Whether checkpoints of one kind have two homes: by their directories, they are of two experiments."""
    keys: dict[str, str] = {}
    return any(keys.setdefault(kind, home.key) != home.key for home, kind in homes)


def apart(homes: Collection[tuple[Home, str]], claimed: Iterable[str] = ()) -> list[str]:
    """The directories to scan, in this order: each has one experiment that the scans before it do not cover.

    Each directory is as high in the tree as possible without other experiments in it: a higher directory more often has
    the name of the experiment. `claimed` are the keys of homes that a run saves to.
    """
    found: list[str] = []
    every = list(claimed)
    rest = [("", homes, every)]
    while rest:
        above, inside, others = rest.pop()
        others = [key for key in others if is_within(key, above)]
        if not are_several(inside) and not others:
            found.append(above or "/")
            continue
        children = grouped((each[0].directory[len(above) :].strip("/").split("/")[0], each) for each in inside)
        if children.pop("", None):
            found.append(above or "/")
        rest += ((f"{above}/{below}", members, others) for below, members in children.items())
    return sorted(found, key=lambda directory: (-directory.count("/"), directory))


def commands(
    directories: Collection[str], root: str, taken: Iterable[str], claimed: Iterable[str], flags: Iterable[object]
) -> str:
    """The commands that scan each of these directories as a run of its own, under names that no run has.

    If another run's home, such as one in `claimed`, is inside a directory, its command names the run: a journal there
    may name the other run.
    """
    names = [directory.rpartition("/")[2] for directory in directories]
    used = {*taken}
    shown = []
    for directory, name in list(zip(directories, names, strict=True))[:_COMMANDS_SHOWN]:
        free, number, is_plain = name, 1, name.isprintable() and name == name.strip() != ""
        if not is_plain or names.count(name) > 1 or name in used or name.startswith("-"):
            parts = [root.rpartition("/")[2], *directory[len(root) :].split("/")] if is_plain else ["run"]
            base = free = "-".join(filter(None, parts)).lstrip("-")
            while free in used:
                number += 1
                free = f"{base}-{number}"
        used.add(free)
        has_others = any(each != directory and is_within(each, directory) for each in (*directories, *claimed))
        chosen = ("--run", free) if free != name or has_others else ()
        shown.append(str(Command("scan", directory, *chosen, *flags)))
    more = f" … and so on, {len(directories)} in all" if len(directories) > len(shown) else ""
    return f"{' && '.join(shown)}{more}"


@dataclass(frozen=True)
class Stranger:
    """A file of another network than another file of its rank, and the difference that proves it."""

    path: str
    other: str
    difference: str


def strangers(new: Iterable[FoundFile], known: Iterable[FoundFile]) -> list[Stranger]:
    """The new files whose network is not that of the known files of their rank.

    - If a rank has no known files, its new files are compared with the most complete one of them.
    - Files of different ranks are not compared: each rank of a network may have other parameters.
    - Shares, and files with weights only, are not compared. A share in a `.ckpt` is not marked as one: the parameters
      that it lacks are in the files of other ranks in the same save.
    """
    new, known = list(new), list(known)
    saves = grouped((_save(file.path), file) for file in (*new, *known))
    models: dict[Hashable, list[FoundFile]] = defaultdict(list)
    for file in known:
        of_rank = models[_place(file)]
        if _is_compared(file) and all(file.shapes != other.shapes for other in of_rank):
            of_rank.append(file)
    found = []
    for file in sorted(new, key=lambda each: (not _is_whole(each), -len(each.shapes), each.path)):
        of_rank = models[_place(file)]
        if not _is_compared(file):
            continue
        if not of_rank:
            of_rank.append(file)
        differences = [_difference(file, other, saves) for other in of_rank]
        if all(differences):
            found.append(Stranger(file.path, of_rank[0].path, differences[0]))
    return found


def _is_compared(file: FoundFile) -> bool:
    return bool(file.shapes) and file.content in _COMPARED


def _place(file: FoundFile) -> Hashable:
    part = parse_part(file.path.rpartition("/")[2]) if file.content is Content.PART else None
    return rank_of(file), (part.holds, part.count) if part is not None else None


def _is_whole(file: FoundFile) -> bool:
    """Whether a file has the optimizer's state. If not, it may be a part of another file, as with `saved_network`."""
    return file.optimizer_step is not None


def _save(path: str) -> str:
    """A path without its rank: the same for the files of all ranks in one save."""
    return "/".join(_RANK if parse_rank_directory(part) is not None else part for part in path.split("/"))


def _difference(one: FoundFile, other: FoundFile, saves: Mapping[str, Iterable[FoundFile]]) -> str:
    """The difference that proves that two files of a rank are of two networks; empty if there is none."""
    mine, theirs = one.shapes, other.shapes
    if mine is theirs or mine == theirs:
        return ""
    for name in sorted(mine.keys() & theirs.keys()):
        if mine[name] != theirs[name]:
            return f"{name} is of shape {mine[name]}, not {theirs[name]}"
    beside_mine, beside_theirs = (
        {name for file in saves[_save(each.path)] for name in file.shapes} for each in (one, other)
    )
    more = sorted(mine.keys() - theirs.keys() - beside_theirs)
    less = sorted(theirs.keys() - mine.keys() - beside_mine)
    if more and (less or _is_whole(other)):
        return f"it has {more[0]}"
    if less and (more or _is_whole(one)):
        return f"it lacks {less[0]}"
    return ""
