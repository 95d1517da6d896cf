"""POST requests: JSON below `/api/v1`, and forms of pages. Both have the same paths and make the same changes."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse
from starlette.routing import Route

from ckptstore.errors import PlanChangedError, UsageError
from ckptstore.serve.problems import Json, status_of
from ckptstore.serve.questions import rules_of
from ckptstore.serve.sign_in import body_of, form_of
from ckptstore.serve.view import at_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from ckptstore.serve.changes import Changes
    from ckptstore.serve.pages import Pages

    Change = Callable[[Request, Mapping[str, Any]], Awaitable[dict[str, Any]]]

_AGREED = "agreed"
"""The form field with the digest of the plan that the page shows."""


class Posts:
    """The routes of changes."""

    def __init__(self, changes: Changes, pages: Pages) -> None:
        self._changes, self._pages = changes, pages
        self._marks: dict[str, Change] = {
            "/saves/{step:step}/pin": partial(self._pin, pinned=True),
            "/saves/{step:step}/unpin": partial(self._pin, pinned=False),
            "/saves/{step:step}/tag": self._tag,
            "/untag": self._untag,
        }

    def of_api(self) -> list[Route]:
        """The routes below `/api/v1`."""
        each = {**self._marks, "/policy": self._policy, "/gc": self._gc, "/undo": self._undo}
        return [_route(path, _taking_json(change)) for path, change in each.items()]

    def of_pages(self) -> list[Route]:
        """The routes of forms. gc and undo answer with a page of results, the others redirect to the form's page."""
        each = {path: _leading_back(change) for path, change in self._marks.items()}
        each |= {"/policy": self._policy_form, "/gc": self._gc_form, "/undo": self._undo_form}
        return [_route(path, take) for path, take in each.items()]

    async def _pin(self, request: Request, asked: Mapping[str, Any], *, pinned: bool) -> dict[str, Any]:
        _check(asked)
        return await self._changes.pin(*_state(request), pinned=pinned)

    async def _tag(self, request: Request, asked: Mapping[str, Any]) -> dict[str, Any]:
        return await self._changes.tag(*_state(request), _tag_in(asked))

    async def _untag(self, request: Request, asked: Mapping[str, Any]) -> dict[str, Any]:
        return await self._changes.untag(_run(request), _tag_in(asked))

    async def _policy(self, request: Request, asked: Mapping[str, Any]) -> dict[str, Any]:
        _check(asked, "policy")
        rules = asked.get("policy", "")
        if rules is not None and not isinstance(rules, dict):
            raise UsageError("no policy is given", 'send {"policy": {"keep_last": 5}}, or null to forget it')
        return await self._changes.policy(_run(request), rules)

    async def _policy_form(self, request: Request) -> Response:
        given, run = await form_of(request), _run(request)
        await self._changes.policy(run, None if given.pop("forget", "") else rules_of(given))
        return RedirectResponse(at_run(run, "retention"), 303)

    async def _gc(self, request: Request, asked: Mapping[str, Any]) -> dict[str, Any]:
        _check(asked)
        agreed = request.headers.get("if-match", "").removeprefix("W/").strip('"')  # a proxy that compresses adds it
        if not agreed:
            raise UsageError("no plan is named", "send If-Match with the ETag that a GET of the same address gives")
        return await self._changes.gc(_run(request), rules_of(request.query_params), agreed)

    async def _gc_form(self, request: Request) -> Response:
        given, run = await form_of(request), _run(request)
        agreed = given.pop(_AGREED, "")
        try:
            return self._pages.collected(run, await self._changes.gc(run, rules_of(given), agreed))
        except PlanChangedError as error:
            return await self._pages.retention(run, given, f"{error.message}: this is the new one.", status_of(error))

    async def _undo(self, request: Request, asked: Mapping[str, Any]) -> dict[str, Any]:
        _check(asked)
        return await self._changes.undo(_run(request))

    async def _undo_form(self, request: Request) -> Response:
        await form_of(request)
        run = _run(request)
        return self._pages.undone(run, await self._changes.undo(run))


def _route(path: str, take: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(f"/runs/{{run:run}}{path}", take, methods=["POST"])


def _taking_json(change: Change) -> Callable[[Request], Awaitable[Response]]:
    async def take(request: Request) -> Response:
        return Json(await change(request, await _json_of(request)))

    return take


def _leading_back(change: Change) -> Callable[[Request], Awaitable[Response]]:
    """Take a form, then redirect to its page: that of the step, if the form names one, else that of the run."""

    async def take(request: Request) -> Response:
        given = await form_of(request)
        step = given.pop("back_to_step", "")
        await change(request, given)
        further = ("saves", step) if step else ()
        return RedirectResponse(at_run(_run(request), *further), 303)

    return take


async def _json_of(request: Request) -> dict[str, Any]:
    """The JSON of a request. A form of another site cannot send this Content-Type. Raises `UsageError`."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise UsageError("the request is not JSON", "send Content-Type: application/json")
    try:
        found = json.loads(await body_of(request) or b"{}")
    except (ValueError, RecursionError):
        raise UsageError("the request is not JSON", "send an object, as {}") from None
    if not isinstance(found, dict):
        raise UsageError("the request is no JSON object", "send an object, as {}")
    return found


def _check(asked: Mapping[str, Any], *known: str) -> None:
    """Raise `UsageError` for a field that is not among the known ones."""
    unknown = sorted(asked.keys() - set(known))
    if unknown:
        raise UsageError(f"{', '.join(map(ascii, unknown))} is no field", f"fields are: {', '.join(known) or 'none'}")


def _tag_in(asked: Mapping[str, Any]) -> str:
    _check(asked, "tag")
    tag = asked.get("tag")
    if not isinstance(tag, str):
        raise UsageError("no tag is given", 'send {"tag": "NAME"}')
    return tag


def _run(request: Request) -> str:
    run: str = request.path_params["run"]
    return run


def _state(request: Request) -> tuple[str, int]:
    return request.path_params["run"], request.path_params["step"]
