"""`perdure link`: an address that opens the pages in a browser of this machine, signed in."""

from typing import Annotated
from urllib.parse import urlencode, urlsplit

import typer

from cli.connection import Role, Surroundings, connect
from cli.screen import AsJson, say, say_json
from local.links import host_for

PAGE = "/sign-in"


def link(
    role: Annotated[Role, typer.Argument(help="The local user as whom it opens.")] = Role.REQUESTER,
    path: Annotated[str, typer.Option(metavar="PATH", help="The page to open; else where this user begins.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print a link that signs a browser of this machine in: once, within 15 minutes."""
    with connect(role, role.value) as client:
        made = client.auth.code()
    here = Surroundings.here()
    port = urlsplit(str(here.url or (here.run or {}).get("api"))).port
    query = urlencode({"code": made.code} | ({"next": path} if path else {}), safe="/")
    address = f"http://{host_for(role.value)}:{port}{PAGE}?{query}"
    if as_json:
        say_json({"link": address, "expires_at": made.expires_at.isoformat()})
    else:
        say(address)
