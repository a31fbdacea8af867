"""The text of a message about an approval: facts of the record, never a model's text."""

import json
from typing import Any

MAX_ARGUMENTS_CHARACTERS = 1_500
"""Maximum length of arguments in a message; longer ones are read and decided on their page."""
_OPEN = "pending"


def is_open(approval: dict[str, Any]) -> bool:
    """Returns whether a decision is still possible."""
    return bool(approval["status"] == _OPEN)


def headline(approval: dict[str, Any]) -> str:
    """Returns the headline."""
    what = f"{approval['tool']} ({approval['risk']} risk)"
    if is_open(approval):
        return f"Approval requested: {what}"
    who = f" by {approval['decided_by']}" if approval["decided_by"] and approval["decision"] else ""
    return f"{str(approval['status']).capitalize()}{who}: {what}"


def fact_lines(approval: dict[str, Any]) -> list[str]:
    """Returns the lines below it."""
    lines = [f"Requested by {approval['requested_by']}, agent {approval['agent']}"]
    if is_open(approval):
        to_whom = approval["assignee"] or f"the role {approval['reviewer_role']}"
        lines += [f"Reviewers: {to_whom}", f"Expires {approval['expires_at']}"]
    return lines


def arguments_text(approval: dict[str, Any]) -> str:
    """Returns the exact arguments with every character visible; empty if they are not included or too long for a
    message."""
    if "args" not in approval:
        return ""
    text = json.dumps(approval["args"], ensure_ascii=True, indent=1, sort_keys=True)
    return text if len(text) <= MAX_ARGUMENTS_CHARACTERS else ""


def has_buttons(approval: dict[str, Any]) -> bool:
    """Returns whether the message has buttons: low risk, still open, and all arguments shown."""
    return approval["risk"] == "low" and is_open(approval) and bool(arguments_text(approval)) and "digest" in approval
