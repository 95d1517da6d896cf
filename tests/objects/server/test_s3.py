"""Copies in a bucket of a real server, which fails in every way that servers do."""

import os
import threading
from collections.abc import Callable, Iterator
from hashlib import md5
from pathlib import Path

import pytest
from blake3 import blake3

from ckptstore.objects import s3
from ckptstore.objects.asked import ask
from ckptstore.objects.errors import (
    DeniedError,
    FullError,
    MissingError,
    SourceError,
    StoreError,
    UnreachableError,
    WrongBytesError,
)
from ckptstore.objects.settings import settings
from ckptstore.objects.store import PIECE, Store
from ckptstore.objects.tiers import open_tier
from tests.objects.server.answers import answering
from tests.objects.server.faults import Faults
from tests.objects.server.swift import BUCKET, SECRET, Swift

KEY = "run~20a/launch/10/d1-net~E4-1_10.ckpt"


class StopError(Exception):
    pass


def write(path: Path, size: int) -> tuple[bytes, str]:
    content = os.urandom(size)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content, blake3(content).hexdigest()


def uploads() -> bytes:
    return ask(settings(), BUCKET, "GET", query={"uploads": ""}).body


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_what_is_fetched_is_what_was_copied(store: Store, tmp_path: Path, size: int) -> None:
    content, digest = write(tmp_path / "net.ckpt", size)
    store.put(str(tmp_path / "net.ckpt"), KEY, size, digest)
    store.get(KEY, str(tmp_path / "node" / "net.ckpt"), size, digest)
    assert (tmp_path / "node" / "net.ckpt").read_bytes() == content
    seen = store.head(KEY)
    assert (seen.key, seen.size) == (KEY, size)
    assert [each.key for each in store.list("run~20")] == [KEY]
    assert [each.key for each in store.list("other/")] == []
    store.remove(KEY)
    store.remove(KEY)
    assert store.head(KEY) is None


@pytest.mark.parametrize("sizes", [(0, 4), (3, 4), (4, 4), (5, 4), (8, 4), (9, 4)])
def test_the_checksum_of_parts_is_that_of_s3(sizes: tuple[int, int]) -> None:
    size, part = sizes
    content = os.urandom(size)
    sums = s3._Sums(part)
    for begin in range(0, size, 3):
        sums.add(content[begin : begin + 3])
    parts = [md5(content[begin : begin + part]).digest() for begin in range(0, size, part)]  # noqa: S324 — as S3 does
    one = md5(content).hexdigest()  # noqa: S324
    assert sums.tag() == (one if size <= part else f"{md5(b''.join(parts)).hexdigest()}-{len(parts)}")  # noqa: S324


def test_what_is_there_is_proven_and_not_sent_again(
    running: Swift, faults: Faults, use: Callable[[str], Store], tmp_path: Path
) -> None:
    store = use(faults.endpoint)
    _, digest = write(tmp_path / "net.ckpt", 2 * PIECE + 1)
    store.put(str(tmp_path / "net.ckpt"), KEY, 2 * PIECE + 1, digest)
    once = faults.sent
    store.put(str(tmp_path / "net.ckpt"), KEY, 2 * PIECE + 1, digest)
    assert faults.sent - once < PIECE / 100
    # Another object of that size under the key is no copy: it is sent over it.
    other, of_other = write(tmp_path / "other.ckpt", 2 * PIECE + 1)
    store.put(str(tmp_path / "other.ckpt"), KEY, len(other), of_other)
    store.put(str(tmp_path / "net.ckpt"), KEY, 2 * PIECE + 1, digest)
    assert store.digest_of(KEY, 2 * PIECE + 1) == digest


def test_a_store_with_checksums_of_its_own_is_read_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = store.digest_of
    monkeypatch.setattr(s3._Sums, "tag", lambda self: "encrypted")
    monkeypatch.setattr(store, "digest_of", lambda key, size: read.append(key) or real(key, size))
    for size in (10, PIECE + 1):
        _, digest = write(tmp_path / "net.ckpt", size)
        store.put(str(tmp_path / "net.ckpt"), KEY, size, digest)
        store.put(str(tmp_path / "net.ckpt"), KEY, size, digest)
    assert read == [KEY] * 4
    monkeypatch.setattr(store, "digest_of", lambda key, size: "0" * 64)
    with pytest.raises(WrongBytesError, match="has other bytes than the file"):
        store.put(str(tmp_path / "net.ckpt"), KEY, PIECE + 1, digest)


@pytest.mark.parametrize("size", [100, 3 * PIECE + 1])
def test_a_file_that_is_not_the_recorded_one_never_appears(store: Store, tmp_path: Path, size: int) -> None:
    content, digest = write(tmp_path / "net.ckpt", size)
    (tmp_path / "net.ckpt").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SourceError, match="other bytes"):
        store.put(str(tmp_path / "net.ckpt"), KEY, size, digest)
    assert store.head(KEY) is None


def test_one_who_stops_leaves_nothing_to_be_seen_and_the_next_clears_up(store: Store, tmp_path: Path) -> None:
    size = 5 * PIECE
    _, digest = write(tmp_path / "net.ckpt", size)
    counts: list[int] = []

    def stop(count: int) -> None:
        counts.append(count)
        if len(counts) == 4:
            raise StopError

    with pytest.raises(StopError):
        store.put(str(tmp_path / "net.ckpt"), KEY, size, digest, stop)
    assert store.head(KEY) is None
    store.put(str(tmp_path / "net.ckpt"), KEY, size, digest)
    assert store.head(KEY) is not None
    assert KEY.encode() not in uploads()


def test_a_fetch_that_is_cut_goes_on_where_it_was(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 5 * PIECE
    content, digest = write(tmp_path / "net.ckpt", size)
    store.put(str(tmp_path / "net.ckpt"), KEY, size, digest)
    asked: list[tuple[int, int]] = []
    pieces = store.pieces

    def cut(key: str, begin: int, end: int) -> Iterator[bytes]:
        asked.append((begin, end))
        for count, piece in enumerate(pieces(key, begin, end)):
            if len(asked) == 1 and count == 2:
                raise StopError
            yield piece

    monkeypatch.setattr(store, "pieces", cut)
    target = tmp_path / "node" / "net.ckpt"
    with pytest.raises(StopError):
        store.get(KEY, str(target), size, digest)
    assert not target.exists()
    store.get(KEY, str(target), size, digest)
    assert target.read_bytes() == content
    assert asked == [(0, size), (2 * PIECE, size)]


@pytest.mark.parametrize("left", [0, 3, PIECE])
def test_an_object_that_was_cut_is_damaged(store: Store, tmp_path: Path, left: int) -> None:
    """Before, one without bytes was a server that cannot be reached: each start tried it again, and none an older."""
    content, digest = write(tmp_path / "net.ckpt", 2 * PIECE)
    of_rest = blake3(content[:left]).hexdigest()
    (tmp_path / "cut.ckpt").write_bytes(content[:left])
    store.put(str(tmp_path / "cut.ckpt"), KEY, left, of_rest)
    with pytest.raises(WrongBytesError, match="another copy is needed"):
        store.get(KEY, str(tmp_path / "node" / "net.ckpt"), len(content), digest)


def test_answers_of_500_are_asked_again(faults: Faults, use: Callable[[str], Store], tmp_path: Path) -> None:
    store = use(faults.endpoint)
    content, digest = write(tmp_path / "net.ckpt", 3 * PIECE)
    faults.failing = 2
    store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest)
    faults.failing = 2
    store.get(KEY, str(tmp_path / "again.ckpt"), len(content), digest)
    assert (tmp_path / "again.ckpt").read_bytes() == content
    faults.failing = 1000  # of connections made from now on
    with pytest.raises(UnreachableError, match="500"):
        open_tier(store.name).put(str(tmp_path / "net.ckpt"), "run/l/1/other", len(content), digest)


@pytest.mark.parametrize("key", ["run/launch/403/net", "run/launch/507/net", "quota/launch/1/net", "status/l/413/net"])
def test_a_key_is_not_taken_for_an_answer(faults: Faults, use: Callable[[str], Store], key: str) -> None:
    store = use(faults.endpoint)
    faults.failing = 99
    with pytest.raises(UnreachableError, match=r"now \(status 500\)"):
        store.head(key)


@pytest.mark.parametrize("pieces", [3, 8], ids=["all are read", "some are never read"])
def test_connections_that_are_cut_leave_nothing_to_be_seen(
    faults: Faults, use: Callable[[str], Store], tmp_path: Path, pieces: int
) -> None:
    """Before, one that cut an upload of many parts ended `replicate` by `GeneratorExit`."""
    store = use(faults.endpoint)
    content, digest = write(tmp_path / "net.ckpt", pieces * PIECE)
    faults.cut_after = PIECE // 2
    with pytest.raises(UnreachableError):
        store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest)
    faults.cut_after = 0
    assert store.head(KEY) is None
    store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest)
    assert store.digest_of(KEY, len(content)) == digest


def test_a_slow_server_gets_all_of_it(faults: Faults, use: Callable[[str], Store], tmp_path: Path) -> None:
    store = use(faults.endpoint)
    faults.bytes_per_second = 8 << 20
    content, digest = write(tmp_path / "net.ckpt", 2 * PIECE)
    store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest)
    assert store.digest_of(KEY, len(content)) == digest


def test_a_server_that_is_killed_and_comes_back(own: Swift, use: Callable[[str], Store], tmp_path: Path) -> None:
    store = use(own.endpoint)
    content, digest = write(tmp_path / "net.ckpt", 4 * PIECE)
    kept, of_kept = write(tmp_path / "kept.ckpt", 2 * PIECE)
    store.put(str(tmp_path / "kept.ckpt"), "run/l/1/kept", len(kept), of_kept)
    counts: list[int] = []

    def kill(count: int) -> None:
        counts.append(count)
        if len(counts) == 3:
            own.kill()

    with pytest.raises(UnreachableError, match="no connection") as told:
        store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest, kill)
    assert SECRET not in str(told.value)
    with pytest.raises(UnreachableError):
        store.get("run/l/1/kept", str(tmp_path / "got.ckpt"), len(kept), of_kept)
    own.start()
    assert store.head(KEY) is None
    store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest)
    store.get("run/l/1/kept", str(tmp_path / "got.ckpt"), len(kept), of_kept)
    assert store.digest_of(KEY, len(content)) == digest


def test_a_server_that_is_paused_is_waited_for(own: Swift, use: Callable[[str], Store], tmp_path: Path) -> None:
    store = use(own.endpoint)
    content, digest = write(tmp_path / "net.ckpt", 2 * PIECE)
    own.pause()
    done = threading.Event()

    def put() -> None:
        store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest)
        done.set()

    copying = threading.Thread(target=put)
    copying.start()
    assert not done.wait(0.5)
    own.go_on()
    copying.join(60)
    assert done.is_set()
    assert store.digest_of(KEY, len(content)) == digest


def test_a_full_server_says_so_and_takes_it_once_there_is_room(
    own: Swift, use: Callable[[str], Store], tmp_path: Path
) -> None:
    store = use(own.endpoint)
    for size in (PIECE, 2 * PIECE):
        _, digest = write(tmp_path / "net.ckpt", size)
        own.limit(BUCKET, PIECE // 2)
        with pytest.raises(FullError, match="it is full"):
            store.put(str(tmp_path / "net.ckpt"), f"{KEY}{size}", size, digest)
        own.limit(BUCKET, 1 << 40)
        assert store.head(f"{KEY}{size}") is None
        store.put(str(tmp_path / "net.ckpt"), f"{KEY}{size}", size, digest)
        assert store.digest_of(f"{KEY}{size}", size) == digest


def test_disks_that_are_full(own: Swift, use: Callable[[str], Store], tmp_path: Path) -> None:
    """Swift's proxy says of its disks that they cannot serve now, and no more."""
    store = use(own.endpoint)
    content, digest = write(tmp_path / "net.ckpt", 2 * PIECE)
    own.kill()
    own.start(reserve="100%")
    with pytest.raises(UnreachableError, match="ServiceUnavailable"):
        store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest)
    own.kill()
    own.start()
    assert store.head(KEY) is None
    store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest)
    assert store.digest_of(KEY, len(content)) == digest


def test_one_without_the_right_is_told_without_his_secret(
    running: Swift, use: Callable[[str], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(running.endpoint)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    store = open_tier(f"s3://{BUCKET}/{tmp_path.name}")
    _, digest = write(tmp_path / "net.ckpt", 10)
    for asked in (
        lambda: store.head(KEY),
        lambda: store.put(str(tmp_path / "net.ckpt"), KEY, 10, digest),
        lambda: list(store.list()),
        store.check,
    ):
        with pytest.raises(DeniedError) as told:
            asked()
        assert "another-secret" not in repr(told.value)
        assert "test:tester" not in repr(told.value)
        assert told.value.__cause__ is None


def test_a_clock_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it was said to set the key and the rights of the user."""
    with answering(403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        with pytest.raises(DeniedError, match="the clock of this machine differs") as told:
            open_tier("s3://bucket/x").check()
    assert told.value.hint == "set the clock"


@pytest.mark.parametrize(
    ("status", "code", "error", "hint"),
    [
        (301, "PermanentRedirect", UnreachableError, "set AWS_REGION"),
        (400, "AuthorizationHeaderMalformed", UnreachableError, "set AWS_REGION"),
        (400, "ExpiredToken", DeniedError, "see AWS_ACCESS_KEY_ID"),
        (400, "InvalidToken", DeniedError, "see AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, error: type[StoreError], hint: str
) -> None:
    """Before, it was said to see that the server runs and has room."""
    with answering(status, f"<Error><Code>{code}</Code></Error>".encode()) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        with pytest.raises(error) as told:
            list(open_tier("s3://bucket/x").pieces(KEY, 0, 1))
    assert type(told.value) is error
    assert told.value.hint.startswith(hint)


def test_a_key_that_was_forgotten_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it was said to see that the server runs: but the machine was asked for a role, and not the server."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with answering(404) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.endpoint)
        with pytest.raises(DeniedError, match="no key is set, and this machine gives none; set AWS_ACCESS_KEY_ID"):
            open_tier("s3://bucket/x").head(KEY)


@pytest.mark.parametrize(
    ("environment", "key", "token"),
    [
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SESSION_TOKEN": "old"}, "FILE", None),
        ({"AWS_ACCESS_KEY_ID": "ENV", "AWS_SESSION_TOKEN": ""}, "ENV", None),
        ({"AWS_ACCESS_KEY_ID": "ENV", "AWS_SESSION_TOKEN": "new"}, "ENV", "new"),
    ],
)
def test_a_key_goes_with_its_own_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], key: str, token: str | None
) -> None:
    """Before, a token of the environment went with the key of a file, and an empty one with that of the environment."""
    (tmp_path / "home" / ".aws").mkdir(parents=True)
    profile = "[default]\naws_access_key_id = FILE\naws_secret_access_key = s\n"
    (tmp_path / "home" / ".aws" / "credentials").write_text(profile)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with answering(404) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        assert open_tier("s3://bucket/x").head(KEY) is None
    (asked,) = server.asked
    assert f"Credential={key}/" in asked["authorization"]
    assert asked.get("x-amz-security-token") == token


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
def test_a_server_behind_a_proxy(
    running: Swift, use: Callable[[str], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Before, the requests that obstore lacks went past the proxy: no file of more than one part was ever copied."""
    use(running.endpoint)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, running.endpoint)  # the server takes requests with a whole URL, as a proxy does
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://behind.invalid")
    content, digest = write(tmp_path / "net.ckpt", 2 * PIECE)
    store = open_tier(f"s3://{BUCKET}/{tmp_path.name}")
    store.put(str(tmp_path / "net.ckpt"), KEY, len(content), digest)
    assert store.digest_of(KEY, len(content)) == digest
    assert [each.what.partition(" of ")[0] for each in store.check()] == ["no rule"]


def test_a_bucket_that_is_not_there(running: Swift, use: Callable[[str], Store], tmp_path: Path) -> None:
    use(running.endpoint)
    store = open_tier("s3://not-there/x")
    _, digest = write(tmp_path / "net.ckpt", 10)
    with pytest.raises(MissingError):
        store.put(str(tmp_path / "net.ckpt"), KEY, 10, digest)
    with pytest.raises(MissingError):
        store.check()
    with pytest.raises(StoreError):
        store.get(KEY, str(tmp_path / "net2.ckpt"), 10, digest)


def test_what_a_check_finds(store: Store) -> None:
    assert [each.what.partition(" of ")[0] for each in store.check()] == ["no rule"]
    assert list(store.list()) == []


RULES = b"""<LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<Rule><ID>old</ID><Filter><Prefix>ck</Prefix></Filter><Status>Enabled</Status><Expiration><Days>30</Days></Expiration></Rule>
<Rule><ID>cold</ID><Filter/><Status>Enabled</Status><Transition><Days>3</Days></Transition></Rule>
<Rule><ID>elsewhere</ID><Prefix>logs/</Prefix><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>
<Rule><ID>both</ID><Filter><And><Prefix>logs/</Prefix><Tag><Key>k</Key><Value>v</Value></Tag></And></Filter>
<Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>
<Rule><ID>versions</ID><Filter/><Status>Enabled</Status>
<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>
<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration></Rule>
<Rule><ID>off</ID><Filter/><Status>Disabled</Status><Expiration><Days>1</Days></Expiration></Rule>
<Rule><ID>ends</ID><Filter/><Status>Enabled</Status><AbortIncompleteMultipartUpload><DaysAfterInitiation>7
</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>
</LifecycleConfiguration>"""


def test_rules_that_break_a_promise_are_named() -> None:
    found = s3.rules_found(RULES, "s3://b/ckpt", "ckpt/")
    assert [(each.what.split("'")[1], each.is_fault) for each in found] == [("old", True), ("cold", False)]
    assert [each.is_fault for each in s3.rules_found(b"<x/>", "s3://b/ckpt", "ckpt/")] == [False]
