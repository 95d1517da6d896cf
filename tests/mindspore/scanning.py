"""Scans the tree of a real run into an empty catalog, and holds that against the one that was kept live."""

import shutil
from pathlib import Path

from ckptstore.api import Catalog, connect
from ckptstore.core.model import FileState, Kind
from ckptstore.disk.name_claims import FOLDER


def scan_and_compare(
    live: Catalog, run: str, directory: Path, *, world_size: int, replicas: str | None = None, same_files: bool = True
) -> Catalog:
    """The catalog that a scan of `directory` makes: of the same files, steps and plan as `live` has.

    The journals, which would tell it all, are removed. `replicas` is who is whose replica, which no file tells. Of
    whole files of one state another may be chosen where `same_files` is false.
    """
    for folder in list(directory.rglob(FOLDER)):
        shutil.rmtree(folder)
    number = len(list(directory.parent.glob(f"{directory.name}.scanned-*.db")))
    scanned = connect(f"{directory}.scanned-{number}.db")
    done = scanned.scan(directory, run=run, world_size=world_size)
    assert done.uncertain == ()
    assert steps(scanned, run) == steps(live, run)
    found, known = plan_of(scanned, run, replicas=replicas), plan_of(live, run)
    assert found[0] == known[0]
    assert not same_files or found == known
    again = scanned.scan(directory, run=run, world_size=world_size)
    assert (again.adopted, again.damaged, again.missing) == ((), (), ())
    return scanned


def steps(catalog: Catalog, run: str) -> dict[str, tuple[int, int]]:
    """Step and rank of every file that is there."""
    return {file.path: (file.global_step, file.rank) for file in catalog.files(run) if file.state is FileState.COMPLETE}


def plan_of(catalog: Catalog, run: str, *, replicas: str | None = None) -> tuple[int, list[tuple[int, int, Kind, str]]]:
    """The step of the restore plan, and whose file of what kind each rank loads."""
    plan = catalog.resolve(run, replicas=replicas).plan
    return plan.global_step, [(item.rank, item.source.rank, item.source.kind, item.source.path) for item in plan.ranks]
