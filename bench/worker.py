"""Runs a peer's program in its own process, in the environment that has the peer."""

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
"""Made by `make bench`: the peers need packages that conflict with MindSpore's numpy."""


def environment() -> dict[str, str]:
    """The environment of this process, plus variables that turn off the peers' telemetry."""
    quiet = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "RAY_USAGE_STATS_ENABLED": "0"}
    return os.environ | {"PYTHONPATH": str(ROOT), "GLOG_v": "3"} | quiet


class Worker:
    """A process that answers requests one after the other. It ends with the `with` block."""

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
        """The answer to a request. Raises `RuntimeError` with the program's log if there is none."""
        self.begin(**request)
        return self.end()

    def begin(self, **request: Any) -> None:
        """Send a request. `end` returns its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """The answer to the last request."""
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
