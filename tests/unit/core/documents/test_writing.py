"""Who may write where, what it is worth, and the refusals of stale and mistaken changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import CallerError
from perdure.contracts.memory import Scope, Trust
from perdure.core.identity import OWN, UNKNOWN, Credential, How
from perdure.core.memory.documents import (
    DOCUMENT_TYPES,
    Edit,
    Place,
    PromotionDecision,
    PromotionState,
    Writer,
    decision_refusal,
    evidence_refusal,
    patched,
    path_refusal,
    stale,
    trust_of,
    write_refusal,
)
from perdure.core.memory.search import entity_keys, names_in

ME, OTHER = "me", "other"
PERSON, ADMIN = Writer(ME), Writer(ME, frozenset({"admin"}))
AGENT, ADMINS_AGENT = Writer(ME, is_agent=True), Writer(ME, frozenset({"admin"}), is_agent=True)
MINE, THEIRS = Place("user_memory", Scope.USER, ME), Place("user_memory", Scope.USER, OTHER)
NOTES, SHARED = Place("conversation_memory", Scope.CONVERSATION, ME), Place("workspace_runbooks", Scope.WORKSPACE, None)


def code(error: CallerError | None) -> str | None:
    return error.code if error else None


@pytest.mark.parametrize(
    ("writer", "place", "document_type", "expected"),
    [
        (PERSON, MINE, "runbook", None),
        (PERSON, NOTES, "conversation_note", None),
        (PERSON, SHARED, "runbook", "workspace_read_only"),
        (PERSON, THEIRS, "runbook", "store_not_yours"),
        (ADMIN, SHARED, "runbook", None),
        (ADMIN, THEIRS, "user_preference", "store_not_yours"),
        (ADMIN, Place("workspace_runbooks", Scope.WORKSPACE, None, archived=True), "runbook", "store_archived"),
        (PERSON, Place("user_memory", Scope.USER, ME, archived=True), "runbook", "store_archived"),
        (PERSON, MINE, "poem", "document_type_unknown"),
        (AGENT, MINE, "user_preference", None),
        (AGENT, MINE, "runbook", "type_not_allowed"),
        (AGENT, NOTES, "runbook", None),
        (AGENT, THEIRS, "user_preference", "store_not_yours"),
        (AGENT, SHARED, "runbook", "workspace_read_only"),
        (ADMINS_AGENT, SHARED, "runbook", "workspace_read_only"),
        (Writer(None), MINE, "runbook", "memory_unauthenticated"),
        (Writer(None, frozenset({"admin"})), SHARED, "runbook", "memory_unauthenticated"),
    ],
)
def test_a_write_is_allowed_or_refused_by_this_table(
    writer: Writer, place: Place, document_type: str, expected: str | None
) -> None:
    assert code(write_refusal(writer, place, document_type)) == expected


@given(
    st.builds(
        Writer,
        st.sampled_from([None, ME]),
        st.sets(st.sampled_from(["admin", "reviewer"])).map(frozenset),
        st.booleans(),
    ),
    st.builds(Place, st.just("s"), st.sampled_from(Scope), st.sampled_from([ME, OTHER]), st.booleans()),
    st.sampled_from(DOCUMENT_TYPES),
)
def test_nobody_writes_for_another_person_and_no_agent_for_everybody(writer: Writer, place: Place, kind: str) -> None:
    if write_refusal(writer, place, kind) is None:
        assert writer.user_id == ME and not place.archived
        assert place.scope is Scope.WORKSPACE or place.owner_id == ME
        assert place.scope is not Scope.WORKSPACE or writer.is_admin


def test_what_is_written_is_worth_what_its_writer_is() -> None:
    assert trust_of(PERSON, Scope.USER) is trust_of(ADMIN, Scope.CONVERSATION) is Trust.USER_AUTHORED
    assert trust_of(ADMIN, Scope.WORKSPACE) is Trust.ADMIN_APPROVED
    assert {trust_of(ADMINS_AGENT, scope) for scope in Scope} == {Trust.AGENT_DRAFT}


def test_only_an_agent_must_say_what_its_write_rests_on() -> None:
    assert code(evidence_refusal(AGENT, " ", required=True)) == "evidence_missing"
    assert evidence_refusal(AGENT, " ", required=False) is None
    assert evidence_refusal(AGENT, "the user said so", required=True) is None
    assert evidence_refusal(PERSON, "", required=True) is None


def test_edits_are_made_in_turn_and_each_must_fit_exactly_once() -> None:
    assert patched("one two", [Edit("one", "1"), Edit("1 two", "12")]) == "12"
    for text, edit, found in (("aa", Edit("a", "b"), 2), ("aa", Edit("x", "b"), 0), ("aa", Edit("", "b"), 0)):
        with pytest.raises(CallerError) as refused:
            patched(text, [edit])
        assert (refused.value.code, refused.value.details) == ("patch_mismatch", {"edit": 0, "found": found})


def test_a_change_of_another_version_is_a_conflict_that_names_the_one_there_is() -> None:
    refused = stale("a", "b")
    assert refused is not None and (refused.code, refused.http) == ("memory_conflict", 409)
    assert refused.details == {"sha256": "b"} and stale("b", "b") is None


@pytest.mark.parametrize("path", ["a", "a/b.md", "9/x_y-z.0"])
def test_a_path_is_words_between_slashes(path: str) -> None:
    assert path_refusal(path) is None


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "A", "../a", "a/../b", "a/..", "a b", "a" * 201, "a\n", "é"])
def test_what_is_no_path_is_refused(path: str) -> None:
    assert code(path_refusal(path)) == "path_invalid"


def test_names_are_what_looks_like_one() -> None:
    text = "Why is Billing-API slow in eu/west-2? See `the gate`, T_1000 and v2.1; e.g. 10.5 or plain words."
    assert names_in(text) == ("billing-api", "eu/west-2", "the gate", "t_1000", "v2.1")
    assert entity_keys(["Night  Shift", "", "x"], "and x_1") == ("night shift", "x", "x_1")
    assert len(names_in(" ".join(f"name-{n}" for n in range(99)))) == 32


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"roles": ["reviewer"]}, "role_required"),
        ({"roles": ["reviewer"], "decider": ME, "state": PromotionState.APPROVED}, "role_required"),
        ({"decider": ME, "state": PromotionState.APPROVED}, "own_promotion"),
        ({"credential": Credential(How.TOKEN, (OTHER, ME)), "state": PromotionState.APPROVED}, "own_promotion"),
        ({"credential": Credential(How.TOKEN, (UNKNOWN,))}, "own_promotion"),
        ({"credential": Credential(How.TOKEN, (OTHER,))}, None),
        ({"state": PromotionState.REJECTED, "seen_sha256": "x"}, "promotion_decided"),
        ({"state": PromotionState.WITHDRAWN}, "promotion_decided"),
        ({"seen_sha256": "x", "decision": PromotionDecision.REJECT}, "memory_conflict"),
        ({"decision": PromotionDecision.REJECT, "comment": " "}, "comment_required"),
        ({"decision": PromotionDecision.REJECT, "comment": "wrong"}, None),
    ],
)
def test_a_promotion_is_decided_on_in_the_contracts_order(change: dict[str, object], expected: str | None) -> None:
    given = {
        "decider": OTHER,
        "roles": ["admin"],
        "proposer": ME,
        "state": PromotionState.PENDING,
        "seen_sha256": "s",
        "sha256": "s",
        "decision": PromotionDecision.APPROVE,
        "comment": "",
        "credential": OWN,
    }
    assert code(decision_refusal(**{**given, **change})) == expected  # type: ignore[arg-type]
