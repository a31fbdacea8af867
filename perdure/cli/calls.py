"""`perdure effects`: effects whose outcome is unknown after a crash, their details, and how a person settles them."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from perdure.cli.connection import Role, command, connect
from perdure.cli.terminal import (
    DECIDED,
    USAGE,
    AsJson,
    AsName,
    Cursor,
    Limit,
    Yes,
    at_terminal,
    check_choice,
    confirm,
    fail,
    fields,
    format_time,
    say,
    say_json,
    say_next_page,
    table,
    time_left,
)
from perdure.contracts.calls import CallState
from perdure.core.text import one_line, pretty_json
from perdure.schemas.calls import Effect

app = typer.Typer(help="List and settle effects whose outcome is unknown.", no_args_is_help=True, rich_markup_mode=None)
EffectKey = Annotated[str, typer.Argument(metavar="EFFECT", help="The effect's key.")]
UNKNOWN = "outcome_unknown"
_LISTED_FIELDS = frozenset(Effect.model_fields)
"""Fields that have their own line. All other fields of the API follow as JSON."""


class Outcome(StrEnum):
    """Outcomes that a person can record."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"


@app.command("list")
def list_effects(
    state: Annotated[str, typer.Option(metavar="STATE", help=f"One of {', '.join(CallState)}.")] = UNKNOWN,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """List effects whose outcome is unknown, or those in another state."""
    check_choice("--state", state, CallState)
    with connect(Role.REVIEWER, as_name) as client:
        page = client.effects.list(state=state, limit=limit, cursor=cursor)
    if as_json:
        say_json(page)
        return
    rows = [
        (
            each.key,
            each.tool,
            each.state,
            time_left(each.deadline) if still_sendable(each) else "none",
            each.turn_id,
        )
        for each in page.items
    ]
    table(("effect", "tool", "state", "time left to send", "turn"), rows, f"No effects with the state {state}.")
    for effect in page.items:
        say()
        say(f"{effect.tool} {effect.key}, exact arguments:")
        say(pretty_json(effect.args))
        for line in (effect.known.message if effect.known else "", effect.failure or ""):
            if line:
                say(f"Known: {one_line(line, None)}")
        if effect.state == UNKNOWN:
            say(f'To settle it: {command("effects", "settle", effect.key, "happened")} --comment "how you know"')
    say_next_page(page)


@app.command("show")
def show(key: EffectKey, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Show one effect in full."""
    with connect(Role.REVIEWER, as_name) as client:
        effect = client.effects.get(key)
    if as_json:
        say_json(effect)
        return
    show_effect(effect)
    if effect.state == UNKNOWN:
        say()
        say("Check the target system, then record the outcome:")
        for outcome in Outcome:
            if outcome is Outcome.HAPPENED or not still_sendable(effect):
                say(f'  {command("effects", "settle", key, outcome.value)} --comment "how you know"')


@app.command("settle")
def settle(
    key: EffectKey,
    outcome: Annotated[
        Outcome, typer.Argument(metavar="OUTCOME", help="The outcome that you found in the target system.")
    ],
    comment: Annotated[str, typer.Option(metavar="TEXT", help="How you know the outcome.")] = "",
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Record the outcome of an effect whose outcome is unknown. Its turn then continues. On a terminal, the command
    asks for a missing --comment."""
    if not comment.strip() and (yes or as_json or not at_terminal()):
        raise fail("Settling an effect needs --comment: how you know the outcome", USAGE)
    with connect(Role.REVIEWER, as_name) as client:
        effect = client.effects.get(key)
        if effect.state != UNKNOWN:
            if as_json:
                say_json(effect)
            by = f", as settled by {effect.settled_by}" if effect.settled_by else ""
            raise fail(f"Nothing to settle: the effect's state is already {effect.state}{by}", DECIDED)
        if not as_json:
            show_effect(effect, full=False)
        while not comment.strip():
            comment = str(typer.prompt("How do you know the outcome?"))
        confirm(f"{outcome.value}?", yes=yes, as_json=as_json)
        settled = client.effects.settle(key, outcome.value, comment)
    if as_json:
        say_json(settled)
    else:
        say(f"Settled: {outcome.value}. The turn continues.")


def show_effect(effect: Effect, *, full: bool = True) -> None:
    """Shows all fields of an effect. Without `full`, the other fields are only named instead of shown as JSON."""
    fields(
        [
            ("effect", effect.key),
            ("state", effect.state),
            ("tool", f"{effect.tool} ({effect.effect}) of agent {effect.agent}" if effect.effect else effect.tool),
            ("call", effect.call_id),
            ("turn", effect.turn_id),
            ("started", format_time(effect.created_at)),
            ("attempts", effect.attempts or ""),
            ("may have happened since", format_time(effect.first_sent_at)),
            ("can be sent until", _deadline_text(effect)),
            ("known", effect.known.message if effect.known else ""),
            ("raised", effect.failure or ""),
            ("approval", _approval_text(effect)),
            ("settled", _settled_text(effect)),
        ],
        max_characters=None,
    )
    say("exact arguments:")
    _print_json_block(effect.args)
    other_fields = {
        name.replace("_", " "): value
        for name, value in (effect.model_extra or {}).items()
        if name not in _LISTED_FIELDS and value not in (None, "", [], {})
    }
    if other_fields and not full:
        say(f"For more ({', '.join(other_fields)}): {command('effects', 'show', effect.key)}")
        return
    for name, value in other_fields.items():
        say(f"{name}:")
        _print_json_block(value)


def still_sendable(effect: Effect) -> bool:
    """Returns whether a frozen worker can still send the call. If so, it cannot be recorded that it did not happen."""
    return effect.deadline is not None and effect.deadline > datetime.now(UTC)


def _deadline_text(effect: Effect) -> str:
    if not still_sendable(effect):
        return ""
    return f"{format_time(effect.deadline)} (for {time_left(effect.deadline)}), by a worker that lost its connection"


def _approval_text(effect: Effect) -> str:
    approval = (effect.model_extra or {}).get("approval")
    if not isinstance(approval, dict) or not approval.get("id"):
        return ""
    return f"{approval['id']}" + (f", decided by {approval['decided_by']}" if approval.get("decided_by") else "")


def _settled_text(effect: Effect) -> str:
    if effect.settled_at is None and not effect.settled_by:
        return ""
    by = f" by {effect.settled_by}" if effect.settled_by else ""
    return f"{format_time(effect.settled_at)}{by}" + (f": {effect.comment}" if effect.comment else "")


def _print_json_block(value: Any) -> None:
    for line in pretty_json(value).splitlines():
        say(f"  {line}")
