"""A receiver as people run them: a real HTTP server in a thread; and time that passes for it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import sqlalchemy as sa

from ckptstore.api import Catalog
from ckptstore.catalog.tables import notifications


class Receiving:
    """What was posted to it: bodies and headers; and how it answers, with 200 unless `answers` names others in turn."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/hooks/s3cret"
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []
        self.location = ""
        self.before_answer: Callable[[BaseHTTPRequestHandler], None] = lambda _: None

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    @property
    def kinds(self) -> list[str]:
        return [fact["kind"] for fact in self.facts]


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiving]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            seen.headers.append(dict(self.headers))
            seen.before_answer(self)
            self.send_response(seen.answers.pop(0) if seen.answers else 200)
            if seen.location:
                self.send_header("Location", seen.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    seen = Receiving(server.server_port)
    thread = Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def let_an_hour_pass(catalog: Catalog) -> None:
    with catalog.database.write() as connection:
        for fact, until in connection.execute(sa.select(notifications.c.fact, notifications.c.held_until)).all():
            earlier = notifications.update().where(notifications.c.fact == fact)
            connection.execute(earlier.values(held_until=until - timedelta(hours=1)))
