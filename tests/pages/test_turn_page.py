"""A turn's page in a browser: it shows the turn as it is, follows it to its end, and nothing on it comes to life."""

from playwright.async_api import expect

from perdure.contracts.events import PendingEvent
from perdure.contracts.turns import TurnAddress, TurnStatus
from tests.doubles.fake_turn import NOW
from tests.pages.conftest import CORPUS, NARROW, Site
from tests.pages.test_page_figures import MOST_BYTES, weight_of

PATH = (
    "system_prompt_node", "memory_node", "resume_guard", "initial_llm_call", "tool_node", "initial_llm_call",
    "skill_select_node", "approval_node", "synthesis_llm_call", "output_format",
)  # fmt: skip


async def waiting(site: Site, text: str) -> tuple[TurnAddress, str]:
    address = await site.harness.plan(("post", {"text": text}))
    (request,) = await site.harness.open(address, "t1.0")
    return address, request.request_id


async def ends(site: Site, address: TurnAddress) -> None:
    """The turn's last transaction, with the nodes that it went through."""
    nodes = [PendingEvent(kind="node_end", at=NOW, number=n, data={"node": node}) for n, node in enumerate(PATH, 5)]
    said = "SELECT id::text FROM messages WHERE turn_id = $1 AND role = 'assistant' ORDER BY seq"
    transcript = (str(await site.harness.value(said, address.turn_id)),)
    await site.harness.finish(address, TurnStatus.COMPLETED, transcript=transcript, events=tuple(nodes))


async def test_a_turn_is_followed_from_its_approval_to_its_end(site: Site) -> None:
    address, approval = await waiting(site, "\n".join(CORPUS))
    window = await site.visit("reviewer", f"/review/{approval}")
    page = window.page
    window.asked.clear()
    await page.locator("a[href^='/turns/']").click()
    await expect(page.locator("h1")).to_contain_text("awaiting approval")
    await expect(page.locator("#waits + ul a")).to_have_attribute("href", f"/review/{approval}")
    await expect(page.locator(".segments")).to_contain_text("<script>window.hit = 1</script>")
    await expect(page.get_by_role("img", name="skill_pipeline")).to_be_visible()
    assert await page.locator(".graph .gone").count() == 0
    assert await weight_of(window) < MOST_BYTES
    await window.checked()
    await window.assert_inert()
    await site.harness.decide(approval)
    await expect(page.locator(".segments")).to_contain_text("approved")
    await ends(site, address)
    await expect(page.locator("h1")).to_contain_text("completed")
    assert await page.locator(".path code").all_inner_texts() == list(PATH)
    gone = await page.locator(".graph .gone").evaluate_all("all => all.map((each) => each.dataset.node)")
    assert gone == list(dict.fromkeys(PATH))
    await expect(page.locator('[data-node="initial_llm_call"] .times')).to_have_text("×2")
    await expect(page.locator(".callout.good")).to_have_text("asking")
    await window.checked()
    await window.assert_inert()
    await page.set_viewport_size(NARROW)
    await window.assert_fits()
    await window.checked()


async def test_a_hidden_page_does_not_poll_its_turn_until_it_is_visible(site: Site) -> None:
    address, approval = await waiting(site, "unseen")
    window = await site.visit("reviewer", "/review/mine")
    page = window.page
    await page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.unseen ?? true})")
    await page.clock.install()
    await page.goto(f"/turns/{address.turn_id}")
    await site.harness.decide(approval)
    window.asked.clear()
    await page.clock.run_for(60_000)
    assert not [request.url for request in window.asked if "/turns/" in request.url]
    await page.evaluate("window.unseen = false")
    await page.clock.run_for(5_000)
    await expect(page.locator(".segments")).to_contain_text("approved")
    await window.checked()


async def test_the_operations_pages_are_accessible_and_light(site: Site) -> None:
    await waiting(site, "plain")
    window = await site.visit("reviewer", "/status")
    paths = ("/status", "/agents", "/agents/desk", "/topologies/tool_loop")
    for path in paths:
        window.asked.clear()
        await window.page.goto(path)
        assert await weight_of(window) < MOST_BYTES, path
        await window.checked()
    await window.page.goto("/status")
    await expect(window.page.locator("#status")).to_contain_text("awaiting approval")
    await window.page.get_by_role("link", name="Agents").click()
    await window.page.get_by_role("link", name="Desk", exact=True).click()
    await expect(window.page.get_by_role("row", name="post")).to_be_visible()
    await window.page.set_viewport_size(NARROW)
    for path in paths:
        await window.assert_fits(path)
