"""A reviewer at work in a browser: by mouse, by keys alone, and without JavaScript. A turn's page shows the turn as it
is, follows it to its end, and nothing on it comes to life."""

import re

import pytest
from playwright.async_api import Page, expect

from perdure.contracts.events import PendingEvent
from perdure.contracts.memory import Risk
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decision
from perdure.pages.approvals.page import DEFAULT_REJECT_REASONS
from perdure.store.memory import promotions as documents_promotions
from perdure.store.memory.documents import Basis
from perdure.store.memory.promotions import Target
from tests.doubles.fake_turn import NOW
from tests.integration.library_writer import Library
from tests.pages.conftest import CORPUS, NARROW, Site, alarm, decided
from tests.pages.test_page_figures import MOST_BYTES, weight_of


async def status_of(site: Site, approval: str) -> str:
    return str(await site.harness.value("SELECT status FROM approvals WHERE id = $1", approval))


async def decision_of(site: Site, approval: str) -> dict[str, object]:
    return dict(await site.harness.value("SELECT decision FROM approvals WHERE id = $1", approval) or {})


async def press(page: Page, *keys: str) -> None:
    for key in keys:
        await page.keyboard.press(key)


@pytest.mark.parametrize(
    ("button", "keys", "state", "reason"),
    [("approve", ["Enter"], "approved", ""), ("reject", ["Space", "Enter"], "rejected", DEFAULT_REJECT_REASONS[0])],
)
async def test_a_call_is_decided_from_the_inbox_with_few_keys(
    site: Site, button: str, keys: list[str], state: str, reason: str
) -> None:
    approval = await site.asks("post", text="by keys")
    window = await site.visit("reviewer")
    await expect(window.page.locator(f"#row-{approval}")).to_be_visible()
    await press(window.page, "j")
    await expect(window.page.locator(f"#row-{approval} a.call")).to_be_focused()
    await press(window.page, button[0])
    await expect(window.page.locator(f"#{button}")).to_be_focused()
    await window.checked()
    await press(window.page, *keys)
    await decided(window.page, state, "reviewer")
    assert (await decision_of(site, approval))["reason_code"] == reason


async def test_a_call_is_rejected_by_keys_alone_and_not_without_a_reason(site: Site) -> None:
    approval, window = await site.open_approval("post", {"text": "reject me"})
    await press(window.page, "r", "Enter")
    await expect(alarm(window.page)).to_be_visible()
    assert await status_of(site, approval) == "pending"
    await window.checked()
    await window.page.goto(f"/review/{approval}")
    await press(window.page, "r")
    await expect(window.page.locator("#reject")).to_be_focused()
    await press(window.page, "Tab")
    await window.page.keyboard.type("not like this")
    await press(window.page, "Tab", "Enter")
    await expect(window.page.locator("#state")).to_contain_text("not like this")
    assert (await decision_of(site, approval))["comment"] == "not like this"


async def test_typed_text_survives_a_claim_and_going_back_and_back_sends_nothing(site: Site) -> None:
    approval = await site.asks("pay", amount=4200)
    page = (await site.visit("reviewer", f"/review/{approval}?in=tool%3Dpay")).page
    amount, words = page.get_by_label("amount", exact=True), page.locator("#reject-words")
    await page.locator("summary[aria-keyshortcuts=e]").click()
    await amount.fill("43")
    await page.locator("summary[aria-keyshortcuts=r]").click()
    await words.fill("half a reason")
    await page.get_by_role("button", name="Claim").click()
    await expect(page.get_by_role("button", name="Release")).to_be_visible()
    await expect(words).to_have_value("half a reason")
    await page.locator("#edit").click()
    await expect(page.get_by_role("button", name="Approve as edited")).to_be_visible()
    await page.go_back()
    await expect(amount).to_have_value("43")
    await expect(amount).to_be_visible()
    await page.locator("#edit").click()
    await page.get_by_role("button", name="Approve as edited").click()
    await decided(page, "edited", "reviewer")
    await page.go_back()
    await decided(page, "edited", "reviewer")
    assert page.url.endswith(f"/review/{approval}?in=tool%3Dpay")
    assert await page.evaluate("sessionStorage.length") == 0


async def test_an_edit_is_made_in_fields_compared_and_sent(site: Site) -> None:
    approval, window = await site.open_approval("pay", {"amount": 4200})
    await press(window.page, "e")
    await expect(window.page.locator("[id='arg.0']")).to_be_focused()
    await window.page.get_by_label("amount", exact=True).fill("4,2")
    await window.page.locator("#edit").click()
    await expect(window.page.locator(".fault")).to_be_visible()
    await expect(window.page.get_by_label("amount", exact=True)).to_have_value("4,2")
    await window.checked()
    await window.page.get_by_label("amount", exact=True).fill("-5")
    await window.page.locator("#edit").click()
    await expect(window.page.locator(".fault")).to_contain_text("-5")
    assert await status_of(site, approval) == "pending"
    await window.page.get_by_label("amount", exact=True).fill("42")
    await window.page.locator("#edit").click()
    await expect(window.page.locator("del")).to_contain_text("4200")
    await expect(window.page.locator("ins")).to_contain_text("42")
    await window.checked()
    other = await site.visit("reviewer", f"/review/{approval}")
    await other.page.get_by_role("button", name="Claim").click()
    await expect(window.page.locator("#state [data-closed]")).to_be_visible()
    await expect(window.page.get_by_role("button", name="Approve as edited")).to_be_disabled()
    await window.page.go_back()
    await window.page.locator("#edit").click()
    await window.page.get_by_role("button", name="Approve as edited").click()
    await decided(window.page, "edited", "reviewer")
    assert (await decision_of(site, approval))["args"] == {"amount": 42, "mode": ""}


async def test_every_decision_works_without_javascript(site: Site) -> None:
    page = (await site.visit("reviewer", java_script_enabled=False)).page
    approved, rejected, edited, answered = [await site.asks("post", text=f"plain {number}") for number in range(4)]
    await page.goto("/review")
    await page.locator(f"#row-{approved} a").click()
    await page.get_by_role("button", name="Approve").click()
    await decided(page, "approved", "reviewer")
    await page.goto(f"/review/{rejected}")
    await page.locator("summary[aria-keyshortcuts=r]").click()
    await page.locator("#reject-words").fill("no")
    await page.get_by_role("button", name="Reject").click()
    await page.goto(f"/review/{edited}")
    await page.locator("summary[aria-keyshortcuts=e]").click()
    await page.get_by_label("text", exact=True).fill("plainer")
    await page.locator("#edit").click()
    await page.get_by_role("button", name="Approve as edited").click()
    await page.goto(f"/review/{answered}")
    await page.locator("details:has(#respond-words) summary").click()
    await page.locator("#respond-words").fill("it is done already")
    await page.get_by_role("button", name="Respond").click()
    found = [await status_of(site, each) for each in (approved, rejected, edited, answered)]
    assert found == ["approved", "rejected", "edited", "responded"]
    await page.goto("/review/mine")
    for words in ("approved", "rejected", "edited", "responded"):
        await expect(page.locator("tbody")).to_contain_text(words)
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("**/sign-in")


async def test_claim_release_reassign_and_escalate_come_back_to_the_page(site: Site) -> None:
    _, window = await site.open_approval("post", {"text": "hand me on"})
    page = window.page
    await page.get_by_role("button", name="Claim").click()
    await expect(page.get_by_role("button", name="Release")).to_be_visible()
    await page.get_by_role("button", name="Release").click()
    await expect(page.get_by_role("button", name="Release")).to_have_count(0)
    await page.get_by_label("Assign to").fill("nobody")
    await page.get_by_role("button", name="Reassign").click()
    await expect(alarm(page)).to_be_visible()
    await expect(page.get_by_label("Assign to")).to_have_value("nobody")
    await page.get_by_label("Assign to").fill("admin")
    await page.get_by_role("button", name="Reassign").click()
    await expect(page.locator("dl.facts")).to_contain_text("admin")
    await page.get_by_role("button", name="Escalate").click()
    await expect(page.get_by_role("button", name="Escalate")).to_have_count(0)
    await expect(page.locator("dl.facts")).to_contain_text("admin")
    await window.checked()


async def test_a_bulk_decision_shows_a_result_for_each(site: Site) -> None:
    ours = [await site.asks("post", text=f"many {number}") for number in range(3)]
    window = await site.visit("reviewer")
    for approval in ours:
        await window.page.locator(f"#pick-{approval}").check()
    await window.page.locator("button[name=decision][value=reject]").click()
    await expect(window.page.locator("pre.json")).to_have_count(3)
    await site.harness.decide(ours[0])
    await expect(window.page.locator("h1")).to_contain_text("2")
    await window.page.get_by_role("button", name="Reject 2").click()
    await expect(alarm(window.page)).to_be_visible()
    await window.checked()
    await window.page.locator("#words").fill("none of these")
    await window.page.get_by_role("button", name=re.compile("Reject 2")).click()
    await expect(window.page.locator("h1")).to_contain_text("2 of 2")
    await window.page.go_back()
    await expect(window.page.locator("main")).to_contain_text("rejected")
    await window.page.go_forward()
    assert [await status_of(site, each) for each in ours] == ["approved", "rejected", "rejected"]
    await window.checked()


async def test_the_list_is_filtered_and_its_counts_are_live(site: Site) -> None:
    window = await site.visit("reviewer", "/review?tool=pay")
    counts = window.page.locator(".counts")
    before = int(re.findall(r"\d+", await counts.inner_text())[0])
    approval = await site.asks("pay", amount=77)
    await expect(counts).to_contain_text(f"{before + 1}")
    await expect(window.page).to_have_title(re.compile(rf"\({before + 1}\)"))
    await expect(window.page.locator(f"#row-{approval}")).to_be_visible()
    await expect(window.page.locator("tbody a.call").filter(has_text="post")).to_have_count(0)
    await site.harness.decide(approval)
    await expect(window.page.locator(f"#row-{approval}")).to_have_count(0)
    await window.checked()


async def test_the_call_is_compared_with_the_last_approved_one(site: Site) -> None:
    await site.harness.decide(await site.asks("book", what="a room"), Decision.APPROVE)
    _, window = await site.open_approval("book", {"what": "a hall"})
    section = window.page.locator("[aria-labelledby=compared]")
    await expect(section.locator("del")).to_contain_text("a room")
    await expect(section.locator("ins")).to_contain_text("a hall")


async def test_the_requester_sees_the_request_without_buttons(site: Site) -> None:
    approval = await site.asks("post", text="my own")
    window = await site.visit("requester", f"/review/{approval}")
    await expect(window.page.locator(".callout.warn")).to_be_visible()
    await expect(window.page.get_by_role("button", name="Approve")).to_have_count(0)
    await window.page.get_by_role("button", name="Withdraw").click()
    await decided(window.page, "withdrawn", "requester")
    await window.checked()


async def test_a_request_that_is_no_longer_pending_disappears_from_an_open_page(site: Site) -> None:
    approval, window = await site.open_approval("post", {"text": "approved"})
    own = await site.visit("requester", f"/review/{approval}")
    await expect(own.page.locator("#why-not, #expires, #expires-when, #withdraw")).to_have_count(4)
    await window.page.locator("#approve").click()
    await decided(own.page, "approved", "reviewer")
    await expect(own.page.locator("#why-not, #expires, #expires-when, #withdraw")).to_have_count(0)
    withdraw = window.page.get_by_role("button", name="Withdraw")
    await expect(withdraw).to_be_enabled()
    await site.harness.write("UPDATE approvals SET status = 'reserved', version = version + 1 WHERE id = $1", approval)
    await window.page.evaluate("document.body.dispatchEvent(new Event('approvals'))")
    await expect(window.page.locator("#badge")).to_have_text("reserved")
    await expect(withdraw).to_have_count(0)


async def test_the_decision_page_works_on_a_phone(site: Site) -> None:
    _, window = await site.open_approval("post", {"text": "on a phone " * 20}, viewport=NARROW, has_touch=True)
    await window.assert_fits()
    button = window.page.get_by_role("button", name="Approve")
    box = await button.bounding_box()
    assert box is not None and box["height"] >= 44
    await button.tap()
    await decided(window.page, "approved", "reviewer")
    await window.assert_fits("/review")
    await window.checked()


async def test_a_promotion_is_decided_on_a_phone(site: Site) -> None:
    library, target = Library(site.harness.db, site.harness.people), Target("workspace_conventions", "b", Risk.HIGH)
    source = await library.read((await library.write("pages-b", "New.")).ref.document_id)
    async with site.harness.db.transaction("local") as tx:
        writer, basis = library.writer("requester", agent=True), Basis("seen in three turns")
        found = await documents_promotions.propose(tx, writer, source, target, basis)
    phone = await site.visit("admin", f"/review/memory/{found['id']}", viewport=NARROW, has_touch=True)
    await phone.page.get_by_role("button", name="Reject").click()
    await expect(alarm(phone.page)).to_be_visible()
    await phone.checked()
    await phone.assert_fits()
    await phone.page.get_by_label("Comment").fill("not yet")
    await phone.page.get_by_role("button", name="Reject").click()
    await expect(phone.page.locator(".callout.bad")).to_contain_text("not yet")
    await phone.page.goto("/review/memory?all=1")
    await phone.checked()


async def test_hidden_tabs_send_no_requests(site: Site) -> None:
    approval = await site.asks("post", text="in the background")
    window = await site.visit("reviewer")
    hidden = "Object.defineProperty(document, 'hidden', {get: () => window.unseen ?? true})"
    await window.context.add_init_script(hidden)
    for _ in range(7):  # a browser has six connections to one server
        tab = await window.context.new_page()
        await tab.goto(f"/review/{approval}")
    await site.harness.decide(approval, by="admin")
    await tab.evaluate("window.unseen = false; document.dispatchEvent(new Event('visibilitychange'))")
    await decided(tab, "approved", "admin")


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
    await window.page.set_viewport_size(NARROW)
    for path in paths:
        await window.assert_fits(path)
