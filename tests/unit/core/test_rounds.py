"""Settled rounds as ranges of steps: what is folded, what stays, and that nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.ids import tool_call_id
from perdure.contracts.messages import CallRef, MessageRef, Role
from perdure.core.calls.rounds import fold_rounds, is_in, ranges_of, rounds_in, steps_in

USER = MessageRef(id="u", role=Role.USER, text="please")
NOTE = MessageRef(role=Role.SYSTEM, text="it was rejected")


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


BARE = USER.model_copy(update={"text": ""})


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


rounds = st.builds(lambda step, calls: (step, calls), st.integers(0, 3), st.integers(1, 4))


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
