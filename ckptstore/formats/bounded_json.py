"""JSON in files that may be anything: of a bounded size, and an error that names the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptstore.core import bounded_json
from ckptstore.errors import UnreadableError

if TYPE_CHECKING:
    from ckptstore.outside import Path

# Python needs up to thirty times as much memory for what it parses. 100,000 parameters take about 12 MB.
MOST_JSON = 16 << 20  # bytes


def read_object(path: Path, what: str, most: int = MOST_JSON) -> dict[str, Any]:
    """Read a file of up to so many bytes as `parse_object` does. Raises `OSError` where it cannot be opened."""
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise UnreadableError(f"{path} is not a {what}: it has more than {most} bytes", "it is of another format")
    return parse_object(raw, path, what)


def parse_object(raw: bytes, path: Path, what: str) -> dict[str, Any]:
    """Parse a JSON object; `what` names it in errors. Raises `UnreadableError` for everything else."""
    try:
        value = bounded_json.parse(raw)
    except ValueError as error:
        raise UnreadableError(f"{path} is not a {what}: {error}", "it is cut, damaged or of another format") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"{path} is not a {what}: its JSON is no object", "it is of another format")
    return value
