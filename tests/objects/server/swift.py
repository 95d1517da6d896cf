"""A real S3-compatible server: OpenStack Swift, with all that it stores in one directory."""

import os
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from swift.common import utils
from swift.common.ring import Ring, RingBuilder

utils.HASH_PATH_SUFFIX = utils.HASH_PATH_PREFIX = b"x"  # as the servers have it

KEY, SECRET = "test:tester", "the-secret-of-the-tests"
BUCKET = "bucket"

_COMMON = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {root}
devices = {root}/devices
mount_check = false
user = {user}
log_level = WARNING
{more}
"""
_STORAGE = "[pipeline:main]\npipeline = {kind}-server\n[app:{kind}-server]\nuse = egg:swift#{kind}\n"
_PROXY = """[pipeline:main]
pipeline = catch_errors gatekeeper proxy-logging cache listing_formats bulk s3api tempauth slo
    container-quotas proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:proxy-logging]
use = egg:swift#proxy_logging
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:bulk]
use = egg:swift#bulk
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
check_bucket_owner = false
min_segment_size = 1
[filter:slo]
use = egg:swift#slo
[filter:container-quotas]
use = egg:swift#container_quotas
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin
"""


class Swift:
    """One server of each kind, each in a process group of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._processes: list[subprocess.Popen[bytes]] = []
        self.ports = {kind: _free_port() for kind in ("account", "container", "object", "proxy")}
        (root / "devices" / "sda1").mkdir(parents=True)
        (root / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = x\nswift_hash_path_prefix = x\n")
        for kind in ("account", "container", "object"):
            ring = RingBuilder(4, 1, 1)
            at = {"ip": "127.0.0.1", "port": self.ports[kind]}
            ring.add_dev({"region": 1, "zone": 1, **at, "device": "sda1", "weight": 1.0})
            ring.rebalance(seed="1")
            ring.get_ring().save(str(root / f"{kind}.ring.gz"))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['proxy']}"

    def start(self, *, reserve: str = "0") -> None:
        """Start it, and wait until it answers; `reserve` is how much of its disk it leaves free."""
        user = os.environ.get("USER") or "root"
        for kind, port in self.ports.items():
            more = f"fallocate_reserve = {reserve}" if kind == "object" else ""
            text = _COMMON.format(port=port, root=self.root, user=user, more=more)
            text += _PROXY.format(secret=SECRET) if kind == "proxy" else _STORAGE.format(kind=kind)
            (self.root / f"{kind}.conf").write_text(text)
            command = [str(Path(sys.executable).parent / f"swift-{kind}-server"), str(self.root / f"{kind}.conf")]
            log = (self.root / f"{kind}.log").open("ab")
            env = {**os.environ, "SWIFT_CONF_FILE": str(self.root / "swift.conf")}
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True))
            log.close()
        self._wait()

    def kill(self) -> None:
        """As a power failure ends it."""
        self._signal(signal.SIGKILL)
        for each in self._processes:
            each.wait()
        self._processes.clear()

    def pause(self) -> None:
        """Nothing is answered, and connections stay."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def limit(self, bucket: str, most: int) -> None:
        """Let a bucket hold so many bytes at most; so many in parts."""
        ring = Ring(str(self.root), ring_name="container")
        for name in (bucket, f"{bucket}+segments"):
            part, _ = ring.get_nodes("AUTH_test", name)
            connection = HTTPConnection("127.0.0.1", self.ports["container"], timeout=10)
            headers = {"X-Timestamp": f"{time.time():.5f}", "X-Container-Meta-Quota-Bytes": str(most)}
            try:
                connection.request("PUT", f"/sda1/{part}/AUTH_test/{name}", headers=headers)
                answer = connection.getresponse()
                assert answer.status < 300, answer.read()
            finally:
                connection.close()

    def _signal(self, number: int) -> None:
        for each in self._processes:
            os.killpg(each.pid, number)

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ended = [each for each in self._processes if each.poll() is not None]
            assert not ended, f"{ended[0].args} ended: " + "".join(each.read_text() for each in self.root.glob("*.log"))
            if all(_answers(port) for port in self.ports.values()):
                return
            time.sleep(0.05)
        raise AssertionError("Swift does not answer")


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/healthcheck")
        connection.getresponse()
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
    return True


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
