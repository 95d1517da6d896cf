"""Runs tests/mindspore/job.py in a process of its own, and looks at what it left."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog, connect
from tests.empty_catalogs import copy_empty_catalog
from tests.postgres_server import free_port
from tests.starting import TRAINING, warm_programs, warm_python

JOB = Path(__file__).with_name("job.py")
RECORDED_ALIKE = ["ModelCheckpoint", pytest.param("launch.saver", marks=pytest.mark.long)]
"""The ways to save, for what is up to the recorder's thread, which is that of both."""


def with_msrun() -> dict[str, str]:
    """What to set for an `msrun` whose processes have MindSpore imported already, and soon notice that one died."""
    return {"PATH": f"{warm_programs(*TRAINING)}{os.pathsep}{os.environ['PATH']}", "MS_NODE_TIMEOUT": "20"}


def python() -> list[str]:
    """What runs a script as Python does, but has MindSpore imported already."""
    return warm_python(*TRAINING)


@dataclass(frozen=True)
class Outcome:
    """How a launch ended: its exit code, what `resume` returned, and all that it printed."""

    code: int
    start: dict[str, Any]
    output: str


def outcome(code: int, output: str) -> Outcome:
    """What a launch that printed this came to."""
    starts = [line.removeprefix("START ") for line in output.splitlines() if line.startswith("START ")]
    return Outcome(code, json.loads(starts[0]) if starts else {}, output)


class Run:
    """One run in one directory, launch after launch; `saves` is how the script does so (`job.WAYS`)."""

    job = JOB

    def __init__(self, out: Path, url: str | None = None, *, saves: str = "ModelCheckpoint") -> None:
        self.out = out
        self.url = url or str(out / "catalog.db")
        self.saves = saves
        out.mkdir(exist_ok=True)
        if url is None and not (out / "catalog.db").exists():
            copy_empty_catalog(out / "catalog.db")

    def _job(self, **asked: Any) -> tuple[list[str], dict[str, str]]:
        """The script with what it is asked for, and its environment."""
        graceful = {"MS_ENABLE_GRACEFUL_EXIT": "1"} if asked.get("exits") else {}
        told = json.dumps({"out": str(self.out), "saves": self.saves, **asked})
        return [str(self.job), told], os.environ | {"CKPTSTORE_URL": self.url, "GLOG_v": "3"} | graceful

    def launch(self, *, ranks: int = 1, **asked: Any) -> Outcome:
        """Start the job once, to its end; with several ranks under msrun, whose rank 0 is heard."""
        job, environment = self._job(**asked)
        log = self.out / "log"
        if ranks == 1:
            command = [*python(), *job]
        else:
            workers = [f"--worker_num={ranks}", f"--local_worker_num={ranks}", f"--master_port={free_port()}"]
            environment |= with_msrun()
            command = ["msrun", *workers, "--join=True", f"--log_dir={log}", *job]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        output = done.stdout if ranks == 1 else (log / "worker_0.log").read_text(errors="replace")
        return outcome(done.returncode, output)

    def again(self, *, step: int, **asked: Any) -> Outcome:
        """Start it again: it goes on after this step, and trains to its end."""
        outcome = self.launch(**asked)
        assert (outcome.code, outcome.start["global_step"]) == (0, step), outcome.output
        return outcome

    @contextmanager
    def waiting(self, **asked: Any) -> Iterator[subprocess.Popen[str]]:
        """The job under way, as one process whose output is read line by line, and which is told to go on."""
        job, environment = self._job(**asked)
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen([*python(), *job], env=environment, text=True, **pipes) as running:
            try:
                yield running
            finally:
                running.kill()

    def played(self, at_wait: Callable[[int], str], **asked: Any) -> str:
        """The job to its end, which waits at some steps: `at_wait` gets each, and says what it is told ("flush")."""
        said = ""
        with self.waiting(**asked) as running:
            assert running.stdin is not None
            for line in running.stdout:
                said += line
                if line.startswith("WAITS "):
                    running.stdin.write(f"{at_wait(int(line.split()[1]))}\n")
                    running.stdin.flush()
            assert running.wait() == 0, said
        return said

    @property
    def catalog(self) -> Catalog:
        """The run's catalog."""
        return connect(self.url)

    def final(self, rank: int = 0) -> bytes:
        """The final weights and optimizer state of a rank, as bytes of a checkpoint file."""
        return (self.out / f"final{rank or ''}.ckpt").read_bytes()

    def files(self) -> list[tuple[str, int, str, str]]:
        """Kind, step, state and name of every file in the catalog, newest first."""
        return [
            (file.kind.value, file.global_step, file.state.value, Path(file.path).name)
            for file in self.catalog.files("run")
        ]

    def steps(self) -> list[int]:
        """The steps of which a save is there, newest first."""
        return [save.tally.global_step for save in self.catalog.saves("run")]
