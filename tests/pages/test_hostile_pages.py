"""Pages under hostile text, long arguments, another reviewer's decision, an ended session, a restarted server."""

import asyncio
from contextlib import AsyncExitStack

import httpx
import pytest
from playwright.async_api import Browser, Route, expect

from perdure.settings import Settings
from tests.conftest import Person
from tests.harness import Harness
from tests.pages.conftest import CORPUS, NARROW, UNSEEN, Site, alarm, decided, pages_at


@pytest.mark.parametrize("text", ["\n".join(CORPUS), *(pytest.param(text, marks=pytest.mark.soak) for text in CORPUS)])
async def test_hostile_text_is_escaped_and_fully_visible(site: Site, text: str) -> None:
    approval, window = await site.open_approval("post", {"text": text})
    page = window.page
    assert not set(await page.locator("pre.json").first.inner_text()) & set(UNSEEN)
    marks = await page.locator("pre.json").first.locator(".unseen").all_inner_texts()
    unseen = [each for each in text if each in UNSEEN]
    for each in unseen:
        units = each.encode("utf-16-be").hex()
        written = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        assert any(written in mark for mark in marks), (written, marks)
    await page.locator("summary[aria-keyshortcuts=e]").click()
    await page.locator("#edit").click()
    await expect(alarm(page)).to_be_visible()
    await page.goto("/review?all=1")
    await window.assert_inert()
    assert await page.locator("main svg").count() == 0
    await site.harness.decide(approval)
    assert not window.faults, window.faults


async def test_one_long_word_makes_no_page_wider_than_its_window(site: Site) -> None:
    approval = await site.asks("post", text="W" * 300)
    await site.harness.write("UPDATE approvals SET describe = 'Write {text} down.' WHERE id = $1", approval)
    narrow = await site.visit("reviewer", f"/review/{approval}", viewport=NARROW)
    await expect(narrow.page.locator("p.says")).to_contain_text("WWWW")
    await narrow.assert_fits()
    wide = await site.visit("reviewer")
    await expect(wide.page.locator(f"#row-{approval}")).to_contain_text("WWWW")
    await wide.assert_fits()
    await narrow.page.get_by_role("button", name="Approve").click()
    await expect(narrow.page.locator("#badge")).to_contain_text("approved")
    await wide.assert_fits("/review/mine")
    await expect(wide.page.locator("tbody")).to_contain_text("WWWW")


async def test_the_result_of_a_form_stays_beside_the_notice_of_an_old_page(site: Site) -> None:
    page = (await site.visit("reviewer", "/review/mine")).page
    await page.evaluate("perdure.notice('It was not sent.', {ofSent: true}); perdure.notice('This page is old.')")
    await expect(page.locator("#notice")).to_contain_text("It was not sent.This page is old.")
    await page.evaluate("perdure.notice('')")
    await expect(page.locator("#notice")).to_have_text("It was not sent.")


async def test_an_open_page_shows_immediately_that_another_reviewer_decided(site: Site) -> None:
    approval, window = await site.open_approval("post", {"text": "race"})
    page = window.page
    await page.locator("details:has(#respond-words) summary").click()
    await page.locator("#respond-words").fill("half a sent")
    await site.harness.decide(approval, by="admin")
    await decided(page, "approved", "admin")
    buttons = await page.locator("main form button").all()
    assert buttons
    for button in buttons:
        await expect(button).to_be_disabled()
    await expect(page.locator("#badge")).to_have_text("approved")
    await expect(page.locator("#respond-words")).to_have_value("half a sent")
    await window.checked()


async def test_without_scripts_a_late_decision_is_answered_with_the_first_one(site: Site) -> None:
    approval, window = await site.open_approval("post", {"text": "late"}, java_script_enabled=False)
    await site.harness.decide(approval, by="admin")
    await window.page.get_by_role("button", name="Approve").click()
    await expect(window.page.locator("#why")).to_contain_text("admin")
    await decided(window.page, "approved", "admin")


async def test_a_page_stays_current_although_its_stream_script_loads_late(site: Site) -> None:
    is_decided = asyncio.Event()

    async def late(route: Route) -> None:
        await asyncio.wait_for(is_decided.wait(), 30)
        await route.continue_()

    approval = await site.asks("post", text="slow scripts")
    window = await site.visit("reviewer", "/review/mine")
    await window.page.route("**/assets/review.js*", late)
    await window.page.goto(f"/review/{approval}", wait_until="commit")
    await site.harness.decide(approval, by="admin")
    is_decided.set()
    await decided(window.page, "approved", "admin")
    await expect(window.page.locator("#approve")).to_be_disabled()


async def test_a_page_requests_an_update_again_that_it_did_not_get(site: Site) -> None:
    met: list[str] = []

    async def lost(route: Route) -> None:
        met.append("no stream")
        await route.abort()

    async def away(route: Route) -> None:
        met.append("no state")
        await route.fulfill(status=503)

    approval = await site.asks("post", text="away")
    window = await site.visit("reviewer", "/review/mine")
    await window.page.route("**/v1/approvals/stream", lost, times=1)
    await window.page.route("**/state?*", away, times=1)
    await window.page.goto(f"/review/{approval}")
    await site.harness.decide(approval, by="admin")
    await decided(window.page, "approved", "admin")
    await expect(window.page.locator("#notice")).to_be_empty()
    assert met == ["no stream", "no state"]


async def test_open_pages_survive_a_restart_of_the_api(
    page_settings: Settings, browser: Browser, harness: Harness, people: dict[str, Person]
) -> None:
    async with AsyncExitStack() as windows:
        async with pages_at(page_settings) as (url, app):
            site = Site(url, browser, harness, app, people)
            windows.push_async_callback(site.close)
            approval = await site.asks("post", text="restart")
            window = await site.visit("reviewer")
            await expect(window.page.locator(f"#row-{approval}")).to_be_visible()
        await expect(window.page.locator("#notice")).not_to_be_empty()
        later = await site.asks("post", text="after the restart")
        async with pages_at(page_settings, httpx.URL(url).port or 0):
            await expect(window.page.locator(f"#row-{later}")).to_be_visible(timeout=30_000)
            await expect(window.page.locator("#notice")).to_be_empty()
            await window.page.locator(f"#row-{later} a").click()
            await window.page.get_by_role("button", name="Approve").click()
            await decided(window.page, "approved", "reviewer")
            await window.context.close()
