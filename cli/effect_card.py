"""An effect as the person sees it who has to say whether it happened: what was sent, when, by how many workers."""

from datetime import UTC, datetime
from typing import Any

from cli.connection import command
from cli.screen import fields, left, moment, say
from perdure.client import Effect
from policy.printable import pretty_json

_TOLD = frozenset(Effect.model_fields)
"""What has a line of its own; whatever else the API knows follows as JSON."""


def show_effect(effect: Effect, *, whole: bool = True) -> None:
    """All that is known of it; without `whole` the rest, which is JSON, is only named."""
    fields(
        [
            ("effect", effect.key),
            ("state", effect.state),
            ("tool", f"{effect.tool} ({effect.effect}) of agent {effect.agent}" if effect.effect else effect.tool),
            ("call", effect.call_id),
            ("turn", effect.turn_id),
            ("begun", moment(effect.created_at)),
            ("attempts", effect.attempts or ""),
            ("first sent", moment(effect.first_sent_at)),
            ("may be sent", _deadline(effect)),
            ("approval", _approval(effect)),
            ("settled", _settled(effect)),
        ],
        most=None,
    )
    say("exact arguments:")
    _block(effect.args)
    rest = {
        name.replace("_", " "): value
        for name, value in (effect.model_extra or {}).items()
        if name not in _TOLD and value not in (None, "", [], {})
    }
    if rest and not whole:
        say(f"{', '.join(rest)}: {command('effects', 'show', effect.key)}")
        return
    for name, value in rest.items():
        say(f"{name}:")
        _block(value)


def still_sendable(effect: Effect) -> bool:
    """Whether a frozen worker may still send it, so that nobody may say that it did not happen."""
    return effect.deadline is not None and effect.deadline > datetime.now(UTC)


def _deadline(effect: Effect) -> str:
    if not still_sendable(effect):
        return ""
    return f"until {moment(effect.deadline)} (for {left(effect.deadline)}), by a worker that was cut off"


def _approval(effect: Effect) -> str:
    found = (effect.model_extra or {}).get("approval")
    if not isinstance(found, dict) or not found.get("id"):
        return ""
    return f"{found['id']}" + (f", decided by {found['decided_by']}" if found.get("decided_by") else "")


def _settled(effect: Effect) -> str:
    if effect.settled_at is None and not effect.settled_by:
        return ""
    by = f" by {effect.settled_by}" if effect.settled_by else ""
    return f"{moment(effect.settled_at)}{by}" + (f": {effect.comment}" if effect.comment else "")


def _block(value: Any) -> None:
    for line in pretty_json(value).splitlines():
        say(f"  {line}")
