"""The directories that a run saves to, as this user has seen on this machine: for a start without a catalog."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from platformdirs import user_state_path

from ckptstore.core import bounded_json, validate
from ckptstore.core.hints import Command
from ckptstore.core.ids import derived_id
from ckptstore.core.naming import parse_rank_directory
from ckptstore.disk.files import absolute, real_directory
from ckptstore.disk.name_claims import FOLDER
from ckptstore.errors import UsageError, reason_of
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("ckptstore")

DIRECTORIES = "CKPTSTORE_DIRECTORIES"
"""The variable that names the directories of a run's checkpoints, as PATH does."""


def root_of(directory: str) -> str:
    """The directory above, if this is the directory of one rank; else the directory itself."""
    path = Path(directory)
    return str(path.parent if parse_rank_directory(path.name) is not None else path)


def remember(catalog: str, runs: Iterable[str], directory: str) -> None:
    """Remember that a run of a catalog saves there, under each of its names. A failure is logged only.

    A script may join by the first name or by the present one, and without the catalog nothing else relates them.
    """
    root = root_of(directory)
    for run in dict.fromkeys(runs):
        if root not in remembered(catalog, run):
            _add(catalog, run, root)


def _add(catalog: str, run: str, root: str) -> None:
    path = _memory(catalog, run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="ascii") as file:
            file.write(f"{json.dumps(root)}\n")
    except OSError as error:
        log.info("where run %s saves is not remembered on this machine (%s)", run, reason_of(error))


def remembered(catalog: str, run: str) -> list[str]:
    """The directories that were remembered; none if they cannot be read."""
    try:
        lines = _memory(catalog, run).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []
    found: list[str] = []
    for line in lines:
        try:
            found.append(str(bounded_json.parse(line)))
        except ValueError:  # noqa: PERF203 — a torn line
            continue
    return found


def known_directories(catalog: str, runs: Iterable[str], given: Iterable[str | Path] = ()) -> list[str]:
    """Each directory that the checkpoints of a run of these names may be in or below.

    They are those that are given, named by the variable, or remembered.
    """
    named = os.environ.get(DIRECTORIES, "").split(os.pathsep)
    every = [*map(str, given), *filter(None, named), *(each for run in runs for each in remembered(catalog, run))]
    return list(dict.fromkeys(real_directory(each) for each in every))


def _memory(catalog: str, run: str) -> Path:
    """The file of a run; other catalogs may have other runs of that name. `catalog` is named without a password."""
    return Path(user_state_path("ckptstore", appauthor=False), "directories", derived_id(catalog, run, size=12))


def checkpoint_tree(directory: str | os.PathLike[str]) -> Path:
    """The real path of a directory with checkpoints in it or below it.

    Raises `UsageError` if it is no directory, or is inside a `.ckptstore`: purge deletes the trash there.
    """
    if directory == "":  # an empty variable: as a path it would be the working directory
        raise UsageError("the directory is ''", "give the directory that the checkpoints are in")
    named = absolute(validate.path("the directory", directory))
    root = Path(validate.path("the directory", real_directory(named)))
    if not root.is_dir():
        raise UsageError(f"{named} is not a directory", "give the directory that the checkpoints are in")
    if FOLDER in root.parts:
        hint = f"give the directory above {FOLDER}; {Command('undo', 'RUN')} brings back what gc removed"
        raise UsageError(f"{named} is in {FOLDER}, which belongs to ckptstore itself", hint)
    return root
