"""What doctor says of a catalog, by name; and that it left everything as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ckptstore.catalog.engine import open_to_look
from ckptstore.catalog.tables import metadata
from ckptstore.doctor.checkup import Check
from ckptstore.doctor.doctor import examine


def checks(url: str | None, run: str | None = "run", *, now: datetime | None = None) -> dict[str, Check]:
    """Every check by its name; of several with one name the last."""
    return {check.name: check for check in examine(url, run, now=now).checks}


def said(check: Check) -> tuple[str, str]:
    """How it is, and what was found."""
    return check.status.value, check.detail


def tree(directory: Path) -> dict[str, Any]:
    """Whatever is below a directory, with its bytes and times."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_mtime_ns, path.read_bytes() if path.is_file() else None)
    return found


def content(url: str) -> dict[str, list[Any]]:
    """Every row of a catalog."""
    database = open_to_look(url, answer_within=10)
    with database.read() as connection:
        rows = {table.name: sorted(map(repr, connection.execute(table.select()))) for table in metadata.sorted_tables}
    database.disconnect()
    return rows


@contextmanager
def unchanged(directory: Path, url: str | None = None) -> Iterator[None]:
    """Nothing below the directory, and nothing in the catalog, is another thing after than it was before."""
    rows = content(url) if url else None
    before = tree(directory)
    yield
    assert tree(directory) == before
    assert (content(url) if url else None) == rows
