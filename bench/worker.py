"""A peer's program in a process of its own, in the environment that has that peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[1]
OWN = Path(sys.executable)
PEERS = ROOT / ".venv-bench" / "bin" / "python"
"""Made by `make bench`: what the peers need does not go together with MindSpore's numpy."""


def environment() -> dict[str, str]:
    """This process's, without what would make a peer talk to the outside."""
    quiet = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "RAY_USAGE_STATS_ENABLED": "0"}
    return os.environ | {"PYTHONPATH": str(ROOT), "GLOG_v": "3"} | quiet


class Worker:
    """Takes requests one after the other; ends with the block."""

    def __init__(self, python: Path, module: str, home: Path, *options: str) -> None:
        self.home = home
        self._log = home.with_suffix(".log")
        command = [str(python), "-m", module, str(home), *options]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=home.parent,
                env=environment(),
            )

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request; raises with what the program said where there is none."""
        self.begin(**request)
        return self.end()

    def begin(self, **request: Any) -> None:
        """Ask for something, to be answered at `end`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """The answer to what was asked last."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._process.args!r} ended:\n{self._log.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
