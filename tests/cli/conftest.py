"""Commands are held against SQLite: what they call is tested on both databases, in the folders of that."""

import pytest


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url
