"""`ckptstore selftest` on this machine, and that it sees a promise that does not hold."""

from pathlib import Path

import pytest

from ckptstore.mindspore.compat import Private
from ckptstore.mindspore.selftest import Asked, SelfTest, last_line
from tests.command_line import ckptstore
from tests.mindspore.running import python


@pytest.mark.long
def test_all_that_can_be_tried_holds(tmp_path: Path) -> None:
    rows = list(SelfTest(Asked(), tmp_path, python()).rows())
    assert [row.held for row in rows] == [True] * 9 + [None]
    *seen, by_saver, raised = [row.seen for row in rows][2:9]
    assert seen == [f"from step {step}" for step in (9, 11, 11, 12, 6)]
    assert by_saver in {"from step 9", "from step 6"}  # the last one may not have been written when it was killed
    assert raised == "from step 11"


def test_what_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Private, "missing_in", lambda self, owner: f"no {self.name}")
    monkeypatch.setenv("MS_WORKER_NUM", "2")  # the job dies of it: it did not start MindSpore's communication
    rows = list(SelfTest(Asked(), tmp_path, python()).rows())
    assert [row.held for row in rows] == [False, False]
    assert rows[0].seen.startswith("no _config; no _directory")
    assert rows[1].seen.startswith("it ended with 1: ckptstore.errors.UsageError: ")


def test_each_start_is_a_launch_of_its_own_in_a_job_whose_launch_has_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second start was refused: rank 0 had already saved in that launch."""
    monkeypatch.setenv("CKPTSTORE_LAUNCH_ID", "job-1")
    shown = SelfTest(Asked(), tmp_path, ("sh", "-c", "echo id=$CKPTSTORE_LAUNCH_ID"))._launch(tmp_path, "none")
    assert shown == (0, "id=\n")


def test_the_reason_is_the_error__not_the_place_in_mindspores_code() -> None:
    below = "- C++ Call Stack:\n-----\nmindspore/core/utils/ms_context.cc:291 SetDeviceTargetFromInner\n"
    error = "RuntimeError: Unsupported device target GPU."
    assert last_line(f"[WARNING] ME\nTraceback:\n{error}\n\n-----\n{below}") == error
    assert last_line("one\ntwo\n") == "two"
    assert last_line("") == "it said nothing"


@pytest.mark.long
def test_the_command_where_there_is_no_such_device() -> None:
    told = ckptstore("selftest", "--device", "GPU", "--json")
    assert told.code == 1
    rows = told.json
    assert [row["held"] for row in rows] == [True, False]
