"""A model whose script is the user's message: `script(Line(calls=[("pay", {})]), Line("done"))`, one entry per model
call. The step in the call's name chooses the entry, so that repeated requests and resumed turns get the same."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from pydantic import JsonValue

from perdure.activities.providers.provider import Chunk, Complete, DraftCall, ProviderRequest, TextDelta
from perdure.activities.providers.registry import Models
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.errors import PerdureError, UpstreamUnavailable
from perdure.contracts.ids import step_of
from perdure.contracts.turns import Usage
from perdure.core.budgets import RequestBound
from perdure.core.calls.endings import ANSWER_AGAIN, CONTINUE, FinishReason

HOLDS_TOKENS = 40
"""A call's reservation of a daily token budget; no line of a test uses more."""
HOLDS_MICROUSD = 20


@dataclass(frozen=True, slots=True)
class Line:
    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, JsonValue]]] = ()
    seconds: float = 0.0  # waited between the words and the end
    fails: int = 0  # how many requests of this call break off first
    again_seconds: float = 0.05  # the wait that such a request asks for
    tokens: int = 10
    ends: FinishReason = "stop"  # with a text; `tool_calls` ends the answer where it makes calls
    waits: str = ""  # it also waits there for as long as a test holds what it names


def script(*lines: Line) -> str:
    return json.dumps([asdict(line) for line in lines])


@dataclass(slots=True)
class MessageScriptModel:
    """The provider. `requests` counts the requests by turn and call."""

    requests: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)  # answers that were streamed completely, by turn and call
    seen: list[ProviderRequest] = field(default_factory=list)
    broken: dict[str, PerdureError] = field(default_factory=dict)  # what every request to a model of this name ends in
    priced: bool = True
    gates: dict[str, asyncio.Semaphore] = field(default_factory=dict)

    @contextmanager
    def held(self, name: str) -> Iterator[asyncio.Semaphore]:
        """Lines that wait for this name do not end while the block runs; each release lets one of them go before."""
        gate = self.gates[name] = asyncio.Semaphore(0)
        try:
            yield gate
        finally:
            del self.gates[name]
            gate.release()

    def upper_bound(self, request: ProviderRequest) -> RequestBound:
        return RequestBound(HOLDS_TOKENS, HOLDS_MICROUSD if self.priced else None)

    def context_tokens(self, model: str) -> int | None:
        return None

    def cost_microusd(self, model: str, usage: Usage) -> int:
        return usage.tokens if self.priced else 0

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Chunk, None]:
        key = request.idempotency_key
        self.requests[key] += 1
        self.seen.append(request)
        if request.model in self.broken:
            raise self.broken[request.model]
        line = self._line(request)
        for piece in re.findall(r"\s*\S+(?:\s+$)?", line.text):
            yield TextDelta(piece)
        self.said[key] += 1
        if self.requests[key] <= line.fails:
            wait = line.again_seconds
            raise UpstreamUnavailable("model_unavailable", "The model broke off.", retry_after_seconds=wait)
        await asyncio.sleep(line.seconds)
        if gate := self.gates.get(line.waits):
            await gate.acquire()
            if line.waits not in self.gates:
                gate.release()
        asked = () if line.ends == "length" else line.calls
        if not (line.text.strip() or asked or request.continues) and line.ends == "stop":
            raise UpstreamUnavailable("model_empty_answer", "The model returned an empty answer.")
        calls = tuple(DraftCall(f"call_{at}", tool, json.dumps(args)) for at, (tool, args) in enumerate(asked))
        usage = Usage(input_tokens=line.tokens - 1, output_tokens=1, cost_microusd=10)
        truncated = line.ends in ("length", "content_filter", "pause_turn")
        yield Complete(calls, usage, "tool_calls" if calls else line.ends, "spoken", truncated=truncated)

    def _line(self, request: ProviderRequest) -> Line:
        notes = (CONTINUE, ANSWER_AGAIN)
        said = [each for each in request.messages if each.get("role") == "user" and each["content"] not in notes]
        lines = json.loads(str(said[-1]["content"]))
        step = step_of(request.idempotency_key.rpartition(".")[2])
        return Line(**lines[step - 1]) if step <= len(lines) else Line("nothing more to say")


class MessageScriptModels(Models):
    def __init__(self, model: MessageScriptModel) -> None:
        super().__init__(lambda name: None)
        self.model = model

    async def provider(self, agent: PublishedAgent, model: str = "") -> MessageScriptModel:
        return self.model
