"""A conversation in a browser: streamed tokens, approvals, files and pictures, with a worker of the shipped agents."""

import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Browser, FilePayload, Page, expect

from perdure.settings import Settings
from tests.conftest import Person
from tests.eventually import until
from tests.harness import Harness
from tests.pages.conftest import CORPUS, NARROW, Site, Window, alarm, pages_at, routed, sign_in

SALES_ROWS = b"region,sales\nNorth,30\nSouth,10\nNorth,5\n"
SALES: FilePayload = {"name": "sales.csv", "mimeType": "text/csv", "buffer": SALES_ROWS}


async def begun(site: Site, agent: str, name: str = "requester", **given: Any) -> Window:
    """A window at a new conversation with this agent."""
    window = await site.visit(name, "/chat", **given)
    card = window.page.locator("li.panel", has=window.page.locator(f"input[name=agent][value={agent}]"))
    await card.get_by_role("button").last.click()
    await window.page.wait_for_url(re.compile(r"/chat/[0-9a-f-]{36}$"))
    return window


async def say(page: Page, text: str, way: str = "") -> None:
    if way:
        await page.locator("#on_busy").select_option(way)
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send", exact=True).click()


async def stored(site: Site, page: Page) -> list[str]:
    rows = await site.harness.rows(
        "SELECT content FROM messages WHERE conversation_id = $1 AND role = 'assistant' AND content <> '' ORDER BY seq",
        page.url.rpartition("/")[2].partition("#")[0],
    )
    return [row["content"] for row in rows]


async def test_streamed_text_reaches_every_tab_escaped_and_whole_despite_an_api_restart(
    page_settings: Settings, browser: Browser, harness: Harness, people: dict[str, Person], workers: None
) -> None:
    words = " ".join(CORPUS) + "".join(f" word{number}" for number in range(200))
    async with AsyncExitStack() as windows:
        async with pages_at(page_settings) as (url, app):
            routed(app, harness)
            site = Site(url, browser, harness, app, people)
            windows.push_async_callback(site.close)
            window = await begun(site, "refunds")
            page, second = window.page, await window.context.new_page()
            await second.goto(page.url)
            await page.get_by_label("Message").fill(f"/echo {words}")
            await page.keyboard.press("Enter")
            for each in (page, second):
                await expect(each.locator(".live p")).to_contain_text("word3")
            live = await page.locator(".live p").inner_text()
        async with pages_at(page_settings, httpx.URL(url).port or 0) as (_, again):
            routed(again, harness)
            for each in (page, second):
                await expect(each.locator("p.theirs[data-call]")).to_contain_text("word199", timeout=30_000)
                await expect(each.locator(".live p")).to_have_count(0)
                await expect(each.locator("#doing")).to_be_empty()
                await expect(each.locator("#notice")).to_be_empty()
            told = await page.locator("p.theirs[data-call]").inner_text()
            assert told.startswith(live.rstrip()) and "\\u202e" in told, "the script writes text as the server does"
            await window.assert_inert()
            assert await stored(site, page) == [words]
            await expect(page.get_by_label("Message")).to_have_value("")
            await window.checked()
            await page.reload()
            assert await page.locator("p.theirs").inner_text() == told
            await page.set_viewport_size(NARROW)
            await window.assert_fits()
            await window.context.close()


async def test_the_requester_waits_and_a_reviewer_decides_in_the_conversation(chat_site: Site) -> None:
    window = await begun(chat_site, "refunds")
    page = window.page
    await say(page, "Refund order 1001")
    card = page.locator(".ask")
    await expect(card).to_contain_text("reviewer")
    await expect(card.locator("pre.json")).to_contain_text("1001")
    await expect(card.get_by_role("button")).to_have_text(["Take the request back"])
    other = await chat_site.visit("reviewer", page.url.removeprefix(chat_site.url).partition("#")[0])
    await expect(other.page.get_by_label("Message")).to_have_count(0)
    await other.page.locator(".ask summary").click()
    await other.page.locator(".ask [name=comment]").fill("not this one")
    await other.checked()
    await other.page.get_by_role("button", name="Reject").click()
    await other.page.wait_for_url("**/chat/**")
    for each in (page, other.page):
        await expect(each.locator(".ask")).to_have_count(0)
        await expect(each.locator(".tool")).to_contain_text("denied")
        await expect(each.locator("#doing")).to_be_empty()
    assert "not this one" in await page.locator("#turns").inner_text()
    await window.checked()


async def test_a_message_can_be_queued_or_replace_the_turn_which_can_be_stopped(chat_site: Site) -> None:
    window = await begun(chat_site, "refunds")
    page = window.page
    long = "/echo " + "on and " * 200
    await say(page, long)
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await say(page, "/echo queued", "queue")
    await expect(page.locator(".turn").nth(1)).to_contain_text("queued")
    await say(page, long, "replace")
    await expect(page.locator(".turn").nth(0)).to_contain_text("replaced")
    third = page.locator(".turn").nth(2)
    await expect(third.locator(".live")).to_contain_text("on and")
    await third.get_by_role("button", name="Stop").click()
    await expect(third).to_contain_text("stopped")
    await expect(page.locator(".turn").nth(1).locator("p.theirs")).to_have_text("queued")
    await expect(page.locator("#way")).to_be_hidden()
    await window.checked()
    await window.context.clear_cookies()
    await say(page, "kept")
    await expect(page.locator("#notice")).not_to_be_empty()
    await expect(page.get_by_label("Message")).to_have_value("kept")


async def test_without_javascript_a_file_a_question_and_a_picture_work_by_forms(chat_site: Site) -> None:
    page = (await begun(chat_site, "chart_builder", java_script_enabled=False)).page
    sheet: FilePayload = {**SALES, "mimeType": "application/vnd.ms-excel"}  # what browsers on some machines say
    await page.locator("#file").set_input_files({**sheet, "buffer": b"a,b\n1\n"})
    await page.get_by_role("button", name="Upload").click()
    await expect(alarm(page)).to_contain_text("2")
    await page.locator("#file").set_input_files(sheet)
    await page.get_by_role("button", name="Upload").click()
    await expect(page.locator("#files")).to_contain_text("sales.csv")
    await say(page, "Plot something")
    await again_until(page, ".ask h2", "?")
    await page.locator(".ask textarea").fill("sales by region")
    await page.get_by_role("button", name="Answer").click()
    await again_until(page, ".picture img", "")
    await expect(page.locator(".mine").last).to_have_text("sales by region")
    picture = await page.locator(".picture img").get_attribute("src")
    answer = await page.request.get(str(picture))
    assert (answer.status, answer.headers["content-type"]) == (200, "image/svg+xml")
    await page.goto("/chat")
    await expect(page.locator(".conversations li").first).to_contain_text("Chart builder")


async def again_until(page: Page, place: str, text: str) -> None:
    """Reloads the page, as a user without scripts does, until the element contains the text."""

    async def is_shown() -> bool:
        if await page.locator(place).count() and text in await page.locator(place).first.inner_text():
            return True
        await page.wait_for_timeout(250)  # a reload at once would cut off the form's request
        await page.reload()
        return False

    await until(is_shown)


async def test_a_chosen_file_is_sent_before_the_message_and_a_refusal_is_shown(chat_site: Site, tmp_path: Path) -> None:
    window = await begun(chat_site, "chart_builder")
    page = window.page
    field = page.locator("#file")
    large = tmp_path / "sales.csv"  # Playwright passes on a buffer as text in a message, and a path as a path
    large.write_bytes(b"a\n" + b"1\n" * 11_000_000)
    await field.set_input_files(large)
    await say(page, "Plot sales by region")
    await expect(page.locator("#notice")).to_contain_text("20 MB")
    await expect(page.get_by_label("Message")).to_have_value("Plot sales by region")
    await page.evaluate("document.getElementById('file').dataset.mostBytes = '1e12'")
    await page.get_by_role("button", name="Upload").click()
    await expect(page.locator("#notice")).to_contain_text("20.98 MB")
    await expect(page.locator("#notice")).to_be_in_viewport()
    await field.set_input_files({**SALES, "buffer": b"a,b\n1\n"})
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator("#files .problem")).to_contain_text("2")
    await expect(page.locator(".turn")).to_have_count(0)
    await field.set_input_files(SALES)
    await page.locator("#message").evaluate("each => { each.style.height = '99px'; }")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator("#files")).to_contain_text("sales.csv")
    await expect(page.locator(".picture img")).to_be_visible(timeout=30_000)
    await expect(page.locator("#message")).to_have_css("height", "99px")
    await window.checked()


async def test_an_answer_typed_before_a_new_sign_in_is_kept_and_sent_afterwards(chat_site: Site) -> None:
    window = await begun(chat_site, "chart_builder")
    page = window.page
    hint = await page.locator("#message").get_attribute("placeholder")
    await page.locator("#file").set_input_files(SALES)
    await say(page, "Plot something")
    await expect(page.locator(".ask textarea")).to_be_focused()
    await expect(page.locator("#message")).not_to_have_attribute("placeholder", str(hint))
    await page.locator(".ask textarea").fill("sales by region")
    second = await window.context.new_page()
    await window.context.clear_cookies()
    await sign_in(second, chat_site.people["requester"].token, "/chat")
    await page.get_by_role("button", name="Answer").click()
    await page.get_by_role("button", name="Continue").click()
    await expect(page.locator("main")).to_contain_text("sales by region")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".picture img")).to_be_visible(timeout=30_000)
    await expect(page.locator(".mine").last).to_have_text("sales by region")
    await expect(page.locator("[data-open]")).to_have_count(0, timeout=30_000)
