"""What of the past a model sees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.messages import Role, WindowPolicy
from perdure.core.agents.prompts import Windowed, halved, keep

ALL = WindowPolicy()


def said(line: str) -> list[Windowed]:
    """A conversation in shorthand: S system, U user, A assistant, `A(x)` with a call, `x!` its answer; `:9` tokens."""
    messages = []
    for index, word in enumerate(line.split()):
        what, _, tokens = word.partition(":")
        weight = int(tokens or 1)
        if what.endswith("!"):
            messages.append(Windowed(index, Role.TOOL, weight, answers=what[:-1]))
            continue
        role = {"S": Role.SYSTEM, "U": Role.USER, "A": Role.ASSISTANT}[what[0]]
        calls = tuple(what[2:-1].split(",")) if "(" in what else ()
        messages.append(Windowed(index, role, weight, call_ids=calls))
    return messages


@pytest.mark.parametrize(
    ("line", "policy", "kept"),
    [
        ("", ALL, []),
        ("U A U", ALL, [0, 1, 2]),
        # Orphans of both kinds go, whatever the policy (S2-23).
        ("U A(x) U", ALL, [0, 2]),
        ("U A(x,y) x! U", ALL, [0, 3]),
        ("U x! A U", ALL, [0, 2, 3]),
        ("U A(x) x! A U", ALL, [0, 1, 2, 3, 4]),
        ("U A(x)", ALL, [0]),
        # An answer that came late stands behind its call.
        ("U A(x) U x!", ALL, [0, 1, 3, 2]),
        # The last N, and the first user message.
        ("U A U A U", WindowPolicy(max_messages=2), [0, 3, 4]),
        ("U A U A U", WindowPolicy(max_messages=2, keep_first_user=False), [3, 4]),
        ("U A U A U", WindowPolicy(max_messages=0), [0, 4]),
        # System messages stay and take no room.
        ("S U A S U A U", WindowPolicy(max_messages=1), [0, 1, 3, 6]),
        # A round stands or falls whole.
        ("U A(x) x! U", WindowPolicy(max_messages=2), [0, 3]),
        ("U A(x) x! U", WindowPolicy(max_messages=3), [0, 1, 2, 3]),
        # The newest round survives even where it is larger than the window (S2-22).
        ("U A(x,y) x! y!", WindowPolicy(max_messages=1), [0, 1, 2, 3]),
        ("U A(x) x!:900", WindowPolicy(max_tokens=10), [0, 1, 2]),
        ("U A(x) x!:900 S", WindowPolicy(max_tokens=10), [0, 1, 2, 3]),
        ("U A:50 U:900", WindowPolicy(max_tokens=10), [0, 2]),
        # Nothing older is taken once something did not fit: no holes.
        ("U A:1 U:50 A:1 U:1", WindowPolicy(max_tokens=5), [0, 3, 4]),
        ("U A:3 U:3 A:3 U:3", WindowPolicy(max_tokens=6), [0, 3, 4]),
    ],
)
def test_a_window_keeps_exactly_these_messages(line: str, policy: WindowPolicy, kept: list[int]) -> None:
    assert keep(said(line), policy) == kept


def test_a_hundred_and_one_messages_in_a_window_of_forty_keep_the_newest() -> None:
    kept = keep([Windowed(index, Role.USER, 1) for index in range(101)], WindowPolicy(max_messages=40))
    assert kept == [0, *range(61, 101)]


policies = st.builds(
    WindowPolicy,
    max_messages=st.none() | st.integers(0, 6),
    max_tokens=st.none() | st.integers(0, 40),
    keep_first_user=st.booleans(),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Windowed]:
    """Rounds in order, with answers that are missing, early, doubled or nobody's."""
    messages: list[Windowed] = []
    made = 0
    for _ in range(draw(st.integers(0, 8))):
        role = draw(st.sampled_from([Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.ASSISTANT, Role.TOOL]))
        tokens = draw(st.integers(0, 20))
        if role is Role.TOOL:
            messages.append(Windowed(len(messages), role, tokens, answers=f"c{draw(st.integers(0, made + 1))}"))
            continue
        calls = tuple(f"c{made + n}" for n in range(draw(st.integers(0, 2)))) if role is Role.ASSISTANT else ()
        made += len(calls)
        messages.append(Windowed(len(messages), role, tokens, call_ids=calls))
        for call_id in calls:
            if draw(st.integers(0, 3)):
                messages.append(Windowed(len(messages), Role.TOOL, draw(st.integers(0, 20)), answers=call_id))
    return messages


def whole(messages: list[Windowed]) -> bool:
    """Every call is answered right behind its message, and every answer has its call."""
    waiting: set[str] = set()
    asked: set[str] = set()
    for message in messages:
        if message.role is Role.TOOL:
            if message.answers not in asked:
                return False
            waiting.discard(message.answers)
            continue
        if waiting:
            return False
        asked, waiting = set(message.call_ids), set(message.call_ids)
    return not waiting


@given(conversations(), policies)
def test_what_is_sent_has_no_orphans_keeps_its_order_and_its_newest(
    messages: list[Windowed], policy: WindowPolicy
) -> None:
    kept = keep(messages, policy)
    assert len(kept) == len(set(kept))
    assert whole([messages[index] for index in kept])
    repaired = keep(messages, ALL)
    assert kept == [index for index in repaired if index in kept]
    assert kept[-1:] == repaired[-1:], "the newest message that can be sent survives"
    heads = [index for index in kept if messages[index].role is not Role.TOOL]
    assert heads == sorted(heads)


@given(conversations(), policies)
def test_windowing_what_was_windowed_changes_nothing(messages: list[Windowed], policy: WindowPolicy) -> None:
    kept = keep(messages, policy)
    assert keep([messages[index] for index in kept], policy) == kept


@given(conversations(), st.integers(0, 6))
def test_only_the_newest_round_may_be_larger_than_the_window(messages: list[Windowed], most: int) -> None:
    kept = keep(messages, WindowPolicy(max_messages=most, keep_first_user=False))
    others = [messages[index] for index in kept if messages[index].role is not Role.SYSTEM]
    starts = [place for place, message in enumerate(others) if message.role is not Role.TOOL]
    assert len(others) <= most or not starts or len(starts) == 1


def test_half_of_what_would_be_sent_is_half_of_its_tokens() -> None:
    said = [Windowed(index, Role.USER if index % 2 == 0 else Role.ASSISTANT, 100) for index in range(8)]
    half = halved(said, WindowPolicy())
    assert half.max_tokens == 400
    assert keep(said, half) == [0, 4, 5, 6, 7], "the first user's message stays, and the newest that fit"
    assert keep(said, halved(said, half)) == [0, 6, 7]
