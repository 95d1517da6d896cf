"""A launch is of one run: what two runs call 777 are two launches, in whatever catalog they come together."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.core.model import Kind
from ckptstore.journal import sync
from ckptstore.journal.jsonl import journals_in
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes
from tests.jobs import begun


def trained(catalog: Catalog, run: str, directory: Path, *steps: int) -> RankLaunch:
    """A launch that has the id of its scheduler's job, and saves."""
    launch = catalog.join(run, rank=0, world_size=1, launch_id="777")
    launch.set_steps_per_epoch(10)
    launch.resolve()
    place = str(directory)
    launch.add_source(place, kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
    for step in steps:
        launch.register(ckpt_bytes.write(directory / f"net-1_{step}.ckpt", step, step), global_step=step)
    return launch


def restored(catalog: Catalog, run: str) -> str:
    plan = catalog.resolve(run).plan
    return str(plan.ranks[0].source.path)


@pytest.mark.parametrize("whole", [True, False], ids=["scan", "sync"])
@pytest.mark.parametrize("first", ["one", "two"])
def test_two_catalogs_become_one(catalog: Catalog, tmp_path: Path, first: str, *, whole: bool) -> None:
    """Before, the files of the run that came second were restored into the first, or never again."""
    steps = {"one": (1, 2), "two": (5, 6, 7)}
    for run, saved in steps.items():
        trained(connect(str(tmp_path / f"{run}.db")), run, tmp_path / "ckpt" / run, *saved)
    runs = [first, *(steps.keys() - {first})]
    for run in runs:
        if whole:
            catalog.scan(tmp_path / "ckpt" / run)
        else:
            catalog.sync(tmp_path / "ckpt" / run)
    for run, saved in steps.items():
        assert restored(catalog, run) == str(tmp_path / "ckpt" / run / f"net-1_{saved[-1]}.ckpt")
        assert {(file.run, file.launch) for file in catalog.files(run)} == {(run, "777")}
        later = catalog.join(run, rank=0, world_size=1, launch_id="778").resolve()
        assert later.launch.run == run


def test_in_one_catalog_and_one_directory(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """A lease, a plan and a journal of the one are not those of the other."""
    one = trained(catalog, "one", tmp_path, 1)
    two = trained(catalog, "two", tmp_path, 5)
    assert one.recorder is not two.recorder
    again = [catalog.join(run, rank=0, world_size=1, launch_id="778") for run in ("one", "two")]
    plans = [launch.resolve() for launch in again]
    assert [plan and plan.global_step for plan in plans] == [1, 5]
    for launch in again:
        launch.renew_lease()
    other.sync(tmp_path)
    assert [other.resolve(run).plan.global_step for run in ("one", "two")] == [1, 5]


@pytest.mark.parametrize("at_once", [1, 16 << 20], ids=["line by line", "whole"])
@pytest.mark.parametrize("order", [(2, 4), (4, 2)])
def test_one_id_for_two_launches_of_different_size(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int], at_once: int
) -> None:
    """Before, they were joined to one launch of four ranks, and a plan had files of both."""
    monkeypatch.setattr(sync, "_BYTES", at_once)
    for size in (2, 4):
        begun(connect(str(tmp_path / f"{size}.db")), tmp_path / "ckpt" / f"of_{size}", 10, world_size=size)
    first, second = order
    assert not catalog.sync(tmp_path / "ckpt" / f"of_{first}").refused
    refused = catalog.sync(tmp_path / "ckpt" / f"of_{second}").refused
    assert f"was first recorded with {first} ranks, and has {second} here" in refused[0].reason
    assert len(set(refused)) == second, "each journal is named"
    for _ in range(2):
        plan = catalog.resolve("run").plan
        assert len(plan.ranks) == first
        assert all(f"of_{first}/" in each.source.path for each in plan.ranks)
        catalog.sync(tmp_path / "ckpt")


def test_the_later_saves_of_another_launch_of_that_id_are_left_out_too(catalog: Catalog, tmp_path: Path) -> None:
    """A pin in its journal counts. So the next sync began after the line that tells how many ranks it has."""
    begun(catalog, tmp_path / "of_2", 10)
    theirs = connect(str(tmp_path / "4.db"))
    job, ranks = begun(theirs, tmp_path / "of_4", 10, world_size=4)
    theirs.pin("run", 10)
    for launch in ranks:
        pin = next(path for path in journals_in(str(tmp_path / "of_4/rank_0")) if "shared" in path)
        with Path(launch.recorder._writers[str(job.folder(launch.rank))].path).open("ab") as file:
            file.write(Path(pin).read_bytes().splitlines(keepends=True)[-1])
    assert catalog.sync(tmp_path / "of_4").refused
    job.save(ranks, 15)
    assert catalog.sync(tmp_path / "of_4").refused
    assert catalog.resolve("run").plan.global_step == 10
