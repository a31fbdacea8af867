"""An answer while it is being streamed: odd chunks that need no server, and the believable part of usage."""

from types import SimpleNamespace as Chunk
from typing import Any

import pytest

from perdure.activities.providers import provider
from perdure.activities.providers.calls import MAX_CALLS_SENT
from perdure.activities.providers.provider import FINISH_REASONS, Complete, Draft, DraftCall, microusd, plausible_usage
from perdure.contracts.errors import LimitReached, UpstreamRejected, UpstreamUnavailable
from perdure.contracts.turns import Usage

WHOLE_A, WHOLE_B = '{"k":"A"}', '{"k":"B"}'
ESTIMATE = Usage(input_tokens=10, output_tokens=3)


def piece(**delta: Any) -> Chunk:
    return Chunk(model="m", choices=[Chunk(delta=Chunk(**delta))])


def call(index: Any, id_: Any = None, name: Any = None, arguments: Any = None) -> Chunk:
    return Chunk(index=index, id=id_, function=Chunk(name=name, arguments=arguments))


def closed(draft: Draft, reason: str = "tool_calls") -> Complete:
    *_, last = draft.finish(reason, Usage())
    assert isinstance(last, Complete)
    return last


@pytest.mark.parametrize("chunk", [
    *(piece(content=42), piece(reasoning_content=["x"]), piece(tool_calls="yes")),
    piece(tool_calls=[Chunk(index=0, id="x", function=None)]),
    *(piece(tool_calls=[call(0, id_=7, name="a")]), piece(tool_calls=[call(0, name="a", arguments={"x": 1})])),
])  # fmt: skip
def test_a_piece_of_a_wrong_type_is_unreadable_and_an_empty_one_changes_nothing(chunk: Chunk) -> None:
    draft = Draft()
    for empty in (Chunk(), Chunk(choices=None), Chunk(choices=[]), Chunk(choices=[Chunk(delta=None)])):
        assert list(draft.add(empty)) == []
    with pytest.raises(UpstreamUnavailable) as raised:
        list(draft.add(chunk))
    assert raised.value.code == "model_unreadable"


def draft_calls(*deltas: Chunk) -> tuple[DraftCall, ...]:
    draft = Draft()
    for delta in deltas:
        list(draft.add(piece(tool_calls=[delta])))
    return closed(draft).tool_calls


def test_calls_without_an_index_are_separated_by_their_ids() -> None:
    first, second = call(None, "a", "first", '{"x"'), call(None, "b", "second", "{}")
    said = draft_calls(first, call(None, arguments=": 1}"), second, call(None))
    assert said == (DraftCall("a", "first", '{"x": 1}'), DraftCall("b", "second", "{}"))
    assert draft_calls(call(0, "a", "only", "{"), call(0, "a", "only", "}")) == (DraftCall("a", "only", "{}"),)


@pytest.mark.parametrize(("pieces", "calls"), [
    ([("a", "look", '{"k'), ("b", "look", '":"A"}')], [("a", "look", WHOLE_A)]),
    ([("a", "look", ""), ("b", "look", WHOLE_A)], [("a", "look", ""), ("b", "look", WHOLE_A)]),
    *(([("a", "look", ""), *pieces], [("a", "look", WHOLE_A)])
      for pieces in ([("b", "", WHOLE_A)], [("b", "", '{"k'), ("b", "", '":"A"}')])),
    ([("a", "look", ""), ("b", "look", '{"k'), ("c", "look", '":"A"}')], [("a", "look", WHOLE_A)]),
    *(([("a", "look", ""), ("b", "look", '{"k'), (id_, "", '":"A"}')], [("a", "look", ""), ("b", "look", WHOLE_A)])
      for id_ in ("", "b")),
    *(([("a", "look", WHOLE_A), *pieces], [("a", "look", WHOLE_A), ("b", "look", WHOLE_B)])
      for pieces in ([("b", "", WHOLE_B)], *([("b", "", '{"k":'), (id_, "", '"B"}')] for id_ in ("", "b")))),
    *(([("a", "look", WHOLE_A), (*again, '{ "k": "A" }')], [("a", "look", WHOLE_A)])
      for again in (("a", "look"), ("a", ""), ("", ""))),
    *(([("a", "look", "{}"), (*again, WHOLE_A)], [("a", "look", WHOLE_A)])
      for again in (("a", "look"), ("a", ""), ("", ""), ("b", ""))),
    ([("a", "look", "{}"), ("", "", '{"k":'), ("", "", '"A"}')], [("a", "look", WHOLE_A)]),
    ([("a", "look", "{}"), ("a", "look", "{}")], [("a", "look", "{}")]),
    ([("a", "look", "{}"), ("b", "look", WHOLE_A)], [("a", "look", "{}"), ("b", "look", WHOLE_A)]),
    ([("a", "look", WHOLE_A), ("a", "look", WHOLE_B)], [("a", "look", WHOLE_A + WHOLE_B)]),
    ([("srvtoolu_1", "web_search", WHOLE_B), ("a", "look", WHOLE_A)], [("a", "look", WHOLE_A)]),
    ([("a", "look", WHOLE_A), ("b", "look", WHOLE_B)], [("a", "look", WHOLE_A), ("b", "look", WHOLE_B)]),
    ([("", "look", WHOLE_A), ("", "pay", WHOLE_B)], [("call_0", "look", WHOLE_A), ("call_1", "pay", WHOLE_B)]),
    ([("a", "look", ""), ("b", "pay", "")], [("a", "look", ""), ("b", "pay", "")]),
    ([("a", "look", ""), ("b", "look", "")], [("a", "look", ""), ("b", "look", "")]),
    ([("a", "look", '{"k'), ("b", "pay", WHOLE_B)], [("a", "look", '{"k'), ("b", "pay", WHOLE_B)]),
    ([("a", "lo", '{"k":'), ("a", "ok", '"A"}'), ("a", "look", "")], [("a", "look", WHOLE_A)]),
    ([("", "look", WHOLE_A), ("", "look", " ")], [("call_0", "look", WHOLE_A + " ")]),
    ([("", "look", ""), ("a", "", WHOLE_A)], [("a", "look", WHOLE_A)]),
    ([("a", "look", "[" * 9_999 + "]"), ("b", "look", "]")], [("a", "look", "[" * 9_999 + "]]")]),
    ([("a", "look", '{"k":"\ud83d'), ("", "", '\ude00\ud83d"}')], [("a", "look", '{"k":"\U0001f600\ufffd"}')]),
])  # fmt: skip
def test_a_call_ends_where_its_arguments_are_whole(pieces: Any, calls: Any) -> None:
    assert draft_calls(*(call(0, *each) for each in pieces)) == tuple(DraftCall(*each) for each in calls)


@pytest.mark.parametrize("index", [0, None])
def test_calls_beyond_the_limit_are_not_read(index: int | None) -> None:
    draft = Draft()
    for number in range(MAX_CALLS_SENT + 2):
        for part in (call(index, f"id{number}", "t", "{"), call(index, None, None, "}")):
            list(draft.add(piece(tool_calls=[part])))
        end = closed(draft) if number >= MAX_CALLS_SENT - 1 else None
        assert end is None or end.has_unread_calls is (number >= MAX_CALLS_SENT)
    assert end is not None and (len(end.tool_calls), end.tool_calls[-1].raw_arguments) == (MAX_CALLS_SENT, "{}")


def test_calls_without_arguments_before_others_count_towards_the_limit() -> None:
    draft = Draft()
    for number in range(MAX_CALLS_SENT // 2 + 1):
        for part in (call(number, "a", "t", ""), call(number, "b", "t", "{"), call(number, "b", None, "}")):
            list(draft.add(piece(tool_calls=[part])))
    end = closed(draft)
    assert (len(end.tool_calls), end.has_unread_calls) == (MAX_CALLS_SENT, True)


@pytest.mark.parametrize(("content", "thought", "said"), [
    ("<think>Let </me></think>\n\nYes </think> <think>.", "Let </me>", "Yes </think> <think>."),
    ("\n <think>a</think> <think>b</think>c", "ab", "c"), ("<think>a</think>\r\n three", "a", " three"),
    *((text, "", text) for text in (" <thin", "<thinking>x", "  Yes <think>no</think>", "\n<")),
    ("<think>all of it</thin", "all of it</thin", ""), ("Hm.\n</think>\n\nYes </think>.", "Hm.\n", "Yes </think>."),
    ("Hm.</think>Yes", "Hm.", "Yes"), ("\n</think>\n\nYes", "", "Yes"), ("a</think>\n<think>b</think>c", "ab", "c"),
    ("It ends with `</think>`. Or 'so'</think> yes", "It ends with `</think>`. Or 'so'", " yes"),
    ("So:\n```\nx</think>\n\nYes", "So:\n```\nx", "Yes"), ("All of it</think>\n", "All of it", ""),
    *((text, "", text) for text in ("Use `</think>`.", 'The tag "</think>" ends it.', "```\na</think>\n```\nb")),
    (" \n\t\u200b", "", ""), ("hi \ud83d\ude00 \ud83d", "", "hi \U0001f600 \ufffd"),
    ("<think>\ud83d\ude00\ud83d", "\U0001f600\ufffd", ""),
])  # fmt: skip
def test_content_is_read_the_same_however_it_is_cut(content: str, thought: str, said: str) -> None:
    for cut in range(len(content) + 1):
        for parts in (False, True):
            draft = Draft()
            pieces = [content[:cut], content[cut:]] if cut else [*content]
            sent = [[{"type": "text", "text": each}] if parts else each for each in pieces]
            heard: list[provider.Chunk] = [each for text in sent for each in draft.add(piece(content=text))]
            try:
                heard += draft.finish("stop", Usage())
            except UpstreamUnavailable as error:
                assert (error.code, said) == ("model_empty_answer", "")
            begins = max((n for n, each in enumerate(heard) if isinstance(each, provider.TextWasThinking)), default=0)
            thinking = [each for each in heard if isinstance(each, provider.ThinkingDelta | provider.TextWasThinking)]
            assert "".join(each.text for each in thinking) == thought
            assert "".join(each.text for each in heard[begins:] if isinstance(each, provider.TextDelta)) == said


def test_text_and_arguments_count_towards_one_limit() -> None:
    draft = Draft()
    half = "x" * (provider.ANSWER_LIMIT_CHARACTERS // 2)
    assert list(draft.add(piece(content=half))) == [provider.TextDelta(half)]
    list(draft.add(piece(tool_calls=[call(0, name="", arguments=half)])))
    with pytest.raises(UpstreamRejected) as raised:
        list(draft.add(piece(reasoning_content="y")))
    assert raised.value.code == "answer_too_large"


@pytest.mark.parametrize("reason", [None, 0, "", "error", "network_error", "ERROR", "MALFORMED_FUNCTION_CALL"])
def test_an_invalid_finish_reason_completes_no_answer(reason: Any) -> None:
    draft = Draft()
    list(draft.add(piece(content="Half an ans")))
    with pytest.raises(UpstreamUnavailable):
        list(draft.finish(reason, Usage()))


@pytest.mark.parametrize("reason", FINISH_REASONS)
def test_every_known_finish_reason_completes_a_text(reason: str) -> None:
    draft = Draft()
    list(draft.add(piece(content="Yes.", tool_calls=[call(0, "a", "t", "{}")] if "tool" in reason else None)))
    if FINISH_REASONS[reason] == "tool_calls" and "tool" not in reason:
        list(draft.add(piece(tool_calls=[call(0, "a", "t", "{}")])))
    assert closed(draft, reason).finish_reason == FINISH_REASONS[reason]


@pytest.mark.parametrize(
    "reason", {each: name for name, each in FINISH_REASONS.items() if each != "tool_calls"}.values()
)
def test_only_a_continuation_can_end_without_a_text(reason: str) -> None:
    alone, continuation = Draft(), Draft(continues=True)
    for draft in (alone, continuation):
        list(draft.add(piece(content=" \n")))
    assert list(continuation.finish(reason, Usage())) == [closed(continuation, reason)]
    end = closed(continuation, reason)
    assert (end.finish_reason, end.truncated) == (FINISH_REASONS[reason], FINISH_REASONS[reason] != "stop")
    if FINISH_REASONS[reason] == "pause_turn":
        assert list(alone.finish(reason, Usage())) == [closed(alone, reason)], "no attempt is wasted on a pause"
    if FINISH_REASONS[reason] == "stop":
        with pytest.raises(UpstreamUnavailable):
            list(alone.finish(reason, Usage()))


def reported(read: Any, written: Any, **details: Any) -> Chunk:
    return Chunk(prompt_tokens=read, completion_tokens=written, **details)


@pytest.mark.parametrize(("usage", "believed"), [
    *((none, ESTIMATE) for none in (None, reported(-1, True), reported(0, 0), reported(10**10, 1.5))),
    (reported(7, 2), Usage(input_tokens=7, output_tokens=2)),
    (reported(7, 2, prompt_tokens_details=Chunk(cached_tokens=99)),
        Usage(input_tokens=7, output_tokens=2, cached_tokens=7)),
    (reported(7, 9, completion_tokens_details=Chunk(reasoning_tokens=6)),
        Usage(input_tokens=7, output_tokens=9, thinking_tokens=6)),
    (reported(7, 2, completion_tokens_details=Chunk(reasoning_tokens=99)),
        Usage(input_tokens=7, output_tokens=2, thinking_tokens=2)),
])  # fmt: skip
def test_only_plausible_usage_numbers_are_accepted(usage: Any, believed: Usage) -> None:
    assert plausible_usage(usage, input_estimate=10, output_estimate=3) == believed


def test_cost_is_rounded_up_to_whole_microdollars() -> None:
    assert [microusd(dollars) for dollars in (1.0, 0.0000135, 0.1 + 0.2)] == [1_000_000, 14, 300_000]
    assert [microusd(dollars) for dollars in (0.0, -1.0, float("nan"), float("inf"))] == [0] * 4


@pytest.mark.parametrize("name", ["content", "reasoning_content"])
def test_an_answer_beyond_its_bound_is_cut_off(name: str) -> None:
    draft = Draft(max_tokens=100)
    assert list(draft.add(piece(**{name: "x" * 400}))), "exactly at its bound"
    with pytest.raises(LimitReached) as raised:
        list(draft.add(piece(**{name: "x"})))
    assert raised.value.code == "answer_over_budget" and draft.estimated_tokens() == 101
    draft = Draft(max_tokens=100)
    with pytest.raises(LimitReached):  # arguments count as what is said
        for _ in range(200):
            list(draft.add(piece(tool_calls=[call(0, "a", "pay", "1234")])))


def test_a_closing_tag_beside_separate_reasoning_is_plain_text() -> None:
    draft = Draft()
    heard = [*draft.add(piece(reasoning_content="Hm.")), *draft.add(piece(content="See </think>."))]
    assert heard == [provider.ThinkingDelta("Hm."), provider.TextDelta("See </think>.")]
    paused = Draft()
    list(paused.add(piece(tool_calls=[call(0, "srvtoolu_1", "web_search", "{}")])))
    assert (closed(paused, "pause_turn").finish_reason, closed(paused, "pause_turn").tool_calls) == ("pause_turn", ())
