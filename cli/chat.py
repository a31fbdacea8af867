"""`perdure chat AGENT`: a conversation in the terminal, live, through pauses and worker deaths."""

import sys
from typing import Annotated

import typer

from cli.connection import Role, command, connect
from cli.failures import OTHER, USAGE
from cli.live_text import LiveText
from cli.screen import AsJson, AsName, fail, say, say_json
from cli.turn_screen import TurnScreen
from perdure.client import ApiError, Client, Event, Turn
from policy.printable import pretty_json


def chat(
    agent: Annotated[str, typer.Argument(help="The agent's id; see `perdure agents list`.")],
    message: Annotated[
        str | None, typer.Option("-m", "--message", help="Say this, show the answer, leave; 1 if it did not complete.")
    ] = None,
    conversation: Annotated[str | None, typer.Option(metavar="ID", help="Go on with this conversation.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Talk to an agent. With --json: every event as it comes, then the turn, one JSON value a line."""
    if message is not None and not message.strip():
        raise fail("the message is empty: say something after -m, or leave -m out to talk", USAGE)
    with connect(Role.REQUESTER, as_name) as client:
        conversation_id = conversation or client.conversations.create(agent).id
        if message is not None:
            turn = _one_turn(client, conversation_id, message, as_json)
            raise typer.Exit(0 if turn.status == "completed" else OTHER)
        _talk(client, conversation_id, as_json)
        if not as_json:
            say(f"To go on: {command('chat', agent, '--conversation', conversation_id)}")


def _talk(client: Client, conversation_id: str, as_json: bool) -> None:
    """Message after message, until the end of input."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  gives input() its history and editing
    while True:
        try:
            message = input("> " if sys.stdin.isatty() and not as_json else "")
        except (EOFError, KeyboardInterrupt):
            say()
            return
        if message.strip():
            try:
                _one_turn(client, conversation_id, message, as_json)
            except ApiError as error:
                if error.status in (0, 401, 403, 404):
                    raise
                say(f"{error.message} ({error.code})")


def _one_turn(client: Client, conversation_id: str, message: str, as_json: bool) -> Turn:
    started = client.turns.start(conversation_id, message)
    try:
        follow(client, started.turn_id, as_json=as_json)
    except KeyboardInterrupt:
        say()
        say(f"The turn goes on. Watch it: {command('turns', 'watch', started.turn_id)}")
        say(f"Stop it: {command('turns', 'stop', started.turn_id)}")
        raise typer.Exit(130) from None
    turn = client.turns.get(started.turn_id)
    if as_json:
        say_json(turn)
    return turn


def follow(client: Client, turn_id: str, *, as_json: bool, details: bool = False, after: str | None = None) -> None:
    """Show a turn's events until it has ended; at a pause, what it waits for and what to type."""
    screen = TurnScreen(LiveText(sys.stdout), details=details)
    for event in client.turns.events(turn_id, after=after):
        if as_json:
            say_json({"event": event.kind, "id": event.id, "data": event.data})
            continue
        screen.show(event)
        if event.kind == "tool.awaiting_approval":
            _show_request(client, event, screen.live)


def _show_request(client: Client, event: Event, live: LiveText) -> None:
    approval_id = str(event.data.get("approval_id"))
    try:
        approval = client.approvals.get(approval_id)
    except ApiError:
        pass  # this user may not read approvals; the command below is still the one to type
    else:
        if approval.status != "pending":
            return  # replayed: the decision follows
        for line in pretty_json(approval.result if approval.kind == "checkpoint" else approval.args).splitlines():
            live.line(f"      {line}")
    live.line(f"    To decide, type: {command('approvals', 'approve', approval_id)}   (or reject, edit, respond)")
