"""Programs that tests start as forks of a process that has imported modules."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.starting import warm_python

TWO_THREADS = """
import sys, threading
noise = threading.Thread(target=lambda: [sys.stderr.write("noise\\n") for _ in range(1000)])
noise.start()
for number in range(1000):
    print("WAITS", number)
noise.join()
"""


def test_a_line_that_is_printed_is_not_cut__before_ci_hung__now_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PYTHONUNBUFFERED a log line came into the line that a test was waiting for."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    script = tmp_path / "two_threads.py"
    script.write_text(TWO_THREADS)
    command = [*warm_python("timeit"), str(script)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line != "noise"] == [f"WAITS {number}" for number in range(1000)]


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(75)", 75, ""),
        ("sys.exit('no')", 1, "no\n"),
        ("raise ValueError('no')", 1, "ValueError: no\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
    ],
)
def test_a_script_ends_as_python_ends_it(tmp_path: Path, last: str, code: int, said: str) -> None:
    """After its threads, and what it wants to be done at the end."""
    script = tmp_path / "ends.py"
    script.write_text(
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'done')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n" + last
    )
    done = subprocess.run([*warm_python("timeit"), str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "thread\ndone\n")
    assert done.stderr.endswith(said)
