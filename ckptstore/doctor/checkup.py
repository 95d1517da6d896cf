"""The result of `doctor`: checks, each with a finding and a hint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ckptstore.errors import CatalogUnavailableError, CkptstoreError, DamageError

if TYPE_CHECKING:
    from datetime import datetime

_GRAVEST_FIRST = (CatalogUnavailableError.exit_code, DamageError.exit_code, CkptstoreError.exit_code)


class Status(str, Enum):
    """How it is: nothing to do; good to know; to be looked at soon; or wrong now."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"

    __str__ = str.__str__


@dataclass(frozen=True)
class Fact:
    """What `watch` tells of, once: its kind, what makes it the same fact again, and when it began (None: not known)."""

    kind: str
    of: str
    since: datetime | None = None


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    name: str
    status: Status
    detail: str
    hint: str = ""  # what to do
    run: str | None = None  # None: of what all runs share
    exit_code: int = CkptstoreError.exit_code  # of the command, where it is a problem
    fact: Fact | None = None


@dataclass(frozen=True)
class Checkup:
    """Everything that was checked, in the order of the page."""

    checks: tuple[Check, ...]

    @property
    def has_warnings(self) -> bool:
        """Whether there is anything to be looked at soon."""
        return any(check.status is Status.WARNING for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0 where there is no problem; else that of the gravest: the catalog cannot be used, damage, anything else."""
        codes = {check.exit_code for check in self.checks if check.status is Status.PROBLEM}
        return next((code for code in _GRAVEST_FIRST if code in codes), 0)
