"""Every code block of the pages is run, or a test of its subject runs it, or it needs something outside."""

import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

import ckptstore
from ckptstore.api import connect
from ckptstore.cli.main import cli
from tests import ckpt_bytes
from tests.cli.advice import run
from tests.command_line import Result
from tests.docs import pandas_stand_in
from tests.docs.blocks import HERE, OUTSIDE, ROOT, Block, blocks, elsewhere, how, needs_mindspore, outside

LAUNCH = "20261121T034217-0d35d4"
PLACES = ("/data/", "/backup/", "/backup ", "/nvme/", "/shared/", "/fast/", "/usr/local/bin/")
CODES = {
    "advise": {0, 1, 2},  # no record tells what its saves cost; the job of the page has another name
    "scan net": {0, 7},
    "resolve my-run --replicas 0,4": {2},  # the job has one rank here
    "tier add s3": {0, 1},  # its package may not be installed
    "scan s3:": {0, 1},
    "scan /data/old": {0, 1, 2, 5},
    "doctor": {0, 1},
}
"""What else than 0 a command ends with here."""
PROGRAMS = ("cp", "mkdir", "tar")
SERVERS = ("serve", "watch --webhook", "exit --from-env")
"""Commands that run until they are stopped, or wait: only their options are looked at."""


class Home:
    """A user's directory with a catalog: the runs that the pages name."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.url = path, str(path / "catalog.db")
        monkeypatch.setenv("CKPTSTORE_URL", self.url)
        monkeypatch.setenv("HOME", str(path))
        monkeypatch.chdir(path)
        self.catalog = connect(self.url)
        self.saved("digits", *range(600, 1300, 100))
        self.saved("my-run", 500, 700)
        self.saved("old-try", 5)
        self.catalog.tag("digits", 1000, "final")
        for place in PLACES:
            (path / place.strip(" /")).mkdir(parents=True, exist_ok=True)

    def saved(self, run: str, *steps: int) -> None:
        launch = self.catalog.join(run, rank=0, world_size=1, launch_id=LAUNCH)
        launch.set_steps_per_epoch(10)
        launch.resolve()
        for step in steps:
            path = self.path / "data" / run / f"net-{step // 10}_10.ckpt"
            path.parent.mkdir(parents=True, exist_ok=True)
            moments = ckpt_bytes.value("moments.weight", "Float32", (2, 2), b"\0" * 16)
            path.write_bytes(moments + ckpt_bytes.checkpoint(step))
            launch.register(path, global_step=step, metrics={"accuracy": step / 2000, "loss": 1000 / step})

    def of_here(self, text: str) -> str:
        for place in PLACES:
            text = text.replace(place, f"{self.path}{place}")
        return text

    def types(self, line: str) -> Iterator[tuple[str, Result]]:
        """Run a line of the command line."""
        line = self.of_here(re.sub(r"^eval \"\$\((.*)\)\"", r"\1", line)).split(" > ")[0]
        line = line.removeprefix("*/15 * * * * ").replace("$(openssl rand -hex 32)", "secret")
        if line.startswith(("python", "make")):
            return
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        if not words or words[0] == "export":
            return
        if words[0] in PROGRAMS:
            subprocess.run(words, check=True)
            return
        assert words.pop(0) == "ckptstore", line
        asked = " ".join(words)
        if asked.startswith(SERVERS):
            command = cli.commands[words[0]]
            command.make_context(words[0], [*words[1:]], parent=click.Context(cli))
            return
        if words[0] == "watch":
            (self.path / "usr/local/bin/page-somebody").write_text("#!/bin/sh\n")
            (self.path / "usr/local/bin/page-somebody").chmod(0o755)
            words.append("--once")
        yield asked.replace(str(self.path), ""), run(self.url, *words)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, monkeypatch)


def named(block: Block) -> str:
    return f"{block.page}:{block.number}"


def prepared(home: Home, page: str) -> None:
    """What a page takes for granted beside the runs of a home."""
    if page.endswith("adopt-a-tree.md"):
        ckpt_bytes.write(home.path / "data" / "net" / "net-3_18.ckpt", 74)
        ckpt_bytes.write(home.path / "net" / "net-3_18.ckpt", 74)
    if page.endswith("compare.md"):
        home.saved("digits-of-ann", 7)
        ckpt_bytes.write(home.path / "lenet.ckpt", 5)
        save_file({"weight": np.ones((2, 2), np.float32)}, home.path / "lenet.safetensors")
        (home.path / "backup").mkdir(exist_ok=True)
        ckpt_bytes.write(home.path / "backup" / "lenet-120_10.ckpt", 6)
    if page.endswith("inspect-a-file.md"):
        ckpt_bytes.write(home.path / "net-2_5.ckpt", 15)
    if page.endswith("fine-tune.md"):
        home.saved("tuned", 5)
        home.saved("pretrain", 5)
    if page.endswith("several-catalogs.md"):
        (home.path / "data" / "old").mkdir()
    if page.endswith("resume-elsewhere.md"):
        (home.path / "strategy.ckpt").write_text('{"groups": [[0]]}')


COMMANDS = [each for each in HERE if each.language == "console" and not outside(each)]
SCENES = [
    list(scene)
    for _, scene in itertools.groupby(COMMANDS, lambda each: named(each) if "adopt" in each.page else each.page)
]
"""The blocks of a page, one after the other; where each starts over, alone."""


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: named(scene[0]))
def test_the_commands_of_a_page(home: Home, scene: list[Block]) -> None:
    prepared(home, scene[0].page)
    for block in scene:
        for line in block.commands:
            for asked, done in home.types(line):
                allowed = next((codes for begin, codes in CODES.items() if asked.startswith(begin)), {0})
                assert done.code in allowed, f"{named(block)}: {asked}: {done}"


def python_here() -> list[Block]:
    return [each for each in HERE if how(each) == "Python, run here" and not needs_mindspore(each)]


@pytest.mark.parametrize("block", python_here(), ids=named)
def test_python_without_mindspore(home: Home, block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"ckptstore": ckptstore, "numpy": np, "weights": {"w": np.ones(2)}}
    if "import pandas" in block.text:
        monkeypatch.setitem(sys.modules, "pandas", pandas_stand_in)
        names["catalog"] = home.catalog
    if "launch.save" in block.text:
        names["launch"] = home.catalog.join("saved", rank=0, world_size=1)
    if "a.ckpt" in block.text:
        ckpt_bytes.write(home.path / "data" / "rank_0" / "a.ckpt", 17)
    exec(home.of_here(block.text), names)  # noqa: S102 - what users are told to write
    if "is_ours" in block.text:
        assert not names["is_ours"](b"secret", b"body", "sha256=00")


@pytest.mark.parametrize("block", [each for each in HERE if how(each).startswith("text")], ids=named)
def test_texts(block: Block) -> None:
    """JSON and YAML are read, a shell reads its lines, a drawing names files that are there."""
    if block.language == "json":
        assert json.loads(block.text)
    elif block.language == "yaml":
        assert yaml.safe_load(block.text)
    elif block.language == "bash":
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    elif not block.language:
        drawn = re.findall(r"[a-z_]+/[a-z_]+\.py", block.text)
        assert drawn
        assert all((ROOT / "ckptstore" / name).exists() for name in drawn)
    else:
        assert block.language == "text"
        sources = "\n".join(path.read_text() for path in (ROOT / "ckptstore").rglob("*.py"))
        assert all(words in sources for words in SAID[block.page]), block.page


SAID = {
    "docs/how-to/fine-tune.md": (
        "no complete checkpoint ",
        "of its own ",
        ": starting at step 0",
        "not in the file",
        "not used",
    ),
    "docs/how-to/node-local-disks.md": ("goes on after step", "was complete once", "rsync -a --mkpath"),
}
"""What the program says, of messages that a page shows."""


def test_every_block_is_of_a_known_kind() -> None:
    known = {"python", "console", "text", "json", "yaml", "bash", "diff", "nginx", ""}
    assert [named(block) for block in blocks() if block.language not in known] == []
    unused = [begin for begin in OUTSIDE if not any((outside(each) or "") == OUTSIDE[begin] for each in HERE)]
    assert unused == []


@pytest.mark.parametrize("block", [each for each in blocks() if each.language == "python"], ids=named)
def test_every_block_of_python_is_python(block: Block) -> None:
    """Those that train run in `make test-long` only."""
    compile(block.text, named(block), "exec")


def test_the_tests_that_run_blocks_are_there() -> None:
    for block in blocks():
        test = elsewhere(block)
        if test:
            path, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), test


def test_most_blocks_run() -> None:
    """What needs something outside stays a small part."""
    every = list(blocks())
    assert sum(how(each) == "needs something outside" for each in every) <= len(every) / 10
