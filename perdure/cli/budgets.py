"""`perdure budgets`: daily budgets and today's usage."""

from math import isfinite
from typing import Annotated

import typer

from perdure.cli.connection import Role, connect
from perdure.cli.terminal import USAGE, AsJson, AsName, fail, format_time, say, say_json, table
from perdure.schemas.agents import Budget, Budgets

app = typer.Typer(help="Show and set daily budgets.", no_args_is_help=True, rich_markup_mode=None)
MAX_TOKENS = 2**53
MAX_USD = 1e9
"""The API's limit."""


@app.command("show")
def show(as_json: AsJson = False, as_name: AsName = None) -> None:
    """Show today's budgets: limits, usage and reservations."""
    with connect(Role.ADMIN, as_name) as client:
        budgets = client.budgets.get()
    _print_budgets(budgets, as_json)


@app.command("set")
def set_limits(
    tokens: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_TOKENS, metavar="N", help="Tokens per day; omit to keep the current limit."),
    ] = None,
    usd: Annotated[
        float | None, typer.Option(metavar="AMOUNT", help="US dollars per day; omit to keep the current limit.")
    ] = None,
    no_tokens: Annotated[bool, typer.Option("--no-tokens", help="Remove the token limit.")] = False,
    no_usd: Annotated[bool, typer.Option("--no-usd", help="Remove the cost limit.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Set the daily limits of the tenant, for all its agents together. They apply from the next model call on. Omitted
    limits stay as they are."""
    if (tokens is not None and no_tokens) or (usd is not None and no_usd):
        raise fail("--tokens and --no-tokens, or --usd and --no-usd, cannot be combined", USAGE)
    if tokens is None and usd is None and not no_tokens and not no_usd:
        raise fail("Set --tokens or --no-tokens, or --usd or --no-usd", USAGE)
    check_usd(usd)
    with connect(Role.ADMIN, as_name) as client:
        current = client.budgets.get().tenant or Budget()
        budgets = client.budgets.set(
            max_tokens=None if no_tokens else current.max_tokens if tokens is None else tokens,
            max_cost_usd=None if no_usd else current.max_cost_usd if usd is None else usd,
        )
    _print_budgets(budgets, as_json)


def check_usd(usd: float | None) -> None:
    """Ends the command if `--usd` has a value that is not an amount of US dollars above 0."""
    if usd is not None and not (isfinite(usd) and 0 < usd <= MAX_USD):
        raise fail(f"--usd must be above 0 and at most {MAX_USD:,.0f}", USAGE)


def _print_budgets(budgets: Budgets, as_json: bool) -> None:
    if as_json:
        say_json(budgets)
        return
    named_budgets = [
        ("all agents", budgets.tenant),
        *((agent_budget.agent, agent_budget) for agent_budget in budgets.agents),
    ]
    rows = [(name, *_token_cells(budget), *_cost_cells(budget)) for name, budget in named_budgets if budget is not None]
    table(
        ("budget", "tokens used", "reserved", "limit", "USD used", "reserved", "limit"),
        rows,
        "No daily limits.",
    )
    for name, budget in named_budgets:
        if budget is not None and (budget.assumed_tokens or budget.assumed_cost_usd):
            say(
                f"{name}: of these, {budget.assumed_tokens} tokens and {budget.assumed_cost_usd:.4f} USD are "
                "upper bounds for calls of workers that were killed; only the provider knows the actual usage."
            )
    say(f"Resets at {format_time(budgets.resets_at)}.")


def _token_cells(budget: Budget) -> tuple[object, object, object]:
    return budget.used_tokens, budget.reserved_tokens, "none" if budget.max_tokens is None else budget.max_tokens


def _cost_cells(budget: Budget) -> tuple[str, str, str]:
    limit = "none" if budget.max_cost_usd is None else f"{budget.max_cost_usd:.2f}"
    return f"{budget.used_cost_usd:.4f}", f"{budget.reserved_cost_usd:.4f}", limit
