"""Each page in a real browser: its numbers, live, by keyboard, on a phone, for screen readers."""

import time
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import Site

OF_RUN = ("", "/saves/20", "/launches", "/retention?keep_last=2")
PAGES = ("/", "/doctor", *(f"/runs/digits{page}" for page in OF_RUN))


def rows(page: Page, table: int = -1) -> list[list[str]]:
    """The text of the cells of a table."""
    found: list[list[str]] = (
        page.locator("table")
        .all()[table]
        .evaluate("table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.innerText.trim()))")
    )
    return found


def follow(page: Page, link: Locator, address: str) -> None:
    """Click, and wait until the page of that address is there: a click ends before it is."""
    link.click()
    page.wait_for_url(address)


def test_numbers_are_those_of_the_command_line(site: Site, page: Page) -> None:
    page.goto(site.address)
    expected = {row["run"]: row for row in site.printed("runs")}
    assert {row[0]: row[2] for row in rows(page)} == {
        name: str(row["restorable_step"]) for name, row in expected.items()
    }
    page.get_by_role("link", name="digits", exact=True).click()
    resolution = site.printed("resolve", "digits")
    goes_on = page.get_by_role("region", name="Where it would go on")
    expect(goes_on).to_contain_text(f"After step {resolution['global_step']}")
    for rejected in resolution["rejected"]:
        expect(goes_on).to_contain_text(rejected["reasons"][0]["detail"])
    lost = [rejected["global_step"] for rejected in resolution["rejected"]]
    assert [(row[0], row[3], row[5]) for row in rows(page)] == [
        (
            str(save["global_step"]),
            f"{save['ranks']}/{save['world_size']}",
            "not by its files, see above" if save["global_step"] in lost else "yes" if save["restorable"] else "no",
        )
        for save in site.printed("list", "digits")
    ]
    follow(page, page.get_by_role("link", name="20").last, "**/saves/20")
    assert [(row[0], row[6]) for row in rows(page)] == [
        (str(file["rank"]), file["path"]) for file in site.printed("show", "digits", "20")
    ]
    follow(page, page.get_by_role("link", name="Retention"), "**/retention")
    page.get_by_label("keep the last").fill("1")
    follow(page, page.get_by_role("button", name="Show the plan"), "**/retention?*")
    plan = site.printed("gc", "digits", "--keep-last", "1")
    assert [(row[0], row[1]) for row in rows(page)] == [
        (action, str(state["global_step"])) for action in ("remove", "keep") for state in plan[action]
    ]
    follow(page, page.get_by_role("link", name="Launches"), "**/launches")
    assert [row[0] for row in rows(page)] == [
        launch["launch"] for launch in reversed(site.printed("history", "digits"))
    ]
    follow(page, page.get_by_role("link", name="Doctor"), "**/doctor")
    assert len(rows(page)) == len(site.printed("doctor")["checks"])


def test_a_save_shows_without_a_click(living: Site, page: Page) -> None:
    page.goto(f"{living.address}/runs/digits")
    expect(page.get_by_role("region", name="Where it would go on")).to_contain_text("After step 20")
    ranks = living.job.start()
    saved_at = time.monotonic()
    living.job.save(ranks, 40)
    expect(page.get_by_role("region", name="Where it would go on")).to_contain_text("After step 40", timeout=10_000)
    print(f"shown {time.monotonic() - saved_at:.1f} s after the save")


def test_a_name_of_markup_is_a_name(site: Site, page: Page) -> None:
    page.goto(site.address)
    page.get_by_role("link", name='team "a"/<b>').click()
    expect(page.get_by_role("heading", level=1)).to_have_text('Run team "a"/<b>')


@pytest.mark.parametrize("address", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_keeps_anybody_out(site: Site, page: Page, address: str, scheme: Any) -> None:
    """axe, which knows what screen readers need, and contrasts."""
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{site.address}{address}")
    found = Axe().run(page).response["violations"]
    assert [(each["id"], each["help"]) for each in found if each["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize("address", PAGES)
def test_a_phone_shows_all_without_moving_the_page_sideways(site: Site, browser: Browser, address: str) -> None:
    """And without scripts."""
    context = browser.new_context(viewport={"width": 360, "height": 640}, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site.address}{address}")
    assert page.locator("h1").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()


def test_by_keyboard(site: Site, page: Page) -> None:
    page.goto(site.address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "digits":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Run digits")
