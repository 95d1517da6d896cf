"""JSON that anybody may have written: one error for all that can be wrong with it, and a bound on how deep it is."""

from __future__ import annotations

from typing import Any

from msgspec import DecodeError, json

MOST_DEPTH = 32
"""Lists and objects in each other. What ckptstore and MindSpore write has less than ten."""


def parse(raw: bytes | str) -> Any:
    """Parse JSON. Raises `ValueError` for what is none, and for what is nested too deeply for whoever walks it."""
    try:
        value = json.decode(raw)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except DecodeError as error:
        raise ValueError(str(error)) from None
    opened = (raw.count(b"["), raw.count(b"{")) if isinstance(raw, bytes) else (raw.count("["), raw.count("{"))
    level = [value] if sum(opened) > MOST_DEPTH else []
    for _ in range(MOST_DEPTH):
        level = [part for each in level for part in _inside(each)]
    if level:
        raise ValueError("its JSON is nested too deeply")
    return value


def _inside(value: Any) -> list[Any]:
    """The lists and objects in a value."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in parts if isinstance(part, (dict, list))]
