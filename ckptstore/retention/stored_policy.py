"""The policies that are stored for runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptstore.catalog import reads, user_events
from ckptstore.catalog.runs import find_called, find_run
from ckptstore.core.events import PolicySet
from ckptstore.journal.recorder import record_of_run
from ckptstore.retention.decide import check_metric, check_policy
from ckptstore.retention.policy import Policy, from_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint


def show(database: Database, run: str) -> Policy | None:
    """The policy that is stored for a run; None if there is none."""
    run_id = find_run(database, run)
    with database.read() as connection:
        rules = user_events.policy_of(connection, run_id)
    return None if rules is None else from_json(rules)


def store(database: Database, run: str, policy: Policy) -> None:
    """Store the policy that gc of a run uses by default.

    Raises `RefusedError` for a policy without a rule, and if the run has metrics, but not the one of the policy.
    """
    check_policy(policy)
    if policy.keep_best:
        run_id = find_run(database, run)
        with database.read() as connection:
            files = reads.files_to_judge(connection, run_id)
        check_metric(run, policy, [file.metrics for file in files if file.metrics])
    _set(database, run, policy.to_json())


def clear(database: Database, run: str) -> bool:
    """Delete the policy of a run; return whether there was one."""
    return _set(database, run, None)


def _set(database: Database, run: str, rules: Mapping[str, Any] | None) -> bool:
    """Store rules, or delete them (None); return whether that changed anything."""
    run_id, first, *_ = find_called(database, run)

    def decide(connection: Connection) -> tuple[Sequence[Event], Sequence[Checkpoint]]:
        if rules is None and user_events.policy_of(connection, run_id) is None:
            return [], []
        said = user_events.said_now(connection, PolicySet, first, rules)
        return [said], user_events.files_to_tell(connection, run_id)

    return record_of_run(database, decide)
