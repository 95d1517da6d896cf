"""Each document of the page of JSON is printed once, and has the fields that the page lists.

What is printed is judged wherever a test prints it: `tests.docs.printed_json`.
"""

import json
from functools import partialmethod
from pathlib import Path

import pytest

from ckptstore.api import connect
from ckptstore.cli import values
from ckptstore.replicate.replicator import Replicator
from tests.cli.advice import run
from tests.docs import printed_json
from tests.jobs import begun
from tests.replicate.rounds import AT_ONCE

ELSEWHERE = {
    *(("inspect", each) for each in ("SafetensorsHeader", "Strategy", "GroupInfo")),  # test_inspect.py
    ("advise", "Advice"),  # tests/advise
    ("watch", "Notice"),  # test_watch.py
    ("selftest", "Promise[]"),  # tests/mindspore/test_selftest.py
}


def test_every_document_is_as_the_page_of_json_has_it(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replicator, "round", partialmethod(Replicator.round, settled_for=AT_ONCE))
    data, tier, out = tmp_path / "data", tmp_path / "tier", tmp_path / "out"
    _, ranks = begun(connect(sqlite_url), data, 5, 10, 15, 20, 25, layout="data_parallel")
    ranks[0].record(step=25, loss=0.25)
    rules = ("--keep-last", "1", "--floor", "1")
    (data / "rank_0" / "net-1_5.ckpt").write_bytes(b"cut")
    printed_json.SEEN.clear()
    for line, code in (
        ("runs", 0),
        ("list", 0),
        ("list --files", 0),
        ("show run 10", 0),
        ("history run", 0),
        ("resolve run", 0),
        ("resolve run@7", 3),
        ("tier add far TIER", 0),
        ("tier list", 0),
        ("replicate", 0),
        ("verify", 6),
        ("verify --tier far", 0),
        ("diff run@15 run", 0),
        ("inspect DATA/rank_1/net-1_5.ckpt", 0),
        ("gc run --tier far RULES --apply", 0),
        ("undo run --tier far", 0),
        ("purge run --tier far", 0),
        ("pin run 10", 0),
        ("unpin run 10", 0),
        ("tag run 10 good", 0),
        ("untag run good", 0),
        ("gc run RULES --apply", 0),
        ("undo run", 0),
        ("purge run", 0),
        ("policy run", 0),
        ("policy run RULES", 0),
        ("gc --all", 0),
        ("export run OUT", 0),
        ("import OUT OUT-in --run in", 0),
        ("exit run", 0),
        ("exit run --cancel", 0),
        ("exit --from-env", 0),
        ("tier remove far", 0),
        ("rename run new", 0),
        ("forget new --apply", 0),
        ("forget new --undo", 0),
        ("scan DATA", 0),
        ("sync", 0),
        ("doctor", 0),
        ("db current", 0),
        ("db check", 0),
        ("db upgrade", 0),
    ):
        words = [word for each in line.split() for word in (rules if each == "RULES" else (each,))]
        places = {"DATA": data, "TIER": tier, "OUT": out}
        for name, path in places.items():
            words = [word.replace(name, str(path)) for word in words]
        done = run(sqlite_url, *words, "--json")
        assert (line, done.code) == (line, code), done
    every = {(command, each) for command in printed_json.COMMANDS for each in printed_json.types_of(command)}
    assert every - printed_json.SEEN == ELSEWHERE


def test_a_terminal_obeys_nothing_that_is_printed_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    """In a path of another user, the first of these begins a command to the terminal, as an escape does."""
    odd = {"path": "\x9b2J\x7f\x1b \udcff ö"}
    values.write(odd)
    printed = capfd.readouterr().out
    assert printed.splitlines()[1].strip() == r'"path": "\u009b2J\u007f\u001b \udcff ö"'
    assert json.loads(printed) == odd
