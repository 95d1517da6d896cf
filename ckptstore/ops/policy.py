"""The policies that are stored for runs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import marks
from ckptstore.core.policy import Policy, from_json
from ckptstore.core.retention import check_policy
from ckptstore.ops.resolve import find_run

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database


def show(database: Database, run: str) -> Policy | None:
    """The policy that is stored for a run, if there is one."""
    run_id = find_run(database, run)
    with database.read() as connection:
        rules = marks.policy_of(connection, run_id)
    return None if rules is None else from_json(rules)


def store(database: Database, run: str, policy: Policy) -> None:
    """Store what gc keeps of a run where nobody says it. Raises `RefusedError` for a policy without a rule."""
    check_policy(policy)
    run_id = find_run(database, run)
    with database.write() as connection:
        marks.set_policy(connection, run_id, policy.to_json(), datetime.now(timezone.utc))


def clear(database: Database, run: str) -> bool:
    """Forget it; whether there was one."""
    run_id = find_run(database, run)
    with database.write() as connection:
        return marks.set_policy(connection, run_id, None, datetime.now(timezone.utc))


def runs_with_policy(database: Database) -> list[str]:
    """The runs that `gc --all` looks at."""
    with database.read() as connection:
        return list(marks.runs_with_policy(connection))
