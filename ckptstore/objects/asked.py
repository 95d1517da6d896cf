"""Sends the requests to an S3-compatible server that obstore lacks: for unfinished uploads, and rules of a bucket.

A request has an AWS signature, version 4, with the keys of the environment or of `~/.aws`.
"""

from __future__ import annotations

import hmac
from contextlib import suppress
from hashlib import sha256
from http.client import HTTPException
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import (
    HTTPErrorProcessor,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
    getproxies_environment,
)
from xml.etree import ElementTree as ET

from ckptstore.objects.errors import UnreachableError
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from http.client import HTTPResponse

    from ckptstore.objects.settings import Settings

_SECONDS = 30.0
_MOST_BYTES = 4 << 20


class Answer(NamedTuple):
    """The answer of a server: its status, its headers by their names in lower case, and its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(settings: Settings, bucket: str, method: str, key: str = "", query: Mapping[str, str] | None = None) -> Answer:
    """Send one signed request about a bucket, or an object in it. Raises `UnreachableError` if no answer comes."""
    in_host = f"{bucket}." if settings.is_in_host else ""  # a given endpoint has it
    endpoint = settings.endpoint or f"https://{in_host}s3.{settings.region}.amazonaws.com"
    url = urlsplit(endpoint)
    place = "" if settings.is_in_host else f"/{bucket}"
    path = quote(f"{url.path}{place}/{key}" if key or settings.is_in_host else f"{url.path}{place}", safe="/-_.~")
    told = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in (query or {}).items())
    asked = "&".join(f"{name}={value}" for name, value in told)
    headers = _signed(settings, method, url.netloc, path, asked)
    request = Request(f"{url.scheme}://{url.netloc}{path}{asked and '?'}{asked}", headers=headers, method=method)  # noqa: S310
    try:
        with _opener(url.hostname or "").open(request, timeout=_SECONDS) as answer:
            body = answer.read(_MOST_BYTES)
        return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, body)
    except (OSError, HTTPException):
        hint = "see that it runs, and that AWS_ENDPOINT_URL names it; it is tried again"
        raise UnreachableError(f"s3://{bucket} does not answer at {url.netloc}", hint) from None


class _AsItIs(HTTPErrorProcessor):
    """Returns every answer: none is an error, and no redirection is followed."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:  # noqa: ARG002
        return response

    https_response = http_response


def _opener(host: str) -> OpenerDirector:
    """Opens requests as obstore sends them: through the proxy that the environment names for this host, if any."""
    found = getproxies_environment()
    proxies = {kind: proxy for kind in ("http", "https") if (proxy := found.get(kind) or found.get("all"))}
    return build_opener(ProxyHandler({} if _is_near(host, found.get("no", "")) else proxies), _AsItIs)


def _is_near(host: str, without_proxy: str) -> bool:
    """Whether an address is in a network of NO_PROXY, such as 10.0.0.0/8. Python itself compares names only."""
    with suppress(ValueError):
        address = ip_address(host)
        for each in without_proxy.split(","):
            with suppress(ValueError):  # it is a name
                if address in ip_network(each.strip(), strict=False):
                    return True
    return False


def values(body: bytes, *path: str) -> Iterator[ET.Element]:
    """The elements of an answer with this path of names, in any namespace."""
    try:
        found = [ET.fromstring(body)]  # noqa: S314 — at most 4 MiB, and expat limits the growth by entities
    except ET.ParseError:
        return
    for name in path:
        found = [each for above in found for each in above if each.tag.rpartition("}")[2] == name]
    yield from found


def text(element: ET.Element, name: str) -> str:
    """The text of a child element; empty if there is none of that name."""
    return next((each.text or "" for each in element if each.tag.rpartition("}")[2] == name), "")


def _signed(settings: Settings, method: str, host: str, path: str, query: str) -> dict[str, str]:
    now = utc_now()
    day, moment = f"{now:%Y%m%d}", f"{now:%Y%m%dT%H%M%SZ}"
    nothing = sha256(b"").hexdigest()
    headers = {"host": host, "x-amz-content-sha256": nothing, "x-amz-date": moment}
    if settings.token:
        headers["x-amz-security-token"] = settings.token
    if not settings.key:
        return headers
    names = ";".join(headers)
    canonical = "\n".join(
        (method, path, query, *(f"{name}:{value}" for name, value in headers.items()), "", names, nothing)
    )
    scope = f"{day}/{settings.region}/s3/aws4_request"
    to_sign = "\n".join(("AWS4-HMAC-SHA256", moment, scope, sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{settings.secret}".encode()
    for each in (*scope.split("/"), to_sign):
        key = hmac.digest(key, each.encode(), "sha256")
    told = f"Credential={settings.key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return {**headers, "authorization": f"AWS4-HMAC-SHA256 {told}"}
