"""The policies that are stored for runs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptstore.catalog import reads, user_events
from ckptstore.catalog.journals import journals_of
from ckptstore.catalog.runs import find_called, find_run
from ckptstore.core.events import PolicySet, from_lines, later, version_of_user_event
from ckptstore.core.hints import Command, as_options
from ckptstore.disk.trust import Trust
from ckptstore.errors import RefusedError
from ckptstore.journal import jsonl
from ckptstore.journal.accept import why_not
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


def of_gc(database: Database, run: str) -> Policy | None:
    """As `show`, for a gc.

    Raises `RefusedError` if a journal of the run has another, newer policy. A catalog that was brought back from a
    backup has an old one, and the states that only the newer one keeps would go.
    """
    policy = show(database, run)
    if policy is None or (newest := _in_journals(database, run)) is None:
        return policy
    with database.read() as connection:
        is_known = user_events.has(connection, newest)
    if not is_known:
        newer, older = (Command("policy", run, *as_options(rules)) for rules in (newest.rules, policy.to_json()))
        raise RefusedError(
            "a journal has a newer policy than the catalog",
            f"store the right one: {newer} (the journal's) or {older} (the catalog's); or give gc its rules",
        )
    return policy


def _in_journals(database: Database, run: str) -> PolicySet | None:
    """The newest policy in the run's journals, whether the catalog has it or not; None if they have none."""
    run_id, first, *_ = find_called(database, run)
    with database.read() as connection:
        folders = {path.rpartition("/")[0] for path in journals_of(connection, run_id)}
        owners = reads.owners_of(connection, first)
    trust = Trust.of()
    shared = [path for folder in sorted(folders) for path in _shared_in(folder)]
    lines = [
        line
        for contents in jsonl.read_types(shared, ["policy"]).values()
        if not why_not(contents.owner, contents.home_owner, trust)
        and (contents.owner in owners or trust.is_full(contents.owner))
        for line in contents.entries
    ]
    found = [each for each in from_lines(lines, "/")[0] if isinstance(each, PolicySet) and each.run == first]
    return max(found, key=version_of_user_event, default=None)


def _shared_in(folder: str) -> list[str]:
    """The journals in a folder that users' commands write; none if the folder cannot be read."""
    with suppress(OSError):
        return [path for path in jsonl.sizes_in(folder) or () if path.rpartition("/")[2].startswith(jsonl.SHARED)]
    return []


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


def clear(database: Database, run: str) -> None:
    """Delete the policy of a run, if there is one."""
    _set(database, run, None)


def _set(database: Database, run: str, rules: Mapping[str, Any] | None) -> None:
    """Store rules, or delete them (None)."""
    run_id, first, *_ = find_called(database, run)
    before = _in_journals(database, run)  # another catalog's, perhaps, from a machine whose clock is ahead

    def decide(connection: Connection) -> tuple[Sequence[Event], Sequence[Checkpoint]]:
        if rules is None and before is None and user_events.policy_of(connection, run_id) is None:
            return [], []
        said = user_events.said_now(connection, PolicySet, first, rules)
        said = replace(said, at=later(said.at, before.at if before else None))
        return [said], user_events.files_to_tell(connection, run_id)

    record_of_run(database, decide)
