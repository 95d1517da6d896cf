"""Strategy and group info files are kept with the launch that wrote them, and tell who is whose replica."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog
from ckptstore.catalog import reads
from ckptstore.core.model import Kind, Rule, launch_key
from ckptstore.training.rank_launch import RankLaunch
from tests.formats.layouts import write_group_info, write_spreads
from tests.jobs import Job, known_of, started
from tests.spreads import spread


def rows(catalog: Catalog, table: str) -> int:
    with catalog.database.read() as connection:
        return int(connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one())


def replicas(launch: RankLaunch) -> tuple[str, list[list[int]]]:
    said = known_of(launch).layout.to_json()
    return said["source"], said["groups"]


def test_a_hybrid_job_is_resumed_with_a_replica_after_its_strategy_was_overwritten(
    catalog: Catalog, tmp_path: Path
) -> None:
    """Two stages of two replicas each: ranks 0 and 1 hold the same, and 2 and 3. The next launch has another layout."""
    job, ranks = started(catalog, tmp_path / "ckpt", world_size=4)
    paths = [tmp_path / f"strategy_{stage}.ckpt" for stage in (0, 1)]
    for rank, launch in enumerate(ranks):
        stage = rank // 2
        write_spreads(paths[stage], stage, [spread(grid=(2,), stage=stage)])
        assert launch.keep_layout_file(str(paths[stage]))
    assert replicas(ranks[3]) == ("strategy", [[0, 1], [2, 3]])
    assert rows(catalog, "strategies") == rows(catalog, "launch_strategies") == 2
    files = job.save(ranks, 15)
    for lost in (0, 3):
        Path(files[lost].path).unlink()
    later = job.start()
    for path, stage in zip(paths, (0, 1), strict=True):
        write_spreads(path, stage, [spread(grid=(2,), tensor_map=(0,), stage=stage)])
        later[0].keep_layout_file(str(path))
    assert replicas(later[0]) == ("strategy", [])
    plan = catalog.resolve("run").plan
    assert [each.source.rank for each in plan.ranks] == [1, 1, 2, 2]


@pytest.mark.of_files
def test_the_files_of_every_rank_are_needed_for_its_groups(catalog: Catalog, tmp_path: Path) -> None:
    _, ranks = started(catalog, tmp_path, world_size=4)
    for rank in (0, 1, 2):
        path = write_group_info(tmp_path / f"group_{rank}.pb", {}, [rank % 2, rank % 2 + 2])
        assert ranks[rank].keep_layout_file(str(path))
    assert replicas(ranks[0]) == ("group_info", [[0, 2], [1, 3]])


@pytest.mark.of_files
@pytest.mark.parametrize("content", [b"", b"no strategy", b"\x08\x01\x12\xff", None])
def test_what_cannot_be_used_is_said_and_left(
    catalog: Catalog, tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    (launch, _) = Job(catalog, tmp_path).start()
    path = tmp_path / "strategy.ckpt"
    if content is not None:
        path.write_bytes(content)
    assert not launch.keep_layout_file(str(path))
    assert str(path) in caplog.text
    assert rows(catalog, "strategies") == 0


@pytest.mark.of_files
def test_a_strategy_of_another_job_is_kept_and_proves_nothing(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, ranks = started(catalog, tmp_path)
    path = write_spreads(tmp_path / "strategy.ckpt", 0, [spread(grid=(2, 4))])
    assert ranks[0].keep_layout_file(str(path))
    assert replicas(ranks[0]) == ("stand_alone", [])
    assert "the job has 2" in caplog.text
    files = job.save(ranks, 15)
    Path(files[0].path).unlink()
    (rejection,) = catalog.resolve("run").rejections
    assert [reason.rule for reason in rejection.reasons] == [Rule.MISSING_FILE]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_files_that_contradict_each_other_leave_no_replicas(
    catalog: Catalog, other: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, order: tuple[int, int]
) -> None:
    """Whichever came first, and where journals are read again."""
    ranks = Job(catalog, tmp_path / "ckpt", world_size=4).start()
    grids = ((2, 2), (2, 1))  # of another number of ranks in a stage
    paths = [
        write_spreads(tmp_path / f"strategy_{rank}.ckpt", 0, [spread(grid=grid, tensor_map=(0, -1))])
        for rank, grid in enumerate(grids)
    ]
    for launch in ranks:
        launch.add_source(
            str(tmp_path / "ckpt"), kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=()
        )
    for rank in order:
        assert ranks[rank].keep_layout_file(str(paths[rank]))
        if rank == order[0]:
            assert replicas(ranks[0])[1] != []
    assert replicas(ranks[0]) == ("stand_alone", [])
    assert "Launch L1 has no replicas by these files" in caplog.text
    other.sync(tmp_path)
    with other.database.read() as connection:
        found = reads.launch(connection, launch_key("run", "L1"))
    assert (found.layout.source, found.layout.groups) == ("stand_alone", ())


@pytest.mark.of_files
@pytest.mark.parametrize("bound", ["MOST_BYTES", "MOST_CONTENT"])
def test_a_file_that_is_too_large_is_not_kept(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    (launch, _) = Job(catalog, tmp_path).start()
    path = write_spreads(tmp_path / "strategy.ckpt", 0, [spread(grid=(2,))])
    monkeypatch.setattr(f"ckptstore.training.layout_files.{bound}", 10)
    assert not launch.keep_layout_file(str(path))
    assert "it is not kept, nor used" in caplog.text


@pytest.mark.of_files
def test_data_parallel_needs_none(catalog: Catalog, tmp_path: Path) -> None:
    (launch, _) = Job(catalog, tmp_path, layout="data_parallel").start()
    assert not launch.keep_layout_file(str(write_spreads(tmp_path / "s.ckpt", 0, [spread(grid=(2,))])))
    assert replicas(launch) == ("data_parallel", [[0, 1]])
