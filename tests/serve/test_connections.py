"""Clients that are slow, or that never read, hold nobody up; a catalog that is stuck does not hold up the server."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from ckptstore.api import Catalog, connect
from ckptstore.retention.policy import Policy
from ckptstore.serve import connections
from ckptstore.serve.app import make_app
from ckptstore.serve.guard import Rules
from tests.conftest import new_postgres_database

Address = tuple[str, int]


@contextmanager
def served(catalog: Catalog) -> Iterator[Address]:
    """The address of a server as `ckptstore serve` runs it, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = connections.server(make_app(catalog, Rules()))
        thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that gives slow clients up sooner."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.2)


def answer(address: Address, path: str = "/api/v1/runs") -> bytes:
    with urlopen(f"http://{address[0]}:{address[1]}{path}", timeout=60) as found:
        body: bytes = found.read()
    return body


def asking(address: Address, text: bytes) -> socket.socket:
    client = socket.create_connection(address, timeout=60)
    client.sendall(text)
    return client


def told(client: socket.socket, words: bytes) -> bytes:
    """What the server sends up to these words; waits for them."""
    found = b""
    while words not in found:
        part = client.recv(1 << 16)
        assert part, found
        found += part
    return found


def is_closed(client: socket.socket) -> bool:
    """Whether the server closes the connection; waits for it."""
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def test_the_head_of_the_events_leaves_the_connection_free(catalog: Catalog) -> None:
    """The stream went on without a body: the next request of the connection was never answered."""
    with served(catalog) as address:
        client = asking(address, b"HEAD /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"text/event-stream" in told(client, b"\r\n\r\n")
        client.settimeout(5)
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert told(client, b"ok\n")
        client.close()


@pytest.mark.usefixtures("job", "patient")
def test_a_header_that_comes_a_byte_at_a_time(catalog: Catalog) -> None:
    """Others are answered meanwhile, and it is given up, however often a byte comes."""
    with served(catalog) as address:
        slow = [asking(address, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ") for _ in range(20)]
        assert json.loads(answer(address))["items"][0]["run"] == "run"
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            while answer(address):
                slow[0].sendall(b"x")
        assert all(is_closed(client) for client in slow[1:])
        assert answer(address)
        for client in slow:
            client.close()


@pytest.mark.usefixtures("job", "patient")
def test_a_client_that_takes_no_answer(catalog: Catalog) -> None:
    """It asks for more than the machine keeps for it, and reads nothing."""
    with served(catalog) as address, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(address)
        request = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            while True:
                client.sendall(request)
        assert answer(address)


@pytest.mark.usefixtures("job")
def test_event_streams_that_nobody_reads(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are answered; of more connections than there may be, the last ones get 503."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 5)
    with served(catalog) as address:
        request = b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        streams = []
        for _ in range(4):
            assert answer(address)
            streams.append(asking(address, request))
            assert told(streams[-1], b": watching").startswith(b"HTTP/1.1 200")
        refused = asking(address, request)
        assert refused.recv(1 << 16).startswith(b"HTTP/1.1 503")
        refused.close()
        streams.pop().close()
        while True:  # until the server has seen that it went
            again = asking(address, request)
            if again.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                break
            again.close()
        for each in (*streams, again):
            each.close()


@pytest.mark.usefixtures("job")
def test_a_page_hears_of_what_has_no_event_of_its_own(catalog: Catalog) -> None:
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=1, floor=1)))
    with served(catalog) as address:
        stream = asking(address, b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        told(stream, b": watching\n\n")
        catalog.undo("run")
        assert b"event: changed" in told(stream, b"\n\n")
        stream.close()


@pytest.mark.usefixtures("job", "patient")
def test_a_header_without_an_end(catalog: Catalog) -> None:
    with served(catalog) as address:
        client = asking(address, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 400")
        client.close()


def test_a_database_that_is_stuck(postgres: str, postgres_template: str) -> None:
    """Somebody has locked a table: each question gives 503 in time, and the server lives."""
    url = new_postgres_database(postgres, template=postgres_template)
    catalog = connect(url)
    with TestClient(make_app(catalog, Rules(), patience=0.2), base_url="http://localhost") as client:
        engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as connection:
            connection.execute(sa.text("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE"))
            for address in ("/readyz", "/api/v1/runs", "/api/v1/events", "/", "/metrics"):
                found = client.get(address)
                assert found.status_code == 503, address
                assert "did not answer within 0.2 s" in found.text
            assert client.get("/healthz").text == "ok\n"
        engine.dispose()
        while client.get("/readyz").status_code != 200:
            pass
    catalog.close()
