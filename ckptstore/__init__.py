"""ckptstore: a checkpoint catalog for MindSpore.

    catalog = ckptstore.connect()
    resolution = catalog.resolve("my-run")

In a training script see `ckptstore.mindspore`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptstore.api import Catalog, connect
    from ckptstore.core.model import Checkpoint, Kind, Rejection, Resolution, RestorePlan
    from ckptstore.errors import CkptstoreError
    from ckptstore.retention.policy import Policy
    from ckptstore.training.launch import RankLaunch

__all__ = [
    "Catalog",
    "Checkpoint",
    "CkptstoreError",
    "Kind",
    "Policy",
    "RankLaunch",
    "Rejection",
    "Resolution",
    "RestorePlan",
    "connect",
]

_HOMES = {
    "Catalog": "ckptstore.api",
    "Checkpoint": "ckptstore.core.model",
    "CkptstoreError": "ckptstore.errors",
    "Kind": "ckptstore.core.model",
    "Policy": "ckptstore.retention.policy",
    "RankLaunch": "ckptstore.training.launch",
    "Rejection": "ckptstore.core.model",
    "Resolution": "ckptstore.core.model",
    "RestorePlan": "ckptstore.core.model",
    "connect": "ckptstore.api",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `ckptstore --help` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ckptstore' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
