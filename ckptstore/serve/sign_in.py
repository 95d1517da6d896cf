"""Signing in with the token. The browser then keeps a cookie that no script can read and no other site can send."""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ckptstore.errors import UsageError
from ckptstore.serve.guard import COOKIE, SIGN_IN, SIGN_OUT, SIGNED_IN_SECONDS, VISIT, Sessions
from ckptstore.serve.problems import ForgedError

if TYPE_CHECKING:
    from starlette.requests import Request

    from ckptstore.serve.pages import Pages

KEY = "form_key"
_MOST_BYTES = 64 * 1024
_MOST_FIELDS = 100
_BODY_SECONDS = 10.0


class SignIn:
    """The pages to sign in and out. Without a token on the server, no token is accepted."""

    def __init__(self, pages: Pages, token: str | None) -> None:
        self._pages = pages
        self._sessions = Sessions(token) if token is not None else None

    def routes(self) -> list[Route]:
        """The routes to sign in and out."""
        return [
            Route(SIGN_IN, self._ask),
            Route(SIGN_IN, self._take, methods=["POST"]),
            Route(SIGN_OUT, self._forget, methods=["POST"]),
        ]

    async def _ask(self, request: Request) -> Response:
        return self._page(request.query_params.get("next", "/"))

    async def _take(self, request: Request) -> Response:
        fields = _fields(await body_of(request))
        given = fields.get("token", "").strip().encode("utf-8", "surrogateescape")
        if self._sessions is None or not self._sessions.is_token(given):
            return self._page(fields.get("next", "/"), "That is another token.", 403)
        answer = RedirectResponse(_own(fields.get("next", "/")), 303)
        answer.set_cookie(
            COOKIE,
            self._sessions.new(),
            max_age=SIGNED_IN_SECONDS,
            httponly=True,
            samesite="strict",
            secure=VISIT.get().is_encrypted,
        )
        return answer

    async def _forget(self, request: Request) -> Response:
        await form_of(request)
        answer = RedirectResponse(SIGN_IN, 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=VISIT.get().is_encrypted)
        return answer

    def _page(self, target: str, trouble: str = "", status: int = 200) -> Response:
        return self._pages.sign_in(_own(target), trouble, status)


async def body_of(request: Request) -> bytes:
    """The body of a request. Raises `UsageError` if it is larger than 64 KiB or takes longer than 10 s."""

    async def read() -> bytes:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BYTES:
                raise UsageError(f"the request holds more than {_MOST_BYTES} bytes", "send less")
        return body

    try:
        return await asyncio.wait_for(read(), _BODY_SECONDS)
    except asyncio.TimeoutError:
        raise UsageError(f"the request was not whole within {_BODY_SECONDS:g} s", "send it again") from None


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form of this server. Raises `ForgedError` if its key is missing or not the visitor's own."""
    fields = _fields(await body_of(request))
    expected = VISIT.get().form_key
    if not (expected and hmac.compare_digest(fields.pop(KEY, "").encode(), expected.encode())):
        raise ForgedError("the form is too old, or of another page", "load the page again, and repeat it there")
    return fields


def _fields(body: bytes) -> dict[str, str]:
    """The fields of a form. The last one of a name counts; empty fields are left out. Raises `UsageError`."""
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise UsageError(f"the form has more than {_MOST_FIELDS} fields", "send it as the page has it") from None


def _own(target: str) -> str:
    """The target, if it is an address of this server; else the address of the page of all runs."""
    # Browsers drop tabs and line breaks from an address: `/\t/evil.example` is `//evil.example` to them.
    is_own = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_own else "/"
