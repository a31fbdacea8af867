"""Relations of a requester and a reviewer: who may be one person, and what that excludes."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.approvals.decisions import Decision
from perdure.core.approvals.relations import (
    Opening,
    Origin,
    Party,
    excluded_decisions,
    provider_side,
    related_refusal,
    relations_of,
)
from perdure.core.identity import UNKNOWN_CREATOR, SignInMethod

A, B, C = "ann", "bob", "cleo"
NEAR = Origin(Opening.INVITATION, invited_by=(A,), invited_near=True)
GIVEN = Origin(Opening.REGISTRATION, roles_by=(A,))
AS_ANN = Origin(Opening.INVITATION, opened_as=(A,))
UNKNOWN = Origin()


def bob(origin: Origin = UNKNOWN, *made_by: str, how: SignInMethod = SignInMethod.PASSWORD) -> Party:
    return Party(B, made_by, how, {B: origin})


def cleo(origin: Origin, *made_by: str) -> Party:
    return Party(C, made_by, origins={C: origin})


ANN = Party(A)
OIDC = SignInMethod.OIDC


@pytest.mark.parametrize(("requester", "reviewer", "expected"), [
    *((bob(), ANN, ""), (ANN, bob(), ""), (ANN, ANN, ""), (bob(), cleo(Origin()), "")),
    *((bob(NEAR), ANN, "inviter of requester"), (ANN, bob(NEAR), "inviter of reviewer")),
    *((bob(replace(NEAR, invited_near=False)), ANN, ""), (bob(replace(NEAR, invited_near=None)), ANN, "")),
    *((bob(replace(NEAR, opened=Opening.ADDED)), ANN, ""), (bob(NEAR, how=OIDC), ANN, "")),
    *((bob(GIVEN), ANN, "role_giver of requester"), (ANN, bob(GIVEN), "role_giver of reviewer")),
    *((bob(replace(GIVEN, opened=Opening.ADDED)), ANN, ""), (bob(GIVEN, how=OIDC), ANN, "")),
    *((bob(AS_ANN), ANN, "opened_as of requester"), (bob(AS_ANN, how=OIDC), ANN, "opened_as of requester")),
    *((bob(Origin(), A), ANN, "credential of requester"), (bob(Origin(), UNKNOWN_CREATOR), ANN, "")),
    (bob(Origin(), UNKNOWN_CREATOR), cleo(Origin(), UNKNOWN_CREATOR), ""),
    *((bob(Origin(), A), cleo(Origin(), A), ""), (bob(Origin(), A), cleo(NEAR), "")),
    (bob(Origin(), A), cleo(AS_ANN), "credential of requester, opened_as of reviewer"),
    (bob(AS_ANN), cleo(GIVEN), "opened_as of requester, role_giver of reviewer"),
    *((bob(NEAR), cleo(NEAR), ""), (bob(GIVEN), cleo(NEAR), "")),
    (Party(B, (C,), origins={C: AS_ANN}), ANN, "opened_as of requester"),
])  # fmt: skip
def test_who_may_be_one_person(requester: Party, reviewer: Party, expected: str) -> None:
    related = relations_of(requester, reviewer)
    assert ", ".join(f"{each.relation} of {each.of}" for each in related) == expected
    assert {each.by for each in related} <= {A}


PEOPLE = st.sampled_from([A, B, C, "dee", UNKNOWN_CREATOR])
SOME = st.lists(PEOPLE, max_size=2, unique=True).map(tuple)
ORIGINS = st.builds(Origin, st.sampled_from(Opening), SOME, SOME, st.sampled_from([None, False, True]), SOME)
PARTIES = st.builds(
    Party,
    st.sampled_from([A, B, C, "dee"]),
    SOME,
    st.sampled_from(SignInMethod),
    st.dictionaries(PEOPLE, ORIGINS, max_size=4),
)


@given(PARTIES, PARTIES)
def test_a_relation_holds_both_ways_and_needs_a_record(one: Party, other: Party) -> None:
    there, back = relations_of(one, other), relations_of(other, one)
    swapped = {"requester": "reviewer", "reviewer": "requester"}
    assert {(each.relation, each.by, each.of) for each in there} == {
        (each.relation, each.by, swapped[each.of]) for each in back
    }
    assert UNKNOWN_CREATOR not in {each.by for each in there}
    assert not relations_of(Party(one.user_id), Party(other.user_id)), "nothing is recorded"
    if one.user_id != other.user_id and other.user_id in one.created_by:
        assert there, "who made the other's credential"
    for kind, risk, is_allowed in product(("approval", "checkpoint", "limit"), ("low", "medium", "high"), (0, 1)):
        excluded = excluded_decisions(there, kind, "refund", risk, is_allowed=bool(is_allowed))
        assert not excluded & {Decision.REJECT, Decision.RESPOND}
        applies = bool(there) and risk == "high" and kind != "limit" and not is_allowed
        assert excluded == (frozenset({Decision.APPROVE, Decision.EDIT}) if applies else frozenset())


def test_the_refusal_names_each_relation_and_the_setting() -> None:
    related = relations_of(bob(Origin(), A), cleo(AS_ANN))
    refused = related_refusal(related, {A: "Ann"})
    assert (refused.code, refused.http, refused.details) == (
        "four_eyes_related",
        403,
        {
            "related": [
                {"relation": "credential", "of": "requester", "by": "Ann"},
                {"relation": "opened_as", "of": "reviewer", "by": "Ann"},
            ],
            "setting": "related_decide",
            "provider_side": "",
        },
    )
    assert not excluded_decisions(related, "checkpoint", "", "high", is_allowed=False), "an answer has no call"


@given(PARTIES, PARTIES)
def test_the_side_that_the_refusal_sends_to_a_provider_ends_the_relation_there(one: Party, other: Party) -> None:
    sides = {"requester": one, "reviewer": other}
    related = relations_of(one, other)
    if related and (side := provider_side(related)):
        sides[side] = replace(sides[side], how=SignInMethod.OIDC)
        assert not relations_of(*sides.values())


@pytest.mark.parametrize("origin", [NEAR, GIVEN])
def test_the_refusal_sends_the_invited_or_registered_side_to_a_provider(origin: Origin) -> None:
    assert provider_side(relations_of(bob(origin), ANN)) == "requester"
    assert provider_side(relations_of(ANN, cleo(origin))) == "reviewer"
    assert provider_side(relations_of(bob(origin), replace(ANN, origins={A: AS_ANN}, created_by=(B,)))) == ""
