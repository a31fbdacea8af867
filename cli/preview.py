"""`perdure approvals preview`: what a call would change at its target, as its tool sees it."""

import difflib
from typing import Annotated

import typer

from cli.connection import Role, connect
from cli.screen import AsJson, AsName, say, say_json, time_told
from perdure.client import Approval
from policy.printable import pretty_json

ApprovalId = Annotated[str, typer.Argument(metavar="APPROVAL", help="The approval's id.")]


def preview(approval_id: ApprovalId, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Have the tool look, read-only, at what the call would change; it can be decided without."""
    with connect(Role.REVIEWER, as_name) as client:
        approval = client.approvals.preview(approval_id)
    if as_json:
        say_json(approval.preview)
    else:
        show_preview(approval)


def show_preview(approval: Approval) -> None:
    """What was found, or why nothing was; nothing where nobody has looked."""
    found = approval.preview
    if not found:
        return
    if found.get("fault"):
        say(f"no preview: {found['fault']} ({time_told(found.get('at'))})")
        return
    before, after = (pretty_json(found.get(name)).splitlines() for name in ("before", "after"))
    same = before == after
    say(
        f"what it would change, read at {time_told(found.get('at'))}:" + (" nothing that was looked at" if same else "")
    )
    for line in difflib.unified_diff(before, after, "as it is", "as the call would leave it", lineterm=""):
        say(f"  {line}")
    if not found.get("is_current", True):
        say("  (the arguments have been changed since)")
