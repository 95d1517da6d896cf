"""Who may ask, and what a page may do: forged hosts, tokens, markup in names, addresses that lead elsewhere."""

import hmac
import logging
import re
import time
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from ckptstore.errors import UsageError
from ckptstore.serve import guard
from ckptstore.serve.app import make_app
from ckptstore.serve.guard import COOKIE, SIGNED_IN_SECONDS, Rules, Sessions
from tests.jobs import Job, started
from tests.serve.conftest import ADDRESS, TOKEN, Person, forms_in, visitor

PAGES = ("/", "/doctor", "/runs/{}", "/runs/{}/saves/10", "/runs/{}/launches", "/runs/{}/retention?keep_last=1")
NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 191 * 191 }}",
    "a&b",
    "../../etc/passwd",
    "a" * 200,
)


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
            for address in ("/", "/api/v1/runs", "/api/v1/events-not", "/metrics", "/nothing"):
                found = client.get(address, headers={"authorization": header} if header else {})
                expected = 404 if status == 200 and "not" in address else status
                assert found.status_code == expected, (header, address)
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


def test_a_path_is_text_on_every_page(catalog: Catalog, client: TestClient, tmp_path: Path) -> None:
    """One with markup, with escapes that clear a terminal, and a long one."""
    folder = tmp_path / "<img src=x onerror=alert(1)>\x1b[2J" / ("long" * 60)
    job, _ = started(catalog, folder, 10, 20)
    (job.folder(1) / "net-2_10.ckpt").unlink()
    for page in PAGES:
        found = client.get(page.format("run"))
        assert found.status_code == 200, page
        assert Elements.of(found.text).inline == []
    shown = client.get("/runs/run/saves/10")
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown.text
    assert "longlonglong" in shown.text
    told = client.get("/api/v1/runs/run/saves/10")
    assert b"\x1b" not in told.content
    assert told.json()["items"][0]["path"].startswith(str(tmp_path))


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
    assert client.get(f"/api/v1/runs/run@{'9' * 5_000}/resolution").status_code == 400
    assert client.get("/api/v1/runs/%00/saves").status_code == 404
    assert client.get("/api/v1/runs/%ff%fe/saves").status_code == 404


@pytest.fixture
def guarded(changing: TestClient) -> TestClient:
    """A browser that has not signed in."""
    return visitor(changing, headers={"accept": "text/html"}, follow_redirects=False)


def test_a_browser_signs_in(guarded: TestClient) -> None:
    asked = guarded.get("/runs/run%2Fa?x=1")
    assert (asked.status_code, asked.headers["location"]) == (303, "/sign-in?next=%2Fruns%2Frun%252Fa%3Fx%3D1")
    page = guarded.get(asked.headers["location"])
    assert 'value="/runs/run%2Fa?x=1"' in page.text
    assert "live.js" not in page.text
    wrong = guarded.post("/sign-in", data={"token": "s3cre"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
    done = guarded.post("/sign-in", data={"token": TOKEN, "next": "/runs/run%2Fa?x=1"})
    assert (done.status_code, done.headers["location"]) == (303, "/runs/run%2Fa?x=1")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/").status_code == 200
    key = re.search(r'name="form_key" value="(\w+)"', guarded.get("/").text)
    assert guarded.post("/sign-out").status_code == 403
    assert guarded.post("/sign-out", data={"form_key": key[1]}).status_code == 303
    assert guarded.get("/").status_code == 303


def test_an_open_page_whose_session_is_over_shows_a_form_that_works(guarded: TestClient) -> None:
    """Without an address of its own, the form would be sent to the page that shows it."""
    page = guarded.get("/runs/run", follow_redirects=True)
    assert list(forms_in(page.text)) == ["/sign-in"]
    assert '<main id="main" data-still>' in page.text, "a fetch every 5 s would drop the token that somebody types"
    assert guarded.post("/sign-in", data=forms_in(page.text)["/sign-in"] | {"token": TOKEN}).status_code == 303


def test_a_form_of_too_many_fields(guarded: TestClient) -> None:
    """It took no token, and each such request wrote a traceback to the log."""
    for address in ("/sign-in", "/sign-out"):
        guarded.cookies.clear()
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/x-www-form-urlencoded"}
        found = guarded.post(address, content="&".join(f"a{i}=1" for i in range(101)), headers=headers)
        assert (found.status_code, "the form has more than 100 fields" in found.text) == (400, True)


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "/\\evil.example", "/\t/evil.example", "/\n\\e", "https://evil.example", "javascript:alert(1)"],
)
def test_signing_in_leads_to_no_other_server(guarded: TestClient, target: str) -> None:
    assert guarded.post("/sign-in", data={"token": TOKEN, "next": target}).headers["location"] == "/"
    assert 'href="/"' in guarded.get("/sign-in", params={"next": target}).text
    assert target not in guarded.get("/sign-in", params={"next": target}).text


def test_a_cookie_that_is_forged_old_or_of_another_token(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(TOKEN)
    told, _, mark = sessions.new().rpartition(".")
    later = f"9{told}"
    for cookie in ("", ".", "..", mark, f"{told}.", f"{later}.{mark}", f"{told}.é", Sessions("s3cre").new()):
        assert guarded.get("/", headers={"cookie": f"{COOKIE}={cookie}".encode("latin-1")}).status_code == 303, cookie
    cookie = f"a=b; {COOKIE}=1.2; {COOKIE}={told}.{mark}"
    assert guarded.get("/", headers={"cookie": cookie}).status_code == 200
    now = time.time()
    monkeypatch.setattr(guard, "time", SimpleNamespace(time=lambda: now + SIGNED_IN_SECONDS + 1))
    assert guarded.get("/", headers={"cookie": cookie}).status_code == 303


def test_tokens_are_compared_in_constant_time(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at a secret is one of `hmac.compare_digest`."""
    compared: list[object] = []

    def note(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return False

    monkeypatch.setattr(hmac, "compare_digest", note)
    with TestClient(make_app(catalog, Rules(token=TOKEN, may_change=True)), base_url=ADDRESS) as client:
        assert client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 401
        assert client.post("/sign-in", data={"token": TOKEN}).status_code == 403
        assert client.get("/", headers={"cookie": f"{COOKIE}=1.2.3"}).status_code == 401
    assert compared[:3] == [TOKEN.encode(), TOKEN.encode(), b""]
    assert b"3" in compared


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1.evil.example:8766"},
        {"origin": "http://127.0.0.1:8767"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": ADDRESS, "sec-fetch-site": "cross-site"},
    ],
)
@pytest.mark.usefixtures("job")
def test_a_page_of_another_site_changes_nothing(
    catalog: Catalog, person: Person, script: TestClient, headers: dict[str, str]
) -> None:
    """Not even with the key of a form, or with the token."""
    form = person.forms("/runs/run")["/runs/run/saves/10/pin"]
    del person.client.headers["origin"]
    assert person.client.post("/runs/run/saves/10/pin", data=form, headers=headers).status_code == 403
    assert script.post("/api/v1/runs/run/saves/10/pin", json={}, headers=headers).status_code == 403
    assert person.client.post("/sign-in", data={"token": TOKEN}, headers=headers).status_code == 403
    assert not any(save.pinned for save in catalog.saves("run"))
    assert person.client.post("/runs/run/saves/10/pin", data=form, headers={"origin": ADDRESS}).status_code == 200
    assert script.post("/api/v1/runs/run/saves/20/pin", json={}, headers={"origin": ADDRESS}).status_code == 200


@pytest.mark.parametrize("authorization", [None, "Bearer s3cre", "Basic YTpi", "Bearer"])
@pytest.mark.usefixtures("job")
def test_without_the_token_nothing_changes(catalog: Catalog, changing: TestClient, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    client = visitor(changing, headers=headers)
    found = client.post("/api/v1/runs/run/saves/10/pin", json={})
    assert (found.status_code, found.headers["content-type"]) == (401, "application/problem+json")
    assert found.json()["hint"] == "give it as: Authorization: Bearer TOKEN"
    assert client.post("/runs/run/saves/10/pin").status_code == 401
    assert not any(save.pinned for save in catalog.saves("run"))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_not_taken(script: TestClient, method: str) -> None:
    found = script.request(method, "/runs/run")
    assert (found.status_code, found.headers["allow"]) == (405, "GET, HEAD, POST")


class TestProxy:
    """A server behind a reverse proxy at 10.0.0.5, which listens to this machine alone."""

    @staticmethod
    def asked(catalog: Catalog, peer: str, **headers: str) -> TestClient:
        rules = Rules(token=TOKEN, may_change=True, proxy="10.0.0.5")
        given = {name.replace("_", "-"): value for name, value in headers.items()} | {"accept": "text/html"}
        app = make_app(catalog, rules)
        return TestClient(
            app, base_url="http://ckpt.example.org", headers=given, client=(peer, 1), follow_redirects=False
        )

    def test_its_host_counts_and_no_other_ones(self, catalog: Catalog) -> None:
        for peer, status in (("10.0.0.5", 200), ("::ffff:10.0.0.5", 200), ("10.0.0.50", 421), ("testclient", 421)):
            assert self.asked(catalog, peer).get("/sign-in").status_code == status, peer

    def test_it_brings_no_rights(self, catalog: Catalog) -> None:
        """A user's name is no token."""
        client = self.asked(catalog, "10.0.0.5", x_forwarded_user="root")
        assert client.get("/").status_code == 303
        assert client.get("/api/v1/runs").status_code == 401

    def test_a_cookie_of_an_encrypted_site_is_sent_encrypted(self, catalog: Catalog) -> None:
        for proto, has in (("https", True), ("http", False)):
            client = self.asked(catalog, "10.0.0.5", x_forwarded_proto=proto)
            assert ("Secure" in client.post("/sign-in", data={"token": TOKEN}).headers["set-cookie"]) is has

    @pytest.mark.usefixtures("job")
    def test_the_origin_is_that_of_the_proxy(self, catalog: Catalog) -> None:
        for origin, status in (("https://ckpt.example.org", 200), ("https://evil.example", 403)):
            for told in ({}, {"x_forwarded_host": "ckpt.example.org", "host": "127.0.0.1:8766"}):
                headers = {"origin": origin, "authorization": f"Bearer {TOKEN}", "x_forwarded_proto": "https"} | told
                client = self.asked(catalog, "10.0.0.5", **headers)
                assert client.post("/api/v1/runs/run/saves/10/pin", json={}).status_code == status, told

    def test_no_address_leads_away_from_the_encrypted_site(self, catalog: Catalog) -> None:
        headers = {"authorization": f"Bearer {TOKEN}", "x_forwarded_proto": "https"}
        client = self.asked(catalog, "10.0.0.5", **headers)
        for address in ("/runs", "/doctor/", "/api/v1/doctor/", "/api/v1"):
            assert client.get(address).status_code == 404, address

    def test_others_cannot_name_a_host_or_a_user(self, catalog: Catalog) -> None:
        client = self.asked(catalog, "127.0.0.1", x_forwarded_host="localhost", host="evil.example")
        assert client.get("/sign-in").status_code == 421


@pytest.mark.usefixtures("job")
def test_the_headers_that_nginx_sends_in_the_docs(catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    """A form of the page that nginx shows is taken, and nginx's user is in the log."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "browser-for-a-team.md").read_text()
    told = dict(re.findall(r"proxy_set_header (\S+) +(.+);", page))
    variables = {"$http_host": "ckpt.example.org", "$scheme": "https", "$remote_user": "ann"}
    sent = {name: variables.get(value, value.strip('"')) for name, value in told.items()}
    caplog.set_level(logging.INFO, "ckptstore.serve")
    rules = Rules(token="THE-TOKEN", may_change=True, proxy="127.0.0.1")  # noqa: S106 — of the page
    with TestClient(make_app(catalog, rules), base_url=ADDRESS, headers=sent, client=("127.0.0.1", 1)) as client:
        form = forms_in(client.get("/runs/run").text)["/runs/run/saves/10/pin"]
        origin = {"origin": "https://ckpt.example.org"}
        assert (
            client.post("/runs/run/saves/10/pin", data=form, headers=origin, follow_redirects=False).status_code == 303
        )
    assert "pin 'run' 10, by 'ann' through 127.0.0.1: done" in caplog.messages


def test_a_proxy_is_named_by_its_address() -> None:
    with pytest.raises(UsageError, match="--trust-proxy 'proxy.example' is no address"):
        Rules(token=TOKEN, proxy="proxy.example")
