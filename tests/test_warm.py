"""Programs that tests start as forks of a process that has imported modules."""

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
