"""The refunds agent's tools against the real payments service: what each outcome means for the effect."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from pydantic import JsonValue

from perdure.apps import SHIPPED, load_app
from perdure.contracts.calls import EffectClass
from perdure.core.calls.arguments import check_arguments
from perdure.local.ports import free_port
from perdure.sdk.tools import Tool, ToolContext, ToolRefused, ToolUnavailable
from tests.near import new_client
from tests.unit.examples.payments_process import TOKEN, PaymentsProcess


@pytest.fixture(scope="module")
def tools() -> Mapping[str, Tool]:
    return load_app(SHIPPED / "refunds").tools


@dataclass(frozen=True, slots=True)
class Desk:
    """The tools, and the service that they call."""

    tools: Mapping[str, Tool]
    http: httpx.AsyncClient
    url: str
    key: str

    def context(self, name: str, seconds: float = 10.0) -> ToolContext:
        return ToolContext(
            card=self.tools[name].card,
            tenant_id="t",
            turn_id="turn",
            conversation_id="conversation",
            call_id="t1.0",
            user_id="user",
            idempotency_key=self.key,
            deadline=datetime.now(UTC) + timedelta(seconds=seconds),
            http=self.http,
            secrets={"payments_url": self.url, "payments_token": TOKEN},
        )

    async def run(self, name: str, args: dict[str, Any], seconds: float = 10.0) -> dict[str, Any]:
        output: Any = (await self.tools[name].run(args, self.context(name, seconds))).output
        return dict(output)


@pytest.fixture
async def desk(tools: Mapping[str, Tool], payments: PaymentsProcess, key: str) -> AsyncIterator[Desk]:
    """At the service that tests share."""
    async with new_client() as client:
        yield Desk(tools, client, payments.url, key)


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


async def test_a_refund_made_twice_with_its_key_is_one(desk: Desk, payments: PaymentsProcess, order: str) -> None:
    first, second = [await desk.run("refund", {"order": order}) for _ in range(2)]
    assert first == second
    assert first["status"] == "refunded" and order in first["message"]
    assert payments.counts(order)["refund"] == 1
    assert (await desk.run("order_status", {"order": order}))["refunds"] == 1


async def test_a_note_carries_no_key_and_each_call_lands(desk: Desk, payments: PaymentsProcess, order: str) -> None:
    for _ in range(2):
        assert (await desk.run("send_note", {"order": order, "text": "Sorry."}))["status"] == "sent"
    assert payments.counts(order)["note"] == 2
    assert payments.requests(desk.key) == []


@pytest.mark.parametrize(("name", "args"), [("refund", {}), ("send_note", {"text": "Sorry."})])
async def test_no_answer_in_time_is_ambiguous_although_the_effect_was_made(
    desk: Desk, payments: PaymentsProcess, order: str, name: str, args: dict[str, Any]
) -> None:
    payments.hold("after_commit")
    with pytest.raises(TimeoutError):
        await desk.run(name, {"order": order, **args}, seconds=0.7)
    assert sum(payments.counts(order).values()) == 1


async def test_a_key_heals_a_death_before_the_answer(desk: Desk, own_payments: PaymentsProcess, order: str) -> None:
    own_payments.hold("after_commit")
    at_its_own = replace(desk, url=own_payments.url)
    asked = asyncio.create_task(at_its_own.run("refund", {"order": order}, seconds=30))
    await asyncio.to_thread(own_payments.wait_for_refunds, order, 1)
    own_payments.kill()
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await asked
    await asyncio.to_thread(own_payments.start)
    assert (await at_its_own.run("refund", {"order": order}))["status"] == "refunded"
    assert own_payments.counts(order)["refund"] == 1


@pytest.mark.parametrize(("name", "args"), [("order_status", {}), ("refund", {}), ("send_note", {"text": "Sorry."})])
async def test_a_service_that_is_down_was_sent_nothing(desk: Desk, name: str, args: dict[str, Any]) -> None:
    with pytest.raises(ToolUnavailable):
        await replace(desk, url=f"http://127.0.0.1:{free_port()}").run(name, {"order": "1", **args})


async def test_an_order_that_does_not_exist_and_a_missing_credential_are_a_no(desk: Desk) -> None:
    with pytest.raises(ToolRefused, match="999999"):
        await desk.run("refund", {"order": "999999"})
    with pytest.raises(ToolRefused, match="payments_url"):
        await replace(desk, url="").run("refund", {"order": "1"})


async def test_the_preview_of_a_refund_reads_the_order_and_leaves_it_as_it_is(desk: Desk, order: str) -> None:
    preview = desk.tools["refund"].preview
    args: dict[str, JsonValue] = {"order": order, "amount_cents": 150, "reason": "late"}
    assert preview is not None
    look = replace(desk.context("refund"), reads_only=True)
    made = await preview.make(args, look)
    assert isinstance(made.before, dict) and made.before["refunds"] == 0
    assert made.after == {**made.before, "refunds": 1, "paid_back_now": "1.50 EUR"}
    assert await preview.make(args, look) == made
