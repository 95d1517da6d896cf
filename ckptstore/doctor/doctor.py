"""Checks a catalog, its tiers and its runs, and says what to do."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog.engine import in_memory, open_to_look
from ckptstore.catalog.runs import find_run, if_lost, run_names
from ckptstore.disk.run_directories import DIRECTORIES, known_directories
from ckptstore.doctor import check_database, check_launch, check_storage, check_tiers
from ckptstore.doctor.checkup import Check, Checkup, Status
from ckptstore.doctor.run_facts import gather
from ckptstore.doctor.unanswered import unanswered_of
from ckptstore.errors import CatalogDamagedError, CatalogUnavailableError, DamageError, UnknownRunError
from ckptstore.journal.sync import found_below, take_up_found
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from datetime import datetime

    from ckptstore.catalog.engine import Database


_ANSWER_SECONDS = 10.0
"""How long each statement may wait for the database: a page must not take minutes."""


def examine(url: str | None, run: str | None = None, *, now: datetime | None = None) -> Checkup:
    """Check the catalog at `url`, and a run or every run. `now` is the time to judge by (None: this machine's clock).

    If the catalog cannot be used, the runs are checked by the journals in directories that are known without it. Raises
    `UnknownRunError` for a run that the catalog does not have, and `UsageError` for an invalid URL.
    """
    now = now or utc_now()
    checks = [_program()]
    try:
        database = open_to_look(url, answer_within=_ANSWER_SECONDS)
    except CatalogUnavailableError as error:  # no driver
        return Checkup((*checks, check_database.unusable(error)))
    try:
        checks += check_database.checks(database)
        if Checkup(tuple(checks)).exit_code != CatalogUnavailableError.exit_code:
            return Checkup((*checks, *check_tiers.checks(database), *_runs(database, run, now)))
    except CatalogUnavailableError as error:  # it became unreachable during the checks, or is damaged
        if not (isinstance(error, CatalogDamagedError) and Checkup(tuple(checks)).exit_code == DamageError.exit_code):
            checks.append(check_database.unusable(error))
    finally:
        database.disconnect()
    return Checkup((*checks, *_without(database.name, run, now)))


def _runs(database: Database, run: str | None, now: datetime, *, is_away: bool = False) -> list[Check]:
    checks: list[Check] = []
    with database.connected():
        if run is None:
            unanswered_of(database, None)  # all at once: then none of them is waited for again
        for name in run_names(database, run):
            try:
                run_id = find_run(database, name)
                facts = gather(database, name, run_id, now)
                found = [*check_tiers.of_run(database, name, run_id, now), *check_launch.checks(database, facts)]
                checks += [*found, *check_storage.checks(database, facts, is_away=is_away)]
            except UnknownRunError:  # noqa: PERF203 — the others are still checked: it was renamed or forgotten since
                if run is not None:
                    raise
    return checks or [Check("runs", Status.NOTE, "none yet", if_lost())]


def _without(catalog: str, run: str | None, now: datetime) -> list[Check]:
    """Check runs without the catalog: by the journals in known directories, as a start without the catalog does."""
    known = known_directories(catalog, [run or ""])
    sizes, hidden = found_below(known)
    hint = f"name their directories: {DIRECTORIES}=/data/run"
    told = [Check("journals", Status.WARNING, f"{each.path} cannot be read: {each.reason}") for each in hidden]
    if not sizes:
        return [*told, Check("runs", Status.NOTE, "nothing is known of runs without the catalog", hint)]
    away = in_memory()
    take_up_found(away, sizes, look=False)
    with away.read() as connection:
        told_of = reads.run_names(connection)
    if run is not None and run not in told_of:
        return [*told, Check("runs", Status.NOTE, f"no journal here tells of run {run!r}", hint)]
    return [*told, *_runs(away, run, now, is_away=True)]


_BOUND = re.compile(r"^mindspore\s*>=\s*(\d+)\.(\d+)")
_NUMBERS = re.compile(r"(\d+)\.(\d+)")
_OLD_NUMPY = 2  # the first NumPy with which NumpySlicesDataset of MindSpore 2.10 fails (mindspore.md §10)


def _program() -> Check:
    """Check the versions of ckptstore, Python and MindSpore by the metadata of packages. MindSpore is not imported."""
    own = f"ckptstore {metadata.version('ckptstore')}, Python {sys.version_info.major}.{sys.version_info.minor}"
    found, needed = _mindspore(), _needed()
    if found is None:
        return Check("program", Status.OK, f"{own}; no MindSpore here, which only training needs")
    detail = f"{own}, MindSpore {found}"
    if _numbers(found) < needed:
        wanted = ".".join(map(str, needed))
        hint = f"training needs MindSpore {wanted} or later; the commands do not need it"
        return Check("program", Status.WARNING, detail, hint)
    numpy = _version("numpy")
    if numpy is not None and _numbers(numpy)[0] >= _OLD_NUMPY:
        hint = "MindSpore's NumpySlicesDataset fails on it: pip install 'numpy<2'"
        return Check("program", Status.WARNING, f"{detail}, numpy {numpy}", hint)
    return Check("program", Status.OK, detail)


def _mindspore() -> str | None:
    """The version of MindSpore, also if its package has another name than `mindspore`. None: it is not installed."""
    version = _version("mindspore")
    if version is None:
        others = metadata.packages_distributions().get("mindspore", [])
        version = _version(others[0]) if others else None
    return version


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _needed() -> tuple[int, int]:
    """The oldest MindSpore that ckptstore's package metadata allows, as major and minor version."""
    bounds = [found for line in metadata.requires("ckptstore") or () if (found := _BOUND.match(line))]
    return (int(bounds[0][1]), int(bounds[0][2])) if bounds else (0, 0)


def _numbers(version: str) -> tuple[int, int]:
    found = _NUMBERS.match(version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
