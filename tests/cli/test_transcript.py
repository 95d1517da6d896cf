"""What people and scripts are shown: each command of transcript.txt, in its order, prints what stands below it there.

With UPDATE=1 the transcript is written anew; read what has changed.
"""

import json
import os
import re
import shlex
import textwrap
from pathlib import Path

import pytest

from ckptstore.api import connect
from tests.cli.advice import run
from tests.command_line import Result
from tests.conftest import new_postgres_database
from tests.jobs import Job

TRANSCRIPT = Path(__file__).with_name("transcript.txt")
JSON_LINES = textwrap.TextWrapper(120, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
SHOWN_AS = {
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(Z|\+00:00)": "MOMENT",
    r"\b\d+ (s|min)\b": "0 s",
    r'"seconds": \d+': '"seconds": 0',
    r"branch-20-\w+": "branch-20-ID",
    r"(?<=\S)   +": "  ",  # columns are as wide as what is in them
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_each_command_prints_what_the_transcript_has(
    kind: str, request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path
) -> None:
    """Two ranks have saved six times; of the newest state rank 0's file is gone, and rank 1's is cut."""
    url = sqlite_url if kind == "sqlite" else new_postgres_database(request.getfixturevalue("postgres"))
    job = Job(connect(url), tmp_path / "data", layout="data_parallel")
    files = job.save(job.start(), 5, 10, 15, 20, 25, 30)
    Path(files[0].path).unlink()
    os.truncate(files[1].path, 7)
    shown = []
    for line in TRANSCRIPT.read_text().splitlines():
        if line.startswith("$ "):
            _, _, *arguments = shlex.split(line)
            done = run(url, *arguments)
            shown += [line, *printed(done, {job.catalog.database.name: "CATALOG", str(tmp_path): "DIR"})]
        elif line.startswith("# "):
            shown += ["", line]
    if os.environ.get("UPDATE"):
        TRANSCRIPT.write_text("\n".join(shown[1:]) + "\n")
    assert shown[1:] == TRANSCRIPT.read_text().splitlines()


def printed(done: Result, names: dict[str, str]) -> list[str]:
    """What differs from one machine and moment to another is replaced; JSON is set in lines."""
    text, errors = done.out, done.err
    for given, name in names.items():
        text, errors = text.replace(given, name), errors.replace(given, name)
    if text.startswith(("{", "[")):
        value = json.loads(text)
        rows = [json.dumps(row) for row in (value if isinstance(value, list) else [value])]
        text = "\n".join(line for row in rows for line in JSON_LINES.wrap(row))
    text += "".join(f"! {line}\n" for line in errors.splitlines())
    for pattern, name in SHOWN_AS.items():
        text = re.sub(pattern, name, text)
    return [*map(str.rstrip, text.splitlines()), *([f"[exit code {done.code}]"] if done.code else [])]
