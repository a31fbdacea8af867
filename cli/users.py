"""`perdure users`: who has access, and as what."""

from typing import Annotated

import typer

from cli.connection import Role, command, connect
from cli.erase import erase
from cli.screen import AsJson, AsName, say, say_json, table
from perdure.client import User

app = typer.Typer(help="Who has access, and as what.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME")]
Roles = Annotated[list[str], typer.Argument(metavar="ROLE...", help="requester, reviewer, admin.")]


@app.command("list")
def list_users(as_json: AsJson = False, as_name: AsName = None) -> None:
    """Everybody, with their roles."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.users.list()
    if as_json:
        say_json(page)
        return
    table(("user", "roles"), [(user.name, user.roles) for user in page.items], "Nobody.")


@app.command("add")
def add(
    name: Name,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="requester, reviewer or admin; may be given again.")
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """A new user with a token of its own, which is shown once."""
    with connect(Role.ADMIN, as_name) as client:
        user = client.users.add(name, role or [Role.REQUESTER.value])
        token = client.users.new_token(name).token
    _show(user, token, as_json)


@app.command("token")
def token(
    name: Name,
    label: Annotated[str, typer.Option(help="What it is for.")] = "",
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """One more token for a user, shown once."""
    with connect(Role.ADMIN, as_name) as client:
        made = client.users.new_token(name, label=label)
    if as_json:
        say_json(made)
    else:
        _show_token(made.token)


@app.command("role")
def role(name: Name, roles: Roles, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Give a user these roles and no others."""
    with connect(Role.ADMIN, as_name) as client:
        user = client.users.set_roles(name, roles)
    _show(user, None, as_json)


app.command("erase")(erase)


def _show(user: User, token: str | None, as_json: bool) -> None:
    if as_json:
        say_json(user.model_dump(mode="json") | ({"token": token} if token else {}))
        return
    say(f"{user.name}: {', '.join(user.roles) or 'no role'}")
    if token:
        _show_token(token)


def _show_token(token: str) -> None:
    say(f"Token, shown only this once: {token}")
    say(f"It is used as PERDURE_TOKEN=… {command()} …")
