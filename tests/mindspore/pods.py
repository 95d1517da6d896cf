"""Jobs whose ranks are pods, or nodes that share no disk."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.command_line import Result, ckptstore
from tests.mindspore.running import python, with_msrun
from tests.postgres_server import free_port

JOB = Path(__file__).with_name("loop_job.py")


def until(condition: Callable[[], Any]) -> None:
    """Wait until it holds; a minute is for machines that are very slow."""
    tick = threading.Event()
    assert any(condition() or tick.wait(0.05) for _ in range(1200)), "it never came to that"


@dataclass
class Pods:
    """A job of several ranks in a directory, each rank with a temporary directory of its own."""

    out: Path
    ranks: int
    output: str = ""

    url: str = ""
    asked: dict[str, Any] = field(default_factory=lambda: {"pods": True, "epochs": 6})

    @contextmanager
    def launch(self, fault: str = "none") -> Iterator[subprocess.Popen[str]]:
        """The job under way; all of it is killed at the end."""
        self.out.mkdir(exist_ok=True)
        url = self.url or str(self.out / "catalog.db")
        environment = os.environ | {"CKPTSTORE_URL": url, "GLOG_v": "3"}
        command = [str(JOB), json.dumps({"out": str(self.out), "fault": fault, **self.asked})]
        if self.ranks == 1:
            command = [*python(), *command]
        else:
            environment |= with_msrun()
            workers = [f"--worker_num={self.ranks}", f"--local_worker_num={self.ranks}"]
            at = f"--master_port={free_port()}"
            command = ["msrun", *workers, at, "--join=True", f"--log_dir={self.out / 'log'}", *command]
        for told in self.out.glob("in-step-*"):
            told.unlink()
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                with suppress(psutil.NoSuchProcess):  # msrun waits for ranks that are dead, and its own process for it
                    for child in psutil.Process(process.pid).children(recursive=True):
                        self.signal(child.pid, signal.SIGKILL)
                process.kill()

    def ends(self) -> dict[str, Any]:
        """The job trains to its end; where it began."""
        with self.launch() as process:
            output = process.communicate()[0]
        said = ""
        if self.ranks > 1:
            said, output = output, (self.out / "log" / "worker_0.log").read_text(errors="replace")
        self.output = output
        assert process.returncode == 0, f"{said}\n{output}"
        return json.loads(next(line for line in output.splitlines() if line.startswith("START "))[6:])

    def in_step(self) -> dict[int, int]:
        """The processes that wait in their step, by rank."""
        return {int(path.name[8:]): int(path.read_text() or 0) for path in self.out.glob("in-step-*")}

    def all_in_step(self) -> dict[int, int]:
        until(lambda: len(self.in_step()) == self.ranks and all(self.in_step().values()))
        return self.in_step()

    def pre_stop(self, rank: int, *arguments: str, grace: int = 60) -> Result:
        """The hook of a pod."""
        environment = {"TMPDIR": str(self.out / f"pod-{rank}"), "CKPTSTORE_GRACE_SECONDS": str(grace)}
        url = str(self.out / "catalog.db")
        return ckptstore("exit", "--from-env", "--wait", *arguments, CKPTSTORE_URL=url, **environment)

    @staticmethod
    def signal(pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def evict(self, pid: int) -> None:
        """What the kubelet does when the hook has ended."""
        self.signal(pid, signal.SIGTERM)
        self.signal(pid, signal.SIGKILL)

    def final(self, rank: int) -> bytes:
        return (self.out / f"final{rank or ''}.ckpt").read_bytes()


def may_have_nodes() -> bool:
    return (
        os.geteuid() == 0
        and not subprocess.run(["unshare", "-mu", "true"], capture_output=True, check=False).returncode
    )
