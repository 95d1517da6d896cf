"""Shows the main use of ckptstore: train, crash, give the same command again, and end with the same weights.

    python examples/digits/demo.py

Takes about two minutes on 2 cores, works in a temporary directory and removes it.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANKS = 2
CRASH = "kill rank=1 step=41"
TOLD = ("ckptstore:", "epoch:", "RuntimeError:")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ckptstore-demo-") as work:
        calm, rough = Path(work, "undisturbed"), Path(work, "crashed")
        say("1. Train 2 epochs of 28 steps on 2 ranks, undisturbed.")
        if train(calm) != 0:
            return fail("the undisturbed run failed", calm)
        say("2. The same, but rank 1 is killed by SIGKILL after step 41, in the middle of epoch 2.")
        if train(rough, chaos=CRASH) == 0:
            return fail("the run did not notice that rank 1 was killed", rough)
        say("3. What the catalog knows, and where the run will go on.")
        show(rough, "list")
        show(rough, "resolve", "digits", "--explain")
        say("4. Start the same command again.")
        if train(rough) != 0:
            return fail("the second start failed", rough)
        show(rough, "list")
        say("5. Compare the final weights and optimizer states.")
        return compare(calm, rough)


def train(output: Path, chaos: str | None = None) -> int:
    """Run the example under msrun; its exit code. If this function is interrupted, it kills msrun and the workers."""
    log = output / "log"
    environment = environment_of(output) | ({"CHAOS": chaos} if chaos else {})
    output.mkdir(exist_ok=True)
    subprocess.run([sys.executable, HERE / "data.py", output / "data"], check=True, stdout=subprocess.DEVNULL)
    command = [
        *("msrun", f"--worker_num={RANKS}", f"--local_worker_num={RANKS}", f"--master_port={free_port()}"),
        *("--join=True", f"--log_dir={log}", str(HERE / "train.py"), str(output)),
    ]
    shown = " ".join(["msrun", f"--worker_num={RANKS}", f"--local_worker_num={RANKS}", "…", "train.py"])
    print(f"$ {f'CHAOS={chaos!r} ' if chaos else ''}{shown}", flush=True)
    with open(output / "msrun.txt", "ab") as sink:  # noqa: PTH123 — stdout of a child
        job = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink, start_new_session=True)
        try:
            code = job.wait()
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                kill_workers(output)
    for line in (log / "worker_0.log").read_text(errors="replace").splitlines():
        if line.startswith(TOLD):
            print(f"  rank 0 | {line}", flush=True)
    print(f"  exit code {code}", flush=True)
    return code


def kill_workers(output: Path) -> None:
    """Kill the workers. msrun gives each one its own session, so they are found by the directory in their arguments."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has just ended
            if str(output).encode() in command.read_bytes():
                os.kill(int(command.parent.name), signal.SIGKILL)


def environment_of(output: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "CKPTSTORE_URL": str(output / "catalog.db"), "MS_NODE_TIMEOUT": "10"}


def show(output: Path, *arguments: str) -> None:
    print(f"$ ckptstore {' '.join(arguments)}", flush=True)
    subprocess.run(["ckptstore", *arguments], check=True, env=environment_of(output))


def compare(calm: Path, rough: Path) -> int:
    for rank in range(RANKS):
        name = f"final_{rank}.ckpt"
        if not filecmp.cmp(calm / name, rough / name, shallow=False):
            return fail(f"{name} of the two runs differ", rough)
        print(f"  {name}: {(calm / name).stat().st_size} bytes, bit-identical", flush=True)
    say("The crash left no trace.")
    return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


def fail(what: str, output: Path) -> int:
    for log in sorted((output / "log").glob("worker_*.log")):
        print(f"--- end of {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:]))
    print(f"\nDEMO FAILED: {what}", flush=True)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; everything was stopped and removed")
