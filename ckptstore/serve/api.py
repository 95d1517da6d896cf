"""The API for scripts: the JSON of the command line. Long lists come in pages."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.routing import Route

from ckptstore.errors import UsageError
from ckptstore.resume import dicts
from ckptstore.serve.openapi import document
from ckptstore.serve.problems import Json
from ckptstore.serve.questions import is_number, rules_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from ckptstore.core.tabular import Listing
    from ckptstore.serve.questions import Questions

Row = TypeVar("Row")

MOST, USUAL = 1000, 100


class Api:
    """The routes below `/api/v1`."""

    def __init__(self, questions: Questions) -> None:
        self._ask = questions

    def routes(self) -> list[Route]:
        """The routes. The shortest address of a run comes last, since a run's name may contain a slash."""
        return [
            Route("/openapi.json", self._document),
            Route("/runs", self._runs),
            Route("/doctor", self._doctor),
            Route("/runs/{run:run}/saves/{step:step}", self._save),
            Route("/runs/{run:run}/saves", self._saves),
            Route("/runs/{run:run}/resolution", self._resolution),
            Route("/runs/{run:run}/history", self._history),
            Route("/runs/{run:run}/gc", self._gc),
            Route("/runs/{run:run}/policy", self._policy),
            Route("/runs/{run:run}", self._run),
        ]

    async def _document(self, request: Request) -> Response:
        return Json(document(request.url.path.rpartition("/")[0]))

    async def _runs(self, request: Request) -> Response:
        return paged(request, await self._ask.runs(), lambda row: [row.run])

    async def _run(self, request: Request) -> Response:
        return Json(dicts.run(await self._ask.run(request.path_params["run"])))

    async def _saves(self, request: Request) -> Response:
        found = await self._ask.saves(request.path_params["run"])
        return paged(request, found, lambda row: [-row.launch.order, -row.global_step, row.kind])

    async def _save(self, request: Request) -> Response:
        found = await self._ask.save(request.path_params["run"], request.path_params["step"])
        return paged(request, found, lambda file: [file.launch, file.kind, file.rank, file.path])

    async def _resolution(self, request: Request) -> Response:
        return Json(dicts.resolution(await self._ask.resolution(request.path_params["run"])))

    async def _history(self, request: Request) -> Response:
        return paged(request, await self._ask.history(request.path_params["run"]), lambda row: [row.launch.order])

    async def _gc(self, request: Request) -> Response:
        planned = await self._ask.gc(request.path_params["run"], rules_of(request.query_params))
        return Json(planned.shown, headers={"etag": f'"{planned.digest}"'})

    async def _policy(self, request: Request) -> Response:
        return Json(await self._ask.policy(request.path_params["run"]))

    async def _doctor(self, request: Request) -> Response:  # noqa: ARG002
        return Json(await self._ask.doctor())


def paged(request: Request, rows: Listing[Row], place: Callable[[Row], list[Any]]) -> Response:
    """A page of rows, and the cursor for the next page. `place` gives the sort key of a row.

    The cursor is the key of the page's last row. So a row that is added or removed between two requests moves no other
    row to another page. Raises `UsageError`.
    """
    limit = _limit(request.query_params.get("limit"))
    ordered = sorted(rows, key=place)
    if cursor := request.query_params.get("cursor"):
        last = _place_in(cursor)
        try:
            ordered = [row for row in ordered if place(row) > last]
        except TypeError:
            raise _no_cursor(cursor) from None
    page = ordered[:limit]
    further = urlsafe_b64encode(json.dumps(place(page[-1])).encode()).decode() if len(ordered) > limit else None
    return Json({"items": rows.dicts_of(page), "next": further})


def _limit(given: str | None) -> int:
    if given is None:
        return USUAL
    if not (is_number(given) and 1 <= int(given) <= MOST):
        raise UsageError(f"limit is {given!a}", f"give a number from 1 to {MOST}")
    return int(given)


def _place_in(cursor: str) -> list[Any]:
    try:
        place = json.loads(urlsafe_b64decode(cursor.encode()))
    except (ValueError, RecursionError):
        raise _no_cursor(cursor) from None
    if not isinstance(place, list):
        raise _no_cursor(cursor)
    return place


def _no_cursor(cursor: str) -> UsageError:
    return UsageError(f"{cursor!a} is no cursor", 'take "next" of the page before')
