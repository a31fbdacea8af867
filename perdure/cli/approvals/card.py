"""An approval as a reviewer sees it: the exact arguments first, and no summary written by a model."""

import difflib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from perdure.cli.connection import Role, command, connect
from perdure.cli.terminal import AsJson, AsName, fields, left, moment, say, say_json, time_text, until
from perdure.core.text import escape_terminal, one_line, pretty_json, truncate
from perdure.schemas.approvals import Approval, Vote, signed_in_words, subject


def show_card(approval: Approval, *, full: bool) -> None:
    """Shows the whole approval, and the commands that can follow."""
    show_facts(approval, full=full)
    show_arguments(approval, full=full)
    show_preview(approval)
    for line in _history(approval):
        say(line)
    if approval.status == "pending":
        say()
        for decision in approval.allowed_decisions:
            say(f"  {_line(decision, approval.id)}")
        if approval.kind == "limit":
            say(f"  {command('turns', 'raise', approval.turn_id)} --tokens N --usd X")


def show_facts(approval: Approval, *, full: bool) -> None:
    """Shows the request, its requester, its reviewers and its deadline."""
    waits = approval.status == "pending"
    pairs: list[tuple[str, object]] = [
        ("approval", approval.id),
        ("status", approval.status),
        ("outdated", _outdated(approval)),
        ("checkpoint", approval.checkpoint),
        ("why", approval.reason),
        ("tool", f"{subject(approval)} ({approval.effect}, risk {approval.risk}) of agent {approval.agent}"),
        ("description", approval.says or approval.description),
        ("requested by", f"{approval.requested_by}, {moment(approval.requested_at)}"),
        ("context", approval.prompt_excerpt),
        ("rule", approval.rule),
        *(deciders(approval) if waits else ()),
        *(("vote", vote_text(approval, vote)) for vote in approval.votes),
        ("expires", expiry(approval) if waits else ""),
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


def held(approval: Approval) -> bool:
    """Returns whether the request is decided and its call is on hold."""
    return approval.ready_at is not None and approval.ready_at > datetime.now(UTC)


def standing(approval: Approval) -> str:
    """Returns the status, and whether the request is outdated."""
    return f"{approval.status}, outdated" if approval.outdated else approval.status


def _outdated(approval: Approval) -> str:
    if not approval.outdated:
        return ""
    then = "reject it, so that the agent can ask again" if approval.status == "pending" else "the agent must ask again"
    return f"{approval.outdated}, so the call will not run; {then}"


def _hold(approval: Approval) -> str:
    if not held(approval):
        return ""
    back = command("approvals", "withdraw", approval.id)
    return f"until {until(approval.ready_at)}; to withdraw it: {back}"


def _history(approval: Approval) -> Iterator[str]:
    for entry in approval.history:
        by = f" by {one_line(str(entry['by']))}" if entry.get("by") else ""
        yield f"  {time_text(entry.get('at'))}  {one_line(str(entry.get('what')))}{by}{_detail(entry.get('data'))}"


def _detail(data: object) -> str:
    """Returns the plain values of a row's data. All data is in the output of `--json`."""
    if not isinstance(data, Mapping):
        return ""
    plain = {name: value for name, value in data.items() if isinstance(value, str | int | float) and value != ""}
    parts = [*(f"{name} {value}" for name, value in plain.items()), signed_in_words(data)]
    text = one_line(", ".join(filter(None, parts)))
    return f" ({text})" if text else ""


def _decision(approval: Approval) -> str:
    decision = approval.decision or {}
    if not decision:
        return ""
    reason = decision.get("comment") or decision.get("reason_code")
    when = f", {moment(approval.decided_at)}" if approval.decided_at else ""
    return f"{decision.get('type')} by {decision.get('by') or approval.decided_by}{when}" + (
        f": {reason}" if reason else ""
    )


def _withdrawal(approval: Approval) -> str:
    withdrawal = approval.withdrawal or {}
    if not withdrawal:
        return ""
    return f"by {withdrawal.get('by')}, {time_text(withdrawal.get('at'))}" + (
        f": {withdrawal['comment']}" if withdrawal.get("comment") else ""
    )


def _line(decision: str, approval_id: str) -> str:
    words = command("approvals", decision, approval_id)
    return words + {"reject": ' --comment "why"', "respond": ' "what to tell the agent"'}.get(decision, "")


def votes_of(approval: Approval) -> str:
    """Returns the votes and the quorum; empty if one vote is enough."""
    return f"{approval.approving}/{approval.quorum}" if approval.quorum > 1 or approval.approving > 1 else ""


def claimed(approval: Approval) -> str:
    """Returns the claiming reviewer with the time left; empty if there is no valid claim."""
    until = approval.claimed_until
    if not approval.claimed_by or (until is not None and until <= datetime.now(UTC)):
        return ""
    return f"{approval.claimed_by} ({left(until)})" if until else approval.claimed_by


def deciders(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yields the lines of a card about the reviewers who can decide."""
    role = approval.reviewer_role
    named = ", ".join(approval.reviewers)
    yield "reviewers", f"{named} (with the role {role})" if named else f"users with the role {role}" if role else ""
    if approval.quorum > 1:
        yield "votes", f"{approval.approving} of {approval.quorum} required"
    yield "assigned to", approval.assignee or ""
    yield "claimed by", claimed(approval)
    yield from _handed_on(approval)
    yield "escalated", moment(approval.escalated_at)


def _handed_on(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yields the fallback reviewer before and after the request went to them.

    Yields nothing if the request was assigned to another reviewer instead.
    """
    fallback = approval.fallback
    if fallback is None or not fallback.reviewer:
        return
    gone_at = (fallback.model_extra or {}).get("fell_back_at")
    if not gone_at and (fallback.at is None or fallback.at > datetime.now(UTC)):
        yield "fallback", f"{fallback.reviewer}, {until(fallback.at)}" if fallback.at else fallback.reviewer
    elif approval.assignee == fallback.reviewer:
        yield "fallback", f"{fallback.reviewer}, since {time_text(gone_at or fallback.at)}"
    elif not gone_at:
        yield "fallback", f"{fallback.reviewer}, due since {moment(fallback.at)}"


def vote_text(approval: Approval, vote: Vote) -> str:
    """Returns one vote as text, with the reason if it does not count."""
    on_behalf = f" for {vote.delegator}" if vote.delegator and vote.delegator != vote.by else ""
    comment = f": {vote.comment}" if vote.comment else ""
    lost = "" if vote.counts else f"; {_why_not_counted(approval, vote)}"
    return f"{vote.decision} by {vote.by}{on_behalf}, {moment(vote.at)}{lost}{comment}"


def _why_not_counted(approval: Approval, vote: Vote) -> str:
    """Returns why a vote does not count.

    Besides the named reviewers, only one other vote counts. A vote also stops counting if its reviewer loses the role.
    """
    owner = _delegation_text(vote)
    beside = {_delegation_text(each) for each in approval.votes if each.counts} - set(approval.reviewers)
    if approval.reviewers and owner not in approval.reviewers and beside:
        return f"not counted: {owner} is not a named reviewer; already counted: {', '.join(sorted(beside))}"
    # An escalation changes the role, so it can differ from the one that this vote was cast with.
    role = "role that the vote was cast with" if approval.escalated_at else f"role {approval.reviewer_role}"
    return f"not counted: {owner} no longer has the {role}"


def _delegation_text(vote: Vote) -> str:
    return vote.delegator or vote.by


def expiry(approval: Approval) -> str:
    """Returns the deadline and what happens then."""
    escalates = approval.on_timeout == "escalate" and approval.escalated_at is None
    then = "then it is escalated" if escalates else "then it counts as denied"
    return f"{until(approval.expires_at)}, {then}"


_DIGEST_SHOWN = 16
_MOST_CHARACTERS = 8_000
"""Characters of the arguments in `show`. `--full` and every decision show all of them."""


def show_arguments(approval: Approval, *, full: bool = True) -> None:
    """Shows exactly what will run. At a checkpoint it shows the result, and the call that produced it."""
    if approval.kind == "checkpoint":
        say(f"{approval.checkpoint}: the result of {approval.tool}:" if approval.tool else f"{approval.checkpoint}:")
        _block(
            escape_terminal(approval.result) if isinstance(approval.result, str) else pretty_json(approval.result), full
        )
        if not approval.tool:
            return
    before, after = _changed(approval)
    say("exact arguments:" if before is None else "exact arguments, as changed by a reviewer:")
    _block(pretty_json(after), full)
    if before is not None:
        say("changes:")
        _block("\n".join(differences(before, after)), full)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yields a unified diff of two sets of arguments, line by line. Empty if they are equal."""
    lines = difflib.unified_diff(
        pretty_json(before).splitlines(), pretty_json(after).splitlines(), "as requested", "as changed", lineterm=""
    )
    yield from lines


def digests(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yields the digest of the arguments that are shown, and that of the request if a decision changed them."""
    decided = str((approval.decision or {}).get("digest") or "")
    if not decided or decided == approval.digest:
        yield "digest", _short(approval.digest)
        return
    yield "current digest", _short(decided)
    yield "requested digest", _short(approval.digest)


def _short(digest: str) -> str:
    return f"{digest[:_DIGEST_SHOWN]}…" if digest else ""


def _changed(approval: Approval) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Returns the requested arguments, if a reviewer has changed them, and the arguments that run."""
    revision = approval.revision or {}
    if isinstance(revision.get("args_before"), dict):
        return revision["args_before"], approval.args
    decided = (approval.decision or {}).get("args")
    return (approval.args, decided) if isinstance(decided, dict) else (None, approval.args)


def _block(text: str, full: bool) -> None:
    shown = text if full else truncate(text, _MOST_CHARACTERS)
    for line in shown.splitlines():
        say(f"  {line}")
    if len(shown) < len(text):
        say("  (shortened; --full and every decision show everything)")


ApprovalId = Annotated[str, typer.Argument(metavar="APPROVAL", help="The approval's id.")]


def preview(approval_id: ApprovalId, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Preview what the call would change. The tool's preview only reads. You can decide without it."""
    with connect(Role.REVIEWER, as_name) as client:
        approval = client.approvals.preview(approval_id)
    if as_json:
        say_json(approval.preview)
    else:
        show_preview(approval)


def show_preview(approval: Approval) -> None:
    """Shows the preview or the reason of its failure. Shows nothing if there is no preview."""
    found = approval.preview
    if not found:
        return
    if found.get("fault"):
        say(f"no preview: {found['fault']} ({time_text(found.get('at'))})")
        return
    before, after = (pretty_json(found.get(name)).splitlines() for name in ("before", "after"))
    same = before == after
    say(f"predicted changes, read at {time_text(found.get('at'))}:" + (" none found" if same else ""))
    for line in difflib.unified_diff(before, after, "now", "after the call", lineterm=""):
        say(f"  {line}")
    if not found.get("is_current", True):
        say("  (the arguments have changed since this preview)")
