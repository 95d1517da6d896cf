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
    """The result of a check: nothing to do; good to know; to be looked at soon; or wrong now."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"

    __str__ = str.__str__


@dataclass(frozen=True)
class Fact:
    """A fact that `watch` reports once."""

    kind: str
    of: str  # with the kind and the run, it identifies the fact: the same values are not reported again
    since: datetime | None = None  # when it began; None: not known


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    name: str
    status: Status
    detail: str
    hint: str = ""  # what to do
    run: str | None = None  # None: the check is of no single run
    exit_code: int = CkptstoreError.exit_code  # of the command, if the check finds a problem
    fact: Fact | None = None


@dataclass(frozen=True)
class Checkup:
    """All checks, in the order in which the page shows them."""

    checks: tuple[Check, ...]

    @property
    def has_warnings(self) -> bool:
        """Whether a check has a warning."""
        return any(check.status is Status.WARNING for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0 if there is no problem, else that of the gravest one: catalog cannot be used, damage, any other problem."""
        codes = {check.exit_code for check in self.checks if check.status is Status.PROBLEM}
        return next((code for code in _GRAVEST_FIRST if code in codes), 0)
