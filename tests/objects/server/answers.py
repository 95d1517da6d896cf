"""A server that gives the same answer to every request."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Answering(NamedTuple):
    """Where it listens, and the headers of the requests that came, by their names in lower case."""

    endpoint: str
    asked: list[dict[str, str]]


@contextmanager
def answering(status: int, body: bytes = b"") -> Iterator[Answering]:
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_PUT = do_GET = do_HEAD = answer  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Answering(f"http://127.0.0.1:{server.server_port}", asked)
        server.shutdown()
