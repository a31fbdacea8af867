"""The nodes of `clarify_solve` on the fake ports: budgets, questions, work handed in, faults told, nothing raised."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.contracts.agents import PlanCard
from perdure.contracts.approvals import PauseKind, RequestKind, VerdictState
from perdure.contracts.calls import EffectClass, OutputForm
from perdure.contracts.messages import Role
from perdure.contracts.turns import Limits
from perdure.contracts.values import canonical_json
from perdure.graph.spec import Outcome
from perdure.graph.topologies.clarify_solve.planning import NO_ANSWER_IN_TIME, NO_QUESTION, STILL_OPEN
from tests.doubles.fake_turn import USAGE, Args, FakeTurn, Refused, Says
from tests.topologies.played import Played, _leg, again_from_the_store, begin
from tests.topologies.test_skill_pipeline_nodes import fails

INIT = "initialize_processing_state"
CLASSIFY = f"{INIT} entry_classif_message_type"
PLAN = "planning_transformation_node transformation_clarification_gate"
RUN = "trigger_choregraph_run_node"
VIZ = "viz_processing_branch viz_processing_branch/entry"
DRAW = "viz_processing_branch/xml_generation viz_processing_branch/xml_validator"
SAY = "feedback_node format_feedback"
SHOW = f"asp_solving_node viz_building_node {SAY}"
NAMES = ("profile", "check_plan", "run", "check_specification", "solve", "draw")
CARDS = {name: PlanCard(name=name, effect=EffectClass.READ, needs_approval=False) for name in NAMES}
COLUMNS = [
    {"name": "region", "kind": "nominal", "distinct": 2, "nulls": 0},
    {"name": "sales", "kind": "quantitative", "distinct": 9, "nulls": 0, "least": 1, "most": 9},
]
TABLE = {"table": "f1", "name": "t.csv", "rows": 9, "columns": COLUMNS}
LATE = "No design was found in time."
TIMED_OUT: Args = {"success": False, "timed_out": True, "outcome": "timed_out", "message": LATE}
CLIENT = {"client_table": {"name": "t", "rows": 9, "columns": COLUMNS}}
MET_AGAIN = dict.fromkeys(("model_auth", "model_not_found", "model_billing", "model_refused"), Outcome.FAILED)
UNPAID = dict.fromkeys(("token_budget_spent", "day_cost_budget_spent", "answer_over_budget"), Outcome.LIMITED)


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
        return TIMED_OUT
    return {"success": True, "outcome": "solved", "design": {"mark": "bar"}, "specification": {"mark": "bar"}}


TOOLS = {
    "profile": lambda args: TABLE, "check_plan": check, "run": run, "check_specification": check, "solve": solve,
    "draw": lambda args: {"png": "f3", "svg": "f4"},
}  # fmt: skip


def says(**value: object) -> Says:
    return Says(json.dumps(value))


def kind(name: str = "visualization", *, excludes: bool = False) -> Says:
    return says(kind=name, excludes=excludes)


def plan(xml: str = "<plan/>", *, asks: bool = False, shows: str = "sales by region", work: str = "") -> Says:
    return says(
        early_exit=asks, question="Which?" if asks else "", options=["a", "b"] if asks else [], transformation=work,
        xml=xml, visualization=shows, suggestions=["another"],
    )  # fmt: skip


XML, MARKS, DONE = says(xml="<chart/>"), says(marks=[{"mark": "bar", "score": 0.9}]), Says("Here it is.")
FAULTY = Says("this is no object")
HANDED_IN = {"ok": True, "rows": 2, "columns": COLUMNS}


def turn(*script: Says, **given: Any) -> FakeTurn:
    return FakeTurn(CARDS, TOOLS, list(script), stage_tools={name: name for name in NAMES}, **given)


async def play(*script: Says, **given: Any) -> Played:
    return await begin(turn(*script, **given), "clarify_solve")


def turn_with(tool: str, says: Any, *script: Says, **given: Any) -> FakeTurn:
    return replace(turn(*script, **given), tools={**TOOLS, tool: lambda args: says})


async def play_with(tool: str, says: Any, *script: Says, **given: Any) -> Played:
    return await begin(turn_with(tool, says, *script, **given), "clarify_solve")


async def answered(played: Played, kind: PauseKind, payload: Mapping[str, Any], **given: VerdictState) -> Outcome:
    call_id = next(reversed(played.turn.book.values())).call_id
    played.turn.decide(call_id, given.get("state", VerdictState.ANSWERED), args=dict(payload))
    await _leg(played, kind.value, played.run.step)
    return played.outcome()


def processing(played: Played) -> dict[str, Any]:
    found: Any = played.state["processing"]
    return dict(found)


def last(played: Played) -> str:
    return played.messages[-1].text


def ended(played: Played) -> tuple[str, str | None]:
    """What came of it, and the code of its fault."""
    fault = played.output.get("fault")
    return played.output["outcome"], fault and fault["code"]


def stages(played: Played) -> list[str]:
    return [ask.stage for ask in played.turn.asks]


def tools_run(played: Played) -> list[str]:
    return [played.turn.rows[call_id].tool for call_id, _ in played.turn.ran]


def given_to_run(played: Played) -> Args:
    return played.turn.ran[tools_run(played).index("run")][1]


def notes(played: Played, ask: int) -> str:
    """The model's messages beside the user's text."""
    return "\n".join(message.text for message in played.turn.asks[ask].messages)


async def test_a_chart_is_planned_run_specified_solved_drawn_and_described() -> None:
    played = await play(kind(), plan(), XML, MARKS, DONE)
    viz = f"{VIZ} {DRAW} viz_processing_branch/finalize viz_processing_branch/mark_classification"
    # A node ends after those inside it.
    wanted = f"{CLASSIFY} {PLAN} {RUN} {viz} asp_solving_node viz_building_node {SAY}"
    assert set(played.traces()[0].split()) == set(wanted.split())
    assert played.outcome() is Outcome.COMPLETED and ended(played) == ("drawn", None)
    assert played.messages[-2].text == "Here it is." and last(played), "the engine's own sentence ends the answer"
    assert played.output["pictures"] == {"png": "/v1/files/f3", "svg": "/v1/files/f4"}
    assert played.output["suggestions"] == [{"kind": "text", "text": "another"}]
    assert stages(played) == ["classify", "plan", "specify", "marks", "feedback"]
    assert "f1" not in notes(played, 1), "where the table lies is no part of a prompt"


SHORT: dict[str, Any] = {"words": {"shortcut": "#go", "upload": "#up"}}
AT_ONCE = {
    "a palette": (turn(kind("palette"), DONE), f"{CLASSIFY} {SAY}", ("answered", None)),
    "a question": (turn(kind("question"), DONE), f"{CLASSIFY} {SAY}", ("answered", None)),
    "no data": (turn_with("profile", {}, kind(), DONE), f"{CLASSIFY} {SAY}", ("nothing_to_do", None)),
    "an upload": (turn(DONE, said="#up t.csv", **SHORT), f"{INIT} {SAY}", ("nothing_to_do", None)),
    "an empty shortcut": (
        turn(DONE, said="#go", **SHORT), f"{INIT} expand_shortcut_node {SAY}", ("failed", "specify_failed")),
    "a shortcut": (turn(DONE, said="#go <x/>", **SHORT), f"{INIT} expand_shortcut_node {SHOW}", ("drawn", None)),
    "nothing to show": (
        turn(kind(), plan(shows=""), DONE), f"{CLASSIFY} {PLAN} {RUN} {VIZ} {SHOW}", ("prepared", None)),
}  # fmt: skip


@pytest.mark.parametrize(("made", "trace", "came_of"), AT_ONCE.values(), ids=list(AT_ONCE))
async def test_a_request_that_needs_no_specification_takes_its_short_route(
    made: FakeTurn, trace: str, came_of: tuple[str, str | None]
) -> None:
    played = await begin(deepcopy(made), "clarify_solve")
    assert (sorted(played.traces()[0].split()), played.outcome()) == (sorted(trace.split()), Outcome.COMPLETED)
    assert ended(played) == came_of


async def test_the_ladder_takes_six_calls_in_both_forms_and_tells_each_fault() -> None:
    played = await play(*[FAULTY] * 6, DONE)
    asks = [ask for ask in played.turn.asks if ask.output is not None]
    assert [ask.output.form for ask in asks if ask.output] == [OutputForm.JSON_SCHEMA, OutputForm.FUNCTION] * 3
    assert len(notes(played, 1)) > len(notes(played, 0))
    assert played.traces()[0] == f"{CLASSIFY} {SAY}", "what cannot be classified goes to the feedback"
    assert played.state["tokens_used"] == 7 * USAGE.tokens
    unplanned = await play(kind(), *[FAULTY] * 6, DONE)
    assert unplanned.traces()[0] == f"{CLASSIFY} {PLAN} {SAY}" and unplanned.outcome() is Outcome.FAILED


@pytest.mark.parametrize(("code", "outcome"), [*(MET_AGAIN | UNPAID).items(), ("stopped", Outcome.STOPPED)])
async def test_a_permanent_or_unaffordable_fault_ends_the_ladder(code: str, outcome: Outcome) -> None:
    played = await play(kind(), fails(code), DONE)
    assert (played.outcome(), played.code, len(played.turn.asks)) == (outcome, code, 2)


AUTH = fails("model_auth")
BEFORE = {
    "classify": (), "plan": (kind(),), "specify": (kind(), plan()), "marks": (kind(), plan(), XML),
    "feedback": (kind(), plan(), XML, MARKS),
}  # fmt: skip
"""The model's answers before it comes to a stage."""
BREAKS = {"plan": "check_plan", "run": "run", "specify": "check_specification", "solve": "solve", "draw": "draw"}
"""The tool of a stage."""
PLANTED: dict[str, tuple[tuple[Says, ...], str, str, Outcome, str]] = {
    **{f"a refused key at {stage}": ((*BEFORE[stage], AUTH), "", f"{stage}_refused", Outcome.FAILED, "failed")
       for stage in ("classify", "plan", "specify")},
    **{f"no form at {stage}": ((*BEFORE[stage], *[FAULTY] * 30), "", f"{stage}_unanswered", Outcome.FAILED, "failed")
       for stage in ("classify", "plan", "specify")},
    "no form at marks": ((*BEFORE["marks"], *[FAULTY] * 6, DONE), "", "marks_unanswered", Outcome.COMPLETED, "drawn"),
    "no feedback": ((*BEFORE["feedback"], AUTH), "", "feedback_refused", Outcome.COMPLETED, "drawn"),
    "no answer": ((kind("question"), AUTH), "", "feedback_refused", Outcome.FAILED, "failed"),
    "no table": ((kind(), DONE), "profile", "classify_failed", Outcome.COMPLETED, "failed"),
    **{f"tries of {stage}": ((kind(), *[plan()] * 3, DONE), BREAKS[stage], f"{stage}_spent", Outcome.FAILED, "failed")
       for stage in ("plan", "run")},
    "tries of specify": ((kind(), plan(), *[XML] * 4, DONE), BREAKS["specify"], "specify_spent", Outcome.FAILED,
                         "failed"),
    **{f"a tool at {stage}": ((*BEFORE["feedback"], DONE), BREAKS[stage], f"{stage}_failed", Outcome.COMPLETED,
                              "failed") for stage in ("solve", "draw")},
}  # fmt: skip

NOTHING: tuple[Any, ...] = ({}, None)
MISSHAPEN = [
    *(("draw", output, "draw_failed") for output in (*NOTHING, ["f3"])),
    *(("run", output, "run_spent") for output in (*NOTHING, "x")),
    *(("solve", output, "solve_failed") for output in (*NOTHING, {"success": True}, {"success": False})),
    *(("profile", output, "classify_failed") for output in (NOTHING[1], [TABLE])),
    *(("check_plan", output, "plan_spent") for output in (*NOTHING, {"ok": False})),
    *(("check_specification", output, "specify_spent") for output in (*NOTHING, {"ok": False})),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "output", "code"), MISSHAPEN)
async def test_an_output_without_its_form_is_a_fault_of_its_stage(tool: str, output: Any, code: str) -> None:
    plans = 3 if code in ("plan_spent", "run_spent") else 1
    script = kind(), *([] if tool == "profile" else [plan(f"<plan n='{n}'/>") for n in range(plans)])
    drawn = () if plans > 1 or tool == "profile" else (XML,) * 4 if code == "specify_spent" else (XML, MARKS)
    played = await play_with(tool, output, *script, *drawn, DONE)
    assert ended(played) == ("failed", code) and played.output["fault"]["message"].strip()


@pytest.mark.parametrize(("script", "broken", "code", "outcome", "came_of"), PLANTED.values(), ids=list(PLANTED))
async def test_a_planted_fault_is_told_with_its_stage_and_never_completes_in_silence(
    script: tuple[Says, ...], broken: str, code: str, outcome: Outcome, came_of: str
) -> None:
    def breaks(args: Args) -> Any:
        raise Refused("planted")

    made = turn(*script)
    played = await begin(replace(made, tools={**TOOLS, broken: breaks}), "clarify_solve")
    assert (played.outcome(), *ended(played)) == (outcome, came_of, code)
    fault = played.output["fault"]
    assert fault["stage"] == code.partition("_")[0] and code in last(played)
    caused = "model_auth" if code.endswith("refused") else code
    assert played.code == (caused if outcome is Outcome.FAILED else "")


@pytest.mark.parametrize("key", [AUTH, FAULTY], ids=["refused", "no form"])
async def test_exclusions_that_cannot_be_read_fail_the_turn_that_draws_without_them(key: Says) -> None:
    made = turn(kind(excludes=True), plan(), DONE, by_stage={"exclude": key, "specify": XML, "marks": MARKS})
    played = await begin(made, "clarify_solve")
    cause = "refused" if key is AUTH else "unanswered"
    assert (played.outcome(), *ended(played)) == (Outcome.FAILED, "failed", f"exclude_{cause}")
    assert played.output["pictures"], "what there is, is handed over"


async def test_faults_of_the_xml_and_of_the_run_share_one_budget_and_the_same_xml_never_runs_twice() -> None:
    played = await play(kind(), plan("<bad/>"), plan("<breaks1/>"), plan("<breaks2/>"), DONE)
    assert played.traces()[0] == f"{CLASSIFY} {PLAN} {PLAN} {RUN} {PLAN} {RUN} {SAY}"
    assert processing(played)["entries"] == 3
    assert "/x: no such step" in notes(played, 2), "the fault goes into the next prompt"
    assert "there is no column" in notes(played, -1), "and the last one to the person"
    played = await play(kind(), *[plan("<breaks/>")] * 3, DONE)
    assert tools_run(played).count("run") == 1


async def test_a_plan_without_its_xml_gets_one_more_call_and_one_without_work_leaves_the_table_as_it_is() -> None:
    played = await play(kind(), plan("", work="sum it"), says(xml="<plan/>"), XML, MARKS, DONE)
    assert stages(played)[:3] == ["classify", "plan", "plan_xml"]
    assert processing(played)["entries"] == 1, "outside of the budget"
    assert played.outcome() is Outcome.COMPLETED
    assert given_to_run(await play(kind(), plan(""), XML, MARKS, DONE))["xml"] == ""


async def test_four_specifications_that_do_not_fit_are_reported_and_never_solved_as_empty() -> None:
    played = await play(kind(), plan(), *[says(xml="<bad/>")] * 4, DONE)
    assert played.traces()[0].count("xml_generation") == 4
    assert "solve" not in tools_run(played) and "pictures" not in played.output
    assert "/x: no such step" in notes(played, -1), "the user sees why"


async def test_a_question_waits_and_the_reply_spends_no_planning_budget() -> None:
    played = await play(kind(), plan(asks=True), plan("<bad/>"), plan("<bad2/>"), plan("<breaks/>"), DONE)
    assert played.outcome() is Outcome.AWAITING
    (question,) = played.run.questions
    assert question.kind is RequestKind.CLARIFICATION
    assert question.asked == {"question": "Which?", "options": ["a", "b"]}
    assert await answered(played, PauseKind.CLARIFICATION, {"text": "the first"}) is Outcome.FAILED
    assert ended(played) == ("failed", "run_spent")
    assert processing(played)["entries"] == 3 and stages(played).count("plan") == 4, "the reply's own is not counted"
    assert "the first" in notes(played, 2) and "a, b" in notes(played, 2), "the answer goes with its question"


async def test_a_third_question_never_comes_though_the_model_asks_on() -> None:
    played = await play(kind(), *[plan(asks=True)] * 3, XML, MARKS, DONE)
    for said in ("sales", "by region"):
        await answered(played, PauseKind.CLARIFICATION, {"text": said})
    assert played.outcome() is Outcome.COMPLETED and len(played.turn.book) == 2
    assert NO_QUESTION in notes(played, 3) and NO_QUESTION not in notes(played, 2)
    said_last = [message.text for message in played.turn.asks[3].messages if message.role is Role.USER]
    assert said_last[-3::2] == ["sales", "by region"], "neither answer is forgotten, and the newest comes last"
    assert all("Which?" in asked and "a, b" in asked for asked in said_last[-4::2])


async def test_the_largest_plans_stay_small_enough_for_a_pause() -> None:
    wide = "\N{PARTY POPPER}"
    texts = dict.fromkeys(("question", "transformation", "visualization"), wide * 4000)
    lists = {name: [wide * 200] * 6 for name in ("options", "suggestions")}
    largest = {"early_exit": True, "xml": wide * 16_000, **texts, **lists}
    asks = Says(json.dumps(largest, ensure_ascii=False))
    played = await play(kind(), asks, asks, DONE)
    sizes = [len(canonical_json(played.state).encode())]
    assert await answered(played, PauseKind.CLARIFICATION, {"text": wide * 2_000}) is Outcome.AWAITING
    sizes.append(len(canonical_json(played.state).encode()))
    assert max(sizes) < 256 * 1024, sizes


async def test_unanswered_choices_are_reported_with_the_available_columns() -> None:
    played = await play(kind(), *[plan("", asks=True, shows="")] * 3, DONE)
    for said in ("hm", "well"):
        await answered(played, PauseKind.CLARIFICATION, {"text": said})
    assert "plan_failed" in notes(played, -1) and "region, sales" in notes(played, -1)
    assert played.output["suggestions"] == [], "what was planned came to nothing"
    at_home = await play(kind(), plan("", asks=True, shows=""), metadata=CLIENT)
    await answered(at_home, PauseKind.CLIENT_RUN, {"ok": True, "rows": 9, "columns": COLUMNS})
    assert "region, sales" in last(at_home) and STILL_OPEN in at_home.output["warnings"][-1]


@pytest.mark.parametrize("said", ["a chart #go", "#go a chart", "a #go chart"])
async def test_the_marker_of_a_shortcut_is_no_part_of_the_request(said: str) -> None:
    played = await play(kind(), plan(), XML, MARKS, words={"bypass": "#go"}, said=said)
    assert stages(played) == ["classify", "plan", "specify", "marks"]
    assert played.messages[0].text == "a chart" and "bar" in last(played)
    played = await play(kind(), plan(asks=True), plan(), XML, MARKS, words={"bypass": "#go"})
    await answered(played, PauseKind.CLARIFICATION, {"text": said.replace("chart", "bar")})
    assert stages(played)[-1] == "marks" and "\na bar" in notes(played, 2)


async def test_an_unanswered_question_waits_on_and_an_expired_one_ends_in_words() -> None:
    played = await play(kind(), plan(asks=True), DONE)
    await _leg(played, PauseKind.CLARIFICATION.value, played.run.step)
    assert played.outcome() is Outcome.AWAITING and not played.run.questions, "nothing is asked anew"
    assert await answered(played, PauseKind.CLARIFICATION, {}, state=VerdictState.EXPIRED) is Outcome.COMPLETED
    assert NO_ANSWER_IN_TIME in notes(played, -1)


async def test_the_clients_form_asks_no_question_plans_what_failed_again_and_ends_with_the_design() -> None:
    played = await play(kind(), plan("<a/>"), plan("<plan/>", asks=True), XML, MARKS, metadata=CLIENT)
    await answered(played, PauseKind.CLIENT_RUN, {"ok": False, "error": "there is no column 'x'"})
    assert played.outcome() is Outcome.AWAITING and "there is no column 'x'" in notes(played, 2)
    (question,) = played.run.questions
    asked = {"plan": "<plan/>", "table": "t", "visualization": "sales by region"}
    assert question.kind is RequestKind.CLIENT_RUN and question.asked == asked, "the client runs the plan"
    assert NO_QUESTION in notes(played, 1) and NO_QUESTION in notes(played, 2), "a client is asked nothing"
    assert await answered(played, PauseKind.CLIENT_RUN, HANDED_IN) is Outcome.COMPLETED
    assert "feedback_node" not in played.traces()[-1] and last(played).startswith("sales by region\n")
    assert ended(played) == ("prepared", None), "the client draws"
    assert played.output["specification"] == {"mark": "bar"}
    assert not {"profile", "run", "draw"} & set(tools_run(played))


async def test_a_design_that_is_not_found_is_a_warning() -> None:
    played = await play_with("solve", TIMED_OUT, kind(), plan(), XML, MARKS, DONE, metadata=CLIENT)
    left_out = "5 rows were left out"
    outcome = await answered(played, PauseKind.CLIENT_RUN, {**HANDED_IN, "warnings": [left_out]})
    assert outcome is Outcome.COMPLETED and "specification" not in played.output
    assert played.output["warnings"] == [left_out, LATE], "both are told"


async def test_the_tables_before_the_last_one_are_reported_and_can_be_joined() -> None:
    other = {"table": "f0", "name": "u.csv", "rows": 3, "columns": [*COLUMNS[:1]]}
    join = plan('<plan><join table="u.csv"/></plan>')
    played = await play_with("profile", {**TABLE, "others": [other]}, kind(), join, XML, MARKS, DONE)
    assert "u.csv" in notes(played, 1) and "f0" not in notes(played, 1)
    ran = given_to_run(played)
    assert (ran["table"], ran["others"]) == ("f1", ["f0"])


async def test_exclusions_run_beside_the_specification_and_the_solver_runs_once_after_both() -> None:
    both, told = [XML, says(exclusions=[{"selector": "mark", "value": "bar", "scope": "*"}])], []
    for script in (both, both[::-1]):
        played = await play(kind(excludes=True), plan(), *script, MARKS, *[DONE] * 60)
        trace = played.traces()[0].split()
        assert trace.count("asp_solving_node") == 1 and "exclusion_processing" in trace
        assert trace.index("asp_solving_node") > max(trace.index("exclusion_processing"), trace.index(VIZ.split()[0]))
        told.append("solve" in tools_run(played) and LATE in notes(played, -1))
    assert any(told), "the order in which the two ask is not given; a solver that runs out of time is told"


@pytest.mark.parametrize("table", ["x", {"name": "t", "rows": [[1]], "columns": []}])
async def test_a_table_that_a_client_describes_wrongly_ends_the_turn_with_a_code(table: Any) -> None:
    played = await play(metadata={"client_table": table})
    assert (played.outcome(), played.code) == (Outcome.FAILED, "client_table_invalid")
    assert not played.turn.asks


async def test_a_spent_budget_ends_the_run_as_limited() -> None:
    played = await play(kind(), plan(), limits=Limits(max_tokens=USAGE.tokens))
    assert played.outcome() is Outcome.LIMITED and len(played.turn.asks) == 1
    assert ended(played) == ("failed", "plan_limited")


@pytest.mark.parametrize("code", ["model_timeout", "token_budget_spent"])
async def test_a_fixed_text_replaces_feedback_that_fails_or_exceeds_the_budget(code: str) -> None:
    played = await play(kind(), plan(), XML, MARKS, fails(code))
    assert played.outcome() is Outcome.COMPLETED
    rows, design, *_ = last(played).split("\n")
    assert "2" in rows and "bar" in design and ended(played)[0] == "drawn"


async def test_markup_in_a_models_text_is_escaped() -> None:
    played = await play(kind("question"), Says("<img src=x onerror=alert(1)> & more"))
    assert str(played.output["text"]).startswith("<p>&lt;img src=x onerror=alert(1)&gt; &amp; more</p><p>")


WHATEVER: Sequence[Says] = (
    *(kind(), kind(excludes=True), kind("question"), kind("palette"), kind("transformation")),
    *(plan(), plan("<bad/>"), plan("<breaks/>"), plan(asks=True), plan("", work="x"), plan(shows="")),
    *(XML, says(xml="<bad/>"), MARKS, DONE, FAULTY, says(exclusions=[])),
    *(fails("model_timeout"), fails("model_auth")),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(WHATEVER), max_size=25), st.booleans(), st.sampled_from([{}, CLIENT]))
async def test_every_model_stays_within_the_budgets(script: list[Says], replies: bool, metadata: Args) -> None:
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
    came_of, code = ended(played)
    assert code or (came_of != "failed" and played.outcome() is Outcome.COMPLETED)
    assert processing(played).get("entries", 0) <= 3 and processing(played).get("generations", 0) <= 4
    asked_back = sum(1 for record in made.book.values() if record.kind is RequestKind.CLARIFICATION)
    assert asked_back <= 2


async def test_a_restarted_turn_pays_for_no_call_again() -> None:
    played = await play(kind(), plan(asks=True), plan(), XML, MARKS, DONE)
    asks = len(played.turn.asks)
    await again_from_the_store(played)
    assert played.outcome() is Outcome.AWAITING and len(played.turn.asks) == asks
    assert len(played.turn.book) == 1, "it has come to the same question"
