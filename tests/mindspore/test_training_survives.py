"""Nothing that the registrar meets ends training, each trouble is said once; and ranks that make up one state."""

import errno
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mindspore.train import Callback, CheckpointConfig, ModelCheckpoint

from ckptstore.api import Catalog
from ckptstore.catalog import reads
from ckptstore.disk import name_claims
from ckptstore.disk.files import listed
from ckptstore.training import save_places
from tests.mindspore.trainings import DoAt, Job, complaints, saving


def train(directory: Path, *more: Callback, launch: Any = None, **settings: Any) -> Any:
    """One launch to the end of its second epoch, with a save after every step."""
    job = Job(launch=launch)
    job.train(saving(directory, save_checkpoint_steps=1), *more, job.registrar(**settings), epochs=2)
    return job.launch


def test_the_catalog_is_deleted_under_a_training(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptstore.training import recorder_thread

    monkeypatch.setattr(recorder_thread, "FLUSH_SECONDS", 0.5)
    where = Path(catalog.database.file)

    def delete() -> None:
        while not where.is_dir():  # the recorder may be making it anew at this moment
            for path in where.parent.glob(f"{where.name}*"):
                path.unlink(missing_ok=True)
            with suppress(FileExistsError):
                where.mkdir()

    train(tmp_path / "ckpt", DoAt(2, delete))
    assert (tmp_path / "ckpt" / "net-2_6.ckpt").exists()
    said = complaints(caplog)
    assert len([line for line in said if "Records are in the journals, and reach the catalog later" in line]) == 1
    assert len([line for line in said if "the next start takes them up" in line]) == 1
    assert len(said) == len(set(said))


def test_a_directory_that_is_gone(catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """MindSpore itself cannot save into it any more: its own error is what ends training, and ours stay out of it."""
    with pytest.raises((FileNotFoundError, RuntimeError, ValueError, OSError)) as failure:
        train(tmp_path / "ckpt", DoAt(2, lambda: (tmp_path / "ckpt").rename(tmp_path / "gone")))
    assert "ckptstore" not in str(failure.value)
    assert not [line for line in complaints(caplog) if "failed in" in line]
    assert not (tmp_path / "ckpt").exists()  # its disk may have been unmounted: what is saved there would fill another


def test_a_directory_that_cannot_be_written_is_said_once(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(name_claims, "claim", refuse)
    launch = train(tmp_path / "ckpt")
    assert launch.global_step == 12
    assert caplog.text.count("cannot see who else saves in") == 1


@pytest.mark.parametrize(("named_later", "failed"), [(False, 4), (True, 1)])
def test_a_directory_that_cannot_be_listed_for_a_moment(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, named_later: bool, failed: int
) -> None:
    """It was never announced, or the save that came with its name was not registered."""
    left = [OSError(errno.EIO, "Input/output error")] * failed
    monkeypatch.setattr(save_places, "listed", lambda path: left.pop() if left else listed(path))
    job = Job()
    where: Any = str(tmp_path / "ckpt")
    ckpt_cb = ModelCheckpoint("net", (lambda _: where) if named_later else where, CheckpointConfig(1))
    job.train(ckpt_cb, job.registrar())
    assert [file.global_step for file in catalog.files("run")] == [6, 5, 4, 3, 2, 1]
    with catalog.database.read() as connection:
        assert [source.directory for source in reads.sources_in(connection, [where])] == [where]
