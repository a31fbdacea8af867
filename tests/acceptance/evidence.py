"""The promises about a turn that survived a kill, checked at provider and target. Functions return their faults."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.acceptance.turns import Happened
from tests.doubles.providers.requests import Seen

TOOL_TURN = ("user", "assistant", "tool", "assistant")
SPOKEN_TURN = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Wanted:
    message: str
    answer: str
    kind: str = ""
    """The effect's kind in the target's ledger: `refund`, `note`, or empty for a turn without one."""
    order: str = ""

    @property
    def path(self) -> str:
        return f"/{self.kind}s"


@dataclass(frozen=True, slots=True)
class Target:
    """The payments service's own ledger, and the requests that reached it."""

    effects: Sequence[dict[str, Any]]
    requests: Sequence[dict[str, Any]]


def of_provider(turn: dict[str, Any], events: Sequence[Happened], requests: Sequence[Seen]) -> Iterator[str]:
    """Checks that there are at most as many requests as attempts, none after the settle, and one settle per call."""
    asked = [seen for seen in requests if seen.idempotency_key.startswith(turn["turn_id"] + ".")]
    begun = Counter(event.call_id for event in events if event.kind == "generation.start")
    settled = Counter(event.call_id for event in events if event.kind == "generation.complete")
    if not asked:
        yield "its model was never asked"
    if len(asked) > turn["attempts"]:
        yield f"{len(asked)} requests to the provider in {turn['attempts']} attempts"
    if begun.total() != turn["attempts"]:
        yield f"{begun.total()} model calls begun in {turn['attempts']} attempts"
    if set(settled) != set(begun) or settled.total() != len(settled):
        yield f"model calls begun {dict(begun)}, settled {dict(settled)}"
    settled_at = {event.call_id: event.at.timestamp() for event in events if event.kind == "generation.complete"}
    for seen in asked:
        call_id = seen.idempotency_key.partition(".")[2]
        if call_id not in begun:
            yield f"the provider was asked for the call {call_id}, which was never begun"
        elif seen.received_at > settled_at.get(call_id, seen.received_at):
            yield f"the provider was asked for {call_id} again after it was settled"
        if seen.outcome == "no_step":
            yield f"the provider was asked for {call_id} once more than it should"


def of_target(wanted: Wanted, events: Sequence[Happened], target: Target) -> Iterator[str]:
    """Checks that there is one effect, at most as many requests as attempts, and always the same idempotency key."""
    made = [each for each in target.effects if (each["kind"], str(each["order"])) == (wanted.kind, wanted.order)]
    if len(made) != 1:
        yield f"{len(made)} effects of the kind {wanted.kind} for order {wanted.order}"
        return
    key = made[0]["key"]
    if wanted.kind == "refund" and key is None:
        yield "its effect has no key"
    if key is not None:
        sent = sum(request["key"] == key for request in target.requests)
        tried = sum(event.kind == "tool.executing" for event in events)
        if not 1 <= sent <= tried:
            yield f"the target got {sent} requests in {tried} attempts"


def of_requests_without_key(wanted: Sequence[Wanted], target: Target) -> Iterator[str]:
    """A target that knows no keys got as many requests as there are effects: nothing was sent twice."""
    for path in {each.path for each in wanted if each.kind}:
        sent = sum(request["path"] == path and request["key"] is None for request in target.requests)
        made = sum(f"/{each['kind']}s" == path and each["key"] is None for each in target.effects)
        if sent != made:
            yield f"{sent} requests without a key to {path} for {made} effects"


def of_transcript(turn: dict[str, Any], wanted: Wanted, messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Completed with this answer, and each message is there once."""
    if turn["status"] != "completed":
        yield f"ended {turn['status']} {turn['error']}"
    if turn["answer"] != wanted.answer:
        yield f"its answer is {turn['answer']!r}"
    roles = tuple(message["role"] for message in messages)
    if roles != (TOOL_TURN if wanted.kind else SPOKEN_TURN):
        yield f"its transcript is {roles}"
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    if said[-1:] != [wanted.answer] or said.count(wanted.answer) != 1:
        yield "its transcript does not have the answer once, at its end"
