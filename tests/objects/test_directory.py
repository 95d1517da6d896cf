"""A directory as a store: what is there is whole, what is fetched is what was asked for."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ckptstore.errors import RefusedError, UsageError
from ckptstore.objects.errors import (
    MissingError,
    NoRoomError,
    SourceError,
    StoreError,
    UnreachableError,
    WrongBytesError,
)
from ckptstore.objects.store import PIECE, Store
from ckptstore.objects.tiers import open_tier
from ckptstore.outside import os as outside_os
from tests.replicate.rounds import files_below

KEY = "run/launch/10/d1-net-1_10.ckpt"


class StopError(Exception):
    pass


@pytest.fixture
def content() -> bytes:
    return bytes(range(256)) * (PIECE // 256) * 2 + b"end"


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "net-1_10.ckpt"
    path.write_bytes(content)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_tier(f"file://{tmp_path}/tier")
    made.prepare()
    return made


def put(store: Store, file: Path, content: bytes, **more: object) -> None:
    store.put(str(file), KEY, len(content), blake3(content).hexdigest(), **more)  # type: ignore[arg-type]


def get(store: Store, path: Path, content: bytes) -> None:
    store.get(KEY, str(path), len(content), blake3(content).hexdigest())


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1])
def test_what_is_fetched_is_what_was_copied(store: Store, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    file = tmp_path / "net.ckpt"
    file.write_bytes(content)
    put(store, file, content)
    get(store, tmp_path / "node" / "net.ckpt", content)
    assert (tmp_path / "node" / "net.ckpt").read_bytes() == content
    assert files_below(tmp_path / "node") == ["net.ckpt"]
    seen = store.head(KEY)
    assert (seen.key, seen.size) == (KEY, size)
    assert [each.key for each in store.list("run/")] == [KEY]
    store.remove(KEY)
    store.remove(KEY)
    assert store.head(KEY) is None
    assert list(store.list()) == []


def test_a_copy_that_is_cut_is_never_seen_and_the_next_one_is_whole(
    store: Store, file: Path, tmp_path: Path, content: bytes
) -> None:
    counts: list[int] = []

    def stop(count: int) -> None:
        counts.append(count)
        if len(counts) == 2:
            raise StopError

    with pytest.raises(StopError):
        put(store, file, content, limit=stop)
    assert store.head(KEY) is None
    assert list(store.list()) == []
    put(store, file, content)
    put(store, file, content, limit=stop)  # it is there: nothing is sent
    assert len(counts) == 2
    assert files_below(tmp_path / "tier") == [KEY]


def test_a_fetch_that_is_cut_goes_on_where_it_was(
    store: Store, file: Path, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, file, content)
    target = tmp_path / "node" / "net.ckpt"
    fetched: list[int] = []
    pieces = store.pieces

    def cut(*asked: Any) -> Iterator[memoryview | bytes]:
        for piece in pieces(*asked):
            fetched.append(len(piece))
            if len(fetched) == 2:
                raise StopError
            yield piece

    monkeypatch.setattr(store, "pieces", cut)
    with pytest.raises(StopError):
        get(store, target, content)
    assert not target.exists()
    get(store, target, content)
    assert target.read_bytes() == content
    assert sum(fetched) == len(content) + fetched[1]
    get(store, target, content)  # it is there: nothing is fetched
    assert sum(fetched) == len(content) + fetched[1]
    assert files_below(target.parent) == ["net.ckpt"]


def test_a_part_that_was_left_with_other_bytes_is_fetched_anew(
    store: Store, file: Path, tmp_path: Path, content: bytes
) -> None:
    put(store, file, content)
    target = tmp_path / "node" / "net.ckpt"
    aside = target.parent / ".net.ckpt.unfinished" / ".ckptstore"
    aside.mkdir(parents=True)
    (aside / blake3(content).hexdigest()[:32]).write_bytes(b"\0" * 100)
    (aside / "of-another").write_bytes(b"older")
    get(store, target, content)
    assert target.read_bytes() == content
    assert files_below(target.parent) == ["net.ckpt"]


def test_what_a_kill_left_beside_a_whole_file_goes__before_it_held_the_bytes_of_a_purged_copy(
    store: Store, file: Path, tmp_path: Path, content: bytes
) -> None:
    """The kill came after the file got its name: a second link to its bytes is left."""
    fetched = tmp_path / "node" / "net.ckpt"

    def kill(target: Path) -> None:
        aside = target.parent / f".{target.name}.unfinished" / ".ckptstore"
        aside.mkdir(parents=True)
        (aside / target.name).hardlink_to(target)

    put(store, file, content)
    kill(tmp_path / "tier" / KEY)
    put(store, file, content)
    get(store, fetched, content)
    kill(fetched)
    get(store, fetched, content)
    assert files_below(tmp_path / "tier") == [KEY]
    assert files_below(fetched.parent) == ["net.ckpt"]


def test_a_damaged_object_is_never_given(store: Store, file: Path, tmp_path: Path, content: bytes) -> None:
    put(store, file, content)
    (tmp_path / "tier" / KEY).write_bytes(content[:-1] + b"!")
    target = tmp_path / "node" / "net.ckpt"
    with pytest.raises(WrongBytesError, match="does not hold the bytes"):
        get(store, target, content)
    (tmp_path / "tier" / KEY).write_bytes(content[:-1])
    with pytest.raises(WrongBytesError, match="ends at byte"):
        get(store, target, content)
    assert not target.exists()
    with pytest.raises(WrongBytesError, match="is damaged"):
        put(store, file, content)


def test_another_file_in_the_place_is_left_alone(store: Store, file: Path, tmp_path: Path, content: bytes) -> None:
    put(store, file, content)
    target = tmp_path / "mine.ckpt"
    target.write_bytes(b"of the user")
    with pytest.raises(RefusedError, match="is there already"):
        get(store, target, content)
    assert target.read_bytes() == b"of the user"


@pytest.mark.parametrize("change", ["cut", "longer", "other", "gone"])
def test_a_file_that_is_not_the_recorded_one_is_not_copied(
    store: Store, file: Path, content: bytes, change: str
) -> None:
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes({"cut": content[:-1], "longer": content + b"!", "other": b"!" + content[1:]}[change])
    with pytest.raises(SourceError, match="cannot read" if change == "gone" else "is not the file that was recorded"):
        put(store, file, content)
    assert list(store.list()) == []


def test_a_mount_point_without_its_disk_gets_nothing(file: Path, tmp_path: Path, content: bytes) -> None:
    empty = tmp_path / "mnt"
    empty.mkdir()
    for url in (str(empty), f"{empty}/not-there"):
        with pytest.raises(UnreachableError, match="perhaps it is not mounted"):
            put(open_tier(url), file, content)
        with pytest.raises(UnreachableError):
            open_tier(url).head(KEY)
    assert list(empty.iterdir()) == []


def test_room_is_checked_before(
    store: Store, file: Path, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, file, content)
    real = os.statvfs(tmp_path)
    fields = [getattr(real, name) for name in real.__match_args__] if hasattr(real, "__match_args__") else list(real)
    fields[4] = 1  # f_bavail
    monkeypatch.setattr(outside_os, "statvfs", lambda _: os.statvfs_result(fields))
    target = tmp_path / "node" / "net.ckpt"
    with pytest.raises(NoRoomError, match="bytes are lacking"):
        get(store, target, content)
    assert not target.exists()


def test_what_is_not_there(store: Store, tmp_path: Path, content: bytes) -> None:
    with pytest.raises(MissingError):
        get(store, tmp_path / "net.ckpt", content)
    assert store.check() == ()
    assert issubclass(MissingError, StoreError)


@pytest.mark.parametrize(
    "url",
    [
        *("s3://me:secret@bucket/p", "s3://bucket/p?X-Amz-Signature=secret", "relative/path", "ftp://host/x", "s3://"),
        *("s3://[secret]/p", "s3://buck[et/p", "s3://buck et/p", "s3://b\tucket/p", "s3:///p", ""),
        "S3://[secret]/p",
    ],
)
def test_a_url_that_names_no_tier_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(UsageError) as told:
        open_tier(url)
    assert "secret" not in str(told.value)
