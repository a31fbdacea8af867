"""An approval as a reviewer sees it: the exact arguments first of all, and no summary that a model wrote."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from cli.connection import command
from cli.deciders import deciders, expiry, vote_told
from cli.frozen_call import digests, show_arguments
from cli.preview import show_preview
from cli.screen import fields, moment, say, time_told, until
from perdure.client import Approval, signed_in_words
from policy.printable import one_line


def show_card(approval: Approval, *, full: bool) -> None:
    """All of it, and what may be typed next."""
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
    """What it is, who asked, who may decide and by when."""
    waits = approval.status == "pending"
    pairs: list[tuple[str, object]] = [
        ("approval", approval.id),
        ("status", approval.status),
        ("outdated", _outdated(approval)),
        ("checkpoint", approval.checkpoint),
        ("why", approval.reason),
        ("tool", f"{subject(approval)} ({approval.effect}, risk {approval.risk}) of agent {approval.agent}"),
        ("what it does", approval.says or approval.description),
        ("asked by", f"{approval.requested_by}, {moment(approval.requested_at)}"),
        ("who had said", approval.prompt_excerpt),
        ("rule", approval.rule),
        *(deciders(approval) if waits else ()),
        *(("vote", vote_told(approval, vote)) for vote in approval.votes),
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


def subject(approval: Approval) -> str:
    """What is decided on, in a word or two."""
    if approval.kind == "limit":
        return "the turn's limit"
    return f"{approval.tool or 'the answer'} at {approval.checkpoint}" if approval.checkpoint else approval.tool


def held(approval: Approval) -> bool:
    """Whether it is decided, and the call has to wait."""
    return approval.ready_at is not None and approval.ready_at > datetime.now(UTC)


def standing(approval: Approval) -> str:
    """Its status, and whether its call would not run any more."""
    return f"{approval.status}, outdated" if approval.outdated else approval.status


def _outdated(approval: Approval) -> str:
    if not approval.outdated:
        return ""
    then = "reject it, and the agent can ask anew" if approval.status == "pending" else "the agent must ask anew"
    return f"{approval.outdated}, so its call will not run; {then}"


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
    parts = [*(f"{name} {value}" for name, value in plain.items()), signed_in_words(data)]
    told = one_line(", ".join(filter(None, parts)))
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
