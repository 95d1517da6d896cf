"""Check of the state that a run would go on from: by the catalog, without a look at the files."""

from __future__ import annotations

from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.lineage import lineage
from ckptstore.core.model import FileState, Observed, RestorePlan
from ckptstore.core.resolver import judge
from ckptstore.core.words import count, span
from ckptstore.ops.checkup import Status
from ckptstore.ops.resolve import candidates
from ckptstore.ops.run_facts import folder_of
from ckptstore.storage.surroundings import look_around

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint
    from ckptstore.ops.checkup import Check
    from ckptstore.ops.run_facts import RunFacts

_STATES_JUDGED = 32


def look(database: Database, facts: RunFacts) -> Check:
    """The newest state that can be restored, as far as the catalog knows, and whether its directories are there."""
    found, judged = _newest_restorable(database, facts)
    name = "restorable"
    ask = f"ckptstore resolve {quote(facts.run)} --explain says why"
    if found is None and not judged:
        return facts.check(name, Status.NOTE, "nothing was saved yet")
    if found is None:
        return facts.check(name, Status.PROBLEM, f"none of {count(judged, 'state', 'states')} that were saved", ask)
    files = [assignment.source for assignment in found.ranks]
    saved_at = max((file.created_at for file in files if file.created_at), default=facts.now)
    detail = f"step {found.global_step}, saved {span(facts.now - saved_at)} ago, by the catalog"
    away = [each for each in look_around(sorted({folder_of(file.path) for file in files})) if each.device is None]
    if away:
        first = away[0]
        detail += f"; but {count(len(away), 'directory', 'directories')} of it cannot be seen: {first.directory}"
        hint = "mount it, or ask on a machine that sees it; if it was deleted: ckptstore resolve finds an older state"
        return facts.check(name, Status.PROBLEM, f"{detail} ({first.trouble})", hint)
    if judged > 1:
        newer = count(judged - 1, "newer one", "newer ones")
        return facts.check(name, Status.NOTE, f"{detail}; {newer} cannot be restored", ask)
    return facts.check(name, Status.OK, detail)


def _newest_restorable(database: Database, facts: RunFacts) -> tuple[RestorePlan | None, int]:
    """The newest state that the catalog takes for whole, and how many were judged to find it; no file is looked at."""
    with database.read() as connection:
        segments = lineage(list(facts.launches), reads.first_saves(connection, facts.run_id))
        failed = reads.failed_loads(connection, facts.run_id)
    judged = 0
    for state in islice(candidates(database, segments, None, failed), _STATES_JUDGED):
        judged += 1
        verdict = judge(state, {file.path: _as_recorded(file) for file in state.files})
        if isinstance(verdict, RestorePlan):
            return verdict, judged
    return None, judged


def _as_recorded(file: Checkpoint) -> Observed:
    return Observed(file.size if file.state is FileState.COMPLETE else None, mtime_ns=file.mtime_ns)
