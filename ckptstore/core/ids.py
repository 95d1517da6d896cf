"""Ids that are derived from the content that they identify."""

from __future__ import annotations

import hashlib


def derived_id(*parts: object, size: int = 16) -> str:
    """An id made of the content: so many bytes in hexadecimal."""
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
