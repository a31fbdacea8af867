"""The tools of the refunds agent: one of each effect class that goes outside, all to the payments service."""

from typing import Annotated, Any

from pydantic import Field, JsonValue

from perdure import Preview, ToolContext, tool

Order = Annotated[str, Field(pattern="^[0-9]{1,9}$", description="The order's number")]
NoteText = Annotated[str, Field(min_length=1, max_length=2_000)]
_MAX_CENTS = 100_000
"""Five times the dearest order: a slip of a reviewer's finger is refused before it becomes the decision."""
_SECRETS = ("payments_url", "payments_token")


@tool(effect="read", secrets=_SECRETS, timeout_seconds=15)
async def order_status(context: ToolContext, order: Order) -> JsonValue:
    """Look up an order: who bought what, for how much, and how often it was refunded."""
    status = await _request(context, "GET", f"/orders/{order}")
    times = {0: "never", 1: "once"}.get(status["refunds"], f"{status['refunds']} times")
    price = _money(status["total_cents"], status["currency"])
    message = f"Order {status['order']} ({status['item']}, {price}, {status['customer']}) was refunded {times}."
    return {"status": "ok", "message": message, **status}


async def refund_preview(context: ToolContext, order: Order, amount_cents: int | None = None) -> Preview:
    """The order as it is, and as the refund would leave it."""
    status = await _request(context, "GET", f"/orders/{order}")
    price, currency = status["total_cents"], status["currency"]
    unchanged: dict[str, JsonValue] = {name: status[name] for name in ("order", "customer", "item")}
    before: dict[str, JsonValue] = {**unchanged, "price": _money(price, currency), "refunds": status["refunds"]}
    paid = _money(price if amount_cents is None else amount_cents, currency)
    return Preview(before, {**before, "refunds": status["refunds"] + 1, "paid_back_now": paid})


@tool(
    effect="keyed",
    key_ttl_seconds=30 * 86_400,
    risk="high",
    secrets=_SECRETS,
    capability="refund",
    describe="Refund order {order}. Amount in cents: {amount_cents|the full price}. Reason: {reason|not given}",
    preview=refund_preview,
)
async def refund(
    context: ToolContext,
    order: Order,
    amount_cents: Annotated[
        int | None, Field(gt=0, le=_MAX_CENTS, description="A part of the price; omit it to refund the full price")
    ] = None,
    reason: Annotated[str, Field(max_length=500)] = "",
) -> JsonValue:
    """Pay an order's price, or a part of it, back to the customer. Waits for a person's approval."""
    body: dict[str, JsonValue] = {"order": order, "reason": reason}
    if amount_cents is not None:
        body["amount_cents"] = amount_cents
    refunded = await _request(context, "POST", "/refunds", body)
    price = _money(refunded["amount_cents"], refunded["currency"])
    return {
        "status": "refunded",
        "message": f"Order {refunded['order']} was refunded: {price}, {refunded['id']}.",
        **refunded,
    }


@tool(
    effect="opaque",
    risk="medium",
    secrets=_SECRETS,
    capability="send_note",
    describe="Send the customer of order {order} the note {text}. This cannot be undone",
)
async def send_note(
    context: ToolContext, order: Order, text: Annotated[str, Field(min_length=1, max_length=2_000)]
) -> JsonValue:
    """Write a goodwill note to the customer of an order. Waits for a person's approval; cannot be taken back."""
    note = await _request(context, "POST", "/notes", {"order": order, "text": text})
    return {"status": "sent", "message": f"The note for order {note['order']} was sent: {note['id']}.", **note}


async def _request(context: ToolContext, method: str, path: str, body: JsonValue = None) -> dict[str, Any]:
    """One request to the payments service; what its answer means for the effect is for `send` to say."""
    answer = await context.send(
        method,
        context.secret("payments_url") + path,
        json=body,
        headers={"Authorization": f"Bearer {context.secret('payments_token')}"},
    )
    content: dict[str, Any] = answer.json()
    return content


def _money(cents: int, currency: str) -> str:
    return f"{cents // 100}.{cents % 100:02d} {currency}"
