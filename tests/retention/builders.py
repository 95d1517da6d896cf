"""What most tests of gc do: save some steps, collect by a policy, look what is left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.retention.execute import Collected, execute
from ckptstore.retention.plan import GcPlan, plan_gc
from ckptstore.retention.policy import Policy
from tests.jobs import Job

if TYPE_CHECKING:
    from ckptstore.api import Catalog

LAST_2 = Policy(keep_last=2)


def gc(catalog: Catalog, policy: Policy = LAST_2, **asked: object) -> Collected:
    return execute(catalog.database, plan_gc(catalog.database, "run", policy), allow_mass_delete=True, **asked)  # type: ignore[arg-type]


def removed(plan: GcPlan) -> list[tuple[str, int]]:
    return [verdict.state.key for verdict in plan.decision.remove]


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "writer-" not in path.name and path.suffix != ".jsonl"
    }


def names(directory: Path) -> set[str]:
    return {name for name in tree(directory) if "/.ckptstore/" not in name and not name.startswith(".ckptstore")}


def saved(catalog: Catalog, tmp_path: Path, *steps: int) -> Job:
    job = Job(catalog, tmp_path / "data")
    ranks = job.start()
    for launch in ranks:
        job.announce(launch)
    for step in steps:
        job.save(ranks, step)
    return job
