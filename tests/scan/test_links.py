"""A scan of what the catalog knows under another path: through a link, a second mount, or a link inside the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from ckptstore.core.model import FileState, Kind
from ckptstore.errors import RefusedError
from ckptstore.storage import identity

from .test_scan import save

if TYPE_CHECKING:
    from ckptstore.ops.connect import Catalog
    from ckptstore.ops.launch import RankLaunch


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


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("run", ["job", "other"])
def test_through_a_link_above_it(catalog: Catalog, tmp_path: Path, run: str, *, dry_run: bool) -> None:
    root = tree_of(catalog, tmp_path)
    before = catalog.files()
    link = linked(tmp_path, root.parent)
    with pytest.raises(RefusedError) as refused:
        catalog.scan(link / "job", run=run, world_size=2, dry_run=dry_run)
    assert refused.value.exit_code == 5
    told = f"{link}/job/rank_0 is {root}/rank_0, which the catalog knows of run 'job': its files would count as two"
    assert str(refused.value) == f"{told}; scan {root}, it is the same"
    assert catalog.files() == before


def test_what_to_scan_instead_is_what_was_meant(catalog: Catalog, tmp_path: Path) -> None:
    """From above and from below the directory that is a link."""
    root = tree_of(catalog, tmp_path)
    (tmp_path / "other").mkdir()
    linked(tmp_path / "other", root, "job")
    for asked, instead in (
        (linked(tmp_path, root), root),
        (tmp_path / "link" / "rank_1", root / "rank_1"),
        (linked(tmp_path, root.parent, "above"), root.parent),
        (linked(tmp_path, root / "rank_1", "one"), root / "rank_1"),
    ):
        with pytest.raises(RefusedError, match=f"; scan {instead}, it is the same$"):
            catalog.scan(asked, run="other")
        assert catalog.scan(instead, run="job").adopted == ()


def test_dots_in_a_path_make_no_second_one(catalog: Catalog, tmp_path: Path) -> None:
    root = tree_of(catalog, tmp_path)
    scanned = catalog.scan(Path(f"{root.parent}/../{root.parent.name}/{root.name}"), run="job")
    assert scanned.adopted == ()
    assert {Path(file.path).parents[1] for file in catalog.files()} == {root}


def test_the_same_path_its_parent_and_its_child_are_scanned(catalog: Catalog, tmp_path: Path) -> None:
    root = tree_of(catalog, tmp_path)
    linked(tmp_path, root)
    for directory in (root, root.parent, tmp_path, root / "rank_0"):
        done = catalog.scan(directory, run="job", world_size=2)
        assert (done.adopted, len(catalog.files())) == ((), 4)


def test_a_link_inside_the_tree_that_a_rank_saves_through(catalog: Catalog, tmp_path: Path) -> None:
    """Its path is below the root, and the walk, which follows no link, finds the files under another one below it."""
    root = tmp_path / "job"
    (path,) = save(root / "disk7", 3, prefix="net_1")
    linked(root, root / "disk7", "now")
    saving(catalog, root / "now" / "rank_0").register(
        root / "now" / "rank_0" / path.name, global_step=3, optimizer_step=3
    )
    with pytest.raises(RefusedError, match=f"{root}/disk7/rank_0 is {root}/now/rank_0, .* run 'job'"):
        catalog.scan(root)
    assert len(catalog.files()) == 1


def test_where_a_rank_saves_and_nothing_is_registered_yet(catalog: Catalog, tmp_path: Path) -> None:
    save(tmp_path / "job", 3, prefix="net_1")
    saving(catalog, tmp_path / "job" / "rank_0")
    with pytest.raises(RefusedError, match="of run 'job'"):
        catalog.scan(linked(tmp_path, tmp_path / "job"), run="other")
    assert catalog.files() == []


def test_a_directory_of_ttp_below_one_that_a_rank_saves_to(catalog: Catalog, tmp_path: Path) -> None:
    from tests import ckpt_bytes

    home = tmp_path / "job"
    ckpt_bytes.write(home / "ttp_saved_checkpoints-step_3" / "rank_0" / "ttp_rank_0-1_3.ckpt", 3, 3)
    launch = catalog.join("job", launch_id="L1")
    launch.add_source(str(home), kind=Kind.TTP, prefix="", breakpoint_prefix="", names_before=())
    inside = linked(tmp_path, home) / "ttp_saved_checkpoints-step_3"
    with pytest.raises(RefusedError, match=f"{tmp_path}/link is {home}, .* run 'job'"):
        catalog.scan(inside, run="other")


def test_a_directory_that_is_known_under_both_paths(catalog: Catalog, tmp_path: Path) -> None:
    """A run's disk was moved: the first launch has one path, the second the other. Either is scanned, and adds nothing.

    Nor does it take what the second launch's rank has not registered yet; what nobody has is taken once.
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
    reasons = {Path(each.path).name: each.reason for each in done.skipped if each.path.startswith(f"{root}/")}
    assert reasons["net_1-2_4.ckpt"] == f"it is {now}/rank_0/net_1-2_4.ckpt, of run 'job'"
    assert reasons["net_1-3_2.ckpt"] == f"it is {now}/rank_0/net_1-3_2.ckpt, where a rank saves"
    assert {file.path for file in done.adopted} <= {f"{root}/rank_0/other-1_3.ckpt"}
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


def test_a_tree_that_was_renamed_is_scanned_under_its_new_name(catalog: Catalog, tmp_path: Path) -> None:
    root = tree_of(catalog, tmp_path)
    root.rename(tmp_path / "renamed")
    assert len(catalog.scan(tmp_path / "renamed", world_size=2).adopted) == 4


def test_a_copy_is_another_tree(catalog: Catalog, tmp_path: Path) -> None:
    root = tree_of(catalog, tmp_path)
    shutil.copytree(root, tmp_path / "copy", copy_function=os.link)
    assert len(catalog.scan(tmp_path / "copy", world_size=2).adopted) == 4


def test_a_path_that_only_the_past_has_keeps_nobody(catalog: Catalog, tmp_path: Path) -> None:
    """All files were deleted, and recorded so; the directory is used again under another path."""
    root = tree_of(catalog, tmp_path)
    for path in root.rglob("*.ckpt"):
        path.unlink()
    catalog.scan(root, world_size=2)
    assert {file.state for file in catalog.files()} == {FileState.MISSING}
    for rank in (0, 1):
        save(root, 3, 6, rank=rank)
    assert len(catalog.scan(linked(tmp_path, root), world_size=2).adopted) == 4


TWICE = """
import sys
from ckptstore.errors import RefusedError
from ckptstore.ops.connect import connect
catalog, tree = connect(sys.argv[1]), sys.argv[2]
print(len(catalog.scan(tree + "/one", run="job", world_size=1).adopted))
try:
    catalog.scan(tree + "/two", run="other", world_size=1)
except RefusedError as error:
    print(error)
print(len(catalog.scan(tree, run="job", world_size=1).adopted))
print(len(connect(sys.argv[1] + "2").scan(tree, run="job", world_size=1).adopted))
"""


def test_a_file_system_that_is_mounted_twice(sqlite_url: str, tmp_path: Path) -> None:
    """No link tells it: one directory under two paths."""
    tree = tmp_path / "tree"
    save(tree / "one", 3, 6)
    (tree / "two").mkdir()
    mount = f"mount --bind {tree}/one {tree}/two"
    apart = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*apart, mount], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    script = tmp_path / "twice.py"
    script.write_text(TWICE)
    call = f"{mount} && {sys.executable} {script} {sqlite_url} {tree}"
    done = subprocess.run([*apart, call], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = f"{tree}/two/rank_0 is {tree}/one/rank_0, which the catalog knows of run 'job'"
    first, second, third, fourth = done.stdout.splitlines()
    assert (first, third, fourth) == ("2", "0", "2")
    assert second.startswith(told)


def test_an_unlucky_name_is_a_directory_as_others(catalog: Catalog, tmp_path: Path) -> None:
    """What the database makes of a path must be its directory, whatever is in its name."""
    root = tmp_path / "50% of_it's ünïcode ☃" / "job.ckpt"
    save(root, 3)
    catalog.scan(root, run="job", world_size=1)
    with pytest.raises(RefusedError, match="of run 'job'"):
        catalog.scan(linked(tmp_path, root), run="other")


@pytest.mark.parametrize("saves", [2, 12])
def test_history_costs_no_look_and_no_statement(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    """Each directory of the catalog is looked at once, however many files it has."""
    for run in ("one", "two"):
        for rank in range(3):
            save(tmp_path / run, *range(1, saves + 1), rank=rank)
        catalog.scan(tmp_path / run, world_size=3)
    save(tmp_path / "new", 3)
    looked: list[str] = []
    real = identity.of_directory
    monkeypatch.setattr(identity, "of_directory", lambda path: looked.append(path) or real(path))
    asked: list[str] = []

    def note(*args: Any) -> None:
        is_catalog = args[0].engine.url.database != ":memory:"
        asked.extend([args[2]] if is_catalog and args[2].startswith("SELECT") else [])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    catalog.scan(tmp_path / "new", world_size=1, dry_run=True)
    sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert len(looked) == len(set(looked)) == 7
    assert sum("rtrim" in statement for statement in asked) == 1
    assert len(asked) == 5
