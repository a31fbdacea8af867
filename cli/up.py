"""`perdure up`: the embedded stack in the foreground."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cli.screen import fail
from local import StackConfig, StackError, run_stack
from local.config import Routing
from policy.hosts import exposed, unprobed

AppFolders = Annotated[
    list[Path] | None, typer.Option("--app", metavar="DIR", help="An app folder of your own; may be given again.")
]


def up(
    app: AppFolders = None,
    routing: Annotated[
        Routing | None, typer.Option(help="compact (fewer hops) or spread (a queue for each kind of work).")
    ] = None,
) -> None:
    """Start Postgres, Valkey, Temporal, the workers and the API here; Ctrl-C stops them, the data stays."""
    try:
        config = StackConfig.from_env(app or (), routing)
        host = config.environ.get("PERDURE_HOST") or "127.0.0.1"
        if why := exposed(host, config.environ.get("PERDURE_PUBLIC_URL", "")) or unprobed(host):
            raise StackError(why)
        code = asyncio.run(run_stack(config))
    except StackError as error:
        raise fail(str(error), error.exit_code) from None
    raise typer.Exit(code)
