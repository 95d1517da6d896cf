"""How facts get to a receiver: signed, tried again, once however many watch, and never held up for ever."""

import hashlib
import hmac
import json
import logging
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Timer, get_ident

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.errors import UsageError
from ckptstore.notify.receivers import SIGNATURE, Program, Webhook
from ckptstore.notify.watcher import Watcher
from tests.jobs import Job
from tests.notify.receiving import Receiving, let_an_hour_pass, receiving

NO_PAUSES = (0.0, 0.0)


@pytest.fixture
def damaged(catalog: Catalog, tmp_path: Path) -> Catalog:
    """A catalog with two runs, of each of which a state is damaged."""
    for run in ("one", "two"):
        job = Job(catalog, tmp_path / run, 1, run=run)
        job.save(job.start(resume=False), 20)
        (job.folder(0) / "net-2_10.ckpt").write_bytes(b"")
    catalog.verify()
    return catalog


def watcher(catalog: Catalog, to: Receiving | str, **more: object) -> Watcher:
    url = to if isinstance(to, str) else to.url
    return Watcher(catalog.database, Webhook(url), ("damaged",), pauses=NO_PAUSES, **more)  # type: ignore[arg-type]


def test_each_fact_is_posted_once_with_what_to_do(damaged: Catalog, receiver: Receiving) -> None:
    outcome = watcher(damaged, receiver).look()
    assert [notice.run for notice in outcome.told] == ["one", "two"]
    fact = receiver.facts[0]
    assert fact.keys() == {"id", "kind", "run", "status", "detail", "hint", "text", "catalog"}
    assert (fact["kind"], fact["run"], fact["status"]) == ("damaged", "one", "problem")
    assert fact["text"].startswith("run one: damaged: step 20 of launch L1 has 1 damaged file: ")
    assert fact["hint"] == "ckptstore resolve one --explain shows where the run would go on"
    assert receiver.headers[0]["Content-Type"] == "application/json"
    assert SIGNATURE not in receiver.headers[0]
    assert watcher(damaged, receiver).look().told == []
    assert len(receiver.bodies) == 2


@pytest.mark.of_files
def test_what_is_posted_is_signed(damaged: Catalog, receiver: Receiving) -> None:
    Watcher(damaged.database, Webhook(receiver.url, b"key"), ("damaged",)).look()
    for body, headers in zip(receiver.bodies, receiver.headers, strict=True):
        assert headers[SIGNATURE] == "sha256=" + hmac.new(b"key", body, hashlib.sha256).hexdigest()


def test_two_watchers_of_one_catalog_post_each_fact_once(
    damaged: Catalog, database_url: str, receiver: Receiving
) -> None:
    """On SQLite and on PostgreSQL, while both begin at the same moment."""
    together = Barrier(4, timeout=30)

    def watch() -> int:
        own = watcher(connect(database_url), receiver)
        together.wait()
        return len(own.look().told)

    with ThreadPoolExecutor(4) as pool:
        told = [pool.submit(watch) for _ in range(4)]
        assert sum(each.result() for each in told) == 2
    assert sorted(fact["run"] for fact in receiver.facts) == ["one", "two"]


@pytest.mark.of_files
def test_each_receiver_hears_of_each_fact(damaged: Catalog, receiver: Receiving) -> None:
    with receiving() as other:
        watcher(damaged, receiver).look()
        watcher(damaged, other).look()
        assert len(receiver.bodies) == len(other.bodies) == 2


@pytest.mark.of_files
def test_a_receiver_that_stumbles_is_asked_again_with_the_same_body(damaged: Catalog, receiver: Receiving) -> None:
    receiver.answers = [503, 429]
    assert len(watcher(damaged, receiver).look().told) == 2
    assert len(receiver.bodies) == 4
    assert receiver.bodies[0] == receiver.bodies[1] == receiver.bodies[2]


@pytest.mark.of_files
def test_a_dead_receiver_is_named_once_and_gets_everything_when_it_is_back(
    damaged: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving() as gone:
        pass
    own = watcher(damaged, gone)
    for _ in range(3):
        assert [notice.run for notice, _ in own.look().failed] == ["one"], "it answers no other one either"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    said = caplog.messages[0]
    assert f"http://127.0.0.1:{gone.port} did not take damaged of run 'one': Connection refused" in said
    assert "s3cret" not in said
    with receiving(gone.port) as back:
        assert len(own.look().told) == 2
        assert len(back.bodies) == 2
    assert "accepts notices again" in caplog.messages[-1]
    assert len(caplog.messages) == 2


@pytest.mark.of_files
def test_the_pause_between_two_tries_of_a_dead_receiver_grows(damaged: Catalog) -> None:
    with receiving() as gone:
        pass
    own = watcher(damaged, gone)
    pauses = []
    for _ in range(6):
        own.look()
        pauses.append(round(own._not_before - time.monotonic()))
    assert pauses == [60, 120, 240, 480, 600, 600]


@pytest.mark.of_files
def test_a_refused_fact_holds_up_no_other_and_is_tried_again_in_an_hour(damaged: Catalog, receiver: Receiving) -> None:
    receiver.answers = [400]
    outcome = watcher(damaged, receiver).look()
    assert [(notice.run, why) for notice, why in outcome.failed] == [("one", "it answered 400")]
    assert [notice.run for notice in outcome.told] == ["two"]
    assert watcher(damaged, receiver).look().told == []
    let_an_hour_pass(damaged)
    assert [notice.run for notice in watcher(damaged, receiver).look().told] == ["one"]


@pytest.mark.of_files
def test_a_watcher_that_dies_leaves_its_fact_to_others(
    damaged: Catalog, receiver: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = watcher(damaged, receiver)

    def dies(_: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(own._receiver, "send", dies)
    with pytest.raises(KeyboardInterrupt):
        own.look()
    assert [notice.run for notice in watcher(damaged, receiver).look().told] == ["two"]
    let_an_hour_pass(damaged)
    assert [notice.run for notice in watcher(damaged, receiver).look().told] == ["one"]


@pytest.mark.of_files
def test_no_redirect_is_followed(damaged: Catalog, receiver: Receiving) -> None:
    with receiving() as other:
        receiver.answers, receiver.location = [302, 307], other.url
        failed = watcher(damaged, receiver).look().failed
        assert [why for _, why in failed] == [
            f"it answered {code}, a redirect, which is not followed: give the address it leads to"
            for code in (302, 307)
        ]
        assert other.bodies == []


@pytest.mark.of_files
def test_a_receiver_that_says_nothing_is_given_up(receiver: Receiving) -> None:
    end = Event()
    receiver.before_answer = lambda _: end.wait(30) and None
    try:
        failure = Webhook(receiver.url, patience=0.1).send(b"{}")
    finally:
        end.set()
    assert failure.may_pass


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example",
        "ftp://hooks.example",
        "http://",
        "http://a:x/",
        "http://a/b c",
        "http://a/\n",
        "//a",
        "http://a..b/",
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="the webhook is no address; give one as https://"):
        Webhook(url)


def test_a_name_and_a_password_go_into_a_header_and_into_no_message(receiver: Receiving) -> None:
    webhook = Webhook(receiver.url.replace("//", "//ann:pass%20word@"))
    assert webhook.send(b"{}") is None
    assert receiver.headers[0]["Authorization"] == "Basic YW5uOnBhc3Mgd29yZA=="
    assert webhook.name == f"http://127.0.0.1:{receiver.port}"


def test_a_certificate_that_nobody_vouches_for_is_refused(receiver: Receiving) -> None:
    failure = Webhook(receiver.url.replace("http:", "https:")).send(b"{}")
    assert failure.may_pass
    assert receiver.bodies == []


@pytest.mark.of_files
def test_a_command_gets_the_json_on_its_standard_input(damaged: Catalog, tmp_path: Path) -> None:
    script = tmp_path / "take it.py"
    script.write_text("import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')")
    program = Program(f"{sys.executable} '{script}' {tmp_path}/taken")
    assert len(Watcher(damaged.database, program, ("damaged",)).look().told) == 2
    facts = [json.loads(line) for line in (tmp_path / "taken").read_text().splitlines()]
    assert [fact["run"] for fact in facts] == ["one", "two"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("sh -c 'exit 3'", "it ended with exit code 3"),
        ("true", ""),
        ("sh -c 'sleep 60 & wait'", "it did not end within 0.2 s"),
        ("/no/such/program", "No such file or directory"),
    ],
)
def test_how_a_command_ends(command: str, reason: str) -> None:
    """One that does not read what it is given has taken it all the same, if it ends with 0."""
    failure = Program(command, patience=0.2 if "sleep" in command else 30.0).send(b"x" * 1_000_000)
    assert (failure.reason if failure else "") == reason


@pytest.mark.parametrize("command", ["", "'", "  "])
def test_a_command_that_is_none(command: str) -> None:
    with pytest.raises(UsageError):
        Program(command)


@pytest.mark.of_files
def test_it_watches_on_a_thread_until_it_is_ended(damaged: Catalog, receiver: Receiving) -> None:
    got = Event()
    own = watcher(damaged, receiver, on_told=lambda notice: notice.run == "two" and got.set())
    own.begin()
    own.begin()
    assert got.wait(30)
    own.end()
    assert own._thread is None
    assert len(receiver.bodies) == 2


@pytest.mark.of_files
def test_a_signal_while_it_waits_leaves_the_current_notice_time(damaged: Catalog, receiver: Receiving) -> None:
    """Python took the thread for ended, so that `end` waited for nothing."""
    got, go_on = Event(), Event()
    own = watcher(damaged, receiver, on_told=lambda _: (got.set(), go_on.wait(30)))
    own.begin()
    assert got.wait(30)
    stop = Timer(0.05, signal.pthread_kill, (get_ident(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            stop.start()
            own.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert own._thread is not None
    assert own._thread.is_alive()
    go_on.set()
    own.end()


@pytest.mark.of_files
def test_a_catalog_that_is_away_is_said_once_and_asked_again(
    damaged: Catalog, receiver: Receiving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = watcher(damaged, receiver, every=0.001)
    asked = []

    def look() -> None:
        from ckptstore.errors import CatalogUnavailableError

        asked.append(1)
        if len(asked) > 3:
            own.end()
        raise CatalogUnavailableError("it is away")

    monkeypatch.setattr(own, "look", look)
    own.watch()
    assert len(asked) == 4
    assert caplog.messages == ["watch: it is away; the next look tries again"]
