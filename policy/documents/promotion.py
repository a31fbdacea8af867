"""Deciding on a promotion: what one person or an agent wrote becomes everybody's by another's word (S2-72)."""

from collections.abc import Collection
from enum import StrEnum

from contracts.errors import CallerError
from policy.credentials import Credential
from policy.documents.writing import ADMIN


class PromotionState(StrEnum):
    """Pending, or decided for good."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    """What was proposed has been redacted meanwhile."""


class PromotionDecision(StrEnum):
    """What an administrator says."""

    APPROVE = "approve"
    REJECT = "reject"


def decision_refusal(
    *,
    decider: str,
    roles: Collection[str],
    proposer: str,
    state: PromotionState,
    seen_sha256: str,
    sha256: str,
    decision: PromotionDecision,
    comment: str,
    credential: Credential,
) -> CallerError | None:
    """Why this decision does not count; in the contract's order: 403, 409 decided, 409 other text, 422."""
    if ADMIN not in roles:
        return CallerError("role_required", "this needs the role admin", {"role": ADMIN}, status=403)
    if decider == proposer:
        return CallerError("own_promotion", "You proposed this, so another administrator decides on it", status=403)
    if credential.acts_for(proposer, is_admin=True):
        why = "The proposer may have created the token or session that you use, so it cannot decide on this promotion"
        return CallerError("own_promotion", why, {"reason": "credential_of_proposer"}, status=403)
    if state is not PromotionState.PENDING:
        said = f"this promotion is {state.value} already"
        return CallerError("promotion_decided", said, {"status": state.value}, status=409)
    if seen_sha256 != sha256:
        return CallerError("memory_conflict", "this is not the text that you read", {"sha256": sha256}, status=409)
    if decision is PromotionDecision.REJECT and not comment.strip():
        return CallerError("comment_required", "say why it is rejected")
    return None
