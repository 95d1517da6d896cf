"""What most tests of gc do: save some steps, collect by a policy, look what is left."""

from datetime import datetime, timezone
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog.tables import gc_locks
from ckptstore.retention.execute import Collected, execute
from ckptstore.retention.plan import GcPlan, plan_gc
from ckptstore.retention.policy import Policy
from tests.jobs import Job, begun
from tests.trash_calls import MOVES, failing_after

LAST_2 = Policy(keep_last=2)
LONG_AGO = datetime(2000, 1, 1, tzinfo=timezone.utc)


def gc(catalog: Catalog, policy: Policy = LAST_2, **asked: object) -> Collected:
    return execute(catalog.database, plan_gc(catalog.database, "run", policy), allow_mass_delete=True, **asked)


def removed(plan: GcPlan) -> list[tuple[str, int]]:
    return [verdict.state.key for verdict in plan.decision.remove]


def doubts(plan: GcPlan) -> dict[tuple[str, int], str]:
    """Why some states that stay do, whatever the policy says."""
    return {verdict.state.key: verdict.state.doubt for verdict in plan.decision.keep if verdict.state.doubt}


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(("writer-", "identity-")) and path.suffix != ".jsonl"
    }


def names(directory: Path) -> set[str]:
    return {name for name in tree(directory) if "/.ckptstore/" not in name and not name.startswith(".ckptstore")}


def saved(catalog: Catalog, tmp_path: Path, *steps: int) -> Job:
    return begun(catalog, tmp_path / "data", *steps)[0]


def interrupt(catalog: Catalog, after: int) -> None:
    """Ctrl-C after so many files were moved or deleted."""
    with failing_after(after, MOVES, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        gc(catalog)


def forget_the_holder(catalog: Catalog) -> None:
    """As if it had not been heard of for too long."""
    with catalog.database.write() as connection:
        connection.execute(gc_locks.update().values(expires_at=LONG_AGO))
