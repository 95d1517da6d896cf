"""`ckptstore doctor`: its page, its JSON, its exit codes."""

import os
import re
import shutil
from pathlib import Path

import pytest

from ckptstore.api import connect
from ckptstore.core.model import Kind
from tests.command_line import as_who_is_not_root, ckptstore
from tests.doctor.checkups import unchanged
from tests.jobs import Job, begun, set_ending

LAUNCH = "20261121T034217-0d35d4"


@pytest.fixture
def run(sqlite_url: str, tmp_path: Path) -> Job:
    """A data-parallel run of two ranks of which the second has stopped saving."""
    job, ranks = begun(connect(sqlite_url), tmp_path / "data", 10, layout="data_parallel")
    job.save(ranks[:1], 20)
    job.save(ranks[:1], 30)
    job.catalog.database.disconnect()
    return job


def test_a_page(run: Job, sqlite_url: str, tmp_path: Path) -> None:
    with unchanged(tmp_path, sqlite_url):
        page = ckptstore("--db", sqlite_url, "doctor", "run")
    lines = page.out.splitlines()
    assert (page.code, page.err) == (0, "")
    assert [line.split()[1] for line in lines[:4]] == ["program", "database", "catalog_disk", "schema"]
    assert lines[4:6] == ["", "run run"]
    (at,) = [at for at, line in enumerate(lines) if line.split()[1:2] == ["ranks"]]
    assert lines[at].startswith("warning  ranks         rank 1 (on ")
    assert lines[at].endswith(") saved step 10 last; the newest save is step 30")
    assert lines[at + 1].startswith(" " * 23 + "-> see the logs of these ranks")
    assert lines[-1] == "0 problems, 1 warning"
    assert all(line.isascii() for line in lines)


def test_of_several_runs_only_what_there_is_to_do(run: Job, sqlite_url: str, tmp_path: Path) -> None:
    well = connect(sqlite_url).join("well")
    (tmp_path / "net-1_5.ckpt").write_bytes(b"1")
    well.register(tmp_path / "net-1_5.ckpt", global_step=5)
    lines = ckptstore("--db", sqlite_url, "doctor").out.splitlines()
    (well_line,) = [line for line in lines if "run well" in line]
    assert well_line.startswith("OK       run well      step 5, saved ")
    at = lines.index("run run")
    assert at > lines.index(well_line)
    assert [line.split()[:2] for line in lines[at + 1 : -2] if not line.startswith(" ")][:2] == [
        ["OK", "restorable"],
        ["warning", "ranks"],
    ]


def test_a_run_without_a_save_begins_anew(sqlite_url: str, tmp_path: Path) -> None:
    _, ranks = begun(connect(sqlite_url), tmp_path / "data")
    set_ending(ranks[0], 3, 3, "RuntimeError")
    page = ckptstore("--db", sqlite_url, "doctor", "run").out
    assert "start the job again: nothing was saved yet, so it begins at step 0" in page
    assert "goes on from the newest state" not in page


def test_what_this_user_may_not_read(run: Job, sqlite_url: str, tmp_path: Path) -> None:
    home = run.folder(1)
    (journal,) = (home / ".ckptstore").glob("*.jsonl")
    with journal.open("ab") as file:
        file.write(b"not ours\n")
    for path, reason in ((journal, "no permission, or the disk fails"), (home / ".ckptstore", "Permission denied")):
        mode = path.stat().st_mode
        path.chmod(0)
        told = as_who_is_not_root("--db", sqlite_url, "doctor", "run", "--json")
        path.chmod(mode)
        checks = {check["name"]: check for check in told.json["checks"]}
        assert told.code == 0
        assert {checks[name]["status"] for name in ("restorable", "directories")} == {"ok"}
        assert checks["journals"]["status"] == "warning"
        assert checks["journals"]["detail"].startswith(f"files in {path} cannot be read ({reason}); apart from that: ")
    home.chmod(0)
    told = as_who_is_not_root("--db", sqlite_url, "doctor", "run")
    home.chmod(0o755)
    assert f"cannot be seen: {home} (Permission denied)" in told.out


def test_what_this_user_may_not_read_without_the_catalog(
    run: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = run.folder(1) / ".ckptstore"
    hidden.chmod(0)
    monkeypatch.setenv("CKPTSTORE_DIRECTORIES", str(run.directory))
    page = as_who_is_not_root("--db", str(tmp_path / "none.db"), "doctor", "run")
    hidden.chmod(0o755)
    assert (page.code, page.err) == (4, "")
    assert f"{hidden} cannot be read: Permission denied" in page.out
    assert "step 30" in page.out


def test_exit_codes(run: Job, sqlite_url: str, tmp_path: Path) -> None:
    shutil.rmtree(run.directory)
    assert ckptstore("--db", sqlite_url, "doctor").code == 1
    away = ckptstore("--db", str(tmp_path / "none.db"), "doctor")
    assert (away.code, away.err) == (4, "")
    assert "problem  database" in away.out
    unknown = ckptstore("--db", sqlite_url, "doctor", "other")
    assert unknown.code == 2
    assert unknown.err.startswith("ckptstore: no run 'other'")
    assert ckptstore("--db", "mysql://me@host/x", "doctor").code == 2


def as_in_the_docs(page: str) -> list[str]:
    """Without what differs from one machine and moment to another."""
    page = re.sub(r"(ckptstore|Python|MindSpore) \d[\d.]+", r"\1 VERSION", page)
    page = re.sub(r"\b\d[\d.]* [kMGT]?B\b", "SIZE", page)
    page = re.sub(r"\b\d[\d.]* (ms|s|min|h)\b", "WHILE", page)
    page = re.sub(r"room for (more than )?\d+ (more )?saves", "room for saves", page)
    page = re.sub(r"\(on [\w.-]+\)", "(on HOST)", page)
    return re.sub(r"\b(ext4|overlay|xfs|btrfs)\b", "DISK", page).splitlines()


def test_the_page_in_the_docs(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "check-health.md").read_text()
    (shown,) = re.findall(r"```console\n\$ ckptstore doctor digits\n(.*?)```", guide, re.DOTALL)
    data = tmp_path / "data" / "digits"
    data.mkdir(parents=True)
    catalog = connect(str(data.parent / "catalog.db"))
    ranks = [
        catalog.join("digits", rank=rank, world_size=4, launch_id=LAUNCH, layout="data_parallel") for rank in range(4)
    ]
    for launch in ranks:
        launch.resolve()
        home = str(data / f"rank_{launch.rank}")
        launch.add_source(home, kind=Kind.PERIODIC, prefix="lenet", breakpoint_prefix="lenet", names_before=())
    for step in (30, 35, 40):
        for launch in ranks if step == 30 else ranks[:3]:
            path = data / f"rank_{launch.rank}" / f"lenet-2_{step - 28}.ckpt"
            path.touch()
            os.truncate(path, 494_182)
            launch.register(path, global_step=step)
    for launch in ranks[:3]:
        set_ending(launch, 40, 40, "RuntimeError")
    ranks[2].recorder.behind = True  # the catalog was away by then
    set_ending(ranks[2], 40, 40, "RuntimeError")
    catalog.database.disconnect()
    page = ckptstore("--db", str(data.parent / "catalog.db"), "doctor", "digits")
    assert as_in_the_docs(page.out.replace(str(tmp_path), "")) == as_in_the_docs(shown)
