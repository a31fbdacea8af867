"""What a turn has put on the wire to its model's provider, request by request, in OpenAI's shape."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.doubles.anthropic_wire import openai_shape
from tests.doubles.provider import Seen


@dataclass(frozen=True, slots=True)
class Request:
    seen: Seen
    messages: list[dict[str, Any]]

    @property
    def prefix(self) -> bytes:
        first = self.seen.body["system"][0] if "system" in self.seen.body else self.seen.body["messages"][0]  # type: ignore[index]
        return json.dumps(first).encode()

    @property
    def breakpoints(self) -> list[str]:
        """Where a cache breakpoint is set, by the place in the body."""
        return list(_marked(self.seen.body))

    @property
    def notes(self) -> list[str]:
        """The system messages that are not at its head."""
        start = next(place for place, message in enumerate(self.messages) if message["role"] == "user")
        return [message["content"] for message in self.messages[start:] if message["role"] == "system"]

    def check(self) -> None:
        """Each call has one result, which comes right after it, and the model is not the last to have spoken."""
        waiting: list[str] = []
        for message in self.messages:
            if message["role"] == "tool":
                assert message["tool_call_id"] in waiting, "a result without a call"
                waiting.remove(message["tool_call_id"])
                continue
            assert not waiting, f"calls without a result: {waiting}"
            waiting = [call["id"] for call in message.get("tool_calls", [])]
            assert len(set(waiting)) == len(waiting)
        assert not waiting, f"calls without a result: {waiting}"
        assert self.messages[-1]["role"] != "assistant", "nothing is there to be answered"


def requests_of(turn_id: str, seen: list[Seen]) -> list[Request]:
    """The requests of a turn, in order of arrival; each checked."""
    own = [each for each in seen if each.idempotency_key.startswith(f"{turn_id}.")]
    found = [Request(each, openai_shape(each.body)["messages"]) for each in own]
    for request in found:
        request.check()
    return found


def _marked(value: Any, place: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        if "cache_control" in value:
            yield place
        for name, inner in value.items():
            yield from _marked(inner, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _marked(inner, f"{place}.{number}")
