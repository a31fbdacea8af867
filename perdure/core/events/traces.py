"""Builds the spans of a turn from its log, after the turn has ended, so that no turn waits for a trace.

The same record always gives the same spans, ids included: a tracer creates no ids. Span names follow OpenTelemetry's
conventions for generative models (invoke_agent, chat, execute_tool). Nodes and other internal spans have Perdure's own
names.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Final

from pydantic import JsonValue

from perdure.contracts import events as e
from perdure.contracts.events import Alarm, AlarmType

TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
SPAN_EVENTS = frozenset(
    {e.MEMORY_SEARCH, e.MEMORY_WRITE_CREATED, e.MEMORY_WRITE_BLOCKED, e.MEMORY_CONTEXT_LOADED, e.ALARM}
    | {e.HITL_RULE_FIRE, e.HITL_WARNING, e.SKILL_SELECTED, e.SKILL_INJECTED, e.BUDGET, e.TOOL_AWAITING_APPROVAL}
)
"""Log events that become events of the span in which they occurred."""
CHAT_ENDS = frozenset({e.GENERATION_COMPLETE, e.TRANSIENT_ERROR, e.RATE_LIMIT})
TOOL_ENDS = frozenset({e.TOOL_RESULT, e.TOOL_ERROR, e.TOOL_DENIED})
LOST = "attempt_lost"
"""The error of an attempt whose end was not recorded."""
Attributes = dict[str, JsonValue]
DENIED: Final = frozenset(
    {"input", "message", "content", "text", "query", "transcript"}  # words of a person
    | {"prompt", "instruction", "preprocessing"}  # instructions of a model
    | {"output", "response", "completion", "answer", "result"}  # results
    | {"memory", "fact", "episode", "document"}  # memory
    | {"vector", "embedding"}
    | {"secret", "password", "passwd", "token", "credential", "apikey", "authorization", "cookie", "bearer"}
    | {"authorized", "authorised"}  # granted permissions
    | {"state", "command", "traceback", "stack", "argument", "args", "payload", "body"}  # internals
    | {"preview", "snippet", "excerpt", "summary"}
    | {"question", "reply", "utterance", "msg", "history", "attachment", "kwarg"}
    | {"reasoning", "thinking", "thought"}
)
"""The words are in the singular; plurals match, too."""
DENIED_PAIRS: Final = frozenset({("api", "key"), ("private", "key"), ("access", "key")})
LONG_DENIED_WORDS: Final = tuple(sorted(word for word in DENIED if len(word) >= 5 and word not in ("state", "stack")))
"""Also denied in names without separators: `rawinput`. Shorter words are parts of harmless words."""
ALLOWED_COUNTS: Final = frozenset(
    {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens"}
    | {"gen_ai.response.time_to_first_chunk", "token_estimate"}
)
"""Names with a denied word that are allowed if their value is a number."""
NAMING_KEYS: Final = ("key", "name", "field", "attribute")
"""Keys under which an entry of a list names its value: `{"key": "prompt", "value": ...}`."""
MAX_ATTRIBUTE_CHARACTERS: Final = 200
MAX_DEPTH: Final = 8
MAX_ITEMS: Final = 64
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass(frozen=True, slots=True)
class TurnLogEvent:
    """One event of a turn's log, without content and without data from outside."""

    kind: str
    at: datetime
    call_id: str | None = None
    data: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """The record of a turn that has ended."""

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
    """The trace id in the request's metadata, if it is valid (perdure/contracts/ids.py)."""
    happened: tuple[TurnLogEvent, ...] = ()
    """The events in the order of the log."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The error code of each failed call, by call id."""

    @property
    def trace_id(self) -> str:
        """The trace id, 32 hexadecimal digits: from the request, or derived from the turn's id."""
        return self.given_trace_id if TRACE_ID.fullmatch(self.given_trace_id) else _digits(f"trace/{self.turn_id}", 32)

    def span_id(self, name: str) -> str:
        """Returns 16 hexadecimal digits for a part of this turn. The same name always gives the same id."""
        return _digits(f"span/{self.turn_id}/{name}", 16)


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A moment in a span."""

    name: str
    at: datetime
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """A named period of time. `error` is a code, empty if the span succeeded."""

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
    """Returns the spans of a turn, each after its parent. Nodes in `unspanned` get no span."""
    reading = _LogReading(record, unspanned)
    for happened in record.happened:
        reading.read_event(happened)
    return reading.close()


@dataclass(slots=True)
class _OpenSpan:
    """A span that has not ended yet."""

    id: str
    parent_id: str
    name: str
    began: datetime
    attributes: Attributes
    events: list[SpanEvent] = field(default_factory=list)
    inside: list[tuple[str, Attributes]] = field(default_factory=list)
    """Spans without a duration, at its start."""
    ended: datetime | None = None
    error: str = ""


class _LogReading:
    """Reads the log from its beginning."""

    def __init__(self, record: TurnRecord, unspanned: frozenset[str]) -> None:
        self._record = record
        self._unspanned = unspanned
        self._root = _OpenSpan(
            record.span_id("turn"), "", f"invoke_agent {record.agent_id}", record.began, _of_turn(record)
        )
        self._all = [self._root]
        self._nodes: list[_OpenSpan] = []
        self._calls: dict[str, _OpenSpan] = {}
        self._visits: dict[str, int] = {}

    def read_event(self, happened: TurnLogEvent) -> None:
        """Adds one event of the turn's log to the spans. Events must arrive in order."""
        kind, data = happened.kind, happened.data
        if kind == e.NODE_START:
            self._enter_node(str(data.get("node", "")), happened.at)
        elif kind == e.NODE_END:
            self._leave_node(str(data.get("node", "")), happened.at)
        elif kind == e.GENERATION_START and happened.call_id:
            self._chat(happened.call_id, happened)
        elif kind == e.TOOL_EXECUTING and happened.call_id:
            self._tool(happened.call_id, happened)
        elif happened.call_id in self._calls and kind in {e.TOKEN_USAGE, e.TTFT}:
            self._count(self._calls[happened.call_id], data)
        elif happened.call_id in self._calls and kind in CHAT_ENDS | TOOL_ENDS:
            self._end_call(happened.call_id, happened)
        elif kind in SPAN_EVENTS:
            self._innermost().events.append(SpanEvent(kind, happened.at, dict(data)))

    def close(self) -> tuple[Span, ...]:
        """Returns all spans. A span without an end was lost with its worker, or with the turn."""
        record = self._record
        self._root.ended = record.ended
        self._root.error = record.problem_code or ("" if record.status == "completed" else record.status)
        return tuple(span for one in self._all for span in self._closed(one))

    def _closed(self, one: _OpenSpan) -> list[Span]:
        ended = one.ended or max(one.began, self._record.ended)
        common = {**_identity_of(self._record), **one.attributes}
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
                {**_identity_of(self._record), **attributes},
            )
            for name, attributes in one.inside
        ]
        return [own, *inside]

    def _innermost(self) -> _OpenSpan:
        return self._nodes[-1] if self._nodes else self._root

    def _open(self, name: str, shown: str, at: datetime, attributes: Attributes) -> _OpenSpan:
        visit = self._visits[name] = self._visits.get(name, 0) + 1
        one = _OpenSpan(self._record.span_id(f"{name}/{visit}"), self._innermost().id, shown, at, attributes)
        self._all.append(one)
        return one

    def _enter_node(self, node: str, at: datetime) -> None:
        if node not in self._unspanned:
            self._nodes.append(self._open(f"node/{node}", f"node {node}", at, {"perdure.node": node}))

    def _leave_node(self, node: str, at: datetime) -> None:
        for one in reversed(self._nodes):
            if one.attributes["perdure.node"] == node:
                one.ended = at
                self._nodes.remove(one)
                return
        # The node started again before the log was read, so its start is not in the log.
        if node not in self._unspanned:
            self._open(f"node/{node}", f"node {node}", at, {"perdure.node": node}).ended = at

    def _chat(self, call_id: str, happened: TurnLogEvent) -> None:
        model = happened.data.get("model")
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "perdure.call_id": call_id,
            "perdure.attempt": happened.data.get("attempt"),
        }
        one = self._calls[call_id] = self._open(f"call/{call_id}", f"chat {model}", happened.at, attributes)
        one.events.append(SpanEvent("model_call_attempted", happened.at, {"status": "attempted"}))

    def _tool(self, call_id: str, happened: TurnLogEvent) -> None:
        tool = happened.data.get("tool")
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": call_id,
            "perdure.attempt": happened.data.get("attempt"),
        }
        self._calls[call_id] = self._open(f"call/{call_id}", f"execute_tool {tool}", happened.at, attributes)

    def _count(self, one: _OpenSpan, data: Mapping[str, JsonValue]) -> None:
        for name in ("input_tokens", "output_tokens"):
            if isinstance(data.get(name), int):
                one.attributes[f"gen_ai.usage.{name}"] = data[name]
        if isinstance(data.get("cached_tokens"), int):
            one.attributes["gen_ai.usage.cache_read.input_tokens"] = data["cached_tokens"]
        if isinstance(data.get("seconds"), int | float):
            one.attributes["gen_ai.response.time_to_first_chunk"] = data["seconds"]

    def _end_call(self, call_id: str, happened: TurnLogEvent) -> None:
        one, data = self._calls.pop(call_id), happened.data
        one.ended = happened.at
        if happened.kind in TOOL_ENDS:
            one.error = "" if happened.kind == e.TOOL_RESULT else str(data.get("code") or happened.kind)
            return
        failed = str(data.get("code") or "") if happened.kind != e.GENERATION_COMPLETE else ""
        one.error = failed or (self._record.failures.get(call_id, "") if data.get("partial") or not failed else "")
        assembly = data.get("assembly")
        if isinstance(assembly, Mapping):
            one.inside = [(name, dict(stage)) for name, stage in assembly.items() if isinstance(stage, Mapping)]
        completed: Attributes = {
            "status": "error" if one.error else "success",
            "duration_ms": round((happened.at - one.began).total_seconds() * 1000),
            "error_type": one.error or None,
        }
        one.events.append(SpanEvent("model_call_completed", happened.at, completed))


def _identity_of(record: TurnRecord) -> Attributes:
    """The attributes of every span."""
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


def is_denied(name: str) -> str:
    """Returns the denied word in a name, or an empty string."""
    words = [_singular(word.lower()) for word in _WORD.findall(name)]
    for word in words:
        if word in DENIED:
            return word
    for pair in pairwise(words):
        if pair in DENIED_PAIRS:
            return " ".join(pair)
    run_together = "".join(words)
    return next((word for word in LONG_DENIED_WORDS if word in run_together), "")


def filter_attributes(attributes: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """Returns the attributes that are allowed, and the denied word of each removed one.

    Content, secrets and internals never reach a tracer. They are recognized by name. A name is split into words,
    whatever joins them: `finalOutput`, `final-output` and `final_outputs` are the same. One denied word is enough, at
    any depth, also inside text that is JSON. Token counts are allowed by their whole name, and only as numbers. All
    other values are cut to 200 characters.
    """
    removed: list[str] = []
    kept = dict(_allowed_pairs(attributes, removed, 0))
    return kept, tuple(removed)


def _allowed_pairs(given: Mapping[str, JsonValue], removed: list[str], depth: int) -> Iterator[tuple[str, JsonValue]]:
    named = next(filter(None, (_word_of(given.get(name)) for name in NAMING_KEYS)), "")
    if named and len(given) > 1:
        removed.append(named)
        return
    for key, value in list(given.items())[:MAX_ITEMS]:
        if key in ALLOWED_COUNTS:
            if isinstance(value, int | float):
                yield key, value
            else:
                removed.append(is_denied(key))
            continue
        word = is_denied(key)
        if word:
            removed.append(word)
        elif value is not None:
            yield key[:MAX_ATTRIBUTE_CHARACTERS], _value(value, removed, depth)


def _value(value: JsonValue, removed: list[str], depth: int) -> JsonValue:
    if depth >= MAX_DEPTH and isinstance(value, dict | list):
        removed.append("depth")
        return None
    if isinstance(value, dict):
        return dict(_allowed_pairs(value, removed, depth + 1))
    if isinstance(value, list):
        if len(value) == 2 and depth and isinstance(value[0], str) and (word := _word_of(value[0])):
            removed.append(word)  # A pair of a name and its value.
            return None
        return [_value(each, removed, depth + 1) for each in value[:MAX_ITEMS]]
    if isinstance(value, str):
        return _text(value, removed, depth)
    if value is None or isinstance(value, int | float):
        return value
    removed.append(type(value).__name__)  # Bytes and other values that JSON does not have.
    return None


def _word_of(name: object) -> str:
    return is_denied(name) if isinstance(name, str) else ""


def _text(value: str, removed: list[str], depth: int) -> JsonValue:
    """Parses text that is JSON, so that it cannot hide denied names. Text that only looks like JSON is removed."""
    if value.lstrip()[:1] in ("{", "["):
        try:
            inside = json.loads(value)
        except (ValueError, RecursionError):
            removed.append("json")
            return ""
        return _value(inside, removed, depth + 1)
    return value[:MAX_ATTRIBUTE_CHARACTERS]


def _singular(word: str) -> str:
    """Returns the denied word of this plural, otherwise the word without a plural s."""
    forms = (word, word.removesuffix("s"), word.removesuffix("ies") + "y")
    known = next((form for form in forms if form in DENIED), None)
    return known or (word if word.endswith("ss") else word.removesuffix("s"))


@dataclass(frozen=True, slots=True)
class TopologyEdges:
    """The edges of a topology, as far as a record can be checked against them."""

    edges: frozenset[tuple[str, str]]
    entries: frozenset[str]
    """The nodes at which a run starts, fresh or after a pause."""
    terminal: frozenset[str]
    """The nodes at which a run ends."""
    parallel: bool = False
    """True if branches run in parallel. A node then only has to follow some node that has run."""
    unspanned: frozenset[str] = frozenset()
    """Nodes that a trace leaves out."""


def alarms_of(nodes: Sequence[str], topology: TopologyEdges, trace_id: str) -> Iterator[Alarm]:
    """Yields the broken invariants of a turn whose nodes ended in this order. Nodes of nested topologies are not
    checked. The nodes of a finished turn follow the edges of its topology. An alarm is a value. Its receiver logs and
    counts it; the turn is not affected."""
    own = [node for node in nodes if "/" not in node]
    ran: list[str] = []
    for node in own:
        before = ran if topology.parallel else ran[-1:]
        if node not in topology.entries and not any((each, node) in topology.edges for each in before):
            yield Alarm(
                type=AlarmType.UNEXPECTED_ROUTING,
                node=node,
                description="A node ran that no edge connects to the previous node",
                context={"after": ran[-1] if ran else "START"},
                trace_id=trace_id,
            )
        ran.append(node)
    counted = Counter(own)
    begun = sum(counted[node] for node in topology.entries)
    ended = sum(counted[node] for node in topology.terminal)
    if ended > begun:
        yield Alarm(
            type=AlarmType.MULTIPLE_TERMINAL_NODES,
            node=own[-1],
            description="A turn has more ends than starts",
            context={"begun": begun, "ended": ended},
            trace_id=trace_id,
        )
