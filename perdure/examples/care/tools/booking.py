"""The tool that changes an external system. Only the navigator has it; it is never part of the context."""

from typing import Annotated

from pydantic import Field, JsonValue

from perdure import ToolContext, tool


@tool(effect="keyed", key_ttl_seconds=30 * 86_400, risk="medium", secrets=("bookings_url",))
async def book_session(
    context: ToolContext,
    provider: Annotated[str, Field(pattern="^p[0-9]{1,4}$", description="A therapist's id, such as p1")],
    slot: Annotated[str, Field(min_length=1, max_length=60, description="Day and time, such as Monday 10:00")],
) -> JsonValue:
    """Book a first session with a therapist. Waits for a person's approval.

    Keyed: the calendar honors the call's Idempotency-Key, so a call that is made again after a crash is one booking.
    """
    answer = await context.send(
        "POST",
        context.secret("bookings_url") + "/bookings",
        json={"provider": provider, "slot": slot},
        refusals={409},
    )
    booked: JsonValue = answer.json()
    return booked
