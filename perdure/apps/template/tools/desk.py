"""The tools of the help desk: one only reads, one changes an external system."""

from typing import Annotated

from pydantic import Field, JsonValue

from perdure import ToolContext, tool


@tool(effect="read", secrets=("desk_url",))
async def find_tickets(context: ToolContext, words: Annotated[str, Field(min_length=1, max_length=100)]) -> JsonValue:
    """Find tickets whose title has these words."""
    answer = await context.send("GET", context.secret("desk_url") + "/tickets", params={"words": words})
    tickets = answer.json()["tickets"]
    told = "; ".join(f"{ticket['number']}: {ticket['title']}" for ticket in tickets)
    return {"status": "ok", "message": f"Found: {told}." if told else "No tickets found.", "tickets": tickets}


@tool(effect="keyed", key_ttl_seconds=7 * 86_400, secrets=("desk_url",))
async def open_ticket(context: ToolContext, title: Annotated[str, Field(min_length=1, max_length=200)]) -> JsonValue:
    """Open a ticket. Waits for a person's approval.

    Keyed: `send` adds the call's Idempotency-Key and the service honors it, so a call that is made again after a
    crash is still one ticket.
    """
    answer = await context.send("POST", context.secret("desk_url") + "/tickets", json={"title": title})
    ticket: JsonValue = answer.json()
    return ticket
