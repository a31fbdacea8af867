"""`perdure memory`: the scratchpad of a conversation, and what is proposed for everybody's memory."""

import json
from typing import Annotated

import typer
from pydantic import JsonValue

from cli import promotions
from cli.connection import Role, connect
from cli.failures import USAGE
from cli.screen import AsJson, AsName, fail, say, say_json
from perdure.client.memory_calls import clear_memory, read_memory, write_memory
from policy.printable import pretty_json

app = typer.Typer(help="The scratchpad of a conversation; promotions.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(promotions.app, name="promotions")
Conversation = Annotated[str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")]


@app.command("show")
def show(conversation: Conversation, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Every field, each of which lives on from now."""
    with connect(Role.REQUESTER, as_name) as client:
        memory = client.send(read_memory(conversation))
    if as_json:
        say_json(memory)
    else:
        say(pretty_json(memory.fields) if memory.fields else "Nothing is remembered.")


@app.command("set")
def set_fields(
    conversation: Conversation,
    fields: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="VALUE is JSON, or else text.")],
    ttl_seconds: Annotated[int | None, typer.Option(help="How long they live; 24 h if it is not said.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Write fields over what is there; NAME=null removes one."""
    given = dict(_field(each) for each in fields)
    with connect(Role.REQUESTER, as_name) as client:
        memory = client.send(write_memory(conversation, given, ttl_seconds=ttl_seconds))
    if as_json:
        say_json(memory)
    else:
        say(pretty_json(memory.fields))


@app.command("clear")
def clear(conversation: Conversation, as_name: AsName = None) -> None:
    """Forget every field."""
    with connect(Role.REQUESTER, as_name) as client:
        client.send(clear_memory(conversation))
    say("Forgotten.")


def _field(text: str) -> tuple[str, JsonValue]:
    name, equals, value = text.partition("=")
    if not equals:
        raise fail(f"{text!r} is not NAME=VALUE", USAGE)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
