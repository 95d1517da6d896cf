"""Opens the store that the URL of a tier names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptstore.objects.directory import DirectoryStore
from ckptstore.objects.errors import NoStoreError
from ckptstore.objects.s3 import S3Store

if TYPE_CHECKING:
    from ckptstore.objects.store import Store

_SCHEMES = "give a path, or s3://BUCKET/PREFIX"
# A bucket of Ceph may be TENANT:BUCKET.
_S3 = re.compile(r"(?i:s3)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._:-]*)(?:/(?P<prefix>.*))?", re.DOTALL)


def open_tier(url: str) -> Store:
    """The store of a URL: a path, `file:///…`, or `s3://bucket/prefix`. This sends no request yet.

    Raises `NoStoreError` for a URL that names no store, or that holds a user's name or a password: credentials come
    from the environment or the usual files.
    """
    scheme, is_url, place = url.partition("://")
    if "@" in place.partition("/")[0] or "?" in url or "#" in url:
        hint = "credentials come from the environment, or from ~/.aws; give the bucket and the prefix alone"
        raise NoStoreError("the URL of a tier holds more than a place", hint)
    if (bucket := _S3.fullmatch(url)) is not None:
        return S3Store(bucket["bucket"], (bucket["prefix"] or "").strip("/"))
    if url.startswith("file:///"):
        return DirectoryStore(url.removeprefix("file://"))
    if not is_url and url.startswith("/"):
        return DirectoryStore(url)
    if scheme.lower() == "s3":  # not shown: it may be a key and its secret
        raise NoStoreError("the URL of a tier has no name of a bucket: letters, digits and . _ -", _SCHEMES)
    raise NoStoreError("the URL names no tier", _SCHEMES)
