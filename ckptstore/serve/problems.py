"""Answers with a value as JSON, or with an error as `application/problem+json`."""

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
    """The form of a change is not from a current page of this server."""


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
        """The same JSON as on the command line. Bytes of a path that are not UTF-8 become JSON escapes."""
        text = json.dumps(content, ensure_ascii=False, default=dicts.plain)
        return text.encode("utf-8", "backslashreplace")


class Problem(Json):
    """An error as a problem document (RFC 9457)."""

    media_type = "application/problem+json"

    def __init__(
        self, title: str, status: int, hint: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__({"title": title, "status": status, "hint": hint or None}, status, headers)


def status_of(error: CkptstoreError) -> int:
    """The HTTP status for an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
