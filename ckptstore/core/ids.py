"""Ids that are derived from the content that they identify."""

from __future__ import annotations

import hashlib


def derived_id(*parts: object) -> str:
    """An id made of the content: 16 bytes in hexadecimal."""
    text = "\x1f".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
