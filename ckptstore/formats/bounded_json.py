"""Reads JSON from files with any content: limits their size, and names the file in errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptstore.core import bounded_json
from ckptstore.errors import UnreadableError

if TYPE_CHECKING:
    from ckptstore.outside import Path

# Parsed JSON takes up to thirty times the memory of its text. The text for 100,000 parameters has about 12 MB.
MOST_JSON = 16 << 20  # bytes


def read_object(path: Path, what: str, most: int = MOST_JSON) -> dict[str, Any]:
    """Read a JSON object from a file of at most `most` bytes; `what` names it in errors.

    Raises `UnreadableError` if the file is longer or holds anything else, `OSError` if it cannot be opened.
    """
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise UnreadableError(f"{path} is not a {what}: it has more than {most} bytes", "it is of another format")
    return parse_object(raw, path, what)


def parse_object(raw: bytes, path: Path, what: str) -> dict[str, Any]:
    """Parse a JSON object; `what` names it in errors. Raises `UnreadableError` for any other bytes."""
    try:
        value = bounded_json.parse(raw)
    except ValueError as error:
        raise UnreadableError(f"{path} is not a {what}: {error}", "it is cut, damaged or of another format") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"{path} is not a {what}: its JSON is no object", "it is of another format")
    return value
