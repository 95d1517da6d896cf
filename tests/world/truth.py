"""What really happened, and what was promised: it shares no code with the package.

Each checkpoint's bytes are of one launch, step and rank, so that what lies on a disk tells what it is. A fact that
nobody can be sure of, as a save in which the rank was killed, is in doubt: then nothing is asked of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


class ViolationError(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Identity:
    """What a file's bytes are: written by a rank of a launch, after a step."""

    launch: int
    step: int
    rank: int


@dataclass
class Saved:
    """A file that a rank wrote. `registered` once the rank was told that it is recorded.

    `is_named` from when it may have its name, `is_written` once the rank was told that it is whole.
    """

    path: str
    content: bytes
    identity: Identity
    registered: bool = False
    is_named: bool = False
    is_written: bool = False


@dataclass(eq=False)
class Launch:
    """A start of all ranks. `parent` is the state that it went on from; `decided` once its start was told to a rank.

    `branched`: somebody went back on purpose. `saved` are its files, by step and rank.
    """

    number: int
    name: str
    size: int
    parent: tuple[int, int] | None = None
    decided: bool = False
    branched: bool = False
    in_doubt: bool = False
    plain: bool = False  # the catalog alone knows where it started
    is_in_catalog_alone: bool = False  # a disk was away when it began: its journal may be below the mount point
    is_unheard: bool = False  # neither catalog nor journal may have heard of it: its files may count as another's
    is_announced: bool = False  # its ranks have said where they save
    is_late_to_see: bool = False  # a disk did not show it the newest files when it began
    quarantined: set[int] = field(default_factory=set)
    saved: dict[int, dict[int, list[Saved]]] = field(default_factory=dict)
    plan: dict[int, str] = field(default_factory=dict)

    def has_nothing(self) -> bool:
        """Whether no file of it has ever had its name."""
        return not any(each.is_named for ranks in self.saved.values() for some in ranks.values() for each in some)

    def has_registered(self) -> bool:
        return any(each.registered for ranks in self.saved.values() for some in ranks.values() for each in some)


class Truth:
    """All launches of the run, who stands in for whom, and what was promised."""

    def __init__(self, size: int, *, replicas: bool) -> None:
        self.size = size
        self.replicas = replicas
        self.launches: list[Launch] = []
        self.contents: dict[bytes, Identity] = {}
        self.pinned: dict[int, bool] = {}
        self.tags: dict[str, int | None] = {}

    def stand_ins(self, rank: int) -> range:
        """The ranks whose file serves a rank."""
        return range(self.size) if self.replicas else range(rank, rank + 1)

    def marked(self) -> set[int]:
        """The steps that are surely pinned or tagged."""
        return {step for step, is_pinned in self.pinned.items() if is_pinned} | {
            step for step in self.tags.values() if step is not None
        }

    def lineage(self) -> list[tuple[Launch, int]]:
        """The states that lead to the newest launch, newest first, of which something is registered.

        A launch counts once it has saved, or went back on purpose. Empty where that is in doubt.
        """
        counting = [
            each
            for each in self.launches
            if each.has_registered() or (each.branched and each.decided and not each.is_unheard)
        ]
        if not counting:
            return []
        found: list[tuple[Launch, int]] = []
        launch: Launch | None = counting[-1]
        last: int | None = None
        while launch is not None:
            steps = sorted(launch.saved, reverse=True)
            found += [(launch, step) for step in steps if last is None or step <= last]
            if launch.parent is None:
                break
            number, last = launch.parent
            launch = self.launches[number]
        return found

    def was_whole(self, launch: Launch, step: int) -> bool:
        """Whether each rank had a file of a state, and was told that it is recorded."""
        ranks = launch.saved.get(step, {})
        return all(
            any(each.registered for other in self.stand_ins(rank) for each in ranks.get(other, ()))
            for rank in range(self.size)
        )

    def is_begun_anew(self, before: int) -> bool:
        """Whether a launch began afresh on purpose, and none has written anything since, up to one that asks."""
        for launch in reversed(self.launches[:before]):
            if launch.saved or launch.parent is not None:
                return False
            if launch.branched:
                return launch.decided and not launch.is_unheard
        return False

    def is_in_doubt(self) -> bool:
        """Whether a launch may count that nobody was told of, and that none after it outdates."""
        counting = max((each.number for each in self.launches if each.has_registered()), default=-1)
        doubtful = (
            each
            for each in self.launches
            if each.in_doubt or (each.is_unheard and (each.branched or not each.has_nothing()))
        )
        return any(each.number >= counting for each in doubtful)

    def has_untold(self) -> bool:
        """Whether a launch has saved, none of its ranks was told that this is recorded, and none after it outdates."""
        counting = max((each.number for each in self.launches if each.has_registered()), default=-1)
        return any(not each.has_nothing() and each.number > counting for each in self.launches)

    def has_newer(self, launch: Launch, step: int) -> bool:
        """Whether a launch has made a whole state after this step, as it was told."""
        return any(at > step and self.was_whole(launch, at) for at in launch.saved)

    def is_whole(
        self,
        launch: Launch,
        step: int,
        there: dict[str, bytes],
        *,
        registered: bool = True,
        adopts: bool = False,
        rotten: Mapping[str, bytes] = MappingProxyType({}),
    ) -> bool:
        """Whether each rank has a file of a state, its own or a replica's, that is on a disk as it was written.

        Or as it is by now, if only who reads it can tell: `rotten`. Whoever `adopts` takes what a rank did not come to
        register, too, of a launch that has registered something.
        """
        ranks = launch.saved.get(step, {})
        is_adopted = adopts and launch.is_announced and launch.has_registered()
        return all(
            any(
                there.get(each.path) in (each.content, rotten.get(each.path, each.content))
                and (each.registered or not registered or (is_adopted and each.is_written))
                for other in self.stand_ins(rank)
                for each in ranks.get(other, ())
            )
            for rank in range(self.size)
        )

    def whole(self, there: dict[str, bytes], *, adopts: bool = False) -> list[tuple[Launch, int]]:
        """The states of the lineage that must be restorable, newest first, of what is on the disks."""
        return [state for state in self._good(self.lineage()) if self.is_whole(*state, there, adopts=adopts)]

    def floor(
        self,
        there: dict[str, bytes],
        count: int,
        rotten: Mapping[str, bytes],
        may_be: Mapping[str, bytes] = MappingProxyType({}),
    ) -> list[tuple[Launch, int]]:
        """The states that must stay of the newest so many.

        One of which nobody was told may be among these, and one that is rotten: gc reads no bytes, and can be undone;
        and one whose files nobody can be sure of, `may_be`.
        """
        possible = {**may_be, **there}
        newest = [
            (launch, step)
            for launch, step in self.lineage()
            if step not in launch.quarantined and self.is_whole(launch, step, possible, registered=False, rotten=rotten)
        ]
        return [state for state in self._good(newest[:count]) if self.is_whole(*state, there)]

    @staticmethod
    def _good(states: list[tuple[Launch, int]]) -> list[tuple[Launch, int]]:
        """Without what was saved since a bad state: whether that is as bad, nobody knows."""
        return [(launch, step) for launch, step in states if step < min(launch.quarantined, default=step + 1)]

    def files(self, launch: Launch, step: int) -> list[Saved]:
        return [each for some in launch.saved.get(step, {}).values() for each in some]

    def every_file(self) -> Iterator[Saved]:
        for launch in self.launches:
            for step in launch.saved:
                yield from self.files(launch, step)
