"""The policies that are stored for runs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ckptstore.catalog import marks, reads
from ckptstore.core.policy import Policy, from_json
from ckptstore.core.retention import check_metric, check_policy
from ckptstore.ops.records import Ruled
from ckptstore.ops.runs import find_run
from ckptstore.ops.writers import directory_to_tell, shared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.catalog.engine import Database


def show(database: Database, run: str) -> Policy | None:
    """The policy that is stored for a run, if there is one."""
    run_id = find_run(database, run)
    with database.read() as connection:
        rules = marks.policy_of(connection, run_id)
    return None if rules is None else from_json(rules)


def store(database: Database, run: str, policy: Policy) -> None:
    """Store what gc keeps of a run where nobody says it.

    Raises `RefusedError` for a policy without a rule, and for a metric where the run has states with others only.
    """
    check_policy(policy)
    if policy.keep_best:
        run_id = find_run(database, run)
        with database.read() as connection:
            files = reads.files_to_judge(connection, run_id)
        check_metric(run, policy, [file.metrics for file in files if file.metrics])
    _set(database, run, policy.to_json())


def clear(database: Database, run: str) -> bool:
    """Forget it; whether there was one."""
    return _set(database, run, None)


def _set(database: Database, run: str, rules: Mapping[str, Any] | None) -> bool:
    """Store rules, or forget them, and journal it beside files of the run: a catalog made anew has it again."""
    run_id = find_run(database, run)
    now = datetime.now(timezone.utc)
    with database.write() as connection:
        files = marks.files_to_tell(connection, run_id)
        changed = marks.set_policy(connection, run_id, rules, now)
    if files and (changed or rules is not None):
        directory = directory_to_tell(files)
        launch = next(launch for path, launch in files.items() if path.rpartition("/")[0] == directory)
        ledger = shared(database)
        ledger.pass_on(Ruled(run, rules, now), launch, directory)
        ledger.close()
    return changed


def runs_with_policy(database: Database) -> list[str]:
    """The runs that `gc --all` looks at."""
    with database.read() as connection:
        return list(marks.runs_with_policy(connection))
