"""Parses JSON from any source: every fault raises the same error, and nesting is bounded."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

MOST_DEPTH = 32
"""Levels of nested lists and objects. The JSON of ckptstore and MindSpore has fewer than ten."""


def parse(raw: bytes | str) -> Any:
    """Parse JSON. Raises `ValueError` for text that is not JSON, or is nested deeper than `MOST_DEPTH`."""
    try:
        value = json.loads(raw)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "replace")
    if raw.count(b"[") + raw.count(b"{") > MOST_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = list(chain.from_iterable(map(_inside, level)))
        if not level:
            return
    raise ValueError("its JSON is nested too deeply")


def _inside(value: Any) -> list[Any]:
    """The lists and objects in a value."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in parts if isinstance(part, (dict, list))]
