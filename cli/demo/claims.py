"""What the demo claims, each with the evidence it was checked against."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.client import Event, Message


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence that must be true."""

    text: str
    held: bool
    evidence: str
    """What was looked at, and what was found there."""


def equal(text: str, found: object, wanted: object, where: str) -> Claim:
    """Holds where what was found is what was wanted."""
    shown = f"{found}" if found == wanted else f"{found}, not {wanted}"
    return Claim(text, found == wanted, f"{where}: {shown}")


def attempts(events: Sequence[Event], kind: str) -> dict[str, int]:
    """How often something of this kind was begun, by call."""
    counted: dict[str, int] = {}
    for event in events:
        if event.kind == kind:
            counted[event.call_id] = counted.get(event.call_id, 0) + 1
    return counted


def paid_once(whose: str, events: Sequence[Event]) -> Claim:
    """Each model call has one settled result, and nothing was asked of the model after it."""
    begun = attempts(events, "generation.start")
    settled = attempts(events, "generation.complete")
    over: set[str] = set()
    late = False
    for event in events:
        if event.kind == "generation.complete":
            over.add(event.call_id)
        late |= event.kind == "generation.start" and event.call_id in over
    told = ", ".join(f"{call_id} asked {begun[call_id]}x, settled {settled.get(call_id, 0)}x" for call_id in begun)
    held = bool(begun) and all(settled.get(call_id) == 1 for call_id in begun) and not late
    return Claim(f"{whose} model calls: none paid again once settled", held, f"event log: {told}")


def one_transcript(messages: Sequence[Message], heard: Mapping[str, str], roles: Sequence[str]) -> Claim:
    """The transcript has each message once, and the live reader held the same words."""
    found = [message.role for message in messages]
    said = [message.content for message in messages if message.role == "assistant"]
    same = said == [text for text in heard.values() if text]
    held = found == list(roles) and same
    told = " → ".join(found) + (", the live reader held the same words" if same else ", the live reader held others")
    return Claim("one transcript, nothing doubled", held, f"messages: {told}")
