"""An approval as a reviewer sees it: the exact arguments first of all, and no summary that a model wrote."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from cli.connection import command
from cli.printable import pretty_json, printable
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
            ("checkpoint", approval.checkpoint),
            ("why", approval.reason),
            ("tool", f"{subject(approval)} ({approval.effect}, risk {approval.risk}) of agent {approval.agent}"),
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
        if approval.kind == "limit":
            say(f"  {command('turns', 'raise', approval.turn_id)} --tokens N --usd X")


def subject(approval: Approval) -> str:
    """What is decided on, in a word or two."""
    if approval.kind == "limit":
        return "the turn's limit"
    return f"{approval.tool or 'the answer'} at {approval.checkpoint}" if approval.checkpoint else approval.tool


def show_arguments(approval: Approval) -> None:
    """Exactly what will run; at a checkpoint what came of it, and what it was made from."""
    if approval.kind == "checkpoint":
        say(f"{approval.checkpoint}: the result of {approval.tool}:" if approval.tool else f"{approval.checkpoint}:")
        shown = approval.result if isinstance(approval.result, str) else pretty_json(approval.result)
        for line in printable(shown).splitlines():
            say(f"  {line}")
        if not approval.tool:
            return
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
