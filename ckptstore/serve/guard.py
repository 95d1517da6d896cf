"""Checks the host, origin, method and token of each request, and restricts by headers what a page may do."""

from __future__ import annotations

import hmac
from base64 import b64decode
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from ckptstore.errors import UsageError
from ckptstore.outside import time, token_hex
from ckptstore.serve.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
API = "/api/v1"
SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
COOKIE = "ckptstore-session"
SIGNED_IN_SECONDS = 12 * 3600

_OPEN = ("/healthz", "/readyz", SIGN_IN)
"""The addresses that need no token: health checks of a cluster, and the page to sign in. They show nothing of runs."""

SLASH = "\0"
"""Stands for a slash in a run's name, `%2F` in an address. So run `a/policy` is not taken for the policy of run `a`.

No name contains this character.
"""

_STATIC = "/static/"
_HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",  # with no-referrer, browsers send forms of this server with `Origin: null`
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}
_READS = ("GET", "HEAD")
_FROM_HERE = (b"same-origin", b"none")  # `none`: the user's own action in the browser, such as a reload
_USER_LENGTH = 100


@dataclass(frozen=True)
class Rules:
    """What the server allows. Raises `UsageError` for changes or a proxy without a token."""

    token: str | None = None  # that each request must have; None: no token is needed
    is_loopback: bool = True  # the server accepts connections from this machine only
    may_change: bool = False  # pins, tags, policies, gc and undo are allowed
    proxy: str | None = None  # the address of the reverse proxy whose headers count

    def __post_init__(self) -> None:
        """Raise `UsageError` if a token is needed and not given, or if `proxy` is no address."""
        needs = "--allow-changes" if self.may_change else "--trust-proxy" if self.proxy is not None else None
        if needs and self.token is None:
            raise UsageError(f"{needs} needs a token, on this machine too", "set CKPTSTORE_TOKEN, or give --token-file")
        if self.proxy is not None:
            try:
                ip_address(self.proxy)
            except ValueError:
                hint = "give the address from which it connects, as 10.0.0.5"
                raise UsageError(f"--trust-proxy {self.proxy!a} is no address", hint) from None


@dataclass(frozen=True)
class Visit:
    """The sender of the current request."""

    peer: str = ""  # the address of the connection
    user: str = ""  # the user's name, from the trusted proxy; else empty
    form_key: str = ""  # that the forms of this visitor must send back; empty if the server has no token
    may_change: bool = False  # as in `Rules`
    is_encrypted: bool = False  # the browser uses https, according to the trusted proxy
    is_signed_in: bool = False  # the browser has a valid cookie

    @property
    def who(self) -> str:
        """The sender, as the log names it."""
        return f"{self.user!a} through {self.peer}" if self.user else self.peer


VISIT: ContextVar[Visit] = ContextVar("visit", default=Visit())  # noqa: B039 — a frozen value


class Sessions:
    """Makes and checks the cookies of signed-in browsers, and the keys of their forms.

    All are computed from the token; the server stores none.
    """

    def __init__(self, token: str) -> None:
        self.token = token.encode("utf-8", "surrogateescape")
        self._key = hmac.digest(self.token, b"ckptstore serve", "sha256")

    def is_token(self, given: bytes) -> bool:
        """Whether `given` is the token. The time of the comparison does not show how much of a wrong one is right."""
        return hmac.compare_digest(given, self.token)

    def new(self) -> str:
        """A new cookie, for a browser that has signed in."""
        told = f"{int(time.time()) + SIGNED_IN_SECONDS}.{token_hex(8)}"
        return f"{told}.{self._mark('session', told)}"

    def is_valid(self, cookie: str) -> bool:
        """Whether `new` made it, less than 12 hours ago."""
        told, _, mark = cookie.rpartition(".")
        if not hmac.compare_digest(mark.encode(), self._mark("session", told).encode()):
            return False
        return int(told.partition(".")[0]) > time.time()

    def form_key(self, cookie: str, user: str) -> str:
        """The key in the forms of a visitor. Pages of other sites cannot read it, so they cannot forge a form."""
        return self._mark("form", f"{cookie} {user}")

    def _mark(self, purpose: str, text: str) -> str:
        return hmac.digest(self._key, f"{purpose} {text}".encode(), "sha256").hex()


class Guard:
    """Refuses requests that the rules do not allow, and adds security headers to each answer."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app, self._rules = app, rules
        self._sessions = Sessions(rules.token) if rules.token is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        scope = {**scope, "path": _path(scope)}

        async def strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS.items()]}
            await send(message)

        asked = _Asked(scope, self._rules.proxy)
        refusal = self._refusal(asked)
        VISIT.set(self._visit(asked))
        await (refusal or self._app)(scope, receive, strict)

    def _visit(self, asked: _Asked) -> Visit:
        cookie = self._session(asked)
        return Visit(
            peer=asked.peer,
            user=asked.user,
            form_key=self._sessions.form_key(cookie, asked.user) if self._sessions else "",
            may_change=self._rules.may_change,
            is_encrypted=asked.is_encrypted,
            is_signed_in=bool(cookie),
        )

    def _session(self, asked: _Asked) -> str:
        """The request's valid cookie; empty if it has none."""
        return next((each for each in asked.cookies if self._sessions and self._sessions.is_valid(each)), "")

    def _refusal(self, asked: _Asked) -> Response | None:
        if self._rules.is_loopback and not asked.is_by_proxy and asked.name not in LOOPBACK:
            # DNS rebinding: a page of another site, whose name leads to this address, could read the answers.
            return asked.refused("this server answers to 127.0.0.1 and localhost only", 421)
        return self._refused_change(asked) or self._refused_visitor(asked)

    def _refused_change(self, asked: _Asked) -> Response | None:
        """The refusal of a change that is not allowed; None: the request changes nothing, or is allowed."""
        if asked.method in _READS:
            return None
        can_sign_in = self._sessions is not None and asked.path in (SIGN_IN, SIGN_OUT)
        if asked.method != "POST" or not (self._rules.may_change or can_sign_in):
            if self._rules.may_change:
                return asked.refused(f"{asked.method} is not taken", 405, "send POST", {"allow": "GET, HEAD, POST"})
            hint = "start it with --allow-changes"
            return asked.refused("this server changes nothing", 405, hint, {"allow": "GET, HEAD"})
        if asked.is_from_elsewhere:
            return asked.refused("a page of another site asks for a change", 403, "use the page of this server")
        return None

    def _refused_visitor(self, asked: _Asked) -> Response | None:
        """The refusal of a request without the right token or cookie; None: it is allowed."""
        if self._sessions is None or asked.path in _OPEN or asked.path.startswith(_STATIC):
            return None
        if self._sessions.is_token(asked.token) or self._session(asked):
            return None
        if asked.method in _READS and asked.is_by_browser:
            return RedirectResponse(f"{SIGN_IN}?next={quote(asked.target, safe='')}", 303)
        # Basic is accepted, but not offered: a browser would open a password dialog for every event stream.
        ask = {"www-authenticate": 'Bearer realm="ckptstore"'}
        hint = "give it as: Authorization: Bearer TOKEN"
        return asked.refused("the token is missing, or another one", 401, hint, ask)


class _Asked:
    """The facts of a request that the guard needs. Headers of a proxy count only if it is the trusted one."""

    def __init__(self, scope: Scope, proxy: str | None) -> None:
        self._headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        query: bytes = scope["query_string"]
        self.target: str = (scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")
        self.peer: str = scope["client"][0] if scope.get("client") else ""
        self.is_by_proxy = proxy is not None and _same_address(self.peer, proxy)
        self.host = self._told_by_proxy(b"x-forwarded-host") or self._first(b"host").decode("latin-1")
        self.is_encrypted = self._told_by_proxy(b"x-forwarded-proto") == "https"
        self.user = self._told_by_proxy(b"x-forwarded-user")[:_USER_LENGTH]

    @property
    def name(self) -> str | None:
        """The name in the `Host` header, without the port. None: there is no name."""
        try:
            return urlsplit(f"//{self.host}").hostname
        except ValueError:
            return None

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether a page of another site sent it, by the browser's headers. Scripts do not send these headers."""
        if self._first(b"sec-fetch-site") not in (b"", *_FROM_HERE):
            return True
        origin = self._first(b"origin").decode("latin-1")
        return bool(origin) and origin.partition("://")[2].lower() != self.host.lower()

    @property
    def is_by_browser(self) -> bool:
        """Whether a browser asks for a page."""
        return b"text/html" in self._first(b"accept") and not self.path.startswith(f"{API}/")

    @property
    def token(self) -> bytes:
        """The token of a script (`Bearer`), or a password for any name (`Basic`); empty if there is none."""
        scheme, _, value = self._first(b"authorization").partition(b" ")
        if scheme.lower() == b"bearer":
            return value.strip()
        if scheme.lower() == b"basic":
            try:
                return b64decode(value, validate=True).partition(b":")[2]
            except ValueError:
                return b""
        return b""

    @property
    def cookies(self) -> list[str]:
        """The cookies for signing in. Another server on this machine may have set one of the same name too."""
        pairs = (each.strip().partition("=") for each in self._first(b"cookie").decode("latin-1").split(";"))
        return [value for name, _, value in pairs if name == COOKIE]

    def refused(
        self, title: str, status: int, hint: str | None = None, headers: dict[str, str] | None = None
    ) -> Response:
        """A refusal: as JSON below the API's address, else as text."""
        if self.path.startswith(f"{API}/"):
            return Problem(title, status, hint, headers)
        return PlainTextResponse(f"{title}; {hint}\n" if hint else f"{title}\n", status, headers)

    def _first(self, name: bytes) -> bytes:
        """The value of a header. Empty if there is none, or if there are several: one of them may be forged."""
        found = [value for key, value in self._headers if key == name]
        return found[0] if len(found) == 1 else b""

    def _told_by_proxy(self, name: bytes) -> str:
        return self._first(name).decode("latin-1").strip() if self.is_by_proxy else ""


def _path(scope: Scope) -> str:
    raw: bytes = scope["raw_path"]
    return unquote(raw.replace(b"%2f", b"%2F").replace(b"%2F", SLASH.encode()).decode("latin-1"))


def _same_address(peer: str, proxy: str) -> bool:
    try:
        return _plain(peer) == _plain(proxy)
    except ValueError:  # the peer is a socket without an IP address
        return False


def _plain(address: str) -> object:
    """An IP address. An IPv4 address mapped to IPv6 becomes the IPv4 address."""
    found = ip_address(address)
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
