"""`perdure topologies`: the graphs that agents run on."""

import sys
from typing import Annotated

import typer

from cli.connection import Role, connect
from cli.screen import AsJson, AsName, say_json, table
from policy.printable import printable

app = typer.Typer(help="The graphs that agents run on.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_topologies(as_json: AsJson = False, as_name: AsName = None) -> None:
    """Every topology."""
    with connect(Role.REQUESTER, as_name) as client:
        page = client.topologies.list()
    if as_json:
        say_json(page)
        return
    table(("topology",), [(topology.name,) for topology in page.items], "No topology.")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="TOPOLOGY")],
    mermaid: Annotated[bool, typer.Option("--mermaid", help="A drawing in Mermaid instead of the manifest.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """A topology's manifest as JSON, or its drawing."""
    with connect(Role.REQUESTER, as_name) as client:
        if mermaid and not as_json:
            sys.stdout.write(printable(client.topologies.drawing(name).rstrip("\n")) + "\n")
        elif mermaid:
            say_json({"name": name, "mermaid": client.topologies.drawing(name)})
        else:
            say_json(client.topologies.get(name))
