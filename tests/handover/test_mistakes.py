"""What goes wrong on the way: full disks, files that change meanwhile, what cannot be handed over; each in one line."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Checkpoint, Content
from ckptstore.core.naming import companion_of
from ckptstore.errors import CkptstoreError, DamageError, RefusedError, UsageError
from ckptstore.handover import archive, import_, items
from ckptstore.handover import export as export_module
from ckptstore.resume.register import describe, measured
from ckptstore.training import companions
from tests import parts_bytes
from tests.handover.builders import snapshot
from tests.jobs import Job
from tests.small_disks import small_disk

pytestmark = pytest.mark.of_files


@pytest.fixture
def files(catalog: Catalog, tmp_path: Path) -> list[Checkpoint]:
    job = Job(catalog, tmp_path / "ckpt", layout="data_parallel", run="digits")
    saved = job.save(job.begin(), 5)
    companions.write(saved[0], {"random": [1]}, durable=False)
    return saved


@pytest.mark.parametrize("target", ["out", "out.tar"])
def test_a_full_disk(target: str, files: list[Checkpoint], catalog: Catalog, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "size=8k") as small:
        with pytest.raises(CkptstoreError, match=f"cannot write {small}/{target}: No space left on device"):
            catalog.export("digits", small / target)
        assert list(small.iterdir()) == []
        catalog.export("digits", tmp_path / target)
        with pytest.raises(CkptstoreError, match=f"cannot write {small}/there: No space left on device"):
            catalog.import_(tmp_path / target, small / "there", run="new")
        assert list(small.iterdir()) == []
    assert [row.run for row in catalog.runs()] == ["digits"]


@pytest.mark.parametrize("target", ["out", "out.tar"])
def test_a_file_that_changes_while_it_is_copied(
    target: str, files: list[Checkpoint], catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pieces_of = Path(files[1].path), items.pieces_of
    raw = path.read_bytes()

    def changed(content: bytes | None) -> None:
        def first(*asked: int) -> Iterator[memoryview]:
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            monkeypatch.setattr(items, "pieces_of", pieces_of)
            return pieces_of(*asked)

        monkeypatch.setattr(items, "pieces_of", first)

    for content, error, why in (
        (raw[:-1], DamageError, "it ends at byte 105"),
        (raw + b"+", DamageError, "more follows byte 106"),
        (raw[:-1] + b"?", DamageError, "not those that were recorded"),
        (None, CkptstoreError, f"cannot read {path}: No such file"),
    ):
        changed(content)
        with pytest.raises(error, match=why):
            catalog.export("digits", tmp_path / target)
        path.write_bytes(raw)
        assert not list(tmp_path.glob("*out*"))
    catalog.export("digits", tmp_path / target)


def test_a_companion_of_another_checkpoint_is_left_out(
    files: list[Checkpoint], catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(companion_of(files[0].path)).write_bytes(b"cut")
    with caplog.at_level(logging.WARNING):
        assert catalog.export("digits", tmp_path / "out").files == 2
    assert "is cut or damaged: the export is without it" in caplog.text


def test_any_companion_that_is_written_is_handed_over(
    files: list[Checkpoint], catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import refused the largest ones: they were allowed to have more bytes than it read."""
    companion = Path(companion_of(files[0].path))
    monkeypatch.setattr(companions, "MOST_BYTES", companion.stat().st_size - 60)
    companions.write(files[0], {"random": [1]}, durable=False)
    catalog.export("digits", tmp_path / "out")
    assert catalog.import_(tmp_path / "out", tmp_path / "there", run="new").run == "new"


def test_what_is_written_where_there_is_no_mindspore(
    files: list[Checkpoint], catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = export_module._version
    monkeypatch.setattr(export_module, "_version", lambda name: version("no " + name if name == "mindspore" else name))
    catalog.export("digits", tmp_path / "out")
    with archive.open_source(str(tmp_path / "out")) as opened:
        assert (opened.manifest.made.ckptstore != "", opened.manifest.made.mindspore) == (True, None)


def test_a_name_in_a_directory_that_no_manifest_holds(catalog: Catalog, tmp_path: Path) -> None:
    """Before, all was copied, and then the manifest was said to be damaged."""
    shards = tmp_path / "global_step_6"
    shards.mkdir()
    (shards / "\udcff.distcp").write_bytes(b"data")
    catalog.join("run").register(shards, global_step=6)
    with pytest.raises(UsageError, match=r"a file of it is .*; give it and its directory names in UTF-8"):
        catalog.export("run", tmp_path / "out", progress=lambda _done, _all: pytest.fail("it is copied"))


def test_an_iteration_of_mindformers_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run", rank=0, world_size=1, launch_id="L1")
    for path in sorted(parts_bytes.save(tmp_path / "ckpt", 5, count=1).iterdir()):
        told = describe(launch.facts, rank=0, path=str(path), kind="periodic", global_step=5, content=Content.PART)
        launch.record_files([measured(told)])
    for asked in ({}, {"weights_only": True}):
        with pytest.raises(RefusedError, match="an iteration, which only MindFormers can load"):
            catalog.export("run", tmp_path / "out", **asked)


def test_a_run_whose_name_is_no_directorys(files: list[Checkpoint], catalog: Catalog, tmp_path: Path) -> None:
    catalog.export("digits", tmp_path / "out")
    for name in ("a/b", ".hidden"):
        with pytest.raises(UsageError, match="has no name for a directory"):
            catalog.import_(tmp_path / "out", run=name)
    with pytest.raises(UsageError, match="there is no directory"):
        catalog.import_(tmp_path / "out", tmp_path / "none" / "there", run="new")
    for name in (" ", "-x", ".."):
        with pytest.raises(UsageError, match="cannot be the name of a"):
            catalog.import_(tmp_path / "out", run=name)
    done = catalog.import_(tmp_path / "out", tmp_path / "there", run="a/b")
    assert catalog.resolve("a/b").plan.ranks[0].source.path.startswith(done.directory)


def test_an_interrupted_import_whose_files_changed(
    files: list[Checkpoint], catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had named the directory, and recorded nothing."""
    catalog.export("digits", tmp_path / "out")
    monkeypatch.setattr(import_, "_record", lambda *_: None)
    catalog.import_(tmp_path / "out", tmp_path / "there", run="new")
    monkeypatch.undo()
    path = next((tmp_path / "there" / "rank_1").glob("*.ckpt"))
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + b"?")
    with pytest.raises(DamageError, match=f"{path} changed since the import; import it to another") as told:
        catalog.import_(tmp_path / "out", tmp_path / "there", run="new")
    assert "remove" not in told.value.hint, "checkpoints of another run may be there by now"
    path.write_bytes(raw)
    prove = import_._New.prove

    def then_gone(new: import_._New, *asked: object) -> None:
        prove(new, *asked)
        path.unlink()

    monkeypatch.setattr(import_._New, "prove", then_gone)
    with pytest.raises(CkptstoreError, match=f"{path} is not there any more"):
        catalog.import_(tmp_path / "out", tmp_path / "there", run="new")
    assert [row.run for row in catalog.runs()] == ["digits"]


@pytest.mark.parametrize("target", ["out", "out.tar"])
def test_a_link_to_an_export_is_read(target: str, files: list[Checkpoint], catalog: Catalog, tmp_path: Path) -> None:
    """Of a directory it was said that it is no export: its manifest is not a directory."""
    catalog.export("digits", tmp_path / target)
    (tmp_path / "newest").symlink_to(tmp_path / target)
    assert catalog.import_(tmp_path / "newest", tmp_path / "in", run="again").files == len(files) + 1


def test_the_export_itself_is_not_touched(files: list[Checkpoint], catalog: Catalog, tmp_path: Path) -> None:
    catalog.export("digits", tmp_path / "out")
    before = snapshot(tmp_path / "out")
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    catalog.import_(tmp_path / "out", tmp_path / "there", run="new")
    assert snapshot(tmp_path / "out") == before
    with pytest.raises(RefusedError, match="is there already"):
        catalog.export("digits", tmp_path / "there")
