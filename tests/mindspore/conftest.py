"""What tests in this process with a real MindSpore share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore as ms
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def set_mode() -> Iterator[Callable[[int], None]]:
    """Sets MindSpore's mode for the rest of the test."""
    before = ms.get_context("mode")
    yield lambda mode: ms.set_context(mode=mode)
    ms.set_context(mode=before)
