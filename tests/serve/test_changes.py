"""What the server changes with `--allow-changes`: the same as the command line, and nothing that nobody has seen."""

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from ckptstore.outside import threading
from ckptstore.retention.policy import Policy
from ckptstore.retention.worker import at_work
from ckptstore.serve.answers import Answers
from ckptstore.serve.app import make_app
from ckptstore.serve.changes import Changes
from ckptstore.serve.guard import Rules
from ckptstore.serve.problems import StillAtWorkError
from tests.jobs import Job
from tests.serve.conftest import ADDRESS, TOKEN, Person, forms_in
from tests.serve.printed import printed

API = "/api/v1/runs/run"
RETENTION = "/runs/run/retention"


@pytest.fixture(autouse=True)
def _job(job: Job) -> Job:
    """Steps 10, 20 and 30, of two ranks."""
    job.save(job.start(), 30)
    return job


def agreed(script: TestClient) -> dict[str, str]:
    return {"if-match": script.get(f"{API}/gc?keep_last=1&floor=1").headers["etag"]}


def trashed(catalog: Catalog) -> list[str]:
    return sorted(Path(file.path).name for file in catalog.files("run") if file.state == "trashed")


def test_pins_and_tags_of_a_script(catalog: Catalog, script: TestClient) -> None:
    """Each answer is what the command prints when it is done once more, but for `changed`."""
    for address, sent, command in (
        ("/saves/10/pin", {}, ("pin", "run", "10")),
        ("/saves/20/tag", {"tag": "best"}, ("tag", "run", "20", "best")),
        ("/saves/10/unpin", {}, ("unpin", "run", "10")),
        ("/untag", {"tag": "best"}, ("untag", "run", "best")),
    ):
        found = script.post(f"{API}{address}", json=sent)
        assert found.status_code == 200, found.text
        assert found.json() == printed(catalog, *command) | {"changed": True}
        assert script.post(f"{API}{address}", json=sent).json()["changed"] is False


def test_the_policy_of_a_script(catalog: Catalog, script: TestClient) -> None:
    rules = {"keep_last": 3, "keep_within": "7d", "floor": 2}
    assert script.get(f"{API}/policy").json() == {"run": "run", "policy": None}
    assert script.post(f"{API}/policy", json={"policy": rules}).json() == printed(catalog, "policy", "run")
    assert script.get(f"{API}/policy").json() == {"run": "run", "policy": rules}
    assert script.post(f"{API}/policy", json={"policy": None}).json() == {"run": "run", "policy": None}


def test_gc_and_undo_of_a_script(catalog: Catalog, script: TestClient) -> None:
    plan = script.get(f"{API}/gc?keep_last=1&floor=1").json()
    done = script.post(f"{API}/gc?keep_last=1&floor=1", json={}, headers=agreed(script)).json()
    assert done["applied"]
    assert done["remove"] == plan["remove"]
    assert done["bytes_freed"] == plan["bytes_freed"] == done["trash"]["bytes"]
    assert script.get(API).json()["trash_bytes"] == done["trash"]["bytes"]  # no answer of before is given
    assert trashed(catalog) == sorted(["net-1_10.ckpt", "net-2_10.ckpt"] * 2)
    brought = script.post(f"{API}/undo", json={}).json()
    assert (brought["files"], brought["gone"], brought["troubles"]) == (4, 0, [])
    assert trashed(catalog) == []


def test_a_plan_whose_tag_a_proxy_made_weak(script: TestClient) -> None:
    """As nginx does with what it compresses: the plan was said to have changed, again and again."""
    weak = {"if-match": f"W/{agreed(script)['if-match']}"}
    assert script.post(f"{API}/gc?keep_last=1&floor=1", json={}, headers=weak).json()["applied"]


def test_a_plan_that_nobody_has_seen_is_not_carried_out(catalog: Catalog, script: TestClient, job: Job) -> None:
    seen = agreed(script)
    catalog.pin("run", 10)
    found = script.post(f"{API}/gc?keep_last=1&floor=1", json={}, headers=seen)
    assert (found.status_code, found.json()["title"]) == (412, "the plan for run 'run' has changed since it was shown")
    for headers in ({}, {"if-match": '""'}):
        found = script.post(f"{API}/gc?keep_last=1&floor=1", json={}, headers=headers)
        assert (found.status_code, found.json()["title"]) == (400, "no plan is named")
    other_rules = script.post(f"{API}/gc?keep_last=1&floor=1&keep_every=20", json={}, headers=agreed(script))
    assert other_rules.status_code == 412
    assert trashed(catalog) == []
    seen = agreed(script)
    (job.folder(0) / "net-2_10.ckpt").write_bytes(b"another")
    assert script.post(f"{API}/gc?keep_last=1&floor=1", json={}, headers=seen).status_code == 412


def test_what_is_refused_has_its_hint(catalog: Catalog, script: TestClient, person: Person) -> None:
    headers = agreed(script)
    forms = person.forms(f"{RETENTION}?keep_last=1&floor=1")
    with at_work(catalog.database, "run"):
        found = script.post(f"{API}/gc?keep_last=1&floor=1", json={}, headers=headers)
        page = person.client.post("/runs/run/gc", data=forms["/runs/run/gc"])
    assert (found.status_code, found.headers["content-type"]) == (409, "application/problem+json")
    assert "another gc, undo or purge of run 'run' is at work" in found.json()["title"]
    assert found.json()["hint"] == "wait for it; if it has died, its lock ends within 15 minutes"
    assert page.status_code == 409
    assert "<h1>Not done</h1>" in page.text
    assert "wait for it; if it has died" in page.text


@pytest.mark.parametrize(
    ("address", "sent", "status", "title"),
    [
        ("/saves/7/pin", {}, 404, "run 'run' has no save of step 7"),
        ("/saves/10/pin", {"by": 1}, 400, "'by' is no field"),
        ("/saves/10/pin", [], 400, "the request is no JSON object"),
        ("/saves/10/tag", {}, 400, "no tag is given"),
        ("/saves/10/tag", {"tag": 3}, 400, "no tag is given"),
        ("/saves/10/tag", {"tag": "a/b\x1b[2J"}, 400, "tag"),
        ("/saves/10/tag", {"tag": "a" * 60_000}, 400, "tag"),
        ("/saves/10/tag", {"tag": "a" * 70_000}, 400, "the request holds more than 65536 bytes"),
        ("/policy", {}, 400, "no policy is given"),
        ("/policy", {"policy": {"keep_last": "5"}}, 400, "keep-last is '5'"),
        ("/policy", {"policy": {"keep_lots": 5}}, 400, "has unknown rules"),
        ("/policy", {"policy": {}}, 409, "no rule"),
        ("/untag", {"tag": "never"}, 400, "run 'run' has no tag 'never'"),
        ("/undo", {}, 400, "nothing of run 'run' is in the trash"),
        ("/nothing", {}, 405, "this address takes no such method"),
    ],
)
def test_what_cannot_be_done(script: TestClient, address: str, sent: Any, status: int, title: str) -> None:
    found = script.post(f"{API}{address}", json=sent)
    assert (found.status_code, found.headers["content-type"]) == (status, "application/problem+json"), found.text
    assert title in found.json()["title"]


def test_values_that_no_policy_and_no_tag_has(script: TestClient) -> None:
    """They are refused, and end no request by an error of the server."""
    odd = (None, True, -1, 10**30, 1.5, float("nan"), "", "5", "\ud800", [], {}, [1], {"a": 1})
    for rule in ("keep_last", "keep_within", "metric", "mode", "keep_kind", "keep_parents", "grace"):
        for value in odd:
            body = json.dumps({"policy": {rule: value}})
            found = script.post(f"{API}/policy", content=body, headers={"content-type": "application/json"})
            assert found.status_code in (400, 409), (rule, value, found.text)
            assert found.headers["content-type"] == "application/problem+json"
    for value in (*odd[:6], "", "\ud800", "a\x00", " ", "1200", "best:loss"):
        body = json.dumps({"tag": value})
        for address in ("/saves/10/tag", "/untag"):
            found = script.post(f"{API}{address}", content=body, headers={"content-type": "application/json"})
            assert found.status_code == 400, (value, found.text)


def test_json_is_what_a_script_sends(script: TestClient) -> None:
    """A form of another site can be sent as text or as a form, not as JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert script.post(f"{API}/saves/10/pin", content="{}", headers={"content-type": kind}).status_code == 400
    for body in ("{", "[" * 20_000, "\xff"):
        found = script.post(f"{API}/saves/10/pin", content=body, headers={"content-type": "application/json"})
        assert (found.status_code, found.json()["title"]) == (400, "the request is not JSON")


def test_pins_and_tags_by_forms(catalog: Catalog, person: Person) -> None:
    assert person.send("/runs/run", "/runs/run/saves/10/pin").url == f"{ADDRESS}/runs/run"
    assert [save.global_step for save in catalog.saves("run") if save.pinned] == [10]
    found = person.send("/runs/run/saves/20", "/runs/run/saves/20/tag", tag="<b>best</b>")
    assert found.url == f"{ADDRESS}/runs/run/saves/20"
    assert "Tagged &lt;b&gt;best&lt;/b&gt;." in found.text
    person.send("/runs/run/saves/20", "/runs/run/untag")
    person.send("/runs/run/saves/10", "/runs/run/saves/10/unpin")
    assert [save.global_step for save in catalog.saves("run") if save.pinned or save.tags] == []


def test_gc_and_undo_by_forms(catalog: Catalog, person: Person) -> None:
    page = f"{RETENTION}?keep_last=1&floor=1"
    done = person.send(page, "/runs/run/gc")
    assert "2 states removed" in done.text
    assert len(trashed(catalog)) == 4
    undo = forms_in(done.text)["/runs/run/undo"]
    assert "4 files came back" in person.client.post("/runs/run/undo", data=undo).text
    assert trashed(catalog) == []
    assert "/runs/run/undo" not in person.forms(page)


def test_an_undo_says_which_gc_it_passed_over(catalog: Catalog, person: Person, job: Job) -> None:
    """Page and JSON gave the files of the gc before for those of the last one; only the text of the command did not."""
    for keep in (2, 1):
        catalog.execute(catalog.plan_gc("run", Policy(keep_last=keep, floor=1)))
    for file in catalog.show("run", 20):
        Path(file.path).write_bytes(b"another")
    page = person.send(RETENTION, "/runs/run/undo").text
    assert "2 files came back" in page
    assert re.search(r"Nothing of the gc of 2\d{3}-\d\d-\d\d [\d:]{8} \(UTC\) could be brought back", page)


def test_a_plan_that_has_changed_is_shown_and_asked_for_again(catalog: Catalog, person: Person) -> None:
    form = person.forms(f"{RETENTION}?keep_last=1&floor=1")["/runs/run/gc"]
    catalog.pin("run", 20)
    found = person.client.post("/runs/run/gc", data=form)
    assert found.status_code == 412
    assert "has changed since it was shown: this is the new one." in found.text
    assert "1 state would go" in found.text
    assert trashed(catalog) == []
    again = forms_in(found.text)["/runs/run/gc"]
    assert again["agreed"] != form["agreed"]
    assert "1 state removed" in person.client.post("/runs/run/gc", data=again).text
    assert trashed(catalog) == ["net-1_10.ckpt"] * 2


def test_the_policy_by_forms(catalog: Catalog, person: Person) -> None:
    person.send(f"{RETENTION}?keep_last=1&keep_every=20", "/runs/run/policy")
    stored = printed(catalog, "policy", "run")["policy"]
    assert (stored["keep_last"], stored["keep_every"]) == (1, 20)
    assert "<code>keep_every 20</code>" in person.client.get(RETENTION).text
    person.send(RETENTION, "/runs/run/policy")  # without rules on the page its one form forgets them
    assert printed(catalog, "policy", "run")["policy"] is None


def test_a_form_without_its_key_changes_nothing(catalog: Catalog, person: Person) -> None:
    for key in ({}, {"form_key": ""}, {"form_key": "0" * 64}, {"form_key": "é"}):
        for action in ("saves/10/pin", "saves/10/tag", "untag", "policy", "gc", "undo"):
            fields = {"tag": "a", "keep_last": "1", "agreed": "1"} | key
            found = person.client.post(f"/runs/run/{action}", data=fields)
            assert found.status_code == 403
            assert "the form is too old, or of another page" in found.text
    assert [save.global_step for save in catalog.saves("run") if save.pinned or save.tags] == []


def test_the_key_of_another_visitor_is_none(catalog: Catalog, changing: TestClient, person: Person) -> None:
    key = Person(changing).forms("/runs/run")["#change"]
    assert person.client.post("/runs/run/saves/10/pin", data=key).status_code == 403
    assert catalog.saves("run")[2].pinned is False


def test_a_get_changes_nothing(catalog: Catalog, person: Person, script: TestClient) -> None:
    catalog.pin("run", 20)
    before = printed(catalog, "list", "run")
    for action in ("saves/10/pin", "saves/20/unpin", "saves/10/tag", "untag", "policy", "undo", "gc"):
        person.client.get(f"/runs/run/{action}?tag=a&keep_last=1&floor=1")
        script.get(f"{API}/{action}?tag=a&keep_last=1&floor=1", headers=agreed(script))
    assert printed(catalog, "list", "run") == before
    assert trashed(catalog) == []


def test_pages_have_no_forms_where_nothing_may_change(client: TestClient, catalog: Catalog) -> None:
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=1, floor=1)))
    for page in ("/runs/run", "/runs/run/saves/30", f"{RETENTION}?keep_last=1"):
        assert 'method="post"' not in client.get(page).text


def test_who_changed_what_is_logged(catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    """A user's name and a tag cannot make a line of their own."""
    app = make_app(catalog, Rules(token=TOKEN, may_change=True, proxy="10.0.0.5"))
    headers = {"authorization": f"Bearer {TOKEN}", "x-forwarded-user": "ann\x1b[2J"}
    caplog.set_level(logging.INFO, "ckptstore.serve")
    for peer, who in (("10.0.0.5", r"'ann\x1b[2J' through 10.0.0.5"), ("10.0.0.6", "10.0.0.6")):
        script = TestClient(app, base_url="http://127.0.0.1", headers=headers, client=(peer, 1))
        script.post(f"{API}/saves/10/pin", json={})
        script.post(f"{API}/saves/10/tag", json={"tag": "a\nb"})
        pinned, refused = caplog.messages[-2:]
        assert pinned == f"pin 'run' 10, by {who}: done"
        assert refused.startswith(rf"tag 'run' 10 'a\nb', by {who}: ")
        assert "done" not in refused


def test_a_change_that_takes_long_goes_on(catalog: Catalog, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, has_ended = threading.Event(), threading.Event()
    pin = Catalog.pin

    def late(self: Catalog, run: str, step: int) -> bool:
        may_end.wait()
        done = pin(self, run, step)
        has_ended.set()
        return done

    monkeypatch.setattr(Catalog, "pin", late)
    app = make_app(catalog, Rules(token=TOKEN, may_change=True), waited=0.05)
    with TestClient(app, base_url=ADDRESS, headers={"authorization": f"Bearer {TOKEN}"}) as script:
        found = script.post(f"{API}/saves/10/pin", json={})
        assert (found.status_code, found.json()["title"]) == (202, "after 0.05 s this is not finished: pin 'run' 10")
        may_end.set()
        assert has_ended.wait(60)
    assert [save.global_step for save in catalog.saves(job.run) if save.pinned] == [10]


def test_a_change_that_outlives_the_server_is_logged(
    catalog: Catalog, job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At Ctrl-C during a gc the log did not say what was done, and of one that had not begun it said "done"."""
    caplog.set_level(logging.INFO, "ckptstore.serve")
    has_begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(Catalog, "pin", lambda *_: has_begun.set() or may_end.wait())
    monkeypatch.setattr("ckptstore.serve.changes._THREADS", 1)
    changes = Changes(catalog, Answers(), patience=0)

    async def serve() -> None:
        for step in (10, 20):
            with pytest.raises(StillAtWorkError):
                await changes.pin(job.run, step, pinned=True)
            assert has_begun.wait(60)
        changes.close()

    asyncio.run(serve())
    may_end.set()
    changes._threads.shutdown()
    assert caplog.messages == ["pin 'run' 10, by : done"]
