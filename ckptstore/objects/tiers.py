"""Opens the store that the URL of a tier names."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ckptstore.errors import UsageError
from ckptstore.objects.directory import DirectoryStore
from ckptstore.objects.s3 import S3Store

if TYPE_CHECKING:
    from ckptstore.objects.store import Store

_SCHEMES = "give a path, or s3://BUCKET/PREFIX"


def open_tier(url: str) -> Store:
    """The store of a URL: a path, `file:///…`, or `s3://bucket/prefix`. This sends no request yet.

    Raises `UsageError` for a URL that names no store, or that holds a user's name or a password: credentials come from
    the environment or the usual files.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        hint = "credentials come from the environment, or from ~/.aws; give the bucket and the prefix alone"
        raise UsageError("the URL of a tier holds more than a place", hint)
    if parts.scheme == "s3" and parts.netloc:
        return S3Store(parts.netloc, parts.path.strip("/"))
    if url.startswith("file:///"):
        return DirectoryStore(url.removeprefix("file://"))
    if not parts.scheme and url.startswith("/"):
        return DirectoryStore(url)
    raise UsageError(f"{url!r} names no tier", _SCHEMES)
