"""The server: pages, the API, metrics and health, behind one guard."""

from __future__ import annotations

from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router

from ckptstore.errors import CkptstoreError
from ckptstore.serve import metrics
from ckptstore.serve.answers import PATIENCE_SECONDS, Answers
from ckptstore.serve.api import Api
from ckptstore.serve.changes import WAITED_SECONDS, Changes
from ckptstore.serve.events import Events
from ckptstore.serve.guard import API, Guard
from ckptstore.serve.pages import Pages
from ckptstore.serve.posts import Posts
from ckptstore.serve.problems import Problem, status_of
from ckptstore.serve.questions import Questions
from ckptstore.serve.sign_in import SignIn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from ckptstore.api import Catalog
    from ckptstore.serve.guard import Rules

_STATIC = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}


def make_app(
    catalog: Catalog, rules: Rules, *, patience: float = PATIENCE_SECONDS, waited: float = WAITED_SECONDS
) -> ASGIApp:
    """The server of a catalog.

    A query that takes longer than `patience` is answered by 503, a change that takes longer than `waited` by 202. Both
    are in seconds.
    """
    answers = Answers(patience=patience)
    questions = Questions(catalog, answers)
    changes = Changes(catalog, answers, patience=waited)
    own = _Own(questions)
    posts = Posts(changes, own.pages)

    of_api = [Route("/events", Events(questions).stream), *posts.of_api(), *Api(questions).routes()]

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        yield
        answers.close()
        changes.close()

    app = Starlette(
        routes=[
            Route("/healthz", own.health),
            Route("/readyz", own.ready),
            Route("/metrics", own.metrics),
            Route("/static/{name}", own.static),
            Mount(API, Router(of_api, redirect_slashes=False)),
            *SignIn(own.pages, rules.token).routes(),
            *posts.of_pages(),
            *own.pages.routes(),
        ],
        exception_handlers={CkptstoreError: own.failed, HTTPException: own.not_found, Exception: own.broken},
        lifespan=life,
    )
    app.router.redirect_slashes = False  # it would name `http://`, behind a proxy with TLS too
    return Guard(app, rules)


class _Own:
    """The handlers that belong to neither the pages nor the API: health, metrics, static files, errors."""

    def __init__(self, questions: Questions) -> None:
        self.pages = Pages(questions)
        self._ask = questions
        folder = files("ckptstore.serve").joinpath("static")
        self._static = {name: folder.joinpath(name).read_bytes() for name in _STATIC}

    async def health(self, _: Request) -> Response:
        """Answer that the server runs."""
        return PlainTextResponse("ok\n")

    async def ready(self, _: Request) -> Response:
        """Answer that the catalog can be read. If it cannot, the error is the answer."""
        await self._ask.names()
        return PlainTextResponse("ok\n")

    async def metrics(self, _: Request) -> Response:
        """The metrics for Prometheus."""
        return Response(metrics.text(await self._ask.metrics()), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def static(self, request: Request) -> Response:
        """A static file, from memory: no directory is read for a request."""
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_STATIC[name])

    async def failed(self, request: Request, error: Exception) -> Response:
        """The answer to a request that raised a `CkptstoreError`."""
        if not isinstance(error, CkptstoreError):
            raise error
        if _is_for_scripts(request):
            return Problem(error.message, status_of(error), error.hint)
        status = status_of(error)
        title = "Not to be shown" if request.method in ("GET", "HEAD") else "At work" if status == 202 else "Not done"  # noqa: PLR2004 — accepted
        return self.pages.failed(error.message, error.hint, status, title)

    async def not_found(self, request: Request, error: Exception) -> Response:
        """The answer for an unknown address, or a method that the address does not accept."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        title = "there is nothing at this address" if status == 404 else "this address takes no such method"  # noqa: PLR2004
        if _is_for_scripts(request):
            return Problem(title, status)
        return self.pages.failed(f"{title[0].upper()}{title[1:]}.", "", status)

    async def broken(self, request: Request, _: Exception) -> Response:
        """The answer to a request that an error of the program ended. The log has the traceback."""
        title, hint = "the server failed", "its log says how"
        return Problem(title, 500, hint) if _is_for_scripts(request) else self.pages.failed(title, hint, 500)


def _is_for_scripts(request: Request) -> bool:
    return request.url.path.startswith((f"{API}/", "/metrics", "/readyz"))
