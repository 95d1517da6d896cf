"""Chooses a state for ranks whose hosts share no disk: each looks at its own files, and rank 0 judges by all views.

Rank 0 first chooses by its own view, and asks all ranks whether each sees its file. If one does not, or if a newer
state was rejected because of files that rank 0 does not see, every rank writes its view of the newest states into the
catalog, and rank 0 chooses again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ckptstore.catalog import reads, recent, visibility
from ckptstore.core.model import Content, Rule, View
from ckptstore.core.sighting import Bytes, Sighting, compare
from ckptstore.disk import files
from ckptstore.disk.name_claims import FOLDER, host_name
from ckptstore.disk.waiting import within
from ckptstore.errors import CatalogUnavailableError
from ckptstore.journal import jsonl
from ckptstore.journal.sync import take_up_found
from ckptstore.resume.resolve import newest_states
from ckptstore.resume.resolver import fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ckptstore.core.model import Checkpoint, Launch, LaunchKey, Observed, Resolution
    from ckptstore.resume.resolver import Query
    from ckptstore.resume.start import AskRanks
    from ckptstore.training.rank_launch import RankLaunch

log = logging.getLogger("ckptstore")

LOOK_SECONDS = 30.0
"""How long a rank may look at its own disk: a disk that hangs must not keep the others waiting longer."""

_STATES = 8
_OTHERS = 32
"""At most so many files of the lowest ranks, and of its neighbours, a rank looks at until one serves it."""
_IN_PIECES = (Content.SHARE, Content.PART)
_UNSEEN = {Rule.MISSING_FILE, Rule.UNREADABLE, Rule.SIZE_MISMATCH, Rule.DIGEST_MISMATCH}


def ask_ranks(launch: RankLaunch, query: Query, ask: Callable[[Any], int]) -> AskRanks:
    """The function by which rank 0 asks the ranks once it has chosen. `ask` sends a question, and counts the yeses."""

    def asked(resolution: Resolution) -> Mapping[int, View] | None:
        plan = resolution.plan
        reasons = [reason for rejection in resolution.rejections for reason in rejection.reasons]
        of_others = any(reason.rank not in (None, 0) and reason.rule in _UNSEEN for reason in reasons)
        sees = True
        if plan is not None:
            chosen = [each.source for each in plan.ranks]
            told = [
                None if file.id in plan.copies else (file.path, file.size, file.mtime_ns, file.digest)
                for file in chosen
            ]
            sees = ask({"files": told, "all": _needs_all(plan.launch, chosen)}) == launch.world_size
        if sees and not of_others:
            return None
        states = newest_states(launch.database, launch.run, query, _STATES)
        own = [] if plan is None else [(plan.launch.key, plan.global_step)]  # it may be older than all of these
        ask({"states": list(dict.fromkeys([*states, *own]))})
        with launch.database.read() as connection:
            found = visibility.told(connection, launch.key)
        if not sees:
            log.warning(
                "the ranks of run %s do not see the same files: each loads one that its own host has (%d of %d said "
                "what they see)",
                launch.name,
                len(found),
                launch.world_size,
            )
        return found

    return asked


def answer(launch: RankLaunch, question: Mapping[str, Any]) -> bool:
    """The answer to a question of rank 0: whether this rank sees its file, or whether it has written its view."""
    if "files" in question:
        own = question["files"] if question["all"] else [question["files"][launch.rank]]
        return within(LOOK_SECONDS, lambda: all(each is None or _is_there(*each) for each in own)) or False
    try:
        seen = _seen(launch, question["states"])
        if seen is None:
            log.error("what this rank sees of its files was not known in %g s", LOOK_SECONDS)
            return False
        view = View(host_name(), seen)
        launch.database.in_write(lambda connection: visibility.tell(connection, launch.key, launch.rank, view))
    except CatalogUnavailableError as error:
        log.error("%s. What this rank sees of its files is not told.", error)  # noqa: TRY400
        return False
    return True


def _seen(launch: RankLaunch, states: Sequence[tuple[LaunchKey, int]]) -> dict[str, Observed] | None:
    """The rank's view of these states, once its own journals are in the catalog; None if that takes too long."""
    database = launch.database
    with database.read() as connection:
        homes = {home for key, _ in states for home in recent.homes_of(connection, key) if home.rank == launch.rank}
    sizes = within(LOOK_SECONDS, lambda: dict(each for home in homes for each in _journals(home.directory).items()))
    if sizes is None:
        return None
    take_up_found(database, sizes)
    with database.read() as connection:
        origins = [(reads.launch(connection, key), step) for key, step in states]
        known = [_serving(reads.files_at(connection, at, step), at, launch.rank) for at, step in origins if at]
        failed = reads.failed_loads(connection, reads.run_id(connection, launch.run) or 0)
    return within(LOOK_SECONDS, lambda: _look(known, failed))


def _journals(directory: str) -> dict[str, int]:
    try:
        return jsonl.sizes_in(f"{directory}/{FOLDER}") or {}
    except OSError:  # the host was replaced, and has no such directory
        return {}


def _is_there(path: str, size: int, mtime_ns: int | None, digest: str | None) -> bool:
    """Whether a file is as it was recorded. A copy, which has another time, is compared by its bytes."""
    found, record = files.facts_if_seen(path), Bytes(size, mtime_ns, digest)
    return found is not None and compare(record, files.against(path, record, found)) is Sighting.SAME


def _needs_all(origin: Launch, found: Iterable[Checkpoint]) -> bool:
    """Whether a rank reads the files of all: shares of a data-parallel state (mindspore.md §8)."""
    return origin.layout.any_world_size and any(file.content is Content.SHARE for file in found)


def _serving(found: Sequence[Checkpoint], origin: Launch, rank: int) -> list[Checkpoint]:
    """The files that may serve a rank: its own, then `_OTHERS` of its neighbours and as many of the lowest ranks.

    Neighbours may be on its host. Of the lowest ranks is the file that a message says to copy.
    """
    if _needs_all(origin, found):
        return sorted(found, key=lambda file: (file.content is not Content.SHARE, file.rank, file.path))
    groups = origin.layout.partition(origin.world_size)
    group = next((each for each in groups if rank in each), groups[0] if origin.any_file_serves else ())
    own = [file for file in found if file.rank == rank]
    others = [file for file in found if file.rank in group and file.rank != rank and file.content not in _IN_PIECES]
    others.sort(key=lambda file: (file.rank, file.path))
    return own + sorted(others[_OTHERS:], key=lambda file: abs(file.rank - rank))[:_OTHERS] + others[:_OTHERS]


def _look(known: Iterable[Sequence[Checkpoint]], failed: Mapping[str, str]) -> dict[str, Observed]:
    """Look at the files of each state, up to the first without a `fault`. `failed` is the argument of that."""
    seen: dict[str, Observed] = {}
    for of_state in known:
        for file in of_state:
            seen.update(files.observe([file], read_bytes=False))
            if file.content not in _IN_PIECES and fault(file, seen[file.path], failed) is None:
                break
    return seen
