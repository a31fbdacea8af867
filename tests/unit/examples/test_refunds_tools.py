"""The refunds agent's tools against the real payments service: what each outcome means for the effect."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from pydantic import JsonValue

from perdure.apps import SHIPPED, load_app
from perdure.contracts.calls import EffectClass
from perdure.core.calls.arguments import check_arguments
from perdure.sdk.tools import Tool, ToolContext, ToolRefused, ToolUnavailable
from tests.near import new_client
from tests.unit.examples.payments_process import TOKEN, PaymentsProcess, free_port


@pytest.fixture(scope="module")
def tools() -> Mapping[str, Tool]:
    return load_app(SHIPPED / "refunds").tools


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with new_client() as client:
        yield client


def context(tool: Tool, http: httpx.AsyncClient, url: str, key: str = "", seconds: float = 10.0) -> ToolContext:
    return ToolContext(
        card=tool.card,
        tenant_id="t",
        turn_id="turn",
        conversation_id="conversation",
        call_id="t1.0",
        user_id="user",
        idempotency_key=key,
        deadline=datetime.now(UTC) + timedelta(seconds=seconds),
        http=http,
        secrets={"payments_url": url, "payments_token": TOKEN},
    )


async def run(tool: Tool, args: dict[str, Any], given: ToolContext) -> dict[str, Any]:
    output = (await tool.run(args, given)).output
    assert isinstance(output, dict)
    return output


def test_the_cards_state_effect_gate_and_risk(tools: Mapping[str, Tool]) -> None:
    cards = {name: tool.card for name, tool in tools.items()}
    assert {name: (card.effect, card.needs_approval) for name, card in cards.items()} == {
        "order_status": (EffectClass.READ, False),
        "refund": (EffectClass.KEYED, True),
        "send_note": (EffectClass.OPAQUE, True),
    }
    assert cards["refund"].risk == "high" and cards["refund"].key_ttl_seconds == 2_592_000


@pytest.mark.parametrize(
    ("cents", "fits"), [(1, True), (18_900, True), (0, False), (1_000_000, False), (10**15, False)]
)
def test_an_absurd_amount_does_not_fit_whoever_writes_it(tools: Mapping[str, Tool], cents: int, fits: bool) -> None:
    checked = check_arguments({"order": "1042", "amount_cents": cents}, tools["refund"].card.parameters)
    assert (checked.fault is None) == fits


async def test_a_refund_made_again_with_its_key_is_one_refund(
    tools: Mapping[str, Tool], http: httpx.AsyncClient, payments: PaymentsProcess, order: str, key: str
) -> None:
    given = context(tools["refund"], http, payments.url, key)
    first = await run(tools["refund"], {"order": order}, given)
    second = await run(tools["refund"], {"order": order}, given)
    assert first == second
    assert first["status"] == "refunded" and order in first["message"]
    assert payments.counts(order)["refund"] == 1
    status = await run(tools["order_status"], {"order": order}, context(tools["order_status"], http, payments.url))
    assert status["refunds"] == 1


async def test_a_note_carries_no_key_and_each_call_lands(
    tools: Mapping[str, Tool], http: httpx.AsyncClient, payments: PaymentsProcess, order: str, key: str
) -> None:
    for _ in range(2):
        given = context(tools["send_note"], http, payments.url, key)
        assert (await run(tools["send_note"], {"order": order, "text": "Sorry."}, given))["status"] == "sent"
    assert payments.counts(order)["note"] == 2
    assert payments.requests(key) == []


@pytest.mark.parametrize(("name", "args"), [("refund", {}), ("send_note", {"text": "Sorry."})])
async def test_no_answer_in_time_is_ambiguous_although_the_effect_was_made(
    tools: Mapping[str, Tool],
    http: httpx.AsyncClient,
    payments: PaymentsProcess,
    order: str,
    key: str,
    name: str,
    args: dict[str, Any],
) -> None:
    payments.hold("after_commit")
    with pytest.raises(TimeoutError):
        await run(tools[name], {"order": order, **args}, context(tools[name], http, payments.url, key, seconds=0.7))
    assert sum(payments.counts(order).values()) == 1


async def test_a_service_that_dies_before_its_answer_is_ambiguous_and_the_key_heals_it(
    tools: Mapping[str, Tool], http: httpx.AsyncClient, own_payments: PaymentsProcess, order: str, key: str
) -> None:
    own_payments.hold("after_commit")
    given = context(tools["refund"], http, own_payments.url, key, seconds=30)
    asked = asyncio.create_task(run(tools["refund"], {"order": order}, given))
    await asyncio.to_thread(own_payments.wait_for_refunds, order, 1)
    own_payments.kill()
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await asked
    await asyncio.to_thread(own_payments.start)
    assert (await run(tools["refund"], {"order": order}, given))["status"] == "refunded"
    assert own_payments.counts(order)["refund"] == 1


@pytest.mark.parametrize("name", ["order_status", "refund", "send_note"])
async def test_a_service_that_is_down_was_sent_nothing(
    tools: Mapping[str, Tool], http: httpx.AsyncClient, name: str
) -> None:
    args = {"order": "1"} | ({"text": "Sorry."} if name == "send_note" else {})
    with pytest.raises(ToolUnavailable):
        await run(tools[name], args, context(tools[name], http, f"http://127.0.0.1:{free_port()}"))


async def test_an_order_that_does_not_exist_is_a_no_in_the_services_words(
    tools: Mapping[str, Tool], http: httpx.AsyncClient, payments: PaymentsProcess
) -> None:
    with pytest.raises(ToolRefused, match="999999"):
        await run(tools["refund"], {"order": "999999"}, context(tools["refund"], http, payments.url))


async def test_a_missing_credential_is_a_no_before_anything_is_sent(
    tools: Mapping[str, Tool], http: httpx.AsyncClient
) -> None:
    given = context(tools["refund"], http, "")
    with pytest.raises(ToolRefused, match="payments_url"):
        await run(tools["refund"], {"order": "1"}, given)


async def test_the_preview_of_a_refund_reads_the_order_and_leaves_it_as_it_is(
    tools: Mapping[str, Tool], http: httpx.AsyncClient, payments: PaymentsProcess, order: str
) -> None:
    refund = tools["refund"]
    args: dict[str, JsonValue] = {"order": order, "amount_cents": 150, "reason": "late"}
    assert refund.preview is not None
    look = replace(context(refund, http, payments.url), reads_only=True)
    made = await refund.preview.make(args, look)
    assert isinstance(made.before, dict) and isinstance(made.after, dict)
    assert made.before["refunds"] == 0
    assert made.after == {**made.before, "refunds": 1, "paid_back_now": "1.50 EUR"}
    assert await refund.preview.make(args, look) == made
