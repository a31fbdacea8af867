"""perdure/sdk/tools.py: which previews a tool may have, what they are given, and that they change nothing."""

from typing import Any

import httpx
import pytest
from pydantic import JsonValue

from perdure.sdk.tools import Preview, PreviewOf, Tool, ToolContext, ToolDefinitionError, ToolRefused, tool
from tests.unit.apps.tool_contexts import card, context


def made_with(preview: Any) -> Tool:
    """A tool with this preview."""

    @tool(effect="keyed", key_ttl_seconds=60, preview=preview)
    async def pay(context: ToolContext, to: str, cents: int, note: str = "") -> JsonValue:
        """Pay."""
        return None

    return pay


async def balance(context: ToolContext, cents: int) -> Preview:
    """What is left."""
    return Preview({"left": 100, "nan": float("nan")}, {"left": 100 - cents, "nul": "a\0b"})


async def test_a_preview_gets_the_arguments_that_it_names_and_its_values_can_be_kept() -> None:
    pay = made_with(balance)
    assert pay.card.previews and pay.preview is not None
    made = await pay.preview.make({"to": "Ada", "cents": 30}, context(pay.card))
    assert made == Preview({"left": 100, "nan": None}, {"left": 70, "nul": made.after["nul"]})  # type: ignore[index,call-overload]
    assert "\0" not in str(made.after)


def test_a_preview_changes_the_version_of_its_tool_and_nothing_of_one_without() -> None:
    without, with_one = made_with(None), made_with(balance)
    assert not without.card.previews and without.preview is None
    assert "previews" not in without.card.model_dump(mode="json")
    assert without.card.version != with_one.card.version


async def _unknown(context: ToolContext, amount: int) -> Preview:
    return Preview(None, None)


def _blocking(context: ToolContext) -> Preview:
    return Preview(None, None)


@pytest.mark.parametrize("preview", [_unknown, _blocking])
def test_a_preview_that_cannot_be_made_is_refused_as_the_tool_is_imported(preview: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="pay"):
        made_with(preview)


async def test_what_is_no_preview_is_a_mistake_of_its_author() -> None:
    async def wrong() -> Any:
        return {"before": 1}

    with pytest.raises(TypeError):
        await PreviewOf.of("pay", wrong, made_with(None).parameters).make({}, context())


@pytest.mark.parametrize("method", ["POST", "put", "PATCH", "DELETE", "OPTIONS"])
async def test_a_preview_sends_nothing_that_may_change_anything(method: str) -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        given = context(card("keyed", key_ttl_seconds=60), http=http, reads_only=True)
        with pytest.raises(ToolRefused):
            await given.send(method, "http://target.test/")
    assert sent == []


async def test_a_previews_read_carries_no_key() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        await context(card("keyed", key_ttl_seconds=60), http=http, reads_only=True).send("GET", "http://target.test/")
    assert "idempotency-key" not in seen[0].headers
