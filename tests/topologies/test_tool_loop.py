"""The nodes of `tool_loop` on the fake ports: what is offered, what runs first, what waits, how it ends."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.contracts.activities import Verdicts
from perdure.contracts.agents import OnLength, PlanCard
from perdure.contracts.calls import CallState, EffectClass
from perdure.contracts.errors import Problem
from perdure.contracts.messages import Role
from perdure.contracts.skills import Rule
from perdure.contracts.turns import Limits, OnSpent
from perdure.core.agents.toolsets import LOAD_TOOLSET
from perdure.graph.compile import compile_topology
from perdure.graph.registry import pinned
from perdure.graph.spec import Outcome
from tests.doubles.fake_context import FakeContext
from tests.doubles.fake_turn import Args, FakeTurn, Says
from tests.topologies.played import (
    Call,
    Played,
    V,
    Way,
    again_from_the_store,
    begin,
    decided,
    each_way,
    ran,
    resume,
    roles,
)

rounds = st.lists(st.sampled_from(["list_rooms", "lock_room", "open_door", LOAD_TOOLSET, "nobody"]), min_size=1)


def card(name: str, effect: EffectClass, toolset: str = "", **given: str) -> PlanCard:
    """A card that is gated where it may change something."""
    gated = effect is not EffectClass.READ
    return PlanCard.model_validate(
        {"name": name, "effect": effect, "needs_approval": gated, "toolset": toolset, **given}
    )


CARDS = {
    each.name: each
    for each in (
        card("note", EffectClass.READ), card("list_rooms", EffectClass.READ, "rooms"),
        card("lock_room", EffectClass.KEYED, "rooms"), card("list_doors", EffectClass.READ, "doors"),
        card("open_door", EffectClass.KEYED, "doors"),
        card("memory_read", EffectClass.READ, capability="memory_read"),
        card("memory_patch", EffectClass.LOCAL, "memory", capability="memory_write"),
    )
}  # fmt: skip
LOCK: Call = ("lock_room", {"room": "a"})
LIST: Call = ("list_rooms", {})
LOCKS, LISTS = Says("", (LOCK,)), Says("", (LIST,))
WRITES = {"rooms": True}


def load(toolset: JsonValue, writes: JsonValue = False) -> Call:
    return LOAD_TOOLSET, {"toolset": toolset, "include_write_tools": writes}


def turn(*script: Says, **given: object) -> FakeTurn:
    """A turn in a conversation that has loaded the rooms, to be looked at only unless said otherwise."""
    tools = {name: lambda args: {"did": dict(args)} for name in CARDS}
    return FakeTurn(CARDS, tools, list(script), **({"toolsets": {"rooms": False}} | given))  # type: ignore[arg-type]


async def play(*script: Says, **given: object) -> Played:
    return await begin(turn(*script, **given), "tool_loop")


def pending(played: Played) -> list[list[tuple[str, bool]]]:
    """The calls that are announced, and whether they are gated."""
    told: list[Any] = [data["calls"] for run in played.runs for kind, data in run.events if kind == "tools.pending"]
    return [[(call["tool"], call["requires_approval"]) for call in calls] for calls in told]


UNLOADED = turn(load_problem=Problem(code="activity_timeout", message="no answer"))
ALONE = {
    "a text-only answer": (turn(Says("hello")), "model final", Outcome.COMPLETED, ""),
    "a failed load": (UNLOADED, "model final", Outcome.FAILED, "activity_timeout"),
    "a model that never stops": (turn(*[LISTS] * 3, limits=Limits(max_iterations=3)),
        "model gate model gate model gate final", Outcome.LIMITED, "iteration_limit"),
    "a limit that may be raised": (turn(LISTS, limits=Limits(max_tokens=15, on_spent=OnSpent.ASK)),
        "model gate model final", Outcome.AWAITING, ""),
}  # fmt: skip


@pytest.mark.parametrize(("made", "trace", "outcome", "code"), ALONE.values(), ids=list(ALONE))
async def test_a_turn_without_people_takes_its_route(made: FakeTurn, trace: str, outcome: Outcome, code: str) -> None:
    played = await begin(deepcopy(made), "tool_loop")
    assert played.traces() == [f"entry memory_prepare {trace}"]
    assert (played.outcome(), played.code, len(played.turn.asks)) == (outcome, code, len(made.script))
    ended = (False, None) if outcome is Outcome.AWAITING else (True, 0)
    assert (played.state["done"], played.state["duration_ms"]) == ended


async def test_the_offered_tools_follow_the_loaded_toolsets() -> None:
    played = await play(Says("", (load("rooms", True), load("doors"))), Says("", (LIST,)), Says("well"))
    all_loaded = (LOAD_TOOLSET, "note", "list_rooms", "lock_room", "list_doors", "memory_read")
    first = (LOAD_TOOLSET, "note", "list_rooms", "memory_read")
    assert [ask.tools for ask in played.turn.asks] == [first, all_loaded, all_loaded]
    assert played.state["loaded_toolsets"] == {"rooms": True, "doors": False}
    assert played.turn.called == ["t2.0"], "loading is no call of a tool"
    assert roles(played)[:4] == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1"]
    assert pending(played) == [[("list_rooms", False)]], "nor is it announced as one"


@pytest.mark.parametrize("arguments", [
    {"toolset": "cellar", "include_write_tools": True}, {"include_write_tools": True},
    {"toolset": ["rooms"], "include_write_tools": True}, {"toolset": "doors"},
    {"toolset": "doors", "include_write_tools": "yes"},
])  # fmt: skip
async def test_an_invalid_load_is_explained_and_changes_nothing(arguments: Args) -> None:
    played = await play(Says("", ((LOAD_TOOLSET, arguments),)), Says("well"))
    assert roles(played) == ["user", "assistantt1.0", "toolt1.0", "assistant"]
    assert played.turn.asks[0].tools == played.turn.asks[1].tools
    assert played.outcome() is Outcome.COMPLETED


async def test_write_access_is_never_taken_back() -> None:
    played = await play(Says("", (load("rooms", True),)), Says("", (load("rooms", False),)), LOCKS, Says("well"))
    assert played.state["loaded_toolsets"] == {"rooms": True}
    assert played.asked_for() == ["t3.0"]


async def test_a_tool_that_is_not_offered_is_refused_without_an_approval() -> None:
    played = await play(Says("", (LOCK, LIST)), Says("well"))
    assert (ran(played.turn), played.outcome()) == (["t1.1"], Outcome.COMPLETED)
    assert played.turn.rows["t1.0"].state is CallState.FAILED


async def test_calls_without_approval_run_while_the_others_wait_each_for_its_decision() -> None:
    played = await play(Says("", (LOCK, LIST, LOCK)), Says("well"), toolsets=WRITES)
    assert (played.outcome(), ran(played.turn)) == (Outcome.AWAITING, ["t1.1"])
    assert (played.state["awaiting_approval"], played.state["done"]) == (True, False)
    assert [len(trace.split()) for trace in played.traces()] == [5, 3], "requests are opened before anything runs"
    assert played.run.trace() == ["entry", "gate", "final"]
    assert await decided(played, "t1.2", V.APPROVED) is Outcome.AWAITING
    assert ran(played.turn) == ["t1.1", "t1.2"]
    assert await decided(played, "t1.0", V.APPROVED) is Outcome.COMPLETED
    assert ran(played.turn) == ["t1.1", "t1.2", "t1.0"]
    assert roles(played) == ["user", "assistantt1.0,t1.1,t1.2", "toolt1.0", "toolt1.1", "toolt1.2", "assistant"]
    assert pending(played) == [[("lock_room", True), ("list_rooms", False), ("lock_room", True)]], "told once"
    assert not any("memory_prepare" in trace for trace in played.traces()[1:]), "never on the way back"
    alone = await play(Says("", (LOCK, LOCK)), toolsets=WRITES)
    assert (alone.outcome(), len(alone.runs), alone.turn.called) == (Outcome.AWAITING, 1, []), "gated calls alone"


@each_way
async def test_a_refused_call_gets_its_denial_and_the_model_goes_on(way: Way) -> None:
    played = await play(LOCKS, Says("as you wish"), toolsets=WRITES)
    assert await decided(played, "t1.0", V.REJECTED, "not today", way=way) is Outcome.COMPLETED
    assert played.turn.rows["t1.0"].state is CallState.DENIED
    assert roles(played) == ["user", "assistantt1.0", "toolt1.0", "assistant"]
    assert "not today" in played.messages[2].text


async def test_memory_tools_that_write_are_offered_once_memory_is_loaded_and_are_not_announced() -> None:
    both = Says("", (("memory_patch", {}), ("memory_read", {})))
    played = await play(Says("", (load("memory", True),)), both, Says("well"))
    assert ["memory_patch" in ask.tools for ask in played.turn.asks] == [False, True]
    assert pending(played) == []
    assert (played.asked_for(), ran(played.turn)) == (["t2.0"], ["t2.1"])
    assert await decided(played, "t2.0", V.APPROVED) is Outcome.COMPLETED


@pytest.mark.parametrize(("on", "expected"), [("before_tool_call", "t1.0"), ("after_tool_call", "c1.0")])
async def test_an_apps_rules_apply_to_this_topology(on: str, expected: str) -> None:
    found = {"id": "house:looks", "on": on, "do": "require_hitl", "app": "house", "when": {"tool": "list_rooms"}}
    played = await play(Says("", (LIST,)), Says("well"), rules=(Rule.model_validate(found),))
    assert (played.outcome(), played.asked_for()) == (Outcome.AWAITING, [expected])
    assert await decided(played, expected, V.APPROVED) is Outcome.COMPLETED
    assert ran(played.turn) == ["t1.0"]


async def test_the_first_token_is_reported_once_per_run() -> None:
    played = await play(Says("looking", (LIST,)), LOCKS, Says("well"), toolsets=WRITES)
    assert [ask.ttft_told for ask in played.turn.asks] == [False, True]
    await decided(played, "t2.0", V.APPROVED)
    assert [ask.ttft_told for ask in played.turn.asks] == [False, True, False], "entry resets it"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rounds.filter(lambda each: len(each) < 6), min_size=1, max_size=3), st.data())
async def test_each_call_runs_at_most_once_and_only_if_allowed(script: list[list[str]], data: st.DataObject) -> None:
    loading = load("doors", data.draw(st.booleans()))
    says = [Says("", [loading if tool == LOAD_TOOLSET else (tool, {}) for tool in tools]) for tools in script]
    played = await play(*says, Says("well"), toolsets=WRITES)
    made = played.turn
    decided: dict[str, V] = {}
    for _ in range(40):
        if played.outcome() is not Outcome.AWAITING:
            break
        for record in [*made.book.values()]:
            state = data.draw(st.sampled_from([V.PENDING, V.APPROVED, V.EDITED, V.REJECTED, V.EXPIRED, V.WITHDRAWN]))
            if record.state is V.PENDING and state is not V.PENDING:
                decided[record.call_id] = state
                made.decide(record.call_id, state, args={} if state is V.EDITED else None)
        await data.draw(st.sampled_from([resume, again_from_the_store]))(played)
        dispatched = ran(made)
        assert len(dispatched) == len(set(dispatched))
        for call_id in dispatched:
            gated = CARDS[made.rows[call_id].tool].needs_approval
            assert not gated or decided.get(call_id) in (V.APPROVED, V.EDITED)
        assert played.state["awaiting_approval"] == (played.outcome() is Outcome.AWAITING)
    answered = [message.call_id for message in played.messages if message.role is Role.TOOL]
    asked = [call.call_id for message in played.messages for call in message.calls]
    if played.outcome() is Outcome.COMPLETED:
        assert answered == asked, "every call has its answer, in its place"


def cut(text: str, *calls: Call) -> Says:
    return Says(text, calls, ends="length")


R = OnLength
ENDS = {
    "a whole answer": ([Says("all")], R.CONTINUE, "all", "", [None]),
    "one continuation": ([cut("on"), Says("ly")], R.CONTINUE, "only", "", [None, "message-1"]),
    "two, and still cut": ([cut("a"), cut("b"), cut("c")], R.CONTINUE, "abc", "", [None, "message-1", "message-1"]),
    "a cut call and a text": ([cut("I", LIST), Says(" see")], R.CONTINUE, "I see", "", [None, "message-1"]),
    "a cut call alone": ([cut("", LIST), Says("short")], R.CONTINUE, "short", "", [None, ""]),
    "nothing but cuts": ([cut("")] * 3, R.CONTINUE, "", "output_limit", [None, "", ""]),
    "an answer after an empty one, cut": ([cut(""), cut("a"), cut("b")], R.CONTINUE, "ab", "", [None, "", "message-1"]),
    "truncated": ([cut("a", LIST)], R.TRUNCATE, "a", "", [None]),
    "truncated before it began": ([cut("")], R.TRUNCATE, "", "output_limit", [None]),
    "failed": ([cut("a")], R.FAIL, "a", "output_limit", [None]),
    "paused by its provider": ([Says("a", ends="pause_turn"), Says("b")], R.FAIL, "ab", "", [None, "message-1"]),
    "paused before it began": ([Says("", ends="pause_turn"), Says("b")], R.FAIL, "b", "", [None, ""]),
    "nothing but pauses": ([Says("", ends="pause_turn")] * 3, R.CONTINUE, "", "model_paused", [None, "", ""]),
    "a refusal": ([Says("no", ends="refusal")], R.FAIL, "no", "", [None]),
    "an error in between": ([cut("a"), Says(problem=Problem(code="model_unavailable", message="away"))], R.CONTINUE,
        "a", "model_unavailable", [None, "message-1"]),
}  # fmt: skip


@pytest.mark.parametrize(("script", "rule", "text", "code", "continues"), ENDS.values(), ids=list(ENDS))
async def test_a_cut_answer_is_continued_truncated_or_failed(
    script: list[Says], rule: OnLength, text: str, code: str, continues: list[str | None]
) -> None:
    for of in ("tool_loop", "skill_pipeline", "context_assembly"):
        context = FakeContext((), {}) if of == "context_assembly" else None
        played = await begin(turn(*script, on_length=rule, context=context), of)
        asks = [ask for ask in played.turn.asks if not ask.stage]
        assert (played.outcome(), played.code) == (Outcome.FAILED if code else Outcome.COMPLETED, code)
        answers = [each.text for each in played.messages if each.role is Role.ASSISTANT]
        assert answers == ([text] if text else []), "the parts are one message"
        assert [ask.continues for ask in asks] == continues
        assert [ask.may_continue for ask in asks] == [True, True, False][: len(continues)]
        assert played.turn.called == [], "a call with cut arguments never runs"
        assert [ask.deaf for ask in asks] == [each is not None or context is not None for each in continues]


async def test_a_continuation_can_call_tools_and_the_next_answer_has_continuations_of_its_own() -> None:
    played = await play(cut("a"), cut("b"), Says("c", (LIST,)), cut("d"), Says("e"))
    assert roles(played) == ["user", "assistantt3.0", "toolt3.0", "assistant"]
    assert [each.text for each in played.messages if each.role is Role.ASSISTANT] == ["abc", "de"]
    assert [bool(ask.continues) for ask in played.turn.asks] == [False, True, True, False, True]


@each_way
async def test_a_limit_between_the_parts_pauses_and_the_continuation_follows_it(way: Way) -> None:
    played = await play(cut("a"), Says("b"), limits=Limits(max_tokens=15, on_spent=OnSpent.ASK))
    assert (played.outcome(), len(played.turn.asks)) == (Outcome.AWAITING, 1)
    raised = Limits(max_tokens=100, on_spent=OnSpent.ASK)

    async def read(verdicts: Verdicts) -> Verdicts:
        return verdicts.model_copy(update={"limits": raised})

    played.turn.limits, played.turn.reading = raised, read
    assert await decided(played, "l1", V.APPROVED, way=way) is Outcome.COMPLETED
    assert [each.text for each in played.messages if each.role is Role.ASSISTANT] == ["ab"]
    assert [ask.continues for ask in played.turn.asks] == [None, "message-1"]


async def test_the_earlier_version_makes_no_continuation() -> None:
    played = await begin(turn(cut("a")), compiled=compile_topology(pinned("tool_loop", 1)))
    assert played.outcome() is Outcome.COMPLETED and "continuation" not in played.state
    assert [(ask.may_continue, ask.continues) for ask in played.turn.asks] == [(False, None)]
