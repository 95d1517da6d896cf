"""Exports that somebody made to do harm, or that another program made: refused, and nothing is there afterwards."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ckptstore.api import Catalog
from ckptstore.catalog import reads
from ckptstore.core.model import FileState
from ckptstore.core.naming import companion_of
from ckptstore.errors import CkptstoreError, DamageError, UsageError
from ckptstore.handover import manifest as manifests
from ckptstore.handover.archive import open_source
from ckptstore.handover.manifest import Manifest, Part, path_of
from tests.jobs import begun

pytestmark = pytest.mark.of_files


@pytest.fixture
def exported(catalog: Catalog, tmp_path: Path) -> Path:
    """A directory that was exported; beside it lies the same as a tar file."""
    begun(catalog, tmp_path / "ckpt", 5, layout="data_parallel", run="digits")
    catalog.export("digits", tmp_path / "out")
    catalog.export("digits", tmp_path / "out.tar")
    return tmp_path / "out"


@pytest.fixture
def refused(catalog: Catalog, exported: Path, tmp_path: Path) -> Callable[[Path], CkptstoreError]:
    """Imports, and sees that all is as before."""

    def refused(source: Path) -> CkptstoreError:
        there = sorted(tmp_path.rglob("*"))
        with pytest.raises((DamageError, UsageError)) as raised:
            catalog.import_(source, tmp_path / "there", run="new")
        assert sorted(tmp_path.rglob("*")) == there
        with catalog.database.read() as connection:
            assert reads.run_names(connection) == ["digits"]
        return raised.value

    return refused


def place_of(place: str) -> Callable[[Manifest], dict[str, Any]]:
    """One of its files lies elsewhere."""

    def changes(manifest: Manifest) -> dict[str, Any]:
        parts, files = list(manifest.parts), list(manifest.files)
        parts[0] = Part(place, parts[0].size, parts[0].digest)
        files[0] = replace(files[0], path=path_of(place))
        return {"parts": tuple(parts), "files": tuple(files)}

    return changes


def files(**changed: Any) -> Callable[[Manifest], dict[str, Any]]:
    return lambda manifest: {"files": (replace(manifest.files[0], **changed), *manifest.files[1:])}


CHANGES = [
    place_of("rank_0/../../evil.ckpt"),
    place_of("../evil.ckpt"),
    place_of("/etc/evil.ckpt"),
    place_of("evil.ckpt"),
    place_of("elsewhere/evil.ckpt"),
    place_of("rank_0/./evil.ckpt"),
    place_of("rank_0//evil.ckpt"),
    place_of("rank_0/.ckptstore/shared-1.jsonl"),
    place_of("rank_0/evil\0.ckpt"),
    place_of(f"rank_0/{'x' * 3000}.ckpt"),
    place_of("rank_1/net-1_5.ckpt"),  # as the other rank's
    place_of("rank_1/net-1_5.ckpt/evil.ckpt"),  # below the other rank's
    files(size=7),
    files(digest="0" * 64),
    files(rank=2),
    files(rank=-1),
    files(run="another"),
    files(global_step=6),
    files(state=FileState.DAMAGED),
    files(strategy_file=path_of("rank_0/strategy/none.ckpt")),
    files(strategy_file="/../../etc/passwd"),
    files(metrics={"loss": float("nan")}),
    lambda manifest: {"files": manifest.files[:1]},
    lambda manifest: {"parts": manifest.parts[:1]},
    lambda manifest: {"parts": (*manifest.parts, Part("rank_0/more.ckpt", 1, "0" * 64))},
    lambda manifest: {"parts": (Part(manifest.parts[0].place, 1 << 62, "0" * 64), *manifest.parts[1:])},
    lambda manifest: {"launch": replace(manifest.launch, world_size=200_000)},
    lambda manifest: {"launch": replace(manifest.launch, world_size=1)},
    lambda manifest: {"launch": replace(manifest.launch, id="")},
    lambda manifest: {"run": "x" * 300},
]


def test_a_manifest_that_says_what_none_says(exported: Path, refused: Callable[[Path], CkptstoreError]) -> None:
    with open_source(str(exported)) as opened:
        manifest = opened.manifest
    tar = exported.with_suffix(".tar")
    for changes in CHANGES:
        (exported / "manifest.json").write_bytes(manifests.to_text(replace(manifest, **changes(manifest))))
        assert "manifest" in str(refused(exported))
        with tarfile.open(tar, "w", format=tarfile.GNU_FORMAT) as packed:
            for name in ("manifest.json", *(part.place for part in manifest.parts)):
                packed.add(exported / name, name)
        refused(tar)


@pytest.mark.parametrize("content", [b"[[1, 2]]", b'["ab"]', b"[]", b"1", b"null"])
def test_a_companion_that_is_none(content: bytes, exported: Path, refused: Callable[[Path], CkptstoreError]) -> None:
    """Before, the first one ended in a `TypeError`, the next two were taken, and the others named a path of no file."""
    with open_source(str(exported)) as opened:
        manifest = opened.manifest
    raw = b'{"content": %b}' % content
    place = manifests.place_of(companion_of(manifest.files[0].path))
    (exported / place).write_bytes(raw)
    parts = (*manifest.parts, Part(place, len(raw), blake3(raw).hexdigest()))
    (exported / "manifest.json").write_bytes(manifests.to_text(replace(manifest, parts=parts)))
    assert refused(exported).message == f"{place} is no companion"


def test_what_is_no_manifest(exported: Path, refused: Callable[[Path], CkptstoreError]) -> None:
    for raw, why in (
        (b"", "damaged"),
        (b"[1]", "damaged"),
        (b"[" * 100_000, "damaged"),
        (manifests.enveloped(b"[" * 100_000), "damaged"),
        (manifests.enveloped(b"{}"), "damaged"),
        (manifests.enveloped(b'{"files": [{"t": "pin"}]}'), "damaged"),
        (manifests.enveloped(b'{"files": []}'), "damaged"),
        (manifests.enveloped(b'{"more": 1}', 2), "made by a newer ckptstore"),
        (manifests.enveloped(b'{"more": 1}', 2).replace(b" 2", b" 3"), "damaged"),
    ):
        (exported / "manifest.json").write_bytes(raw)
        assert why in str(refused(exported))


def a_link(info: tarfile.TarInfo) -> None:
    info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0


def a_hard_link(info: tarfile.TarInfo) -> None:
    info.type, info.linkname, info.size = tarfile.LNKTYPE, "../../catalog.db", 0


def a_device(info: tarfile.TarInfo) -> None:
    info.type, info.size = tarfile.CHRTYPE, 0


def a_sparse_file(info: tarfile.TarInfo) -> None:
    info.type = tarfile.GNUTYPE_SPARSE


def outside(info: tarfile.TarInfo) -> None:
    info.name = "../../evil.ckpt"


def absolute(info: tarfile.TarInfo) -> None:
    info.name = "/tmp/evil.ckpt"  # noqa: S108


def huge(info: tarfile.TarInfo) -> None:
    info.size = 1 << 40


def another_mode(info: tarfile.TarInfo) -> None:
    info.mode = 0o4777


def test_a_member_that_export_does_not_write(exported: Path, refused: Callable[[Path], CkptstoreError]) -> None:
    tar = exported.with_suffix(".tar")
    raw = tar.read_bytes()
    changes = (a_link, a_hard_link, a_device, a_sparse_file, outside, absolute, huge, another_mode)
    for change, number in product(changes, (0, 1)):
        with tarfile.open(fileobj=io.BytesIO(raw)) as packed:
            member = packed.getmembers()[number]  # the manifest, or a file
        begin = member.offset
        change(member)
        head = member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        tar.write_bytes(raw[:begin] + head + raw[begin + len(head) :])
        refused(tar)


def test_more_than_the_manifest_names(exported: Path, refused: Callable[[Path], CkptstoreError]) -> None:
    tar = exported.with_suffix(".tar")
    with tarfile.open(tar, "a") as packed:
        info = tarfile.TarInfo("rank_0/more.ckpt")
        info.size = 3
        packed.addfile(info, io.BytesIO(b"abc"))
    assert "is not what `export` wrote there" in str(refused(tar))  # its size is that of whole records
    with tarfile.open(tar, "a") as packed:
        info.size = 20_000
        packed.addfile(info, io.BytesIO(bytes(20_000)))
    assert "its manifest says" in str(refused(tar))


def test_a_tar_file_that_is_cut(exported: Path, refused: Callable[[Path], CkptstoreError]) -> None:
    tar = exported.with_suffix(".tar")
    raw = tar.read_bytes()
    for size in (0, 100, 512, 700, 3000, -1024, -1):
        tar.write_bytes(raw[:size])
        assert isinstance(refused(tar), DamageError)


def test_what_another_program_packed(
    exported: Path, catalog: Catalog, refused: Callable[[Path], CkptstoreError]
) -> None:
    tar = exported.with_suffix(".tar")
    with tarfile.open(tar, "w") as packed:
        packed.add(exported, ".")
    assert "its first file is" in str(refused(tar))
    with tarfile.open(tar, "w") as packed:
        for path in (exported / "manifest.json", *sorted(exported.rglob("*.ckpt"))):
            packed.add(path, str(path.relative_to(exported)))
    error = refused(tar)
    assert "unpack it, and import the directory" in str(error)
    with tarfile.open(tar) as packed:
        packed.extractall(exported.parent / "unpacked", filter="data")
    assert catalog.import_(exported.parent / "unpacked", exported.parent / "there", run="new").files == 2


@pytest.mark.parametrize("name", ["digits.tar.gz", "manifest.json", "net.ckpt"])
def test_a_file_that_is_no_tar_is_not_called_damaged(
    exported: Path, tmp_path: Path, refused: Callable[[Path], CkptstoreError], name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"x" * 2000) if name.endswith("gz") else (exported / "manifest.json").read_bytes())
    error = refused(path)
    assert isinstance(error, UsageError)
    assert "is no export: it is no tar file" in str(error)


def test_tar_unpacks_what_was_exported(exported: Path, catalog: Catalog) -> None:
    with tarfile.open(exported.with_suffix(".tar")) as packed:
        packed.extractall(exported.parent / "unpacked", filter="data")
    catalog.import_(exported.parent / "unpacked", exported.parent / "there", run="new")
    assert catalog.resolve("new").plan.global_step == 5


def test_links_in_a_directory_are_not_followed(exported: Path, refused: Callable[[Path], CkptstoreError]) -> None:
    file = next(exported.glob("rank_0/*.ckpt"))
    file.rename(exported / "there.ckpt")
    file.symlink_to(exported / "there.ckpt")
    refused(exported)
    file.unlink()
    (exported / "there.ckpt").rename(file)
    file.parent.rename(exported / "rank")
    (exported / "rank_0").symlink_to(exported / "rank")
    refused(exported)


def test_a_pipe_or_a_directory_is_not_waited_for(exported: Path, refused: Callable[[Path], CkptstoreError]) -> None:
    file = next(exported.glob("rank_0/*.ckpt"))
    file.unlink()
    os.mkfifo(file)
    assert "no regular file" in str(refused(exported))
    pipe = exported.parent / "pipe.tar"
    os.mkfifo(pipe)
    refused(pipe)


def test_what_a_manifest_does_not_name_is_not_taken(exported: Path, catalog: Catalog, tmp_path: Path) -> None:
    (exported / "rank_0" / "more.ckpt").write_bytes(b"more")
    (exported / ".ckptstore").mkdir()
    catalog.import_(exported, tmp_path / "there", run="new")
    assert sorted(path.name for path in (tmp_path / "there").rglob("*.ckpt")) == ["net-1_5.ckpt", "net-1_5.ckpt"]
