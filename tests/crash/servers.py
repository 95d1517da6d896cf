"""PostgreSQL servers of their own, for what must not happen to the one that all tests share."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.postgres_server import Server


@contextmanager
def new_database(**settings: object) -> Iterator[str]:
    """The URL of an empty database, on a server that lives as long as the block."""
    with tempfile.TemporaryDirectory() as home, closing(Server(Path(home) / "pg", **settings)) as server:
        yield server.new_database()
