"""`perdure effects`: what a crash left unknown, all that is known of it, and how a person settles it."""

from enum import StrEnum
from typing import Annotated

import typer

from cli.asking import Yes, confirm
from cli.connection import Role, command, connect
from cli.effect_card import show_effect, still_sendable
from cli.failures import DECIDED
from cli.screen import AsJson, AsName, fail, left, say, say_json, table
from policy.printable import pretty_json

app = typer.Typer(help="What a crash left unknown.", no_args_is_help=True, rich_markup_mode=None)
EffectKey = Annotated[str, typer.Argument(metavar="EFFECT", help="The effect's key.")]
UNKNOWN = "outcome_unknown"


class Outcome(StrEnum):
    """What a person may state."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"


@app.command("list")
def list_effects(
    state: Annotated[str, typer.Option(help="outcome_unknown, done, failed, …")] = UNKNOWN,
    limit: Annotated[int, typer.Option(min=1)] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next` of the list before.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Effects of which nobody knows whether they happened."""
    with connect(Role.REVIEWER, as_name) as client:
        page = client.effects.list(state=state, limit=limit, cursor=cursor)
    if as_json:
        say_json(page)
        return
    rows = [(effect.key, effect.tool, effect.state, left(effect.deadline), effect.turn_id) for effect in page.items]
    table(("effect", "tool", "state", "may still be sent for", "turn"), rows, f"No effect is {state}.")
    for effect in page.items:
        say()
        say(f"{effect.tool} {effect.key}, the exact arguments:")
        say(pretty_json(effect.args))
        if effect.state == UNKNOWN:
            say(f'Settle it: {command("effects", "settle", effect.key, "happened")} --comment "how you know"')
    if page.next:
        say(f"More: --cursor {page.next}")


@app.command("show")
def show(key: EffectKey, as_json: AsJson = False, as_name: AsName = None) -> None:
    """One effect: all that is known of it."""
    with connect(Role.REVIEWER, as_name) as client:
        effect = client.effects.get(key)
    if as_json:
        say_json(effect)
        return
    show_effect(effect)
    if effect.state == UNKNOWN:
        say()
        say("Look at the target, then say which it is:")
        for outcome in Outcome:
            if outcome is Outcome.HAPPENED or not still_sendable(effect):
                say(f'  {command("effects", "settle", key, outcome.value)} --comment "how you know"')


@app.command("settle")
def settle(
    key: EffectKey,
    outcome: Annotated[Outcome, typer.Argument(help="What you found when you looked at the target.")],
    comment: Annotated[str, typer.Option(help="How you know.")],
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """State what became of an effect; its turn then goes on with the truth."""
    with connect(Role.REVIEWER, as_name) as client:
        effect = client.effects.get(key)
        if effect.state != UNKNOWN:
            if as_json:
                say_json(effect)
            by = f" by {effect.settled_by}" if effect.settled_by else ""
            raise fail(f"there is nothing to settle: it is {effect.state}{by}", DECIDED)
        if not as_json:
            show_effect(effect, whole=False)
        confirm(f"{outcome.value}?", yes=yes, as_json=as_json)
        settled = client.effects.settle(key, outcome.value, comment)
    if as_json:
        say_json(settled)
    else:
        say(f"Settled: {outcome.value}. The turn goes on.")
