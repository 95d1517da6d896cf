"""A tree that was moved: its journals tell the same at its new place, to whoever is led there."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.disk.name_claims import FOLDER
from ckptstore.errors import NothingRestorableError
from ckptstore.retention.policy import Policy
from tests.cli.advice import follow
from tests.jobs import Job, begun

pytestmark = pytest.mark.of_files


def test_the_message_names_the_command_that_finds_it(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10)
    job.directory.rename(tmp_path / "new")
    told = "is gone, and its directory is missing or empty: .* If it was moved to NEW: ckptstore scan NEW --run run"
    with pytest.raises(NothingRestorableError, match=told):
        job.start()
    (rejected, _) = catalog.resolve("run").rejections
    assert follow(database_url, rejected.reasons[0].detail, NEW=str(tmp_path / "new")).code == 0
    assert where(job) == (10, tmp_path / "new" / "rank_1")


def test_the_old_place_is_let_go_as_the_page_says(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, 15)
    job.directory.rename(tmp_path / "new")
    catalog.scan(tmp_path / "new", run="run")
    assert catalog.plan_gc("run", Policy(keep_last=2)).removes_nothing  # the old one may be on a disk that comes back
    for rank in (0, 1):
        (job.folder(rank) / FOLDER).mkdir(parents=True)
    catalog.scan(job.directory, run="run")
    assert where(job) == (15, tmp_path / "new" / "rank_1")
    assert catalog.execute(catalog.plan_gc("run", Policy(keep_last=2))).removed == (("L1", 5),)


@pytest.mark.parametrize("below", ["", "out", "out/of/it"])
def test_a_start_finds_what_was_moved_with_its_working_directory(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    """As where the script saves to a relative path. What was there before may be somewhere above, or one of its own."""
    job, _ = begun(catalog, tmp_path / "project" / below / "ckpt", 5, 10)
    (tmp_path / "project").rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert where(job) == (10, tmp_path / "elsewhere" / below / "ckpt" / "rank_1")
    job.directory = tmp_path / "elsewhere" / below / "ckpt"
    job.save(job.begin(), 15)
    assert where(job) == (15, job.folder(1))


def test_of_a_tree_that_is_there_no_other_is_looked_for(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy in the working directory is nobody's business: only whoever scans it takes it in."""
    job, _ = begun(catalog, tmp_path / "project" / "ckpt", 5, 10)
    lost = [file.path for file in catalog.show("run", 10)]
    copy = begun(catalog, tmp_path / "copy" / "ckpt", 15, run="other")
    monkeypatch.chdir(tmp_path / "copy")
    assert where(job) == (10, job.folder(1))
    for path in lost:
        Path(path).unlink()
    assert where(job) == (5, job.folder(1))
    assert copy[0].folder(0).is_dir()


def where(job: Job) -> tuple[int, Path]:
    """The step that the run goes on from, and where its last rank finds its file."""
    plan = job.catalog.resolve(job.run).plan
    return plan.global_step, Path(plan.ranks[-1].source.path).parent
