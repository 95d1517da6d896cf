"""Runs tests/mindspore/job.py in a process of its own, and looks at what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptstore.ops.connect import Catalog, connect

JOB = Path(__file__).with_name("job.py")


@dataclass(frozen=True)
class Outcome:
    """How a launch ended: its exit code, what `resume` returned, and all that it printed."""

    code: int
    start: dict[str, Any]
    output: str


class Run:
    """One run in one directory, launch after launch."""

    def __init__(self, out: Path, url: str | None = None) -> None:
        self.out = out
        self.url = url or str(out / "catalog.db")
        out.mkdir(exist_ok=True)

    def launch(self, **asked: Any) -> Outcome:
        """Start the job once, to its end."""
        environment = os.environ | {"CKPTSTORE_URL": self.url, "GLOG_v": "3"}
        done = subprocess.run(
            [sys.executable, str(JOB), json.dumps({"out": str(self.out), **asked})],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        starts = [line.removeprefix("START ") for line in done.stdout.splitlines() if line.startswith("START ")]
        return Outcome(done.returncode, json.loads(starts[0]) if starts else {}, done.stdout)

    @property
    def catalog(self) -> Catalog:
        """The run's catalog."""
        return connect(self.url)

    def final(self) -> bytes:
        """The final weights and optimizer state, as bytes of a checkpoint file."""
        return (self.out / "final.ckpt").read_bytes()

    def files(self) -> list[tuple[str, int, str, str]]:
        """Kind, step, state and name of every file in the catalog, newest first."""
        return [
            (file.kind.value, file.global_step, file.state.value, Path(file.path).name)
            for file in self.catalog.files("run")
        ]

    def steps(self) -> list[int]:
        """The steps of which a save is there, newest first."""
        return [save.tally.global_step for save in self.catalog.saves("run")]
