"""The refunds agent's tools against the real payments service: what each outcome means for the effect."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from pydantic import JsonValue

from perdure.apps import SHIPPED, load_app
from perdure.contracts.calls import EffectClass
from perdure.core.calls.arguments import check_arguments
from perdure.local.ports import free_port
from perdure.sdk.tools import Tool, ToolContext, ToolRefused, ToolUnavailable
from tests.local_egress import new_client
from tests.unit.apps.tool_contexts import context
from tests.unit.examples.payments_process import TOKEN, PaymentsProcess


@pytest.fixture(scope="module")
def tools() -> Mapping[str, Tool]:
    return load_app(SHIPPED / "refunds").tools


@dataclass(frozen=True, slots=True)
class ToolCaller:
    tools: Mapping[str, Tool]
    http: httpx.AsyncClient
    url: str
    key: str

    def context(self, name: str, seconds: float = 10.0) -> ToolContext:
        secrets = {"payments_url": self.url, "payments_token": TOKEN}
        return context(self.tools[name].card, http=self.http, secrets=secrets, seconds=seconds, key=self.key)

    async def run(self, name: str, args: dict[str, Any], seconds: float = 10.0) -> dict[str, Any]:
        output: Any = (await self.tools[name].run(args, self.context(name, seconds))).output
        return dict(output)


@pytest.fixture
async def caller(tools: Mapping[str, Tool], payments: PaymentsProcess, key: str) -> AsyncIterator[ToolCaller]:
    async with new_client() as client:
        yield ToolCaller(tools, client, payments.url, key)


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
def test_an_absurd_amount_never_fits(tools: Mapping[str, Tool], cents: int, fits: bool) -> None:
    checked = check_arguments({"order": "1042", "amount_cents": cents}, tools["refund"].card.parameters)
    assert (checked.fault is None) == fits


@pytest.mark.parametrize(("name", "args", "again"), [("refund", {}, 1), ("send_note", {"text": "Sorry."}, 2)])
async def test_no_answer_in_time_is_ambiguous_and_only_a_key_heals_it(
    caller: ToolCaller, payments: PaymentsProcess, order: str, name: str, args: dict[str, Any], again: int
) -> None:
    payments.hold("after_commit")
    with pytest.raises(TimeoutError):
        await caller.run(name, {"order": order, **args}, seconds=0.7)
    assert sum(payments.counts(order).values()) == 1
    await caller.run(name, {"order": order, **args})
    assert sum(payments.counts(order).values()) == again


@pytest.mark.parametrize(("name", "args"), [("order_status", {}), ("refund", {}), ("send_note", {"text": "Sorry."})])
async def test_an_unavailable_service_was_sent_nothing(caller: ToolCaller, name: str, args: dict[str, Any]) -> None:
    with pytest.raises(ToolUnavailable):
        await replace(caller, url=f"http://127.0.0.1:{free_port()}").run(name, {"order": "1", **args})


async def test_an_unknown_order_and_a_missing_credential_are_refusals(caller: ToolCaller) -> None:
    with pytest.raises(ToolRefused, match="999999"):
        await caller.run("refund", {"order": "999999"})
    with pytest.raises(ToolRefused, match="payments_url"):
        await replace(caller, url="").run("refund", {"order": "1"})


async def test_the_preview_of_a_refund_reads_the_order_and_leaves_it_as_it_is(caller: ToolCaller, order: str) -> None:
    preview = caller.tools["refund"].preview
    args: dict[str, JsonValue] = {"order": order, "amount_cents": 150, "reason": "late"}
    assert preview is not None
    look = replace(caller.context("refund"), reads_only=True)
    made = await preview.make(args, look)
    assert isinstance(made.before, dict) and made.before["refunds"] == 0
    assert made.after == {**made.before, "refunds": 1, "paid_back_now": "1.50 EUR"}
    assert await preview.make(args, look) == made
