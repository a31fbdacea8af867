"""The text of a message about an approval: facts of the record, never a model's text."""

import json
from typing import Any

MAX_ARGUMENTS_CHARACTERS = 1_500
"""Maximum length of arguments in a message; longer ones are read and decided on their page."""
MAX_MESSAGE_CHARACTERS = 300
"""Maximum length of each of the requester's messages; longer ones are read on the approval's page."""
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
        lines += [f"Reviewers: {to_whom}", f"Expires {approval['expires_at']}", *_message_lines(approval)]
    return lines


def _message_lines(approval: dict[str, Any]) -> list[str]:
    """Returns the requester's messages since the request was opened, newest last, with every character visible. Their
    texts are included only if the arguments are."""
    count, messages = int(approval.get("revision") or 1) - 1, approval.get("messages_since") or []
    if not count:
        return []
    noun = "message" if count == 1 else "messages"
    quoted = [json.dumps(each["text"][:MAX_MESSAGE_CHARACTERS], ensure_ascii=True) for each in messages]
    return [f"Since then, {approval['requested_by']} has written {count} {noun}", *quoted]


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
