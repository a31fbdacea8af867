"""`perdure turns`: lists, watches, answers and stops turns."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli.budgets import check_usd
from perdure.cli.chat import follow
from perdure.cli.connection import Role, command, connect
from perdure.cli.memory import print_picture_commands
from perdure.cli.terminal import (
    OTHER,
    USAGE,
    AsJson,
    AsName,
    Cursor,
    Limit,
    check_choice,
    fail,
    fields,
    format_time,
    say,
    say_json,
    say_page,
    time_left,
)
from perdure.contracts.ids import EFFECT_PREFIX, effect_key
from perdure.contracts.turns import TurnStatus
from perdure.core.text import escape_terminal
from perdure.core.turns import truncation_notice
from perdure.schemas.turns import Segment, Turn, Waiting

app = typer.Typer(help="List, watch and stop turns.", no_args_is_help=True, rich_markup_mode=None)
TurnId = Annotated[str, typer.Argument(metavar="TURN", help="The turn's id.")]


@app.command("list")
def list_turns(
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help=f"Only turns with this status: {', '.join(TurnStatus)}.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="ID", help="Only turns of this agent.")] = None,
    conversation: Annotated[str | None, typer.Option(metavar="ID", help="Only turns of this conversation.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """List turns, newest first."""
    check_choice("--status", status, TurnStatus)
    with connect(Role.REQUESTER, as_name) as client:
        page = client.turns.list(status=status, agent=agent, conversation=conversation, limit=limit, cursor=cursor)
    rows = [
        (turn.turn_id, turn.status, turn.agent, turn.started_at, ", ".join(turn.waiting_for.ids))
        if turn.waiting_for
        else (turn.turn_id, turn.status, turn.agent, turn.started_at, turn.answer or "")
        for turn in page.items
    ]
    say_page(
        page, ("turn", "status", "agent", "started", "answer or pending requests"), rows, "No turns.", as_json=as_json
    )


@app.command("show")
def show(turn_id: TurnId, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Show one turn: its path through the graph, usage and answer."""
    with connect(Role.REQUESTER, as_name) as client:
        turn = client.turns.get(turn_id)
        segments = [] if as_json else client.turns.segments(turn_id).items
    if as_json:
        say_json(turn)
        return
    failures = ((_failure_label(turn, each), _failure_line(each)) for each in segments)
    fields([*_turn_fields(turn), *(each for each in failures if each[1])])
    _print_next_steps(turn)
    if turn.answer:
        say()
        say(escape_terminal(turn.answer))
    print_picture_commands(turn)


def _turn_fields(turn: Turn) -> list[tuple[str, object]]:
    waiting_for = turn.waiting_for
    return [
        ("turn", turn.turn_id),
        ("status", turn.status),
        ("agent", f"{turn.agent} on {turn.topology}"),
        ("conversation", turn.conversation_id),
        ("path", " → ".join(turn.nodes)),
        ("tokens", f"{turn.usage.input_tokens} in, {turn.usage.output_tokens} out, ${turn.usage.cost_usd:.4f}"),
        ("model calls", turn.attempts),
        ("started", turn.started_at),
        ("ended", turn.ended_at),
        ("answer ended by", turn.finish_reason),
        ("note", truncation_notice(turn.finish_reason) if turn.truncated else ""),
        *_error_fields(turn),
        ("does not continue", f"{turn.stuck.failures} failures: {turn.stuck.message}" if turn.stuck else ""),
        ("waiting for", _wait_text(waiting_for) if waiting_for else ""),
        (
            "until",
            f"{format_time(waiting_for.expires_at)} ({time_left(waiting_for.expires_at)})"
            if waiting_for and waiting_for.expires_at
            else "",
        ),
    ]


def _wait_text(waiting_for: Waiting) -> str:
    kind = "a worker with the tool version of" if waiting_for.kind == "worker" else waiting_for.kind
    return f"{kind} {', '.join(waiting_for.ids)}"


def _failure_label(turn: Turn, part: Segment) -> str:
    waits_for = turn.waiting_for.ids if turn.waiting_for else []
    return "unknown outcome" if effect_key(turn.turn_id, part.call_id) in waits_for else "failed call"


def _failure_line(part: Segment) -> str:
    """Returns the line about a call that failed: what its tool raised, or the message that the model received."""
    if part.kind != "tool" or part.state != "error":
        return ""
    known = part.known.message if part.known else ""
    told = part.result.get("message", "") if isinstance(part.result, dict) else ""
    return f"{part.tool}: {'; '.join(filter(None, (known, part.failure))) or told or 'failed'}"


def _print_next_steps(turn: Turn) -> None:
    """Prints the commands that a waiting turn needs."""
    waiting_for = turn.waiting_for
    if waiting_for is not None and waiting_for.kind in ("approval", "checkpoint"):
        for each in waiting_for.ids:
            if each.startswith(EFFECT_PREFIX):
                say(f"To see and settle: {command('effects', 'show', each)}")
            else:
                say(f"To see and decide: {command('approvals', 'show', each)}")
    if waiting_for is not None and waiting_for.kind == "limit":
        say(f"To raise the limit: {command('turns', 'raise', turn.turn_id)} --tokens N --usd X")
    if waiting_for is not None and waiting_for.kind == "clarification":
        say(f"To answer: {command('turns', 'answer', turn.turn_id)} TEXT")


def _error_fields(turn: Turn) -> list[tuple[str, str]]:
    error, again = turn.error, ""
    if error is None:
        return []
    if error.retry_after_seconds and turn.ended_at:
        at = turn.ended_at + timedelta(seconds=error.retry_after_seconds)
        again = f"from {format_time(at)} ({error.retry_after_seconds:.0f} s after the end)"
    answers = [("provider", line) for line in error.provider_answers]
    return [("error", f"{error.code}: {error.message}"), *answers, ("try again", again)]


@app.command("watch")
def watch(
    turn_id: TurnId,
    after: Annotated[str | None, typer.Option(metavar="EVENT", help="Start after this event id.")] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Stream the events of a turn from its start to its end. With --json: one event per line."""
    with connect(Role.REQUESTER, as_name) as client:
        try:
            follow(client, turn_id, as_json=as_json, details=True, after=after)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        turn = client.turns.get(turn_id)
    raise typer.Exit(0 if turn.status == "completed" else OTHER)


@app.command("stop")
def stop(turn_id: TurnId, as_json: AsJson = False, as_name: AsName = None) -> None:
    """Stop a turn: start no new work and cancel running calls."""
    with connect(Role.REQUESTER, as_name) as client:
        answer = client.turns.stop(turn_id)
    if as_json:
        say_json(answer)
    else:
        say(f"Stop requested. To see the result: {command('turns', 'show', turn_id)}")


@app.command("answer")
def answer(
    turn_id: TurnId,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The answer. Omit it to see the question.")] = None,
    payload: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON file with the whole answer, instead of a text.")
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Answer a question that your turn asked; the first answer counts."""
    with connect(Role.REQUESTER, as_name) as client:
        turn = client.turns.get(turn_id)
        waiting_for = turn.waiting_for
        if waiting_for is None or waiting_for.kind not in ("clarification", "client_run") or not waiting_for.ids:
            raise fail(f"The turn is {turn.status} and has no open question", USAGE)
        question = client.turns.question(turn_id, waiting_for.ids[0])
        answer_payload = {"text": text} if text is not None else _read_payload(payload)
        if answer_payload is not None:
            question = client.turns.answer(turn_id, question.id, question.kind, answer_payload)
    if as_json:
        say_json(question)
        return
    if answer_payload is not None:
        say("Answered. The turn continues.")
        return
    for name, value in question.asked.items():
        say(f"{name}: {escape_terminal(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))}")


def _read_payload(path: Path | None) -> dict[str, Any] | None:
    """Returns the payload in the file; None if no file is given."""
    if path is None:
        return None
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise fail(f"{path}: {error}", USAGE) from None
    if not isinstance(content, dict):
        raise fail(f"{path}: the answer must be one JSON object", USAGE)
    return content


@app.command("raise")
def raise_limits(
    turn_id: TurnId,
    tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The new token limit of the whole turn.")
    ] = None,
    usd: Annotated[
        float | None, typer.Option(metavar="AMOUNT", help="The new cost limit of the whole turn, in US dollars.")
    ] = None,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Raise a limit at which a turn is paused; the turn then continues."""
    if tokens is None and usd is None:
        raise fail("Set --tokens, --usd or both", USAGE)
    check_usd(usd)
    with connect(Role.REVIEWER, as_name) as client:
        answer = client.turns.raise_limits(turn_id, max_tokens=tokens, max_cost_usd=usd)
    if as_json:
        say_json(answer)
    else:
        say("The limit has been raised. The turn continues.")
