"""`ckptstore watch` as people and cron call it."""

import json
from pathlib import Path
from threading import Event

import click
import pytest
from click.testing import CliRunner, Result

from ckptstore.api import connect
from ckptstore.cli.main import cli
from ckptstore.errors import CkptstoreError
from tests.jobs import begun
from tests.notify.receiving import receiving


@pytest.fixture
def url(sqlite_url: str, tmp_path: Path) -> str:
    catalog = connect(sqlite_url)
    job, _ = begun(catalog, tmp_path / "data", 10, world_size=1)
    (job.folder(0) / "net-1_10.ckpt").write_bytes(b"")
    catalog.verify("run")
    return sqlite_url


def watch(url: str, *asked: str, **environment: str) -> Result:
    told = {"CKPTSTORE_WEBHOOK": "", "CKPTSTORE_WEBHOOK_SECRET": ""} | environment
    return CliRunner(env=told).invoke(cli, ["--db", url, "watch", "--once", *asked], standalone_mode=False)


def refused(url: str, *asked: str, **environment: str) -> str:
    done = watch(url, *asked, **environment)
    assert isinstance(done.exception, CkptstoreError | click.UsageError)
    return str(done.exception)


def test_it_says_what_it_has_told_and_no_secret(url: str) -> None:
    with receiving() as seen:
        done = watch(url, CKPTSTORE_WEBHOOK=seen.url, CKPTSTORE_WEBHOOK_SECRET="tell nobody")  # noqa: S106 — of a test
        assert done.return_value == 0
        assert done.output.startswith("told: run run: damaged: step 10 of launch L1 has 1 damaged file: ")
        assert "tell nobody" not in done.output
        assert "s3cret" not in done.output
        assert seen.headers[0]["X-Ckptstore-Signature"].startswith("sha256=")
        assert watch(url, "--webhook", seen.url).output == ""


def test_json_is_what_was_posted_one_a_line(url: str) -> None:
    with receiving() as seen:
        done = watch(url, "--webhook", seen.url, "--json")
        assert [json.loads(line) for line in done.output.splitlines()] == seen.facts


def test_only_what_is_asked_for_is_told(url: str) -> None:
    with receiving() as seen:
        assert watch(url, "--webhook", seen.url, "--on", "disk,silent").output == ""
        assert watch(url, "--webhook", seen.url, "--on", "disk, damaged").output != ""
        assert seen.kinds == ["damaged"]


def test_a_receiver_that_takes_nothing_is_exit_code_1(url: str) -> None:
    with receiving() as seen:
        seen.answers = [400]
        assert watch(url, "--webhook", seen.url).return_value == 1
    assert watch(url, "--command", "/no/such/program").return_value == 1
    assert watch(url, "--command", "true").return_value == 0


def test_the_secret_may_be_in_a_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with receiving() as seen:
        assert "cannot read" in refused(url, "--webhook", seen.url, "--secret-file", str(file))
        file.write_text(" \n")
        assert "is empty" in refused(url, "--webhook", seen.url, "--secret-file", str(file))
        file.write_text("key\n")
        assert watch(url, "--webhook", seen.url, "--secret-file", str(file)).return_value == 0
        assert "X-Ckptstore-Signature" in seen.headers[0]


def test_what_makes_no_sense_is_refused(url: str) -> None:
    assert refused(url) == "no receiver is given; give --webhook URL, or --command CMD"
    assert "both --webhook and --command" in refused(url, "--webhook", "http://a", "--command", "true")
    assert "'0' is no time between two checks" in refused(url, "--command", "true", "--every", "0")
    assert "the webhook is no address" in refused(url, "--webhook", "hooks.example/s3cret")
    assert ("there is no kind of problem 'fire'; use some of: damaged, ") in refused(
        url, "--command", "true", "--on", "fire"
    )


def test_the_server_watches_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells what it finds while it serves."""
    import uvicorn

    came = Event()

    def serves(*_: object, **__: object) -> None:
        assert came.wait(30)

    monkeypatch.setattr(uvicorn.Server, "run", serves)
    with receiving() as seen:
        seen.before_answer = lambda _: came.set()
        asked = ["--db", url, "serve", "--port", "0", "--webhook", seen.url]
        done = CliRunner().invoke(cli, asked, standalone_mode=False)
        assert done.exception is None, done
        assert seen.kinds == ["damaged"]
