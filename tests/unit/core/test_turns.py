"""Turns: admitted, titled, told as segments and episodes; settled rounds as ranges of steps."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.contracts.calls import CallState
from perdure.contracts.ids import tool_call_id
from perdure.contracts.messages import CallRef, MessageRef, Role
from perdure.core import transcript, turns
from perdure.core.approvals.refusals import MAX_REASON_CHARACTERS, ReviewRefusal, refused_result, shortened_reason
from perdure.core.calls.rounds import fold_rounds, is_in, ranges_of, rounds_in, steps_in
from perdure.core.transcript import CallRound, KeptRound, segments_of, status_without_result, summary_of
from perdure.core.turns import Admission, AdmissionLoad, OnBusy

CAPS = turns.Caps(queue_depth=2, turns_a_user=5)
START, QUEUE, FULL, MANY = Admission.START, Admission.QUEUE, Admission.QUEUE_FULL, Admission.TOO_MANY
AFTER_STOP = AdmissionLoad(True, 0, 1, stopping=True)
ONE, TWO = CallRound("m", ("a",), {}), CallRound("m", ("a", "b"), {"a": "ta"})
PLANNED, DENIED = CallState.PLANNED, CallState.DENIED
USER = MessageRef(id="u", role=Role.USER, text="please")
NOTE = MessageRef(role=Role.SYSTEM, text="it was rejected")
BARE = USER.model_copy(update={"text": ""})
rounds = st.builds(lambda step, calls: (step, calls), st.integers(0, 3), st.integers(1, 4))


@pytest.mark.parametrize(("on_busy", "cases"), [
    (OnBusy.REJECT,
        {AdmissionLoad(False, 0, 0): START, AdmissionLoad(True, 0, 1): Admission.BUSY,
            AdmissionLoad(False, 0, 4): START}),
    (OnBusy.REJECT, {AdmissionLoad(False, 0, 5): MANY, AdmissionLoad(True, 0, 5): MANY}),
    (OnBusy.QUEUE,
        {AdmissionLoad(False, 0, 0): START, AdmissionLoad(True, 0, 1): QUEUE, AdmissionLoad(True, 1, 2): QUEUE}),
    (OnBusy.QUEUE,
        {AdmissionLoad(True, 2, 3): FULL, AdmissionLoad(True, 0, 5): MANY,
            AdmissionLoad(True, 0, 5, gives_way=1): MANY}),
    (OnBusy.STEER,
        {AdmissionLoad(False, 0, 0): START, AdmissionLoad(True, 0, 1): Admission.JOIN,
            AdmissionLoad(True, 1, 1): Admission.JOIN}),
    (OnBusy.STEER, {AdmissionLoad(True, 2, 1): FULL, AdmissionLoad(False, 0, 5): MANY}),
    (OnBusy.STEER, {AdmissionLoad(True, 0, 5): Admission.JOIN}),  # it opens no turn
    (OnBusy.STEER,
        {AFTER_STOP: QUEUE, replace(AFTER_STOP, queued=2): FULL, AdmissionLoad(True, 0, 5, stopping=True): MANY}),
    (OnBusy.REPLACE, {AdmissionLoad(False, 0, 0): START, AdmissionLoad(False, 0, 5): MANY}),
    (OnBusy.REPLACE,
     {AdmissionLoad(True, n, n + 1, gives_way=1): Admission.REPLACE for n in (0, 2)}),  # no longer a queue
    (OnBusy.REPLACE,
        {AdmissionLoad(True, 0, 5, gives_way=1): Admission.REPLACE, AdmissionLoad(True, 0, 6, gives_way=1): MANY}),
    (OnBusy.REPLACE, {AdmissionLoad(True, 1, 6, stopping=True, gives_way=2): Admission.REPLACE}),
])  # fmt: skip
def test_load_limits_and_on_busy_admit_a_new_turn(on_busy: OnBusy, cases: dict[AdmissionLoad, Admission]) -> None:
    assert {load: turns.admit(load, CAPS, on_busy) for load in cases} == cases


loads = st.builds(
    AdmissionLoad, st.booleans(), st.integers(0, 30), st.integers(0, 60), stopping=st.booleans(),
    gives_way=st.integers(0, 2),
)  # fmt: skip


@given(loads, st.builds(turns.Caps, st.integers(0, 25), st.integers(0, 55)), st.sampled_from(OnBusy))
def test_no_turn_starts_beside_another_or_over_a_limit(load: AdmissionLoad, cap: turns.Caps, on_busy: OnBusy) -> None:
    admission = turns.admit(load, cap, on_busy)
    if admission is Admission.START:
        assert not load.busy
    if admission is Admission.QUEUE:
        assert load.busy and load.queued < cap.queue_depth
        assert on_busy is OnBusy.QUEUE or (on_busy is OnBusy.STEER and load.stopping)
    if admission is Admission.JOIN:
        assert load.busy and on_busy is OnBusy.STEER and not load.stopping and load.queued < cap.queue_depth
    if admission is Admission.REPLACE:
        assert load.busy and on_busy is OnBusy.REPLACE and load.open_of_user - load.gives_way < cap.turns_a_user
    if admission in (Admission.START, Admission.QUEUE):
        assert load.open_of_user < cap.turns_a_user
    if admission is Admission.BUSY:
        assert load.busy and on_busy is OnBusy.REJECT


@pytest.mark.parametrize(("waiting", "wait_seconds"), [(5, 60), (4, 5), (0, 5)])
def test_a_caller_with_too_many_turns_is_told_when_to_retry(waiting: int, wait_seconds: int) -> None:
    refused = turns.too_many(AdmissionLoad(False, 0, 5, waiting), CAPS)
    assert (refused.code, refused.http) == ("too_many_turns", 429)
    assert refused.details["retry_after_seconds"] == wait_seconds


def test_a_summary_contains_message_and_answer_cut_at_a_word() -> None:
    def parts(asked: str, answered: str) -> list[str]:
        return [line.partition(": ")[2] for line in str(summary_of(asked, answered)).splitlines()]

    assert parts("  in\n\nlines\t", "so\nis  this") == ["in lines", "so is this"]
    assert parts("only asked", " \n") == ["only asked"]
    assert parts("a\x00b", "") == ["a\ufffdb"]
    asked, answered = parts("word " * 1_000, "answer " * 1_000)
    assert asked.endswith("word …") and len(asked) <= transcript.ASKED_CHARACTERS + len(" …")
    assert answered.endswith("answer …") and len(answered) <= transcript.ANSWERED_CHARACTERS + len(" …")
    assert parts("x" * 1_000, "")[0].endswith("x …"), "a text without a word's end is cut anywhere"


def segment_event(kind: str, call_id: str | None = None, **data: JsonValue) -> transcript.SegmentEvent:
    return transcript.SegmentEvent(kind, call_id, data)


PENDING = segment_event("tools.pending", calls=[{"call_id": "t1.0", "tool": "pay", "requires_approval": True}])


@pytest.mark.parametrize(("kinds", "state"), [
    *(("", "pending"), ("awaiting_approval", "awaiting_approval"), ("awaiting_approval approved", "approved")),
    ("awaiting_approval approved executing", "executing"),
    *(("executing result", "completed"), ("executing error", "error")),
    ("executing error result", "completed"),  # a person settled what was unknown
    ("awaiting_approval denied executing", "denied"),
])  # fmt: skip
def test_a_calls_state_follows_from_its_events(kinds: str, state: str) -> None:
    (segment,) = segments_of([PENDING, *(segment_event(f"tool.{kind}", "t1.0", tool="pay") for kind in kinds.split())])
    assert (segment.kind, segment.call_id, segment.tool, segment.state) == ("tool", "t1.0", "pay", state)


def test_segments_are_in_order_with_everything_known_of_each() -> None:
    events = [
        segment_event("thinking.complete", "m1", duration=1.5, characters=3, text="Hm."),
        segment_event("generation.complete", "m1", characters=5, message_id="a", partial=False),
        PENDING,
        segment_event("tool.awaiting_approval", "t1.0", tool="pay", approval_id="x"),
        segment_event("tool.result", "t1.0", tool="pay", message_id="b"),
        segment_event("tool.error", "t1.1", tool="nope", message_id="c", failure="f"),  # settled as it was planned
        segment_event("generation.complete", "m2", characters=0, message_id=None),
        segment_event("clarification.requested", request_id="q", question="Which?"),
        segment_event("message.joined", message_id="e", heard=False),
        segment_event("message.joined", "m3", message_ids=["e", "f"], heard=True),
        segment_event("generation.complete", "m3", characters=4, message_id="d", partial=True),
    ]
    story = segments_of(events)
    assert [(each.kind, each.call_id, each.state, each.message_id) for each in story] == [
        ("thinking", "m1", "completed", ""), ("text", "m1", "completed", "a"), ("tool", "t1.0", "completed", "b"),
        ("tool", "t1.1", "error", "c"), ("question", "q", "pending", ""), ("message", "m3", "completed", "e"),
        ("message", "m3", "completed", "f"), ("text", "m3", "partial", "d"),
    ]  # fmt: skip
    assert story[0].facts == {"duration": 1.5, "characters": 3, "text": "Hm."}
    assert [each.facts for each in story[2:4]] == [{"approval_id": "x"}, {"failure": "f"}]


kinds = st.sampled_from([*transcript.SEGMENT_EVENTS, "node_end", "token.usage"])
events = st.builds(
    segment_event, kinds, st.sampled_from(["t1.0", "t1.1", "t2.0", None]), tool=st.sampled_from(["pay", "look"])
)


@given(st.lists(events, max_size=30))
def test_any_events_give_one_segment_per_call_and_keep_every_end(given: list[transcript.SegmentEvent]) -> None:
    story = segments_of(given)
    calls = [segment.call_id for segment in story if segment.kind == "tool"]
    assert len(calls) == len(set(calls))
    for place in range(len(given)):
        for earlier in segments_of(given[:place]):
            if earlier.kind == "tool" and earlier.state in transcript.FINAL_STATES:
                (now,) = (each for each in story if each.kind == "tool" and each.call_id == earlier.call_id)
                assert now.state == earlier.state
    states = {"pending", *transcript.STATE_AFTER_EVENT.values()}
    assert {segment.state for segment in story if segment.kind == "tool"} <= states


@pytest.mark.parametrize(("message", "title"), [
    ("  Please\n\tlook at order 1001 and tell me what happened  ", "Please look at order 1001 and"),
    ("x" * 61, "x" * 59 + "…"), ("x" * 60, "x" * 60), ("first " + "y" * 100, "first " + "y" * 53 + "…"),
    (" \n ", ""), ("\u2800 \u115f", ""), ("a\x00b", "a\ufffdb"),
])  # fmt: skip
def test_a_title_consists_of_the_first_words_of_the_message(message: str, title: str) -> None:
    assert transcript.title_of(message) == title


@given(st.text(max_size=2_000))
def test_a_title_is_one_short_line_that_can_be_stored(message: str) -> None:
    title = transcript.title_of(message)
    assert len(title) <= transcript.TITLE_CHARACTERS and len(title.split()) <= 6
    assert title == " ".join(title.split()) and "\x00" not in title
    title.encode()


@pytest.mark.parametrize(("case", "states", "kept"), [
    *((ONE, states, None) for states in ([PLANNED], [DENIED], [])),
    (CallRound("m", ("a",), {"a": "ta"}), [DENIED], KeptRound(("m", "ta"), ())),
    (ONE, [CallState.OUTCOME_UNKNOWN], KeptRound(("m",), ("a",))),
    (replace(ONE, is_open=True), [PLANNED], KeptRound(("m",), ("a",))),
    (TWO, [CallState.DONE, PLANNED], KeptRound(("m", "ta"), ("b",))),
    (TWO, [DENIED, PLANNED], None),
    (replace(TWO, is_open=True), [DENIED, PLANNED], KeptRound(("m", "ta"), ("b",))),
])  # fmt: skip
def test_a_round_with_effects_or_open_is_kept(case: CallRound, states: list[CallState], kept: KeptRound | None) -> None:
    assert transcript.keep_rounds([case], dict(zip("ab", states, strict=False))) == ((kept,) if kept else ())


@given(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(CallState)), st.sets(st.sampled_from("abcd")))
def test_a_kept_round_has_one_answer_per_call(states: dict[str, CallState], answered: set[str]) -> None:
    whole = CallRound("m", tuple("abcd"), {call: f"t{call}" for call in answered})
    kept = transcript.keep_rounds([whole], states)
    if kept:
        assert len(kept[0].message_ids) - 1 + len(kept[0].unanswered) == len(whole.calls)
    else:
        assert CallState.DONE not in states.values()


def test_a_call_that_may_have_happened_is_not_reported_as_not_run() -> None:
    assert status_without_result(CallState.RESERVED, "it is rejected")[0] == "not_known"
    assert status_without_result(CallState.PLANNED, "it is rejected") == ("denied", "it is rejected")
    assert status_without_result(CallState.PLANNED)[0] == status_without_result(None)[0] == "not_run"


def test_a_refused_round_is_kept_wherever_it_is() -> None:
    assert transcript.keep_rounds([TWO], {"a": PLANNED, "b": PLANNED}, {"b"}) == (KeptRound(("m", "ta"), ("b",)),)
    assert status_without_result(PLANNED, beside_refused=True)[0] == "not_run"


@given(st.text(), st.one_of(st.text(), st.integers().map(str)), st.sampled_from(["rejected", "pending", "responded"]))
def test_a_refused_result_cannot_pass_for_its_refusal(reason: str, result: str, status: str) -> None:
    told = json.loads(refused_result(result, ReviewRefusal("c1.0", "look", status, reason, is_checkpoint=True)))
    assert (told["approval"], told.get("reason", "")) == (status, shortened_reason(reason))
    assert told["result"] == result or json.loads(result) == told["result"]
    assert len(shortened_reason(reason * 9_000)) <= MAX_REASON_CHARACTERS


def test_the_text_of_a_round_without_effects_is_kept_without_its_calls() -> None:
    with_text = [CallRound(name, (name,), {}, has_text=True) for name in ("said", "done")]
    rounds = [CallRound("silent", ("a",), {}), *with_text]
    assert transcript.text_only_messages(rounds, transcript.keep_rounds(rounds, {"done": CallState.DONE})) == ("said",)


def message_with_calls(step: int, calls: int = 2, prefix: str = "t") -> MessageRef:
    ids = [prefix + tool_call_id(step, index)[1:] for index in range(calls)]
    return MessageRef(
        id=f"a{prefix}{step}",
        role=Role.ASSISTANT,
        tokens=7,
        calls=tuple(CallRef(call_id=call_id, tool="look", digest="d") for call_id in ids),
    )


def answer(call_id: str, stored: str = "r") -> MessageRef:
    return MessageRef(id=stored and stored + call_id, role=Role.TOOL, text="found", tokens=3, call_id=call_id)


def settled(step: int, calls: int = 2) -> list[MessageRef]:
    message = message_with_calls(step, calls)
    return [message, *(answer(call.call_id) for call in message.calls)]


@pytest.mark.parametrize(
    ("messages", "ranges"),
    [
        ([USER, *settled(1), *settled(2), *settled(3)], [(), ((1, 3),)]),
        ([USER, *settled(1), NOTE, *settled(2)], [(), ((1, 1),), (), ((2, 2),)]),
        ([*settled(1), *settled(3), *settled(4)], [((1, 1), (3, 4))]),
        ([*settled(1), message_with_calls(2)], [((1, 1),), ()]),
        ([message_with_calls(1), answer("t1.0")], [(), ()]),
        ([message_with_calls(1, 1), answer("t1.0", stored="")], [(), ()]),
        ([message_with_calls(1, 1, prefix="c"), answer("c1.0")], [(), ()]),
    ],
    ids=["adjacent", "a note between", "a step missing", "an open round", "half answered", "not stored", "made again"],
)
def test_only_settled_rounds_are_folded(messages: list[MessageRef], ranges: list[tuple[tuple[int, int], ...]]) -> None:
    folded = fold_rounds(messages)
    assert [each.rounds for each in folded] == ranges
    assert sum(each.tokens for each in folded) == sum(each.tokens for each in messages)
    assert fold_rounds(folded) == folded


def test_stored_texts_are_left_out_and_notes_stay_whole() -> None:
    assert fold_rounds([USER, NOTE]) == [BARE, NOTE]


@given(st.lists(st.one_of(st.just(NOTE), rounds), max_size=12))
def test_no_round_is_lost_or_added(drawn: list[MessageRef | tuple[int, int]]) -> None:
    step, messages, steps = 0, [USER], []
    for each in drawn:
        if isinstance(each, MessageRef):
            messages.append(each)
            continue
        step += 1 + each[0]
        messages += settled(step, each[1])
        steps.append(step)
    folded = fold_rounds(messages)
    ranges = ranges_of(folded)
    assert [each for each in range(step + 2) if is_in(each, ranges)] == steps
    assert sum(map(rounds_in, folded)) == len(steps)
    assert [each for each in folded if not each.rounds] == [BARE, *(each for each in drawn if each is NOTE)]


def test_notes_about_refused_rounds_join_unless_something_is_between_them() -> None:
    notes = [MessageRef(role=Role.SYSTEM, refused=((step, step),)) for step in (1, 2, 4, 6)]
    folded = fold_rounds([*notes[:3], *settled(5), notes[3], NOTE])
    assert [message.refused for message in folded] == [((1, 2), (4, 4)), (), ((6, 6),), ()]
    assert fold_rounds(folded) == folded and [*steps_in(folded[0].refused)] == [1, 2, 4]
