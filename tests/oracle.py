"""What a restore may be, by brute force and by the words of the design alone: the resolver is held against it.

Nothing here knows how the resolver works; of ckptstore it takes the words (a launch, a file, what the disk shows) only.
Where the words leave something open the oracle says so: PERHAPS.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from ckptstore.core.model import Checkpoint, Content, FileState, Kind, Launch, Observed, Rule

Disk = Mapping[str, Observed]

APPENDED = 1024
"""Bytes: the second save of a graceful exit by SIGTERM lacks the appended numbers (mindspore.md §3)."""


class Answer(IntEnum):
    NO = 0
    PERHAPS = 1
    YES = 2


def broken_rules(file: Checkpoint, disk: Disk) -> set[Rule]:
    """Each rule that this one file breaks; a file of the whole state that breaks none is proven to be it."""
    seen = disk.get(file.path, Observed(None))
    broken = set()
    if file.content is Content.WEIGHTS:
        broken.add(Rule.WEIGHTS_ONLY)
    if file.state is FileState.IN_PROGRESS:
        return {*broken, Rule.IN_PROGRESS}  # whatever is there, nothing is known of what it will be
    if file.state is FileState.DAMAGED:
        broken.add(file.problem or Rule.QUARANTINED)
    if seen.unreadable:
        broken.add(Rule.UNREADABLE)
    elif seen.size is None:
        broken.add(Rule.MISSING_FILE)
    elif seen.size != file.size:
        broken.add(Rule.SIZE_MISMATCH)
    elif (seen.digest or file.digest) != file.digest or (
        seen.digest is None and seen.mtime_ns not in (None, file.mtime_ns)  # of that size is every step's
    ):
        broken.add(Rule.DIGEST_MISMATCH)
    return broken


class Candidate:
    """All files of one launch and step, and what the disk shows of them."""

    def __init__(self, launch: Launch, step: int, files: Iterable[Checkpoint], disk: Disk) -> None:
        self.launch = launch
        self.step = step
        self.files = [file for file in files if (file.launch, file.global_step) == (launch.id, step)]
        self.disk = disk

    def proven(self, content: Content, rank: int) -> list[Checkpoint]:
        return [
            file
            for file in self.files
            if file.rank == rank and file.content is content and not broken_rules(file, self.disk)
        ]

    @property
    def serves_any(self) -> bool:
        """Whether a file of the whole state serves any rank of any number: it holds all that there is."""
        return self.launch.layout.any_world_size or self.launch.world_size == 1

    def group(self, rank: int) -> list[int]:
        """The ranks whose state equals that of `rank`, itself among them."""
        if self.serves_any:
            return list(range(self.launch.world_size))
        return sorted({rank}.union(*(group for group in self.launch.layout.groups if rank in group)))

    def sizes_agree(self, ranks: Sequence[int]) -> Answer:
        """Whether these ranks' files of one kind and format have one size, or the same few, of several callbacks.

        What was recorded counts, whether the file is still there or not.
        """
        answer = Answer.YES
        whole = [file for file in self.files if file.rank in ranks and file.content is Content.FULL]
        for kind, form in sorted({(file.kind, file.format) for file in whole}):
            of_rank: dict[int, set[int]] = {}
            for file in whole:
                if (file.kind, file.format) == (kind, form) and file.size is not None:
                    of_rank.setdefault(file.rank, set()).add(file.size)
            every = set().union(*of_rank.values())
            if kind is Kind.GRACEFUL_EXIT and every and max(every) - min(every) <= APPENDED:
                continue
            for one in of_rank.values():
                for other in of_rank.values():
                    if one.isdisjoint(other):
                        close = kind is Kind.GRACEFUL_EXIT and len(one) > 1
                        answer = min(answer, Answer.PERHAPS if close else Answer.NO)
                    elif one != other:
                        answer = min(answer, Answer.PERHAPS)
        return answer

    def rank_is_covered(self, rank: int) -> Answer:
        """Whether a file of the whole state may be loaded on a rank: its own, else a replica's."""
        if self.proven(Content.FULL, rank):
            return Answer.YES
        group = self.group(rank)
        if any(self.proven(Content.FULL, other) for other in group):
            return self.sizes_agree(group)
        return Answer.NO

    def source_ranks(self, rank: int) -> set[int]:
        """The rank whose file it must be, where it is one of the whole state: its own, else the lowest replica's."""
        if self.proven(Content.FULL, rank):
            return {rank}
        return {min(other for other in self.group(rank) if self.proven(Content.FULL, other))}

    def restorable(self, world_size: int | None = None, *, take_quarantined: bool = False) -> Answer:
        """Whether it is provably one state of the whole job, for as many ranks."""
        saved = range(self.launch.world_size)
        ranks = saved if world_size is None else range(world_size)
        if self.step == 0 or (not take_quarantined and any(file.quarantine for file in self.files)):
            return Answer.NO
        if ranks != saved and not self.serves_any:
            return Answer.NO
        whole = min(self.rank_is_covered(rank) for rank in ranks)
        if ranks != saved:
            return whole
        shared = {rank for rank in ranks if self.proven(Content.SHARE, rank)}
        if shared == set(ranks):
            return Answer.YES
        if all(shared.issuperset(self.group(rank)) or self.rank_is_covered(rank) for rank in ranks):
            return max(whole, Answer.PERHAPS)  # some groups in shares, others whole: nothing is said of that
        return whole


def history(
    launches: Iterable[Launch], files: Sequence[Checkpoint], *, of: str | None = None
) -> list[tuple[Launch, int]]:
    """Every save of the lineage, newest first: those of the later launch, and of those the higher step.

    The lineage is that of the newest launch that counts, or of the newest up to the one called `of`. A launch counts
    that has saved something, or that was asked to go back. One that finished no file has no state that the run could be
    at: the run is still where it was before, unless it was asked to go back, or a later launch did begin there.
    """
    by_id = {launch.id: launch for launch in launches}
    trained = [file for file in files if file.global_step > 0 and file.state is not FileState.MOVED]
    has_finished = {file.launch for file in trained if file.size is not None}
    steps: dict[str, set[int]] = {}
    for file in trained:
        steps.setdefault(file.launch, set()).add(file.global_step)

    counting = [launch for launch in by_id.values() if launch.id in steps or launch.branched]

    def began_from(launch: Launch, *, was_resumed: bool) -> tuple[Launch, float, bool] | None:
        """Where it went on, up to which step, and whether it says so itself."""
        if launch.decided and (was_resumed or launch.branched or launch.id in has_finished):
            if launch.parent is None or launch.parent_step is None or launch.parent not in by_id:
                return None
            return by_id[launch.parent], launch.parent_step, True
        before = [other for other in counting if other.order < launch.order]
        if not before:
            return None
        up_to = min(steps[launch.id]) - 1 if launch.id in has_finished else math.inf
        return max(before, key=lambda other: other.order), up_to, False

    def leads_to(launch: Launch, step: int, newest: Launch, *, was_resumed: bool = False) -> bool:
        """Whether a run that stands at the end of `newest`, or where another one resumed from it, once was there."""
        if newest.id == launch.id:
            return True
        start = began_from(newest, was_resumed=was_resumed)
        return start is not None and step <= start[1] and leads_to(launch, step, start[0], was_resumed=start[2])

    ends = [launch for launch in counting if of is None or launch.order <= by_id[of].order]
    if not ends:
        return []
    newest = max(ends, key=lambda launch: launch.order)
    found = [
        (launch, step) for launch in counting for step in steps.get(launch.id, ()) if leads_to(launch, step, newest)
    ]
    return sorted(found, key=lambda each: (each[0].order, each[1]), reverse=True)
