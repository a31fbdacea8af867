"""`perdure agents`: whom one can talk to."""

import typer

from cli.connection import Role, connect
from cli.screen import AsJson, AsName, say_json, table

app = typer.Typer(help="Whom one can talk to.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Whom one can talk to."""


@app.command("list")
def list_agents(as_json: AsJson = False, as_name: AsName = None) -> None:
    """Every agent, with its graph and its model."""
    with connect(Role.REQUESTER, as_name) as client:
        page = client.agents.list()
    if as_json:
        say_json(page)
        return
    rows = [(agent.id, agent.title, agent.topology, agent.model) for agent in page.items]
    table(("agent", "title", "topology", "model"), rows, "No agent.")
