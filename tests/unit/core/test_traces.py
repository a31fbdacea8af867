"""Spans of a turn, what a trace may carry, and its alarms."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.core.events import traces
from perdure.graph.registry import TOPOLOGIES
from perdure.worker.telemetry import edges_of
from tests.topologies.test_decision_hub import ANSWER, BEGIN, FAILURE

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
CANARY = "canary-4711"
BESIDE = st.lists(st.sampled_from(("user", "raw", "final", "model", "last", "my", "data")), max_size=2)
KINDS = ("node_start", "node_end", "generation.start", "generation.complete", "tool.executing", "tool.error", "budget")
PLACED = {"node": st.sampled_from("abc"), "tool": st.just("look"), "model": st.just("m")}
CALLS = st.sampled_from((None, "m1", "t1.0"))
HUB, PIPELINE = (edges_of(one) for name in ("decision_hub", "skill_pipeline") for one in TOPOLOGIES if one.name == name)
EDGES = frozenset({("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")})
FORKED = traces.TopologyEdges(edges=EDGES, entries=frozenset({"a"}), terminal=frozenset({"d"}), parallel=True)


def at(seconds: float, kind: str, call_id: str | None = None, **data: JsonValue) -> traces.TurnLogEvent:
    return traces.TurnLogEvent(kind, BEGAN + timedelta(seconds=seconds), call_id, data)


def record(*happened: traces.TurnLogEvent, **changed: object) -> traces.TurnRecord:
    names = {"tenant_id": "local", "conversation_id": "c", "turn_id": "t", "user_id": "u", "agent_id": "desk"}
    kind = {"agent_version": "v", "topology": "skill_pipeline", "status": "completed", "happened": happened}
    times = {"began": BEGAN, "ended": BEGAN + timedelta(seconds=10)}
    return traces.TurnRecord(**{**names, **kind, **times, **changed})  # type: ignore[arg-type]


def by_name(spans: tuple[traces.Span, ...]) -> dict[str, traces.Span]:
    return {span.name: span for span in spans}


ASSEMBLY: dict[str, JsonValue] = {
    "agent.resolve_definition": {"persona": "clerk"},
    "prompt.assemble": {"persona_key": "clerk", "token_estimate": 12},
    "tools.assemble": {"total_tools_visible": 3},
}
TURN = (
    at(0, "node_start", node="initial_llm_call"), at(1, "generation.start", "m1", model="scripted", attempt=1),
    at(2, "token.usage", "m1", input_tokens=5, output_tokens=2, cached_tokens=1),
    at(2, "generation.complete", "m1", attempt=1, partial=False, assembly=ASSEMBLY),
    at(3, "node_end", node="initial_llm_call"), at(3, "node_start", node="tool_node"),
    at(4, "tool.executing", "t1.0", tool="look", attempt=1), at(5, "tool.result", "t1.0", tool="look"),
    at(5, "hitl.rule_fire", rule_id="house:a"), at(6, "node_end", node="tool_node"),
)  # fmt: skip


def test_a_turn_is_an_agents_invocation_with_chats_and_tools_inside_their_nodes() -> None:
    spans = by_name(traces.spans_of(record(*TURN)))
    root, chat, tool = spans["invoke_agent desk"], spans["chat scripted"], spans["execute_tool look"]
    assert root.parent_id == "" and root.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert chat.parent_id == spans["node initial_llm_call"].id and tool.parent_id == spans["node tool_node"].id
    assert spans["node tool_node"].parent_id == root.id
    assert chat.attributes["gen_ai.usage.input_tokens"] == 5 and chat.attributes["gen_ai.request.model"] == "scripted"
    assert {spans[name].parent_id for name in ASSEMBLY} == {chat.id}
    assert spans["prompt.assemble"].attributes["token_estimate"] == 12
    assert [event.name for event in chat.events] == ["model_call_attempted", "model_call_completed"]
    assert chat.events[1].attributes == {"status": "success", "duration_ms": 1000, "error_type": None}
    assert [event.name for event in spans["node tool_node"].events] == ["hitl.rule_fire"]
    assert (tool.began, tool.ended) == (BEGAN + timedelta(seconds=4), BEGAN + timedelta(seconds=5))
    for span in spans.values():
        assert span.attributes["perdure.trace_id"] == "t" and span.attributes["user.id"] == "u"
        assert span.attributes["gen_ai.conversation.id"] == "c" and not span.error


def test_attempts_are_spans_of_their_own_and_a_lost_one_says_so() -> None:
    log = (
        at(1, "generation.start", "m1", model="own", attempt=1),
        at(2, "transient_error", "m1", code="model_unavailable"),
        at(3, "generation.start", "m1", model="own", attempt=2),
        at(4, "generation.start", "m1", model="other", attempt=3),
        at(5, "generation.complete", "m1", attempt=3, partial=True),
    )
    failed = {"failures": {"m1": "model_timeout"}, "status": "failed", "problem_code": "model_timeout"}
    spans = traces.spans_of(record(*log, **failed))
    assert [(span.name, span.error) for span in spans] == [
        ("invoke_agent desk", "model_timeout"),
        ("chat own", "model_unavailable"),
        ("chat own", traces.LOST),
        ("chat other", "model_timeout"),
    ]
    assert len({span.id for span in spans}) == 4


def test_a_node_without_a_span_is_left_out_and_its_children_move_up() -> None:
    spans = by_name(traces.spans_of(record(*TURN), frozenset({"initial_llm_call"})))
    assert "node initial_llm_call" not in spans
    assert spans["chat scripted"].parent_id == spans["invoke_agent desk"].id


def test_a_requests_trace_id_is_kept_if_it_is_valid() -> None:
    given_id = "0af7651916cd43dd8448eb211c80319c"
    assert record(given_trace_id=given_id).trace_id == given_id
    own = record().trace_id
    for unfit in ("trace-7", "0" * 32, given_id.upper(), ""):
        assert record(given_trace_id=unfit).trace_id == own
    assert traces.spans_of(record(given_trace_id="trace-7"))[0].attributes["perdure.trace_id"] == "trace-7"


@given(st.lists(st.builds(at, st.integers(0, 9), st.sampled_from(KINDS), CALLS, **PLACED)))
def test_any_event_log_gives_stable_spans_in_the_order_of_their_parents(log: list[traces.TurnLogEvent]) -> None:
    spans = traces.spans_of(record(*log))
    assert spans == traces.spans_of(record(*log))
    known: set[str] = {""}
    for span in spans:
        assert span.parent_id in known and span.id not in known
        known.add(span.id)
    assert len({span.trace_id for span in spans}) == 1


@st.composite
def denied_names(draw: st.DrawFn) -> str:
    """A denied word among others, in any way of writing."""
    words = [*draw(BESIDE), draw(st.sampled_from(sorted(traces.DENIED))), *draw(BESIDE)]
    text = draw(st.sampled_from("_-. ")).join(words)
    return draw(st.sampled_from([text, text.upper(), text + "s", words[0] + "".join(map(str.title, words[1:]))]))


@st.composite
def hidden(draw: st.DrawFn) -> Any:
    """A structure in which the canary stands under a denied name, at some depth."""
    name, value = draw(denied_names()), draw(st.sampled_from((CANARY, [CANARY], {"deep": {"er": CANARY}})))
    entry = {draw(st.sampled_from(traces.NAMING_KEYS)): name, "value": value}
    inner: Any = draw(st.sampled_from(({name: value}, entry, {"parts": [entry]}, {"parts": [[name, value]]})))
    for _ in range(draw(st.integers(0, 12))):
        told = ({"told": json.dumps(inner)}, {"told": "  " + json.dumps([inner])})
        inner = draw(st.sampled_from(({"node": inner, "code": "x"}, {"parts": [1, inner]}, *told)))
    return inner


@given(hidden())
def test_attributes_with_a_denied_name_are_removed_at_any_depth(attributes: dict[str, JsonValue]) -> None:
    kept, removed = traces.filter_attributes(attributes)
    assert CANARY not in json.dumps(kept)
    assert removed, "and it is told"
    assert CANARY not in json.dumps(removed), "by the word alone"


NAMES_DENIED = """
prompt prompts systemPrompt output final_output outputs input_preview query_preview raw_input rawinput
memory_read_result embeddings api_key apiKey API-KEY PASSWORD memory_read_authorized authorization
gen_ai.input.messages gen_ai.output.messages tool.result cookies queries bodies args private_key
access-keys state command facts episodes reasoning kwargs last_question gen_ai.system_instructions
"""


@pytest.mark.parametrize("name", NAMES_DENIED.split())
def test_each_denied_name_is_removed(name: str) -> None:
    assert traces.is_denied(name)
    assert traces.filter_attributes({name: CANARY})[0] == {}


LIVES_BY = """
gen_ai.conversation.id gen_ai.request.model gen_ai.tool.name perdure.trace_id user.id node persona_key
persona_source context_template_count user_identity_injected skills_loaded core_capability_count
skill_exposed_tool_count total_tools_visible error_type duration_ms
"""


def test_required_names_pass_and_a_fields_name_is_no_content() -> None:
    lived_by: dict[str, JsonValue] = {**dict.fromkeys(LIVES_BY.split(), "x"), "context": {"field": "final_output"}}
    assert traces.filter_attributes(lived_by) == (lived_by, ())


def test_only_numeric_counts_pass() -> None:
    for name in traces.ALLOWED_COUNTS:
        assert traces.filter_attributes({name: 7})[0] == {name: 7}
        kept, removed = traces.filter_attributes({name: CANARY})
        assert kept == {} and len(removed) == 1


def test_long_values_are_cut_and_a_text_that_resembles_json_is_left_out() -> None:
    kept, removed = traces.filter_attributes({"code": "x" * 1_000, "told": '{"prompt": "can', "deep": _deep(40)})
    assert kept["code"] == "x" * traces.MAX_ATTRIBUTE_CHARACTERS and kept["told"] == ""
    assert set(removed) == {"json", "depth"} and CANARY not in json.dumps(kept)


def test_values_that_are_not_json_are_removed() -> None:
    for value in (CANARY.encode(), {CANARY}, (CANARY,), object()):
        kept, removed = traces.filter_attributes({"node": value, "deep": {"er": [value]}})  # type: ignore[list-item,dict-item]
        assert kept == {"node": None, "deep": {"er": [None]}} and len(removed) == 2


def _deep(levels: int) -> JsonValue:
    value: JsonValue = CANARY
    for _ in range(levels):
        value = {"in": value}
    return value


@pytest.mark.parametrize(("ways", "nodes", "expected"), [
    (HUB, f"{BEGIN} {ANSWER} format_response_node", []), (HUB, f"{BEGIN} {FAILURE}", []),
    (HUB, f"{BEGIN} format_response_node", []), (HUB, "router_node model_call_node", ["unexpected_routing"]),
    (HUB, f"{BEGIN} {FAILURE} format_response_node", ["unexpected_routing", "multiple_terminal_nodes"]),
    (PIPELINE, "system_prompt_node memory_node resume_guard initial_llm_call output_format", []),
    (PIPELINE, "system_prompt_node memory_node resume_guard output_format resume_guard output_format", []),
    (FORKED, "a c b d", []), (FORKED, "a d", ["unexpected_routing"]), (FORKED, "a b sub/x c d", []),
])  # fmt: skip
def test_impossible_node_orders_raise_an_alarm(ways: traces.TopologyEdges, nodes: str, expected: list[str]) -> None:
    assert [alarm.type.value for alarm in traces.alarms_of(nodes.split(), ways, "t")] == expected


def test_every_node_but_the_deciding_one_has_a_span() -> None:
    assert HUB.unspanned == {"decision_logic_node"} and PIPELINE.unspanned == frozenset()
