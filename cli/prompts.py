"""`perdure prompts`: the templates that agents take their persona from, and the stages of their versions.

What is promoted is the text that this command has just shown: if it were another by then, the API would refuse.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.asking import Yes, confirm
from cli.connection import Role, connect
from cli.editor import EditFailed, NoTemporaryFile, edited_text
from cli.failures import OTHER, USAGE
from cli.screen import AsJson, AsName, fail, fields, moment, say, say_json, table
from perdure.client import ApiError, Client, PromptVersion
from perdure.client.prompt_calls import Shown

app = typer.Typer(help="Prompt templates and their stages.", no_args_is_help=True, rich_markup_mode=None)
Template = Annotated[str, typer.Argument(metavar="TEMPLATE", help="The template's key.")]
VersionId = Annotated[str, typer.Argument(metavar="VERSION", help="The version's id, from `prompts list`.")]
Stage = Annotated[Shown | None, typer.Option(help="Not the one that speaks to you but the one in this stage.")]
_NEXT = {"draft": "pre_production", "pre_production": "active"}


@app.command("list")
def list_prompts(
    template: Annotated[str | None, typer.Option(metavar="KEY")] = None,
    stage: Annotated[str | None, typer.Option(help="draft, pre_production, active or archived.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next` of the list before.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Versions, the one changed last first."""
    with connect(Role.REVIEWER, as_name) as client:
        page = client.prompts.list(template=template, stage=stage, limit=limit, cursor=cursor)
    if as_json:
        say_json(page)
        return
    rows = [(each.id, each.template, each.stage, each.author, each.characters, each.changed_at) for each in page.items]
    table(("version", "template", "stage", "author", "characters", "changed"), rows, "No template.")
    if page.next:
        say(f"More: --cursor {page.next}")


@app.command("show")
def show(
    template: Template,
    stage: Stage = None,
    rendered: Annotated[bool, typer.Option("--rendered", help="With its variables filled in.")] = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """The text that speaks to you: your draft, else the active version."""
    with connect(Role.REQUESTER, as_name) as client:
        read = client.prompts.render if rendered else client.prompts.get
        found = read(template, stage=stage)
    _say(found, as_json)


@app.command("edit")
def edit(
    template: Template,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The new text, instead of an editor; - reads the input.")
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Save your own draft; $EDITOR opens on what speaks to you now."""
    with connect(Role.REQUESTER, as_name) as client:
        try:
            text = _read(file) if file else edited_text(_text_now(client, template), "prompt.md", "--file FILE")
        except NoTemporaryFile as error:
            raise fail(str(error), OTHER) from None
        except (EditFailed, OSError, UnicodeDecodeError) as error:
            raise fail(str(error), USAGE) from None
        if not text.strip():
            raise fail("the text is empty; nothing was saved", USAGE)
        saved = client.prompts.save_draft(template, text)
    if as_json:
        say_json(saved)
    else:
        say(f"Saved as your draft {saved.id}; it speaks in your own turns until it is promoted or archived,")
        say(f"with the agents that say `persona_template: {template}` in their file.")


@app.command("promote")
def promote(version_id: VersionId, yes: Yes = False, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Move a version on: a draft to pre-production, what is there to active."""
    with connect(Role.REVIEWER, as_name) as client:
        found = client.prompts.version(version_id)
        to = _NEXT.get(found.stage)
        if to is None:
            raise fail(f"it is {found.stage}; only a draft or what is in pre_production moves on", OTHER)
        if not as_json:
            _say(found, as_json=False)
        confirm(f"Promote it to {to}?", yes=yes, as_json=as_json)
        moved = client.prompts.promote(version_id, "active" if to == "active" else "pre_production", found.digest)
    _moved(moved, as_json)


@app.command("archive")
def archive(version_id: VersionId, yes: Yes = False, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Take a version out of use; where it was active, agents speak with their own persona again."""
    with connect(Role.REVIEWER, as_name) as client:
        confirm(f"Archive {version_id}?", yes=yes, as_json=as_json)
        moved = client.prompts.archive(version_id)
    _moved(moved, as_json)


def _text_now(client: Client, template: str) -> str:
    """What the editor opens on; empty for a template that there is not yet."""
    try:
        return client.prompts.get(template).text
    except ApiError as error:
        if error.status == 404:
            return ""
        raise


def _read(file: Path) -> str:
    return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")


def _moved(moved: PromptVersion, as_json: bool) -> None:
    if as_json:
        say_json(moved)
    else:
        say(f"{moved.template} {moved.id}: {moved.stage}")


def _say(found: PromptVersion, as_json: bool) -> None:
    if as_json:
        say_json(found)
        return
    named = (("template", found.template), ("version", found.id), ("stage", found.stage), ("author", found.author))
    fields((*named, ("changed", moment(found.changed_at)), ("digest", found.digest)))
    say()
    say(found.text)
