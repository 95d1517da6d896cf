"""Files that a launch cannot load: when they are passed over, and when they only stop the start."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.core.model import Kind, Rule
from ckptstore.errors import CkptstoreError, DamageError
from ckptstore.mindspore import resume
from ckptstore.resume.register import describe, measured
from tests.mindspore.trainings import create_dataset, create_model, to_step_12, trained


def newest(catalog: Catalog) -> Any:
    return catalog.resolve("run")


def damage(path: Path) -> None:
    """Change a byte in the middle. The size and the times stay."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("loader", ["", "mindspore"])
def test_a_file_that_cannot_be_loaded_stops_the_start_and_is_passed_over_by_the_next(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: str
) -> None:
    """Its size and time are the recorded ones: nothing but reading it tells."""
    monkeypatch.setenv("CKPTSTORE_LOADER", loader)
    to_step_12(tmp_path)
    damage(Path(newest(catalog).plan.ranks[0].source.path))
    assert newest(catalog).plan.global_step == 12
    with pytest.raises(DamageError, match="has other bytes than those recorded .digest_mismatch.; start again"):
        to_step_12(tmp_path)
    found = newest(catalog)
    assert found.plan.global_step == 10
    reason = found.rejections[0].reasons[0]
    assert (found.rejections[0].global_step, reason.rule) == (12, Rule.DIGEST_MISMATCH)
    assert "is damaged: bring back the original from a backup, then run: ckptstore verify run" in reason.detail
    assert to_step_12(tmp_path)[0] == 10


@pytest.mark.parametrize("is_in_place", [True, False])
def test_the_original_of_a_damaged_file_is_taken_again(catalog: Catalog, tmp_path: Path, *, is_in_place: bool) -> None:
    """It is brought back to its place, or found in a backup. Before, the failed load counted against it for ever."""
    to_step_12(tmp_path)
    path = Path(newest(catalog).plan.ranks[0].source.path)
    backup = tmp_path / "backup"
    shutil.copytree(path.parent, backup)
    damage(path)
    with pytest.raises(DamageError):
        to_step_12(tmp_path)
    catalog.verify("run")
    assert newest(catalog).plan.global_step == 10
    if is_in_place:
        shutil.copy2(backup / path.name, path)
        catalog.verify("run")
    else:
        catalog.scan(backup, run="run")
    assert newest(catalog).plan.global_step == 12
    assert to_step_12(tmp_path)[0] == 12


@pytest.mark.parametrize("loader", ["", "mindspore"])
@pytest.mark.parametrize(("number", "after"), [(errno.EIO, 10), (errno.ESTALE, 12)])
def test_only_a_disk_that_has_lost_the_bytes_speaks_against_the_file(  # noqa: PLR0917
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: int, loader: str
) -> None:
    """A mount that is gone for a while must not cost the newest state."""
    to_step_12(tmp_path)

    def failing(*_: object) -> str:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setenv("CKPTSTORE_LOADER", loader)
        patched.setattr(*(resume, "digest") if loader else (os, "preadv"), failing)
        with pytest.raises(CkptstoreError, match=f"cannot be read .{os.strerror(number)}"):
            to_step_12(tmp_path)
    assert newest(catalog).plan.global_step == after
    catalog.verify("run")  # the bytes can be read again: the original is back, or another disk
    assert newest(catalog).plan.global_step == 12


@pytest.mark.parametrize("content", ["empty", "half", "zeros", "cut between two parameters"])
def test_a_torn_newest_file_does_not_stop_the_start(catalog: Catalog, tmp_path: Path, content: str) -> None:
    """It was announced before it was written; then the node lost its power. Step 6 is whole."""
    trained(tmp_path)
    whole = (tmp_path / "ckpt" / "net-1_6.ckpt").read_bytes()
    torn = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "zeros": bytes(len(whole)),
        "cut between two parameters": whole[: whole.index(b"moments.weight") - 4],
    }[content]
    joined = ckptstore.mindspore.join("run")
    joined.resume(create_model(), create_dataset())
    joined.add_source(
        str(tmp_path / "ckpt"), kind=Kind.PERIODIC, prefix="net_1", breakpoint_prefix="net", names_before=()
    )
    path = tmp_path / "ckpt" / "net-2_1_breakpoint.ckpt"
    begun = describe(joined.facts, rank=0, path=path, kind=Kind.DYING_GASP, global_step=7, optimizer_step=7)
    joined.record_files([begun])
    path.write_bytes(torn)
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 6


def test_a_file_that_mindspore_cannot_read_is_passed_over_by_the_next_start(catalog: Catalog, tmp_path: Path) -> None:
    """Its bytes are those recorded: it was cut before anybody looked at it, and by a version that did not look."""
    trained(tmp_path)
    joined = ckptstore.mindspore.join("run")
    joined.resume(create_model(), create_dataset())
    cut = tmp_path / "ckpt" / "mine.ckpt"
    cut.write_bytes((tmp_path / "ckpt" / "net-1_6.ckpt").read_bytes()[:-7])
    whole = measured(describe(joined.facts, rank=0, path=cut, kind=Kind.PERIODIC, global_step=9))
    joined.record_files([whole])
    with pytest.raises(DamageError, match="mine.ckpt is cut or damaged: MindSpore cannot read it; start again"):
        ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 6
