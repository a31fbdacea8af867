"""`perdure up`: the embedded stack in the foreground."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode, urlsplit

import typer

from perdure.cli.connection import Environment, Role, command, connect
from perdure.cli.terminal import USAGE, AsJson, fail, say, say_json
from perdure.core.request_origin import exposure_refusal, local_path, probe_refusal
from perdure.local import StackConfig, StackError, run_stack
from perdure.local.config import Routing, host_for

AppFolders = Annotated[
    list[Path] | None,
    typer.Option(
        "--app",
        metavar="DIR",
        help="An app folder whose agents are published; can be repeated. It replaces PERDURE_APP. "
        "The agents of all other apps are withdrawn.",
    ),
]
SIGN_IN_PATH = "/sign-in"


def up(
    app: AppFolders = None,
    examples: Annotated[
        bool | None,
        typer.Option("--examples/--no-examples", help="Also publish the built-in examples.", show_default=False),
    ] = None,
    routing: Annotated[
        Routing | None, typer.Option(help="compact (fewer task queues) or spread (one queue for each kind of work).")
    ] = None,
) -> None:
    """Start Postgres, Valkey, Temporal, the workers and the API. They run in the foreground until Ctrl-C; data is kept.

    Select apps with --app and --examples, or with PERDURE_APP and PERDURE_EXAMPLES. If no app is selected, nothing is
    published and nothing is withdrawn.
    """
    config = StackConfig.from_env(app or (), routing, examples)
    host = config.environ.get("PERDURE_HOST") or "127.0.0.1"
    if refusal := exposure_refusal(host, config.environ.get("PERDURE_PUBLIC_URL", "")) or probe_refusal(host):
        raise StackError(refusal)
    public_url = _check_settings(config.home)
    raise typer.Exit(asyncio.run(run_stack(replace(config, command=command(), public_url=public_url))))


def _check_settings(home: Path) -> str:
    """Checks the settings of all programs before the first of them starts. Returns the public URL; empty if none is
    set.

    Raises: SystemExit with one line for each setting or key file that is wrong.
    """
    from perdure.settings import Settings  # here: its import takes 0.1 s, which the other commands save

    settings = Settings.read(PERDURE_HOME=str(home))
    settings.check()
    return settings.public_url


def link(
    role: Annotated[Role, typer.Argument(metavar="ROLE", help="The local user to sign in as.")] = Role.REQUESTER,
    path: Annotated[str, typer.Option(metavar="PATH", help="The page to open; by default the user's home page.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print a link that signs in a browser on this machine. It works once, within 15 minutes."""
    if path and not local_path(path, ""):
        raise fail(f"--path is {path!r}; it must begin with one slash, such as /chat", USAGE)
    with connect(role, role.value) as client:
        code = client.auth.code()
    environment = Environment.read()
    port = urlsplit(str(environment.url or (environment.run or {}).get("api"))).port
    query = urlencode({"code": code.code} | ({"next": path} if path else {}), safe="/")
    address = f"http://{host_for(role.value)}:{port}{SIGN_IN_PATH}?{query}"
    if as_json:
        say_json({"link": address, "expires_at": code.expires_at.isoformat()})
    else:
        say(address)
