"""An approval as a reviewer sees it: the exact arguments first of all, and no summary that a model wrote."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from cli.connection import command
from cli.frozen_call import digests, show_arguments
from cli.printable import one_line
from cli.screen import fields, left, moment, say, until
from perdure.client import Approval, Vote


def show_card(approval: Approval, *, full: bool) -> None:
    """All of it, and what may be typed next."""
    show_facts(approval, full=full)
    show_arguments(approval, full=full)
    for line in _history(approval):
        say(line)
    if approval.status == "pending":
        say()
        for decision in approval.allowed_decisions:
            say(f"  {_line(decision, approval.id)}")
        if approval.kind == "limit":
            say(f"  {command('turns', 'raise', approval.turn_id)} --tokens N --usd X")


def show_facts(approval: Approval, *, full: bool) -> None:
    """What it is, who asked, who may decide and by when."""
    waits = approval.status == "pending"
    pairs: list[tuple[str, object]] = [
        ("approval", approval.id),
        ("status", approval.status),
        ("checkpoint", approval.checkpoint),
        ("why", approval.reason),
        ("tool", f"{subject(approval)} ({approval.effect}, risk {approval.risk}) of agent {approval.agent}"),
        ("what it does", approval.description),
        ("asked by", f"{approval.requested_by}, {moment(approval.requested_at)}"),
        ("who had said", approval.prompt_excerpt),
        ("rule", approval.rule),
        *(_deciders(approval) if waits else ()),
        *(("vote", _vote(approval, vote)) for vote in approval.votes),
        ("expires", _expiry(approval) if waits else ""),
        ("held", _hold(approval)),
        ("changed by", str((approval.revision or {}).get("by") or "")),
        *digests(approval),
        ("turn", approval.turn_id),
        ("temporal", approval.links.get("temporal", "")),
        ("decision", _decision(approval)),
        ("withdrawn", _withdrawal(approval)),
    ]
    if full:
        fields(pairs, most=None)
    else:
        fields(pairs)


def subject(approval: Approval) -> str:
    """What is decided on, in a word or two."""
    if approval.kind == "limit":
        return "the turn's limit"
    return f"{approval.tool or 'the answer'} at {approval.checkpoint}" if approval.checkpoint else approval.tool


def votes_of(approval: Approval) -> str:
    """How many of how many; nothing where one is enough."""
    return f"{approval.approving}/{approval.quorum}" if approval.quorum > 1 or approval.approving > 1 else ""


def claimed(approval: Approval) -> str:
    """Who has claimed it and for how long still; nothing where nobody has, or the claim has lapsed."""
    until = approval.claimed_until
    if not approval.claimed_by or (until is not None and until <= datetime.now(UTC)):
        return ""
    return f"{approval.claimed_by} ({left(until)})" if until else approval.claimed_by


def held(approval: Approval) -> bool:
    """Whether it is decided, and the call has to wait."""
    return approval.ready_at is not None and approval.ready_at > datetime.now(UTC)


def time_told(at: Any) -> str:
    """A time that came as text, as a person reads it."""
    try:
        return moment(datetime.fromisoformat(str(at)))
    except ValueError:
        return one_line(str(at))


def _deciders(approval: Approval) -> Iterator[tuple[str, str]]:
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


def _vote(approval: Approval, vote: Vote) -> str:
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


def _expiry(approval: Approval) -> str:
    escalates = approval.on_timeout == "escalate" and approval.escalated_at is None
    then = "then another role decides" if escalates else "then it counts as denied"
    return f"{until(approval.expires_at)}, {then}"


def _hold(approval: Approval) -> str:
    if not held(approval):
        return ""
    back = command("approvals", "withdraw", approval.id)
    return f"until {until(approval.ready_at)}; to take it back: {back}"


def _history(approval: Approval) -> Iterator[str]:
    for entry in approval.history:
        by = f" by {one_line(str(entry['by']))}" if entry.get("by") else ""
        yield f"  {time_told(entry.get('at'))}  {one_line(str(entry.get('what')))}{by}{_detail(entry.get('data'))}"


def _detail(data: object) -> str:
    """The plain values of a row's data; the whole of it is for `--json`."""
    if not isinstance(data, Mapping):
        return ""
    plain = {name: value for name, value in data.items() if isinstance(value, str | int | float) and value != ""}
    told = one_line(", ".join(f"{name} {value}" for name, value in plain.items()))
    return f" ({told})" if told else ""


def _decision(approval: Approval) -> str:
    decision = approval.decision or {}
    if not decision:
        return ""
    said = decision.get("comment") or decision.get("reason_code")
    when = f", {moment(approval.decided_at)}" if approval.decided_at else ""
    return f"{decision.get('type')} by {decision.get('by') or approval.decided_by}{when}" + (
        f": {said}" if said else ""
    )


def _withdrawal(approval: Approval) -> str:
    told = approval.withdrawal or {}
    if not told:
        return ""
    return f"by {told.get('by')}, {time_told(told.get('at'))}" + (f": {told['comment']}" if told.get("comment") else "")


def _line(decision: str, approval_id: str) -> str:
    words = command("approvals", decision, approval_id)
    return words + {"reject": ' --comment "why"', "respond": ' "what to tell the agent"'}.get(decision, "")
