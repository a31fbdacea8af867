"""`perdure users register|invite|close|reopen|team`: people who sign in by name and password."""

from typing import Annotated

import typer

from cli.connection import Role, connect, connect_to_register
from cli.failures import USAGE
from cli.screen import AsJson, AsName, fail, moment, say, say_json, table
from perdure.client import Member

Name = Annotated[str, typer.Argument(metavar="NAME")]


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
        _show(client.team.close(name), as_json)


def reopen(name: Name, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Open a closed account again."""
    with connect(Role.ADMIN, as_name) as client:
        _show(client.team.reopen(name), as_json)


def _show(member: Member, as_json: bool) -> None:
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
