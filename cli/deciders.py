"""Who decides on an approval, and by when: roles and names, votes, claims, whose it becomes."""

from collections.abc import Iterator
from datetime import UTC, datetime

from cli.screen import left, moment, time_told, until
from perdure.client import Approval, Vote


def votes_of(approval: Approval) -> str:
    """How many of how many; nothing where one is enough."""
    return f"{approval.approving}/{approval.quorum}" if approval.quorum > 1 or approval.approving > 1 else ""


def claimed(approval: Approval) -> str:
    """Who has claimed it and for how long still; nothing where nobody has, or the claim has lapsed."""
    until = approval.claimed_until
    if not approval.claimed_by or (until is not None and until <= datetime.now(UTC)):
        return ""
    return f"{approval.claimed_by} ({left(until)})" if until else approval.claimed_by


def deciders(approval: Approval) -> Iterator[tuple[str, str]]:
    """Who may decide, as lines of a card."""
    role = approval.reviewer_role
    named = ", ".join(approval.reviewers)
    yield "may decide", f"{named} (with the role {role})" if named else f"whoever has the role {role}" if role else ""
    if approval.quorum > 1:
        yield "votes", f"{approval.approving} of {approval.quorum} that are needed"
    yield "on the list of", approval.assignee or ""
    yield "claimed by", claimed(approval)
    yield from _handed_on(approval)
    yield "escalated", moment(approval.escalated_at)


def _handed_on(approval: Approval) -> Iterator[tuple[str, str]]:
    """Whose it becomes, or whose it has become; nothing where it went somewhere else instead."""
    fallback = approval.fallback
    if fallback is None or not fallback.reviewer:
        return
    gone_at = (fallback.model_extra or {}).get("fell_back_at")
    if not gone_at and (fallback.at is None or fallback.at > datetime.now(UTC)):
        yield "then goes to", f"{fallback.reviewer}, {until(fallback.at)}" if fallback.at else fallback.reviewer
    elif approval.assignee == fallback.reviewer:
        yield "fell back", f"since {time_told(gone_at or fallback.at)}, with {fallback.reviewer}"
    elif not gone_at:
        yield "then goes to", f"{fallback.reviewer}, due since {moment(fallback.at)}"


def vote_told(approval: Approval, vote: Vote) -> str:
    """One vote, and why it does not count, where it does not."""
    seat = f" for {vote.seat}" if vote.seat and vote.seat != vote.by else ""
    said = f": {vote.comment}" if vote.comment else ""
    lost = "" if vote.counts else f"; {_why_not_counted(approval, vote)}"
    return f"{vote.decision} by {vote.by}{seat}, {moment(vote.at)}{lost}{said}"


def _why_not_counted(approval: Approval, vote: Vote) -> str:
    """Of the seats beside the named reviewers' one alone counts; any other vote is lost with its seat's role."""
    owner = _seat(vote)
    beside = {_seat(each) for each in approval.votes if each.counts} - set(approval.reviewers)
    if approval.reviewers and owner not in approval.reviewers and beside:
        return f"does not count: {owner} is none of the named reviewers, and {', '.join(sorted(beside))} counts already"
    # Once it is escalated the role is another than the one that this vote was given by.
    role = "role that it was given by" if approval.escalated_at else f"role {approval.reviewer_role}"
    return f"does not count: {owner} has not the {role} any more"


def _seat(vote: Vote) -> str:
    return vote.seat or vote.by


def expiry(approval: Approval) -> str:
    """Its deadline, and what comes then."""
    escalates = approval.on_timeout == "escalate" and approval.escalated_at is None
    then = "then another role decides" if escalates else "then it counts as denied"
    return f"{until(approval.expires_at)}, {then}"
