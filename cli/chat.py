"""`perdure chat AGENT`: a conversation in the terminal, live, through pauses and worker deaths."""

import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from cli.connection import Role, command, connect
from cli.failures import OTHER, USAGE
from cli.files import ToSend, say_pictures
from cli.live_text import LiveText
from cli.screen import AsJson, AsName, fail, say, say_json
from cli.turn_screen import TurnScreen
from perdure.client import ApiError, Client, Event, Turn
from perdure.client.turn_calls import OnBusy as Way
from policy.admission import OnBusy
from policy.printable import pretty_json


def chat(
    agent: Annotated[str, typer.Argument(help="The agent's id; see `perdure agents list`.")],
    message: Annotated[
        str | None, typer.Option("-m", "--message", help="Say this, show the answer, leave; 1 if it did not complete.")
    ] = None,
    conversation: Annotated[str | None, typer.Option(metavar="ID", help="Go on with this conversation.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Upload it first; may be given again.")
    ] = None,
    on_busy: Annotated[
        OnBusy, typer.Option(help="Where a turn is open: wait behind it, speak into it (steer), or end it (replace).")
    ] = OnBusy.REJECT,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Talk to an agent. With --json: every event as it comes, then the turn, one JSON value a line."""
    if message is not None and not message.strip():
        raise fail("the message is empty: say something after -m, or leave -m out to talk", USAGE)
    files = [ToSend.at(path) for path in file or ()]
    with connect(Role.REQUESTER, as_name) as client:
        conversation_id = conversation or client.conversations.create(agent).id
        for each in files:
            each.upload(client, conversation_id)
        if message is not None:
            turn = _one_turn(client, conversation_id, message, on_busy, as_json)
            raise typer.Exit(0 if turn.status == "completed" else OTHER)
        _talk(client, conversation_id, on_busy, as_json)
        if not as_json:
            say(f"To go on: {command('chat', agent, '--conversation', conversation_id)}")


def _talk(client: Client, conversation_id: str, on_busy: OnBusy, as_json: bool) -> None:
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
                _one_turn(client, conversation_id, message, on_busy, as_json)
            except ApiError as error:
                if error.status in (0, 401, 403, 404):
                    raise
                say(f"{error.message} ({error.code})")


def _one_turn(client: Client, conversation_id: str, message: str, on_busy: OnBusy, as_json: bool) -> Turn:
    """The turn that has heard the message: the one under way where it joins that, else the one that goes on with it."""
    way = None if on_busy is OnBusy.REJECT else cast(Way, on_busy.value)
    started = client.turns.start(conversation_id, message, on_busy=way)
    heard_by = started.turn_id
    try:
        left_over = follow(client, heard_by, as_json=as_json)
        while started.joined and left_over is not None:
            heard_by, left_over = left_over, follow(client, left_over, as_json=as_json)
    except KeyboardInterrupt:
        say()
        say(f"The turn goes on. Watch it: {command('turns', 'watch', heard_by)}")
        say(f"Stop it: {command('turns', 'stop', heard_by)}")
        raise typer.Exit(130) from None
    turn = client.turns.get(heard_by)
    if as_json:
        say_json(turn)
    else:
        say_pictures(turn)
    return turn


def follow(
    client: Client, turn_id: str, *, as_json: bool, details: bool = False, after: str | None = None
) -> str | None:
    """Show a turn's events until it has ended; at a pause, what it waits for and what to type. The id of the turn that
    goes on with what joined this one and was not heard, where there is one."""
    screen, left_over = TurnScreen(LiveText(sys.stdout), details=details), None
    for event in client.turns.events(turn_id, after=after):
        if event.kind == "done":
            left_over = event.data.get("left_over")
        if as_json:
            say_json({"event": event.kind, "id": event.id, "data": event.data})
            continue
        screen.show(event)
        if event.kind == "tool.awaiting_approval":
            _show_request(client, event, screen.live)
    return left_over


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
