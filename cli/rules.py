"""`perdure rules`: what asks a person or ends a turn, and how this tenant has made it stricter."""

from typing import Annotated

import typer

from cli.connection import Role, connect
from cli.screen import AsJson, AsName, say_json, table
from perdure.client import Page, Rule

app = typer.Typer(help="Rules, and this tenant's overrides.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_rules(as_json: AsJson = False, as_name: AsName = None) -> None:
    """Every rule that can hold for a turn."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.rules.list()
    _say(page, as_json)


@app.command("set")
def set_rule(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The rule's id, from `rules list`.")],
    do: Annotated[str, typer.Argument(metavar="ACTION", help="abort, or the rule's own action to undo an override.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Make a rule stricter from the next turn on, never looser."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.rules.set(rule, do)
    _say(page.model_copy(update={"items": [each for each in page.items if each.id == rule]}), as_json)


def _say(page: Page[Rule], as_json: bool) -> None:
    if as_json:
        say_json(page)
        return
    rows = [(each.id, each.on, each.do, "yes" if each.overridden else "", each.checkpoint) for each in page.items]
    table(("rule", "asked", "action", "overridden", "checkpoint"), rows, "No rules.")
