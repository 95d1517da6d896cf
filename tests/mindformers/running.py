"""Jobs of the example in examples/mindformers: started, killed, started again, their final files compared."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ckptstore.api import Catalog, connect
from ckptstore.formats.header import Header
from ckptstore.formats.inspect import inspect

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "mindformers"
TEXT = EXAMPLE / "text.py"
SCRIPT = EXAMPLE / "killed.py"
RUN = "my-llm"
SECONDS = 600  # for one start: machines are busy


def run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments; a failure is an error."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@dataclass
class Job:
    """A job of MindFormers in a directory: 2 epochs of 24 steps on one rank, of 12 on two; a save every 5 steps."""

    home: Path
    text: Path
    ranks: int = 1
    newer: bool = False
    form: str = "safetensors"
    url: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Where the checkpoints are."""
        return self.home / "output" / "checkpoint"

    @property
    def steps(self) -> int:
        """The last step."""
        return 48 // self.ranks

    def trains(self, **fault: int) -> str:
        """Start it; what its first rank has printed. Without a fault it must end well, with one it must not.

        `kill_at` is the step of this launch, by MindFormers' count, after which rank `kill_rank` is killed.
        """
        code, told = self.start(**fault)
        assert (code == 0) == (not fault), told[-8000:]
        return told

    def start(self, **fault: int) -> tuple[int, str]:
        """Start it once; the exit code, and what was printed."""
        config = yaml.safe_load((EXAMPLE / "llama.yaml").read_text())
        config |= {"use_parallel": self.ranks > 1, "use_legacy_format": not self.newer, **self.settings}
        config["load_ckpt_format"] = self.form
        monitor = next(each for each in config["callbacks"] if each["type"] == "CheckpointMonitor")
        monitor["checkpoint_format"] = self.form
        if fault:
            config["callbacks"].append({"type": "KillAt", **fault})
        self.home.mkdir(exist_ok=True)
        (self.home / "llama.yaml").write_text(yaml.safe_dump(config))
        asked = ["--config", str(self.home / "llama.yaml"), "--train_dataset_dir", str(self.text)]
        asked += ["--output_dir", str(self.home / "output")]
        command = ["-m", "ckptstore.mindformers", str(SCRIPT), *asked]
        environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MS_NODE_TIMEOUT": "10"}
        environment |= {"CKPTSTORE_URL": self.url} if self.url else {}
        log = self.home / "log"
        if self.ranks > 1:
            msrun = ["msrun", f"--worker_num={self.ranks}", f"--local_worker_num={self.ranks}", "--join=True"]
            command = [*msrun, f"--master_port={free_port()}", f"--log_dir={log}", "python", *command]
        else:
            command = [sys.executable, *command]
        with subprocess.Popen(
            command,
            cwd=self.home,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                told, _ = process.communicate(timeout=SECONDS)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if self.ranks > 1:
            told += "".join(path.read_text(errors="replace") for path in sorted(log.glob("worker_*.log")))
        return process.returncode, told

    def catalog(self) -> Catalog:
        """The catalog of the job."""
        return connect(self.url or None)

    def newest(self) -> int:
        """The step that a start would go on after."""
        plan = self.catalog().resolve(RUN).plan
        return plan.global_step

    def files(self, step: int, rank: int) -> list[Path]:
        """The files of a rank of a step, as the catalog has them."""
        return sorted(Path(each.path) for each in self.catalog().show(RUN, step) if each.rank == rank)

    def final(self, rank: int) -> dict[str, bytes]:
        """All that the files of the last step have of a rank: weights, optimizer, and what MindFormers adds."""
        found: dict[str, bytes] = {}
        for path in self.files(self.steps, rank):
            header = inspect(path) if path.suffix != ".json" else None
            content = path.read_bytes()
            for entry in header.entries if isinstance(header, Header) else ():
                found[entry.name] = b"".join(content[offset : offset + size] for offset, size in entry.slices)
        return found

    def ends_as(self, other: "Job") -> bool:
        """Whether the files of the last step have the same bytes on every rank, and there are any."""
        ends = [(self.final(rank), other.final(rank)) for rank in range(self.ranks)]
        return all(own and own == its for own, its in ends)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
