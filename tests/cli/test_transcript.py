"""What people and scripts are shown: each command in `transcripts`, in its order, prints what stands below it there.

With UPDATE=1 the transcripts are written anew; read what has changed. `save STEP …` has a new launch save these steps,
`newer DIRECTORY` adds an entry of a newer ckptstore to the journal there, `doctor` tells what doctor finds of the run
and its data, of what it found before only what has changed; what else is not ckptstore is the shell's.
"""

import json
import os
import re
import shlex
import subprocess
import textwrap
from pathlib import Path

import pytest

from ckptstore.api import connect
from ckptstore.disk import name_claims
from ckptstore.doctor.doctor import examine
from ckptstore.journal import jsonl
from tests.cli.advice import run
from tests.conftest import new_postgres_database
from tests.jobs import Job, begun

TRANSCRIPTS = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))
JSON_LINES = textwrap.TextWrapper(120, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
SHOWN_AS = {
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)": "MOMENT",
    r"\b\d+ (s|min)\b": "0 s",
    r'"seconds": \d+': '"seconds": 0',
    r"branch-(\d+)-\w+": r"branch-\1-ID",
    r"(scan|import)-[0-9a-f]{12}": r"\1-ID",
    r"rank_(\d)-[\w-]+\.jsonl": r"rank_\1-ID.jsonl",
    r"(?<=\S)   +": "  ",  # columns are as wide as what is in them
}


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, sqlite_url: str) -> str:
    return sqlite_url if kind == "sqlite" else new_postgres_database(request.getfixturevalue("postgres"))


@pytest.mark.parametrize(
    ("transcript", "kind"),
    [
        *((path, "sqlite") for path in TRANSCRIPTS),
        pytest.param(TRANSCRIPTS[0].with_name("overview.txt"), "postgres", marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_each_command_prints_what_the_transcript_has(
    transcript: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks have saved six times."""
    monkeypatch.setattr(name_claims, "host_name", lambda: "node-0")
    job, _ = begun(connect(url), tmp_path / "data", 5, 10, 15, 20, 25, 30, layout="data_parallel")
    names = {job.catalog.database.name: "CATALOG", str(tmp_path): "DIR"}
    shown: list[str] = []
    findings: dict[str, list[str]] = {}
    for line in transcript.read_text().splitlines():
        if line == "$ doctor":
            before, findings = findings, found(url, names)
            assert before.keys() <= findings.keys()
            shown += [line, *(each for name, lines in findings.items() if lines != before.get(name) for each in lines)]
        elif line.startswith("$ "):
            shown += [line, *done(line[2:].replace("DIR", str(tmp_path)), url, job, names)]
        elif line.startswith("# "):
            shown += ["", line]
    if os.environ.get("UPDATE"):
        transcript.write_text("\n".join(shown[1:]) + "\n")
    assert shown[1:] == transcript.read_text().splitlines()


def done(line: str, url: str, job: Job, names: dict[str, str]) -> list[str]:
    """What a command prints, and its exit code."""
    program, *arguments = shlex.split(line)
    if program == "save":
        job.save(job.begin(), *map(int, arguments))
        return []
    if program == "newer":
        with Path(jsonl.journals_in(*arguments)[0]).open("ab") as journal:
            journal.write(jsonl.encode({"t": "of the future", "v": jsonl.VERSION + 1}))
        return []
    if program == "ckptstore":
        ended = run(url, *arguments)
        code, out, errors = ended.code, ended.out, ended.err
    else:
        process = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
        code, out, errors = 0, process.stdout, process.stderr
    return [*printed(out, errors, names), *([f"[exit code {code}]"] if code else [])]


def found(url: str, names: dict[str, str]) -> dict[str, list[str]]:
    """What doctor finds of the run and its data, by the names of its checks."""
    return {
        each.name: printed(
            f"{each.status} {each.name}: {each.detail}" + f"\n  -> {each.hint}" * bool(each.hint), "", names
        )
        for each in examine(url, "run").checks
        if each.run and each.name not in ("disk", "file_system")
    }


def printed(out: str, errors: str, names: dict[str, str]) -> list[str]:
    """What differs from one machine and moment to another is replaced; JSON is set in lines."""
    out += "".join(f"! {line}\n" for line in errors.splitlines())
    for given, name in names.items():
        out = out.replace(given, name)
    for pattern, name in SHOWN_AS.items():
        out = re.sub(pattern, name, out)
    lines = out.splitlines()
    if lines and lines[0] in ("{", "["):
        end = lines.index("}" if lines[0] == "{" else "]") + 1
        value = json.loads("\n".join(lines[:end]))
        rows = [json.dumps(row) for row in (value if isinstance(value, list) else [value])]
        lines[:end] = [line for row in rows for line in JSON_LINES.wrap(row)]
    return [*map(str.rstrip, lines)]
