"""The argument `tiers=` of a job: declares tiers, and hands each registered file to the thread that copies."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING

from ckptstore.core.events import LaunchStarted
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.journal.recorder import for_rank
from ckptstore.outside import Path
from ckptstore.replicate.copy_thread import CopyThread
from ckptstore.tiers import facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.core.copies import Tier
    from ckptstore.core.model import Checkpoint
    from ckptstore.training.rank_launch import RankLaunch

log = logging.getLogger("ckptstore")


def checked(tiers: object) -> list[Tier]:
    """The tiers of `tiers=`, a dict of names, and URLs or paths. Raises `UsageError`."""
    hint = 'give names and URLs: tiers={"s3": "s3://bucket/prefix"}'
    if not isinstance(tiers, dict):
        raise UsageError(f"tiers is {type(tiers).__name__}", hint)
    for name, url in tiers.items():
        if not isinstance(url, (str, Path)):
            raise UsageError(f"the URL of tier {name} is {type(url).__name__}", hint)
    return [facts.tier_of(name, str(url)) for name, url in tiers.items()]


class CopiesToTiers:
    """Declares tiers, and copies to them each file of this rank once it is registered.

    `rate` is in bytes a second (None: as fast as possible). Errors of a tier do not stop training.
    """

    def __init__(self, launch: RankLaunch, tiers: Mapping[str, str], rate: float | None = None) -> None:
        self._launch = launch
        self._tiers = checked(tiers)
        if rate is not None and not (isinstance(rate, (int, float)) and 0 < rate < inf):
            raise UsageError(f"copy_rate is {rate!r}", "give bytes a second, as copy_rate=200e6")
        recorder = for_rank(launch.database, launch.rank, launch.facts, lambda: LaunchStarted(launch.facts.undecided()))
        self._thread = CopyThread(launch.database, self._tiers, rate, recorder=recorder)
        self._is_declared = launch.rank != 0

    def file_registered(self, file: Checkpoint) -> None:
        """Handle a registered file of this rank. Called on the recorder's thread."""
        if not self._is_declared:
            self._is_declared = True
            for tier in self._tiers:
                self._declare(tier)
        self._thread.file_registered(file)

    def finish(self, seconds: float) -> None:
        """Training has ended: copy the waiting files, for so many seconds at most. Another training may follow."""
        self._thread.finish(seconds)

    def _declare(self, tier: Tier) -> None:
        try:
            facts.add(self._launch.database, tier, keeps_level=True)
        except CkptstoreError as error:
            log.warning("tier %s is not declared: %s; copies to it are tried all the same", tier.name, error)
