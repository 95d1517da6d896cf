"""Values as JSON, and what went wrong as `application/problem+json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from ckptstore.errors import (
    CatalogUnavailableError,
    CkptstoreError,
    NothingRestorableError,
    PlanChangedError,
    RefusedError,
    UnknownRunError,
    UnknownStepError,
    UsageError,
)
from ckptstore.resume import dicts

if TYPE_CHECKING:
    from collections.abc import Mapping


class StillAtWorkError(CkptstoreError):
    """A change takes longer than a request waits for it. It goes on."""


class ForgedError(CkptstoreError):
    """A change that a page of this server did not ask for."""


_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (UnknownRunError, 404),
    (UnknownStepError, 404),
    (NothingRestorableError, 404),
    (UsageError, 400),
    (ForgedError, 403),
    (PlanChangedError, 412),
    (RefusedError, 409),
    (StillAtWorkError, 202),
    (CatalogUnavailableError, 503),
)


class Json(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """As the command line prints it; bytes of a path that are no text become JSON's own escapes."""
        text = json.dumps(content, ensure_ascii=False, default=dicts.plain)
        return text.encode("utf-8", "backslashreplace")


class Problem(Json):
    """What went wrong (RFC 9457)."""

    media_type = "application/problem+json"

    def __init__(
        self, title: str, status: int, hint: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__({"title": title, "status": status, "hint": hint or None}, status, headers)


def problem(error: CkptstoreError) -> Problem:
    """An error of the catalog, with what to do."""
    return Problem(error.message, status_of(error), error.hint)


def status_of(error: CkptstoreError) -> int:
    """The status of HTTP that tells of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
