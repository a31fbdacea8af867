"""`perdure users`: users, their roles and their sign-in methods."""

from typing import Annotated, Any

import httpx
import typer

from perdure.cli.connection import Role, command, connect, connect_to_register
from perdure.cli.terminal import USAGE, AsJson, AsName, fail, format_time, say, say_json, say_page
from perdure.client.requests import Call, path
from perdure.schemas.agents import User
from perdure.schemas.identity import Member


def erase(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's name, or the id of a gateway's subject.")],
    subject: Annotated[
        str | None,
        typer.Option("--subject", metavar="TEXT", help="Erase this subject of the gateway NAME, not the gateway."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation, which is shown even without a terminal.")
    ] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Permanently erase everything that a user wrote. The audit trail keeps what happened and still verifies."""
    who = name if subject is None else f"{subject} of {name}"
    if not yes:
        typer.confirm(f"Permanently erase everything that {who} wrote?", abort=True)
    with connect(Role.ADMIN, as_name) as client:
        report = client.send(Call("DELETE", path("users", name, "data"), _json, {"subject": subject}))
    if as_json:
        say_json(report)
        return
    say(f"{who} is now called {report['name']}.")
    histories = report["histories"]
    say("Erased:")
    for name_of_table, rows in report["erased"].items():
        say(f"  {rows} rows of {name_of_table}")
    say(f"  {histories['runs']} workflow histories in Temporal")
    say("Kept: messages and requests of other users, and what their models derived from this user's texts.")
    if histories["turns_left"]:
        beginnings = f"the beginnings of messages of {histories['turns_left']} turns"
        say(f"Temporal's histories keep {beginnings} until Temporal's retention period ends (ADR 13).")


def _json(response: httpx.Response) -> Any:
    return response.json()


app = typer.Typer(help="Manage users, roles, tokens and invitations.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
Roles = Annotated[
    list[str], typer.Argument(metavar="ROLE", help="One or more of requester, reviewer, admin and gateway.")
]


@app.command("list")
def list_users(
    gateway: Annotated[
        str | None,
        typer.Option("--gateway", metavar="NAME", help="List the newest subjects of this gateway instead."),
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """List all users with their roles."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.users.list(gateway=gateway)
    say_page(page, ("user", "roles"), [(user.name, user.roles) for user in page.items], "No users.", as_json=as_json)


@app.command("add")
def add(
    name: Name,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="requester, reviewer, admin or gateway; repeat it for several."),
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Add a user with a token, which is shown only once."""
    with connect(Role.ADMIN, as_name) as client:
        user = client.users.add(name, role or [Role.REQUESTER.value])
        token = client.users.new_token(name).token
    _print_user(user, token, as_json)


@app.command("token")
def token(
    name: Name,
    label: Annotated[str, typer.Option(metavar="TEXT", help="A label that says what the token is for.")] = "",
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Create another token for a user; it is shown only once."""
    with connect(Role.ADMIN, as_name) as client:
        created = client.users.new_token(name, label=label)
    if as_json:
        say_json(created)
    else:
        _show_token(created.token)


@app.command("role")
def role(name: Name, roles: Roles, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Replace the roles of a user."""
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
    say(f"Token (shown only now): {token}")
    say(f"Use it as PERDURE_TOKEN=… {command()} …")


def team(as_json: AsJson = False, as_name: AsName = None) -> None:
    """List users and how each of them signs in."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.team.list()
    rows = [(member.name, member.display_name, member.roles, _sign_in_text(member)) for member in page.items]
    say_page(page, ("user", "display name", "roles", "sign-in"), rows, "No users.", as_json=as_json)


def invite(
    name: Name,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="requester, reviewer, admin or gateway; repeat it for several."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Invite an existing user again, to set a first password or replace a forgotten one."
        ),
    ] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Invite a new user, who then sets a password. The invitation is shown only once."""
    if again and role:
        raise fail("--again cannot change roles; use `perdure users role`", USAGE)
    with connect(Role.ADMIN, as_name) as client:
        invitation = (
            client.team.invite_again(name) if again else client.team.invite(name, role or [Role.REQUESTER.value])
        )
    if as_json:
        say_json(invitation)
        return
    say(f"Invitation for {invitation.name} (shown only now): {invitation.invitation}")
    expiry = format_time(invitation.expires_at)
    say(f"Use it once, until {expiry}, at /sign-in or with POST /v1/auth/register")


def register(
    name: Name,
    setup_code: Annotated[
        str,
        typer.Option(
            "--setup-code", metavar="CODE", help="The setup code that `perdure up` prints, for the first user."
        ),
    ] = "",
    invitation: Annotated[
        str, typer.Option("--invitation", metavar="CODE", help="An invitation from an administrator, for later users.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Register with a password, which the command prompts for. The first user needs the setup code, later users an
    invitation."""
    with connect_to_register(as_local_admin=not (setup_code or invitation)) as client:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        registered = client.auth.register(name, password, setup_code=setup_code or None, invitation=invitation or None)
    if as_json:
        say_json({"user": registered.user.model_dump(mode="json")})
        return
    say(f"Registered {registered.user.name}: {', '.join(registered.user.roles) or 'no role'}. Sign in at /sign-in.")


def close(name: Name, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Close an account. Its sessions end and its tokens become invalid. The user's records are kept."""
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
        say(f"{member.name}: {_sign_in_text(member)}")


def _sign_in_text(member: Member) -> str:
    if not member.active:
        return "account closed"
    methods = [
        "password" if member.has_password else "",
        "identity provider" if member.has_identity else "",
        f"invited until {format_time(member.invited_until)}" if member.invited_until else "",
    ]
    return ", ".join(filter(None, methods)) or "token only"
