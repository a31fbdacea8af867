"""Gates: which calls wait, for whom, and when a turn pauses or starts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.activities.toolbox.engine_tools import MEMORY_BY_NAME
from perdure.contracts.agents import AgentDefinition, PlanCard, ToolCard, TurnPlan
from perdure.contracts.approvals import ApprovalPolicy, PauseKind, RequestKind, RequestRef, Verdict, VerdictState
from perdure.contracts.calls import EffectClass
from perdure.contracts.messages import CallRef
from perdure.contracts.skills import Rule, RuleAction, RuleTrigger
from perdure.contracts.turns import Limits
from perdure.core.agents.rule_matching import before_round
from perdure.core.approvals import gates
from perdure.core.approvals.deadlines import MARGIN, MAX_WAIT, deadlines_of, wait_before_check
from perdure.core.approvals.gates import ALLOWING_STATES, EXEMPTIBLE_TOOLS, OPEN_STATES, RULE_MUTATING, startable_calls
from perdure.core.approvals.validity import PlannedVersion, call_refusal

EFFECTS = {"look": ("read", False), "pay": ("keyed", True), "peek": ("read", True), "jot": ("local", False)}
CARDS = tuple(PlanCard(name=name, effect=EffectClass(of), needs_approval=asks) for name, (of, asks) in EFFECTS.items())
PLAN = TurnPlan(agent_id="a", agent_version="v", persona_key="agent", limits=Limits(), cards=CARDS)
V = VerdictState
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = st.sampled_from([*EXEMPTIBLE_TOOLS, "memory_remember", "pay", "refund"]) | st.text(max_size=20)
A, B, LOOK = "t1.0", "t1.1", "t1.2"
ROUND = (A, B, LOOK)
"""Two gated calls and one without a gate."""


def calls_to(*tools: str) -> list[CallRef]:
    return [CallRef(call_id=f"t1.{index}", tool=tool, digest="") for index, tool in enumerate(tools)]


def test_calls_of_a_round_are_gated_one_by_one_and_an_unknown_tool_always() -> None:
    calls = calls_to("look", "nobody", "pay", "jot", "peek")
    gated = [(call.call_id, call.rule) for call in gates.gate_round(PLAN, calls)]
    assert gated == [("t1.1", gates.RULE_UNKNOWN), ("t1.2", RULE_MUTATING), ("t1.4", RULE_MUTATING)]
    assert gates.rule_for(PLAN, calls[0]) is None and gates.rule_for(PLAN, calls[1]) == gates.RULE_UNKNOWN


def verdicts(*states: VerdictState) -> list[Verdict]:
    return [Verdict(request_id=f"r{n}", call_id=f"t1.{n}", state=state) for n, state in enumerate(states)]


@given(st.lists(st.sampled_from(VerdictState), max_size=7), st.sampled_from([0, 0, 1, -1]))
def test_a_round_continues_only_with_a_readable_verdict_for_each_request(states: list[VerdictState], more: int) -> None:
    whole = bool(states) and more == 0 and not {V.PENDING, V.UNREADABLE} & set(states)
    assert gates.round_is_decided(verdicts(*states), len(states) + more) == whole
    may_run = {V.APPROVED, V.EDITED, V.SETTLED} & set(states)
    assert not states or gates.round_is_refused(verdicts(*states)) == (not may_run)


@pytest.mark.parametrize(("deadlines", "checks", "expected"), [
    ([], 0, None), ([timedelta(days=7)], 0, timedelta(days=7) + MARGIN),
    ([timedelta(days=7), timedelta(hours=1)], 3, timedelta(hours=1) + MARGIN),
    ([timedelta(seconds=-5)], 0, timedelta(seconds=1)), ([timedelta(seconds=-5)], 3, timedelta(seconds=8)),
    ([timedelta(days=-5)], 10_000, MAX_WAIT),
])  # fmt: skip
def test_a_turn_waits_for_its_first_deadline_then_longer(deadlines: list[Any], checks: int, expected: Any) -> None:
    assert wait_before_check(NOW, [NOW + each for each in deadlines], checks) == expected


@given(st.lists(st.timedeltas(timedelta(days=-30), timedelta(days=30)), min_size=1), st.integers(0, 10**6))
def test_a_wait_is_always_longer_than_zero(offsets: list[timedelta], checks: int) -> None:
    assert (wait_before_check(NOW, [NOW + each for each in offsets], checks) or timedelta(0)) > timedelta(0)


def test_a_request_is_checked_at_the_time_of_its_record_or_else_at_its_expiry() -> None:
    soon, late = NOW + timedelta(hours=1), NOW + timedelta(days=7)
    opened = RequestRef(request_id="r1", call_id="t1.0", tool="pay", expires_at=soon)
    escalated = opened.model_copy(update={"look_at": late})
    effect = RequestRef(request_id="r2", call_id="t1.1", tool="post")
    assert deadlines_of([opened, effect]) == [soon]
    assert deadlines_of([escalated, effect]) == [late], "the old expiry wakes nothing"
    assert deadlines_of([effect]) == []


K, P = RequestKind, PauseKind
OF_KINDS = [([K.APPROVAL, K.EFFECT], P.APPROVAL), ([K.CHECKPOINT], P.APPROVAL), ([K.LIMIT], P.APPROVAL)]
OF_KINDS += [([], P.APPROVAL), ([K.CLARIFICATION], P.CLARIFICATION), ([K.CLIENT_RUN], P.CLIENT_RUN)]


def test_a_pause_has_the_kind_of_its_pending_requests() -> None:
    for kinds, expected in OF_KINDS:
        waited = [RequestRef(request_id=kind.value, kind=kind, call_id="q1", tool="") for kind in kinds]
        assert gates.pause_kind(waited) is expected


def request(call_id: str) -> RequestRef:
    return RequestRef(request_id=f"r-{call_id}", call_id=call_id, tool="pay")


def verdict(call_id: str, state: VerdictState) -> Verdict:
    return Verdict(request_id=f"r-{call_id}", call_id=call_id, state=state)


Calls = tuple[str, ...]
LOOKS = [
    # name, verdicts of A and B, begun before, ungated first, what starts
    ("no decision was made", (V.PENDING, V.PENDING), (), False, ()),
    ("one is allowed: the free call goes with it", (V.APPROVED, V.PENDING), (), False, (A, LOOK)),
    ("the other is allowed, as edited", (V.PENDING, V.EDITED), (), False, (B, LOOK)),
    ("both are allowed", (V.APPROVED, V.APPROVED), (), False, ROUND),
    ("one is refused: nothing has freed the round", (V.REJECTED, V.PENDING), (), False, ()),
    ("both are refused", (V.REJECTED, V.EXPIRED), (), False, ()),
    ("one of each: the refused one gets its denial", (V.REJECTED, V.APPROVED), (), False, ROUND),
    ("one cannot be read: it waits alone", (V.UNREADABLE, V.APPROVED), (), False, (B, LOOK)),
    ("the rest of a round under way is refused", (None, V.WITHDRAWN), (A, LOOK), False, (B,)),
    ("the rest of a round under way waits", (None, V.PENDING), (A, LOOK), False, ()),
    ("free calls first", (V.PENDING, V.PENDING), (), True, (LOOK,)),
    ("free calls first, once", (V.PENDING, V.PENDING), (LOOK,), True, ()),
    ("free calls first, a refused one gets its denial beside them", (V.REJECTED, V.PENDING), (), True, (A, LOOK)),
    ("free calls first, refused whole", (V.REJECTED, V.EXPIRED), (LOOK,), True, (A, B)),
]


@pytest.mark.parametrize(
    ("states", "begun", "free_first", "starts"), [row[1:] for row in LOOKS], ids=[row[0] for row in LOOKS]
)
def test_checks_return_startable_calls(states: tuple[Any, Any], begun: Calls, free_first: bool, starts: Calls) -> None:
    asked = [(call, state) for call, state in zip((A, B), states, strict=True) if state is not None]
    requests = [request(call) for call, _ in asked]
    verdicts = [verdict(call, state) for call, state in asked]
    assert startable_calls(ROUND, requests, verdicts, begun=begun, ungated_first=free_first) == starts


def test_an_answer_that_is_not_one_verdict_for_each_request_frees_nothing() -> None:
    requests, allowed = [request(A), request(B)], verdict(A, V.APPROVED)
    for read in ([allowed], [], [allowed] * 2, [allowed, verdict("x", V.APPROVED)]):
        assert gates.open_requests(requests, read) == tuple(requests)
        assert startable_calls(ROUND, requests, read) == ()


def test_an_unknown_call_starts_again_once_a_person_settles_it() -> None:
    effect = gates.effect_request("0197f000-0000-7000-8000-000000000001", A, "post")
    assert effect.kind is RequestKind.EFFECT
    said = Verdict(request_id=effect.request_id, call_id=A, state=V.SETTLED)
    unsaid = said.model_copy(update={"state": V.PENDING})
    assert startable_calls((A,), [effect], [unsaid], begun=(LOOK,)) == ()
    assert startable_calls((A,), [effect], [said]) == (A,)
    of_both = startable_calls((A, LOOK), [request(A), effect], [verdict(A, V.APPROVED), unsaid])
    assert of_both == (LOOK,), "an open request holds it, whatever else was decided about it"


@given(st.lists(st.sampled_from(["gated", "free"]), min_size=1, max_size=6), st.booleans(), st.data())
def test_checks_start_each_call_once_after_its_verdict(kinds: list[str], free_first: bool, data: st.DataObject) -> None:
    calls = [f"t1.{index}" for index in range(len(kinds))]
    states = {call: V.PENDING for call, kind in zip(calls, kinds, strict=True) if kind == "gated"}
    begun: list[str] = []
    for _ in range(len(states) + 1):
        requests = [request(call) for call in calls if call in states and call not in begun]
        read = [verdict(each.call_id, states[each.call_id]) for each in requests]
        new = startable_calls(calls, requests, read, begun=begun, ungated_first=free_first)
        assert list(new) == [call for call in calls if call in new], "in the round's order"
        assert not set(new) & set(begun)
        for call in new:
            assert states.get(call) not in OPEN_STATES
        begun += new
        if begun and not free_first:
            assert any(states.get(call) in ALLOWING_STATES for call in begun), "a verdict has freed the round"
        still = [call for call, state in states.items() if state in OPEN_STATES]
        if still:
            decided = data.draw(st.sampled_from(still))
            states[decided] = data.draw(st.sampled_from([*ALLOWING_STATES, V.REJECTED, V.EXPIRED, V.WITHDRAWN]))
    if free_first or any(state in ALLOWING_STATES for state in states.values()):
        assert sorted(begun) == calls, "all of it has started once all is decided"
    elif states:
        assert begun == [], "refused whole, it leaves no trace"


PATCH, PROPOSE = EXEMPTIBLE_TOOLS
LOOK_RULE = Rule(id="app:look", on=RuleTrigger.BEFORE_TOOL_CALL, when={"tool": PATCH}, do=RuleAction.REQUIRE_HITL)
STOP = LOOK_RULE.model_copy(update={"id": "app:stop", "do": RuleAction.ABORT.value})
ODD = LOOK_RULE.model_copy(update={"id": "app:odd", "do": "allow"})


def card(name: str, effect: str = "local", *, gated: bool = True) -> ToolCard:
    made = {"name": name, "description": "", "parameters": {}, "effect": effect, "version": "v"}
    return ToolCard.model_validate({**made, "needs_approval": gated})


def plan(*cards: ToolCard, waived: tuple[str, ...] = (), rules: tuple[Rule, ...] = ()) -> TurnPlan:
    planned = tuple(PlanCard(name=each.name, effect=each.effect, needs_approval=each.needs_approval) for each in cards)
    return PLAN.model_copy(update={"cards": planned, "rules": rules, "waived": waived})


def test_only_memory_tools_that_need_approval_can_be_exempted() -> None:
    assert {*EXEMPTIBLE_TOOLS} == {name for name, tool in MEMORY_BY_NAME.items() if tool.card.needs_approval}
    assert gates.exempted_tools([tool.card for tool in MEMORY_BY_NAME.values()], [*MEMORY_BY_NAME]) == EXEMPTIBLE_TOOLS
    assert not gates.requires_approval(card("memory_remember", gated=False), ())


CALL = CallRef(call_id="c", tool=PATCH, digest="")


@pytest.mark.parametrize(("rule", "action"), [(LOOK_RULE, "asked"), (STOP, "ended"), (ODD, "asked")])
def test_a_rule_stops_a_call_that_is_exempt_from_approval(rule: Rule, action: str) -> None:
    ruled = before_round(plan(card(PATCH), waived=EXEMPTIBLE_TOOLS, rules=(rule,)), [CALL], {})
    assert ([each.rule for each in ruled.gated] == [rule.id]) is (action == "asked")
    assert (ruled.abort is not None) is (action == "ended")
    assert ruled.exempted == (), "nothing says that it was let pass"


def test_an_exempt_call_is_reported_as_a_rule_is() -> None:
    ruled = before_round(plan(card(PATCH), waived=(PATCH,)), [CALL], {})
    assert (ruled.gated, [each.call_id for each in ruled.exempted]) == ((), ["c"])
    told = gates.exemption_event(PATCH)
    assert (told["rule_id"], told["action"], told["tool"]) == ("tenant:approval_waived", "allow", PATCH)


@given(name=NAMES, effect=st.sampled_from(EffectClass), waivers=st.lists(NAMES))
@example(PATCH, EffectClass.LOCAL, [PATCH])
@example(PATCH, EffectClass.LOCAL, [PROPOSE])
@example(PATCH, EffectClass.OPAQUE, [PATCH])  # a server's tool of that name
@example("pay", EffectClass.LOCAL, ["pay"])
def test_an_exemption_applies_to_its_engine_tool_only(name: str, effect: EffectClass, waivers: list[str]) -> None:
    of = card("x", effect).model_copy(update={"name": name})
    free = not gates.requires_approval(of, waivers)
    assert free is (name in EXEMPTIBLE_TOOLS and effect is EffectClass.LOCAL and name in waivers)
    assert (call_refusal(of, of, PlannedVersion("v"), None, waivers) is None) is free, (
        "the tool's worker finds the same"
    )
    assert gates.exempted_tools([of], waivers) == ((name,) if free else ())
    ruled = before_round(plan(of, waived=tuple(waivers)), [CallRef(call_id="c", tool=name, digest="")], {})
    assert (ruled.gated == ()) is free
    assert (gates.exemption_fault(name) is None) is (name in EXEMPTIBLE_TOOLS)


@pytest.mark.parametrize("wrong", [
    *({"quorum": 0}, {"quorum": 21}, {"reviewers": ["ann"], "quorum": 2}),
    {"reviewers": ["ann", "bob"], "quorum_high_risk": 3},
    *({"reviewers": ["ann", "ann"]}, {"hold_seconds": -1}, {"fallback_after_seconds": 0}, {"on_timeout": "shrug"}),
    *({"reject_reasons": [""]}, {"reject_reasons": ["x" * 101]}, {"escalation": "admin"}),
])  # fmt: skip
def test_a_policy_that_cannot_be_satisfied_or_read_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ApprovalPolicy.model_validate(wrong)


def test_unset_policy_fields_are_not_stored_and_quorum_and_hold_depend_on_risk() -> None:
    agent = AgentDefinition.model_validate({"id": "desk", "title": "Desk", "topology": "skill_pipeline"})
    recorded = {"expires_seconds": 604_800, "reviewer_role": "reviewer", "allow_self_approval": False}
    assert agent.model_dump(mode="json")["approvals"] == recorded
    said = ApprovalPolicy(reviewers=("ann", "bob"), quorum=2, quorum_high_risk=1, hold_seconds=30)
    assert (said.quorum_for("high"), said.quorum_for("low")) == (1, 2)
    assert (said.hold_for("high"), said.hold_for("medium")) == (30, 0)


BESIDE = {"expires_seconds": 5, "fallback_reviewer": "x", "fallback_after_seconds": 5, "reject_reasons": ["no"]}
RELIED_ON = {"reviewer_role": "admin", "allow_self_approval": True, "reviewers": ["ann", "bob", "carl"], "quorum": 2}
RELIED_ON |= {"quorum_high_risk": 1, "hold_seconds": 5, "escalation_role": "reviewer"}


@given(st.sets(st.sampled_from(sorted(RELIED_ON))), st.sets(st.sampled_from(sorted(BESIDE))))
def test_a_policys_digest_changes_only_with_who_decides(changed: set[str], beside: set[str]) -> None:
    given_fields = {name: RELIED_ON[name] for name in changed} | {name: BESIDE[name] for name in beside}
    policy = ApprovalPolicy.model_validate(given_fields)
    assert (policy.digest == ApprovalPolicy().digest) is (not changed)
    own_quorum = {"quorum_high_risk", "quorum"} if "quorum_high_risk" in changed else set()
    for risk, beside_risk in (("high", own_quorum), ("low", {"quorum_high_risk", "hold_seconds"})):
        assert (ApprovalPolicy().digest_for(risk) in policy.digests_for(risk)) is (not changed - beside_risk)


def refused_rounds(*comments: tuple[str, ...]) -> dict[int, list[Verdict]]:
    return {
        step: [verdict(f"t{step}.{n}", V.REJECTED).model_copy(update={"comment": each}) for n, each in enumerate(given)]
        for step, given in enumerate(comments, 1)
    }


@pytest.mark.parametrize(("rounds", "kept"), [
    (refused_rounds(("too much", "wrong person")), {1: ["too much", "wrong person"]}),
    (refused_rounds(("old",), ("new",)), {1: ["old"], 2: ["new"]}),
    (refused_rounds(("old" * 8_000,), ("new" * 8_000,)), {1: [], 2: ["new" * 8_000]}),
    (refused_rounds(("first",), ("old" * 8_000,), ("new" * 8_000,)), {1: [], 2: [], 3: ["new" * 8_000]}),
    (refused_rounds(tuple(f"{n:02}" + "x" * 3_998 for n in range(64))), {1: [f"{n:02}xxx" for n in range(64)]}),
])  # fmt: skip
def test_reasons_of_the_newest_refused_rounds_are_kept(
    rounds: dict[int, list[Verdict]], kept: dict[int, list[str]]
) -> None:
    texts = gates.refusal_texts(rounds)
    assert {step: [word for word in kept[step] if word in texts[step]] for step in texts} == kept
    assert [step for step in kept if "an earlier round" in texts[step].lower()] == [
        step for step in kept if not kept[step]
    ]


@given(st.lists(st.lists(st.text(max_size=4_000), min_size=1, max_size=64), max_size=20))
def test_texts_of_refused_rounds_are_bounded(comments: list[list[str]]) -> None:
    texts = gates.refusal_texts(refused_rounds(*map(tuple, comments)))
    assert len(texts) == len(comments) and all(texts.values())
    instructions = 64 * 200 + 20 * 100
    assert sum(map(len, texts.values())) <= gates.MAX_REFUSAL_CHARACTERS + instructions
