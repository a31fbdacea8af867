"""An approval as a reviewer sees it: the exact arguments first of all, and no summary that a model wrote."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from cli.connection import command
from cli.printable import pretty_json
from cli.screen import fields, left, moment, say
from perdure.client import Approval

_DIGEST_SHOWN = 16


def show_card(approval: Approval) -> None:
    """All of it, and what may be typed next."""
    waits = approval.status == "pending"
    fields(
        [
            ("approval", approval.id),
            ("status", approval.status),
            ("tool", f"{approval.tool} ({approval.effect}, risk {approval.risk}) of agent {approval.agent}"),
            ("what it does", approval.description),
            ("asked by", f"{approval.requested_by}, {moment(approval.requested_at)}"),
            ("who had said", approval.prompt_excerpt),
            ("rule", approval.rule),
            ("expires", f"{moment(approval.expires_at)} (in {left(approval.expires_at)})" if waits else ""),
            ("digest", f"{approval.digest[:_DIGEST_SHOWN]}…" if approval.digest else ""),
            ("turn", approval.turn_id),
            ("temporal", approval.links.get("temporal", "")),
            ("decision", _decision(approval)),
        ]
    )
    show_arguments(approval)
    for entry in approval.history:
        say(f"  {entry.get('at')}  {entry.get('what')}" + (f" by {entry['by']}" if entry.get("by") else ""))
    if waits:
        say()
        for decision in approval.allowed_decisions:
            say(f"  {_line(decision, approval.id)}")


def show_arguments(approval: Approval) -> None:
    """Exactly what will run."""
    say("exact arguments:")
    for line in pretty_json(approval.args).splitlines():
        say(f"  {line}")


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """A unified diff of two sets of arguments, one line after the other; none where they are equal."""
    lines = difflib.unified_diff(
        pretty_json(before).splitlines(), pretty_json(after).splitlines(), "as asked for", "as changed", lineterm=""
    )
    yield from lines


def _decision(approval: Approval) -> str:
    decision = approval.decision or {}
    if not decision:
        return ""
    said = decision.get("comment") or decision.get("reason_code")
    return f"{decision.get('type')} by {decision.get('by')}" + (f": {said}" if said else "")


def _line(decision: str, approval_id: str) -> str:
    words = command("approvals", decision, approval_id)
    return words + {"reject": ' --comment "why"', "respond": ' "what to tell the agent"'}.get(decision, "")
