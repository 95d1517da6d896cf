"""All graceful exits of a job save under one name: the next start gives their file one of its own."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Kind
from ckptstore.resume.exits import keep_unknown
from ckptstore.resume.register import describe
from tests import ckpt_bytes
from tests.jobs import begun
from tests.small_disks import date_far_ahead

pytestmark = pytest.mark.of_files


@pytest.mark.parametrize("file_name", ["net", "n" * 240], ids=["renamed", "too long a name for that"])
def test_the_file_of_an_exit_that_died_before_it_had_renamed_it(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, file_name: str
) -> None:
    job, (launch,) = begun(catalog, tmp_path, world_size=1)
    path = job.write(launch, 10, name=f"{file_name}_train.ckpt")
    launch.add_source(
        str(path.parent), kind=Kind.GRACEFUL_EXIT, prefix=file_name, breakpoint_prefix="", names_before=()
    )
    launch.register(path, kind="graceful_exit", global_step=10)
    job.begin()
    is_renamed = file_name == "net"
    assert path.exists() != is_renamed
    assert (f"{path} could not be renamed (File name too long)" in caplog.text) != is_renamed
    kept = path.with_name("net_train-step_10.ckpt") if is_renamed else path
    assert [rank.source.path for rank in catalog.resolve("run").plan.ranks] == [str(kept)]


@pytest.mark.parametrize(("has_count", "step"), [(True, 17), (False, 10)])
def test_no_name_that_an_unregistered_exit_is_kept_under_proves_a_step(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_count: bool, step: int
) -> None:
    """One step had brought no update. An exit by a signal leaves nothing but the optimizer's counter."""
    job, (launch,) = begun(catalog, tmp_path, 10, world_size=1)
    path = job.folder(0) / "net_train.ckpt"
    told = ckpt_bytes.checkpoint(16)
    counted = ckpt_bytes.value("step_num", "Int64", (), (17).to_bytes(8, "little"))
    bare = told[: told.index(b"step_num") - 4]
    path.write_bytes(bare + counted if has_count else bare)
    path.with_suffix(".mindir").write_bytes(b"graph")
    kept = keep_unknown(str(path))
    assert kept == str(path.with_name("net_train-step_17.ckpt" if has_count else "net-kept_train.ckpt"))
    assert [graph.stem for graph in path.parent.glob("*.mindir")] == [Path(kept).stem]
    launch.add_source(str(path.parent), kind=Kind.GRACEFUL_EXIT, prefix="net", breakpoint_prefix="", names_before=())
    assert job.begin()[0].facts.parent_step == step


def test_an_exit_of_a_time_that_no_catalog_holds_stops_no_start(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was announced, and its process died before it was recorded."""
    job, (launch,) = begun(catalog, tmp_path, 10, world_size=1)
    path = job.write(launch, 20, name="net_train.ckpt")
    launch.add_source(str(path.parent), kind=Kind.GRACEFUL_EXIT, prefix="net", breakpoint_prefix="", names_before=())
    launch.record_files([describe(launch.facts, rank=0, path=path, kind="graceful_exit", global_step=20)])
    date_far_ahead(path)
    assert job.begin()[0].facts.parent_step == 10
    assert f"{path} could not be renamed ({path}: its modification time in ns is" in caplog.text
