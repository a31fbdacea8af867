"""A turn's record as spans: made when the turn is over, from what its log says, so that no turn waits for a trace.

The same record always gives the same spans, ids included: a tracer makes none (S3-34). Names are those of OpenTelemetry
for generative models (invoke_agent, chat, execute_tool) and, inside, the sources' own (S0-23, S0-43).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import JsonValue

from contracts import events as e

TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
TOLD = frozenset(
    {e.MEMORY_SEARCH, e.MEMORY_WRITE_CREATED, e.MEMORY_WRITE_BLOCKED, e.MEMORY_CONTEXT_LOADED, e.ALARM}
    | {e.HITL_RULE_FIRE, e.HITL_WARNING, e.SKILL_SELECTED, e.SKILL_INJECTED, e.BUDGET, e.TOOL_AWAITING_APPROVAL}
)
"""Events of the log that become events of the span in which they fell."""
CHAT_ENDS = frozenset({e.GENERATION_COMPLETE, e.TRANSIENT_ERROR, e.RATE_LIMIT})
TOOL_ENDS = frozenset({e.TOOL_RESULT, e.TOOL_ERROR, e.TOOL_DENIED})
LOST = "attempt_lost"
"""What is said of an attempt whose end nobody recorded."""
Attributes = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of a turn's log, with those of its data that are neither content nor made by anybody outside."""

    kind: str
    at: datetime
    call_id: str | None = None
    data: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """What is known of a turn that is over."""

    tenant_id: str
    conversation_id: str
    turn_id: str
    user_id: str
    agent_id: str
    agent_version: str
    topology: str
    status: str
    began: datetime
    ended: datetime
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    problem_code: str = ""
    given_trace_id: str = ""
    """What the request's metadata named, where that is one (contracts/ids.py)."""
    happened: tuple[Happened, ...] = ()
    """In the log's order."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Call id -> the code that it ended with."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits: those that came with the request, or made from the turn's own id."""
        return self.given_trace_id if TRACE_ID.fullmatch(self.given_trace_id) else _digits(f"trace/{self.turn_id}", 32)

    def span_id(self, name: str) -> str:
        """16 hexadecimal digits for a thing of this turn; the same whoever asks."""
        return _digits(f"span/{self.turn_id}/{name}", 16)


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A moment in a span."""

    name: str
    at: datetime
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time with a name; `error` is a code, empty where it went well."""

    trace_id: str
    id: str
    parent_id: str
    name: str
    began: datetime
    ended: datetime
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    error: str = ""


def spans_of(record: TurnRecord, unspanned: frozenset[str] = frozenset()) -> tuple[Span, ...]:
    """The spans of a turn, each after its parent; nodes in `unspanned` have none of their own (S3-34)."""
    reading = _Reading(record, unspanned)
    for happened in record.happened:
        reading.take(happened)
    return reading.close()


@dataclass(slots=True)
class _Open:
    """A span that has not ended yet."""

    id: str
    parent_id: str
    name: str
    began: datetime
    attributes: Attributes
    events: list[SpanEvent] = field(default_factory=list)
    inside: list[tuple[str, Attributes]] = field(default_factory=list)
    """Spans of no duration, at its beginning."""
    ended: datetime | None = None
    error: str = ""


class _Reading:
    """The log, read from its beginning."""

    def __init__(self, record: TurnRecord, unspanned: frozenset[str]) -> None:
        self._record = record
        self._unspanned = unspanned
        self._root = _Open(
            record.span_id("turn"), "", f"invoke_agent {record.agent_id}", record.began, _of_turn(record)
        )
        self._all = [self._root]
        self._nodes: list[_Open] = []
        self._calls: dict[str, _Open] = {}
        self._visits: dict[str, int] = {}

    def take(self, happened: Happened) -> None:
        """One event."""
        kind, data = happened.kind, happened.data
        if kind == e.NODE_START:
            self._enter(str(data.get("node", "")), happened.at)
        elif kind == e.NODE_END:
            self._leave(str(data.get("node", "")), happened.at)
        elif kind == e.GENERATION_START and happened.call_id:
            self._chat(happened.call_id, happened)
        elif kind == e.TOOL_EXECUTING and happened.call_id:
            self._tool(happened.call_id, happened)
        elif happened.call_id in self._calls and kind in {e.TOKEN_USAGE, e.TTFT}:
            self._count(self._calls[happened.call_id], data)
        elif happened.call_id in self._calls and kind in CHAT_ENDS | TOOL_ENDS:
            self._done(happened.call_id, happened)
        elif kind in TOLD:
            self._inner().events.append(SpanEvent(kind, happened.at, dict(data)))

    def close(self) -> tuple[Span, ...]:
        """All of it; what never ended was lost with its worker, or with the turn."""
        record = self._record
        self._root.ended = record.ended
        self._root.error = record.problem_code or ("" if record.status == "completed" else record.status)
        return tuple(span for one in self._all for span in self._closed(one))

    def _closed(self, one: _Open) -> list[Span]:
        ended = one.ended or max(one.began, self._record.ended)
        common = {**_identity(self._record), **one.attributes}
        error = one.error or ("" if one.ended else LOST)
        trace = self._record.trace_id
        own = Span(trace, one.id, one.parent_id, one.name, one.began, ended, common, tuple(one.events), error)
        inside = [
            Span(
                trace,
                self._record.span_id(f"{one.id}/{name}"),
                one.id,
                name,
                one.began,
                one.began,
                {**_identity(self._record), **attributes},
            )
            for name, attributes in one.inside
        ]
        return [own, *inside]

    def _inner(self) -> _Open:
        return self._nodes[-1] if self._nodes else self._root

    def _open(self, name: str, shown: str, at: datetime, attributes: Attributes) -> _Open:
        visit = self._visits[name] = self._visits.get(name, 0) + 1
        one = _Open(self._record.span_id(f"{name}/{visit}"), self._inner().id, shown, at, attributes)
        self._all.append(one)
        return one

    def _enter(self, node: str, at: datetime) -> None:
        if node not in self._unspanned:
            self._nodes.append(self._open(f"node/{node}", f"node {node}", at, {"perdure.node": node}))

    def _leave(self, node: str, at: datetime) -> None:
        for one in reversed(self._nodes):
            if one.attributes["perdure.node"] == node:
                one.ended = at
                self._nodes.remove(one)
                return
        if node not in self._unspanned:  # begun anew before the log was read, so that its beginning is not in it
            self._open(f"node/{node}", f"node {node}", at, {"perdure.node": node}).ended = at

    def _chat(self, call_id: str, happened: Happened) -> None:
        model = happened.data.get("model")
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "perdure.call_id": call_id,
            "perdure.attempt": happened.data.get("attempt"),
        }
        one = self._calls[call_id] = self._open(f"call/{call_id}", f"chat {model}", happened.at, attributes)
        one.events.append(SpanEvent("model_call_attempted", happened.at, {"status": "attempted"}))

    def _tool(self, call_id: str, happened: Happened) -> None:
        tool = happened.data.get("tool")
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": call_id,
            "perdure.attempt": happened.data.get("attempt"),
        }
        self._calls[call_id] = self._open(f"call/{call_id}", f"execute_tool {tool}", happened.at, attributes)

    def _count(self, one: _Open, data: Mapping[str, JsonValue]) -> None:
        for name in ("input_tokens", "output_tokens"):
            if isinstance(data.get(name), int):
                one.attributes[f"gen_ai.usage.{name}"] = data[name]
        if isinstance(data.get("cached_tokens"), int):
            one.attributes["gen_ai.usage.cache_read.input_tokens"] = data["cached_tokens"]
        if isinstance(data.get("seconds"), int | float):
            one.attributes["gen_ai.response.time_to_first_chunk"] = data["seconds"]

    def _done(self, call_id: str, happened: Happened) -> None:
        one, data = self._calls.pop(call_id), happened.data
        one.ended = happened.at
        if happened.kind in TOOL_ENDS:
            one.error = "" if happened.kind == e.TOOL_RESULT else str(data.get("code") or happened.kind)
            return
        failed = str(data.get("code") or "") if happened.kind != e.GENERATION_COMPLETE else ""
        one.error = failed or (self._record.failures.get(call_id, "") if data.get("partial") or not failed else "")
        assembly = data.get("assembly")
        if isinstance(assembly, Mapping):
            one.inside = [(name, dict(told)) for name, told in assembly.items() if isinstance(told, Mapping)]
        completed: Attributes = {
            "status": "error" if one.error else "success",
            "duration_ms": round((happened.at - one.began).total_seconds() * 1000),
            "error_type": one.error or None,
        }
        one.events.append(SpanEvent("model_call_completed", happened.at, completed))


def _identity(record: TurnRecord) -> Attributes:
    """On every span (S3-34)."""
    return {
        "perdure.trace_id": record.given_trace_id or record.turn_id,
        "gen_ai.conversation.id": record.conversation_id,
        "user.id": record.user_id,
    }


def _of_turn(record: TurnRecord) -> Attributes:
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.id": record.agent_id,
        "gen_ai.agent.version": record.agent_version,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "perdure.tenant_id": record.tenant_id,
        "perdure.turn_id": record.turn_id,
        "perdure.topology": record.topology,
        "perdure.status": record.status,
        "perdure.cost_microusd": record.cost_microusd,
    }


def _digits(name: str, count: int) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:count]
