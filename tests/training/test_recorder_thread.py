"""The recorder's thread: what it never does to training, and what it does in the end."""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog.engine import Database
from ckptstore.core.model import Checkpoint, FileState, Kind, Rule
from ckptstore.disk import files
from ckptstore.errors import CatalogUnavailableError
from ckptstore.resume.register import describe
from ckptstore.training import companions
from ckptstore.training import recorder_thread as module
from ckptstore.training.rank_launch import RankLaunch
from ckptstore.training.recorder_thread import RecorderThread
from tests import ckpt_bytes


@pytest.fixture
def catalog(sqlite_url: str) -> Catalog:
    return connect(sqlite_url)


@pytest.fixture
def launch(catalog: Catalog, tmp_path: Path) -> RankLaunch:
    joined = catalog.join("run")
    joined.set_steps_per_epoch(10)
    home = str(tmp_path / "ckpt")
    joined.add_source(home, kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
    return joined


def saved(launch: RankLaunch, tmp_path: Path, step: int) -> Checkpoint:
    name = f"net-{(step - 1) // 10 + 1}_{(step - 1) % 10 + 1}.ckpt"
    path = ckpt_bytes.write(tmp_path / "ckpt" / name, step, step)
    found = files.facts(str(path))
    return describe(
        launch.facts,
        rank=0,
        path=path,
        kind=Kind.PERIODIC,
        global_step=step,
        optimizer_step=step,
        mtime_ns=found.mtime_ns,
    )


def test_a_disk_that_hangs_does_not_make_training_wait_and_loses_nothing(
    catalog: Catalog, launch: RankLaunch, tmp_path: Path
) -> None:
    """After a thousand saves the next ones were only noted, and some metrics and quarantines were not recorded."""
    recorder = RecorderThread(launch)
    go_on = threading.Event()
    recorder.call(go_on.wait)
    recorder.submit(saved(launch, tmp_path, 1), asynchronous=False)
    for _ in range(1000):
        recorder.call(lambda: None)
    recorder.submit(saved(launch, tmp_path, 2), asynchronous=False)
    recorder.measure(2, {"loss": 0.5})
    recorder.quarantine_after(1, "wrong")
    go_on.set()
    assert recorder.flush(60)
    found = [(file.global_step, file.state, file.metrics, file.quarantine) for file in catalog.files("run")]
    assert found == [(2, FileState.COMPLETE, {"loss": 0.5}, "wrong"), (1, FileState.COMPLETE, {}, "")]


def test_a_thread_that_could_not_be_started_is_started_later(
    catalog: Catalog,
    launch: RankLaunch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = threading.Thread.start

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    recorder = RecorderThread(launch)
    monkeypatch.setattr(threading.Thread, "start", refused)
    recorder.submit(saved(launch, tmp_path, 1), asynchronous=False)
    assert not recorder.flush(), "at once: nobody works on it"
    monkeypatch.setattr(threading.Thread, "start", start)
    recorder.submit(saved(launch, tmp_path, 2), asynchronous=False)
    assert recorder.flush(60)
    assert [file.global_step for file in catalog.files("run")] == [2, 1]
    assert caplog.messages == ["can't start new thread: its work waits"]


def test_a_child_of_a_fork_neither_waits_nor_writes_and_says_so_once(
    launch: RankLaunch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """MindSpore's async_save="process" forks; the thread is in the parent only, and its locks may be taken."""
    recorder = RecorderThread(launch)
    recorder.submit(saved(launch, tmp_path, 1), asynchronous=False)
    assert recorder.flush(60)
    with recorder._idle:
        child = os.fork()
        if not child:
            recorder.call(lambda: os._exit(1))
            recorder.submit(saved(launch, tmp_path, 2), asynchronous=False)
            recorder.close()
            told = ["this process is a fork of the one that joined: only the next start registers its saves"]
            os._exit(0 if recorder.flush() and not recorder._open_jobs and caplog.messages == told else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_no_companion_for_a_file_that_mindspore_deleted_since(launch: RankLaunch, tmp_path: Path) -> None:
    """The thread lags behind: `keep_checkpoint_max` deletes a file between its record and its companion."""
    recorder = RecorderThread(launch, on_recorded=lambda file: Path(file.path).unlink())
    file = saved(launch, tmp_path, 1)
    recorder.submit(file, asynchronous=False)
    recorder.keep_beside(file.path, 1, lambda: {"callbacks": {}})
    assert recorder.flush(60)
    assert [path.name for path in (tmp_path / "ckpt").iterdir() if path.is_file()] == []


def test_a_companion_is_of_the_whole_file_that_another_thread_writes(
    catalog: Catalog, launch: RankLaunch, tmp_path: Path
) -> None:
    recorder = RecorderThread(launch)
    file = replace(saved(launch, tmp_path, 1), mtime_ns=None)
    Path(file.path).rename(tmp_path / "not there yet")
    kept = threading.Event()
    recorder.submit(file, asynchronous=True)
    recorder.keep_beside(file.path, 1, lambda: {"waited": 7})
    recorder.call(kept.set)
    assert kept.wait(60)
    (tmp_path / "not there yet").rename(file.path)
    assert recorder.flush(60)
    recorder.close()
    (whole,) = catalog.files("run")
    assert json.loads(companions.read(whole).content)["waited"] == 7


def test_durable_files_are_on_the_disk_before_they_are_registered(
    catalog: Catalog, launch: RankLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        seen.append((str(Path(f"/proc/self/fd/{file}").readlink()), len(catalog.files("run"))))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    recorder = RecorderThread(launch, durable=True)
    file = saved(launch, tmp_path, 1)
    recorder.submit(file, asynchronous=False)
    assert recorder.flush(60)
    assert seen[:2] == [(file.path, 0), (str(tmp_path / "ckpt"), 0)]
    assert len(catalog.files("run")) == 1


def test_a_file_that_cannot_be_made_durable_is_not_registered(
    catalog: Catalog,
    launch: RankLaunch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(_: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "make_durable", refuse)
    recorder = RecorderThread(launch, durable=True)
    recorder.submit(saved(launch, tmp_path, 1), asynchronous=False)
    assert recorder.flush(60)
    assert catalog.files("run") == []
    assert "Input/output error" in caplog.text
    assert "Traceback" not in caplog.text


def test_the_end_waits_no_longer_than_it_must(
    launch: RankLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All is in the journal and the catalog refuses at once: there is nothing to wait for, and it is said once."""

    def refuse(**_: object) -> Any:
        raise CatalogUnavailableError("no such server")

    recorder = RecorderThread(launch)
    monkeypatch.setattr(launch.database, "write", refuse)
    monkeypatch.setattr(module, "FLUSH_SECONDS", 3600.0)
    for step in range(1, 4):
        recorder.submit(saved(launch, tmp_path, step), asynchronous=False)
    recorder.finish()
    recorder.close()
    assert caplog.text.count("no such server") == 1
    assert caplog.text.count("the next start takes them up") == 1


@pytest.mark.parametrize(("jobs", "said"), [(1, "1 record was not made yet"), (2, "2 records were not made yet")])
def test_what_is_left_is_counted_as_records(
    launch: RankLaunch, caplog: pytest.LogCaptureFixture, jobs: int, said: str
) -> None:
    """A start that is refused before its first step has told where it saves, and saved nothing."""
    recorder, gate = RecorderThread(launch), threading.Event()
    for _ in range(jobs):
        recorder.call(gate.wait)
    recorder._seconds_left = 0.0
    recorder.finish()
    gate.set()
    recorder.close()
    assert f"{said}; the next start looks on disk" in caplog.text


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_file_that_no_catalog_can_hold_keeps_no_other_waiting(
    catalog: Catalog, launch: RankLaunch, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, asynchronous: bool
) -> None:
    recorder = RecorderThread(launch)
    file = replace(saved(launch, tmp_path, 1), mtime_ns=None)
    os.utime(file.path, (9_300_000_000, 9_300_000_000))
    if Path(file.path).stat().st_mtime < 9_300_000_000:
        pytest.skip("this file system has no such times")
    if asynchronous:
        Path(file.path).rename(tmp_path / "later.ckpt")
    recorder.submit(file, asynchronous=asynchronous)
    recorder.submit(saved(launch, tmp_path, 2), asynchronous=False)
    if asynchronous:
        (tmp_path / "later.ckpt").rename(file.path)
    assert recorder.flush(60)
    whole = [found.global_step for found in catalog.files("run") if found.state is FileState.COMPLETE]
    assert whole == [2]
    assert caplog.text.count("its modification time in ns is 9300000000000000000") == 1
    assert "Traceback" not in caplog.text


def test_a_file_that_another_thread_still_writes_is_registered_once_it_has_all_parameters(
    catalog: Catalog, launch: RankLaunch, tmp_path: Path
) -> None:
    recorder = RecorderThread(launch)
    recorder.state_names = frozenset({"weight", "global_step", "moments"})
    file = replace(saved(launch, tmp_path, 1), mtime_ns=None)
    so_far = Path(file.path).read_bytes()  # the optimizer's counter is in it already
    looked = threading.Event()
    recorder.submit(file, asynchronous=True)
    recorder.call(looked.set)
    assert looked.wait(60)
    assert [found.state for found in catalog.files("run")] == [FileState.IN_PROGRESS]
    Path(file.path).write_bytes(so_far + ckpt_bytes.value("moments", "Float32", (1,), b"\0" * 4))
    assert recorder.flush(60)
    recorder.close()
    (found,) = catalog.files("run")
    assert (found.state, found.size) == (FileState.COMPLETE, Path(file.path).stat().st_size)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_directory_that_cannot_be_listed_hides_no_file_and_is_no_fault_of_it(
    catalog: Catalog,
    launch: RankLaunch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    asynchronous: bool,
) -> None:
    """A file that another thread had written was read and registered again 25 times a second, for ever."""
    file = replace(saved(launch, tmp_path, 1), mtime_ns=None)
    looked = threading.Event()
    recorder = RecorderThread(launch)
    if asynchronous:
        Path(file.path).rename(tmp_path / "not there yet")
    monkeypatch.setattr(os, "listdir", refuse(os.listdir, str(tmp_path / "ckpt")))
    recorder.submit(file, asynchronous=asynchronous)
    recorder.call(looked.set)
    assert looked.wait(60)
    if asynchronous:
        (tmp_path / "not there yet").rename(file.path)
    assert recorder.flush(60)
    recorder.close()
    assert [found.state for found in catalog.files("run")] == [FileState.COMPLETE]
    assert caplog.messages == []


def refuse(listdir: Callable[..., list[str]], directory: str) -> Callable[..., list[str]]:
    def answer(place: Any = ".") -> list[str]:
        if str(place) == directory:
            raise OSError(5, "Input/output error", directory)
        return listdir(place)

    return answer


def test_a_file_that_can_never_be_registered_is_tried_once(
    catalog: Catalog,
    launch: RankLaunch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that another thread still writes when it is submitted too."""
    file = replace(saved(launch, tmp_path, 1), mtime_ns=None)
    Path(file.path).rename(tmp_path / "not there yet")
    recorder, looked = RecorderThread(launch), threading.Event()
    recorder.submit(file, asynchronous=True)
    recorder.call(looked.set)
    assert looked.wait(60)

    def fail(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(launch, "record_files", fail)
    (tmp_path / "not there yet").rename(file.path)
    assert recorder.flush(60)
    recorder.close()
    assert caplog.text.count("RuntimeError: a bug") == 1


def test_metrics_of_the_state_it_started_from_keep_no_save_waiting_for_the_catalog(
    catalog: Catalog,
    launch: RankLaunch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No journal of the launch can take them. No save was recorded while the catalog was away."""
    first = RecorderThread(launch)
    first.submit(saved(launch, tmp_path, 1), asynchronous=False)
    assert first.flush(60)
    again = catalog.join("run")
    assert again.resolve().global_step == 1

    def refuse(*_: object, **__: object) -> Any:
        raise CatalogUnavailableError("the catalog is gone")

    for name in ("read", "in_write"):
        monkeypatch.setattr(Database, name, refuse)
    recorder = RecorderThread(again)
    recorder.measure(1, {"accuracy": 0.5})
    recorder.submit(saved(again, tmp_path, 2), asynchronous=False)
    done = threading.Event()
    recorder.call(done.set)
    assert done.wait(60)
    assert "metrics of step 1 are not recorded: the catalog is gone" in caplog.messages
    monkeypatch.undo()
    assert recorder.flush(60)
    assert [file.global_step for file in catalog.files("run")] == [2, 1]


def test_what_is_still_written_and_what_is_of_no_callback_is_quarantined_too(
    catalog: Catalog, launch: RankLaunch, tmp_path: Path
) -> None:
    recorder = RecorderThread(launch)
    recorder.state_names = frozenset({"weight", "global_step", "moments"})
    launch.register(saved(launch, tmp_path, 1).path, global_step=1)
    launch.register(saved(launch, tmp_path, 2).path, global_step=2)
    begun = replace(saved(launch, tmp_path, 3), mtime_ns=None)
    recorder.submit(begun, asynchronous=True)
    recorder.quarantine_after(1, "wrong")
    with Path(begun.path).open("ab") as file:
        file.write(ckpt_bytes.value("moments", "Float32", (1,), b"\0" * 4))
    assert recorder.flush(60)
    found = {file.global_step: (file.state, file.quarantine) for file in catalog.files("run")}
    assert found == {step: (FileState.COMPLETE, wrong) for step, wrong in ((1, ""), (2, "wrong"), (3, "wrong"))}
    recorder.submit(saved(launch, tmp_path, 2), asynchronous=False)
    assert recorder.flush(60)
    recorder.close()
    assert [file.quarantine for file in catalog.show("run", 2)] == [""]


def test_a_file_that_is_cut_is_registered_as_damaged(
    catalog: Catalog, launch: RankLaunch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its callback had returned, so nobody will write the rest; a file of another format cannot tell."""
    recorder = RecorderThread(launch)
    recorder.submit(saved(launch, tmp_path, 1), asynchronous=False)
    for step, content in ((2, ckpt_bytes.checkpoint(2)[:-9]), (3, b""), (4, b"of another format")):
        file = saved(launch, tmp_path, step)
        Path(file.path).write_bytes(content)
        os.utime(file.path, ns=(file.mtime_ns or 0, file.mtime_ns or 0))
        recorder.submit(file, asynchronous=False)
    assert recorder.flush(60)
    recorder.close()
    found = {file.global_step: (file.state, file.problem) for file in catalog.files("run")}
    assert found == {
        1: (FileState.COMPLETE, None),
        2: (FileState.DAMAGED, Rule.UNREADABLE),
        3: (FileState.DAMAGED, Rule.UNREADABLE),
        4: (FileState.COMPLETE, None),
    }
    assert caplog.text.count("is empty or cut: it is registered as damaged") == 2
    assert catalog.verify("run").damaged
    assert [file.state for file in catalog.files("run")].count(FileState.DAMAGED) == 2
