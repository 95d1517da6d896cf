"""The JSON output of commands. Field names are fixed, since scripts depend on them."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli.terminal import line
from ckptstore.resume.dicts import fields, file, plain, reasons

if TYPE_CHECKING:
    from ckptstore.scan.plan import Scanned

_CONTROLS = re.compile("[\x7f-\x9f]")
"""The control characters that JSON does not escape. A path may have some, and a terminal obeys them."""


def write(value: Any) -> None:
    """Print a value as JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=plain)
    text = _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    click.echo(text.encode("utf-8", "backslashreplace"))  # bytes of a path that are not UTF-8 become JSON escapes


def finite(value: Any) -> Any:
    """The value. NaN and infinity become text, since JSON has no number for them."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def report(value: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command: JSON for scripts, or a line for people."""
    write(value) if as_json else line(text)


def scanned(done: Scanned) -> dict[str, Any]:
    """The result of a scan."""
    return {
        **fields(done, "run world_size"),
        "files": dict(sorted(done.counts.items())),
        "known": done.known,
        "from_journals": done.synced.records,
        **{name: [file(each) for each in getattr(done, name)] for name in ("adopted", "damaged", "missing")},
        "uncertain": [
            {**fields(each, "path best_guess reason contradicted"), "place_with": each.remedy or None}
            for each in done.uncertain
        ],
        "regraded": [file(each) for each in done.regraded],
        "skipped": reasons(done.skipped),
        "opaque": [fields(each, "path rank size modified") for each in done.opaque],
        "trash": [dict(each.__dict__) for each in done.trash],
        "warnings": done.warnings,
    }
