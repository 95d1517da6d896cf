"""What journals hold, as values (`entries` says how it is written down)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ckptstore.catalog.reads import Source
    from ckptstore.core.model import Checkpoint, Launch, Outcome


@dataclass(frozen=True)
class Began:
    """A launch, and where it started: `at` is None while it has not asked, `origin` None where it started afresh.

    `plan` has (rank, file) for each rank, in the journal of the rank that says it for all.
    """

    launch: Launch
    at: datetime | None = None
    origin: Launch | None = None
    plan: tuple[tuple[int, Checkpoint], ...] = ()


@dataclass(frozen=True)
class Ended:
    """How training ended on a rank of a launch."""

    launch: str
    rank: int
    global_step: int
    optimizer_step: int | None
    error: str | None
    quarantine: str
    at: datetime


@dataclass(frozen=True)
class Verdict:
    """What came of a launch's plan on a rank; `file` is the one that it could not load, `detail` says why."""

    launch: str
    rank: int
    outcome: Outcome
    at: datetime
    file: Checkpoint | None = None
    detail: str | None = None


@dataclass(frozen=True)
class LayoutFile:
    """A strategy or group info file that a rank wrote: its BLAKE3, and its content, compressed by zlib.

    `content` is None where it was too much for a journal: then the file itself has it, until it is overwritten.
    """

    launch: str
    rank: int
    path: str
    digest: str
    kind: str
    content: bytes | None


@dataclass(frozen=True)
class Pinned:
    """A step of a run was pinned, or unpinned."""

    run: str
    global_step: int
    pinned: bool
    at: datetime


@dataclass(frozen=True)
class Tagged:
    """A step of a run got a name, or the name was taken away (`global_step` None)."""

    run: str
    name: str
    global_step: int | None
    at: datetime


@dataclass(frozen=True)
class Ruled:
    """What gc keeps of a run was stored, as `core.policy` writes it down, or forgotten (None)."""

    run: str
    rules: Mapping[str, Any] | None
    at: datetime


@dataclass
class Said:
    """What entries of one journal or of several say, in their order; `unusable` counts those that make no sense."""

    began: list[Began] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    layout_files: list[LayoutFile] = field(default_factory=list)
    files: list[Checkpoint] = field(default_factory=list)
    pinned: list[Pinned] = field(default_factory=list)
    tagged: list[Tagged] = field(default_factory=list)
    ruled: list[Ruled] = field(default_factory=list)
    unusable: int = 0
