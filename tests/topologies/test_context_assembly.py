"""Context assembly: its nodes on the fake ports, its phases, what counts, what is reused and what is skipped."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.contracts.agents import PlanCard
from perdure.contracts.approvals import VerdictState
from perdure.contracts.calls import EffectClass
from perdure.contracts.context_assembly import Bundle, PipelineToolConfig
from perdure.contracts.errors import Problem
from perdure.contracts.turns import Limits
from perdure.core.calls import context_assembly
from perdure.core.calls.context_assembly import (
    AttemptFault,
    Reuse,
    completeness_of,
    group_phases,
    is_retried,
    merge_arguments,
    slice_hash,
)
from perdure.core.calls.ledger import STOPPED
from perdure.graph.spec import Outcome
from tests.doubles.fake_context import INTERVENTION, Args, Broken, FakeContext
from tests.doubles.fake_turn import FakeTurn, Says
from tests.topologies.played import Played, again_from_the_store, begin, decided, ran

REGISTRY = (
    PipelineToolConfig(name="signal", hears=True),
    PipelineToolConfig(name="catalogue"),
    PipelineToolConfig(name="profile"),
    PipelineToolConfig(name="fit", dependencies=("signal", "catalogue"), inject_inputs=("themes", "nobodys")),
    PipelineToolConfig(name="story", optional=True, hears=True, dependencies=("signal",)),
)
UNSAFE = "preflight safety_intervention finalize"
CALM = "preflight assembly_gate context_assembly empathy context_format navigator finalize"
CARDS = {
    "look": PlanCard(name="look", effect=EffectClass.READ, needs_approval=False),
    "book": PlanCard(name="book", effect=EffectClass.KEYED, needs_approval=True),
}
BOOKS = Says("", (("book", {}),))
UNHEARD = [Problem(code=code, message="m") for code in ("model_unavailable", "activity_timeout", "verdict_unreadable")]
Values = dict[str, Any]
VALUES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), max_size=4)
NOW = context_assembly.ToolInputs("slice", "fed")
SCORES = st.floats(0, 1)


def signal(args: Args) -> JsonValue:
    """Changes its output only where something is said about sleep."""
    said = args["said"]
    assert isinstance(said, list)
    return {"themes": [each for each in said if "sleep" in str(each)], "completeness": 0.9}


def context(**given: Callable[[Args], JsonValue]) -> FakeContext:
    """The registry's tools, some of them others."""
    tools: dict[str, Callable[[Args], JsonValue]] = {
        "signal": signal,
        "catalogue": lambda args: {"names": ["a"], "completeness": 0.9},
        "profile": lambda args: {"age": 3, "completeness": 0.1},
        "fit": lambda args: {"best": "a", "completeness": 0.5},
        "story": lambda args: {"told": True, "completeness": 0.2},
    }
    return FakeContext(REGISTRY, {**tools, **given})


def broken(args: Args) -> JsonValue:
    raise Broken("out of order")


def turn(made: FakeContext, *script: Says, **given: Any) -> FakeTurn:
    tools: dict[str, Callable[[Args], JsonValue]] = dict.fromkeys(CARDS, lambda args: {"done": True})
    return FakeTurn(CARDS, tools, list(script or (Says("hello"),)), context=made, **given)


async def play(made: FakeContext, *script: Says, **given: Any) -> Played:
    made.turn_id = f"turn-{len({bundle.turn_id for bundle in made.bundles}) + 1}"
    made.given.clear()
    return await begin(turn(made, *script, **given), "context_assembly")


def stages(played: Played) -> list[dict[str, Any]]:
    return [data for kind, data in played.run.events if kind == "stage"]


def texts(played: Played) -> list[str]:
    return [message.text for message in played.messages]


async def test_a_harmless_turn_runs_every_stage_once() -> None:
    made = context()
    made.said = ["no sleep"]
    played = await play(made)
    assert sorted(played.run.trace()) == sorted(CALM.split())
    assert played.outcome() is Outcome.COMPLETED
    done: Any = played.state["completed_stages"]
    assert sorted(done) == sorted(CALM.split()), "both branches are in it"
    assert sorted(made.asked) == ["empathy", "intent", "safety"]
    assert made.ran == ["signal", "catalogue", "profile", "fit", "story"]
    injected = dict(made.given)
    assert (injected["fit"], injected["catalogue"]) == ({"themes": ["no sleep"]}, {}), "of those that are there"


@pytest.mark.parametrize("verdict", [{"hijacked": True, "category": "harm"}, {"hijacked": "no"}, {}, *UNHEARD])
async def test_any_verdict_but_a_plain_no_returns_the_safety_text_without_a_model(verdict: Args | Problem) -> None:
    made = context()
    made.verdicts["safety"] = verdict
    played = await play(made, Says("never said"))
    assert (played.traces(), played.outcome()) == ([UNSAFE], Outcome.COMPLETED)
    assert texts(played) == ["please", INTERVENTION]
    assert (len(played.turn.asks), made.ran) == (2, []), "the two questions, and no work after them"


@pytest.mark.parametrize("limits", [Limits(), Limits(max_tokens=0)])
async def test_safety_keywords_return_the_fixed_text_without_a_model_or_budget(limits: Limits) -> None:
    made = context()
    made.danger, made.said = {"harm": ["end it*"]}, ["hello", "I will END  it"]
    played = await play(made, Says("never said"), limits=limits)
    assert (played.traces(), played.outcome()) == ([UNSAFE], Outcome.COMPLETED)
    assert played.messages[-1].text == INTERVENTION and (made.asked, made.ran) == ([], [])
    (checked, _) = stages(played)
    assert (checked["safety_hijacked"], checked["safety_category"], checked["intent"]) == (True, "harm", "ask")


async def test_a_turn_restarted_after_its_check_uses_the_recorded_verdict() -> None:
    made = context()
    made.verdicts["safety"] = {"hijacked": True}
    played = await play(made, Says("never said"))
    made.verdicts["safety"] = {"hijacked": False}
    await again_from_the_store(played)
    assert played.traces() == [UNSAFE] * 2
    assert (played.messages[-1].text, len(played.turn.asks)) == (INTERVENTION, 2), "no model is asked again"


@pytest.mark.parametrize("code", ["token_budget_spent", "day_token_budget_spent"])
@pytest.mark.parametrize("verdict", [{"hijacked": True}, Problem(code="model_unavailable", message="m")])
async def test_a_turn_taken_over_has_its_text_after_its_budget_ended_early(verdict: Args | Problem, code: str) -> None:
    made = context()
    made.verdicts |= {"safety": verdict, "intent": Problem(code=code, message="spent")}
    played = await play(made, Says("never said"))
    assert (played.traces(), played.outcome()) == ([UNSAFE], Outcome.COMPLETED)
    assert played.messages[-1].text == INTERVENTION


async def test_no_call_of_the_turn_receives_a_message_sent_after_its_check() -> None:
    played = await play(context(), Says("", (("look", {}),)), Says("seen"))
    assert [ask.stage for ask in played.turn.asks] == ["safety", "intent", "empathy", "", ""]
    assert all(ask.stage or ask.deaf for ask in played.turn.asks)


async def test_an_unreadable_intent_is_the_default_and_an_unreadable_tone_costs_nothing() -> None:
    made = context()
    away = Problem(code="model_unavailable", message="m")
    made.verdicts |= {"intent": away, "empathy": away}
    played = await play(made)
    assert (played.state["intent"], played.state["empathy"]) == ("ask", {})
    assert played.outcome() is Outcome.COMPLETED


async def test_a_required_tool_that_fails_ends_the_turn_before_the_navigator() -> None:
    made = context(catalogue=broken)
    played = await play(made, Says("never said"))
    assert sorted(played.run.trace()) == sorted(CALM.replace("navigator ", "").split())
    assert (played.outcome(), played.code) == (Outcome.FAILED, "assembly_failed")
    assert "out of order" in str(played.state["error"])
    assert "fit" not in made.ran, "no later phase begins"
    assert len(played.turn.asks) == 3, "the questions alone"


async def test_an_optional_tool_that_fails_is_left_out_and_the_model_is_reported() -> None:
    played = await play(context(story=broken))
    assert played.outcome() is Outcome.COMPLETED
    ask = played.turn.asks[-1]
    assert [source.tool for source in ask.sections] == ["signal", "catalogue", "profile", "fit"]
    assert "story" in ask.guidance and "warm" in ask.guidance
    assert [each["tool"] for data in stages(played) for each in data.get("failed", [])] == ["story"]


async def test_a_new_message_runs_the_tools_that_read_it_and_those_that_are_incomplete() -> None:
    made = context()
    await play(made)
    made.said.append("I moved house")
    await play(made)
    assert made.ran == ["signal", "profile", "story"], "the catalogue is complete; the fit is fed what it was fed"
    made.said.append("I cannot sleep")
    await play(made)
    assert made.ran == ["signal", "profile", "fit", "story"], "complete or not: what feeds the fit has changed"


async def test_the_output_of_a_tool_without_a_dependency_is_still_injected() -> None:
    made = context(profile=lambda args: {"age": len(made.said), "completeness": 0.9})
    made.registry = (*REGISTRY[:2], PipelineToolConfig(name="profile", hears=True), *REGISTRY[3:])
    made.registry += (PipelineToolConfig(name="weather", dependencies=("catalogue",), inject_inputs=("age",)),)
    made.tools = {**made.tools, "weather": lambda args: {"of": args["age"], "completeness": 0.9}}
    await play(made)
    assert made.given[-1] == ("weather", {"age": 1})
    made.said.append("I moved house")
    await play(made)
    assert made.given[-1] == ("weather", {"age": 2}), "what it depends on is what it was; what it is given is not"
    made.said.append("Thanks")
    played = await play(made)
    assert made.ran == []
    skipped = sorted(each["why"] for data in stages(played) for each in data.get("skipped", []))
    assert skipped == [*["complete"] * 2, *["same_slice"] * 4]
    assert {source.turn_id for source in played.turn.asks[-1].sections} == {"turn-1", "turn-2"}


async def test_a_new_version_of_a_tool_and_a_failed_one_run_without_a_new_message() -> None:
    made = context(story=broken)
    await play(made)
    made.tools = {**made.tools, "story": lambda args: {"told": True, "completeness": 1}}
    played = await play(made)
    assert (made.ran, played.state["degraded_sections"]) == (["story"], [])
    made.bases["catalogue"] = "catalogue, second version"
    await play(made)
    assert made.ran == ["catalogue"], "its output is what it was, so the fit is fed the same"


async def test_a_changing_call_waits_in_the_navigator_and_the_check_is_not_repeated() -> None:
    made = context()
    played = await play(made, Says("", (("look", {}), ("book", {}))), Says("booked"))
    assert played.outcome() is Outcome.AWAITING
    assert ran(played.turn) == ["t4.0"], "calls without approval run beside it"
    asked = list(made.asked)
    assert await decided(played, "t4.1", VerdictState.APPROVED) is Outcome.COMPLETED
    assert played.traces()[-1] == "navigator navigator finalize"
    assert (made.asked, made.ran.count("signal")) == (asked, 1)
    assert ran(played.turn) == ["t4.0", "t4.1"]


@pytest.mark.parametrize(("state", "trace", "outcome"), [
    (VerdictState.REJECTED, "navigator navigator finalize", Outcome.COMPLETED),
    (VerdictState.PENDING, "navigator finalize", Outcome.AWAITING),
])  # fmt: skip
async def test_a_refused_call_is_reported_and_an_undecided_one_waits_on(
    state: VerdictState, trace: str, outcome: Outcome
) -> None:
    played = await play(context(), BOOKS, Says("not booked"))
    assert await decided(played, "t4.0", state, "too early") is outcome
    assert (played.traces()[-1], played.turn.ran) == (trace, [])


async def test_a_turn_restarted_at_its_gate_repeats_no_request_and_no_call() -> None:
    made = context()
    played = await play(made, BOOKS, Says("booked"))
    asked, done = list(made.asked), list(made.ran)
    await again_from_the_store(played)
    assert played.outcome() is Outcome.AWAITING
    assert (made.asked, made.ran) == ([*asked, "empathy"], done), "it was cleared, and its bundles are there"
    assert await decided(played, "t4.0", VerdictState.APPROVED) is Outcome.COMPLETED


async def test_a_model_that_always_calls_tools_meets_the_round_limit() -> None:
    played = await play(context(), *[Says("", (("look", {}),))] * 2, limits=Limits(max_iterations=2))
    assert played.outcome() is Outcome.LIMITED


async def test_a_turn_without_a_budget_makes_no_call_and_is_limited() -> None:
    made = context()
    played = await play(made, limits=Limits(max_tokens=0))
    assert (played.outcome(), made.asked) == (Outcome.LIMITED, [])
    assert (played.traces(), texts(played)) == ([UNSAFE], ["please"])


@pytest.mark.parametrize("question", ["safety", "intent"])
@pytest.mark.parametrize("code", ["token_budget_spent", "day_token_budget_spent"])
async def test_a_turn_that_cannot_pay_for_its_check_is_limited_and_not_called_unsafe(question: str, code: str) -> None:
    made = context()
    made.verdicts[question] = Problem(code=code, message="spent")
    played = await play(made)
    assert played.outcome() is Outcome.LIMITED
    assert INTERVENTION not in texts(played)
    assert [data["code"] for kind, data in played.run.events if kind == "budget"] == [code]


@pytest.mark.parametrize("question", ["safety", "intent", "empathy"])
async def test_a_stop_at_a_question_ends_the_turn_as_stopped(question: str) -> None:
    made = context()
    made.verdicts[question] = STOPPED
    played = await play(made)
    assert played.outcome() is Outcome.STOPPED
    assert INTERVENTION not in texts(played)


async def test_a_turn_that_cannot_be_loaded_and_an_agent_without_an_assembly_end_with_the_reason() -> None:
    played = await play(context(), load_problem=Problem(code="no_plan", message="m"))
    assert (played.outcome(), played.code, played.traces()) == (Outcome.FAILED, "no_plan", [UNSAFE])
    played = await begin(FakeTurn(CARDS, {}, [Says("never said")]), "context_assembly")
    assert (played.outcome(), played.code) == (Outcome.FAILED, "no_assembly")


@given(VALUES, st.lists(st.sampled_from("abcd")), VALUES, VALUES)
def test_the_callers_arguments_come_first(defaults: Values, inject: list[str], outputs: Values, caller: Values) -> None:
    injected = {key: value for key, value in outputs.items() if key in inject}
    assert merge_arguments(defaults, inject, outputs, caller) == {**defaults, **injected, **caller}


def test_merging_does_not_change_the_defaults_of_a_later_call() -> None:
    defaults: dict[str, Any] = {"filter": {"ids": [1]}}
    nested: Any = merge_arguments(defaults, (), {}, {})["filter"]
    nested["ids"].append(2)
    assert merge_arguments(defaults, (), {}, {}) == {"filter": {"ids": [1]}}
    assert merge_arguments({"a": 1}, ("a",), {"a": None}, {}) == {"a": None}, "nothing is a value as well"


def test_later_outputs_override_earlier_ones_and_completeness_is_between_0_and_1() -> None:
    said = [{}, {"completeness": 0}, {"completeness": 1}, {"completeness": 0.4}]
    assert [completeness_of(output) for output in said] == [0.0, 0.0, 1.0, 0.4]
    assert context_assembly.merge_outputs([{"a": 1, "completeness": 1}, {"a": 2, "b": 3}]) == {"a": 2, "b": 3}


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -0.01, -1, 1.0001, 2, "0.5", None, True, [0.5], 10**400])
def test_an_invalid_completeness_is_refused(said: Any) -> None:
    with pytest.raises(ValueError) as refused:
        completeness_of({"completeness": said})
    assert len(str(refused.value)) < 140


@pytest.mark.parametrize("output", [None, [], "text", 3, {"a": "x" * context_assembly.MAX_CONTEXT_CHARACTERS}])
def test_an_invalid_output_is_refused(output: Any) -> None:
    with pytest.raises(ValueError):
        completeness_of(output)


def test_the_prompt_has_the_sections_and_says_what_is_missing() -> None:
    assert context_assembly.context_message({}) == ""
    assert '## a\n{"k":1}' in context_assembly.context_message({"a": {"k": 1}})
    assert context_assembly.context_guidance([], {"Tone": ""}) == ""
    told = context_assembly.context_guidance(["b", "c"], {"Tone": "warm"})
    assert "Tone: warm" in told and "b, c" in told


def test_timeouts_and_5xx_are_retried_with_doubled_waits_and_other_faults_are_not() -> None:
    timeouts = (AttemptFault.TIMEOUT, AttemptFault.CONNECT, AttemptFault.READ_TIMEOUT)
    assert all(is_retried(fault, 0) for fault in timeouts)
    assert not any(is_retried(fault, 0) for fault in (AttemptFault.REFUSED, AttemptFault.UNCLASSIFIED))
    statuses = (500, 503, 599, 499, 429, 404, 301)
    assert [status for status in statuses if is_retried(AttemptFault.STATUS, status)] == [500, 503, 599]
    waits = [context_assembly.wait_seconds(0.5, failed) for failed in (1, 2, 3, 4)]
    assert waits == [0.5, 1.0, 2.0, 4.0], "each twice the one before"


@given(st.integers(0, 10))
def test_attempts_are_one_more_than_retries(max_retries: int) -> None:
    attempts = 1
    while context_assembly.should_retry(AttemptFault.TIMEOUT, 0, failed=attempts, max_retries=max_retries):
        attempts += 1
    assert attempts == max_retries + 1
    assert not context_assembly.should_retry(AttemptFault.REFUSED, 0, failed=1, max_retries=max_retries)


FIRST = ("client_signal", "provider_genome", "patient_context")
SAMPLE = {**dict.fromkeys(FIRST, ()), "therapeutic_fit": ("client_signal", "provider_genome")}
Needs = dict[str, tuple[str, ...]]
NAMES = [f"t{number}" for number in range(8)]


@pytest.mark.parametrize(("dependencies", "grouped"), [
    *(({}, ()), ({"a": ()}, (("a",),)), (SAMPLE, (FIRST, ("therapeutic_fit",)))),
    ({**SAMPLE, "narrative": ()}, ((*FIRST, "narrative"), ("therapeutic_fit",))),
])  # fmt: skip
def test_tools_are_grouped_by_their_dependencies(dependencies: Needs, grouped: tuple[tuple[str, ...], ...]) -> None:
    assert group_phases(dependencies) == grouped


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)))
def test_a_group_needs_what_is_before_it_and_begins_as_early_as_it_can(dependencies: Needs) -> None:
    try:
        grouped = group_phases(dependencies)
    except ValueError as error:
        names = [name.split()[-1] for name in str(error).split(" -> ")]
        assert names[0] == names[-1] and len(names) > 1
        assert all(later in dependencies[name] for name, later in pairwise(names))
        return
    assert sorted(name for group in grouped for name in group) == sorted(dependencies)
    place = {name: number for number, group in enumerate(grouped) for name in group}
    for name, needed in dependencies.items():
        assert place[name] == max((place[each] + 1 for each in needed if each in place), default=0)


def test_a_list_that_leaves_out_a_dependency_is_reported() -> None:
    (left_out,) = context_assembly.left_out(["therapeutic_fit", "client_signal"], SAMPLE)
    assert left_out == ("therapeutic_fit", "provider_genome")
    assert context_assembly.left_out(SAMPLE, SAMPLE) == ()


def earlier_bundle(completeness: float, slice_hash: str = "earlier", upstream: str = "fed") -> Bundle:
    """An earlier output."""
    before = {"completeness": completeness, "slice_hash": slice_hash, "upstream": upstream}
    return Bundle.model_validate({"tool": "t", "turn_id": "1", "digest": "d", **before})


@given(SCORES, SCORES, st.booleans(), st.booleans())
@example(0.4, 0.4, False, True)
@example(0.9, 0.4, True, False)  # the condition that the sample code lacks
def test_only_a_tool_with_the_same_inputs_is_reused(score: float, threshold: float, same: bool, fed: bool) -> None:
    before = earlier_bundle(score, "slice" if same else "earlier", "fed" if fed else "other")
    again = Reuse.SAME_SLICE if same else Reuse.COMPLETE if score >= threshold else Reuse.RUN
    assert context_assembly.reuse_of(before, NOW, threshold) is (again if fed else Reuse.RUN)
    assert context_assembly.reuse_of(None, NOW, threshold) is Reuse.RUN


def test_a_change_of_any_input_of_a_tool_changes_its_fingerprint() -> None:
    before = {"a": "1", "b": "2"}
    fed = context_assembly.upstream_of("basis", "slice", before)
    assert fed == context_assembly.upstream_of("basis", "slice", {"b": "2", "a": "1"})
    others = [("new basis", "slice", before), ("basis", "new slice", before), ("basis", None, before)]
    others += [("basis", "slice", {"a": "1", "b": "3"}), ("basis", "slice", {"a": "1"})]
    assert len({fed, *(context_assembly.upstream_of(*each) for each in others)}) == 6


def test_an_acknowledgement_keeps_the_slice() -> None:
    def of(*said: str) -> str:
        return slice_hash(said, ("thanks", "thank you"))

    said = "I cannot sleep"
    assert of(said) == of(said, "Thanks!") == of("i  cannot SLEEP ", "thank you.") == of(said, "", "  ")
    assert of(said) not in (of(said, "thanks, but no"), of("Thanks!", "I can sleep"), of(), of(said, said))


@given(st.lists(st.text(max_size=20), max_size=5), st.text(min_size=1, max_size=20))
def test_every_text_has_a_slice_and_joining_messages_makes_another(said: list[str], text: str) -> None:
    assert len(slice_hash([*said, text])) == 64
    assert slice_hash(["a b", "c"]) != slice_hash(["a", "b c"])
