"""`perdure agents`, `prompts`, `rules` and `topologies`: what the tenant's agents consist of."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.connection import Role, connect
from perdure.cli.terminal import (
    OTHER,
    USAGE,
    AsJson,
    AsName,
    Cursor,
    EditFailed,
    Limit,
    NoTemporaryFile,
    Yes,
    confirm,
    edited_text,
    fail,
    fields,
    format_time,
    say,
    say_json,
    say_page,
    table,
)
from perdure.client import ApiError, Client
from perdure.client.agents import SelectableStage
from perdure.core.agents.tool_rules import unavailable_sentences, unsent_sentences
from perdure.core.text import escape_terminal
from perdure.schemas.agents import ExemptibleTool, PromptVersion, Rule
from perdure.schemas.base import Page

agents_app = typer.Typer(help="List and show agents.", no_args_is_help=True, rich_markup_mode=None)
_NEXT_STAGE = {"draft": "pre_production", "pre_production": "active"}


@agents_app.callback()
def group() -> None:
    """List and show agents."""


@agents_app.command("list")
def list_agents(as_json: AsJson = False, as_name: AsName = None) -> None:
    """List all agents with their topology and model."""
    with connect(Role.REQUESTER, as_name) as client:
        page = client.agents.list()
    rows = [(agent.id, agent.title, agent.topology, agent.model) for agent in page.items]
    say_page(
        page,
        ("agent", "title", "topology", "model"),
        rows,
        "No agent is published; `perdure up --app DIR` publishes those of an app.",
        as_json=as_json,
    )


@agents_app.command("show")
def show_agent(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id; see `perdure agents list`.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Show an agent and its tools.

    Tools that its model is not sent are listed as warnings, with the provider's rule.
    """
    with connect(Role.REQUESTER, as_name) as client:
        found, tools = client.agents.get(agent), client.agents.tools(agent)
    if as_json:
        say_json({**found.model_dump(mode="json"), "tools": [tool.name for tool in tools.items]})
        return
    fields(
        (
            ("agent", found.id),
            ("title", found.title),
            ("topology", found.topology),
            ("model", found.model),
            ("fallback", found.fallback_model or ""),
            ("on length", found.on_length),
            ("version", found.version),
        )
    )
    say()
    rows = [(tool.name, tool.effect, "required" if tool.needs_approval else "", tool.toolset) for tool in tools.items]
    table(("tool", "effect", "approval", "toolset"), rows, "This agent has no tools.")
    for sentence in (
        *unavailable_sentences(found.unavailable_tools, found.unreached_tools),
        *unsent_sentences(found.not_sent),
    ):
        say(f"warning: {sentence}")


# A promotion applies to the text that the command has just shown. If the text has changed since, the API rejects it.
prompts_app = typer.Typer(
    help="Edit prompt templates and promote their versions.", no_args_is_help=True, rich_markup_mode=None
)
Template = Annotated[str, typer.Argument(metavar="TEMPLATE", help="The template's key.")]
VersionId = Annotated[str, typer.Argument(metavar="VERSION", help="The version's id, from `prompts list`.")]
Stage = Annotated[
    SelectableStage | None, typer.Option(help="The version in this stage, instead of the one that applies to you.")
]


@prompts_app.command("list")
def list_prompts(
    template: Annotated[str | None, typer.Option(metavar="KEY", help="Only versions of this template.")] = None,
    stage: Annotated[
        str | None, typer.Option(metavar="STAGE", help="draft, pre_production, active or archived.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """List versions, most recently changed first."""
    with connect(Role.REVIEWER, as_name) as client:
        page = client.prompts.list(template=template, stage=stage, limit=limit, cursor=cursor)
    rows = [
        (version.id, version.template, version.stage, version.author, version.characters, version.changed_at)
        for version in page.items
    ]
    say_page(
        page,
        ("version", "template", "stage", "author", "characters", "changed"),
        rows,
        "No templates.",
        as_json=as_json,
    )


@prompts_app.command("show")
def show_prompt(
    template: Template,
    stage: Stage = None,
    rendered: Annotated[bool, typer.Option("--rendered", help="Fill in the variables.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Show the version that applies to you. This is your draft, or else the active version."""
    with connect(Role.REQUESTER, as_name) as client:
        fetch = client.prompts.render if rendered else client.prompts.get
        version = fetch(template, stage=stage)
    _print_prompt(version, as_json)


@prompts_app.command("edit")
def edit(
    template: Template,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the new text, instead of an editor; - reads standard input."),
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Save your own draft of a template. $EDITOR opens with the version that applies to you now."""
    with connect(Role.REQUESTER, as_name) as client:
        try:
            text = (
                _read_text(file) if file else edited_text(_current_text(client, template), "prompt.md", "--file FILE")
            )
        except NoTemporaryFile as error:
            raise fail(str(error), OTHER) from None
        except (EditFailed, OSError, UnicodeDecodeError) as error:
            raise fail(str(error), USAGE) from None
        if not text.strip():
            raise fail("The text is empty; nothing was saved", USAGE)
        saved = client.prompts.save_draft(template, text)
    if as_json:
        say_json(saved)
    else:
        say(f"Saved as your draft {saved.id}. Until it is promoted or archived, it applies to your own turns")
        say(f"with agents whose file has `persona_template: {template}`.")


@prompts_app.command("promote")
def promote(version_id: VersionId, yes: Yes = False, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Promote a version to the next stage: pre-production, then active."""
    with connect(Role.REVIEWER, as_name) as client:
        version = client.prompts.version(version_id)
        next_stage = _NEXT_STAGE.get(version.stage)
        if next_stage is None:
            raise fail(f"The version is {version.stage}; only draft and pre_production versions can be promoted", OTHER)
        if not as_json:
            _print_prompt(version, as_json=False)
        confirm(f"Promote it to {next_stage}?", yes=yes, as_json=as_json)
        promoted = client.prompts.promote(
            version_id, "active" if next_stage == "active" else "pre_production", version.digest
        )
    _print_stage(promoted, as_json)


@prompts_app.command("archive")
def archive(version_id: VersionId, yes: Yes = False, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Archive a version. If it was active, agents use their own persona again."""
    with connect(Role.REVIEWER, as_name) as client:
        confirm(f"Archive {version_id}?", yes=yes, as_json=as_json)
        archived = client.prompts.archive(version_id)
    _print_stage(archived, as_json)


def _current_text(client: Client, template: str) -> str:
    """Returns the text for the editor; empty if the template does not exist yet."""
    try:
        return client.prompts.get(template).text
    except ApiError as error:
        if error.status == 404:
            return ""
        raise


def _read_text(file: Path) -> str:
    return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")


def _print_stage(version: PromptVersion, as_json: bool) -> None:
    if as_json:
        say_json(version)
    else:
        say(f"{version.template} {version.id}: {version.stage}")


def _print_prompt(version: PromptVersion, as_json: bool) -> None:
    if as_json:
        say_json(version)
        return
    identity = (
        ("template", version.template),
        ("version", version.id),
        ("stage", version.stage),
        ("author", version.author),
    )
    fields((*identity, ("changed", format_time(version.changed_at)), ("digest", version.digest)))
    say()
    say(version.text)


rules_app = typer.Typer(
    help="List rules and override them for this tenant.", no_args_is_help=True, rich_markup_mode=None
)


@rules_app.command("list")
def list_rules(as_json: AsJson = False, as_name: AsName = None) -> None:
    """List all rules that can apply to a turn."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.rules.list()
    _print_rules(page, as_json)


@rules_app.command("set")
def set_rule(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The rule's id, from `rules list`.")],
    do: Annotated[str, typer.Argument(metavar="ACTION", help="abort, or the rule's own action to remove an override.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Make a rule stricter from the next turn on."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.rules.set(rule, do)
    _print_rules(page.model_copy(update={"items": [listed for listed in page.items if listed.id == rule]}), as_json)


@rules_app.command("tools")
def list_tools(as_json: AsJson = False, as_name: AsName = None) -> None:
    """List the tools that this tenant can exempt from approval."""
    with connect(Role.ADMIN, as_name) as client:
        _print_tools(client.rules.tools(), as_json)


@rules_app.command("waive")
def waive(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="A tool from `rules tools`.")],
    undo: Annotated[bool, typer.Option("--undo", help="Require an approval again.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Exempt a tool from approval from the next turn on. Rules that stop its calls still apply."""
    with connect(Role.ADMIN, as_name) as client:
        _print_tools(client.rules.set_tool(tool, approval=undo), as_json)


@rules_app.command("related")
def four_eyes(
    allow: Annotated[
        bool | None, typer.Option("--allow/--refuse", help="Allow or refuse the decisions of related users.")
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Show or set whether related users can decide.

    Related users may be one person, such as a user and the creator of the user's token. The setting is for high-risk
    calls.
    """
    with connect(Role.ADMIN, as_name) as client:
        current = client.rules.four_eyes() if allow is None else client.rules.set_four_eyes(related_decide=allow)
    if as_json:
        say_json(current)
        return
    say(f"Decisions of related users on high-risk calls: {'allowed' if current.related_decide else 'refused'}")


def _print_tools(page: Page[ExemptibleTool], as_json: bool) -> None:
    rows = [(item.tool, "approval required" if item.approval else "exempt from approval") for item in page.items]
    say_page(page, ("tool", "calls"), rows, "No tools.", as_json=as_json)


def _print_rules(page: Page[Rule], as_json: bool) -> None:
    rows = [(rule.id, rule.on, rule.do, "yes" if rule.overridden else "", rule.checkpoint) for rule in page.items]
    say_page(page, ("rule", "applies", "action", "overridden", "checkpoint"), rows, "No rules.", as_json=as_json)


topologies_app = typer.Typer(help="Show the graphs that agents run on.", no_args_is_help=True, rich_markup_mode=None)


@topologies_app.command("list")
def list_topologies(as_json: AsJson = False, as_name: AsName = None) -> None:
    """List all topologies."""
    with connect(Role.REQUESTER, as_name) as client:
        page = client.topologies.list()
    say_page(page, ("topology",), [(topology.name,) for topology in page.items], "No topologies.", as_json=as_json)


@topologies_app.command("show")
def show_topology(
    name: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="A name from `topologies list`.")],
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a Mermaid drawing instead of the manifest.")
    ] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Show a topology's manifest as JSON, or its drawing."""
    with connect(Role.REQUESTER, as_name) as client:
        if mermaid and not as_json:
            sys.stdout.write(escape_terminal(client.topologies.drawing(name).rstrip("\n")) + "\n")
        elif mermaid:
            say_json({"name": name, "mermaid": client.topologies.drawing(name)})
        else:
            say_json(client.topologies.get(name))
