"""`perdure delegations`: who decides in your place, and until when."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated

import typer

from cli.connection import Role, connect
from cli.failures import USAGE
from cli.screen import AsJson, AsName, fail, left, moment, say, say_json, table

app = typer.Typer(help="Who decides in your place.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_delegations(
    everybodys: Annotated[bool, typer.Option("--all", help="Of everybody, as an admin.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Those that you gave and that still hold."""
    with connect(Role.ADMIN if everybodys else Role.REVIEWER, as_name) as client:
        page = client.delegations.list(everybodys=everybodys)
    if as_json:
        say_json(page)
        return
    rows = [(each.id, each.by, each.to, moment(each.until), left(each.until)) for each in page.items]
    nobody = "Nobody decides in anybody's place." if everybodys else "Nobody decides in your place."
    table(("delegation", "in place of", "to", "until", "for"), rows, nobody)
    if page.next:
        say("There are more: --json has the cursor, GET /v1/delegations?all=true&cursor=… the rest.")


@app.command("add")
def add(
    to: Annotated[str, typer.Argument(metavar="USER", help="Who shall decide in your place.")],
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="A date (to its end, UTC) or a time, such as 2027-01-31T12:00Z.")
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Or for so many days from now, 90 at most.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Let somebody decide in your place until a date; you still may, and the two of you count once."""
    if (until is None) == (days is None):
        raise fail("say either --until or --days", USAGE)
    end = datetime.now(UTC) + timedelta(days=days) if days is not None else _moment(until or "")
    with connect(Role.REVIEWER, as_name) as client:
        made = client.delegations.add(to, end)
    if as_json:
        say_json(made)
    else:
        say(f"{made.to} may decide in your place until {moment(made.until)} ({made.id})")


@app.command("remove")
def remove(
    delegation_id: Annotated[str, typer.Argument(metavar="DELEGATION", help="Its id, from `delegations list`.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """End one of your own at once, with --as admin anybody's."""
    with connect(Role.REVIEWER, as_name) as client:
        client.delegations.remove(delegation_id)
    if as_json:
        say_json({"id": delegation_id, "removed": True})
    else:
        say("Removed.")


def _moment(text: str) -> datetime:
    """A date means to its end; a time without a zone is one of UTC."""
    try:
        if len(text) <= len("2027-01-31"):
            return datetime.combine(date.fromisoformat(text) + timedelta(days=1), time(), UTC)
        read = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise fail(f"{text!r} is no date: write 2027-01-31 or 2027-01-31T12:00Z", USAGE) from None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
