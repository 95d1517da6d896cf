"""Checks each request for its host, method and token, and limits what a browser does with a page."""

from __future__ import annotations

import hmac
from base64 import b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = ("/healthz", "/readyz")
"""What a cluster asks without a token: they tell nothing of runs."""

_HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}
_READS = ("GET", "HEAD")


@dataclass(frozen=True)
class Rules:
    """`token`: what each request must bring (None: nothing). `is_loopback`: only this machine is listened to."""

    token: str | None = None
    is_loopback: bool = True


class Guard:
    """Refuses a request that the rules do not allow, and gives each answer the headers of a strict page."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS.items()]}
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, strict)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])  # of a name that comes twice the last one
        host = headers.get(b"host", b"").decode("latin-1")
        if self._rules.is_loopback and _name_in(host) not in LOOPBACK:
            # A page of another name that leads here (DNS rebinding) would read what this machine alone may see.
            return PlainTextResponse("this server answers to 127.0.0.1 and localhost only\n", 421)
        if scope["method"] not in _READS:
            return PlainTextResponse("this server changes nothing\n", 405, headers={"allow": ", ".join(_READS)})
        if self._rules.token is not None and scope["path"] not in OPEN:
            given = _token_in(headers.get(b"authorization", b"").decode("latin-1"))
            if not hmac.compare_digest(given.encode(), self._rules.token.encode()):
                ask = {"www-authenticate": 'Basic realm="ckptstore: any name, and the token as password"'}
                return PlainTextResponse("the token is missing, or another one\n", 401, headers=ask)
        return None


def _name_in(host: str) -> str | None:
    """The name in a `Host` header, without the port; None where there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _token_in(authorization: str) -> str:
    """The token of a script (`Bearer`), or what a browser asked a person for (`Basic`); empty if there is none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]
        except ValueError:
            return ""
    return ""
