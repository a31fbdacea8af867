"""What of a gated round may start after a look at its records, and what waits on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.approvals import RequestKind, RequestRef, Verdict, VerdictState
from perdure.core.approvals.gates import ALLOWING, OPEN_STATES, effect_request, open_requests, startable

V = VerdictState
A, B, LOOK = "t1.0", "t1.1", "t1.2"
ROUND = (A, B, LOOK)
"""Two gated calls and one that needs nobody."""


def request(call_id: str) -> RequestRef:
    """The approval of a call."""
    return RequestRef(request_id=f"r-{call_id}", call_id=call_id, tool="pay")


def verdict(call_id: str, state: VerdictState) -> Verdict:
    """What its record says."""
    return Verdict(request_id=f"r-{call_id}", call_id=call_id, state=state)


LOOKS = [
    # name, verdicts of A and B, begun before, ungated first, what starts
    ("nobody has decided", (V.PENDING, V.PENDING), (), False, ()),
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
    ("states", "begun", "ungated_first", "starts"), [row[1:] for row in LOOKS], ids=[row[0] for row in LOOKS]
)
def test_a_look_says_which_calls_start(
    states: tuple[VerdictState | None, ...], begun: tuple[str, ...], ungated_first: bool, starts: tuple[str, ...]
) -> None:
    asked = [(call, state) for call, state in zip((A, B), states, strict=True) if state is not None]
    requests = [request(call) for call, _ in asked]
    verdicts = [verdict(call, state) for call, state in asked]
    assert startable(ROUND, requests, verdicts, begun=begun, ungated_first=ungated_first) == starts


def test_an_answer_that_is_not_one_verdict_for_each_request_frees_nothing() -> None:
    requests = [request(A), request(B)]
    for read in (
        [verdict(A, V.APPROVED)],
        [],
        [verdict(A, V.APPROVED)] * 2,
        [verdict(A, V.APPROVED), verdict("x", V.APPROVED)],
    ):
        assert open_requests(requests, read) == tuple(requests)
        assert startable(ROUND, requests, read) == ()


def test_a_call_whose_outcome_is_unknown_starts_again_once_a_person_has_said_it() -> None:
    effect = effect_request("0197f000-0000-7000-8000-000000000001", A, "post")
    assert effect.kind is RequestKind.EFFECT
    said = Verdict(request_id=effect.request_id, call_id=A, state=V.SETTLED)
    assert startable((A,), [effect], [said.model_copy(update={"state": V.PENDING})], begun=(LOOK,)) == ()
    assert startable((A,), [effect], [said]) == (A,)


def test_a_call_with_an_open_request_waits_whatever_else_was_decided_about_it() -> None:
    effect = effect_request("0197f000-0000-7000-8000-000000000001", A, "post")
    unsettled = Verdict(request_id=effect.request_id, call_id=A, state=V.PENDING)
    assert startable((A, LOOK), [request(A), effect], [verdict(A, V.APPROVED), unsettled]) == (LOOK,)


rounds = st.lists(st.sampled_from(["gated", "free"]), min_size=1, max_size=6)


@given(rounds, st.booleans(), st.data())
def test_looks_in_any_order_start_every_call_once_and_none_before_its_own_verdict(
    kinds: list[str], ungated_first: bool, data: st.DataObject
) -> None:
    calls = [f"t1.{index}" for index in range(len(kinds))]
    states = {call: V.PENDING for call, kind in zip(calls, kinds, strict=True) if kind == "gated"}
    begun: list[str] = []
    for _ in range(len(states) + 1):
        requests = [request(call) for call in calls if call in states and call not in begun]
        read = [verdict(each.call_id, states[each.call_id]) for each in requests]
        new = startable(calls, requests, read, begun=begun, ungated_first=ungated_first)
        assert list(new) == [call for call in calls if call in new], "in the round's order"
        assert not set(new) & set(begun)
        for call in new:
            assert states.get(call) not in OPEN_STATES
        begun += new
        if begun and not ungated_first:
            assert any(states.get(call) in ALLOWING for call in begun), "a verdict has freed the round"
        still = [call for call, state in states.items() if state in OPEN_STATES]
        if still:
            decided = data.draw(st.sampled_from(still))
            states[decided] = data.draw(st.sampled_from([*ALLOWING, V.REJECTED, V.EXPIRED, V.WITHDRAWN]))
    if ungated_first or any(state in ALLOWING for state in states.values()):
        assert sorted(begun) == calls, "all of it has started once all is decided"
    elif states:
        assert begun == [], "refused whole, it leaves no trace"
