"""The command line: what it prints, its JSON, its exit codes, and one line for every mistake."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import urls
from ckptstore.catalog.schema import REVISION
from ckptstore.cli.main import cli
from ckptstore.errors import UsageError
from ckptstore.journal import jsonl
from tests import ckpt_bytes
from tests.command_line import (
    COMMAND,
    HEAVY,
    Result,
    as_who_is_not_root,
    assert_one_line,
    ckptstore,
    loaded,
    on_a_terminal,
)
from tests.conftest import new_postgres_database
from tests.foreign_bytes import pytorch, tensorflow
from tests.jobs import Job, set_ending, started
from tests.projecting import put_files


@pytest.fixture
def run(catalog: Catalog, tmp_path: Path) -> Job:
    """A data-parallel run of two ranks: steps 5, 10 and 15, of which rank 0's last is gone and rank 1's cut."""
    job = Job(catalog, tmp_path, layout="data_parallel")
    files = job.save(job.start(), 5, 10, 15)
    Path(files[0].path).unlink()
    with open(files[1].path, "r+b") as file:  # noqa: PTH123
        file.truncate(files[1].size - 1)
    return job


@pytest.fixture
def url(run: Job, database_url: str) -> str:
    return database_url


def saved_once(url: str, directory: Path) -> Job:
    return started(connect(url), directory, 5)[0]


def test_advice_names_the_catalog_without_its_password(postgres: str) -> None:
    url = new_postgres_database(postgres).replace("//postgres@", "//postgres:s3cret@")
    connect(url)
    done = ckptstore("--db", url, "tier", "list", CKPTSTORE_URL="")
    shown = urls.shown(urls.database_url(url))
    assert "***" in shown
    assert done.out == f"no tiers: ckptstore --db '{shown}' tier add NAME URL declares one\n"
    assert "s3cret" not in done.out + done.err


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("postgresql://someone:s3cret@127.0.0.1:1/db", 4, "cannot reach the catalog"),
        ("mysql://someone:s3cret@127.0.0.1/db", 2, "a catalog cannot be on 'mysql'"),
        ("postgresql://someone:s3cret@127.0.0.1:port/db", 2, "the catalog's URL cannot be read"),
        ("postgresql:/someone:s3cret@host/db", 2, "neither a URL nor the path of a file"),
        ("someone:s3cret@host/db", 2, "neither a URL nor the path of a file"),
        ("host=h password=s3cret", 2, "neither a URL nor the path of a file"),
        ("sqlite:///c.db?timeout=abc", 2, "takes no options"),
        ("sqlite://someone:s3cret@tmp/c.db", 2, "three slashes"),
        ("~nosuchuser/c.db", 2, "names a home that there is not"),
        ("/nowhere/catalog.db", 4, "there is no directory /nowhere"),
        ("sqlite:///nowhere/c.db", 4, "/nowhere: create it"),
        ("/proc/catalog.db", 4, "check that /proc can be written to"),
    ],
)
def test_a_catalog_that_cannot_be_used_is_one_line(url: str, code: int, message: str) -> None:
    for command in (["list"], ["db", "upgrade"]):
        result = ckptstore("--db", url, *command)
        assert_one_line(result, code, message)
        assert "s3cret" not in result.out + result.err
        assert_one_line(ckptstore(*command, CKPTSTORE_URL=url), code, message)


def test_an_empty_name_is_not_the_default_catalog(sqlite_url: str) -> None:
    """`--db "$CATALOG"` with a variable that is not set: gc would remove files of another catalog's runs."""
    for arguments in (
        ["--db", "", "runs"],
        ["runs", "--db="],
        ["doctor", "--db", ""],
        ["db", "current", "--db="],
        ["--db="],
    ):
        assert_one_line(ckptstore(*arguments, CKPTSTORE_URL=sqlite_url), 2, "the URL of the catalog is empty; name one")
    with pytest.raises(UsageError, match="the URL of the catalog is empty"):
        connect("")
    assert ckptstore("runs", "--db", sqlite_url, CKPTSTORE_URL="").code == 0


def test_a_home_that_cannot_be_written_to_is_one_line() -> None:
    result = ckptstore("list", XDG_DATA_HOME="/proc/nowhere", CKPTSTORE_URL="")
    assert_one_line(result, 4, "cannot use the catalog sqlite:////proc/nowhere/ckptstore/catalog.db")


def test_the_help_of_no_command_is_cut_on_a_terminal_of_80_columns() -> None:
    summaries = cli.get_help(
        click.Context(cli, info_name="ckptstore", terminal_width=80, **cli.context_settings)
    ).partition("Commands:")[2]
    assert "..." not in summaries


def test_a_time_that_is_none_is_refused_by_name(sqlite_url: str) -> None:
    with pytest.raises(UsageError, match="since='1d' is no timedelta"):
        connect(sqlite_url).saves(since="1d")  # type: ignore[arg-type]


def test_a_group_without_a_command_has_help() -> None:
    result = ckptstore("db")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: ckptstore")
    assert len(result.err.splitlines()) > 5


def test_ckptstore_alone_says_where_one_is(sqlite_url: str, tmp_path: Path) -> None:
    """It makes no catalog, and says what to do in an empty one."""
    missing = ckptstore("--db", str(tmp_path / "none.db"))
    assert missing.code == 0
    assert missing.out.startswith(f"no catalog yet: sqlite:///{tmp_path}/none.db is made by the first training")
    assert not (tmp_path / "none.db").exists()
    empty = ckptstore("--db", sqlite_url)
    assert empty.out.startswith(f"catalog: {sqlite_url}, without runs yet\n")
    for shown in (missing.out, empty.out):
        assert "  launch = ckptstore.mindspore.join('my-run')\n" in shown
        assert "ckptstore scan DIR --dry-run" in shown
    launch = saved_once(sqlite_url, tmp_path)
    found = ckptstore("--db", sqlite_url)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"catalog: {sqlite_url}, 1 run\n")
    for command in (f"ckptstore resolve {launch.run} --explain", f"ckptstore list {launch.run}", "ckptstore --help"):
        assert f"\n{command} " in found.out
    away = ckptstore(CKPTSTORE_URL="postgresql://me@127.0.0.1:1/x")
    assert (away.code, away.out) == (4, "")


def test_of_many_runs_those_that_need_somebody_come_first(sqlite_url: str, tmp_path: Path) -> None:
    catalog = connect(sqlite_url)
    for number in range(11):
        launch = catalog.join(f"run-{number:02}", launch_id="L1")
        launch.resolve()
    set_ending(launch, 1, 1, "RuntimeError")
    shown = ckptstore("--db", sqlite_url).out
    assert [line.split()[0] for line in shown.splitlines()[2:5]] == ["run", "run-10", "run-00"]
    assert "… and 1 more: ckptstore runs\n" in shown
    assert "\nckptstore doctor run-10 " in shown


def test_an_error_with_json_is_one_object_on_stderr(sqlite_url: str) -> None:
    unknown = ckptstore("--db", sqlite_url, "show", "digits", "--json")
    assert (unknown.code, unknown.out) == (2, "")
    assert json.loads(unknown.err) == {
        "error": f"no run 'digits' in {sqlite_url}: this catalog has no runs",
        "hint": (
            "check --db and CKPTSTORE_URL; if the catalog was lost, rebuild it from the journals: ckptstore scan DIR"
        ),
        "exit_code": 2,
    }
    catalog = connect(sqlite_url)
    catalog.join("digits", rank=0, world_size=1, launch_id="L1")
    mistyped = json.loads(ckptstore("--db", sqlite_url, "resolve", "digts@best:loss", "--json").err)
    assert mistyped["hint"] == "did you mean 'digits'? to list the runs: ckptstore runs"
    usage = ckptstore("--db", sqlite_url, "list", "--json", "--limit", "best")
    told = json.loads(usage.err)
    assert (usage.code, told["exit_code"]) == (2, 2)
    assert "'best' is not a valid whole number" in told["error"]


def test_what_is_not_there_is_one_exit_code(sqlite_url: str, tmp_path: Path) -> None:
    """A tag that never was, and arguments in another order; runs, steps and states are in the transcripts."""
    run = saved_once(sqlite_url, tmp_path).run
    assert_one_line(ckptstore("--db", sqlite_url, "untag", run, "nope"), 2, f"run '{run}' has no tag 'nope'")
    swapped = ckptstore("--db", sqlite_url, "tag", run, "good", "5")
    assert_one_line(swapped, 2, "give RUN STEP NAME, or RUN@STATE NAME.")
    unnamed = ckptstore("--db", sqlite_url, "tag", run, "5")
    assert_one_line(unnamed, 2, f"NAME is missing: ckptstore tag {run} 5 NAME.")
    apart = ckptstore("--db", sqlite_url, "resolve", run, "5")
    assert_one_line(apart, 2, f"name that state by ckptstore resolve {run}@5.")
    wrong = ckptstore("--db", sqlite_url, "show", run, "best")
    assert_one_line(wrong, 2, "'best' is no step; other states have one word: RUN@TAG, RUN@best:METRIC.")


def test_a_file_that_is_no_catalog_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("something else\n" * 1000)
    assert_one_line(ckptstore("--db", str(path), "list"), 4, "is not a catalog")
    assert path.read_text() == "something else\n" * 1000


def test_a_read_only_directory_is_one_line(tmp_path: Path) -> None:
    """Root may write wherever it is forbidden, but not to a file system that is mounted read-only."""
    if os.geteuid() == 0:
        command = f"mount -t tmpfs -o ro tmpfs {tmp_path} && exec {COMMAND} --db {tmp_path}/catalog.db list"
        done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, check=False)
        if "mount" in done.stderr or "unshare" in done.stderr:
            pytest.skip("this sandbox lets nobody mount")
        result = Result(done.returncode, done.stdout, done.stderr)
    else:
        tmp_path.chmod(0o500)
        result = ckptstore("--db", str(tmp_path / "catalog.db"), "list")
    assert_one_line(result, 4, f"check that {tmp_path} can be written to")


def test_a_catalog_in_a_closed_directory_or_of_an_impossible_name_is_not_a_missing_one(tmp_path: Path) -> None:
    """Doctor ended without a page there, and other commands with a traceback."""
    there = str(tmp_path / "catalog.db")
    connect(there).database.disconnect()
    tmp_path.chmod(0o600)
    for asked in ((), ("db", "current")):
        assert_one_line(as_who_is_not_root("--db", there, *asked), 4, f"check that this user may enter {tmp_path}")
    page = as_who_is_not_root("--db", there, "doctor")
    assert (page.code, page.err) == (4, "")
    assert f"check that this user may enter {tmp_path}" in page.out
    for asked in ((), ("runs",), ("db", "current")):
        assert_one_line(ckptstore("--db", f"/{'a' * 300}", *asked), 4, "its path cannot be used (File name too long)")


def test_a_step_of_more_digits_than_python_reads(sqlite_url: str, tmp_path: Path) -> None:
    digits = "9" * 5_000
    for asked in (("show", f"run@{digits}"), ("scan", str(tmp_path), "--step", f"net.ckpt={digits}")):
        assert_one_line(ckptstore("--db", sqlite_url, *asked), 2, "not a whole number from 0 to")


def test_a_catalog_that_this_user_may_not_use_is_named(sqlite_url: str, tmp_path: Path) -> None:
    job, _ = started(connect(sqlite_url), tmp_path / "ckpt", 1)
    job.catalog.database.disconnect()
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    path.chmod(0)
    asked = ("--db", sqlite_url, "list")
    assert_one_line(as_who_is_not_root(*asked), 4, f"check that {path} can be read by this user")
    path.chmod(0o444)
    pinned = as_who_is_not_root("--db", sqlite_url, "pin", "run", "1")
    assert_one_line(pinned, 4, f"check that {path} can be written to by this user")
    path.chmod(0o644)
    tmp_path.chmod(0o600)
    assert_one_line(as_who_is_not_root(*asked), 4, f"check that this user may enter {tmp_path}")
    tmp_path.chmod(0o700)
    Path(f"{path}-wal").touch(mode=0)
    Path(f"{path}-wal").chmod(0)
    assert_one_line(as_who_is_not_root(*asked), 4, f"check that {path}-wal can be read by this user")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["resolve", "--help"], ["db", "--help"]])
def test_help_needs_nothing_heavy(arguments: list[str]) -> None:
    assert loaded(arguments, "sqlalchemy", "rich", "blake3", *HEAVY) == set()


@pytest.mark.parametrize("arguments", [["runs"], ["list"], ["list", "run", "--json"], ["resolve", "run"], ["doctor"]])
def test_the_command_line_never_imports_mindspore(sqlite_url: str, tmp_path: Path, arguments: list[str]) -> None:
    saved_once(sqlite_url, tmp_path)
    assert loaded(["--db", sqlite_url, *arguments], *HEAVY) == set()


def test_a_log_on_a_full_disk_leaves_the_work_and_the_exit_code(sqlite_url: str, tmp_path: Path) -> None:
    """A warning ended the command with exit code 1 in the middle of its work, and so did its own error."""
    job, _ = started(connect(sqlite_url), tmp_path / "ckpt", 1, 2, 3, 4)
    job.catalog.database.disconnect()
    begin = "import logging, sys; from ckptstore.cli import main; main.outlive_readers(); main.log_lines()"
    script = f"{begin}; logging.getLogger('ckptstore').warning('told'); main.main()"
    with Path("/dev/full").open("w") as full:
        for asked, code in ((("gc", "run", "--keep-last", "2", "--apply"), 0), (("list", "none"), 2)):
            command = [sys.executable, "-c", script, "--db", sqlite_url, *asked]
            assert subprocess.run(command, stdout=subprocess.PIPE, stderr=full, check=False).returncode == code
    assert len(list(tmp_path.glob("ckpt/rank_*/*.ckpt"))) == 4


def test_a_reader_that_goes_away_is_no_error(sqlite_url: str, tmp_path: Path) -> None:
    started(connect(sqlite_url), tmp_path, *range(1, 200))
    script = f"{COMMAND} --db {sqlite_url} list --files --json | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[\n", "")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["resolve", "run", "--step", "15"], 3),
        (["doctor", "nobody"], 2),
        (["runs"], 0),
        (["--version"], 0),
    ],
)
def test_a_reader_that_goes_away_leaves_the_exit_code(url: str, arguments: list[str], code: int) -> None:
    command = [COMMAND, "--db", url, *arguments]
    assert ckptstore("--db", url, *arguments).code == code
    read, write = os.pipe()
    os.close(read)
    gone = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    all_gone = subprocess.run(command, stdout=write, stderr=write, check=False)
    os.close(write)
    assert (gone.returncode, all_gone.returncode) == (code, code)
    assert b"Broken pipe" not in gone.stderr
    assert code or not gone.stderr


@pytest.mark.parametrize(
    "arguments", [["runs"], pytest.param(["resolve", "run"], marks=pytest.mark.long), ["list", "--json"], ["--version"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_cannot_be_printed_is_one_line(
    sqlite_url: str, tmp_path: Path, arguments: list[str], unbuffered: str
) -> None:
    saved_once(sqlite_url, tmp_path)
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        command = [COMMAND, "--db", sqlite_url, *arguments]
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    message = "the output cannot be written: No space left on device"
    assert done.stderr == (
        json.dumps({"error": message, "hint": "", "exit_code": 1}) + "\n"
        if "--json" in arguments
        else f"ckptstore: {message}\n"
    )


@pytest.mark.parametrize("arguments", [["runs"], ["list"], ["resolve", "run"], ["doctor"]])
def test_a_closed_stdout_is_no_error(sqlite_url: str, tmp_path: Path, arguments: list[str]) -> None:
    saved_once(sqlite_url, tmp_path)
    script = f"{COMMAND} --db {sqlite_url} {' '.join(arguments)} >&-"
    done = subprocess.run(["bash", "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["sync", os.fsdecode(b"\xff")], 1, "names must be UTF-8"),
        (["show", os.fsdecode(b"run@\xff")], 2, "names no state"),
        (["gc", "x" * 300, "--keep-last", "1"], 1, "File name too long"),
    ],
)
def test_names_that_cannot_be_are_one_line(
    sqlite_url: str, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    saved_once(sqlite_url, tmp_path)
    assert_one_line(ckptstore("--db", sqlite_url, *arguments), code, said)


def test_a_directory_that_is_gone_is_one_line(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = f"cd {tmp_path / 'gone'} && rmdir {tmp_path / 'gone'} && {COMMAND} --db {sqlite_url} scan ."
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ckptstore: the current directory: No such file or directory\n"


def test_looking_at_a_schema_makes_no_catalog(tmp_path: Path) -> None:
    missing = tmp_path / "c.db"
    current = ckptstore("--db", str(missing), "db", "current")
    assert (current.code, "schema none" in current.out) == (0, True)
    told = ckptstore("--db", str(missing), "db", "current", "--json").json
    assert (told["schema"], told["needed"]) == (None, REVISION)
    upgrade = f"run: ckptstore --db sqlite:///{missing} db upgrade"
    for url in ("", "mysql://there"):
        assert_one_line(ckptstore("--db", str(missing), "db", "check", CKPTSTORE_URL=url), 4, upgrade)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [":memory:", "  "])
def test_a_catalog_needs_a_file(name: str) -> None:
    assert_one_line(ckptstore("--db", name, "runs"), 2, "needs a file")


def test_a_catalog_that_is_no_file_says_what_to_do(tmp_path: Path) -> None:
    assert_one_line(ckptstore("--db", str(tmp_path), "runs"), 4, "it is a directory: give a file in it")


def test_a_file_name_that_is_no_text_can_be_printed(sqlite_url: str, tmp_path: Path) -> None:
    """Bytes that are no UTF-8, and what would clear the screen."""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / os.fsdecode(b"net-1_\xff\x1b[2J.ckpt")).write_bytes(b"x")
    scanned = ckptstore("--db", sqlite_url, "scan", str(tmp_path / "ckpt"))
    assert scanned.code == 0, scanned
    assert "net-1_\\udcff\\x1b[2J.ckpt" in scanned.out


def test_no_launch_is_cut_on_a_narrow_terminal(sqlite_url: str, tmp_path: Path) -> None:
    launch = connect(sqlite_url).join("run")
    launch.set_steps_per_epoch(10)
    for step in (5, 10, 15):
        launch.register(ckpt_bytes.write(tmp_path / f"net-1_{step}.ckpt", step), global_step=step)
    for width in (60, 120):
        assert launch.id in on_a_terminal("--db", sqlite_url, "list", "run", width=width)
        planned = on_a_terminal("--db", sqlite_url, "gc", "run", "--keep-last", "2", width=width)
        assert planned.count(launch.id) >= 3
        assert "removing" not in planned
    rows = on_a_terminal("--db", sqlite_url, "list", "run").splitlines()
    assert [row.split()[0] for row in rows] == ["step", "run", "15", "10", "5"]
    assert max(map(len, rows)) <= 80


def test_a_newline_in_a_path_begins_no_line(sqlite_url: str, tmp_path: Path) -> None:
    job, ranks = started(connect(sqlite_url), tmp_path / "ckpt\nFORGED")
    files = job.save(ranks, 5, 10, 15)
    Path(files[0].path).unlink()
    newer = Path(jsonl.journals_in(str(job.folder(1)))[0])
    with newer.open("ab") as file:
        file.write(jsonl.encode({"v": 7}))
    (job.folder(1) / "model_best.pth.tar").touch()
    for rank in (0, 1):
        (job.folder(rank) / ".ckptstore/trash").touch()  # nothing can be moved there
    for arguments, code in (
        (["resolve", "run", "--explain"], 0),
        (["sync", str(tmp_path)], 0),
        (["verify", "run"], 6),
        (["doctor", "run"], 0),
        (["list", "--files"], 0),
        (["scan", str(job.directory), "--run", "run"], 1),  # a journal has entries of a newer ckptstore
        (["gc", "run", "--keep-last", "1", "--floor", "1", "--apply"], 1),
        (["resolve", "run", str(job.directory), "--format", "meta"], 0),
        (["scan", f"{job.directory}/nowhere"], 2),
    ):
        shown = ckptstore("--db", sqlite_url, *arguments)
        assert shown.code == code, shown
        assert "ckpt\\nFORGED" in shown.out + shown.err
        assert not [line for line in (shown.out + shown.err).splitlines() if line.startswith("FORGED")]
    paths = ckptstore("--db", sqlite_url, "resolve", "run", "--format", "paths")
    assert (paths.code, paths.out) == (5, "")
    assert "is more than one line" in paths.err.splitlines()[-1]


def test_what_is_no_checkpoint_of_mindspore_in_the_words_of_other_tools(database_url: str, tmp_path: Path) -> None:
    """Seed 003: the best model of a node's first rank, and TensorFlow's of card 0."""
    root = tmp_path / "job"
    best = pytorch(root / "rank_0" / "model_best.pth.tar", epoch=5)
    told = ckptstore("--db", database_url, "scan", str(root))
    assert told.code == 7
    assert "left out" in told.out
    assert f"scan {root} --run job --step {best}=STEP\n" in told.out
    asked = ["--step", f"{best}=50", "--steps-per-epoch", "10", "--world-size", "2", "--replicas", "dp"]
    done = ckptstore("--db", database_url, "scan", str(root), *asked, "--json")
    assert (done.code, [file["format"] for file in done.json["adopted"]]) == (0, ["pytorch"])
    env = ckptstore("--db", database_url, "resolve", "job", "--format", "env")
    assert env.out == "export RESTORE_RANKS=0\nexport RESTORE_RANKS_MAP='{\"0,1\": 0}'\n"
    assert ckptstore("--db", database_url, "resolve", "job", "--format", "paths").out == f"{best}\n{best}\n"

    prefix = tensorflow(tmp_path / "other" / "ckpt0")
    done = ckptstore("--db", database_url, "scan", str(prefix.parent), "--step", f"{prefix}=1000")
    assert done.out.startswith("run other: 1 state of 1 launch adopted, newest step 1000\n")
    assert ckptstore("--db", database_url, "resolve", "other", "--format", "paths").out == f"{prefix}\n"


def test_a_journal_that_cannot_be_reached_is_exit_code_1(run: Job, tmp_path: Path) -> None:
    """Here by its path, which no catalog holds; a disk that is away must not pass for one with nothing to do."""
    hidden = os.fsdecode(os.fsencode(run.folder(1)) + b"\xff")
    run.folder(1).rename(hidden)
    told = f"skipped: {tmp_path}/rank_1\\udcff/.ckptstore/rank_1-"
    for command in ("sync", "scan"):
        done = ckptstore("--db", str(tmp_path / f"{command}.db"), command, f"{tmp_path}/")
        assert (done.code, done.err) == (1, "")
        assert told in done.out
        of_other = ckptstore("--db", str(tmp_path / f"{command}.db"), command, f"{run.folder(0)}/")
        assert (of_other.code, of_other.err) == (0, "")


def test_sync_takes_up_what_journals_say(url: str, run: Job, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    done = ckptstore("--db", other, "sync", f"{tmp_path}/", "--json")
    assert (done.code, done.json["runs"], done.json["journals"], done.json["records"]) == (0, ["run"], 2, 6), done.err
    again = ckptstore("--db", other, "sync")
    assert again.out == "2 journals read, 0 with new lines: 0 records added\n"
    assert ckptstore("--db", other, "resolve", "run", "--json").json["global_step"] == 10


def test_explain_of_a_wide_job_stays_readable(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    """1,024 ranks, of whose newest files 600 are gone and one was never recorded."""
    job = Job(catalog, tmp_path, world_size=1024)
    rank = catalog.join("run", rank=0, world_size=1024, launch_id="L1")
    older, newer = (rank.register(job.write(rank, step), global_step=step) for step in (5, 10))
    gone = [replace(newer, rank=rank, path=f"{newer.path}.{rank}") for rank in range(1, 601)]
    there = [replace(newer, rank=rank) for rank in range(601, 1024) if rank != 700]
    whole = [replace(older, rank=rank) for rank in range(1, 1024)]
    put_files(catalog, [*gone, *there, *whole])
    text = ckptstore("--db", database_url, "resolve", "run", "--explain").out
    assert "step 10 (periodic, launch L1): 423 of 1024 ranks have a file" in text
    assert "ranks 1-600: missing_file: 600 in all, such as: " in text
    assert "rank 700: missing_rank: no file of rank 700 was recorded" in text
    picture = [each for each in text.splitlines() if each.startswith(("one sign for each 16 of ranks 0 to", "step "))]
    assert picture[1] == "step 10  " + "-" * 38 + "#" * 5 + "?" + "#" * 20
    assert picture[2] == "step  5  " + "#" * 64 + " chosen"
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) < 600
