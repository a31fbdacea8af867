"""`perdure files`: what a conversation was given, what its turns made, and how much is kept."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.connection import Role, command, connect
from cli.failures import OTHER, USAGE
from cli.screen import AsJson, AsName, fail, moment, say, say_json, table
from perdure.client import Client, Turn
from perdure.client.file_calls import File, Usage
from policy.printable import size
from policy.uploads import BY_ENDING

app = typer.Typer(help="What conversations were given and made.", no_args_is_help=True, rich_markup_mode=None)
Conversation = Annotated[str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")]


@app.command("upload")
def upload(
    conversation: Conversation,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv, .tsv, .json or .txt file.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Give a conversation a file, whose turns then work with it."""
    found = ToSend.at(path)
    with connect(Role.REQUESTER, as_name) as client:
        file = found.upload(client, conversation)
    if as_json:
        say_json(file)
    else:
        say(f"{file.name} is there ({file.size_bytes} bytes, {file.id}).")


@app.command("list")
def list_files(conversation: Conversation, as_json: AsJson = False, as_name: AsName = None) -> None:
    """List the files of a conversation, newest first."""
    with connect(Role.REQUESTER, as_name) as client:
        page = client.files.list(conversation)
    if as_json:
        say_json(page)
        return
    rows = [
        (file.id, file.name, file.size_bytes, moment(file.created_at), file.turn_id or "uploaded")
        for file in page.items
    ]
    table(("file", "name", "bytes", "at", "made by turn"), rows, "No file.")


@app.command("get")
def get(
    file_id: Annotated[str, typer.Argument(metavar="FILE", help="The file's id.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Where it is written; - for standard output.")],
    as_name: AsName = None,
) -> None:
    """Fetch a file."""
    with connect(Role.REQUESTER, as_name) as client:
        content = client.files.read(file_id)
    if str(path) == "-":
        sys.stdout.buffer.write(content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise fail(f"{path}: {error.strerror}", OTHER) from None
    say(f"{path}: {len(content)} bytes.")


@app.command("delete")
def delete(
    file_id: Annotated[str, typer.Argument(metavar="FILE", help="The file's id.")], as_name: AsName = None
) -> None:
    """Delete an upload for good. What a turn made stays on record."""
    with connect(Role.REQUESTER, as_name) as client:
        client.files.delete(file_id)
    say(f"{file_id} is deleted.")


@app.command("usage")
def usage(
    conversation: Annotated[str | None, typer.Argument(metavar="[CONVERSATION]", help="The conversation's id.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Show how much you keep, and your quota."""
    with connect(Role.REQUESTER, as_name) as client:
        page = client.files.usage(conversation)
    if as_json:
        say_json(page)
        return
    for each in page.items:
        say(usage_line(each))


def usage_line(found: Usage) -> str:
    """What a scope keeps, as a sentence."""
    whose = {"conversation": "this conversation", "user": "you", "tenant": "your tenant"}.get(found.scope, found.scope)
    if found.limit_bytes is None:
        return f"{size(found.used_bytes)} used by {whose}; there is no quota."
    return f"{size(found.used_bytes)} of {size(found.limit_bytes)} used by {whose} ({found.variable})."


@dataclass(frozen=True, slots=True)
class ToSend:
    """A file of this machine that can be uploaded."""

    name: str
    content: bytes
    media_type: str

    @classmethod
    def at(cls, path: Path) -> "ToSend":
        """Read whole.

        Raises: typer.Exit, after a line that says what is wrong with it.
        """
        media_type = BY_ENDING.get(path.suffix.lower())
        if media_type is None:
            raise fail(f"{path}: a file's name ends in {', '.join(BY_ENDING)}", USAGE)
        try:
            return cls(path.name, path.read_bytes(), media_type)
        except OSError as error:
            raise fail(f"{path}: {error.strerror}", USAGE) from None

    def upload(self, client: Client, conversation_id: str) -> File:
        """Into the conversation."""
        return client.files.upload(conversation_id, self.name, self.content, self.media_type)


def say_pictures(turn: Turn) -> None:
    """The command that fetches each picture that a turn has made."""
    pictures = (turn.output or {}).get("pictures")
    for kind, address in pictures.items() if isinstance(pictures, dict) else ():
        ending = "vl.json" if kind == "specification" else kind
        say(f"To keep the {kind}, type: {command('files', 'get', str(address).rpartition('/')[2], f'chart.{ending}')}")
