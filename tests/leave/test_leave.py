"""`ckptstore exit`: the request lies where every rank looks, and it is seen whether all have left."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import exit_requests
from ckptstore.catalog.engine import Database, open_database
from ckptstore.cli import leave
from ckptstore.core.model import Kind
from ckptstore.disk import notes
from ckptstore.disk.exit_flags import flag_path, put
from ckptstore.disk.owner import this_process
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, UnknownRunError, UsageError
from ckptstore.leave.ask import Leaving, ask, follow, look, take_back
from ckptstore.resume.register import describe
from ckptstore.training.exit_request import ExitRequest
from ckptstore.training.rank_launch import RankLaunch
from ckptstore.training.recorder_thread import RecorderThread
from ckptstore.training.start import begin
from tests import ckpt_bytes
from tests.command_line import Result, ckptstore
from tests.jobs import Job, begun, set_ending, started
from tests.small_disks import fill, small_disk


def flags(job: Job, launch: RankLaunch) -> list[bool]:
    return [Path(flag_path(str(job.folder(rank)), launch.key)).exists() for rank in range(job.world_size)]


def leaves(job: Job, ranks: list[RankLaunch], step: int, *, ends: bool = True) -> None:
    """These ranks save on request, and end."""
    for rank in ranks:
        rank.register(job.write(rank, step), global_step=step, kind=Kind.GRACEFUL_EXIT)
        if ends:
            set_ending(rank, step, step, None)


def test_a_reason_that_no_catalog_can_hold_asks_nobody(catalog: Catalog, tmp_path: Path) -> None:
    """The command failed by an error of encoding, and the launch had the request in its directories, and left."""
    job, ranks = begun(catalog, tmp_path, 10)
    for reason in ("\udcff", "a\0"):
        with pytest.raises(UsageError, match="the reason is .*; give it in UTF-8"):
            ask(catalog.database, "run", reason)
    assert flags(job, ranks[0]) == [False, False]


def test_every_rank_finds_the_request_and_only_this_launch(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    assert not any(rank.exit_requested for rank in ranks)
    for reason in ("drained", "drained"):  # two pods ask
        asked = ask(catalog.database, "run", reason)
        assert (len(asked.reached), asked.unreached, asked.by_catalog, asked.signalled) == (2, (), True, ())
    told = json.loads(Path(flag_path(str(job.folder(0)), ranks[0].key)).read_text())
    assert told == {"GracefulExit": 1, "run": "run", "reason": "drained"}
    for rank in ranks:
        rank.exit_request._next_look = 0
        assert rank.exit_requested
    leaves(job, ranks, 17)
    later = job.begin()
    assert not any(rank.exit_requested for rank in later)
    assert flags(job, ranks[0]) == [False, False], "the next launch removes what was for the one before"


def test_a_rank_asks_the_disk_once_a_second(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ranks = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    now = [100.0]
    looks = []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: looks.append(path) or exists(path))
    for _ in range(100):
        assert not ranks[0].exit_requested
    assert len(looks) == 2  # beside its note, and where it saves
    now[0] += 1
    assert not ranks[0].exit_requested
    assert len(looks) == 4


def test_it_is_taken_back(catalog: Catalog, tmp_path: Path) -> None:
    """Where it can be."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    assert not take_back(catalog.database, "run")
    for is_lost in (False, True):
        ask(catalog.database, "run", "")
        if is_lost:
            (job.folder(0) / ".ckptstore").rename(tmp_path / "elsewhere")
            (job.folder(0) / ".ckptstore").write_text("")
            with pytest.raises(CkptstoreError, match=f"cannot be removed: {job.folder(0)}/.*Not a directory"):
                take_back(catalog.database, "run")
        else:
            assert take_back(catalog.database, "run")
        assert flags(job, ranks[0]) == [False, False]
        with catalog.database.read() as connection:
            assert exit_requests.reason(connection, ranks[0].key) is None


def test_how_far_it_is(catalog: Catalog, tmp_path: Path) -> None:
    """Until each rank has its file: what only the judgement of a restore calls whole is not all that was to come."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10, layout="data_parallel")
    launch = ranks[0].facts
    found = look(catalog.database, "run", launch)
    assert (found.step, found.restart, found.is_left, found.is_over) == (None, 10, False, False)
    leaves(job, ranks[:1], 17)
    found = look(catalog.database, "run", launch)
    assert (found.step, sorted(found.missing), found.restart, found.is_left, found.is_over) == (
        17,
        [1],
        17,
        True,
        False,
    )
    job.folder(0).joinpath("net-2_7.ckpt").write_bytes(b"cut")
    found = look(catalog.database, "run", launch)
    assert (found.restart, found.is_left) == (10, False), "it is there, and damaged"
    leaves(job, ranks, 17, ends=False)
    assert [each.is_left and each.is_over for each in follow(catalog.database, "run", launch)] == [True]


@pytest.mark.parametrize(
    ("errors", "ending", "is_left"),
    [((None, None), "finished", True), (("RuntimeError", None), "ended: RuntimeError", False)],
)
def test_a_launch_that_ends_by_itself(
    catalog: Catalog, tmp_path: Path, errors: tuple[str | None, ...], ending: str, *, is_left: bool
) -> None:
    """Asked in its last step, or in one that fails."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    ask(catalog.database, "run", "")
    step = 20
    if is_left:
        job.save(ranks, step)
    for rank, error in zip(ranks, errors, strict=True):
        set_ending(rank, step, step, error)
    (found,) = follow(catalog.database, "run", ranks[0].facts)
    assert (found.ending, found.is_left, found.restart) == (ending, is_left, 20 if is_left else 10)
    asked = ask(catalog.database, "run", "")
    assert (asked.ending, asked.reached, asked.by_catalog) == (ending, (), False), "nothing is left to be asked"
    assert flags(job, ranks[0]) == [False, False], "by then the process may train once more"


def test_who_waits_rests_between_two_looks(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many times what the look took; after one that hung for ten seconds half a minute went by."""
    _, ranks = begun(catalog, tmp_path / "ckpt", 10)
    nothing = look(catalog.database, "run", ranks[0].facts)
    now = [0.0]
    rests: list[float] = []

    def slow(*_: object) -> Leaving:
        now[0] += (0.0, 0.5, 10.0, 0.0)[len(rests)]
        return nothing

    monkeypatch.setattr("ckptstore.leave.ask.look", slow)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", rests.append)
    looks = follow(catalog.database, "run", ranks[0].facts)
    assert [next(looks) for _ in range(4)] == [nothing] * 4
    assert rests == [0.2, 1.5, 5.0]


def test_a_catalog_without_tables_is_named_as_that(tmp_path: Path) -> None:
    """As a mistyped `--db` makes one: the request needs no schema, so it does not create it."""
    with pytest.raises(CatalogUnavailableError, match=r"lacks a table of ckptstore.*; check --db and CKPTSTORE_URL"):
        ask(open_database(tmp_path / "mistyped.db"), "run", "")


def test_another_launch_has_begun_meanwhile(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    job.begin()
    (found,) = follow(catalog.database, "run", ranks[0].facts)
    assert (found.ending, found.is_left) == ("launch L2 has begun since", False)
    unheard_of = replace(ranks[0].facts, id="L3")  # it began without the catalog
    with pytest.raises(UnknownRunError):
        look(catalog.database, "run", unheard_of)


def test_rank_0_passes_on_what_only_the_catalog_has(catalog: Catalog, tmp_path: Path) -> None:
    """Who asked did not see its disks."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    catalog.database.in_write(lambda connection: exit_requests.ask(connection, ranks[0].key, "from afar"))
    ranks[0].signs.begin()
    ranks[0].signs.end()
    assert flags(job, ranks[0]) == [True, True]


def test_ranks_that_say_later_where_they_save_find_the_request_then(catalog: Catalog, tmp_path: Path) -> None:
    """Asked while they still compile, by who sees no process of theirs. They looked with the next sign of life only."""
    job, ranks = started(catalog, tmp_path / "ckpt")
    assert ask(catalog.database, "run", "").reached == ()
    for rank in ranks:
        job.announce(rank)
        assert rank.exit_requested
    assert flags(job, ranks[0]) == [True, True]


def test_a_request_that_only_the_catalog_has_is_seen_with_the_next_save(catalog: Catalog, tmp_path: Path) -> None:
    """One look a save, and no sign of life: it was seen up to 20 seconds later."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    recorder = RecorderThread(ranks[0])
    seen = []
    for step in (11, 12, 13):
        if step == 12:
            catalog.database.in_write(lambda connection: exit_requests.ask(connection, ranks[0].key, "from afar"))
        path = job.write(ranks[0], step)
        file = describe(ranks[0].facts, rank=0, path=path, kind=Kind.PERIODIC, global_step=step)
        recorder.submit(file, asynchronous=False)
        assert recorder.flush(60)
        seen.append(flags(job, ranks[0]))
    recorder.close()
    assert seen == [[False, False], [True, True], [True, True]]


@pytest.mark.of_files
def test_a_directory_for_each_save_is_looked_in_while_it_is_new(catalog: Catalog, tmp_path: Path) -> None:
    """Ten thousand of them would be looked in at every step."""
    rank = catalog.join("run", launch_id="L1")
    for step in range(1, 81):
        rank.register(ckpt_bytes.write(tmp_path / f"step_{step}" / "net.ckpt", step), global_step=step)
    (note,) = notes.of_living()
    assert [Path(each).name for each in note.directories] == [f"step_{step}" for step in range(17, 81)]
    ask(catalog.database, "run", "", ())
    assert rank.exit_requested


def test_two_pods_ask_at_once(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hooks have one process id, each in a namespace of its own."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    write = os.write

    def meanwhile(file: int, told: bytes) -> int:
        monkeypatch.setattr(os, "write", write)
        put(str(job.folder(0)), ranks[0].key, "run", "")
        return write(file, told)

    monkeypatch.setattr(os, "write", meanwhile)
    put(str(job.folder(0)), ranks[0].key, "run", "")
    assert ranks[0].exit_requested


def test_ranks_of_another_user_may_read_the_request(catalog: Catalog, tmp_path: Path) -> None:
    """Root asks, and its umask hides files from others: MindSpore's callback would raise."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    before = os.umask(0o077)
    try:
        ask(catalog.database, "run", "")
    finally:
        os.umask(before)
    assert Path(flag_path(str(job.folder(0)), ranks[0].key)).stat().st_mode & 0o777 == 0o644


def test_a_run_of_that_name_in_another_catalog_is_not_asked(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path / "ckpt", 10)
    job, ranks = begun(other, tmp_path / "other", 10, world_size=1)
    assert len(ask(catalog.database, "run", "").reached) == 2
    assert flags(job, ranks[0]) == [False]


@pytest.mark.parametrize(
    ("url", "own", "named"),
    [
        ("trainer@db.example/ckptstore", "trainer@db.example/ckptstore", "trainer@db.example/ckptstore"),
        ("trainer:secret@db.example/c", "trainer:secret@db.example:5432/c", "trainer:***@db.example/c"),
        ("db.example/c?sslkey=secret", "/c?host=db.example&sslkey=secret", "db.example/c"),
    ],
    ids=["whole", "a password", "an option"],
)
def test_the_catalog_of_a_note_is_asked_with_the_password_that_one_has(
    catalog: Catalog, url: str, own: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note never named one on PostgreSQL: each run of that name was asked, in the user's own SQLite file."""
    url, own, named = (f"postgresql://{each}" for each in (url, own, named))
    note = ExitRequest(open_database(url), catalog.join("run").facts, 0)._note
    assert (note.catalog, note.may_be_of(catalog.database.name)) == (named, False)
    asked: list[str | None] = []
    monkeypatch.setattr(notes, "of_living", lambda: [note])
    monkeypatch.setattr(leave._Exit, "__init__", lambda _, url, *__, **___: asked.append(url))
    monkeypatch.setattr(leave._Exit, "seen", lambda _: 0)
    for set_to in (url, own, "postgresql://db.example/another", catalog.database.name, "mysql://db.example/c"):
        monkeypatch.setenv("CKPTSTORE_URL", set_to)
        assert leave._leave_here(None, "", None, as_json=False) == 0
    assert asked == [None, None, *[named.replace(":***", "")] * 3], "None: CKPTSTORE_URL; PGPASSWORD counts"


@pytest.mark.parametrize("database_url", [pytest.param("postgres", id="server")], indirect=True)
def test_a_rank_is_asked_by_another_way_to_its_server(catalog: Catalog, tmp_path: Path, postgres: str) -> None:
    """As by PgBouncer: who looks for no request, or has saved nothing yet, went on training."""
    (tmp_path / "socket").symlink_to(postgres)
    another = Database(catalog.database.url.update_query_dict({"host": str(tmp_path / "socket")}))
    launch = catalog.join("run")
    launch.exit_request.is_heeded()
    assert ask(another, "run", "").by_note == (os.getpid(),)


def test_a_directory_that_is_not_here(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    job.folder(1).rename(tmp_path / "elsewhere")
    asked = ask(catalog.database, "run", "")
    assert asked.reached == (str(job.folder(0)),)
    assert asked.unreached == ((str(job.folder(1)), "No such file or directory"),)
    assert not ranks[1].exit_requested


def test_a_request_that_nobody_can_find_is_an_error(tmp_path: Path) -> None:
    """The catalog can be read, but its disk is full; the directories of the ranks are on no disk of this machine."""
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        catalog = connect(str(disk / "catalog.db"))
        begun(catalog, tmp_path / "ckpt", 10)
        (tmp_path / "ckpt").rename(tmp_path / "elsewhere")
        fill(disk)
        asked = ["--db", str(disk / "catalog.db"), "exit", "run"]
        told = ckptstore(*asked)
        assert told.code == CatalogUnavailableError.exit_code
        assert "rank_1: No such file or directory" in told.out
        assert "launch L1 of run 'run' was not asked to leave" in told.err
        assert "database or disk is full" in told.err
        found = ckptstore(*asked, "--json")
        assert (found.code, found.out, json.loads(found.err)["exit_code"]) == (4, "", 4)
        assert ckptstore(*asked, "--wait", "--timeout", "1s").code == leave.NOT_LEFT


def test_no_link_is_followed(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    own = job.folder(0) / ".ckptstore"
    own.rename(tmp_path / "others")
    own.symlink_to(tmp_path / "others")
    before = sorted(each.name for each in (tmp_path / "others").iterdir())
    assert ask(catalog.database, "run", "").reached == ()
    assert sorted(each.name for each in (tmp_path / "others").iterdir()) == before


@contextmanager
def process_of(catalog: Catalog, run: str, tmp: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has joined a run, and looks for no request."""
    program = f"""
import ckptstore, sys
launch = ckptstore.connect({catalog.database.url.render_as_string(hide_password=False)!r}).join({run!r}, launch_id="L1")
print("joined", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env=os.environ | {"TMPDIR": str(tmp)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "joined\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.of_files
def test_a_process_that_looks_for_nothing_gets_sigterm(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path / "ckpt", 10, 20, world_size=1)
    with process_of(catalog, "other", tmp_path) as process:
        url = str(catalog.database.url)
        said = ckptstore("exit", "--from-env", "--wait", "--timeout", "1", CKPTSTORE_URL=url, TMPDIR=str(tmp_path))
        assert process.wait() == -signal.SIGTERM
    assert said.code == 8
    assert said.out.splitlines()[0].endswith(
        "asked to save and leave, by a request in the catalog, SIGTERM to 1 process"
    )
    assert (
        said.out.splitlines()[-1]
        == "run other has not left in time: rank 0 saved nothing since the request; a restart finds no state"
    )


@pytest.mark.of_files
def test_nobody_here_has_joined(catalog: Catalog, tmp_path: Path) -> None:
    with process_of(catalog, "run", tmp_path) as process:
        process.kill()
        process.wait()
        left = list(tmp_path.glob("ckptstore-*/*.json"))
        assert len(left) == 1, "a kill leaves the note"
        said = ckptstore("exit", "--from-env", "--wait", TMPDIR=str(tmp_path))
    assert (said.code, said.out) == (0, "no process of this user here has joined a run: there is nothing to stop\n")
    assert not left[0].exists()


def test_a_run_that_cannot_be_asked_leaves_the_others_their_time(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the hook ends, and SIGTERM comes while they still save. Each that cannot be asked is named."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    leaves(job, ranks, 17, ends=False)
    note = ranks[0].exit_request._note
    others = [replace(note, run="of another catalog"), replace(note, run="gone")]
    monkeypatch.setattr(notes, "of_living", lambda: [*others, note])
    url = catalog.database.url.render_as_string(hide_password=False)
    assert leave._leave_here(url, "", 30.0, as_json=False) == UnknownRunError.exit_code
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "run run has left: a restart goes on after step 17"
    first, second = shown.err.splitlines()
    assert first.startswith("ckptstore: run of another catalog: no run 'of another catalog'")
    assert second.startswith("ckptstore: run gone: no run 'gone'")
    assert leave._leave_here(url, "", 30.0, as_json=True) == UnknownRunError.exit_code
    shown = capsys.readouterr()
    assert [each["run"] for each in json.loads(shown.out)] == ["of another catalog", "gone", "run"]
    assert [json.loads(line)["exit_code"] for line in shown.err.splitlines()] == [2, 2]


def test_a_folder_of_somebody_elses_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "_folder", lambda: tmp_path / "link")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    note = notes.Note(process=this_process(), run="run", launch="L1", rank=0, catalog="")
    notes.leave(note)
    assert not list((tmp_path / "real").iterdir())
    (tmp_path / "link").unlink()
    notes.leave(note)
    assert notes.of_living() == [note]
    other = replace(note, process=f"{note.process.partition('|')[0]}-other|1||x@y")
    notes.leave(other)
    assert notes.of_living() == [note], "a process of another machine's is not here"
    beside = replace(note, run="another run")
    notes.leave(beside)
    assert notes.of_living() == [beside, note], "two runs whose starts have one id"
    notes.remove(beside)
    own = replace(note, catalog="postgresql://trainer@db.example/ckptstore")
    for other_url, is_of, may_be_of in (
        ("postgresql://operator@db.example/ckptstore", True, True),
        ("postgresql://trainer@127.0.0.1:6432/ckptstore", False, True),
        ("postgresql://trainer@db.example/ckptstore?options=-csearch_path%3Danother", False, False),
        ("postgresql://trainer@db.example/another", False, False),
    ):
        assert (own.is_of(other_url), own.may_be_of(other_url)) == (is_of, may_be_of)
    (tmp_path / "link" / "torn.json").write_text("{")
    assert notes.of_living() == [note]
    assert not (tmp_path / "link" / "torn.json").exists()


def followed(said: Result) -> list[str]:
    """What is said of a run that is asked to leave, without the seconds, which are the machine's."""
    return [line.partition(" s  ")[2] or line for line in said.out.splitlines()[1:]]


def exit_(catalog: Catalog, *arguments: str) -> Result:
    return ckptstore("--db", catalog.database.url.render_as_string(hide_password=False), "exit", *arguments)


@pytest.mark.of_files
def test_what_is_said(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 10, layout="data_parallel")
    said = exit_(catalog, "run", "--reason", "node drained")
    assert (said.code, said.out) == (
        0,
        "run run, launch L1: asked to save and leave, by a request in 2 directories and in the catalog\n",
    )
    said = exit_(catalog, "run", "--wait", "--timeout", "2s")
    assert said.code == 8
    assert followed(said) == [
        "no rank has saved since the request; each rank saves when its step is done",
        "run run has not left in time: ranks 0-1 saved nothing since the request; a restart goes on after step 10",
    ]
    leaves(job, ranks[:1], 17, ends=False)
    said = exit_(catalog, "run", "--wait", "--timeout", "2s")
    assert said.code == 0, "the file of rank 0 serves all"
    assert followed(said) == [
        "rank 0 saved step 17; not yet: rank 1",
        "run run has left: a restart goes on after step 17",
    ]
    leaves(job, ranks, 17)
    told = exit_(catalog, "run", "--wait", "--json").json
    assert (told["ended_before"], told["whole"], told["directories"]) == ("exited on request", None, [])
    said = exit_(catalog, "run", "--cancel")
    assert (said.code, said.out) == (0, "run run no longer has a request to leave\n")
    assert exit_(catalog, "run", "--cancel", "--json").json == {"run": "run", "cancelled": False}


@pytest.mark.of_files
def test_a_run_that_went_back_before_it_left(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All its ranks save and leave: not in vain, but a restart goes back."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10, 15)
    plan = catalog.resolve("run", step=10).plan
    assert plan is not None
    catalog.branch(plan)

    def leaves_and_is_followed(*known: Any, away: bool) -> Iterator[Leaving]:
        leaves(job, ranks, 17)
        yield from follow(*known, away=away)

    monkeypatch.setattr("ckptstore.leave.ask.follow", leaves_and_is_followed)
    url = catalog.database.url.render_as_string(hide_password=False)
    assert leave._Exit(url, "run", "", (), 60.0, shown=True).seen() == 8
    assert capsys.readouterr().out.splitlines()[-1] == (
        "launch L1 of run run has left after step 17 (exited on request), but not with the state that a restart "
        "takes: a restart goes on after step 10; see: ckptstore resolve run --explain"
    )


def test_a_run_that_was_only_scanned_or_imported(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 10)
    shutil.copytree(job.directory, tmp_path / "plain", ignore=shutil.ignore_patterns(".ckptstore"))
    assert catalog.scan(tmp_path / "plain", run="found", world_size=2, steps_per_epoch=10).adopted
    catalog.export("run@10", tmp_path / "out")
    catalog.import_(tmp_path / "out", tmp_path / "there", run="given")
    for run in ("found", "given"):
        with pytest.raises(UsageError, match=f"no training of run '{run}' has begun"):
            ask(catalog.database, run, "")


@contextmanager
def replaced(catalog: Catalog) -> Iterator[None]:
    """The catalog's file is away."""
    file = catalog.database.file
    catalog.close()
    kept = file.rename(file.with_suffix(".away"))
    file.mkdir()
    try:
        yield
    finally:
        file.rmdir()
        kept.rename(file)


@pytest.mark.of_files
def test_without_the_catalog_journals_tell(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all ranks, though only the directory of one is known: nothing remembers where the run saves."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    known = [str(job.folder(1))]
    with replaced(catalog):
        asked = ask(catalog.database, "run", "", known)
        assert (len(asked.reached), asked.by_catalog, bool(asked.away)) == (2, False, True)
        leaves(job, ranks, 17)
        (found,) = follow(catalog.database, "run", asked.launch, known, away=True)
        assert (found.step, found.is_left, found.ending) == (17, True, "exited on request")
        with pytest.raises(CatalogUnavailableError):
            ask(catalog.database, "run", "")


@pytest.mark.of_files
def test_the_catalog_has_yet_to_hear_of_the_launch(catalog: Catalog, tmp_path: Path) -> None:
    """It was away when this one began: that the one before has ended is no reason to leave its ranks unasked."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    known = [str(tmp_path / "ckpt")]
    leaves(job, ranks, 17)
    with replaced(catalog):
        later = begin(catalog.database, "run", rank=0, world_size=2, launch_id="L2", layout=None, directories=known)
        later.exit_request.announce()
        job.announce(later)
    asked = ask(catalog.database, "run", "", known)
    assert (asked.launch.id, asked.ending, asked.reached) == ("L2", "", (str(job.folder(0)),))
    assert asked.away == f"{catalog.database.name} has no launch L2 of run 'run' yet"


@pytest.mark.of_files
def test_the_catalog_goes_away_while_ranks_leave(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    looks = follow(catalog.database, "run", ranks[0].facts, [str(job.folder(0))])
    assert next(looks).step is None
    with replaced(catalog):
        leaves(job, ranks, 17)
        found = next(looks)
        assert (found.step, found.is_left, found.is_over) == (17, True, True)


@pytest.mark.of_files
def test_a_locked_catalog_delays_no_request(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTSTORE_DIRECTORIES", str(tmp_path / "ckpt"))
    job, ranks = begun(catalog, tmp_path / "ckpt", 10)
    leaves(job, ranks, 17, ends=False)
    assert catalog.database.file is not None
    with closing(sqlite3.connect(catalog.database.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        said = exit_(catalog, "run", "--wait", "--timeout", "60s")
    assert (said.code, flags(job, ranks[0])) == (0, [True, True]), said
    assert "database is locked" in said.out.splitlines()[0]
    assert said.out.endswith("run run has left: a restart goes on after step 17\n")


def test_a_disk_that_hangs_keeps_nobody_longer_than_the_time(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(catalog, tmp_path / "ckpt", 10)
    url = catalog.database.url.render_as_string(hide_password=False)
    never = threading.Event()

    def hangs(*_: object, away: bool) -> Iterator[None]:
        never.wait()
        yield None

    monkeypatch.setattr("ckptstore.leave.ask.follow", hangs)
    assert leave._Exit(url, "run", "", (), 0.1, shown=True).seen() == 8
    assert capsys.readouterr().out.splitlines()[-1] == (
        "run run has not left in time: nothing could be seen of it; what a restart gets is not known"
    )
    never.set()


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        *((None, 27.0), ("", 27.0), ("100", 90.0), ("0", 0.0), (" 99.5 ", 89.55)),
        *((told, None) for told in ("half an hour", " ", "-5", "nan", "inf", "1e30", "9999999999")),
    ],
    ids=str,
)
def test_never_longer_than_the_grace(monkeypatch: pytest.MonkeyPatch, told: str | None, seconds: float | None) -> None:
    if told is None:
        monkeypatch.delenv(leave.GRACE, raising=False)
    else:
        monkeypatch.setenv(leave.GRACE, told)
    if seconds is None:
        with pytest.raises(CkptstoreError, match=f"CKPTSTORE_GRACE_SECONDS is '{told}'"):
            leave._seconds(None, from_env=True)
    else:
        assert leave._seconds(None, from_env=True) == pytest.approx(seconds)
    assert leave._seconds(None, from_env=False) == 600
    assert leave._seconds(12.0, from_env=True) == 12


@pytest.mark.of_files
def test_a_machine_without_a_temporary_directory(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose root is read-only, and has no /tmp: nobody stops for a note."""

    def nowhere() -> Path:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(notes, "_folder", nowhere)
    assert catalog.join("run").world_size == 1
    assert notes.of_living() == []


def test_a_launch_with_an_error_of_one_rank_has_ended_though_another_was_killed(
    catalog: Catalog, tmp_path: Path
) -> None:
    """`runs` said that it had ended; `exit --wait` asked it, and waited for the whole time."""
    _, ranks = begun(catalog, tmp_path, 10)
    set_ending(ranks[0], 10, 10, "RuntimeError")
    asked = ask(catalog.database, "run", "drained")
    assert (asked.ending, asked.is_told) == ("ended: RuntimeError", False)
    assert look(catalog.database, "run", ranks[0].facts).is_over


BY_HAND = """
import sys
from pathlib import Path
import ckptstore
launch = ckptstore.connect(sys.argv[1]).join("run", rank=0, world_size=1)
launch.resolve()
is_asked = launch.exit_requested
print("training", flush=True)
while not is_asked:
    is_asked = launch.exit_requested
launch.save(lambda path: Path(path).write_text("state"), global_step=7, directory=sys.argv[2], kind="graceful_exit")
"""


def test_a_loop_of_the_scripts_own_that_has_saved_nothing_yet_saves_when_it_is_asked(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for the request after each step, and was killed by SIGTERM with all that it had trained."""
    monkeypatch.setattr(notes, "_folder", lambda: tmp_path / f"ckptstore-{os.getuid()}")
    command = [sys.executable, "-c", BY_HAND, sqlite_url, str(tmp_path / "ckpt")]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as training:
        try:
            assert training.stdout is not None
            assert training.stdout.readline() == "training\n"
            asked = ask(open_database(sqlite_url), "run", "drained")
            code = training.wait(20)
        finally:
            training.kill()
    assert (asked.signalled, code) == ((), 0)
    assert [file.kind for file in connect(sqlite_url).files("run")] == [Kind.GRACEFUL_EXIT]


def test_a_request_beside_a_note_is_taken_back(catalog: Catalog) -> None:
    launch = catalog.join("run", rank=0, world_size=1)
    assert not launch.exit_requested
    ask(catalog.database, "run", "drained")
    launch.exit_request._next_look = 0
    assert launch.exit_requested
    assert take_back(catalog.database, "run")
    launch.exit_request._next_look = 0
    assert not launch.exit_requested


def test_a_request_beside_a_note_alone_is_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the catalog is full, and the process has saved nothing yet: it left, and the command failed."""
    monkeypatch.setattr(notes, "_folder", lambda: tmp_path / f"ckptstore-{os.getuid()}")
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        catalog = connect(str(disk / "catalog.db"))
        launch = catalog.join("run", rank=0, world_size=1)
        launch.resolve()
        assert not launch.exit_requested
        fill(disk)
        told = ckptstore("--db", str(disk / "catalog.db"), "exit", "run", TMPDIR=str(tmp_path))
        launch.exit_request._next_look = 0
        assert told.code == 0, told.out + told.err
        assert launch.exit_requested
        assert "asked to save and leave, by a file for 1 process that has saved nothing yet" in told.out
