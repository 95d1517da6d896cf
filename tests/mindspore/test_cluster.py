"""A node is drained: the preStop hook asks, SIGTERM follows, then SIGKILL. Each rank is a pod."""

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
import pytest

from tests.command_line import Result, ckptstore
from tests.conftest import new_postgres_database
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


@pytest.mark.long
@pytest.mark.msrun
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_drained_pod(tmp_path: Path, ranks: int) -> None:
    """First the grace is too short for the step that the ranks are in, then it is long enough."""
    calm, rough = Pods(tmp_path / "calm", ranks), Pods(tmp_path / "rough", ranks)
    calm.ends()
    drained = ranks - 1
    with rough.launch("waits 17") as process:
        pids = rough.all_in_step()
        said = rough.pre_stop(drained, grace=1)
        assert said.code == 8, said
        assert said.out.splitlines()[-1].startswith(f"run run has not left in time: ranks 0-{drained} saved nothing")
        assert said.out.endswith("a restart goes on after step 15\n")
        (rough.out / "go").touch()
        said = rough.pre_stop(drained)
        assert said.code == 0, said
        rough.evict(pids[drained])
        until(lambda: not any(map(psutil.pid_exists, pids.values())) or process.poll() is not None)
    lines = said.out.splitlines()
    assert f"asked to save and leave in {ranks} directories, in the catalog" in lines[0]
    step = int(lines[-1].removeprefix("run run has left: a restart goes on after step "))
    assert 17 <= step < 60
    again = rough.pre_stop(drained)
    assert (again.code, "nothing is to leave" in again.out) == (0, True)
    assert rough.ends()["global_step"] == step
    for rank in range(ranks):
        assert rough.final(rank) == calm.final(rank)


def may_have_nodes() -> bool:
    return (
        os.geteuid() == 0
        and not subprocess.run(["unshare", "-mu", "true"], capture_output=True, check=False).returncode
    )


@pytest.mark.long
@pytest.mark.msrun
@pytest.mark.skipif(not may_have_nodes(), reason="needs mount namespaces")
def test_nodes_that_share_no_disk(tmp_path: Path, postgres: str) -> None:
    """Two mount namespaces, one path: each rank restores from its own disk, and what one has lost is not mixed."""
    asked = {"nodes": True}
    calm = Pods(tmp_path / "calm", 2, url=new_postgres_database(postgres), asked=asked)
    rough = Pods(tmp_path / "rough", 2, url=new_postgres_database(postgres), asked=asked)
    calm.ends()
    with rough.launch("kill 17") as process:
        process.wait()
    assert [path.name for path in (rough.out / "ckpt").iterdir()] == []
    assert [path.name for path in sorted((rough.out / "node-1").iterdir())] == ["rank_1"]
    with rough.launch("kill 7") as process:
        process.wait()
    log = (rough.out / "log" / "worker_0.log").read_text(errors="replace")
    assert '"global_step": 15' in log
    assert "each gets one that its own host has (2 of 2 told)" in log
    (lost,) = (rough.out / "node-1" / "rank_1").glob("CKP*-2_10.safetensors")
    lost.unlink()
    assert rough.ends()["global_step"] == 15
    path = rough.out / "ckpt" / "rank_0" / lost.name
    assert f"on node-1: rsync -a --mkpath node-0:{path} {path}" in rough.output
    for rank in range(2):
        assert rough.final(rank) == calm.final(rank)
