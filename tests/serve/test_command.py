"""`ckptstore serve` says at once why it cannot start."""

import os
import shlex
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from ckptstore.api import connect
from ckptstore.cli.commands import until_stopped
from ckptstore.cli.main import cli
from ckptstore.cli.serve import _rules
from ckptstore.errors import CkptstoreError
from ckptstore.serve.guard import Sessions
from tests.command_line import COMMAND, ckptstore
from tests.jobs import started
from tests.starting import LIBRARY, warm_python


def refused(sqlite_url: str, *asked: str) -> str:
    done = CliRunner(env={"CKPTSTORE_TOKEN": ""}).invoke(cli, ["--db", sqlite_url, "serve", *asked])
    assert isinstance(done.exception, CkptstoreError)
    return str(done.exception)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 — refused
def test_other_machines_need_a_token(sqlite_url: str, host: str) -> None:
    assert refused(sqlite_url, "--host", host) == (
        f"at {host} others than you could read the catalog; set CKPTSTORE_TOKEN, or give --token-file with a token"
    )


@pytest.mark.parametrize("option", [("--allow-changes",), ("--trust-proxy", "127.0.0.1")])
def test_changes_and_proxies_need_a_token_on_this_machine_too(sqlite_url: str, option: tuple[str, ...]) -> None:
    expected = f"{option[0]} needs a token, on this machine too; set CKPTSTORE_TOKEN, or give --token-file"
    assert refused(sqlite_url, *option) == expected


@pytest.mark.parametrize("kept_in", ["a file", "the environment"])
def test_the_token_ends_before_a_line_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_in: str) -> None:
    """That of a Secret made from a file has one; a browser and a header send none. It may be any bytes."""
    file = tmp_path / "token"
    file.write_bytes(b"t\xffken\n")
    monkeypatch.setenv("CKPTSTORE_TOKEN", os.fsdecode(file.read_bytes()))
    rules = _rules("::", file if kept_in == "a file" else None, allow_changes=True, trust_proxy=None)
    assert rules.token is not None
    assert Sessions(rules.token).is_token(b"t\xffken")


def test_a_port_that_is_taken(sqlite_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = refused(sqlite_url, "--port", port)
    assert found.startswith(f"cannot listen at 127.0.0.1, port {port} (Address already in use")


@pytest.mark.parametrize("host", ["..db", "a" * 64])
def test_a_host_that_no_name_can_have(sqlite_url: str, host: str, tmp_path: Path) -> None:
    """The error said that names and the locale must be UTF-8."""
    (tmp_path / "token").write_text("s3cret")
    found = refused(sqlite_url, "--host", host, "--token-file", str(tmp_path / "token"))
    assert found.startswith(f"cannot listen at {host}, port 8766 (")


def test_metrics_take_the_place_of_no_device(sqlite_url: str, tmp_path: Path) -> None:
    """Root would replace /dev/null, or the link /dev/stdout, by a file; a named pipe stands for both."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = CliRunner().invoke(cli, ["--db", sqlite_url, "metrics", "--textfile", str(pipe)])
    assert pipe.is_fifo()
    assert str(done.exception) == f"{pipe} is no regular file; name one; without --textfile the metrics are printed"


def test_metrics_are_utf_8_in_every_locale(sqlite_url: str, tmp_path: Path) -> None:
    """Prometheus reads no other encoding."""
    started(connect(sqlite_url), tmp_path / "ckpt", 1, run="läuf 深い")
    command = [COMMAND, "--db", sqlite_url, "metrics"]
    done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "latin-1"}, capture_output=True, check=True)
    assert 'ckptstore_restorable_step{run="läuf 深い"} 1.0' in done.stdout.decode()


@pytest.mark.parametrize("service", [("serve", "--port", "0"), ("watch",)])
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_service_finishes_what_it_has_begun(
    sqlite_url: str, tmp_path: Path, service: tuple[str, ...], stop: signal.Signals
) -> None:
    """SIGTERM ended it between the sending of a notice and its record: the next start sent the notice again."""
    job, _ = started(connect(sqlite_url), tmp_path / "ckpt", 1)
    (job.folder(0) / "net-1_1.ckpt").write_bytes(b"1")
    job.catalog.verify("run")
    told, go_on = tmp_path / "told", tmp_path / "go_on"
    for each in (told, go_on):
        os.mkfifo(each)
    script = f"cat >/dev/null; echo got >{told}; cat {go_on} >/dev/null"
    asked = ("--command", shlex.join(("sh", "-c", script)), "--on", "damaged")
    command = [*warm_python(*LIBRARY), COMMAND, "--db", sqlite_url, *service, *asked]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background of a shell ignores it
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard) as it:  # noqa: PLW1509
        told.read_text()
        it.send_signal(stop)
        go_on.write_text("")
        assert (it.communicate()[1], it.returncode) == ("", 0)
    done = ckptstore("--db", sqlite_url, "watch", "--once", "--json", *asked)
    assert (done.code, done.out) == (0, "")


def test_a_service_leaves_the_handler_of_sigterm_as_it_was() -> None:
    """A program that called the command kept it: its children ended with KeyboardInterrupt."""
    before, is_reached = signal.getsignal(signal.SIGTERM), False
    with until_stopped():
        signal.raise_signal(signal.SIGTERM)
        is_reached = True
    assert (signal.getsignal(signal.SIGTERM), is_reached) == (before, False)


def test_ctrl_c_is_how_it_is_ended(sqlite_url: str) -> None:
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background of a shell ignores it
    command = [*warm_python(*LIBRARY), COMMAND, "--db", sqlite_url, "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard) as it:  # noqa: PLW1509
        address = it.stdout.readline().split()[0]
        with urlopen(f"{address}healthz") as answer:  # noqa: S310 — of our own server
            assert answer.read() == b"ok\n"
        with urlopen(f"{address}api/v1/events") as stream:  # noqa: S310 — of our own server
            assert stream.readline() == b": watching\n"
            it.send_signal(signal.SIGINT)
            _, told = it.communicate()
    assert (it.returncode, told) == (0, "")
