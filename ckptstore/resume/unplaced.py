"""Files that a scan could not place, newer than the state that a run would go on from: they are never passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog.runs import find_run
from ckptstore.core.classify import bare_rank
from ckptstore.core.hints import Command
from ckptstore.core.model import SCANNED
from ckptstore.core.naming import PYTORCH, TENSORFLOW, format_of
from ckptstore.core.text import count
from ckptstore.disk import files
from ckptstore.disk.run_directories import root_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import RestorePlan, Unplaced

_MOST_LOOKED_AT = 1000


def newer_than(plan: RestorePlan | None, found: Sequence[Unplaced]) -> tuple[Unplaced, ...]:
    """Of the unplaced files of a run those that may be newer than a plan, and are on the disk as they were found.

    By when they were written; where the plan's state was scanned too, also by their likeliest step. Without a plan all
    are newer. Of very many the ones written last are looked at.
    """
    if plan is not None and found:
        written = max((each.source.mtime_ns or 0 for each in plan.ranks), default=0)
        step = plan.global_step if plan.launch.id.startswith(SCANNED) else None
        found = [
            each for each in found if each.mtime_ns > written or (step is not None and (each.best_guess or 0) > step)
        ]
    looked_at = found[:_MOST_LOOKED_AT]
    return tuple(each for each in looked_at if files.facts_if_seen(each.path) == (each.size, each.mtime_ns))


def unplaced(database: Database, run: str) -> list[Unplaced]:
    """The files of a run that a scan could not place and that have no record since, the one written last first."""
    run_id = find_run(database, run)
    with database.read() as connection:
        return reads.unplaced_of(connection, run_id)


def how_to_place(
    run: str, file: Unplaced, *, steps_per_epoch: int | None = None, directory: str | None = None
) -> Command:
    """The command that places a file, by a scan of a directory (None: the one that those of all ranks are in).

    `steps_per_epoch` is that of the dataset, where it is known.
    """
    step = "STEP" if file.best_guess is None else str(file.best_guess)
    words = file.remedy.split()
    if "E" in words and steps_per_epoch is not None:
        words[words.index("E")] = str(steps_per_epoch)
    words = [f"{file.path}={step}" if word == "FILE=STEP" else word for word in words]
    home = file.path.rpartition("/")[0]
    form = PYTORCH if format_of(file.path) == PYTORCH else TENSORFLOW  # a prefix has no ending
    is_bare = bare_rank(home.split("/")[-1:], form) is not None
    below = directory or (home.rpartition("/")[0] if is_bare else root_of(home))
    return Command("scan", below, "--run", run, *words)


def told(run: str, found: tuple[Unplaced, ...], steps_per_epoch: int | None = None) -> tuple[str, Command]:
    """The message about newer files without a certain step or rank, and the command that places them."""
    first = found[0]
    guess = "" if first.best_guess is None else f", perhaps of step {first.best_guess}"
    many = count(len(found), "newer file has", "newer files have")
    return f"{many} no certain step or rank: {first.path}{guess}: {first.reason}", how_to_place(
        run, first, steps_per_epoch=steps_per_epoch
    )
