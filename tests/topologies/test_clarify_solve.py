"""The nodes of `clarify_solve` on the fake ports: budgets, questions, work handed in, faults told, nothing raised."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.contracts.agents import PlanCard
from perdure.contracts.approvals import PauseKind, RequestKind, VerdictState
from perdure.contracts.calls import EffectClass, OutputForm
from perdure.contracts.errors import Problem
from perdure.contracts.messages import Role
from perdure.contracts.turns import Limits
from perdure.graph.spec import Outcome
from perdure.graph.topologies.clarify_solve.planning import NO_ANSWER, NO_QUESTION, STILL_OPEN
from tests.doubles.fake_turn import USAGE, Args, FakeTurn, Refused, Says
from tests.topologies.played import Played, _leg, again_from_the_store, begin
from tests.topologies.specs.clarify_solve import CLASSIFY, DRAW, PLAN, RUN, SAY, VIZ

NAMES = ("profile", "check_plan", "run", "check_specification", "solve", "draw")
CARDS = {name: PlanCard(name=name, effect=EffectClass.READ, needs_approval=False) for name in NAMES}
COLUMNS = [
    {"name": "region", "kind": "nominal", "distinct": 2, "nulls": 0},
    {"name": "sales", "kind": "quantitative", "distinct": 9, "nulls": 0, "least": 1, "most": 9},
]
TABLE = {"table": "f1", "name": "t.csv", "rows": 9, "columns": COLUMNS}
CLIENT = {"client_table": {"name": "t", "rows": 9, "columns": COLUMNS}}


def check(args: Args) -> Any:
    """A text with `bad` in it does not fit."""
    bad = "bad" in str(args["xml"])
    return {"ok": not bad, "faults": [{"path": "/x", "reason": "no such step"}] if bad else []}


def run(args: Args) -> Any:
    """A plan with `breaks` in it cannot be carried out."""
    if "breaks" in str(args["xml"]):
        raise Refused("step 1 (filter): there is no column 'x'")
    return {"rows": 2, "columns": COLUMNS, "warnings": [], "rows_file": "f2"}


def solve(args: Args) -> Any:
    """Exclusions of everything cannot be met."""
    if args["exclusions"]:
        return {"success": False, "timed_out": True, "outcome": "timed_out", "message": "No design was found in time."}
    return {"success": True, "outcome": "solved", "design": {"mark": "bar"}, "specification": {"mark": "bar"}}


TOOLS = {
    "profile": lambda args: TABLE,
    "check_plan": check,
    "run": run,
    "check_specification": check,
    "solve": solve,
    "draw": lambda args: {"png": "f3", "svg": "f4"},
}


def says(**value: object) -> Says:
    return Says(json.dumps(value))


def kind(name: str = "visualization", *, excludes: bool = False) -> Says:
    return says(kind=name, excludes=excludes)


def plan(xml: str = "<plan/>", *, asks: bool = False, shows: str = "sales by region", work: str = "") -> Says:
    return says(
        early_exit=asks,
        question="Which?" if asks else "",
        options=["a", "b"] if asks else [],
        transformation=work,
        xml=xml,
        visualization=shows,
        suggestions=["another"],
    )


XML, MARKS, DONE = says(xml="<chart/>"), says(marks=[{"mark": "bar", "score": 0.9}]), Says("Here it is.")
FAULTY = Says("this is no object")


def turn(*script: Says, **given: Any) -> FakeTurn:
    return FakeTurn(CARDS, TOOLS, list(script), stage_tools={name: name for name in NAMES}, **given)


async def play(*script: Says, **given: Any) -> Played:
    return await begin(turn(*script, **given), "clarify_solve")


async def answered(played: Played, kind: PauseKind, payload: Mapping[str, Any], **given: VerdictState) -> None:
    """The user answers, and the run goes on."""
    call_id = next(reversed(played.turn.book.values())).call_id
    played.turn.decide(call_id, given.get("state", VerdictState.ANSWERED), args=dict(payload))
    await _leg(played, kind.value, played.run.step)


def processing(played: Played) -> dict[str, Any]:
    found: Any = played.state["processing"]
    return dict(found)


def last(played: Played) -> str:
    return played.messages[-1].text


def notes(played: Played, ask: int) -> str:
    """What the model was told beside the person's words."""
    return "\n".join(message.text for message in played.turn.asks[ask].messages)


async def test_a_chart_is_planned_run_specified_solved_drawn_and_told() -> None:
    played = await play(kind(), plan(), XML, MARKS, DONE)
    viz = f"{VIZ} {DRAW} viz_processing_branch/finalize viz_processing_branch/mark_classification"
    # A node ends after those inside it.
    assert set(played.traces()[0].split()) == set(
        f"{CLASSIFY} {PLAN} {RUN} {viz} asp_solving_node viz_building_node {SAY}".split()
    )
    assert played.outcome() is Outcome.COMPLETED and last(played) == "Here it is."
    output: Any = played.state["output"]
    assert output["pictures"] == {"png": "/v1/files/f3", "svg": "/v1/files/f4"}
    assert output["suggestions"] == [{"kind": "text", "text": "another"}]
    assert [ask.stage for ask in played.turn.asks] == ["classify", "plan", "specify", "marks", "feedback"]
    assert "f1" not in notes(played, 1), "where the table lies is no part of a prompt (S4-32)"


async def test_the_ladder_takes_six_calls_in_both_forms_and_tells_each_fault() -> None:
    played = await play(*[FAULTY] * 6, DONE)
    asks = [ask for ask in played.turn.asks if ask.output is not None]
    assert [ask.output.form for ask in asks if ask.output] == [OutputForm.JSON_SCHEMA, OutputForm.FUNCTION] * 3
    assert len(notes(played, 1)) > len(notes(played, 0))
    assert played.traces()[0] == f"{CLASSIFY} {SAY}", "what cannot be classified goes to the feedback (S4-25)"
    assert played.state["tokens_used"] == 7 * USAGE.tokens


@pytest.mark.parametrize("code", ["model_auth", "model_not_found", "model_billing"])
async def test_what_another_try_would_meet_again_ends_the_ladder_at_once(code: str) -> None:
    played = await play(Says(problem=Problem(code=code, message="no")), DONE)
    assert len(played.turn.asks) == 2 and played.outcome() is Outcome.COMPLETED


async def test_three_plans_that_do_not_fit_spend_the_budget_and_the_fault_is_told() -> None:
    played = await play(kind(), plan("<bad1/>"), plan("<bad2/>"), plan("<bad3/>"), DONE)
    assert played.traces()[0] == f"{CLASSIFY} {PLAN} {PLAN} {PLAN} {SAY}"
    assert "/x: no such step" in notes(played, 2), "the fault goes into the next prompt"
    assert "/x: no such step" in notes(played, -1), "and to the person"


async def test_faults_of_the_xml_and_of_the_run_share_one_budget() -> None:
    played = await play(kind(), plan("<bad/>"), plan("<breaks1/>"), plan("<breaks2/>"), DONE)
    assert played.traces()[0] == f"{CLASSIFY} {PLAN} {PLAN} {RUN} {PLAN} {RUN} {SAY}"
    assert processing(played)["entries"] == 3


async def test_the_same_xml_is_never_run_twice() -> None:
    played = await play(kind(), plan("<breaks/>"), plan("<breaks/>"), plan("<breaks/>"), DONE)
    assert sum(1 for call_id, _ in played.turn.ran if played.turn.rows[call_id].tool == "run") == 1


async def test_a_plan_without_its_xml_gets_one_more_call_outside_of_the_budget() -> None:
    played = await play(kind(), plan("", work="sum it"), says(xml="<plan/>"), XML, MARKS, DONE)
    assert [ask.stage for ask in played.turn.asks][:3] == ["classify", "plan", "plan_xml"]
    assert processing(played)["entries"] == 1 and played.outcome() is Outcome.COMPLETED


async def test_neither_plan_nor_xml_leaves_the_table_as_it_is() -> None:
    played = await play(kind(), plan(""), XML, MARKS, DONE)
    assert next(args for call_id, args in played.turn.ran if played.turn.rows[call_id].tool == "run")["xml"] == ""


async def test_four_specifications_that_do_not_fit_are_told_and_never_solved_as_empty() -> None:
    bad = says(xml="<bad/>")
    played = await play(kind(), plan(), bad, bad, bad, bad, DONE)
    assert played.traces()[0].count("xml_generation") == 4
    assert "solve" not in [played.turn.rows[call_id].tool for call_id, _ in played.turn.ran]
    assert "/x: no such step" in notes(played, -1), "S4-28: the person sees why"
    output: Any = played.state["output"]
    assert "pictures" not in output


async def test_a_question_waits_and_the_reply_spends_no_planning_budget() -> None:
    played = await play(kind(), plan(asks=True), plan("<bad/>"), plan("<bad2/>"), plan("<breaks/>"), DONE)
    assert played.outcome() is Outcome.AWAITING
    (question,) = played.run.questions
    assert question.kind is RequestKind.CLARIFICATION and question.asked == {
        "question": "Which?",
        "options": ["a", "b"],
    }
    await answered(played, PauseKind.CLARIFICATION, {"text": "the first"})
    assert played.outcome() is Outcome.COMPLETED
    assert processing(played)["entries"] == 3, "the first, and two after the reply's own"
    assert "the first" in notes(played, 2) and "a, b" in notes(played, 2), "S4-19"


async def test_a_third_question_never_comes_though_the_model_asks_on() -> None:
    played = await play(kind(), *[plan(asks=True)] * 3, XML, MARKS, DONE)
    for said in ("sales", "by region"):
        await answered(played, PauseKind.CLARIFICATION, {"text": said})
    assert played.outcome() is Outcome.COMPLETED and len(played.turn.book) == 2
    assert NO_QUESTION in notes(played, 3) and NO_QUESTION not in notes(played, 2)
    said_last = [message.text for message in played.turn.asks[3].messages if message.role is Role.USER]
    assert said_last[-3::2] == ["sales", "by region"], "neither answer is forgotten, and the newest comes last"
    assert all("Which?" in asked and "a, b" in asked for asked in said_last[-4::2])


async def test_what_stays_open_at_the_bound_is_told_with_the_columns_that_there_are() -> None:
    played = await play(kind(), *[plan("", asks=True, shows="")] * 3, DONE)
    for said in ("hm", "well"):
        await answered(played, PauseKind.CLARIFICATION, {"text": said})
    assert STILL_OPEN in notes(played, -1) and "region, sales" in notes(played, -1)
    output: Any = played.state["output"]
    assert output["suggestions"] == [], "what was planned came to nothing"
    at_home = await play(kind(), plan("", asks=True, shows=""), metadata=CLIENT)
    await answered(at_home, PauseKind.CLIENT_RUN, {"ok": True, "rows": 9, "columns": COLUMNS})
    output = at_home.state["output"]
    assert "region, sales" in last(at_home) and STILL_OPEN in output["warnings"][-1]


@pytest.mark.parametrize("said", ["a chart #go", "#go a chart", "a #go chart"])
async def test_the_word_that_saves_the_last_call_is_no_part_of_the_request(said: str) -> None:
    played = await play(kind(), plan(), XML, MARKS, words={"bypass": "#go"}, said=said)
    assert [ask.stage for ask in played.turn.asks] == ["classify", "plan", "specify", "marks"]
    assert played.messages[0].text == "a chart" and "bar" in last(played)


async def test_the_word_that_saves_the_last_call_may_stand_in_a_reply() -> None:
    played = await play(kind(), plan(asks=True), plan(), XML, MARKS, words={"bypass": "#go"})
    await answered(played, PauseKind.CLARIFICATION, {"text": "#go the first"})
    assert played.turn.asks[-1].stage == "marks" and "\nthe first" in notes(played, 2)


async def test_an_unanswered_question_waits_on_and_an_expired_one_ends_in_words() -> None:
    played = await play(kind(), plan(asks=True), DONE)
    await _leg(played, PauseKind.CLARIFICATION.value, played.run.step)
    assert played.outcome() is Outcome.AWAITING and not played.run.questions, "nothing is asked anew"
    await answered(played, PauseKind.CLARIFICATION, {}, state=VerdictState.EXPIRED)
    assert played.outcome() is Outcome.COMPLETED and NO_ANSWER in notes(played, -1)


async def test_the_clients_form_asks_no_question_and_ends_with_the_design() -> None:
    played = await play(kind(), plan("<plan/>", asks=True), XML, MARKS, metadata=CLIENT)
    (question,) = played.run.questions
    asked = {"plan": "<plan/>", "table": "t", "visualization": "sales by region"}
    assert question.kind is RequestKind.CLIENT_RUN and question.asked == asked, "S4-44"
    assert NO_QUESTION in notes(played, 1), "S4-17"
    await answered(played, PauseKind.CLIENT_RUN, {"ok": True, "rows": 2, "columns": COLUMNS})
    assert played.outcome() is Outcome.COMPLETED
    assert "feedback_node" not in played.traces()[1] and last(played) == "sales by region"
    output: Any = played.state["output"]
    assert output["specification"] == {"mark": "bar"}
    assert not {"profile", "run", "draw"} & {played.turn.rows[call_id].tool for call_id, _ in played.turn.ran}


async def test_what_the_client_could_not_do_is_planned_again() -> None:
    played = await play(kind(), plan("<a/>"), plan("<b/>"), XML, MARKS, metadata=CLIENT)
    await answered(played, PauseKind.CLIENT_RUN, {"ok": False, "error": "there is no column 'x'"})
    assert played.outcome() is Outcome.AWAITING and "there is no column 'x'" in notes(played, 2)
    await answered(played, PauseKind.CLIENT_RUN, {"ok": True, "rows": 2, "columns": COLUMNS})
    assert played.outcome() is Outcome.COMPLETED


async def test_a_design_that_is_not_found_is_a_warning_to_the_client() -> None:
    nothing: Args = {
        "success": False,
        "timed_out": True,
        "outcome": "timed_out",
        "message": "No design was found in time.",
    }
    made = turn(kind(), plan(), XML, MARKS, DONE, metadata=CLIENT)
    made.tools = {**made.tools, "solve": lambda args: nothing}
    played = await begin(made, "clarify_solve")
    handed_in = {"ok": True, "rows": 2, "columns": COLUMNS, "warnings": ["5 rows were left out"]}
    await answered(played, PauseKind.CLIENT_RUN, handed_in)
    output: Any = played.state["output"]
    assert played.outcome() is Outcome.COMPLETED and "specification" not in output
    assert output["warnings"] == ["5 rows were left out", "No design was found in time."], "S4-45"


async def test_a_model_that_never_plans_ends_in_words_after_six_tries() -> None:
    played = await play(kind(), *[FAULTY] * 6, DONE)
    assert played.traces()[0] == f"{CLASSIFY} {PLAN} {SAY}" and played.outcome() is Outcome.COMPLETED


async def test_the_tables_before_the_last_one_are_told_and_can_be_joined() -> None:
    other: dict[str, Any] = {"table": "f0", "name": "u.csv", "rows": 3, "columns": [*COLUMNS[:1]]}
    made = turn(kind(), plan('<plan><join table="u.csv"/></plan>'), XML, MARKS, DONE)
    told: Any = {**TABLE, "others": [other]}
    made.tools = {**made.tools, "profile": lambda args: told}
    played = await begin(made, "clarify_solve")
    assert "u.csv" in notes(played, 1) and "f0" not in notes(played, 1)
    ran = next(args for call_id, args in played.turn.ran if played.turn.rows[call_id].tool == "run")
    assert (ran["table"], ran["others"]) == ("f1", ["f0"])


async def test_exclusions_run_beside_the_specification_and_the_solver_runs_once_after_both() -> None:
    both = [says(xml="<chart/>"), says(exclusions=[{"selector": "mark", "value": "bar", "scope": "*"}])]
    for script in (both, both[::-1]):
        played = await play(kind(excludes=True), plan(), *script, MARKS, *[DONE] * 60)
        trace = played.traces()[0].split()
        assert trace.count("asp_solving_node") == 1 and "exclusion_processing" in trace
        assert trace.index("asp_solving_node") > max(trace.index("exclusion_processing"), trace.index(VIZ.split()[0]))


async def test_a_solver_that_runs_out_of_time_is_an_outcome_that_is_told() -> None:
    exclusions = says(exclusions=[{"selector": "mark", "value": "bar", "scope": "*"}])
    played = await play(kind(excludes=True), plan(), exclusions, XML, MARKS, *[DONE] * 2)
    if "solve" not in [played.turn.rows[call_id].tool for call_id, _ in played.turn.ran]:
        played = await play(kind(excludes=True), plan(), XML, exclusions, MARKS, *[DONE] * 2)
    assert played.outcome() is Outcome.COMPLETED and "No design was found in time." in notes(played, -1)


@pytest.mark.parametrize(
    "metadata", [{"client_table": "x"}, {"client_table": {"name": "t", "rows": [[1]], "columns": []}}]
)
async def test_a_table_that_a_client_describes_wrongly_ends_the_turn_with_a_code(metadata: Args) -> None:
    played = await play(metadata=metadata)
    assert played.outcome() is Outcome.FAILED
    error: Any = played.state["error"]
    assert error["code"] == "client_table_invalid" and not played.turn.asks


async def test_a_spent_budget_ends_the_run_as_limited_and_a_stop_as_stopped() -> None:
    played = await play(kind(), plan(), limits=Limits(max_tokens=USAGE.tokens))
    assert played.outcome() is Outcome.LIMITED and len(played.turn.asks) == 1
    played = await play(Says(problem=Problem(code="stopped", message="the turn was stopped")))
    assert played.outcome() is Outcome.STOPPED


@pytest.mark.parametrize("code", ["model_timeout", "token_budget_spent"])
async def test_a_feedback_that_fails_or_cannot_be_paid_for_is_said_in_our_own_words(code: str) -> None:
    played = await play(kind(), plan(), XML, MARKS, Says(problem=Problem(code=code, message="late")))
    assert played.outcome() is Outcome.COMPLETED
    rows, design, _ = last(played).split("\n")
    assert "2" in rows and "bar" in design


@pytest.mark.parametrize("code", ["token_budget_spent", "day_cost_budget_spent", "answer_over_budget"])
async def test_an_object_that_the_turn_could_not_pay_for_is_not_asked_for_again(code: str) -> None:
    played = await play(kind(), Says(problem=Problem(code=code, message="spent")))
    assert played.outcome() is Outcome.LIMITED and len(played.turn.asks) == 2


async def test_markup_in_the_models_words_is_text() -> None:
    played = await play(kind("question"), Says("<img src=x onerror=alert(1)> & more"))
    output: Any = played.state["output"]
    assert output["text"] == "<p>&lt;img src=x onerror=alert(1)&gt; &amp; more</p>"


WHATEVER: Sequence[Says] = (
    *(kind(), kind(excludes=True), kind("question"), kind("palette"), kind("transformation")),
    *(plan(), plan("<bad/>"), plan("<breaks/>"), plan(asks=True), plan("", work="x"), plan(shows="")),
    *(XML, says(xml="<bad/>"), MARKS, DONE, FAULTY, says(exclusions=[])),
    *(Says(problem=Problem(code=code, message="no")) for code in ("model_timeout", "model_auth")),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(WHATEVER), max_size=25), st.booleans(), st.sampled_from([{}, CLIENT]))
async def test_whatever_the_model_says_the_run_ends_within_its_budgets(
    script: list[Says], replies: bool, metadata: Args
) -> None:
    made = turn(*script, *[DONE] * 80, metadata=metadata)
    played = await begin(made, "clarify_solve")
    for _ in range(6):
        if played.outcome() is not Outcome.AWAITING:
            break
        asked = next(reversed(made.book.values()))
        state = VerdictState.ANSWERED if replies else VerdictState.EXPIRED
        payload: Args = {"text": "hm"} if asked.kind is RequestKind.CLARIFICATION else {"ok": False, "error": "no"}
        way = PauseKind.CLARIFICATION if asked.kind is RequestKind.CLARIFICATION else PauseKind.CLIENT_RUN
        await answered(played, way, payload, state=state)
    assert played.outcome() in (Outcome.COMPLETED, Outcome.FAILED)
    assert processing(played).get("entries", 0) <= 3 and processing(played).get("generations", 0) <= 4
    asked_back = sum(1 for record in made.book.values() if record.kind is RequestKind.CLARIFICATION)
    assert asked_back <= 2


async def test_a_turn_that_is_started_again_over_its_records_pays_nothing_twice() -> None:
    played = await play(kind(), plan(asks=True), plan(), XML, MARKS, DONE)
    asks = len(played.turn.asks)
    await again_from_the_store(played)
    assert played.outcome() is Outcome.AWAITING and len(played.turn.asks) == asks
    assert len(played.turn.book) == 1, "it has come to the same question"
