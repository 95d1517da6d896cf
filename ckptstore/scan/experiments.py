"""Tells the experiments of a tree apart: by their directories, and by their networks.

Directories only suggest it: of one kind of checkpoint an experiment has one directory, with those of its ranks. Names
and shapes of the parameters of one rank prove it: two networks are never one run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ckptstore.core.classify import WEIGHTS_DIRECTORIES
from ckptstore.core.hints import Command
from ckptstore.core.iterations import parse_iteration, parse_part
from ckptstore.core.model import Content
from ckptstore.core.naming import parse_rank_directory, parse_ttp_directory
from ckptstore.evidence.reconstruct import rank_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping

    from ckptstore.evidence.unregistered import FoundFile

_RANK = "rank_R"
_COMMANDS_SHOWN = 20
_COMPARED = (Content.FULL, Content.PART)


@dataclass(frozen=True)
class Home:
    """Where one callback saves: `key` is the same for all ranks, `directory` has all of them in it."""

    key: str
    directory: str


@lru_cache(maxsize=1024)
def home_of(directory: str, root: str) -> Home:
    """Where the callback saves whose files are in a directory, which may be a rank's, below the root of a tree."""
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
    """Whether checkpoints of one kind are in two places: of two experiments, as far as directories tell."""
    keys: dict[str, str] = {}
    return any(keys.setdefault(kind, home.key) != home.key for home, kind in homes)


def apart(homes: Collection[tuple[Home, str]], claimed: Iterable[str] = ()) -> list[str]:
    """The directories to scan one after another, so that each has one experiment that was not scanned before.

    As far up as there is no other experiment in them: their names are more often those of the experiments. `claimed`
    are keys of homes where some run saves.
    """
    found: list[str] = []
    every = list(claimed)
    rest = [("", homes, every)]
    while rest:
        above, inside, others = rest.pop()
        others = [key for key in others if _is_within(key, above)]
        if not are_several(inside) and not others:
            found.append(above or "/")
            continue
        children: dict[str, list[tuple[Home, str]]] = defaultdict(list)
        for home, kind in inside:
            below = home.directory[len(above) :].strip("/").split("/")[0]
            children[below].append((home, kind))
        if children.pop("", None):
            found.append(above or "/")
        rest += ((f"{above}/{below}", members, others) for below, members in children.items())
    return sorted(found, key=lambda directory: (-directory.count("/"), directory))


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def commands(
    directories: Collection[str], root: str, taken: Iterable[str], claimed: Iterable[str], flags: Iterable[object]
) -> str:
    """The commands that scan each of these directories as a run of its own, under names that no run has.

    Where another run's home, of those `claimed` too, is inside of one, the name is said: a journal there tells another.
    """
    names = [directory.rpartition("/")[2] for directory in directories]
    used = {*taken}
    shown = []
    for directory, name in list(zip(directories, names, strict=True))[:_COMMANDS_SHOWN]:
        free, number, is_plain = name, 1, name.isprintable() and name == name.strip() != ""
        if not is_plain or names.count(name) > 1 or name in used:
            parts = [root.rpartition("/")[2], *directory[len(root) :].split("/")] if is_plain else ["run"]
            base = free = "-".join(filter(None, parts))
            while free in used:
                number += 1
                free = f"{base}-{number}"
        used.add(free)
        has_others = any(each != directory and _is_within(each, directory) for each in (*directories, *claimed))
        chosen = ("--run", free) if free != name or has_others else ()
        shown.append(str(Command("scan", directory, *chosen, *flags)))
    more = f" … and so on, {len(directories)} in all" if len(directories) > len(shown) else ""
    return f"{' && '.join(shown)}{more}"


@dataclass(frozen=True)
class Stranger:
    """A file that is of another network than another one of its rank, and what proves it."""

    path: str
    other: str
    difference: str


def strangers(new: Iterable[FoundFile], known: Iterable[FoundFile]) -> list[Stranger]:
    """The new files that are of another network than the known ones of their rank, or than the first new one there.

    Ranks of one network differ from each other. Shares, and weights that are kept apart, are not compared at all. A
    share in a .ckpt does not say that it is one: what it lacks is in the files of the other ranks' same save.
    """
    new, known = list(new), list(known)
    saves: dict[str, list[FoundFile]] = defaultdict(list)
    for file in (*new, *known):
        saves[_save(file.path)].append(file)
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
    """Whether it has the optimizer's state. Else it may be a part of another one, as with `saved_network`."""
    return file.optimizer_step is not None


def _save(path: str) -> str:
    """What the paths of all ranks' files of one save have in common."""
    return "/".join(_RANK if parse_rank_directory(part) is not None else part for part in path.split("/"))


def _difference(one: FoundFile, other: FoundFile, saves: Mapping[str, Iterable[FoundFile]]) -> str:
    """What proves that two files of a rank are of two networks; empty where nothing does."""
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
