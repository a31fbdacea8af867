"""An approval as a reviewer sees it: the exact arguments first of all, and no summary that a model wrote."""

import difflib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from cli.connection import command
from cli.printable import cut, one_line, pretty_json, printable
from cli.screen import fields, left, moment, say
from perdure.client import Approval, Vote

_DIGEST_SHOWN = 16
_MOST_CHARACTERS = 8_000
"""Of the arguments in `show`; `--full`, and every decision, shows all of them."""


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
        *(("vote", _vote(vote)) for vote in approval.votes),
        ("expires", _expiry(approval) if waits else ""),
        ("held", _hold(approval)),
        ("changed by", str((approval.revision or {}).get("by") or "")),
        ("digest", f"{approval.digest[:_DIGEST_SHOWN]}…" if approval.digest else ""),
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


def show_arguments(approval: Approval, *, full: bool = True) -> None:
    """Exactly what will run; at a checkpoint what came of it, and what it was made from."""
    if approval.kind == "checkpoint":
        say(f"{approval.checkpoint}: the result of {approval.tool}:" if approval.tool else f"{approval.checkpoint}:")
        _block(printable(approval.result) if isinstance(approval.result, str) else pretty_json(approval.result), full)
        if not approval.tool:
            return
    before, after = _changed(approval)
    say("exact arguments:" if before is None else "exact arguments, as a reviewer has changed them:")
    _block(pretty_json(after), full)
    if before is not None:
        say("what was changed:")
        _block("\n".join(differences(before, after)), full)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """A unified diff of two sets of arguments, one line after the other; none where they are equal."""
    lines = difflib.unified_diff(
        pretty_json(before).splitlines(), pretty_json(after).splitlines(), "as asked for", "as changed", lineterm=""
    )
    yield from lines


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


def _changed(approval: Approval) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """What was asked for, where a reviewer has changed it, and what runs."""
    revision = approval.revision or {}
    if isinstance(revision.get("args_before"), dict):
        return revision["args_before"], approval.args
    decided = (approval.decision or {}).get("args")
    return (approval.args, decided) if isinstance(decided, dict) else (None, approval.args)


def _deciders(approval: Approval) -> Iterator[tuple[str, str]]:
    role = approval.reviewer_role
    named = ", ".join(approval.reviewers)
    yield "may decide", f"{named} (with the role {role})" if named else f"whoever has the role {role}" if role else ""
    if approval.quorum > 1:
        yield "votes", f"{approval.approving} of {approval.quorum} that are needed"
    yield "on the list of", approval.assignee or ""
    yield "claimed by", claimed(approval)
    fallback = approval.fallback
    if fallback is not None and fallback.reviewer:
        yield "then goes to", f"{fallback.reviewer}, {moment(fallback.at)} (in {left(fallback.at)})"
    yield "escalated", moment(approval.escalated_at)


def _vote(vote: Vote) -> str:
    seat = f" for {vote.seat}" if vote.seat and vote.seat != vote.by else ""
    return f"{vote.decision} by {vote.by}{seat}, {moment(vote.at)}" + (f": {vote.comment}" if vote.comment else "")


def _expiry(approval: Approval) -> str:
    escalates = approval.on_timeout == "escalate" and approval.escalated_at is None
    then = "then another role decides" if escalates else "then it counts as denied"
    return f"{moment(approval.expires_at)} (in {left(approval.expires_at)}), {then}"


def _hold(approval: Approval) -> str:
    if not held(approval):
        return ""
    back = command("approvals", "withdraw", approval.id)
    return f"until {moment(approval.ready_at)} (in {left(approval.ready_at)}); to take it back: {back}"


def _block(text: str, full: bool) -> None:
    shown = text if full else cut(text, _MOST_CHARACTERS)
    for line in shown.splitlines():
        say(f"  {line}")
    if len(shown) < len(text):
        say("  (--full shows all of it, and so does every decision)")


def _history(approval: Approval) -> Iterator[str]:
    for entry in approval.history:
        by = f" by {one_line(str(entry['by']))}" if entry.get("by") else ""
        yield f"  {_time(entry.get('at'))}  {one_line(str(entry.get('what')))}{by}{_detail(entry.get('data'))}"


def _detail(data: object) -> str:
    """The plain values of a row's data; the whole of it is for `--json`."""
    if not isinstance(data, Mapping):
        return ""
    plain = {name: value for name, value in data.items() if isinstance(value, str | int | float) and value != ""}
    told = one_line(", ".join(f"{name} {value}" for name, value in plain.items()))
    return f" ({told})" if told else ""


def _time(at: Any) -> str:
    try:
        return moment(datetime.fromisoformat(str(at)))
    except ValueError:
        return one_line(str(at))


def _decision(approval: Approval) -> str:
    decision = approval.decision or {}
    if not decision:
        return ""
    said = decision.get("comment") or decision.get("reason_code")
    when = f", {moment(approval.decided_at)}" if approval.decided_at else ""
    return f"{decision.get('type')} by {decision.get('by')}{when}" + (f": {said}" if said else "")


def _withdrawal(approval: Approval) -> str:
    told = approval.withdrawal or {}
    if not told:
        return ""
    return f"by {told.get('by')}, {_time(told.get('at'))}" + (f": {told['comment']}" if told.get("comment") else "")


def _line(decision: str, approval_id: str) -> str:
    words = command("approvals", decision, approval_id)
    return words + {"reject": ' --comment "why"', "respond": ' "what to tell the agent"'}.get(decision, "")
