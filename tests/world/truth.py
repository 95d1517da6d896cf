"""The events that really happened, and the promises about them. This shares no code with the package.

Each launch, step and rank has its own checkpoint bytes, so the bytes of a file identify its save. Some facts are in
doubt, because no program can be sure of them: for example, a save during which the rank was killed. No promise about
such a fact is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


class ViolationError(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Identity:
    """The launch, step and rank that wrote a file's bytes."""

    launch: int
    step: int
    rank: int


@dataclass
class Saved:
    """A file that a rank wrote.

    `is_named`: it may have its final name. `is_written`: the write returned to the rank, so the file is whole.
    `registered`: `register` returned to the rank, so the file is recorded.
    """

    path: str
    content: bytes
    identity: Identity
    registered: bool = False
    is_named: bool = False
    is_written: bool = False


@dataclass(eq=False)
class Launch:
    """A start of all ranks. `parent` is the launch and step of the state that it went on from.

    `decided`: at least one rank was given the decision of the start. `branched`: a user went back on purpose. `saved`
    has the launch's files, by step and rank.
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
    is_unheard: bool = False  # perhaps neither catalog nor journal knows it: its files may count as another's
    is_announced: bool = False  # its ranks have recorded where they save
    is_late_to_see: bool = False  # when it began, a disk did not list the newest files yet
    quarantined: set[int] = field(default_factory=set)
    saved: dict[int, dict[int, list[Saved]]] = field(default_factory=dict)
    plan: dict[int, str] = field(default_factory=dict)

    def has_nothing(self) -> bool:
        """Whether no file of this launch has ever had its final name."""
        return not any(each.is_named for ranks in self.saved.values() for some in ranks.values() for each in some)

    def has_registered(self) -> bool:
        return any(each.registered for ranks in self.saved.values() for some in ranks.values() for each in some)


class Truth:
    """All launches of the run, the replicas of each rank, and the pinned and tagged steps."""

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
        """The states that lead to the newest launch that counts, newest first.

        A launch counts once one of its files is registered, or if it surely went back on purpose. Empty if none counts.
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
        """Whether a file of the state was registered for each rank: the rank's own or a replica's."""
        ranks = launch.saved.get(step, {})
        return all(
            any(each.registered for other in self.stand_ins(rank) for each in ranks.get(other, ()))
            for rank in range(self.size)
        )

    def is_begun_anew(self, before: int) -> bool:
        """Whether a launch before number `before` started over on purpose, and none between them saved or loaded."""
        for launch in reversed(self.launches[:before]):
            if launch.saved or launch.parent is not None:
                return False
            if launch.branched:
                return launch.decided and not launch.is_unheard
        return False

    def is_in_doubt(self) -> bool:
        """Whether a launch may count that is in doubt or unheard, because no later launch has registered a file."""
        counting = max((each.number for each in self.launches if each.has_registered()), default=-1)
        doubtful = (
            each
            for each in self.launches
            if each.in_doubt or (each.is_unheard and (each.branched or not each.has_nothing()))
        )
        return any(each.number >= counting for each in doubtful)

    def has_untold(self) -> bool:
        """Whether a launch after the last one with a registered file has saved files."""
        counting = max((each.number for each in self.launches if each.has_registered()), default=-1)
        return any(not each.has_nothing() and each.number > counting for each in self.launches)

    def has_newer(self, launch: Launch, step: int) -> bool:
        """Whether the launch has registered a complete state after this step."""
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
        """Whether `there` has, for each rank, an unchanged file of a state: the rank's own or a replica's.

        A file may also have its bytes in `rotten`, a change that only reading shows. With `adopts`, a file that the
        rank wrote but did not register counts too, if its launch has registered another file.
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
        """The states of the lineage that must be restorable from the files `there`, newest first."""
        return [state for state in self._good(self.lineage()) if self.is_whole(*state, there, adopts=adopts)]

    def floor(
        self,
        there: dict[str, bytes],
        count: int,
        rotten: Mapping[str, bytes],
        may_be: Mapping[str, bytes] = MappingProxyType({}),
    ) -> list[tuple[Launch, int]]:
        """The states that gc must keep: those of the newest `count` that are surely complete.

        The newest `count` may also have states that are unregistered, rotten, or made of files that are perhaps there
        (`may_be`). Rotten states count because gc reads no bytes, and can be undone.
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
        """The states without those that a launch saved after a quarantined one: they may be as bad."""
        return [(launch, step) for launch, step in states if step < min(launch.quarantined, default=step + 1)]

    def files(self, launch: Launch, step: int) -> list[Saved]:
        return [each for some in launch.saved.get(step, {}).values() for each in some]

    def every_file(self) -> Iterator[Saved]:
        for launch in self.launches:
            for step in launch.saved:
                yield from self.files(launch, step)
