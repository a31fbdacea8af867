"""A record as spans: the same record, the same spans; each after its parent; nothing of the turn's content."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.core.events.traces import LOST, Happened, Span, TurnRecord, spans_of

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)


def at(seconds: float, kind: str, call_id: str | None = None, **data: JsonValue) -> Happened:
    return Happened(kind, BEGAN + timedelta(seconds=seconds), call_id, data)


def record(*happened: Happened, **changed: object) -> TurnRecord:
    given: dict[str, object] = {
        "tenant_id": "local",
        "conversation_id": "c",
        "turn_id": "t",
        "user_id": "u",
        "agent_id": "desk",
        "agent_version": "v",
        "topology": "skill_pipeline",
        "status": "completed",
        "began": BEGAN,
        "ended": BEGAN + timedelta(seconds=10),
        "happened": happened,
    }
    return TurnRecord(**{**given, **changed})  # type: ignore[arg-type]


def by_name(spans: tuple[Span, ...]) -> dict[str, Span]:
    return {span.name: span for span in spans}


ASSEMBLY: dict[str, JsonValue] = {
    "agent.resolve_definition": {"persona": "clerk"},
    "prompt.assemble": {"persona_key": "clerk", "token_estimate": 12},
    "tools.assemble": {"total_tools_visible": 3},
}
TURN = (
    at(0, "node_start", node="initial_llm_call"),
    at(1, "generation.start", "m1", model="scripted", attempt=1),
    at(2, "token.usage", "m1", input_tokens=5, output_tokens=2, cached_tokens=1),
    at(2, "generation.complete", "m1", attempt=1, partial=False, assembly=ASSEMBLY),
    at(3, "node_end", node="initial_llm_call"),
    at(3, "node_start", node="tool_node"),
    at(4, "tool.executing", "t1.0", tool="look", attempt=1),
    at(5, "tool.result", "t1.0", tool="look"),
    at(5, "hitl.rule_fire", rule_id="house:a"),
    at(6, "node_end", node="tool_node"),
)


def test_a_turn_is_an_agents_invocation_with_chats_and_tools_inside_their_nodes() -> None:
    spans = by_name(spans_of(record(*TURN)))
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
    spans = spans_of(
        record(
            at(1, "generation.start", "m1", model="own", attempt=1),
            at(2, "transient_error", "m1", code="model_unavailable"),
            at(3, "generation.start", "m1", model="own", attempt=2),
            at(4, "generation.start", "m1", model="other", attempt=3),
            at(5, "generation.complete", "m1", attempt=3, partial=True),
            failures={"m1": "model_timeout"},
            status="failed",
            problem_code="model_timeout",
        )
    )
    assert [(span.name, span.error) for span in spans] == [
        ("invoke_agent desk", "model_timeout"),
        ("chat own", "model_unavailable"),
        ("chat own", LOST),
        ("chat other", "model_timeout"),
    ]
    assert len({span.id for span in spans}) == 4


def test_a_node_without_a_span_is_left_out_and_what_is_in_it_hangs_above() -> None:
    spans = by_name(spans_of(record(*TURN), frozenset({"initial_llm_call"})))
    assert "node initial_llm_call" not in spans
    assert spans["chat scripted"].parent_id == spans["invoke_agent desk"].id


def test_a_trace_id_that_came_with_the_request_is_kept_where_it_can_be() -> None:
    given_id = "0af7651916cd43dd8448eb211c80319c"
    assert record(given_trace_id=given_id).trace_id == given_id
    own = record().trace_id
    for unfit in ("trace-7", "0" * 32, given_id.upper(), ""):
        assert record(given_trace_id=unfit).trace_id == own
    assert spans_of(record(given_trace_id="trace-7"))[0].attributes["perdure.trace_id"] == "trace-7"


KINDS = ("node_start", "node_end", "generation.start", "generation.complete", "tool.executing", "tool.error", "budget")
ANY = st.lists(
    st.builds(
        at,
        st.integers(0, 9),
        st.sampled_from(KINDS),
        st.sampled_from((None, "m1", "t1.0")),
        node=st.sampled_from("abc"),
        tool=st.just("look"),
        model=st.just("m"),
    )
)


@given(ANY)
def test_whatever_a_log_says_its_spans_are_the_same_each_time_and_follow_their_parents(log: list[Happened]) -> None:
    spans = spans_of(record(*log))
    assert spans == spans_of(record(*log))
    known: set[str] = {""}
    for span in spans:
        assert span.parent_id in known and span.id not in known
        known.add(span.id)
    assert len({span.trace_id for span in spans}) == 1
