"""`perdure users erase`: a person goes, the record of what happened stays."""

from typing import Annotated, Any

import httpx
import typer

from cli.connection import Role, connect
from cli.screen import AsJson, AsName, say, say_json
from perdure.client.calls import Call, path


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
    for table, rows in done["erased"].items():
        say(f"{rows} rows of {table}")
    histories = done["histories"]
    say(f"{histories['runs']} runs in Temporal")
    say("What stays: what others said and asked for, and what their models made of this person's words.")
    if histories["turns_left"]:
        kept = "Temporal keeps starts of messages in histories until its retention is over (ADR 13)"
        say(f"{kept}: of {histories['turns_left']} turns.")


def _json(response: httpx.Response) -> Any:
    return response.json()
