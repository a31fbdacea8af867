"""`perdure webhooks`: addresses that receive approval events."""

from typing import Annotated

import typer

from perdure.cli.connection import Role, connect
from perdure.cli.terminal import AsJson, AsName, format_time, say, say_json, say_page

app = typer.Typer(help="Manage the receivers of approval events.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_webhooks(as_json: AsJson = False, as_name: AsName = None) -> None:
    """List all webhooks with their pending deliveries and last error."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.webhooks.list()
    rows = [
        (webhook.id, webhook.url, "yes" if webhook.with_args else "no", format_time(webhook.made_at), webhook.waiting,
         webhook.given_up, webhook.problem)
        for webhook in page.items
    ]  # fmt: skip
    headers = ("webhook", "address", "arguments", "since", "waiting", "dropped", "last error")
    say_page(page, headers, rows, "No webhooks.", as_json=as_json)


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
        webhook = client.webhooks.add(url, with_args=with_args)
    if as_json:
        say_json(webhook)
        return
    say(f"{webhook.id} receives every approval event at {webhook.url}")
    say(f"Secret (shown only now): {webhook.secret}")


@app.command("remove")
def remove(
    webhook_id: Annotated[str, typer.Argument(metavar="WEBHOOK", help="An id from `webhooks list`.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Remove a webhook; pending deliveries are dropped."""
    with connect(Role.ADMIN, as_name) as client:
        answer = client.webhooks.remove(webhook_id)
    if as_json:
        say_json(answer)
    else:
        say(f"Removed {webhook_id}")
