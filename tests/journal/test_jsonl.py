"""Journals: what is in them comes out again, whatever happened to the file and whoever else writes."""

import errno
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.core.events import LaunchStarted
from ckptstore.core.model import Launch
from ckptstore.core.replicas import stand_alone
from ckptstore.disk.name_claims import FOLDER
from ckptstore.journal import jsonl
from ckptstore.journal.jsonl import JournalWriter
from ckptstore.journal.sync import found_below
from tests.command_line import no_right_to_pass_by_permissions

entries = st.dictionaries(
    st.text(min_size=1).filter(lambda name: name not in ("v", "sum")),
    st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=3),
    max_size=4,
)


@given(entries)
def test_a_line_says_what_was_said(entry: dict[str, Any]) -> None:
    line = jsonl.encode(entry)
    assert line.count(b"\n") == 1
    assert jsonl.decode(line.rstrip(b"\n")) == {"v": 1, **entry}


@given(entries, st.data())
def test_a_line_that_was_cut_or_changed_says_nothing(entry: dict[str, Any], data: st.DataObject) -> None:
    line = jsonl.encode(entry).rstrip(b"\n")
    at = data.draw(st.integers(0, len(line) - 1))
    assert jsonl.decode(line[:at]) is None
    other = data.draw(st.integers(1, 255))
    assert jsonl.decode(line[:at] + bytes([line[at] ^ other]) + line[at + 1 :]) is None


@pytest.mark.parametrize("line", [b"", b"{}", b'{"v":1}', b"[1]", b"\xff\x00", b'{"v":1,"sum":"0000000000000000"}'])
def test_foreign_lines(line: bytes) -> None:
    assert jsonl.decode(line) is None


def steps(path: str | Path, begin: int = 0) -> list[int]:
    return [entry["step"] for entry in jsonl.read(str(path), begin).entries]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_segment_that_cannot_be_synced_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    writer = JournalWriter(str(tmp_path), "rank_3", "L1")
    monkeypatch.setattr(os, "fsync", fails)
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(3):
        with pytest.raises(OSError, match="input/output"):
            writer.append([{"step": 1}])
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    assert [each.name for each in (tmp_path / FOLDER).iterdir() if each.suffix == ".jsonl"] == []


def test_spans_say_what_is_new(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path), "rank_3", "L1")
    first = writer.append([{"step": 1}])
    second = writer.append([{"step": 2}, {"step": 3}])
    assert Path(first.path).parent == tmp_path / FOLDER
    assert Path(first.path).name.startswith("rank_3-")
    assert (first.begin, second.begin) == (0, first.end)
    assert jsonl.size(first.path) == second.end == jsonl.read(first.path).end
    assert steps(first.path, first.end) == [2, 3]
    assert jsonl.journals_in(str(tmp_path)) == list(found_below([str(tmp_path)])[0]) == [first.path]
    assert jsonl.directory_of(first.path) == str(tmp_path)


@pytest.mark.parametrize(
    ("path", "directories", "nearest"),
    [
        ("/run/a/x.ckpt", {"/", "/run", "/run/a"}, "/run/a"),
        ("/run/ab/x.ckpt", {"/", "/run", "/run/a"}, "/run"),
        ("/x.ckpt", {"/", "/run"}, "/"),
        ("/other/x.ckpt", {"/run", "/x.ckpt"}, ""),
    ],
)
def test_the_nearest_directory_above_a_path(path: str, directories: set[str], nearest: str) -> None:
    assert jsonl.nearest(path, directories) == nearest


def test_tails_that_are_too_long_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [JournalWriter(str(tmp_path), f"rank_{rank}", "L1").append([{"rank": rank}]) for rank in range(2)]
    tails = {segment.path: segment.begin for segment in segments}
    read, is_all = jsonl.read_tails(tails)
    assert ([*read], is_all) == ([*tails], True)
    monkeypatch.setattr(jsonl, "_MOST_OF_TAILS", segments[0].end)
    read, is_all = jsonl.read_tails(tails)
    assert ([*read], is_all) == ([segments[0].path], False)


@pytest.mark.parametrize("lost", [1, 5, 30])
def test_a_torn_line_costs_itself_only(tmp_path: Path, lost: int) -> None:
    writer = JournalWriter(str(tmp_path), "rank_0", "L1")
    writer.append([{"step": 1}])
    path = Path(writer.append([{"step": 2}]).path)
    os.truncate(path, path.stat().st_size - lost)
    assert steps(path) == [1]
    again = writer.append([{"step": 3}])
    assert again.path != str(path), "it may have lost what was told of its launches"
    assert (steps(path), steps(again.path)) == ([1], [3])


def test_a_line_under_way_is_read_when_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.jsonl"
    line = jsonl.encode({"step": 2})
    path.write_bytes(jsonl.encode({"step": 1}) + line[:20])
    before = jsonl.read(str(path))
    assert [entry["step"] for entry in before.entries] == [1]
    assert before.spoiled == 0
    path.write_bytes(jsonl.encode({"step": 1}) + line)
    assert steps(path, before.end) == [2]


def test_a_newer_programs_lines_are_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.jsonl"
    path.write_bytes(jsonl.encode({"v": 2, "step": 1}) + jsonl.encode({"step": 2}))
    found = jsonl.read(str(path))
    assert [entry["step"] for entry in found.entries] == [2]
    assert (found.newer, found.spoiled) == (1, 0)
    assert found.end == 0, "the newer program reads it again from there"


def test_of_a_newer_programs_journal_no_more_is_read_than_of_others(tmp_path: Path) -> None:
    """It has no rest to go on with: that begins at the newer line, so a sync read the same piece again for ever."""
    path = tmp_path / "rank_0.jsonl"
    path.write_bytes(jsonl.encode({"v": 2}) + b"".join(jsonl.encode({"step": step}) for step in range(9)))
    found = jsonl.read(str(path), most=100)
    assert 0 < len(found.entries) < 9
    assert (found.end, found.newer, found.has_more) == (0, 1, False)


def test_what_is_no_journal_takes_no_memory(tmp_path: Path) -> None:
    """A power loss may leave zeros; and a journal goes on behind them. In 256 MB there is no room for the whole."""
    path = tmp_path / "rank_0.jsonl"
    path.write_bytes(jsonl.encode({"step": 1}))
    with path.open("ab") as file:
        file.truncate(1 << 30)
    program = (
        "import resource, sys; from ckptstore.journal import jsonl\n"
        "resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))\n"
        "found = jsonl.read(sys.argv[1]); print(len(found.entries), found.end)"
    )
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", str(1 << 30)], done.stderr
    writer = JournalWriter(str(tmp_path), "rank_0", "L1")
    own = Path(writer.append([{"step": 2}]).path)
    os.truncate(own, 1 << 30)
    span = writer.append([{"step": 3}])
    assert steps(span.path, 1 << 30) == steps(span.path, span.begin) == [3]


def test_a_second_writer_has_a_file_of_its_own(tmp_path: Path) -> None:
    """A process of an earlier launch may hang on; and somebody may start a launch twice."""
    writers = [JournalWriter(str(tmp_path), "rank_0", launch) for launch in ("L1", "L2", "L2")]
    paths = [writer.append([{"step": step}]).path for step, writer in enumerate(writers)]
    assert len(set(paths)) == 3
    assert [steps(path) for path in paths] == [[0], [1], [2]]
    assert sorted(jsonl.journals_in(str(tmp_path))) == sorted(paths)


def test_a_journal_of_another_user_stops_no_writer(tmp_path: Path) -> None:
    """They share a directory in which both may write, and what one has begun the other may only read."""
    first = JournalWriter(str(tmp_path), "rank_0", "L1")
    theirs = Path(first.append([{"step": 1}]).path)
    theirs.chmod(0o444)
    program = (
        "import sys; from ckptstore.journal.jsonl import JournalWriter\n"
        "writer = JournalWriter(sys.argv[1], 'rank_0', 'L2')\n"
        "for step in (2, 3): print(writer.append([{'step': step}]).path)"
    )
    command = [*no_right_to_pass_by_permissions(), sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    own, again = done.stdout.split() or [done.stderr, ""]
    assert again == own != str(theirs)
    assert (steps(theirs), steps(own)) == ([1], [2, 3])
    assert jsonl.journals_in(str(tmp_path)) == sorted([own, str(theirs)])
    theirs.parent.chmod(0o500)
    done = subprocess.run([*command[:-2], program.replace("L2", "L3"), str(tmp_path)], capture_output=True, check=False)
    theirs.parent.chmod(0o700)
    assert b"PermissionError" in done.stderr, "where no file can be made, that is said"


def test_a_journal_that_is_removed_is_begun_again(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path), "rank_0", "L1")
    path = Path(writer.append([{"step": 1}]).path)
    path.unlink()
    again = writer.append([{"step": 2}])
    assert again.begin == 0
    assert steps(again.path) == [2]
    assert not path.exists()


def test_a_directory_that_is_gone_stays_gone(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path / "gone"), "rank_0", "L1")
    with pytest.raises(OSError, match="perhaps it is not mounted"):
        writer.append([{"step": 1}])
    assert not (tmp_path / "gone").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path), "rank_0", "L1")
    path = Path(writer.append([{"step": 1}]).path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        writer.append([{"step": 2}])
    assert steps(tmp_path / "elsewhere") == [1]


def test_a_child_does_not_write_into_its_parents_file(tmp_path: Path) -> None:
    """`async_save="process"` forks: the child has the file open, and the lock."""
    writer = JournalWriter(str(tmp_path), "rank_0", "L1")
    path = writer.append([{"step": 1}]).path
    program = (
        "import os, sys; from ckptstore.journal.jsonl import JournalWriter\n"
        "writer = JournalWriter(sys.argv[1], 'rank_0', 'L2'); own = writer.append([{'step': 2}]).path\n"
        "child = os.fork()\n"
        "if not child:\n    print(writer.append([{'step': 3}]).path != own, flush=True); os._exit(0)\n"
        "os.waitpid(child, 0); print(writer.append([{'step': 4}]).path == own)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
    everything = sorted(step for each in jsonl.journals_in(str(tmp_path)) for step in steps(each))
    assert everything == [1, 2, 3, 4]
    assert steps(path) == [1]


def test_at_once_waits_for_nobody(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path), "rank_0", "L1")
    assert not writer.append_at_once([{"step": 0}])
    path = writer.append([{"step": 1}]).path
    assert not writer.append_at_once([{"step": 0}]), "it tells of no launch yet"
    launch = Launch(
        id="L1", run="run", order=0, world_size=1, layout=stand_alone(), created_at=datetime.now(timezone.utc)
    )
    writer.append([], {launch.key: LaunchStarted(launch)})
    assert writer.append_at_once([{"step": 2}])
    with writer._lock:
        assert not writer.append_at_once([{"step": 3}])
    assert [entry.get("step") for entry in jsonl.read(path).entries] == [1, None, 2]


def test_a_disk_that_is_full_in_the_middle_of_a_line(tmp_path: Path) -> None:
    """The line is torn, `append` says so, and once there is room the next one is whole."""
    program = (
        "import resource, signal, sys; from ckptstore.journal.jsonl import JournalWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "writer = JournalWriter(sys.argv[1], 'rank_0', 'L1'); end = writer.append([{'step': 1}]).end\n"
        "_, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (end + 20, most))\n"
        "for step in (2, 3):\n"
        "    try: writer.append([{'step': step}])\n"
        "    except OSError as error: print(error.strerror)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
        "print(writer.append([{'step': 4}]).path)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    *errors, path = done.stdout.splitlines()
    assert errors == ["File too large"] * 2
    found = jsonl.read(path)
    assert [entry["step"] for entry in found.entries] == [1, 4]
    assert found.spoiled >= 1
