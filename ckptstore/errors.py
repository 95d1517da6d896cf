"""The errors of ckptstore: each has a message, a hint of what to do, and the exit code of the command line."""

from __future__ import annotations


class CkptstoreError(Exception):
    """The base of all errors. The message says what failed and where, the hint what to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(CkptstoreError):
    """The caller asked for something that makes no sense."""

    exit_code = 2


class UnknownStepError(UsageError):
    """A run has no save of that step."""


class NothingRestorableError(CkptstoreError):
    """No state can be restored, or not the one that was asked for."""

    exit_code = 3


class CatalogUnavailableError(CkptstoreError):
    """The catalog cannot be reached, or its file or database is no catalog."""

    exit_code = 4


class CatalogBusyError(CatalogUnavailableError):
    """The catalog does not answer at this moment. The same call may succeed a moment later."""


class CatalogForbidsError(CatalogUnavailableError):
    """The login of the catalog's URL has no right to do this. It may have the right to read."""


class CatalogDamagedError(CatalogUnavailableError):
    """The catalog's SQLite file is damaged."""


class SchemaError(CatalogUnavailableError):
    """The catalog's schema has another version than this program needs."""


class RefusedError(CkptstoreError):
    """A safety rule forbids the operation."""

    exit_code = 5


class PlanChangedError(RefusedError):
    """The plan of gc has changed since the user agreed to it."""


class DamageError(CkptstoreError):
    """A file differs from its record."""

    exit_code = 6


class UnreadableError(DamageError):
    """A file cannot be read as a checkpoint: it is cut, damaged, or of another format."""


class UnknownRunError(CkptstoreError):
    """No run of that name is in the catalog."""

    exit_code = UsageError.exit_code


def reason_of(error: Exception) -> str:
    """The reason in an error, for a message that names the path itself: `str` of an `OSError` repeats the path."""
    reason: str | None = getattr(error, "strerror", None)
    return reason or str(error)
