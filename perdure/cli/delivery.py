"""`perdure webhooks`: addresses that receive approval events."""

from typing import Annotated

import typer

from perdure.cli.connection import Role, connect
from perdure.cli.terminal import AsJson, AsName, moment, say, say_json, table

app = typer.Typer(help="Where notices of approvals go.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_webhooks(as_json: AsJson = False, as_name: AsName = None) -> None:
    """Every receiver, with what is on its way to it and what went wrong last."""
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
    headers = ("webhook", "address", "arguments", "since", "waiting", "given up", "last problem")
    table(headers, rows, "No webhook.")


@app.command("add")
def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="At a host of PERDURE_WEBHOOK_HOSTS.")],
    with_args: Annotated[
        bool, typer.Option("--with-args", help="Notices of what has a low risk carry the call's arguments.")
    ] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Tell an address of every approval from now on; its secret is shown once."""
    with connect(Role.ADMIN, as_name) as client:
        made = client.webhooks.add(url, with_args=with_args)
    if as_json:
        say_json(made)
        return
    say(f"{made.id} is told of every approval at {made.url}")
    say(f"Secret, shown only this once: {made.secret}")


@app.command("remove")
def remove(
    webhook_id: Annotated[str, typer.Argument(metavar="WEBHOOK")], as_json: AsJson = False, as_name: AsName = None
) -> None:
    """Tell it nothing more; what was on its way does not go out."""
    with connect(Role.ADMIN, as_name) as client:
        ended = client.webhooks.remove(webhook_id)
    if as_json:
        say_json(ended)
    else:
        say(f"{webhook_id} is told nothing more")
