"""The receivers of facts: a webhook gets them by HTTP, a command on its standard input."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import shlex
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Protocol
from urllib.parse import unquote, urlsplit

from ckptstore.core.ids import derived_id
from ckptstore.errors import UsageError, reason_of
from ckptstore.outside import os, signal, subprocess

SIGNATURE = "X-Ckptstore-Signature"
"""The header with `sha256=` and the HMAC of the body in hexadecimal."""

_ANSWER_SECONDS = 10.0
"""The timeout of the connection: to connect, and to wait for the answer."""

_COMMAND_SECONDS = 30.0
_LONGEST_REASON = 200
_PASSES = (408, 425, 429)
_OK, _REDIRECT, _SERVER_ERROR = 200, 300, 500


@dataclass(frozen=True)
class Failure:
    """Why a fact was not accepted. `may_pass`: another try a moment later may succeed."""

    reason: str
    may_pass: bool


class Receiver(Protocol):
    """Takes facts. `name` is for messages and holds no secret. `id` is derived from the URL or the command."""

    name: str
    id: str

    def send(self, body: bytes) -> Failure | None:
        """Send one fact, as JSON. None: the receiver accepted it."""
        ...


class Webhook:
    """A URL to which facts are posted as JSON, signed if there is a secret.

    No redirect is followed, and no proxy is used. Raises `UsageError` for an invalid URL.
    """

    def __init__(self, url: str, secret: bytes | None = None, *, patience: float = _ANSWER_SECONDS) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            (host or "").encode("idna")  # else an invalid host would be noticed only on connecting
        except ValueError:
            host, port = None, None
        is_plain = url.isascii() and url.isprintable() and " " not in url
        if not host or parts.scheme not in ("http", "https") or not is_plain:
            raise UsageError("the webhook is no address", "give one as https://hooks.example/ckptstore")
        self.name = f"{parts.scheme}://{host}{f':{port}' if port else ''}"
        self.id = derived_id("webhook", url)
        self._host, self._port, self._is_tls = host, port, parts.scheme == "https"
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secret, self._patience = secret, patience
        self._headers = {"Content-Type": "application/json", "User-Agent": f"ckptstore/{metadata.version('ckptstore')}"}
        if parts.username is not None:
            named = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(named.encode()).decode()}"

    def send(self, body: bytes) -> Failure | None:
        """Post a fact. None: the answer has a status of success (2xx)."""
        headers = dict(self._headers)
        if self._secret is not None:
            headers[SIGNATURE] = f"sha256={hmac.new(self._secret, body, hashlib.sha256).hexdigest()}"
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._patience)
        try:
            connection.request("POST", self._target, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return Failure(_said(error), may_pass=True)
        finally:
            connection.close()
        return _judged(status)


def _said(error: Exception) -> str:
    return (reason_of(error) or type(error).__name__).strip()[:_LONGEST_REASON]


def _judged(status: int) -> Failure | None:
    if _OK <= status < _REDIRECT:
        return None
    if status < _SERVER_ERROR and status not in _PASSES:
        is_redirect = status // 100 == _REDIRECT // 100
        moved = ", a redirect, which is not followed: give the address it leads to" if is_redirect else ""
        return Failure(f"it answered {status}{moved}", may_pass=False)
    return Failure(f"it answered {status}", may_pass=True)


class Program:
    """A command that gets each fact as JSON on its standard input. Exit code 0: it accepted the fact. No shell is used.

    Raises `UsageError` for a command line that cannot be split.
    """

    def __init__(self, command: str, *, patience: float = _COMMAND_SECONDS) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"the command cannot be read ({error})", "quote it as for a shell") from None
        if not self._arguments:
            raise UsageError("the command is empty", "give a program and its arguments")
        self.name = self._arguments[0]
        self.id = derived_id("command", command)
        self._patience = patience

    def send(self, body: bytes) -> Failure | None:
        """Run the command. None: it ended with 0. If it takes too long, its process group is killed."""
        try:
            running = subprocess.Popen(
                self._arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            return Failure(_said(error), may_pass=False)
        with running:
            try:
                running.communicate(body, timeout=self._patience)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                return Failure(f"it did not end within {self._patience:g} s", may_pass=True)
        code = running.returncode
        return Failure(f"it ended with exit code {code}", may_pass=True) if code else None
