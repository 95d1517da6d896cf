"""A journal that anybody may have written costs its readers its own lines, and nothing else."""

import json
import os
import random
import zlib
from base64 import b64encode
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ckptstore.api import Catalog, connect
from ckptstore.core import bounded_json
from ckptstore.core.events import from_lines
from ckptstore.journal import jsonl, layouts, sync
from ckptstore.journal.accept import Acceptor
from ckptstore.journal.sync import found_below
from ckptstore.retention import stored_policy
from ckptstore.retention.policy import Policy
from tests.jobs import begun, set_ending

pytestmark = pytest.mark.of_files

CASES = 10_000
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 2**63, 1.5, float("inf"), "", "x" * 5000, "\0", "\ud800", "..", "../../../etc/passwd",
    "/etc/passwd", "a//b", "2026-01-01T00:00:00", "9999-12-31T23:59:59-23:59", [], [[]], {}, {"": {}}, [None] * 40,
)  # fmt: skip


def journals(catalog: Catalog, directory: Path) -> list[str]:
    """Journals with a line of nearly every type."""
    job, ranks = begun(catalog, directory, 10, 20, 30, layout="data_parallel")
    (directory / "strategy.pb").write_bytes(b"no strategy")
    ranks[0].keep_layout_file(str(directory / "strategy.pb"))
    catalog.pin("run", 10)
    catalog.tag("run", 20, "best")
    stored_policy.store(catalog.database, "run", Policy(keep_last=2))
    catalog.rename("run", "thesis")
    catalog.rename("run", "run")
    catalog.forget("run")
    catalog.forget("run", undo=True)
    set_ending(ranks[0], 30, 30, "RuntimeError: x")
    job.save(job.begin(), 40)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=1, floor=1)))
    return list(found_below([str(directory)])[0])


def changed(value: Any, draw: random.Random) -> Any:
    """A value of which one part is another one."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        if draw.random() < 0.1:
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: changed(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        return [*value[:place], changed(value[place], draw), *value[place + 1 :]]
    return draw.choice(ODD)


def flipped(line: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(line))
    return line[:place] + bytes([line[place] ^ 1 << draw.randrange(8)]) + line[place + 1 :]


def hostile(paths: list[str], seed: int) -> Iterator[bytes]:
    """Lines of these journals, each with a wrong part and the right checksum, or with a wrong bit."""
    draw = random.Random(seed)  # noqa: S311
    entries = [entry for path in paths for entry in jsonl.read(path).entries]
    while True:
        entry = draw.choice(entries)
        wrong = changed(entry, draw)
        is_line = isinstance(wrong, dict) and draw.random() < 0.9
        yield jsonl.encode(wrong) if is_line else flipped(jsonl.encode(entry), draw)


def signed(body: bytes) -> bytes:
    """A line with the right checksum, whatever is in it."""
    return b'%s,"sum":"%s"}\n' % (body, jsonl._checksum(body))


def test_ten_thousand_hostile_lines(catalog: Catalog, tmp_path: Path) -> None:
    paths = journals(catalog, tmp_path / "ckpt")
    path = tmp_path / "hostile.jsonl"
    path.write_bytes(b"".join(islice(hostile(paths, 1), CASES)))
    contents = jsonl.read(str(path))
    events, unusable = from_lines(contents.entries, str(tmp_path))
    used = len([event for event in events if layouts.is_as_told(event)])
    assert len(contents.entries) + contents.spoiled + contents.newer >= CASES * 0.99
    assert unusable > CASES / 4
    assert used > CASES / 20


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
def test_what_can_be_read_of_them_can_be_taken_up(catalog: Catalog, other: Catalog, tmp_path: Path, seed: int) -> None:
    paths = journals(catalog, tmp_path / "ckpt")
    for path in paths:
        with Path(path).open("ab") as file:
            file.write(b"".join(islice(hostile([path], seed), 200)))
    for each in (catalog, other):
        each.sync(tmp_path / "ckpt")
        each.forget("run", undo=True)
        each.resolve("run")


@pytest.mark.parametrize("deep", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [33, 900, 100_000])
def test_a_line_that_is_nested_too_deeply(catalog: Catalog, tmp_path: Path, deep: bytes, depth: int) -> None:
    job, ranks = begun(catalog, tmp_path, 10)
    journal = Path(jsonl.journals_in(str(job.folder(0)))[0])
    close = b"]" if deep == b"[" else b"}"
    inner = deep * depth + (b"" if deep == b"[" else b"0") + close * depth
    with journal.open("ab") as file:
        file.write(signed(b'{"v":1,"t":"policy","run":"run","at":"2026-01-01T00:00:00+00:00","rules":' + inner))
    assert catalog.sync(tmp_path).spoiled == 1
    assert catalog.resolve("run").plan is not None
    assert catalog.join("run", rank=0, world_size=2, launch_id="later").resolve() is not None
    assert job.save(ranks, 20)


def test_a_bound_that_is_kept_exactly() -> None:
    deepest = "[" * bounded_json.MOST_DEPTH + "]" * bounded_json.MOST_DEPTH
    assert bounded_json.parse(deepest) == json.loads(deepest)
    with pytest.raises(ValueError, match="nested too deeply"):
        bounded_json.parse(f"[{deepest}]")
    assert bounded_json.parse(json.dumps([[]] * 1000)) == [[]] * 1000


def test_a_layout_file_that_is_not_what_its_line_says(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """Contents are known by their digests: one that is taken for another's would prove replicas that are none."""
    job, _ = begun(catalog, tmp_path, 10)
    journal = Path(jsonl.journals_in(str(job.folder(0)))[0])
    bomb = zlib.compress(bytes(layouts.MOST_BYTES + 1))
    claimed = blake3(b"a strategy").hexdigest()
    lines = [
        {
            "t": "layout",
            "launch": "L1",
            "rank": 0,
            "path": "x",
            "digest": digest,
            "kind": "strategy",
            "content": content,
        }
        for digest, content in [
            (claimed, b64encode(zlib.compress(b"another")).decode()),
            (claimed, b64encode(b"no zlib").decode()),
            (blake3(bytes(layouts.MOST_BYTES + 1)).hexdigest(), b64encode(bomb).decode()),
        ]
    ]
    lines.append(lines[0] | {"content": None})
    with journal.open("ab") as file:
        file.write(b"".join(map(jsonl.encode, lines)))
    other.scan(tmp_path)
    assert other.resolve("run").plan is not None
    with other.database.read() as connection:
        assert not connection.exec_driver_sql("SELECT * FROM strategies").all()


def test_a_journal_of_which_nobody_sees_the_end(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path, 10)
    journal = Path(jsonl.journals_in(str(job.folder(0)))[0])
    job.save(ranks, 20)
    whole = jsonl.read(str(journal))
    piece = jsonl.read(str(journal), 0, 100)
    assert (len(piece.entries), piece.has_more) == (1, True)
    assert jsonl.read(str(journal), piece.end).entries == whole.entries[1:]
    os.truncate(journal, jsonl.MOST_JOURNAL * 2)
    (skipped,) = catalog.sync(tmp_path).unreadable
    assert (skipped.path, skipped.reason) == (str(journal), "more than 4 GiB of a journal")


def test_a_journal_that_is_a_pipe_by_now_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank_0.jsonl")
    for look in (jsonl.read, jsonl.read_whole):
        with pytest.raises(OSError, match="not a regular file"):
            look(str(tmp_path / "rank_0.jsonl"))


def test_journals_are_taken_up_in_pieces(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction, and one list of records, is never as long as somebody's journal."""
    job, ranks = begun(catalog, tmp_path, *range(1, 20))
    portions = []
    accept = Acceptor.accept
    monkeypatch.setattr(sync, "_BYTES", 1000)
    monkeypatch.setattr(
        Acceptor,
        "accept",
        lambda self, path, found, others: portions.append(len(found.entries)) or accept(self, path, found, others),
    )
    whole = connect(str(tmp_path / "pieces.db"))
    for each in (whole, catalog):
        synced = each.sync(tmp_path)
        assert (synced.read, synced.records, synced.skipped) == ((2, 38, ()) if each is whole else (0, 0, ()))
    assert max(portions) < 6
    assert len(whole.files("run")) == len(catalog.files("run")) == 38
    portions.clear()
    job.save(ranks, 20)
    assert whole.sync(tmp_path).records == 2
    assert len(portions) <= 4


def test_pieces_of_a_journal_whose_launch_nobody_tells_of(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again from there once somebody does."""
    job, _ = begun(catalog, tmp_path / "ckpt", *range(1, 20), world_size=1)
    journal = Path(jsonl.journals_in(str(job.folder(0)))[0])
    lines = journal.read_bytes().splitlines(keepends=True)
    told = [line for line in lines if b'"t":"launch"' in line]
    journal.write_bytes(b"".join(line for line in lines if line not in told))
    monkeypatch.setattr(sync, "_BYTES", 1000)
    assert other.sync(tmp_path).records == 0
    beside = tmp_path / "ckpt" / ".ckptstore"
    beside.mkdir()
    (beside / "shared.jsonl").write_bytes(b"".join(told))
    assert other.sync(tmp_path).records == 19
