"""ckptstore: a checkpoint catalog for MindSpore.

    with ckptstore.connect() as catalog:
        resolution = catalog.resolve("my-run")

In a training script see `ckptstore.mindspore`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptstore.advise.advise import Advice
    from ckptstore.api import Catalog, connect
    from ckptstore.core.model import Assignment, Checkpoint, Kind, Launch, Rejection, Resolution, RestorePlan
    from ckptstore.errors import CkptstoreError
    from ckptstore.handover.export import Exported
    from ckptstore.handover.import_ import Imported
    from ckptstore.journal.sync import Synced
    from ckptstore.resume.history import LaunchRow
    from ckptstore.resume.overview import RunRow, SaveRow
    from ckptstore.retention.execute import Collected
    from ckptstore.retention.in_trash import Purged, Undone
    from ckptstore.retention.plan import GcPlan
    from ckptstore.retention.policy import Policy
    from ckptstore.scan.plan import Scanned
    from ckptstore.tensors.compare import Compared
    from ckptstore.tensors.opened import OpenState
    from ckptstore.training.rank_launch import RankLaunch
    from ckptstore.verify.verify import Verified

    __version__: str
    """The version of the installed package."""

__all__ = [
    "Advice",
    "Assignment",
    "Catalog",
    "Checkpoint",
    "CkptstoreError",
    "Collected",
    "Compared",
    "Exported",
    "GcPlan",
    "Imported",
    "Kind",
    "Launch",
    "LaunchRow",
    "OpenState",
    "Policy",
    "Purged",
    "RankLaunch",
    "Rejection",
    "Resolution",
    "RestorePlan",
    "RunRow",
    "SaveRow",
    "Scanned",
    "Synced",
    "Undone",
    "Verified",
    "__version__",
    "connect",
]

_HOMES = {
    "Advice": "ckptstore.advise.advise",
    "Assignment": "ckptstore.core.model",
    "Catalog": "ckptstore.api",
    "Checkpoint": "ckptstore.core.model",
    "CkptstoreError": "ckptstore.errors",
    "Collected": "ckptstore.retention.execute",
    "Compared": "ckptstore.tensors.compare",
    "Exported": "ckptstore.handover.export",
    "GcPlan": "ckptstore.retention.plan",
    "Imported": "ckptstore.handover.import_",
    "Kind": "ckptstore.core.model",
    "Launch": "ckptstore.core.model",
    "LaunchRow": "ckptstore.resume.history",
    "OpenState": "ckptstore.tensors.opened",
    "Policy": "ckptstore.retention.policy",
    "Purged": "ckptstore.retention.in_trash",
    "RankLaunch": "ckptstore.training.rank_launch",
    "Rejection": "ckptstore.core.model",
    "Resolution": "ckptstore.core.model",
    "RestorePlan": "ckptstore.core.model",
    "RunRow": "ckptstore.resume.overview",
    "SaveRow": "ckptstore.resume.overview",
    "Scanned": "ckptstore.scan.plan",
    "Synced": "ckptstore.journal.sync",
    "Undone": "ckptstore.retention.in_trash",
    "Verified": "ckptstore.verify.verify",
    "connect": "ckptstore.api",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is used: `ckptstore --help` needs none of them."""
    if name == "__version__":
        return import_module("importlib.metadata").version("ckptstore")
    if name not in _HOMES:
        raise AttributeError(f"module 'ckptstore' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
