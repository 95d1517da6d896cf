"""Who may ask, and what a page may do: forged hosts, tokens, markup in names, addresses that lead elsewhere."""

import re
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from ckptstore.serve.app import make_app
from ckptstore.serve.guard import Rules
from tests.jobs import Job

PAGES = ("/", "/doctor", "/runs/{}", "/runs/{}/saves/10", "/runs/{}/launches", "/runs/{}/retention?keep_last=1")
NASTY = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 191 * 191 }}", "a&b", "../../etc/passwd")


class Elements(HTMLParser):
    """What is on a page that no page of ours has: elements of a name, and scripts and styles of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []

    @classmethod
    def of(cls, page: str) -> "Elements":
        found = cls()
        found.feed(page)
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("img", "b", "style") or (tag == "script" and given.get("src") != "/static/live.js"):
            self.inline.append(tag)
        self.inline += [name for name in given if name.startswith("on") or name == "style"]


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8766", "", "[::2]:8766", "10.0.0.1", "[", "[::1", "]:1"]
)
def test_a_name_that_leads_here_reads_nothing(client: TestClient, host: str) -> None:
    for address in ("/", "/api/v1/runs", "/metrics", "/healthz"):
        found = client.get(address, headers={"host": host})
        assert found.status_code == 421
        assert "run" not in found.text.replace("127.0.0.1", "")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]:8766"])
def test_this_machine_reads(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


def test_a_token_is_needed_where_one_is_set(catalog: Catalog) -> None:
    rules = Rules(token="s3cret", is_loopback=False)  # noqa: S106 — of this test alone
    with TestClient(make_app(catalog, rules), base_url="http://cluster:8766") as client:
        basic = b64encode(b"me:s3cret").decode()
        given = {
            None: 401,
            "Bearer s3cret": 200,
            "bearer s3cret": 200,
            f"Basic {basic}": 200,
            "Bearer s3cre": 401,
            "Bearer s3crets": 401,
            f"Basic {b64encode(b's3cret:').decode()}": 401,
            "Basic %": 401,
            "Bearer": 401,
        }
        for header, status in given.items():
            for address in ("/", "/api/v1/runs", "/metrics", "/static/style.css"):
                found = client.get(address, headers={"authorization": header} if header else {})
                assert found.status_code == status, (header, address)
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_is_changed(client: TestClient, method: str) -> None:
    assert client.request(method, "/runs/run").status_code == 405


@pytest.mark.parametrize("name", NASTY)
def test_a_name_is_text_on_every_page(catalog: Catalog, client: TestClient, job: Job, name: str) -> None:
    catalog.rename("run", name)
    catalog.tag(name, 10, "<b>tag</b>")
    (Path(job.folder(0)) / "net-2_10.ckpt").unlink()
    address = re.search(r'href="(/runs/[^"]+)"', client.get("/").text)
    assert address is not None
    for page in PAGES:
        found = client.get(page.replace("/runs/{}", address[1]))
        assert found.status_code == 200, page
        assert "36481" not in found.text
        assert Elements.of(found.text).inline == []
        assert "default-src 'none'" in found.headers["content-security-policy"]
        assert found.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "address",
    ["/static/../app.py", "/static/..%2Fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/app.py"],
)
def test_no_file_of_the_machine_is_read(client: TestClient, address: str) -> None:
    found = client.get(address)
    assert found.status_code in (404, 421)
    assert "import" not in found.text


def test_very_long_names_and_values(client: TestClient) -> None:
    assert client.get(f"/api/v1/runs/{'a' * 50_000}").status_code == 404
    assert client.get("/api/v1/runs", params={"cursor": "a" * 50_000}).status_code == 400
    assert client.get("/api/v1/runs", params={"limit": "9" * 5_000}).status_code == 400
    for address in (f"/runs/run/saves/{'9' * 5_000}", f"/runs/run/gc?keep_last={'9' * 5_000}"):
        assert client.get(f"/api/v1{address}").status_code in (400, 404)
    assert client.get("/api/v1/runs/%00/saves").status_code == 404
    assert client.get("/api/v1/runs/%ff%fe/saves").status_code == 404
