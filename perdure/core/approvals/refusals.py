"""Refusals that outlive their turn: what later turns and readers learn of a refused call or result."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from perdure.contracts.ids import reviewed_call
from perdure.contracts.messages import Role
from perdure.contracts.values import canonical_json

MAX_REASON_CHARACTERS = 4_000
"""The maximum length of a reviewer's reason in the transcript. The request's record has all of it."""
_NOT_APPROVED: Final[Mapping[str, str]] = {
    "rejected": "A reviewer rejected this {what}.",
    "responded": "A reviewer answered with the reason below instead of approving this {what}.",
    "expired": "No reviewer decided on this {what} in time, so it counts as rejected.",
    "withdrawn": "The review of this {what} was withdrawn, so it counts as rejected.",
    "cancelled": "No reviewer has seen this {what}, although it required a review.",
}
_SAY_SO = "If you use this {what}, say so."
_HAS_RUN = "The call itself has run."
_DO_NOT_USE = "It is not approved: do not use, repeat or summarize this {what}."


@dataclass(frozen=True, slots=True)
class ReviewRefusal:
    """A call, or at a checkpoint a result, that was refused: by a reviewer, at its deadline or by a withdrawal."""

    call_id: str
    """The request's: the call's own, or the checkpoint's."""
    tool: str
    status: str
    """The status of the request. `pending` and `cancelled` only at a checkpoint without a decision."""
    reason: str = ""
    """The reviewer's comment."""
    is_checkpoint: bool = False
    answer: str = ""
    """The answer that a checkpoint without a call has shown to the reviewer."""

    @property
    def is_withheld(self) -> bool:
        """Returns whether the turn could not continue with the result. It can if the checkpoint was skipped."""
        return self.is_checkpoint and self.status != "cancelled"


def refusal_of(role: Role, content: str, call_id: str, refusals: Iterable[ReviewRefusal]) -> ReviewRefusal | None:
    """Returns the refusal of this message's result among those of its turn, or None. `call_id` is the call that a tool
    message answers. An answer has no id in its request, so it is recognized by its text."""
    for each in refusals:
        reviewed = reviewed_call(each.call_id) if each.is_checkpoint else each.call_id
        if reviewed is None:
            if role is Role.ASSISTANT and content and content == each.answer:
                return each
        elif role is Role.TOOL and call_id == reviewed:
            return each
    return None


def refused_result(content: str, refusal: ReviewRefusal) -> str:
    """Returns what later turns read in place of a result that was not approved: the outcome, the reviewer's reason and
    the result. Both are values of a JSON object, so that neither can pass for words of the engine."""
    try:
        return canonical_json({**_note(refusal), "result": json.loads(content)})
    except (ValueError, RecursionError):  # not JSON, or only for Python, such as `NaN`
        return canonical_json({**_note(refusal), "result": content})


def note_about(refusal: ReviewRefusal) -> str:
    """Returns the note that follows an answer that was not approved, in the prompts of later turns."""
    return canonical_json(_note(refusal))


def _note(refusal: ReviewRefusal) -> dict[str, JsonValue]:
    what = "result" if refusal.tool else "answer"
    sentence = _NOT_APPROVED.get(refusal.status, _NOT_APPROVED["rejected"]).format(what=what)
    advice = _SAY_SO if refusal.status == "cancelled" else _DO_NOT_USE
    note: dict[str, JsonValue] = {"approval": refusal.status, "message": f"{sentence} {advice.format(what=what)}"}
    if refusal.tool:
        note |= {"tool": refusal.tool, "message": f"{note['message']} {_HAS_RUN}"}
    if refusal.reason:
        note["reason"] = shortened_reason(refusal.reason)
    return note


def shortened_reason(reason: str) -> str:
    """Returns a reviewer's reason with at most MAX_REASON_CHARACTERS, for texts that stay in a conversation."""
    return reason if len(reason) <= MAX_REASON_CHARACTERS else f"{reason[: MAX_REASON_CHARACTERS - 1]}…"
