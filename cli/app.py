"""The commands by name."""

import typer

from cli import (
    accounts,
    agents,
    approvals,
    audit,
    budgets,
    chat,
    delegations,
    effects,
    erase,
    files,
    link,
    mcp,
    memory,
    prompts,
    rules,
    scaffold,
    skills,
    status,
    topologies,
    turns,
    up,
    users,
    webhooks,
)

app = typer.Typer(
    name="perdure",
    help="AI agent turns that survive. Start everything with `make up` or `perdure up`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("up")(up.up)
app.command("status")(status.status)
app.command("chat")(chat.chat)
app.command("link")(link.link)
app.command("init")(scaffold.init)
users.app.command("erase")(erase.erase)
for command in (accounts.team, accounts.register, accounts.invite, accounts.close, accounts.reopen):
    users.app.command(command.__name__)(command)
for name, group in (
    ("turns", turns.app),
    ("approvals", approvals.app),
    ("delegations", delegations.app),
    ("effects", effects.app),
    ("files", files.app),
    ("agents", agents.app),
    ("budgets", budgets.app),
    ("mcp", mcp.app),
    ("memory", memory.app),
    ("prompts", prompts.app),
    ("rules", rules.app),
    ("skills", skills.app),
    ("topologies", topologies.app),
    ("users", users.app),
    ("webhooks", webhooks.app),
    ("audit", audit.app),
):
    app.add_typer(group, name=name)
