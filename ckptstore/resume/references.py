"""The state that a reference names (`core.reference`), for whoever loads, copies or compares it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.hints import Command
from ckptstore.errors import NothingRestorableError
from ckptstore.resume.resolve import resolve
from ckptstore.resume.resolver import Loads, Query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Resolution, RestorePlan

_STEPS_SHOWN = 6


def choose_state(
    database: Database, reference: str, *, loads: Loads = Loads.ALL, read_bytes: bool = False
) -> RestorePlan:
    """The restore plan of the state that a reference names (`core.reference`).

    `loads` is what the program can load; `read_bytes` checks every file's digest too. Raises `UnknownRunError`,
    `UsageError` for a reference that names nothing, and `NothingRestorableError` for a state that is not whole.
    """
    found = resolve(database, reference, Query(loads=loads, read_bytes=read_bytes))
    if found.plan is None:
        raise NothingRestorableError(no_plan(found), f"see: {Command('resolve', reference, '--explain')}")
    return found.plan


def no_plan(found: Resolution) -> str:
    """That there is no plan, of the state that was asked for."""
    if found.best is not None:
        return f"no state of run {found.run} that has the metric {found.best.metric} can be restored"
    if found.step is None:
        return f"nothing of run {found.run} can be restored"
    if not found.rejections:
        return f"run {found.run} has no save of step {found.step}{_those_there(found.steps)}"
    return f"step {found.step} of run {found.run} cannot be restored"


def _those_there(steps: Sequence[int]) -> str:
    """Which steps there are instead, some of many; empty if none."""
    shown = [*steps[:2], "…", *steps[-_STEPS_SHOWN:]] if len(steps) > _STEPS_SHOWN + 2 else steps
    return f"; there is one of {', '.join(map(str, shown))}" if steps else ""
