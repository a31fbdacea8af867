"""An agent's `approvals:`: what can never be met is refused, and its digest names what a decision relies on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.approvals import ApprovalPolicy


@pytest.mark.parametrize(
    "wrong",
    [
        {"quorum": 0},
        {"quorum": 21},
        {"reviewers": ["ann"], "quorum": 2},
        {"reviewers": ["ann", "bob"], "quorum_high_risk": 3},
        {"reviewers": ["ann", "ann"]},
        {"hold_seconds": -1},
        {"fallback_after_seconds": 0},
        {"on_timeout": "shrug"},
        {"reject_reasons": [""]},
        {"reject_reasons": ["x" * 101]},
        {"escalation": "admin"},
    ],
)
def test_a_policy_that_cannot_be_met_or_read_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ApprovalPolicy.model_validate(wrong)


def test_what_is_not_said_is_not_in_an_agents_record_so_that_versions_stay() -> None:
    agent = AgentDefinition.model_validate({"id": "desk", "title": "Desk", "topology": "skill_pipeline"})
    recorded = {"expires_seconds": 604_800, "reviewer_role": "reviewer", "allow_self_approval": False}
    assert agent.model_dump(mode="json")["approvals"] == recorded


def test_what_is_said_is_read_back_as_it_was() -> None:
    said = ApprovalPolicy.model_validate(
        {
            "reviewers": ["ann", "bob"],
            "quorum": 2,
            "quorum_high_risk": 1,
            "on_timeout": "escalate",
            "escalation_role": "reviewer",
            "fallback_reviewer": "carl",
            "fallback_after_seconds": 60,
            "hold_seconds": 30,
            "reject_reasons": ["too much"],
        }
    )
    assert ApprovalPolicy.model_validate(said.model_dump(mode="json")) == said
    assert (said.quorum_for("high"), said.quorum_for("low")) == (1, 2)
    assert (said.hold_for("high"), said.hold_for("medium")) == (30, 0)


BESIDE = {"expires_seconds": 5, "fallback_reviewer": "x", "fallback_after_seconds": 5, "reject_reasons": ["no"]}
RELIED_ON = {
    "reviewer_role": "admin",
    "allow_self_approval": True,
    "reviewers": ["ann", "bob", "carl"],
    "quorum": 2,
    "quorum_high_risk": 1,
    "hold_seconds": 5,
    "escalation_role": "reviewer",
}


@given(st.sets(st.sampled_from(sorted(RELIED_ON))), st.sets(st.sampled_from(sorted(BESIDE))))
def test_the_digest_changes_with_who_decides_and_with_nothing_else(changed: set[str], beside: set[str]) -> None:
    given_fields = {name: RELIED_ON[name] for name in changed} | {name: BESIDE[name] for name in beside}
    same = ApprovalPolicy.model_validate(given_fields).digest == ApprovalPolicy().digest
    assert same is (not changed)
