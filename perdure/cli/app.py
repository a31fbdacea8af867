"""The commands of `perdure` by name."""

from typing import Annotated

import typer

import perdure
from perdure.cli import agents, apps, audit, budgets, calls, chat, delivery, identity, memory, stack, status, turns
from perdure.cli.approvals import commands

app = typer.Typer(
    name="perdure",
    help="Durable AI agent turns. Start everything with `make up` or `perdure up`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"perdure {perdure.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


app.command("up")(stack.up)
app.command("status")(status.status)
app.command("chat")(chat.chat)
app.command("link")(stack.link)
app.command("init")(apps.init)
app.command("check")(apps.check)
identity.app.command("erase")(identity.erase)
for command in (identity.team, identity.register, identity.invite, identity.close, identity.reopen):
    identity.app.command(command.__name__)(command)
for name, group in (
    ("turns", turns.app),
    ("approvals", commands.approvals_app),
    ("delegations", commands.delegations_app),
    ("effects", calls.app),
    ("files", memory.files_app),
    ("agents", agents.agents_app),
    ("budgets", budgets.app),
    ("mcp", apps.mcp_app),
    ("memory", memory.memory_app),
    ("prompts", agents.prompts_app),
    ("rules", agents.rules_app),
    ("skills", apps.skills_app),
    ("topologies", agents.topologies_app),
    ("users", identity.app),
    ("webhooks", delivery.app),
    ("audit", audit.app),
):
    app.add_typer(group, name=name)
