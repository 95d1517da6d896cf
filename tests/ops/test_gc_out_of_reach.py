"""The trash of a run: on a disk that is away for a while, and of steps that somebody wants to protect by then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckptstore.errors import RefusedError
from ckptstore.ops.trash import undo

from .test_gc import gc, saved

if TYPE_CHECKING:
    from pathlib import Path

    from ckptstore.ops.connect import Catalog


def test_a_step_in_the_trash_is_not_said_to_be_protected(catalog: Catalog, tmp_path: Path) -> None:
    """It would be purged all the same."""
    saved(catalog, tmp_path, 10, 20, 30, 40)
    gc(catalog)
    with pytest.raises(RefusedError, match="gc has removed step 10 .*; first, while it is there: ckptstore undo run"):
        catalog.pin("run", 10)
    with pytest.raises(RefusedError, match="gc has removed step 10"):
        catalog.tag("run", 10, "paper")
    undo(catalog.database, "run")
    assert catalog.pin("run", 10)
