"""`perdure memory` and `perdure files`: working memory, promotions to shared memory, and a conversation's files."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import JsonValue

from perdure.cli.connection import Role, command, connect
from perdure.cli.terminal import (
    OTHER,
    USAGE,
    AsJson,
    AsName,
    Cursor,
    Limit,
    Yes,
    ago,
    confirm,
    fail,
    fields,
    format_time,
    say,
    say_json,
    say_page,
    table,
)
from perdure.client import Client
from perdure.client.memory import (
    clear_memory,
    decide_promotion,
    list_promotions,
    read_memory,
    read_promotion,
    write_memory,
)
from perdure.core.memory.files import BY_ENDING
from perdure.core.text import format_size, pretty_json
from perdure.schemas.memory import Promotion
from perdure.schemas.turns import File, Turn, Usage

# An approval applies to the text that the command has just shown. If the text has changed since, the API rejects it.
promotions_app = typer.Typer(
    help="Review texts that are proposed for shared memory.", no_args_is_help=True, rich_markup_mode=None
)
PromotionId = Annotated[
    str, typer.Argument(metavar="PROMOTION", help="The promotion's id, from `memory promotions list`.")
]
Digest = Annotated[
    str | None,
    typer.Option(metavar="SHA256", help="The digest of the text that you read; by default that of the text shown now."),
]


@promotions_app.command("list")
def print_promotions(
    status: Annotated[
        str, typer.Option(metavar="STATUS", help="pending, approved, rejected, withdrawn or all.")
    ] = "pending",
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """List pending promotions, newest first."""
    with connect(Role.ADMIN, as_name) as client:
        page = client.send(list_promotions(status=None if status == "all" else status, limit=limit, cursor=cursor))
    rows = [
        (
            promotion.id,
            f"{promotion.store}/{promotion.path}",
            promotion.title,
            promotion.risk,
            promotion.status,
            _proposer_text(promotion),
            ago(promotion.created_at),
        )
        for promotion in page.items
    ]
    say_page(
        page,
        ("promotion", "document", "title", "risk", "status", "proposed by", "since"),
        rows,
        "No promotions.",
        as_json=as_json,
    )


@promotions_app.command("show")
def show_promotion(promotion_id: PromotionId, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Show a promotion with its text."""
    with connect(Role.ADMIN, as_name) as client:
        promotion = client.send(read_promotion(promotion_id))
    if as_json:
        say_json(promotion)
        return
    _print_promotion(promotion)
    if promotion.status == "pending":
        say()
        say(f"  {command('memory', 'promotions', 'approve', promotion.id)}")
        say(f"  {command('memory', 'promotions', 'reject', promotion.id)} --comment WHY")


@promotions_app.command("approve")
def approve(
    promotion_id: PromotionId,
    comment: Annotated[str, typer.Option(metavar="TEXT", help="A comment for the record.")] = "",
    digest: Digest = None,
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Add the text to shared memory; the proposer cannot approve it."""
    with connect(Role.ADMIN, as_name) as client:
        _decide(client, promotion_id, "approve", comment, digest, yes=yes, as_json=as_json)


@promotions_app.command("reject")
def reject(
    promotion_id: PromotionId,
    comment: Annotated[str, typer.Option(metavar="TEXT", help="The reason.")],
    digest: Digest = None,
    yes: Yes = False,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Reject the promotion permanently."""
    with connect(Role.ADMIN, as_name) as client:
        _decide(client, promotion_id, "reject", comment, digest, yes=yes, as_json=as_json)


def _decide(
    client: Client, promotion_id: str, decision: str, comment: str, digest: str | None, *, yes: bool, as_json: bool
) -> None:
    promotion = client.send(read_promotion(promotion_id))
    if not as_json:
        _print_promotion(promotion)
    confirm(f"{decision} this promotion?", yes=yes, as_json=as_json)
    decided = client.send(decide_promotion(promotion_id, decision, digest or promotion.sha256, comment))
    if as_json:
        say_json(decided)
    else:
        say(f"{decided.status}: {decided.store}/{decided.path}")


def _print_promotion(promotion: Promotion) -> None:
    fields(
        [
            ("promotion", promotion.id),
            ("status", promotion.status),
            ("document", f"{promotion.store}/{promotion.path} ({promotion.type})"),
            ("type", "change of a shared document" if promotion.base_sha256 else "new document"),
            ("title", promotion.title),
            ("risk", promotion.risk),
            ("evidence", promotion.evidence_summary),
            ("proposed by", f"{_proposer_text(promotion)}, {format_time(promotion.created_at)}"),
            (
                "decided by",
                f"{promotion.decided_by}, {format_time(promotion.decided_at)}" if promotion.decided_by else "",
            ),
            ("comment", promotion.comment),
            ("sha256", promotion.sha256),
        ]
    )
    if promotion.content is not None:
        say()
        say(promotion.content)


def _proposer_text(promotion: Promotion) -> str:
    return f"{promotion.proposed_by} (by an agent)" if promotion.by_agent else promotion.proposed_by


memory_app = typer.Typer(
    help="Show and edit working memory, and decide on promotions.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
memory_app.add_typer(promotions_app, name="promotions")
Conversation = Annotated[str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")]


@memory_app.command("show")
def show_memory(conversation: Conversation, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Show all fields and renew their expiry."""
    with connect(Role.REQUESTER, as_name) as client:
        memory = client.send(read_memory(conversation))
    if as_json:
        say_json(memory)
    else:
        say(pretty_json(memory.fields) if memory.fields else "No fields are set.")


@memory_app.command("set")
def set_fields(
    conversation: Conversation,
    fields: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE", help="A field; VALUE is parsed as JSON, otherwise used as text."),
    ],
    ttl_seconds: Annotated[
        int | None, typer.Option(metavar="N", help="Seconds until the fields expire; 24 hours by default.")
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Set fields; NAME=null removes one."""
    values = dict(_parse_field(text) for text in fields)
    with connect(Role.REQUESTER, as_name) as client:
        memory = client.send(write_memory(conversation, values, ttl_seconds=ttl_seconds))
    if as_json:
        say_json(memory)
    else:
        say(pretty_json(memory.fields))


@memory_app.command("clear")
def clear(conversation: Conversation, as_name: AsName = None) -> None:
    """Delete all fields."""
    with connect(Role.REQUESTER, as_name) as client:
        client.send(clear_memory(conversation))
    say("All fields have been deleted.")


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")  # json.loads accepts NaN and Infinity, which no request can carry


def _parse_field(text: str) -> tuple[str, JsonValue]:
    name, equals, value = text.partition("=")
    if not equals:
        raise fail(f"{text!r} is not of the form NAME=VALUE", USAGE)
    try:
        return name, json.loads(value, parse_constant=_reject_constant)
    except ValueError:
        return name, value


files_app = typer.Typer(
    help="Upload, list and download files of conversations.", no_args_is_help=True, rich_markup_mode=None
)


@files_app.command("upload")
def upload(
    conversation: Conversation,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv, .tsv, .json or .txt file.")],
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Upload a file to a conversation, for its turns to use."""
    local_file = LocalFile.at(path)
    with connect(Role.REQUESTER, as_name) as client:
        file = local_file.upload(client, conversation)
    if as_json:
        say_json(file)
    else:
        say(f"Uploaded {file.name} ({format_size(file.size_bytes)}, {file.id}).")


@files_app.command("list")
def list_files(conversation: Conversation, as_json: AsJson = False, as_name: AsName = None) -> None:
    """List the files of a conversation, newest first."""
    with connect(Role.REQUESTER, as_name) as client:
        page = client.files.list(conversation)
    if as_json:
        say_json(page)
        return
    rows = [
        (file.id, file.name, file.size_bytes, format_time(file.created_at), file.turn_id or "uploaded")
        for file in page.items
    ]
    table(("file", "name", "bytes", "at", "created by turn"), rows, "No files.")


@files_app.command("get")
def download_file(
    file_id: Annotated[str, typer.Argument(metavar="FILE", help="The file's id.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The path to write to; - for standard output.")],
    as_name: AsName = None,
) -> None:
    """Download a file."""
    with connect(Role.REQUESTER, as_name) as client:
        content = client.files.read(file_id)
    if str(path) == "-":
        sys.stdout.buffer.write(content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise fail(f"{path}: {error.strerror}", OTHER) from None
    say(f"Saved {path} ({format_size(len(content))}).")


@files_app.command("delete")
def delete(
    file_id: Annotated[str, typer.Argument(metavar="FILE", help="The file's id.")], as_name: AsName = None
) -> None:
    """Permanently delete an upload. Files that a turn created are kept."""
    with connect(Role.REQUESTER, as_name) as client:
        client.files.delete(file_id)
    say(f"Deleted {file_id}.")


@files_app.command("usage")
def usage(
    conversation: Annotated[str | None, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Show your storage usage and quota."""
    with connect(Role.REQUESTER, as_name) as client:
        page = client.files.usage(conversation)
    if as_json:
        say_json(page)
        return
    for scope_usage in page.items:
        say(usage_line(scope_usage))


def usage_line(scope_usage: Usage) -> str:
    """Returns the storage that a scope uses, as a sentence."""
    owner = {"conversation": "this conversation", "user": "you", "tenant": "your tenant"}.get(
        scope_usage.scope, scope_usage.scope
    )
    if scope_usage.limit_bytes is None:
        return f"{format_size(scope_usage.used_bytes)} used by {owner}; no quota."
    limit = format_size(scope_usage.limit_bytes)
    return f"{format_size(scope_usage.used_bytes)} of {limit} used by {owner} ({scope_usage.variable})."


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A local file that can be uploaded."""

    name: str
    content: bytes
    media_type: str

    @classmethod
    def at(cls, path: Path) -> "LocalFile":
        """Reads a file.

        Raises: typer.Exit, after a line with the reason, if the file cannot be uploaded or read.
        """
        media_type = BY_ENDING.get(path.suffix.lower())
        try:
            if not media_type and path.stat():  # a missing file has no name to correct
                raise fail(f"{path}: the file name must end in {', '.join(BY_ENDING)}", USAGE)
            return cls(path.name, path.read_bytes(), media_type or "")
        except OSError as error:
            raise fail(f"{path}: {error.strerror}", USAGE) from None

    def upload(self, client: Client, conversation_id: str) -> File:
        """Uploads the file to a conversation."""
        return client.files.upload(conversation_id, self.name, self.content, self.media_type)


def print_picture_commands(turn: Turn) -> None:
    """Writes the command that fetches each picture of a turn."""
    pictures = (turn.output or {}).get("pictures")
    for kind, address in pictures.items() if isinstance(pictures, dict) else ():
        ending = "vl.json" if kind == "specification" else kind
        say(f"To save the {kind}: {command('files', 'get', str(address).rpartition('/')[2], f'chart.{ending}')}")
