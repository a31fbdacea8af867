"""`perdure webhooks`: addresses that receive approval events."""

from typing import Annotated

import typer

from perdure.cli.connection import Role, connect
from perdure.cli.terminal import AsJson, AsName, moment, say, say_json, table

app = typer.Typer(help="Manage the receivers of approval events.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_webhooks(as_json: AsJson = False, as_name: AsName = None) -> None:
    """List all webhooks with their pending deliveries and last error."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.webhooks.list()
    if as_json:
        say_json(page)
        return
    rows = [
        (each.id, each.url, "yes" if each.with_args else "no", moment(each.made_at), each.waiting, each.given_up,
         each.problem)
        for each in page.items
    ]  # fmt: skip
    headers = ("webhook", "address", "arguments", "since", "waiting", "dropped", "last error")
    table(headers, rows, "No webhooks.")


@app.command("add")
def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="A URL at a host of PERDURE_WEBHOOK_HOSTS.")],
    with_args: Annotated[
        bool, typer.Option("--with-args", help="Include the arguments of low-risk calls in the notices.")
    ] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Add a webhook, which receives all later approval events. Its secret is shown only once."""
    with connect(Role.ADMIN, as_name) as client:
        made = client.webhooks.add(url, with_args=with_args)
    if as_json:
        say_json(made)
        return
    say(f"{made.id} receives every approval event at {made.url}")
    say(f"Secret (shown only now): {made.secret}")


@app.command("remove")
def remove(
    webhook_id: Annotated[str, typer.Argument(metavar="WEBHOOK", help="An id from `webhooks list`.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Remove a webhook; pending deliveries are dropped."""
    with connect(Role.ADMIN, as_name) as client:
        ended = client.webhooks.remove(webhook_id)
    if as_json:
        say_json(ended)
    else:
        say(f"Removed {webhook_id}")
