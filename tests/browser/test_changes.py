"""Pins, tags, gc and undo by clicking: afterwards the command line says the same."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import TOKEN, Site


@pytest.fixture
def signed_in(changing: Site, page: Page) -> Page:
    """A page of somebody who came from a link, was asked for the token, and is where the link leads."""
    page.goto(f"{changing.address}/runs/digits")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Run digits")
    return page


def test_gc_and_undo(changing: Site, signed_in: Page) -> None:
    page = signed_in
    changing.job.save(changing.job.start(), 40)
    page.get_by_role("link", name="Retention").click()
    page.get_by_label("keep the last").fill("1")
    page.get_by_role("button", name="Show the plan").click()
    planned = changing.printed("gc", "digits", "--keep-last", "1")
    assert planned["remove"]
    rows = page.get_by_role("row").filter(has_text="remove")
    expect(rows).to_have_count(len(planned["remove"]))
    page.get_by_role("button", name="to the trash").click()
    expect(page.get_by_role("status")).to_contain_text(f"{len(planned['remove'])} state")
    after = changing.printed("gc", "digits", "--keep-last", "1")
    assert (after["trash"]["bytes"], after["remove"]) == (planned["bytes_freed"], [])
    assert {step["global_step"] for step in planned["remove"]} == {
        file["global_step"] for file in changing.printed("list", "digits", "--files") if file["state"] == "trashed"
    }
    page.get_by_role("button", name="Bring back what the last gc removed").click()
    expect(page.get_by_role("status")).to_contain_text("files came back")
    assert changing.printed("gc", "digits", "--keep-last", "1")["remove"] == planned["remove"]
    assert changing.printed("runs")[0]["trash_bytes"] == 0


def test_pin_and_tag(changing: Site, signed_in: Page) -> None:
    page = signed_in
    page.get_by_role("button", name="Pin step 10").click()
    expect(page.get_by_role("button", name="Unpin step 10")).to_be_visible()
    page.get_by_role("link", name="10", exact=True).last.click()
    page.get_by_label("Tag").fill("before the change")
    page.get_by_role("button", name="Tag step 10").click()
    expect(page.get_by_role("region", name="Protection from gc")).to_contain_text("Tagged before the change.")
    saved = {save["global_step"]: save for save in changing.printed("list", "digits")}
    assert (saved[10]["pinned"], saved[10]["tags"]) == (True, ["before the change"])
    page.get_by_role("button", name="Remove tag before the change").click()
    page.get_by_role("button", name="Unpin step 10").click()
    expect(page.get_by_role("region", name="Protection from gc")).to_contain_text("Not pinned. No tags.")
    saved = {save["global_step"]: save for save in changing.printed("list", "digits")}
    assert (saved[10]["pinned"], saved[10]["tags"]) == (False, [])


def test_the_policy_and_signing_out(changing: Site, signed_in: Page) -> None:
    page = signed_in
    page.get_by_role("link", name="Retention").click()
    page.get_by_label("keep the last").fill("2")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("button", name="Store these rules").click()
    expect(page.get_by_role("button", name="Forget the stored policy")).to_be_visible()
    assert changing.printed("policy", "digits")["policy"]["keep_last"] == 2
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.goto(f"{changing.address}/runs/digits")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_forms_keep_nobody_out(changing: Site, signed_in: Page) -> None:
    """Neither by what axe finds, nor on a phone."""
    page = signed_in
    page.set_viewport_size({"width": 360, "height": 640})
    changing.catalog.tag("digits", 20, "a tag")
    schemes: tuple[Any, ...] = ("light", "dark")
    for address in ("/runs/digits", "/runs/digits/saves/20", "/runs/digits/retention?keep_last=1&floor=1", "/sign-in"):
        page.goto(f"{changing.address}{address}")
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            found = Axe().run(page).response["violations"]
            assert [(each["id"], each["help"]) for each in found if each["impact"] in ("serious", "critical")] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, address
