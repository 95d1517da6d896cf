"""A proxy before a server: it passes bytes on, or answers 500, slows down, or cuts."""

import socket
import threading
import time
from contextlib import suppress

_ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Faults:
    """Listens on `endpoint`. The fields may be changed while it runs; each holds for connections made after that.

    `failing`: so many requests are answered by 500. `bytes_per_second`: of a connection, upwards. `cut_after`: each
    connection ends after so many bytes upwards. `sent` counts the bytes that went up.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.failing = 0
        self.bytes_per_second = 0.0
        self.cut_after = 0
        self.sent = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                above, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(above,), daemon=True).start()

    def _serve(self, above: socket.socket) -> None:
        with above, suppress(OSError):
            first = above.recv(1 << 16)
            with self._lock:
                fails, self.failing = self.failing > 0, max(self.failing - 1, 0)
            if fails:
                above.sendall(_ERROR)
                return
            with socket.create_connection(("127.0.0.1", self._to)) as below:
                down = threading.Thread(target=_pass, args=(below, above), daemon=True)
                down.start()
                self._up(first, above, below)
                down.join()

    def _up(self, piece: bytes, above: socket.socket, below: socket.socket) -> None:
        passed = 0
        while piece:
            if self.bytes_per_second:
                time.sleep(len(piece) / self.bytes_per_second)
            passed += len(piece)
            if self.cut_after and passed > self.cut_after:
                above.shutdown(socket.SHUT_RDWR)
                below.shutdown(socket.SHUT_RDWR)
                return
            below.sendall(piece)
            with self._lock:
                self.sent += len(piece)
            piece = above.recv(1 << 16)
        below.shutdown(socket.SHUT_WR)


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
