"""A tiny Llama in MindFormers on 2 ranks: train, kill a rank, give the same command again, compare the last states.

    python examples/mindformers/demo.py [newer]

With `newer`, MindFormers saves in its newer checkpoint format. The demo takes about three minutes on 2 cores. It works
in a temporary directory, and removes it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from safetensors.numpy import load_file

from ckptstore import connect

HERE = Path(__file__).resolve().parent
RUN = "my-llm"
RANKS = 2
STEPS = 24
KILL = {"type": "KillAt", "kill_at": 17, "kill_rank": 1}


def main() -> int:
    newer = "newer" in sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ckptstore-demo-") as work:
        calm, rough = Path(work, "undisturbed"), Path(work, "killed")
        for home in (calm, rough):
            prepare(home)
        say(f"1. Train 2 epochs of {STEPS // 2} steps on {RANKS} ranks, undisturbed.")
        if train(calm, newer=newer) != 0:
            return fail("the undisturbed run failed", calm)
        say("2. The same, but rank 1 is killed by SIGKILL after step 17, in the middle of epoch 2.")
        if train(rough, newer=newer, kill=True) == 0:
            return fail("the run did not notice that rank 1 was killed", rough)
        say("3. What the catalog knows, and where the run will go on.")
        show(rough, "list", RUN)
        show(rough, "resolve", RUN, "--explain")
        say("4. Start the same command again.")
        if train(rough, newer=newer) != 0:
            return fail("the second start failed", rough)
        show(rough, "list", RUN)
        say("5. Compare weights and optimizer states of the last step.")
        return compare(calm, rough)


def prepare(home: Path) -> None:
    """Make the text."""
    home.mkdir()
    subprocess.run([sys.executable, HERE / "text.py", home / "text.mindrecord"], check=True, capture_output=True)


def train(home: Path, *, newer: bool, kill: bool = False) -> int:
    """Run the example under msrun; its exit code. If this function is interrupted, it kills msrun and the workers."""
    log = home / "log"
    config = yaml.safe_load((HERE / "llama.yaml").read_text())
    config |= {"use_parallel": True, "use_legacy_format": not newer}
    config["callbacks"] += [KILL] if kill else []
    (home / "llama.yaml").write_text(yaml.safe_dump(config))
    script = HERE / ("killed.py" if kill else "run_mindformer.py")
    asked = ["--config", str(home / "llama.yaml"), "--train_dataset_dir", str(home)]
    asked += ["--output_dir", str(home / "output")]
    command = [
        *("msrun", f"--worker_num={RANKS}", f"--local_worker_num={RANKS}", f"--master_port={free_port()}"),
        *("--join=True", f"--log_dir={log}"),
        *("python", "-m", "ckptstore.mindformers", str(script), *asked),
    ]
    print("$ msrun … python -m ckptstore.mindformers run_mindformer.py --config llama.yaml …", flush=True)
    with (home / "msrun.txt").open("ab") as sink:
        job = subprocess.Popen(
            command, cwd=home, env=environment_of(home), stdout=sink, stderr=sink, start_new_session=True
        )
        try:
            code = job.wait()
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                kill_workers(home)
    for line in (log / "worker_0.log").read_text(errors="replace").splitlines():
        if line.startswith("ckptstore:"):
            print(f"  rank 0 | {line}", flush=True)
    print(f"  exit code {code}", flush=True)
    return code


def kill_workers(home: Path) -> None:
    """Kill the workers. msrun gives each one its own session, so they are found by the directory in their arguments."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has just ended
            if str(home).encode() in command.read_bytes():
                os.kill(int(command.parent.name), signal.SIGKILL)


def environment_of(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "CKPTSTORE_URL": str(home / "catalog.db"), "MS_NODE_TIMEOUT": "10"}


def show(home: Path, *arguments: str) -> None:
    print(f"$ ckptstore {' '.join(arguments)}", flush=True)
    subprocess.run(["ckptstore", *arguments], check=True, env=environment_of(home))


def compare(calm: Path, rough: Path) -> int:
    for rank in range(RANKS):
        one, other = tensors(calm, rank), tensors(rough, rank)
        if not one or one != other:
            return fail(f"the last states of rank {rank} differ", rough)
        print(f"  rank {rank}: {len(one)} tensors, {sum(map(len, one.values()))} bytes, bit-identical", flush=True)
    say("The kill left no trace.")
    return 0


def tensors(home: Path, rank: int) -> dict[str, bytes]:
    """The values in a rank's files of the last step, by name."""
    with connect(home / "catalog.db") as catalog:
        paths = [file.path for file in catalog.show(RUN, STEPS) if file.rank == rank]
    loaded = [load_file(path) for path in paths if path.endswith(".safetensors")]
    return {name: value.tobytes() for each in loaded for name, value in each.items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


def fail(what: str, home: Path) -> int:
    for log in sorted((home / "log").glob("worker_*.log")):
        print(f"--- end of {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:]))
    print(f"\nDEMO FAILED: {what}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
