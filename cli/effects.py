"""`perdure effects`: what a crash left unknown, and how a person settles it."""

from enum import StrEnum
from typing import Annotated

import typer

from cli.connection import Role, command, connect
from cli.printable import pretty_json
from cli.screen import AsJson, AsName, left, say, say_json, table

app = typer.Typer(help="What a crash left unknown.", no_args_is_help=True, rich_markup_mode=None)


class Outcome(StrEnum):
    """What a person may state."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"


@app.command("list")
def list_effects(
    state: Annotated[str, typer.Option(help="outcome_unknown, done, failed, …")] = "outcome_unknown",
    limit: Annotated[int, typer.Option(min=1)] = 50,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Effects of which nobody knows whether they happened."""
    with connect(Role.REVIEWER, as_name) as client:
        page = client.effects.list(state=state, limit=limit)
    if as_json:
        say_json(page)
        return
    rows = [(effect.key, effect.tool, effect.state, left(effect.deadline), effect.turn_id) for effect in page.items]
    table(("effect", "tool", "state", "may still be sent for", "turn"), rows, f"No effect is {state}.")
    for effect in page.items:
        say()
        say(f"{effect.tool} {effect.key}, the exact arguments:")
        say(pretty_json(effect.args))
        if effect.state == "outcome_unknown":
            say(f'Settle it: {command("effects", "settle", effect.key, "happened")} --comment "how you know"')


@app.command("settle")
def settle(
    key: Annotated[str, typer.Argument(metavar="EFFECT", help="The effect's key.")],
    outcome: Annotated[Outcome, typer.Argument(help="What you found when you looked at the target.")],
    comment: Annotated[str, typer.Option(help="How you know.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """State what became of an effect; its turn then goes on with the truth."""
    with connect(Role.REVIEWER, as_name) as client:
        settled = client.effects.settle(key, outcome.value, comment)
    if as_json:
        say_json(settled)
    else:
        say(f"Settled: {outcome.value}. The turn goes on.")
