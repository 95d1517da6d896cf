"""JSON that anybody may have written: one error for all that can be wrong with it, and a bound on how deep it is."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

MOST_DEPTH = 32
"""Lists and objects in each other. What ckptstore and MindSpore write has less than ten."""


def parse(raw: bytes | str) -> Any:
    """Parse JSON. Raises `ValueError` if it is none, or is nested too deeply to be walked."""
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
