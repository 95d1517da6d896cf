"""A scan of what the catalog knows: through a link above it, with a link in it, or where a disk was moved since."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog
from ckptstore.core.model import FileState, Kind
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes
from tests.scan.builders import save


def linked(tmp_path: Path, to: Path, name: str = "link") -> Path:
    link = tmp_path / name
    link.symlink_to(to)
    return link


def saving(catalog: Catalog, home: Path, run: str = "job") -> RankLaunch:
    launch = catalog.join(run, launch_id=f"live-{run}")
    launch.set_steps_per_epoch(5)
    launch.add_source(str(home), kind=Kind.PERIODIC, prefix="net_1", breakpoint_prefix="net", names_before=())
    return launch


def tree_of(catalog: Catalog, tmp_path: Path) -> Path:
    root = tmp_path / "jobs" / "job"
    for rank in (0, 1):
        save(root, 3, 6, rank=rank)
    catalog.scan(root, world_size=2)
    return root


@pytest.mark.parametrize("run", ["job", "other"])
@pytest.mark.parametrize(
    ("link", "place"),
    [
        ("jobs", "link/job"),
        ("jobs/job", "link"),
        ("jobs/job", "link/rank_1"),
        ("jobs/job/rank_1", "link"),
        ("jobs", "."),
        ("jobs", "jobs/../jobs/job"),
        ("jobs/job", "jobs/job/rank_0"),
    ],
)
def test_whatever_path_leads_to_a_tree_it_is_known(
    catalog: Catalog, tmp_path: Path, link: str, place: str, run: str
) -> None:
    tree_of(catalog, tmp_path)
    linked(tmp_path, tmp_path / link)
    before = catalog.files()
    for dry_run in (True, False):
        done = catalog.scan(tmp_path / place, run=run, world_size=2, dry_run=dry_run)
        assert (done.adopted, done.missing) == ((), ())
        reasons = {each.reason for each in done.skipped if each.reason != "a link"}
        assert reasons == (set() if run == "job" else {"it is of run 'job'"})
        assert catalog.files() == before


def test_a_tree_behind_a_link_is_of_the_run_of_the_links_name(catalog: Catalog, tmp_path: Path) -> None:
    save(tmp_path / "disk7", 3)
    done = catalog.scan(linked(tmp_path, tmp_path / "disk7", "llama"), world_size=1)
    assert (done.run, [file.path for file in done.adopted]) == ("llama", [f"{tmp_path}/disk7/rank_0/net-1_3.ckpt"])


def test_a_link_inside_the_tree_that_a_rank_saves_through(catalog: Catalog, root: Path) -> None:
    """The walk follows no link, and finds the files under the path that they were registered by."""
    (path,) = save(root / "disk7", 3, prefix="net_1")
    linked(root, root / "disk7", "now")
    through = root / "now" / "rank_0"
    saving(catalog, through).register(through / path.name, global_step=3, optimizer_step=3)
    assert catalog.scan(root).adopted == ()
    assert [file.path for file in catalog.files()] == [str(path)]


def test_where_a_rank_saves_and_nothing_is_registered_yet(catalog: Catalog, tmp_path: Path) -> None:
    """Whether the rank saves through a link, or the scan goes through one, or both."""
    save(tmp_path / "job", 3, prefix="net_1")
    link = linked(tmp_path, tmp_path / "job")
    saving(catalog, link / "rank_0")
    for root in (tmp_path / "job", link):
        assert catalog.scan(root, run="job").adopted == ()
    assert catalog.files() == []


def test_a_directory_of_ttp_below_one_that_a_rank_saves_to(catalog: Catalog, tmp_path: Path) -> None:
    home = tmp_path / "job"
    ckpt_bytes.write(home / "ttp_saved_checkpoints-step_3" / "rank_0" / "ttp_rank_0-1_3.ckpt", 3, 3)
    launch = catalog.join("job", launch_id="L1")
    launch.add_source(str(home), kind=Kind.TTP, prefix="", breakpoint_prefix="", names_before=())
    inside = linked(tmp_path, home) / "ttp_saved_checkpoints-step_3"
    assert catalog.scan(inside, run="job", dry_run=True).adopted == ()


def test_a_directory_that_is_known_under_both_paths(catalog: Catalog, tmp_path: Path) -> None:
    """A run's disk was moved and a link left: the first launch has one path, the second the other.

    A scan of either adds nothing, nor what the second launch's rank has not registered yet; what nobody has is taken
    once.
    """
    root = tree_of(catalog, tmp_path)
    now = tmp_path / "now"
    root.rename(now)
    root.symlink_to(now)
    launch = saving(catalog, now / "rank_0")
    (path,) = save(now, 9, prefix="net_1")
    launch.register(path, global_step=9, optimizer_step=9)
    save(now, 12, prefix="net_1")  # not registered yet
    save(now, 3, prefix="other")
    recorded = len(catalog.files())
    done = catalog.scan(root, run="job", dry_run=True, world_size=2)
    reasons = {each.path: each.reason for each in done.skipped}
    old = [f"rank_{rank}/net-{name}.ckpt" for rank in (0, 1) for name in ("1_3", "2_1")]
    assert reasons == {f"{now}/{name}": f"it is {root}/{name}, of run 'job'" for name in old}
    assert {file.path for file in done.adopted} <= {f"{now}/rank_0/other-1_3.ckpt"}
    for directory in (root, now, root, now):
        catalog.scan(directory, run="job", world_size=2)
    names = [(Path(file.path).parent.name, Path(file.path).name) for file in catalog.files()]
    assert len(names) == len(set(names)), "no file is there twice"
    assert len(names) - recorded <= 2


def test_a_root_that_is_gone_stops_nothing(catalog: Catalog, tmp_path: Path) -> None:
    root = tree_of(catalog, tmp_path)
    shutil.rmtree(root)
    root.write_text("no directory any more")
    save(tmp_path / "new", 3)
    assert len(catalog.scan(tmp_path / "new", world_size=1).adopted) == 1


@pytest.mark.parametrize("is_renamed", [True, False], ids=["renamed", "copied by hard links"])
def test_a_tree_is_scanned_under_its_new_name(catalog: Catalog, tmp_path: Path, *, is_renamed: bool) -> None:
    root, new = tree_of(catalog, tmp_path), tmp_path / "new"
    root.rename(new) if is_renamed else shutil.copytree(root, new, copy_function=os.link)
    catalog.scan(new, run="job", world_size=2)
    assert len([file for file in catalog.files() if file.path.startswith(f"{new}/")]) == 4


def test_files_that_are_back_behind_a_link(catalog: Catalog, tmp_path: Path) -> None:
    """All files were deleted, and recorded so; then they were brought back, and the directory has a second path."""
    root = tree_of(catalog, tmp_path)
    for path in root.rglob("*.ckpt"):
        path.unlink()
    catalog.scan(root, world_size=2)
    assert {file.state for file in catalog.files()} == {FileState.MISSING}
    for rank in (0, 1):
        save(root, 3, 6, rank=rank)
    catalog.scan(linked(tmp_path, root), run="job", world_size=2)
    assert [file.state for file in catalog.files()] == [FileState.COMPLETE] * 4


def test_an_unlucky_name_is_a_directory_as_others(catalog: Catalog, tmp_path: Path) -> None:
    """What the database makes of a path must be its directory, whatever is in its name. Here its disk was moved."""
    root = tmp_path / "50% of_it's ünïcode ☃" / "job.ckpt"
    save(root, 3)
    catalog.scan(root, run="job", world_size=1)
    now = tmp_path / "now"
    root.rename(now)
    root.symlink_to(now)
    for directory in (root, now):
        (skipped,) = catalog.scan(directory, run="other", world_size=1).skipped
        assert skipped.reason == f"it is {root}/rank_0/net-1_3.ckpt, of run 'job'"


@pytest.mark.parametrize("saves", [2, 12])
def test_history_costs_no_statement(catalog: Catalog, tmp_path: Path, saves: int) -> None:
    for run in ("one", "two"):
        for rank in range(3):
            save(tmp_path / run, *range(1, saves + 1), rank=rank)
        catalog.scan(tmp_path / run, world_size=3)
    save(tmp_path / "new", 3)
    asked: list[str] = []

    def note(*args: Any) -> None:
        is_catalog = args[0].engine.url.database != ":memory:"
        asked.extend([args[2]] if is_catalog and args[2].startswith("SELECT") else [])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    catalog.scan(tmp_path / "new", world_size=1, dry_run=True)
    sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert sum("rtrim" in statement for statement in asked) == 1
    assert len(asked) == 9
