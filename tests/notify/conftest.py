from collections.abc import Iterator

import pytest

from tests.notify.receiving import Receiving, receiving


@pytest.fixture
def receiver() -> Iterator[Receiving]:
    with receiving() as seen:
        yield seen
