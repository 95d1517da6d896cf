"""A password reaches the server, and nobody else: no output, no log, no journal, whatever goes wrong."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from ckptstore.api import connect
from ckptstore.catalog.engine import open_database
from ckptstore.errors import CatalogUnavailableError, UsageError
from tests import ckpt_bytes
from tests.postgres_server import Server, free_port
from tests.starting import LIBRARY, warm_python

PASSWORD = "s3cret/p@ss:word%41"  # noqa: S105
ENCODED = quote(PASSWORD, safe="")


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("secrets"))
    connect(server.new_database())
    server.run(f"CREATE ROLE trainer LOGIN PASSWORD '{PASSWORD}'")
    server.run("GRANT ALL ON ALL TABLES IN SCHEMA public TO trainer", "ckptstore")
    server.run("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO trainer", "ckptstore")
    yield server
    server.close()


def url_of(server: Server, password: str = "", options: str = "", port: int = 0) -> str:
    secret = f":{quote(password, safe='')}" if password else ""
    return f"postgresql://trainer{secret}@localhost:{port or server.port}/ckptstore{options}"


def test_a_password_may_come_from_where_passwords_come_from(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect(url_of(own_server, PASSWORD)).runs() is not None
    assert connect(url_of(own_server, options=f"?password={ENCODED}")).runs() is not None
    with pytest.raises(CatalogUnavailableError, match="no password supplied"):
        connect(url_of(own_server))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert connect(url_of(own_server)).runs() is not None
    monkeypatch.delenv("PGPASSWORD")
    passfile = tmp_path / "pgpass"
    escaped = PASSWORD.replace(":", "\\:")
    passfile.write_text(f"localhost:*:ckptstore:trainer:{escaped}\n")
    passfile.chmod(0o600)
    assert connect(url_of(own_server, options=f"?passfile={passfile}")).runs() is not None
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    assert connect(url_of(own_server)).runs() is not None


def test_what_prints_a_database_prints_no_password() -> None:
    for secret in (f"u:{ENCODED}@h/d", f"u@h/d?password={ENCODED}", f"u@h/d?password={ENCODED}&sslmode=require"):
        database = open_database(f"postgresql://{secret}")
        shown = f"{database.name} {database.url} {database.url!r} {database.__dict__} {database._engine!r}"
        assert PASSWORD not in shown
        assert ENCODED not in shown
        assert database.url.password == PASSWORD


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@s3cret@h/d",
        "postgresql://u@h/d?password=s3cret&password=s3cret2",
        "postgresql://u@h/d?passwd=s3cret",
        "postgresql://u@h/d?options=-c%20x=s3cret",
    ],
)
def test_what_is_not_known_to_be_no_password_is_not_printed(url: str) -> None:
    try:
        said = open_database(url).name
    except UsageError as error:
        said = str(error)
    assert "s3cret" not in said


TROUBLE = """
import logging, sys, traceback
from pathlib import Path
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
for name in ("ckptstore", "sqlalchemy.engine", "sqlalchemy.pool", "psycopg", "psycopg.pq"):
    logging.getLogger(name).setLevel(logging.DEBUG)
import ckptstore
from ckptstore.catalog import engine
from ckptstore.catalog.engine import Database, open_database
engine._WAIT_SECONDS = 1
from ckptstore.api import Catalog
from ckptstore.training.start import begin
from tests import ckpt_bytes
url, directory = sys.argv[1:]
try:
    print(ckptstore.connect(url).runs())
except Exception:
    traceback.print_exc(file=sys.stdout)
database = Database(open_database(url).url, answer_within=1)
print(database.name, database.url, repr(database.url), vars(database))
launch = begin(database, "run", rank=0, world_size=1, launch_id=None, layout=None)
path = ckpt_bytes.write(Path(directory) / "rank_0" / "net-1_5.ckpt", 5)
launch.register(path, global_step=5)
logging.getLogger("ckptstore").error("as an exception", exc_info=True)
"""

COMMANDS = """
import sys
from contextlib import suppress
from ckptstore.catalog import engine
engine._WAIT_SECONDS = 1
from ckptstore.cli.main import main
url = sys.argv[1]
for command in (["runs"], ["runs", "--json"], ["db", "check"]):
    sys.argv[1:] = ["--db", url, *command]
    with suppress(SystemExit):
        main()
"""


TROUBLES: dict[str, Callable[[Server, int], str]] = {
    "refused": lambda server, _: url_of(server, PASSWORD, port=free_port()),
    "refused in the query": lambda server, _: url_of(
        server, options=f"?password={ENCODED}&sslmode=prefer", port=free_port()
    ),
    "wrong password": lambda server, _: url_of(server, PASSWORD + "x"),
    "no such database": lambda server, _: url_of(server, PASSWORD).replace("/ckptstore", "/nowhere"),
    "no such option": lambda server, _: url_of(server, PASSWORD, "?sslmode=verify-ful"),
    "no TLS": lambda server, _: url_of(server, PASSWORD, "?sslmode=require"),
    "nobody answers": lambda server, silent: url_of(server, PASSWORD, port=silent),
    "works": lambda server, _: url_of(server, PASSWORD),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_no_trouble_shows_the_password(own_server: Server, tmp_path: Path, trouble: str) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    url = TROUBLES[trouble](own_server, silent.getsockname()[1])
    state = tmp_path / "state"
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "XDG_DATA_HOME": str(state)}
    said = ""
    for script, argument in ((TROUBLE, tmp_path / "ckpt"), (COMMANDS, "")):
        program = tmp_path / "program.py"
        program.write_text(script)
        command = [*warm_python(*LIBRARY), str(program), url, str(argument)]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        said += done.stdout
    silent.close()
    journals = list((tmp_path / "ckpt").rglob("*.jsonl"))
    assert len(journals) == 1, said
    left = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".ckpt")
    assert "net-1_5.ckpt" in left
    for secret in (PASSWORD, ENCODED, "s3cret"):
        assert secret not in said
        assert secret not in left
    if trouble != "works":
        assert len(re.findall("cannot reach the catalog|the catalog .* refuses", said)) >= 3, said


OPENSSL = shutil.which("openssl")


class Tls:
    """A server that speaks TLS, in front of one that does not: pgserver's has none built in.

    It answers SSLRequest as PostgreSQL does, and passes on what is inside (postgresql.org, protocol-flow, SSL).
    """

    def __init__(self, server: Server, certificate: Path) -> None:
        self._behind = server.port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate / "server.crt", certificate / "server.key")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with plain, suppress(OSError):
            if plain.recv(8) != bytes.fromhex("0000000804d2162f"):
                return
            plain.sendall(b"S")
            with (
                self._context.wrap_socket(plain, server_side=True) as client,
                socket.create_connection(("127.0.0.1", self._behind)) as server,
            ):
                answers = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
                answers.start()
                self._pass_on(client, server)
                answers.join()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while some := one.recv(1 << 16):
                other.sendall(some)
            other.shutdown(socket.SHUT_WR)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """An authority, and a certificate that it gave to localhost."""
    if OPENSSL is None:
        pytest.skip("needs the program openssl")

    def openssl(*arguments: str) -> None:
        subprocess.run([str(OPENSSL), *arguments], cwd=tmp_path, check=True, capture_output=True)

    for name in ("ca", "other"):
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.crt")
        openssl("req", "-x509", *key, "-subj", f"/CN={name}", "-days", "2")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=x")
    (tmp_path / "names").write_text("subjectAltName=DNS:localhost\n")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.crt", *signed)
    return tmp_path


def test_tls_that_proves_who_the_server_is(own_server: Server, certificates: Path) -> None:
    tls = Tls(own_server, certificates)
    try:
        full = f"?sslmode=verify-full&sslrootcert={certificates}"
        catalog = connect(url_of(own_server, PASSWORD, f"{full}/ca.crt", tls.port))
        launch = catalog.join("over TLS", launch_id="over TLS")
        launch.register(ckpt_bytes.write(certificates / "net-1_5.ckpt", 5), global_step=5)
        assert len(catalog.saves("over TLS")) == 1
        with pytest.raises(CatalogUnavailableError, match="certificate verify failed"):
            connect(url_of(own_server, PASSWORD, f"{full}/other.crt", tls.port))
        by_number = url_of(own_server, PASSWORD, f"{full}/ca.crt", tls.port).replace("localhost", "127.0.0.1")
        with pytest.raises(CatalogUnavailableError, match="does not match host name"):
            connect(by_number)
    finally:
        tls.close()
