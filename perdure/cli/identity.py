"""`perdure users`: users, their roles and their sign-in methods."""

from typing import Annotated, Any

import httpx
import typer

from perdure.cli.connection import Role, command, connect, connect_to_register
from perdure.cli.terminal import USAGE, AsJson, AsName, fail, moment, say, say_json, table
from perdure.client import Member, User
from perdure.client.requests import Call, path

# --- `perdure users erase`: removes a user's texts, but not the audit trail


def erase(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; without it, it is always asked.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Erase all words of a person, for ever. The audit keeps what happened, and still verifies."""
    if not yes:
        typer.confirm(f"Erase everything that {name} said, for ever?", abort=True)
    with connect(Role.ADMIN, as_name) as client:
        done = client.send(Call("DELETE", path("users", name, "data"), _json))
    if as_json:
        say_json(done)
        return
    say(f"{name} is {done['name']} from now on.")
    for name_of_table, rows in done["erased"].items():
        say(f"{rows} rows of {name_of_table}")
    histories = done["histories"]
    say(f"{histories['runs']} runs in Temporal")
    say("What stays: what others said and asked for, and what their models made of this person's words.")
    if histories["turns_left"]:
        kept = "Temporal keeps starts of messages in histories until its retention is over (ADR 13)"
        say(f"{kept}: of {histories['turns_left']} turns.")


def _json(response: httpx.Response) -> Any:
    return response.json()


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
    _print_user(user, token, as_json)


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
    _print_user(user, None, as_json)


app.command("erase")(erase)


def _print_user(user: User, token: str | None, as_json: bool) -> None:
    if as_json:
        say_json(user.model_dump(mode="json") | ({"token": token} if token else {}))
        return
    say(f"{user.name}: {', '.join(user.roles) or 'no role'}")
    if token:
        _show_token(token)


def _show_token(token: str) -> None:
    say(f"Token, shown only this once: {token}")
    say(f"It is used as PERDURE_TOKEN=… {command()} …")


# --- `perdure users register|invite|close|reopen|team`: users who sign in by name and password


def team(as_json: AsJson = False, as_name: AsName = None) -> None:
    """Everybody, and how each of them signs in."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.team.list()
    if as_json:
        say_json(page)
        return
    rows = [(each.name, each.display_name, each.roles, _way_in(each)) for each in page.items]
    table(("user", "called", "roles", "signs in"), rows, "Nobody.")


def invite(
    name: Name,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="requester, reviewer or admin; may be given again.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Of somebody who is there: to a first password, or to another one.")
    ] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Somebody new, who sets the password with an invitation that is shown once."""
    if again and role:
        raise fail("--again leaves the roles as they are; `perdure users role` changes them", USAGE)
    with connect(Role.ADMIN, as_name) as client:
        made = client.team.invite_again(name) if again else client.team.invite(name, role or [Role.REQUESTER.value])
    if as_json:
        say_json(made)
        return
    say(f"Invitation of {made.name}, shown only this once: {made.invitation}")
    say(f"Good until {moment(made.expires_at)}, for one password: /sign-in takes it, and POST /v1/auth/register")


def register(
    name: Name,
    setup_code: Annotated[str, typer.Option("--setup-code", help="Of the first person; `perdure up` prints it.")] = "",
    invitation: Annotated[str, typer.Option("--invitation", help="From an administrator.")] = "",
    as_json: AsJson = False,
) -> None:
    """Register with a password, which is asked for: the first person as the administrator, later ones by invitation."""
    with connect_to_register(vouched=not (setup_code or invitation)) as client:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        made = client.auth.register(name, password, setup_code=setup_code or None, invitation=invitation or None)
    if as_json:
        say_json({"user": made.user.model_dump(mode="json")})
        return
    say(f"Registered {made.user.name}: {', '.join(made.user.roles) or 'no role'}. Sign in at /sign-in.")


def close(name: Name, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Close an account: its sessions end, its tokens open nothing. What the person did stays."""
    with connect(Role.ADMIN, as_name) as client:
        _print_member(client.team.close(name), as_json)


def reopen(name: Name, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Open a closed account again."""
    with connect(Role.ADMIN, as_name) as client:
        _print_member(client.team.reopen(name), as_json)


def _print_member(member: Member, as_json: bool) -> None:
    if as_json:
        say_json(member)
    else:
        say(f"{member.name}: {_way_in(member)}")


def _way_in(member: Member) -> str:
    if not member.active:
        return "not at all: the account is closed"
    ways = [
        "by password" if member.has_password else "",
        "at a provider" if member.has_identity else "",
        f"is invited until {moment(member.invited_until)}" if member.invited_until else "",
    ]
    return ", ".join(filter(None, ways)) or "by token alone"
