"""`perdure chat AGENT`: a live conversation in the terminal, which continues after pauses and worker crashes."""

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from rich.cells import cell_len

from perdure.cli.connection import Role, command, connect
from perdure.cli.memory import LocalFile, print_picture_commands
from perdure.cli.terminal import OTHER, USAGE, AsJson, AsName, fail, say, say_json
from perdure.client import ApiError, Client, Event
from perdure.client.turns import OnBusy as OnBusyName
from perdure.core.text import escape_terminal, one_line, pretty_json
from perdure.core.turns import OnBusy, truncation_notice
from perdure.schemas.turns import Failure, Turn

VOID_NOTICE = "[discard the text above; it is repeated below]"
_DETAIL_EVENTS = frozenset(
    {
        "node_start",
        "node_end",
        "tools.pending",
        "generation.start",
        "ttft",
        "thinking.complete",
        "token.usage",
        "memory.context.loaded",
        "conversation.title.generated",
    }
)
"""Events that matter only for a technical analysis."""
_HIDDEN_EVENTS = frozenset(
    {"token", "thinking", "reset", "heartbeat", "ready", "completed", "workflow_complete", "generation.complete"}
)


class LiveText:
    """Writes one text at a time. A new attempt of a model call voids the text of the previous attempt. On a terminal
    that text is erased and written again. If it cannot be erased (in a pipe, or after scrolling), a line states that it
    is void. Duplicated text is thus never mistaken for the answer."""

    def __init__(self, stream: TextIO, *, terminal: bool | None = None) -> None:
        self._stream = stream
        self._terminal = stream.isatty() if terminal is None else terminal
        self.shown = ""
        """The text on the screen since the last separate line."""
        self._follows_text = False
        """True if the text continues one that stays, on the same line, so that it cannot be erased."""

    def write(self, text: str) -> None:
        """Writes the next piece."""
        escaped = escape_terminal(text)
        self.shown += escaped
        self._write(escaped)

    def discard(self) -> None:
        """Removes the void text from the screen, or marks it as void."""
        if not self.shown:
            return
        size = shutil.get_terminal_size()
        rows = rows_below_start(self.shown, size.columns)
        if self._terminal and rows < size.lines and not self._follows_text:
            self._write("\r" + (f"\x1b[{rows}A" if rows else "") + "\x1b[J")
        else:
            self._write(f"\n{VOID_NOTICE}\n")
        self.shown, self._follows_text = "", False

    def keep(self) -> None:
        """Keeps the text on the screen. The next piece continues it."""
        self.shown, self._follows_text = "", self._follows_text or bool(self.shown)

    def end(self) -> None:
        """Ends the text, so that further output begins on a new line."""
        if self._follows_text or (self.shown and not self.shown.endswith("\n")):
            self._write("\n")
        self.shown, self._follows_text = "", False

    def line(self, text: str) -> None:
        """Writes a line that is not part of the text."""
        self.end()
        self._write(escape_terminal(text) + "\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def rows_below_start(text: str, columns: int) -> int:
    """Returns the rows between the start of `text` and the cursor, on a terminal of this width."""
    row = column = 0
    for character in text:
        if character == "\n":
            row, column = row + 1, 0
            continue
        width = 8 - column % 8 if character == "\t" else cell_len(character)
        if column + width > columns:
            # A terminal wraps before the next character, not when the row is full.
            row, column = row + 1, 0
        column += width
    return row


def chat(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id; see `perdure agents list`.")],
    message: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--message",
            metavar="TEXT",
            help="Send one message, print the answer and exit; exit code 1 if the turn did not complete.",
        ),
    ] = None,
    conversation: Annotated[str | None, typer.Option(metavar="ID", help="Continue this conversation.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Upload a file first; repeat it for several files.")
    ] = None,
    on_busy: Annotated[
        OnBusy,
        typer.Option(
            help="What to do if a turn is open: queue (wait), steer (add to the open turn) or replace (stop it)."
        ),
    ] = OnBusy.REJECT,
    as_json: AsJson = False,
    as_name: AsName = None,
) -> None:
    """Chat with an agent. With --json, print each event and then the turn, one JSON value per line."""
    if message is not None and not message.strip():
        raise fail("The message is empty; pass a text to -m, or omit -m to chat interactively", USAGE)
    files = [LocalFile.at(path) for path in file or ()]
    with connect(Role.REQUESTER, as_name) as client:
        conversation_id = conversation or client.conversations.create(agent).id
        for local_file in files:
            local_file.upload(client, conversation_id)
        if message is not None:
            turn = _run_turn(client, conversation_id, message, on_busy, as_json)
            raise typer.Exit(0 if turn.status == "completed" else OTHER)
        _chat_loop(client, conversation_id, on_busy, as_json)
        if not as_json:
            say(f"To continue: {command('chat', agent, '--conversation', conversation_id)}")


def _chat_loop(client: Client, conversation_id: str, on_busy: OnBusy, as_json: bool) -> None:
    """Sends one message after the other until the end of input."""
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
                _run_turn(client, conversation_id, message, on_busy, as_json)
            except ApiError as error:
                if error.status in (0, 401, 403, 404):
                    raise
                say(f"{error.message} ({error.code})")


def _run_turn(client: Client, conversation_id: str, message: str, on_busy: OnBusy, as_json: bool) -> Turn:
    """Runs a turn for the message. Returns the turn that received it: the open turn that it joined, or the one after
    it."""
    on_busy_name = None if on_busy is OnBusy.REJECT else cast(OnBusyName, on_busy.value)
    started = client.turns.start(conversation_id, message, on_busy=on_busy_name)
    turn_id = started.turn_id
    try:
        left_over = follow(client, turn_id, as_json=as_json)
        while started.joined and left_over is not None:
            turn_id, left_over = left_over, follow(client, left_over, as_json=as_json)
    except KeyboardInterrupt:
        say()
        say(f"The turn is still running. To watch it: {command('turns', 'watch', turn_id)}")
        say(f"To stop it: {command('turns', 'stop', turn_id)}")
        raise typer.Exit(130) from None
    turn = client.turns.get(turn_id)
    if as_json:
        say_json(turn)
    else:
        print_picture_commands(turn)
    return turn


def follow(
    client: Client, turn_id: str, *, as_json: bool, details: bool = False, after: str | None = None
) -> str | None:
    """Shows a turn's events until it ends. At a pause, shows what the turn waits for and the command to type.

    Returns the id of the turn that continues with messages that this turn did not receive, if there is one.
    """
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
        pass  # this user cannot read approvals; the command below is still valid
    else:
        if not approval.is_open:
            return  # replayed: the decision follows
        if approval.outdated:
            live.line(f"    {approval.outdated}. To reissue it: {command('approvals', 'reissue', approval_id)}")
            return
        for line in pretty_json(approval.result if approval.kind == "checkpoint" else approval.args).splitlines():
            live.line(f"      {line}")
    live.line(f"    To decide: {command('approvals', 'approve', approval_id)}   (or reject, edit, respond)")


class TurnScreen:
    """Shows events in their order."""

    def __init__(self, live: LiveText, *, details: bool = False) -> None:
        self.live = live
        self._details = details
        self._current_text: tuple[str, str] = ("", "")
        """The call whose text is last on the screen, and whether that text is its answer or its reasoning."""
        self._unfinished = ""
        """The last call, if its answer was cut. Another call may continue the text."""

    def show(self, event: Event) -> None:
        """Shows one event."""
        if event.kind == "token" or (event.kind == "thinking" and self._details):
            if (event.call_id, event.kind) != self._current_text:
                self.live.end()
                self._current_text = event.call_id, event.kind
            self.live.write(str(event.data.get("text", "")))
        elif event.kind == "generation.start" and self._unfinished and event.data.get("continues"):
            self.live.keep()
            self._current_text = event.call_id, "token"
        elif event.kind == "reset":
            if event.call_id == self._current_text[0]:
                self.live.discard()
        elif event.kind in _EVENT_LINES:
            self.live.line(_EVENT_LINES[event.kind](event.data))
        elif event.kind in _DETAIL_EVENTS:
            if self._details:
                self.live.line(f"  · {event.kind} {_plain_fields(event.data)}".rstrip())
        elif event.kind == "generation.complete":
            self._unfinished = event.call_id if event.data.get("finish_reason") in ("length", "pause_turn") else ""
            if not self._unfinished:
                self.live.end()
        elif event.kind not in _HIDDEN_EVENTS:
            self.live.line(f"  · {event.kind} {_plain_fields(event.data)}".rstrip())


def _awaiting_line(data: Mapping[str, Any]) -> str:
    again = "again, for another version" if data.get("reissued") else "again" if data.get("outdated") else ""
    return f"  ‖ {data.get('tool')} waits for an approval{f' {again}' if again else ''} ({data.get('approval_id')})"


def _approved_line(data: Mapping[str, Any]) -> str:
    return f"  ✓ {data.get('tool')}: {data.get('decision')} by {data.get('by')}{_comment_suffix(data)}"


def _denied_line(data: Mapping[str, Any]) -> str:
    reason = one_line(str(data.get("decision") or data.get("reason") or "denied"))
    by = f" by {data['by']}" if data.get("by") else ""
    tool = data.get("tool")
    what = (f"the result of {tool}" if tool else "the answer") if data.get("kind") == "checkpoint" else tool
    return f"  ✗ {what}: {reason}{by}{_comment_suffix(data)}"


def _executing_line(data: Mapping[str, Any]) -> str:
    attempt = data.get("attempt")
    attempt_text = f" (attempt {attempt})" if isinstance(attempt, int) and attempt > 1 else ""
    return f"  → {data.get('tool')} runs{attempt_text}"


def _result_line(data: Mapping[str, Any]) -> str:
    by = data.get("settled_by")
    return f"  ✓ {data.get('tool')} completed" + (f", settled by {by}{_comment_suffix(data)}" if by else "")


def _error_line(data: Mapping[str, Any]) -> str:
    if data.get("code") == "outcome_unknown":
        key = str(data.get("effect"))
        settle = command("effects", "settle", key, "happened")
        return (
            f"  ? {data.get('tool')}: the outcome is unknown{_known_suffix(data)}.\n"
            "    Check the target system, then record it:\n      "
            f'{settle} --comment "how you know"   (or did_not_happen)'
        )
    reason = one_line(str(data.get("failure") or data.get("message") or data.get("status") or "failed"), None)
    return f"  ✗ {data.get('tool')}: {reason}{_comment_suffix(data)}"


def _known_suffix(data: Mapping[str, Any]) -> str:
    known = data.get("known")
    told = [known.get("message") if isinstance(known, dict) else None, data.get("failure")]
    return "".join(f"; {one_line(str(each), None)}" for each in told if each)


def _question_line(data: Mapping[str, Any]) -> str:
    answer = command("turns", "answer", str(data.get("turn_id")))
    return f"  ? {one_line(str(data.get('question')))}\n    To answer: {answer} TEXT"


def _budget_line(data: Mapping[str, Any]) -> str:
    line = f"  ‖ {one_line(str(data.get('message') or data.get('code')))}"
    if data.get("code") != "limit_spent":
        return line
    raise_command = command("turns", "raise", str(data.get("turn_id")), "--tokens", "MORE")
    reject_command = command("approvals", "reject", str(data.get("approval_id")))
    return f"{line}\n    To continue: {raise_command}   (or --usd MORE; to end it: {reject_command})"


def _done_line(data: Mapping[str, Any]) -> str:
    seconds = float(data.get("duration_ms") or 0) / 1000
    cost = float(data.get("cost_usd") or 0)
    line = f"  {data.get('status')} · {data.get('tokens_used')} tokens · ${cost:.4f} · {seconds:.1f} s"
    if data.get("execution_id"):
        line += f" · {data['execution_id']}"
    if data.get("truncated"):
        line += f"\n  ! {truncation_notice(data.get('finish_reason'))}"
    next_turn_id = data.get("left_over")
    return f"{line}\n  ~ the messages that it did not receive continue as {next_turn_id}" if next_turn_id else line


def _retry_line(data: Mapping[str, Any]) -> str:
    retry_in = data.get("retry_in")
    return f"  ~ the model is not available ({data.get('code')}); retrying{f' in {retry_in:g} s' if retry_in else ''}"


def _queued_line(_: Mapping[str, Any]) -> str:
    return "  ~ queued behind the open turn of this conversation"


def _joined_line(data: Mapping[str, Any]) -> str:
    return (
        "  ~ the model receives the message"
        if data.get("heard")
        else "  ~ added to the open turn; its next model call includes the message"
    )


def _stopped_line(data: Mapping[str, Any]) -> str:
    by = data.get("replaced_by")
    return f"  ■ stopped: replaced by {by}" if by else "  ■ stopped"


def _failed_line(data: Mapping[str, Any]) -> str:
    failure = Failure(code=str(data.get("code")), message=str(data.get("message")), details=data.get("details") or {})
    lines = [f"  ✗ {failure.code}: {failure.message}", *(f"    {line}" for line in failure.provider_answers)]
    return "\n".join(lines)


def _stage_line(data: Mapping[str, Any]) -> str:
    """Returns a line for a stage and for its tools that ran, were skipped or failed."""
    parts = [f"ran {', '.join(map(str, data['ran']))}"] if data.get("ran") else []
    for outcome, reason_field in (("skipped", "why"), ("failed", "message")):
        tools = [tool for tool in data.get(outcome) or () if isinstance(tool, dict)]
        parts += (
            [f"{outcome} " + ", ".join(f"{tool.get('tool')} ({tool.get(reason_field)})" for tool in tools)]
            if tools
            else []
        )
    return f"  · stage {_plain_fields(data)}" + (f": {one_line('; '.join(parts), 400)}" if parts else "")


def _comment_suffix(data: Mapping[str, Any]) -> str:
    return f": {one_line(str(data['comment']))}" if data.get("comment") else ""


def _plain_fields(data: Mapping[str, Any]) -> str:
    """Returns the plain values of an event. Nested values are only in the output of --json."""
    fields = {name: value for name, value in data.items() if name not in ("turn_id", "seq", "at", "text")}
    return one_line(" ".join(f"{name}={value}" for name, value in fields.items() if not isinstance(value, dict | list)))


_EVENT_LINES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "queued": _queued_line,
    "message.joined": _joined_line,
    "tool.awaiting_approval": _awaiting_line,
    "clarification.requested": _question_line,
    "budget": _budget_line,
    "tool.approved": _approved_line,
    "tool.denied": _denied_line,
    "tool.executing": _executing_line,
    "tool.result": _result_line,
    "tool.error": _error_line,
    "rate_limit": _retry_line,
    "transient_error": _retry_line,
    "stage": _stage_line,
    "stopped": _stopped_line,
    "workflow.error": _failed_line,
    "done": _done_line,
}
