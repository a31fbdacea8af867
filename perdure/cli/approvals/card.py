"""An approval as a reviewer sees it: the exact arguments first, and no summary written by a model."""

import difflib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from perdure.cli.connection import Role, command, connect
from perdure.cli.terminal import (
    AsJson,
    AsName,
    fields,
    format_iso_time,
    format_time,
    say,
    say_json,
    time_left,
    time_until,
)
from perdure.core.text import escape_terminal, one_line, pretty_json, truncate
from perdure.schemas.approvals import Approval, Vote, related_words, signed_in_words, subject

_DIGEST_CHARACTERS = 16
_MAX_ARGUMENT_CHARACTERS = 8_000
"""Characters of the arguments in `show`. `--full` and every decision show all of them."""


def show_card(approval: Approval, *, full: bool) -> None:
    """Shows the whole approval, and the commands that can follow."""
    show_details(approval, full=full)
    show_arguments(approval, full=full)
    show_preview(approval)
    for line in _history_lines(approval):
        say(line)
    if approval.is_open:
        say()
        for decision in approval.allowed_decisions:
            say(f"  {_decision_command(decision, approval.id)}")
        if approval.kind == "limit":
            say(f"  {command('turns', 'raise', approval.turn_id)} --tokens N --usd X")


def show_details(approval: Approval, *, full: bool) -> None:
    """Shows the request, its requester, its reviewers and its deadline."""
    is_pending = approval.is_open
    pairs: list[tuple[str, object]] = [
        ("approval", approval.id),
        ("status", approval.status),
        ("outdated", _outdated_text(approval)),
        *_change_fields(approval),
        ("checkpoint", approval.checkpoint),
        ("why", approval.reason),
        ("tool", f"{subject(approval)} ({approval.effect}, risk {approval.risk}) of agent {approval.agent}"),
        ("description", approval.says or approval.description),
        ("requested by", f"{approval.requested_by}, {format_time(approval.requested_at)}"),
        ("related", _related_text(approval)),
        ("context", approval.prompt_excerpt),
        *_message_fields(approval),
        ("rule", approval.rule),
        *(reviewer_fields(approval) if is_pending else ()),
        *(("vote", vote_text(approval, vote)) for vote in approval.votes),
        ("expires", expiry_text(approval) if is_pending else ""),
        ("held", _hold_text(approval)),
        ("changed by", str((approval.pending_edit or {}).get("by") or "")),
        *digest_fields(approval),
        ("revision", approval.revision if approval.revision > 1 else ""),
        ("turn", approval.turn_id),
        ("temporal", approval.links.get("temporal", "")),
        ("decision", _decision_text(approval)),
        ("withdrawn", _withdrawal_text(approval)),
    ]
    if full:
        fields(pairs, max_characters=None)
    else:
        fields(pairs)


def _message_fields(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yields the requester's messages since the request was opened, newest last."""
    omitted = approval.revision - 1 - len(approval.messages_since)
    if approval.messages_since and omitted:
        yield "messages since", f"{omitted} earlier ones are not shown"
    for message in approval.messages_since:
        yield "message since", f"{format_time(message.at)}: {message.text or '(erased)'}"


def show_messages(approval: Approval) -> None:
    """Shows the requester's messages since the request was opened."""
    fields([*_message_fields(approval)], max_characters=None)


def is_on_hold(approval: Approval) -> bool:
    """Returns whether the request is decided and its call is on hold."""
    return approval.ready_at is not None and approval.ready_at > datetime.now(UTC)


def status_text(approval: Approval) -> str:
    """Returns the status, and whether an outdated request was approved."""
    return f"{approval.status}, approved" if approval.outdated and not approval.is_open else approval.status


def _outdated_text(approval: Approval) -> str:
    if not approval.outdated:
        return ""
    reissue_command = command("approvals", "reissue", approval.id)
    other = "reject" if approval.is_open else "withdraw"
    return f"{approval.outdated}, so the call will not run; {other} it, or reissue it: {reissue_command}"


def _change_fields(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yields what the new version of the tool changes."""
    for name, change in (approval.changes or {}).items():
        if name == "code":
            yield "code changed", ", ".join(f"{each['place']} ({each['change']})" for each in change)
        elif name == "arguments":
            yield "arguments changed", ", ".join(_changed_values(change["before"], change["after"]))
        elif name == "parameters":
            before, after = (change[when].get("properties") or {} for when in ("before", "after"))
            changed = ", ".join(_changed_names(before, after)) or "not the properties"
            yield "parameters changed", f"{changed}; all values are in the output of --json"
        else:
            yield f"{name} changed", f"{change['before']} -> {change['after']}"


def _changed_names(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name) or name not in before]


def _changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yields each changed argument with its values, such as `note: none -> "by mail"`."""
    for name in _changed_names(before, after):
        values = (json.dumps(args[name], ensure_ascii=False) if name in args else "none" for args in (before, after))
        yield f"{name}: {' -> '.join(values)}"


def _related_text(approval: Approval) -> str:
    """Returns why the caller cannot approve, if their relation to the requester is the reason."""
    words = related_words(approval.related)
    can_reject = "reject" in approval.allowed_decisions and approval.kind != "limit" and not approval.outdated
    cannot = can_reject and "approve" not in approval.allowed_decisions
    return f"{words}; you can reject it, and an unrelated reviewer can approve it" if words and cannot else words


def _hold_text(approval: Approval) -> str:
    if not is_on_hold(approval):
        return ""
    withdraw_command = command("approvals", "withdraw", approval.id)
    return f"until {time_until(approval.ready_at)}; to withdraw it: {withdraw_command}"


def _history_lines(approval: Approval) -> Iterator[str]:
    for entry in approval.history:
        by = f" by {one_line(str(entry['by']))}" if entry.get("by") else ""
        when, event = format_iso_time(entry.get("at")), one_line(str(entry.get("what")))
        yield f"  {when}  {event}{by}{_detail_text(entry.get('data'))}"


def _detail_text(data: object) -> str:
    """Returns the plain values of a row's data. All data is in the output of `--json`."""
    if not isinstance(data, Mapping):
        return ""
    values = {name: value for name, value in data.items() if isinstance(value, str | int | float) and value != ""}
    parts = [*(f"{name} {value}" for name, value in values.items()), signed_in_words(data)]
    text = one_line(", ".join(filter(None, parts)))
    return f" ({text})" if text else ""


def _decision_text(approval: Approval) -> str:
    decision = approval.decision or {}
    if not decision:
        return ""
    reason = decision.get("comment") or decision.get("reason_code")
    when = f", {format_time(approval.decided_at)}" if approval.decided_at else ""
    return f"{decision.get('type')} by {decision.get('by') or approval.decided_by}{when}" + (
        f": {reason}" if reason else ""
    )


def _withdrawal_text(approval: Approval) -> str:
    withdrawal = approval.withdrawal or {}
    if not withdrawal:
        return ""
    return f"by {withdrawal.get('by')}, {format_iso_time(withdrawal.get('at'))}" + (
        f": {withdrawal['comment']}" if withdrawal.get("comment") else ""
    )


def _decision_command(decision: str, approval_id: str) -> str:
    line = command("approvals", decision, approval_id)
    return line + {"reject": ' --comment "why"', "respond": ' "what to tell the agent"'}.get(decision, "")


def votes_text(approval: Approval) -> str:
    """Returns the votes and the quorum; empty if one vote is enough."""
    return f"{approval.approving}/{approval.quorum}" if approval.quorum > 1 or approval.approving > 1 else ""


def claim_text(approval: Approval) -> str:
    """Returns the claiming reviewer with the time left; empty if there is no valid claim."""
    claimed_until = approval.claimed_until
    if not approval.claimed_by or (claimed_until is not None and claimed_until <= datetime.now(UTC)):
        return ""
    return f"{approval.claimed_by} ({time_left(claimed_until)})" if claimed_until else approval.claimed_by


def reviewer_fields(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yields the lines of a card about the reviewers who can decide."""
    role = approval.reviewer_role
    names = ", ".join(approval.reviewers)
    yield "reviewers", f"{names} (with the role {role})" if names else f"users with the role {role}" if role else ""
    if approval.quorum > 1:
        yield "votes", f"{approval.approving} of {approval.quorum} required"
    yield "assigned to", approval.assignee or ""
    yield "claimed by", claim_text(approval)
    yield from _fallback_fields(approval)
    yield "escalated", format_time(approval.escalated_at)


def _fallback_fields(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yields the fallback reviewer before and after the request went to them.

    Yields nothing if the request was assigned to another reviewer instead.
    """
    fallback = approval.fallback
    if fallback is None or not fallback.reviewer:
        return
    fell_back_at = (fallback.model_extra or {}).get("fell_back_at")
    if not fell_back_at and (fallback.at is None or fallback.at > datetime.now(UTC)):
        yield "fallback", f"{fallback.reviewer}, {time_until(fallback.at)}" if fallback.at else fallback.reviewer
    elif approval.assignee == fallback.reviewer:
        yield "fallback", f"{fallback.reviewer}, since {format_iso_time(fell_back_at or fallback.at)}"
    elif not fell_back_at:
        yield "fallback", f"{fallback.reviewer}, due since {format_time(fallback.at)}"


def vote_text(approval: Approval, vote: Vote) -> str:
    """Returns one vote as text, with the reason if it does not count."""
    on_behalf = f" for {vote.delegator}" if vote.delegator and vote.delegator != vote.by else ""
    comment = f": {vote.comment}" if vote.comment else ""
    not_counted = "" if vote.counts else f"; {_why_not_counted(approval, vote)}"
    return f"{vote.decision} by {vote.by}{on_behalf}, {format_time(vote.at)}{not_counted}{comment}"


def _why_not_counted(approval: Approval, vote: Vote) -> str:
    """Returns why a vote does not count.

    Besides the named reviewers, only one other vote counts. A vote also stops counting if its reviewer loses the role.
    """
    owner = _vote_owner(vote)
    other_voters = {_vote_owner(counted) for counted in approval.votes if counted.counts} - set(approval.reviewers)
    if approval.reviewers and owner not in approval.reviewers and other_voters:
        return f"not counted: {owner} is not a named reviewer; already counted: {', '.join(sorted(other_voters))}"
    # An escalation changes the role, so it can differ from the one that this vote was cast with.
    role = "role that the vote was cast with" if approval.escalated_at else f"role {approval.reviewer_role}"
    return f"not counted: {owner} no longer has the {role}"


def _vote_owner(vote: Vote) -> str:
    return vote.delegator or vote.by


def expiry_text(approval: Approval) -> str:
    """Returns the deadline and what happens then."""
    will_escalate = approval.on_timeout == "escalate" and approval.escalated_at is None
    consequence = "then it is escalated" if will_escalate else "then it counts as denied"
    return f"{time_until(approval.expires_at)}, {consequence}"


def show_arguments(approval: Approval, *, full: bool = True) -> None:
    """Shows exactly what will run. At a checkpoint it shows the result, and the call that produced it."""
    if approval.kind == "checkpoint":
        say(f"{approval.checkpoint}: the result of {approval.tool}:" if approval.tool else f"{approval.checkpoint}:")
        _print_block(
            escape_terminal(approval.result) if isinstance(approval.result, str) else pretty_json(approval.result), full
        )
        if not approval.tool:
            return
    before, after = _arguments_before_and_after(approval)
    say("exact arguments:" if before is None else "exact arguments, as changed by a reviewer:")
    _print_block(pretty_json(after), full)
    if before is not None:
        say("changes:")
        _print_block("\n".join(differences(before, after)), full)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yields a unified diff of two sets of arguments, line by line. Empty if they are equal."""
    lines = difflib.unified_diff(
        pretty_json(before).splitlines(), pretty_json(after).splitlines(), "as requested", "as changed", lineterm=""
    )
    yield from lines


def digest_fields(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yields the digest of the arguments that are shown, and that of the request if a decision changed them."""
    decided = str((approval.decision or {}).get("digest") or "")
    if not decided or decided == approval.digest:
        yield "digest", _short_digest(approval.digest)
        return
    yield "current digest", _short_digest(decided)
    yield "requested digest", _short_digest(approval.digest)


def _short_digest(digest: str) -> str:
    return f"{digest[:_DIGEST_CHARACTERS]}…" if digest else ""


def _arguments_before_and_after(approval: Approval) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Returns the requested arguments, if a reviewer has changed them, and the arguments that run."""
    edit = approval.pending_edit or {}
    if isinstance(edit.get("args_before"), dict):
        return edit["args_before"], approval.args
    decided = (approval.decision or {}).get("args")
    return (approval.args, decided) if isinstance(decided, dict) else (None, approval.args)


def _print_block(text: str, full: bool) -> None:
    shown = text if full else truncate(text, _MAX_ARGUMENT_CHARACTERS)
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
    result = approval.preview
    if not result:
        return
    if result.get("fault"):
        say(f"no preview: {result['fault']} ({format_iso_time(result.get('at'))})")
        return
    before, after = (pretty_json(result.get(name)).splitlines() for name in ("before", "after"))
    is_unchanged = before == after
    say(f"predicted changes, read at {format_iso_time(result.get('at'))}:" + (" none found" if is_unchanged else ""))
    for line in difflib.unified_diff(before, after, "now", "after the call", lineterm=""):
        say(f"  {line}")
    if not result.get("is_current", True):
        say("  (the arguments have changed since this preview)")
