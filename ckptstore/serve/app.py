"""The server: pages, the API, metrics and health, behind one guard."""

from __future__ import annotations

from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from ckptstore.errors import CkptstoreError
from ckptstore.serve import metrics
from ckptstore.serve.answers import PATIENCE_SECONDS, Answers
from ckptstore.serve.api import Api, Problem, problem
from ckptstore.serve.events import Events
from ckptstore.serve.guard import Guard
from ckptstore.serve.pages import Pages
from ckptstore.serve.questions import Questions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from ckptstore.api import Catalog
    from ckptstore.serve.guard import Rules

_API = "/api/v1"
_STATIC = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}


def make_app(catalog: Catalog, rules: Rules, *, patience: float = PATIENCE_SECONDS) -> ASGIApp:
    """The server of a catalog. A question that takes longer than `patience`, in seconds, is answered by 503."""
    answers = Answers(patience=patience)
    questions = Questions(catalog, answers)
    own = _Own(questions)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        yield
        answers.close()

    app = Starlette(
        routes=[
            Route("/healthz", own.health),
            Route("/readyz", own.ready),
            Route("/metrics", own.metrics),
            Route("/static/{name}", own.static),
            Mount(_API, routes=[Route("/events", Events(questions).stream), *Api(questions).routes()]),
            *own.pages.routes(),
        ],
        exception_handlers={CkptstoreError: own.failed, HTTPException: own.not_found},
        lifespan=life,
    )
    return Guard(app, rules)


class _Own:
    """What belongs to neither the pages nor the API."""

    def __init__(self, questions: Questions) -> None:
        self.pages = Pages(questions)
        self._ask = questions
        folder = files("ckptstore.serve").joinpath("static")
        self._static = {name: folder.joinpath(name).read_bytes() for name in _STATIC}

    async def health(self, _: Request) -> Response:
        """The server runs."""
        return PlainTextResponse("ok\n")

    async def ready(self, _: Request) -> Response:
        """The catalog answers."""
        await self._ask.names()
        return PlainTextResponse("ok\n")

    async def metrics(self, _: Request) -> Response:
        """What Prometheus scrapes."""
        return Response(metrics.text(await self._ask.metrics()), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def static(self, request: Request) -> Response:
        """A file of our own, out of memory: no directory is read for a request."""
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_STATIC[name])

    async def failed(self, request: Request, error: Exception) -> Response:
        """An error of the catalog."""
        if not isinstance(error, CkptstoreError):
            raise error
        told = problem(error)
        return told if _is_for_scripts(request) else self.pages.failed(error.message, error.hint, told.status_code)

    async def not_found(self, request: Request, error: Exception) -> Response:
        """No such address."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        if _is_for_scripts(request):
            return Problem({"title": "there is nothing at this address", "status": status, "hint": None}, status)
        return self.pages.failed("There is nothing at this address.", "", status)


def _is_for_scripts(request: Request) -> bool:
    return request.url.path.startswith((f"{_API}/", "/metrics", "/readyz"))
