"""`perdure rules`: what asks a person or ends a turn, how this tenant has made it stricter, and what it lets pass."""

from typing import Annotated

import typer

from cli.connection import Role, connect
from cli.screen import AsJson, AsName, say_json, table
from perdure.client import Page, Rule, WaivableTool

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


@app.command("tools")
def list_tools(as_json: AsJson = False, as_name: AsName = None) -> None:
    """The tools that this tenant may let run without the approval that they need."""
    with connect(Role.ADMIN, as_name) as client:
        _say_tools(client.rules.tools(), as_json)


@app.command("waive")
def waive(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="One of `rules tools`.")],
    undo: Annotated[bool, typer.Option("--undo", help="Have a person asked again.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Let a tool run without a person from the next turn on; what a rule stops, it stops all the same."""
    with connect(Role.ADMIN, as_name) as client:
        _say_tools(client.rules.set_tool(tool, approval=undo), as_json)


def _say_tools(page: Page[WaivableTool], as_json: bool) -> None:
    if as_json:
        say_json(page)
        return
    rows = [(each.tool, "a person is asked" if each.approval else "runs without a person") for each in page.items]
    table(("tool", "its calls"), rows, "None.")


def _say(page: Page[Rule], as_json: bool) -> None:
    if as_json:
        say_json(page)
        return
    rows = [(each.id, each.on, each.do, "yes" if each.overridden else "", each.checkpoint) for each in page.items]
    table(("rule", "asked", "action", "overridden", "checkpoint"), rows, "No rules.")
