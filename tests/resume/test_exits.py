"""All graceful exits of a job save under one name: the next start gives their file one of its own."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Kind
from tests.jobs import Job

pytestmark = pytest.mark.of_files


@pytest.mark.parametrize("file_name", ["net", "n" * 240], ids=["renamed", "too long a name for that"])
def test_the_file_of_an_exit_that_died_before_it_had_renamed_it(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, file_name: str
) -> None:
    job = Job(catalog, tmp_path, world_size=1)
    (launch,) = job.begin()
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
